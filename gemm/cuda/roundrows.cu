// X in E4M3, row by row, and for each row what its numbers are to be multiplied by: a 448th, E4M3's largest number, of the row's
// largest magnitude. A row that has a number that is not finite becomes NaN.

struct Rows {
    const u8* x;    // [m][k], of 16-bit numbers
    u8* to;         // [m][k]
    float* scales;  // [m]
    u32 m, k;       // k is a multiple of 16
};

// Magnitudes of rows that are smaller are taken to be this, for what divides by it to be finite.
constexpr float LEAST = 0x1p-100f, LARGEST = 448;

__device__ __forceinline__ float number(u32 bits) { return BF16 ? f32_of_bits(bits << 16) : f32_of_f16(bits); }

// four rounds two words of two numbers each.
__device__ __forceinline__ u32 four(u32 a, u32 b, float inverse) {
    return e4m3x2_of_f32(number(a & 0xffff) * inverse, number(a >> 16) * inverse) |
           (u32)e4m3x2_of_f32(number(b & 0xffff) * inverse, number(b >> 16) * inverse) << 16;
}

// A block takes a row, a thread 16 of its columns at a time, twice.
extern "C" __global__ void __launch_bounds__(256) roundrows(const __grid_constant__ Rows p) {
    __shared__ u32 found[8];
    launch_next();
    wait_previous();
    const u32 row = blockIdx.x, lane = threadIdx.x % 32;
    const u8* x = p.x + (u64)row * p.k * 2;
    u32 upper = 0, lower = 0;  // magnitudes, which are in the order of their bits, NaN and infinity behind all
    for (u32 k = threadIdx.x * 8; k < p.k; k += 256 * 8) {
        u32 v[4];
        load_cached(v, x + k * 2);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            upper = max(upper, v[i] & 0x7fff0000);
            lower = max(lower, v[i] & 0x7fff);
        }
    }
    u32 most = max(upper >> 16, lower);
#pragma unroll
    for (u32 i = 16; i > 0; i /= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
    if (lane == 0) found[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 8; i++) most = max(most, found[i]);
    const bool finite = most < (BF16 ? 0x7f80 : 0x7c00);
    const float largest = finite ? fmaxf(number(most), LEAST) : f32_of_bits(0x7fc00000), inverse = __fdiv_rn(LARGEST, largest);
    if (threadIdx.x == 0) p.scales[row] = __fdiv_rn(largest, LARGEST);
    for (u32 k = threadIdx.x * 16; k < p.k; k += 256 * 16) {
        u32 a[4], b[4];
        load_cached(a, x + k * 2);
        load_cached(b, x + k * 2 + 16);
        *(Words4*)(p.to + (u64)row * p.k + k) = {{four(a[0], a[1], inverse), four(a[2], a[3], inverse), four(b[0], b[1], inverse), four(b[2], b[3], inverse)}};
    }
}
