// Rows of Ŵ of binary codes as numbers, out of the tiles of repack.BCQTiles: z ± α₀ ± α₁ …, in float32 and in that order.
//
// bcqrows writes rows one number at a time, a block a row and a thread columns of it; bcqdense whole tiles as numbers of BF16's
// type, a warp a unit of 256 columns of 16 rows and a lane eight numbers at a time.
//
// Set by the host, beside BITS, GROUP, SCALE and BF16, which bcqplanes.cu explains:
//   OUT   0 for float32 results, 1 for BF16's type

struct Rows {
    const u8* planes;
    const u8* factors;
    void* out;         // [rows][k]
    const u32* index;  // of the rows, or null for those from first on
    u32 first, k, units;
    u32 count;         // rows of bcqdense
};

constexpr u32 GROUPS = GROUP == 0 || GROUP == 256 ? 1 : 256 / GROUP;  // of a unit
constexpr u32 FACTOR_SIZE = SCALE == 3 ? 4 : 2;

__device__ __forceinline__ float factor_of(const u8* p) {
    if (SCALE == 3) return *(const float*)p;
    return SCALE == 1 ? f32_of_f16(*(const u16*)p) : f32_of_bits((u32) * (const u16*)p << 16);
}

extern "C" __global__ void __launch_bounds__(256) bcqrows(const __grid_constant__ Rows p) {
    const u32 n = p.index ? p.index[blockIdx.x] : p.first + blockIdx.x;
    const u32 tile = n / 16, row = n % 16;
    for (u32 k = blockIdx.y * 256 + threadIdx.x; k < p.k; k += gridDim.y * 256) {
        const u64 unit = (u64)tile * p.units + k / 256;
        const u32 col = k % 256, lane = row % 8 * 4 + col % 8 / 2;
        const u32 bit = row / 8 * 16 + col % 2 * 8 + col % 32 / 8 * 2 + col / 32 % 2;
        const u8* word = p.planes + unit * (BITS * 512) + lane * 16 + col / 64 * 4;
        const u8* factor = p.factors + ((GROUP ? unit * GROUPS + col * GROUPS / 256 : tile) * (BITS + 1) * 16 + row % 8 * 2 + row / 8) * FACTOR_SIZE;
        float w = factor_of(factor + BITS * 16 * FACTOR_SIZE);
#pragma unroll
        for (u32 i = 0; i < BITS; i++) {
            const float a = factor_of(factor + i * 16 * FACTOR_SIZE);
            w += *(const u32*)(word + i * 512) >> bit & 1 ? a : -a;
        }
        const u64 at = (u64)blockIdx.x * p.k + k;
        if (OUT)
            ((u16*)p.out)[at] = BF16 ? bf16_of_f32(w) : f16_of_f32(w);
        else
            ((float*)p.out)[at] = w;
    }
}

extern "C" __global__ void __launch_bounds__(256) bcqdense(const __grid_constant__ Rows p) {
    const u32 lane = threadIdx.x % 32, g = lane / 4, tiles = (p.count + 15) / 16;
    for (u32 i = blockIdx.x * 8 + threadIdx.x / 32; i < tiles * p.units; i += gridDim.x * 8) {
        const u32 tile = i / p.units, unit = i - tile * p.units;
        const u64 from = (u64)(p.first / 16 + tile) * p.units + unit;
        const u8* planes = p.planes + from * (BITS * 512) + g * 64;
        const u8* sets = p.factors + (GROUP ? from * GROUPS : p.first / 16 + tile) * ((BITS + 1) * 16 * FACTOR_SIZE);
        float alpha[2][BITS], z[2] = {};
#pragma unroll
        for (u32 c = 0; c < 8; c++) {  // times 32 columns, of which a lane writes eight
            if (c % (8 / GROUPS) == 0) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u8* set = sets + (c * GROUPS / 8 * (BITS + 1) * 16 + 2 * g + half) * FACTOR_SIZE;
#pragma unroll
                    for (u32 b = 0; b < BITS; b++) alpha[half][b] = factor_of(set + b * 16 * FACTOR_SIZE);
                    z[half] = factor_of(set + BITS * 16 * FACTOR_SIZE);
                }
            }
            u32 clear[BITS][4];  // the bits of all four lanes of the rows, turned
#pragma unroll
            for (u32 b = 0; b < BITS; b++)
#pragma unroll
                for (u32 t = 0; t < 4; t++) clear[b][t] = ~*(const u32*)(planes + b * 512 + t * 16 + c / 2 * 4) >> lane % 4 * 2;
            const u32 col = unit * 256 + 32 * c + lane % 4 * 8;
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 row = tile * 16 + g + 8 * half;
                Words4 out;
#pragma unroll
                for (u32 t = 0; t < 4; t++) {
                    const u32 bit = half * 16 + c % 2;
                    float lo = z[half], hi = z[half];
#pragma unroll
                    for (u32 b = 0; b < BITS; b++) {
                        lo += f32_of_bits(__float_as_int(alpha[half][b]) ^ (clear[b][t] << (31 - bit) & 0x80000000));
                        hi += f32_of_bits(__float_as_int(alpha[half][b]) ^ (clear[b][t] << (23 - bit) & 0x80000000));
                    }
                    out.w[t] = BF16 ? bf16x2_of_f32(lo, hi) : f16x2_of_f32(lo, hi);
                }
                if (row < p.count && col < p.k) *(Words4*)((u16*)p.out + (u64)row * p.k + col) = out;
            }
        }
    }
}
