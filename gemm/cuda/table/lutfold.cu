// Rows of Ŵ folded: the products of table value, scale of the group and inverse of the row's scale, rounded to E4M3. lut.cuh has the
// arguments, of which y is [n][k] of bytes here, x the inverses, float32 [n], tiles_each the tiles of all blocks together, and bias, m
// and what sums are for are not used.
//
// A warp takes one atom after the other, of any tile, and has the next one's codes on the way. For each 32
// columns a lane has eight consecutive ones of rows g and g + 8, and writes them at once.
//
// Set by the host, beside what lut.cuh names:
//   BLOCKS   that a multiprocessor has room for

struct Item {
    Atom atom;
    float inverse[2];  // of the scales of rows g and g + 8
    u32 row[2];        // where each row has one scale, those of the weights
};

// load begins to read atom i of all.
__device__ __forceinline__ void load(Item& item, const Params& p, u32 i, u32 lane) {
    load_codes(item.atom.w, p.codes + ((u64)i * ATOM_BYTES + lane * 16), lane);
    const u32 unit = i / 2, tile = unit / p.units;  // units of all tiles, which have whole ones
    if constexpr (GROUP != 0)
        load_scales(item.atom.s, p.scales + ((u64)unit * UNIT_SCALE_BYTES + (GROUP == 256 ? 0 : i % 2 * 8 * SCALE_BYTES) + lane / 4 * SCALE_BYTES));
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 n = tile * 16 + lane / 4 + 8 * h;
        item.inverse[h] = n < p.n ? ((const float*)p.x)[n] : 0.0f;
        if constexpr (GROUP == 0) {  // both lie side by side
            const u8* at = p.scales + (tile * 16 + lane / 4 * 2 + h) * SCALE_SIZE;
            item.row[h] = SCALE_SIZE == 4 ? *(const u32*)at : SCALE_SIZE == 2 ? *(const u16*)at : *at;
        }
    }
}

// four rounds two pairs.
__device__ __forceinline__ u32 four(u32 a, u32 b, float scale) {
    return e4m3x2_of_f32(float_of((u16)a) * scale, float_of((u16)(a >> 16)) * scale) |
           (u32)e4m3x2_of_f32(float_of((u16)b) * scale, float_of((u16)(b >> 16)) * scale) << 16;
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
                const float scale = (GROUP == 0 ? scale_at(of_row, 0) : scale_at(item.atom.s, (half * 4 + c * 2) / (8 / GROUPS) * 2 + h)) * item.inverse[h];
                const u32 n = row + 8 * h;
                if (n < p.n && at < p.k)
                    *(Words2*)((u8*)p.y + ((u64)n * p.k + at)) = {{four(a[2 * c][h], a[2 * c][h + 2], scale),
                                                                   four(a[2 * c + 1][h], a[2 * c + 1][h + 2], scale)}};
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) lutfold(const __grid_constant__ Params p) {
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
