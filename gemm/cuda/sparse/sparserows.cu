// Rows of a matrix of which every four columns keep two as numbers, zeros among them: out of the tiles that lutsparse.cu multiplies
// by, whose Items these are. lut.cuh has the arguments, of which y are the rows [n][k], k those that every four keep two of,
// x their numbers, 32 bits each, or null, tiles_each the first of them then, and what sums are for is not used.
//
// A warp takes an atom of a tile, or of one row of it, and a lane the chunks of rows g and g + 8 that it holds.
//
// Set by the host, beside what lut.cuh names:
//   OUT   0 for float32 results, 1 for the type of X

constexpr u32 PATTERN_BYTES = 512;
constexpr u32 BOTH_BYTES = ATOM_BYTES + PATTERN_BYTES;
constexpr u32 STEPS = 8;
constexpr u32 IN_TABLE = 4;

// number returns what a chunk has in one of its columns: of a pair the first or the second, or nothing.
__device__ __forceinline__ float number(u32 pair, u32 nibble, u32 column, float scale) {
    const u16 half = (nibble & 3) == column ? (u16)pair : (nibble >> 2 & 3) == column ? (u16)(pair >> 16) : 0;
    return (nibble & 3) == column || (nibble >> 2 & 3) == column ? float_of(half) * scale : 0.0f;
}

// write writes a chunk to a place in y.
__device__ __forceinline__ void write(const Params& p, u64 at, u32 pair, u32 nibble, float scale) {
    float v[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] = number(pair, nibble, i, scale);
#if OUT
    *(Words2*)(p.y + at) = BF16 ? Words2{{bf16x2_of_f32(v[0], v[1]), bf16x2_of_f32(v[2], v[3])}} : Words2{{f16x2_of_f32(v[0], v[1]), f16x2_of_f32(v[2], v[3])}};
#else
    *(Floats4*)((float*)p.y + at) = {{v[0], v[1], v[2], v[3]}};
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sparserows(const __grid_constant__ Params p) {
    check_base();
    fill_table(p);
    __syncthreads();
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, atoms = (p.units + 1) / 2 * 2;
    const Table table = table_of(p, lane);
    const u32* index = (const u32*)p.x;
    const u32 first = index ? 0 : p.tiles_each / 16;  // tile
    const u32 items = p.units * (index ? p.n : (p.tiles_each + p.n + 15) / 16 - first);
    for (u32 i = blockIdx.x * WARPS + threadIdx.x / 32; i < items; i += gridDim.x * WARPS) {
        const u32 of = i / p.units, atom = i - of * p.units, row = index ? index[of] : 0, tile = index ? row / 16 : first + of;
        const u64 at = (u64)tile * atoms + atom;
        Atom codes;
        u32 pattern[4];
        load_codes(codes.w, p.codes + (at * BOTH_BYTES + lane * 16), lane);
        load_stream(pattern, p.codes + (at * BOTH_BYTES + ATOM_BYTES + lane * 16));
        if constexpr (GROUP != 0) load_scales(codes.s, p.scales + (at * (8 * SCALE_BYTES) + g * SCALE_BYTES));
        u32 a[2][HALF_STEPS][4];
        dequantize(a[0], codes.w, IN_TABLE, 0, table);
        dequantize(a[1], codes.w, IN_TABLE, 1, table);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 n = tile * 16 + 8 * h + g;
            const u32 to = index ? of : n - p.tiles_each;
            const bool wanted = index ? n == row : n >= p.tiles_each && to < p.n;
            u32 own[1] = {};
            if constexpr (GROUP == 0)
                for (u32 b = 0; b < SCALE_SIZE; b++) own[0] |= (u32)p.scales[(tile * 16 + 2 * g + h) * SCALE_SIZE + b] << 8 * b;
#pragma unroll
            for (u32 s = 0; s < STEPS; s++) {
                const float scale = GROUP == 0 ? scale_at(own, 0) : scale_at(codes.s, s / (STEPS / GROUPS) * 2 + h);
#pragma unroll
                for (u32 r = 0; r < 2; r++) {  // chunks t and t + 4 of the step
                    const u32 word = __shfl_sync(~0u, pattern[s / 2], 4 * g + s % 2 * 2 + r);
                    const u32 column = atom * 256 + 32 * s + 16 * r + 4 * t;
                    if (wanted && column < p.k) write(p, (u64)to * p.k + column, a[s / 4][s % 4][h + 2 * r], word >> 16 * h >> 4 * t, scale);
                }
            }
        }
    }
}
