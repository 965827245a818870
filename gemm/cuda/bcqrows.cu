// Rows of Ŵ of binary codes as numbers, out of the tiles of repack.BCQTiles: z ± α₀ ± α₁ …, in float32 and in that order.
//
// A block takes a row, a thread columns of it.
//
// Set by the host, beside BITS, GROUP, SCALE and BF16, which bcqplanes.cu explains:
//   OUT   0 for float32 results, 1 for BF16's type

struct Rows {
    const u8* planes;
    const u8* factors;
    void* out;         // [rows][k]
    const u32* index;  // of the rows, or null for those from first on
    u32 first, k, units, unused;
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
