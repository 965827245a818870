// X as trellisgemm.cu reads it, rotated: [⌈k/64⌉][⌈m/8⌉][2][8 rows][4][16 bytes], 64 columns of 8 rows in 1024 bytes, of which the first half has
// the first eight of each 16 columns. They are float16 whatever the type of X. Where there is no row there is what nobody looks at.
//
// For kernels that have ptx.cuh.

[[maybe_unused]] constexpr float NORM = 0.088388346f;  // 1/√128

// sign_of is trellis.Sign of a column.
__device__ __forceinline__ float sign_of(u32 k) {
    u32 x = (k + 1) * 0x9E3779B1u;
    x ^= x >> 15;
    x *= 0x85EBCA77u;
    return x >> 16 & 1 ? -1.0f : 1.0f;
}

// bounded is the nearest number in float16's range. NaN stays.
__device__ __forceinline__ float bounded(float f) { return f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f; }

// rotated_at returns where a column of a row lies, of which there are so many groups of eight.
__device__ __forceinline__ u64 rotated_at(u32 row, u32 column, u32 groups) {
    const u32 c = column % 64;
    return (((u64)(column / 64) * groups + row / 8) * 2 + c / 8 % 2) * 512 + row % 8 * 64 + c / 16 * 16 + c % 8 * 2;
}

// write_rotated writes eight neighbours of a row, of which column is the first, in blocks of 128 columns mixed as trellisrotate.cu does, bit for bit: each number
// times its column's sign, and sums and differences of neighbours before those of numbers far apart. All lanes of a warp call it, and 16 of them,
// the first of which is a multiple of 16, have a block; or are not there.
__device__ __forceinline__ void write_rotated(u8* x, u32 groups, u32 row, u32 column, float (&v)[8], bool there) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] *= sign_of(column + i);
#pragma unroll
    for (u32 far = 1; far < 8; far *= 2)
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (!(i & far)) {
                const float a = v[i], b = v[i + far];
                v[i] = a + b;
                v[i + far] = a - b;
            }
#pragma unroll
    for (u32 far = 1; far < 16; far *= 2)
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], far);
            v[i] = lane & far ? other - v[i] : v[i] + other;
        }
    Words4 to;
#pragma unroll
    for (u32 i = 0; i < 4; i++) to.w[i] = f16x2_of_f32(bounded(v[2 * i] * NORM), bounded(v[2 * i + 1] * NORM));
    if (there) *(Words4*)(x + rotated_at(row, column, groups)) = to;
}
