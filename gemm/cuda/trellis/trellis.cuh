// What the kernels for weights that are windows on rings of bits have in common (formats/weight/trellis): the layout of
// repack.TrellisTiles, and what becomes of a window. It follows rotated.cuh.
//
// A tile is 64 rows of R by 64 columns. Lane 4·g + q of a warp has the ring of its rows 8g to 8g + 7 and columns 16q to 16q + 15, of
// which four steps are its share of an mma of 16 × 16 weights: those of step 16u + 4t are of rows 2t and 2t + 1 and of columns 4u to
// 4u + 3 of its own. So no bits cross lanes, and a lane reads 16 neighbours of X.
//
// Set by the host:
//   RATE      bits of two weights, 2 to 12
//   FACTOR    what windows are multiplied by
//   ENTRIES   pairs of the table, a power of two: bits 7 and up of the product are the index
//   FLIPS     bits of the product in which the pair is turned over
//   BF16      1 for bfloat16 activations, 0 for float16

constexpr u32 TILE = 64;            // rows and columns of a tile
constexpr u32 WORDS = 2 * RATE;     // of a ring
[[maybe_unused]] constexpr u32 TILE_BYTES = 32 * 4 * WORDS;
[[maybe_unused]] constexpr u32 INDEX = (ENTRIES - 1) << 7;
[[maybe_unused]] constexpr float ROOT = 11.313708f;  // √128

// funnel returns 32 bits of two words, from bit n of the first on.
__device__ __forceinline__ u32 funnel(u32 lo, u32 hi, u32 n) {
    u32 d;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(lo), "r"(hi), "r"(n & 31));
    return d;
}

__device__ __forceinline__ float float_of(u16 h) { return BF16 ? f32_of_bits((u32)h << 16) : f32_of_f16(h); }
__device__ __forceinline__ u16 rounded_of(float f) { return BF16 ? bf16_of_f32(f) : f16_of_f32(f); }

// block_of returns the number of columns that are mixed with the lane's four of 128, the first of k columns from one on, which are a multiple of
// 32: all 128, or as many as are left in powers of two.
__device__ __forceinline__ u32 block_of(u32 columns, u32 lane) {
    if (columns >= 128) return 128;
    return columns >= 64 && lane < 16 ? 64 : 32;
}

// mix multiplies the lane's four columns of a block by a Hadamard matrix of ±1, in the order of trellis.Hadamard.
__device__ __forceinline__ void mix(float (&v)[4], u32 block, u32 lane) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (u32 far = 1; far < 32; far *= 2)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], far);
            if (8 * far <= block) v[i] = lane & far ? other - v[i] : v[i] + other;
        }
}

// even is trellis.Even.
__device__ __forceinline__ float even(u32 block) { return block == 128 ? 1.0f : block == 64 ? 1.4142135f : 2.0f; }

// factors_of returns those of four columns, stored or by the formula.
__device__ __forceinline__ void factors_of(float (&f)[4], const u16* stored, u32 k) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) f[i] = stored ? f32_of_f16(stored[k + i]) : sign_of(k + i);
}
