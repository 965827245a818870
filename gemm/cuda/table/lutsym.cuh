// Codes of 4 bits that are turned into weights by arithmetic, where the table is the integers from -8 to 7: instead of
// the table of lut.cuh, which is what it has to do with a code whatever the table (DECODE is 0). Of it the source of
// MARLIN tells (IST-DASLab, dequant).
//
// A code's bits become the last ones of a number's mantissa, whose exponent is such that they count ones: 1024 + code in
// float16, 128 + code in bfloat16. Code 2i of a word of eight lies 16 bits below code 2i + 8, a register's other half, so
// that registers have neighbours but one in K, not neighbours: turn_columns turns X accordingly. Weights are exact, and
// so are sums those of the table.

[[maybe_unused]] constexpr u32 TABLE_PITCH = 0, ENTRIES = 0;  // of the table: there is none

__device__ __forceinline__ constexpr bool turned(u32, u32) { return true; }

struct Table {};

__device__ __forceinline__ void fill_table(const Params&) {}
__device__ __forceinline__ Table table_of(const Params&, u32) { return {}; }

// low_codes returns the codes in bits 0 to 3 and 16 to 19 of a word, less 8.
__device__ __forceinline__ u32 low_codes(u32 v) {
    if (BF16) return bf16x2_fma(masked_or<0x000f000f>(v, 0x43004300), 0x3f803f80, 0xc308c308);  // 1, -136
    return f16x2_add(masked_or<0x000f000f>(v, 0x64006400), 0xe408e408);                         // -1032
}

// high_codes returns those in bits 4 to 7 and 20 to 23.
__device__ __forceinline__ u32 high_codes(u32 v) {
    if (BF16) return low_codes(v >> 4);
    return f16x2_fma(masked_or<0x00f000f0>(v, 0x64006400), 0x2c002c00, 0xd480d480);  // 1/16, -72
}

__device__ __forceinline__ void dequantize(u32 (&a)[HALF_STEPS][4], const u32 (&w)[2 * BITS], u32, u32 half, const Table&) {
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) {
        const u32 v = w[4 * half + i];
        a[i][0] = low_codes(v);
        a[i][1] = low_codes(v >> 8);
        a[i][2] = high_codes(v);
        a[i][3] = high_codes(v >> 8);
    }
}
