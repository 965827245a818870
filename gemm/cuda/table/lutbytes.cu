// X as lutfp8.cu reads it: [⌈k/128⌉][⌈m/8⌉][8][128 bytes] of E4M3, 128 columns of 8 rows in 1024 bytes, and for each
// row what its numbers are to be multiplied by: a 448th, E4M3's largest number, of the row's largest magnitude.
// Of each 32 columns the fours that lanes have of the weights of a wgmma, 4·(2t + s) from step s, lie in the order 4s + t.
// Of row r the 16 bytes that would be part c are part c ^ r%8. Where there is no row or column there are zeros.

struct Bytes {
    const u8* x;  // [m][k], of 16-bit numbers
    u8* to;
    float* scales;  // [8·⌈m/8⌉]
    u32 m, k;
    u32 atoms;      // ⌈k/128⌉
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
extern "C" __global__ void __launch_bounds__(256) lutbytes(const __grid_constant__ Bytes p) {
    __shared__ u32 found[8];
    launch_next();
    wait_previous();
    const u32 row = blockIdx.x, lane = threadIdx.x % 32, groups = (p.m + 7) / 8, columns = row < p.m ? p.k : 0;
    const u8* x = p.x + (u64)row * p.k * 2;
    u32 upper = 0, lower = 0;  // magnitudes, which are in the order of their bits, NaN and infinity behind all
    for (u32 k = threadIdx.x * 8; k < columns; k += 256 * 8) {
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
    // A row that has a number that is not finite becomes NaN.
    const bool finite = most < (BF16 ? 0x7f80 : 0x7c00);
    const float largest = finite ? fmaxf(number(most), LEAST) : f32_of_bits(0x7fc00000), inverse = __fdiv_rn(LARGEST, largest);
    if (threadIdx.x == 0) p.scales[row] = row < p.m ? __fdiv_rn(largest, LARGEST) : 0.0f;
    for (u32 begin = 0; begin < p.atoms * 128; begin += 256 * 16) {
        const u32 k = begin + threadIdx.x * 16, odd = lane % 2;
        u32 v[8] = {}, w[4];
        if (k < columns) {
            u32 half[4];
            load_cached(half, x + k * 2);
#pragma unroll
            for (u32 i = 0; i < 4; i++) v[i] = half[i];
            load_cached(half, x + k * 2 + 16);
#pragma unroll
            for (u32 i = 0; i < 4; i++) v[4 + i] = half[i];
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) w[i] = four(v[2 * i], v[2 * i + 1], inverse);
        if (k >= columns) w[0] = w[1] = w[2] = w[3] = 0;  // in a row of NaN as well
        // Two lanes have 32 columns: one writes the even fours of both, one the odd ones.
        const u32 a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
        const u32 part[4] = {odd ? a : w[0], odd ? b : w[2], odd ? w[1] : a, odd ? w[3] : b};
        if (k < p.atoms * 128) {
            u8* to = p.to + ((u64)(k / 128) * groups + row / 8) * 1024 + row % 8 * 128;
            store(to + (k % 128 / 16 ^ row % 8) * 16, part);
        }
    }
}
