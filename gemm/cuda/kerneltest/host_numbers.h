// Numbers of 16 and 8 bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace host {

inline uint32_t bits_of(float f) { uint32_t b; memcpy(&b, &f, 4); return b; }
inline float float_of(uint32_t b) { float f; memcpy(&f, &b, 4); return f; }

inline float float_of_f16(uint16_t h) {
    const uint32_t exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    float a = exponent == 0 ? ldexpf(mantissa, -24) : ldexpf(1024 + mantissa, (int)exponent - 25);
    if (exponent == 31) a = mantissa ? NAN : INFINITY;
    return h & 0x8000 ? -a : a;
}
inline float float_of_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }
inline float float_of_e4m3(uint8_t b) {
    const uint32_t exponent = b >> 3 & 15, mantissa = b & 7;
    float a = exponent == 0 ? ldexpf(mantissa, -9) : ldexpf(8 + mantissa, (int)exponent - 10);
    if ((b & 0x7f) == 0x7f) a = NAN;
    return b & 0x80 ? -a : a;
}

// To nearest, ties to even.
inline uint16_t f16_of(float f) {
    const uint32_t b = bits_of(f), sign = b >> 16 & 0x8000, mag = b & 0x7fffffff;
    const float a = float_of(mag);
    if (a != a) return 0x7fff;
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a < 0x1p-14f) return sign | (uint32_t)nearbyintf(a * 0x1p24f);
    return sign | ((mag + 0xfff + (mag >> 13 & 1)) >> 13) - (112 << 10);
}
inline uint16_t bf16_of(float f) {
    const uint32_t b = bits_of(f);
    return f != f ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
// What is beyond the range becomes the largest.
inline uint8_t e4m3_of(float f) {
    const uint32_t b = bits_of(f), sign = b >> 24 & 0x80, mag = b & 0x7fffffff;
    const float a = float_of(mag);
    if (a != a) return 0x7f;
    if (a < 0x1p-6f) return sign | (uint32_t)nearbyintf(a * 0x1p9f);
    return sign | std::min<uint32_t>(0x7e, ((mag + 0x7ffff + (mag >> 20 & 1)) >> 20) - (120 << 3));
}

}  // namespace host
