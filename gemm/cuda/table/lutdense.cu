// Rows of Ŵ as numbers of the type of X, for cuBLAS to multiply many rows of X by: the products of table
// value and scale, rounded once. lut.cuh has the arguments, of which y is [n][k] here, tiles_each the tiles of
// all blocks together, and x, bias, m and what sums are for are not used.
//
// A warp takes one atom after the other, of any tile, and has the next one's codes on the way. For each 32
// columns a lane has eight consecutive ones of rows g and g + 8, and writes them at once.
//
// Set by the host, beside what lut.cuh names:
//   BLOCKS   that a multiprocessor has room for

struct Item {
    Atom atom;
    u32 row[2];  // where each row has one scale, those of rows g and g + 8
};

// load begins to read atom i of all.
__device__ __forceinline__ void load(Item& item, const Params& p, u32 i, u32 lane) {
    load_codes(item.atom.w, p.codes + ((u64)i * ATOM_BYTES + lane * 16), lane);
    const u32 unit = i / 2;  // of all tiles, which have whole ones
    if constexpr (GROUP != 0)
        load_scales(item.atom.s, p.scales + ((u64)unit * UNIT_SCALE_BYTES + (GROUP == 256 ? 0 : i % 2 * 8 * SCALE_BYTES) + lane / 4 * SCALE_BYTES));
    else
#pragma unroll
        for (u32 h = 0; h < 2; h++) {  // which lie side by side
            const u8* at = p.scales + (unit / p.units * 16 + lane / 4 * 2 + h) * SCALE_SIZE;
            item.row[h] = SCALE_SIZE == 4 ? *(const u32*)at : SCALE_SIZE == 2 ? *(const u16*)at : *at;
        }
}

__device__ __forceinline__ u32 scaled(u32 pair, float scale) {
    const float lo = float_of((u16)pair) * scale, hi = float_of((u16)(pair >> 16)) * scale;
    return BF16 ? bf16x2_of_f32(lo, hi) : f16x2_of_f32(lo, hi);
}

// write writes what a lane has of atom i.
__device__ __forceinline__ void write(const Item& item, const Params& p, u32 i, u32 lane, const Table& table) {
    const u32 tile = i / (2 * p.units), row = tile * 16 + lane / 4, column = i % (2 * p.units) * 128 + lane % 4 * 8;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 a[HALF_STEPS][4];
        dequantize(a, item.atom.w, 0, half, table);
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            const u32 at = column + half * 64 + c * 32;
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const u32 of_row[1] = {item.row[h]};
                const float scale = GROUP == 0 ? scale_at(of_row, 0) : scale_at(item.atom.s, (half * 4 + c * 2) / (8 / GROUPS) * 2 + h);
                const u32 n = row + 8 * h;
                if (n < p.n && at < p.k)
                    *(Words4*)(p.y + ((u64)n * p.k + at)) = {{scaled(a[2 * c][h], scale), scaled(a[2 * c][h + 2], scale),
                                                              scaled(a[2 * c + 1][h], scale), scaled(a[2 * c + 1][h + 2], scale)}};
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) lutdense(const __grid_constant__ Params p) {
    check_base();
    const u32 lane = threadIdx.x % 32, atoms = p.tiles_each * 2 * p.units, step = gridDim.x * WARPS;
    u32 i = blockIdx.x * WARPS + threadIdx.x / 32;
    Item next = {};
    if (i < atoms) load(next, p, i, lane);
    fill_table(p);
    __syncthreads();
    const Table table = table_of(p, lane);
    for (; i < atoms; i += step) {
        const Item item = next;
        if (i + step < atoms) load(next, p, i + step, lane);
        write(item, p, i, lane, table);
    }
}
