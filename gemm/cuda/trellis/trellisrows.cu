// Rows of Ŵ as numbers, out of the tiles of repack.TrellisTiles: what the rings hold, mixed back, times the row's scale, times the column's
// factor, all in float32 and in that order, as trellis.Matrix has them.
//
// A warp takes 128 columns of a row, of which a lane has four neighbours. A block's warps take eight rows, which are of the same rings
// where the first is a multiple of eight.
//
// Set by the host, beside what trellis.cuh names:
//   OUT   0 for float32 results, 1 for BF16's type

struct Rows {
    const u8* rings;
    const float* scales;
    const u16* factors;  // or null
    void* out;           // [rows][k]
    const u32* index;    // of the rows, or null for those from first on
    u32 first, count, k;
    u32 columns;         // of tiles: ⌈k/64⌉
    const u32* table;    // [ENTRIES]
};

struct alignas(8) Halves { u32 w[2]; };

// word returns one of a ring, of the lane that has it.
__device__ __forceinline__ u32 word(const u8* tile, u32 lane, u32 i) {
    const u32 size = i / 4 * 4 + 4 <= WORDS ? 16 : 8;
    return *(const u32*)(tile + i / 4 * 512 + lane * size + i % 4 * 4);
}

// held returns the pair of a step.
__device__ __forceinline__ u32 held(const u32* table, const u8* tile, u32 lane, u32 step) {
    const u32 at = step * RATE, i = at / 32;
    const u32 x = funnel(word(tile, lane, i), word(tile, lane, (i + 1) % WORDS), at % 32) & 0xffff, y = x * (u32)FACTOR;
    return table[y >> 7 & (ENTRIES - 1)] ^ (y & (u32)FLIPS);
}

extern "C" __global__ void __launch_bounds__(256) trellisrows(const __grid_constant__ Rows p) {
    __shared__ u32 table[ENTRIES];
    for (u32 i = threadIdx.x; i < ENTRIES; i += 256) table[i] = p.table[i];
    __syncthreads();
    const u32 lane = threadIdx.x % 32, i = blockIdx.x * 8 + threadIdx.x / 32;
    if (i >= p.count) return;
    const u32 n = p.index ? p.index[i] : p.first + i, c = lane % 16 * 4;
    const float scale = p.scales[n];
    for (u32 block = blockIdx.y; block * 128 < p.k; block += gridDim.y) {
        const u32 column = block * 128 + lane * 4, size = block_of(p.k - block * 128, lane);
        float v[4] = {};
        if (column < p.k) {
            const u8* tile = p.rings + ((u64)(n / TILE) * p.columns + column / TILE) * TILE_BYTES;
            const u32 owner = n % TILE / 8 * 4 + c / 16, step = c / 4 % 4 * 16 + n % 8 / 2 * 4 + n % 2;
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 pair = held(table, tile, owner, step + 2 * j);
                v[2 * j] = f32_of_f16(pair & 0xffff);
                v[2 * j + 1] = f32_of_f16(pair >> 16);
            }
        }
        mix(v, size, lane);
        if (column >= p.k) continue;
        float f[4];
        factors_of(f, p.factors, column);
#pragma unroll
        for (u32 j = 0; j < 4; j++) v[j] = v[j] * even(size) * scale * f[j];
        const u64 at = (u64)i * p.k + column;
        if (OUT) {
            u16* to = (u16*)p.out + at;
            u16 h[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) h[j] = rounded_of(v[j]);
            if ((u64)to % 8 == 0)
                *(Halves*)to = {{h[0] | (u32)h[1] << 16, h[2] | (u32)h[3] << 16}};
            else
#pragma unroll
                for (u32 j = 0; j < 4; j++) to[j] = h[j];
        } else {
            float* to = (float*)p.out + at;
            if ((u64)to % 16 == 0)
                *(Floats4*)to = {{v[0], v[1], v[2], v[3]}};
            else
#pragma unroll
                for (u32 j = 0; j < 4; j++) to[j] = v[j];
        }
    }
}
