// Y = X·Ŵᵀ by a matrix of which every four consecutive columns keep two, for up to 16 rows of X: repack.SparseTiles
// tells how the kept weights and their pattern lie. They are looked up as in the other kernels, and multiplied by
// mma.sp, which takes twice the columns of X of each step: what a chunk of four columns does not keep is not read,
// not looked up and not multiplied.
// What was measured, and tried and lost, is in NOTES.md.
//
// Words. A tile is 16 rows of Ŵ over all of K; an atom 256 of its columns, of which 128 are kept; a slice every
// SLICES-th atom, which one warp of each group multiplies; a run the tiles that a block takes at once; a slot the place in
// shared memory of the sums of a tile in a slice.
//
// Work. A block owns whole tiles. The warp of a slice holds the fragments of X for one of its atoms in registers while it
// runs down the tiles of the block. What that adds to a tile goes to the warp's own slot, and at the end the slots
// of a tile are summed in order. So sums are in the order of lut.cuh, but that a slice has every SLICES-th atom and that
// a group's part in an atom, of the kept columns, is what its mmas of 16 kept columns each add up.
//
// Latency. Tiles come in batches, one at work and one on the way, straight from memory to registers: the next batch is
// loaded as soon as the first codes of the one at work are looked up.
//
// Set by the host, beside what lut.cuh names, where GROUP counts kept columns and is at most 128:
//   SLICES   of K, which divide WARPS into teams
// and DEPTH is that of two batches. Params.units are the atoms that have columns.

constexpr u32 STEPS = 8;  // of an atom, 32 columns each
constexpr u32 PATTERN_BYTES = 512;
constexpr u32 BOTH_BYTES = ATOM_BYTES + PATTERN_BYTES;  // an atom's codes, and its pattern behind them
constexpr u32 BATCH = DEPTH / 2;
constexpr u32 TEAMS = WARPS / SLICES;  // groups of warps
constexpr u32 IN_TABLE = 4;  // as if of an atom no part of which is looked up in registers, of which columns would change places

__device__ __forceinline__ Warp warp_of(const Params& p) {
    Warp w;
    const u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // which is known to be the same for all lanes then
    w.lane = threadIdx.x % 32;
    w.group = warp / SLICES;
    w.slice = warp % SLICES;
#pragma unroll
    for (u32 t = 0; t < NT; t++) w.writes[t] = w.lane % 4 + 4 * t < p.pairs;
    share_tiles(p, w.tile0, w.tiles);
    w.steps = (p.units + SLICES - 1 - w.slice) / SLICES;
    return w;
}

// tiles_of returns how many tiles of the run at first fall to the warp.
__device__ __forceinline__ u32 tiles_of(const Params& p, const Warp& w, u32 first) {
    return first >= w.tiles ? 0 : (min(p.run, w.tiles - first) + TEAMS - 1 - w.group) / TEAMS;
}

// atoms_of returns the atoms of a tile, those that fill a unit up among them.
__device__ __forceinline__ u32 atoms_of(const Params& p) { return (p.units + 1) / 2 * 2; }

// ---- load ----

// Item is what a lane holds of an atom of a tile.
struct Item {
    Atom atom;
    u32 pattern[4];  // of two steps each
};

// Ring is a batch at work and one on the way.
struct Ring {
    Item item[2][BATCH];
};

// Cursor goes through the batches of a warp: the tiles of a run, for each step of K, for each run of tiles of the block.
struct Cursor {
    u32 first;  // tile of the block that the run begins at
    u32 step;   // of K
    u32 left;   // tiles to load of this step, 0 at the end
    const u8* codes;
    const u8* scales;
};

__device__ __forceinline__ void seek(Cursor& c, const Params& p, const Warp& w) {
    const u32 tile = w.tile0 + c.first + w.group, atom = c.step * SLICES + w.slice, atoms = atoms_of(p);
    c.left = tiles_of(p, w, c.first);
    c.codes = p.codes + ((u64)(tile * atoms + atom) * BOTH_BYTES + w.lane * 16);
    c.scales = p.scales + ((u64)(tile * atoms + atom) * (8 * SCALE_BYTES) + w.lane / 4 * SCALE_BYTES);
}

// load loads the batch at a cursor, from delay bytes behind its place, to half of a ring, and goes on to the next. It
// returns how many tiles that has.
template <u32 HALF>
__device__ __forceinline__ u32 load(Ring& ring, Cursor& c, const Params& p, const Warp& w, u32 delay = 0) {
    const u32 count = min(c.left, BATCH), atoms = atoms_of(p);
    if (count == 0) return 0;
    c.codes += delay;
    c.scales += delay;
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) {
        if (i >= count) break;
        Item& item = ring.item[HALF][i];
        load_codes(item.atom.w, c.codes, w.lane);
        load_stream(item.pattern, c.codes + ATOM_BYTES);
        if constexpr (GROUP != 0) load_scales(item.atom.s, c.scales);
        c.codes += (u64)(atoms * BOTH_BYTES) * TEAMS;
        c.scales += (u64)(atoms * 8 * SCALE_BYTES) * TEAMS;
    }
    c.left -= count;
    if (c.left == 0) {
        if (++c.step == w.steps) {
            c.step = 0;
            c.first += p.run;
        }
        seek(c, p, w);
    }
    return count;
}

__device__ __forceinline__ void prefetch_scales_of(const Params& p, const Warp& w) {
    const u32 tile = atoms_of(p) * 8 * SCALE_BYTES, bytes = min(w.tiles * tile, MOST_AHEAD);
    for (u32 i = threadIdx.x * 128; i < bytes; i += THREADS * 128) prefetch(p.scales + ((u64)w.tile0 * tile + i));
}

// ---- multiply ----

// Columns is what a lane holds of X for an atom: B of each step, for each tile of 8 rows.
struct Columns {
    u32 b[STEPS][NT][4];
};

// load_columns loads eight consecutive columns a lane, which are one register of B of each of four lanes.
__device__ __forceinline__ void load_columns(Columns& x, const Params& p, const Warp& w, u32 step) {
    const u32 col0 = (step * SLICES + w.slice) * (32 * STEPS) + w.lane % 4 * 8;
#pragma unroll
    for (u32 s = 0; s < STEPS; s++)
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            const u32 row = 8 * t + w.lane / 4, col = col0 + 32 * s;
            u32(&b)[4] = x.b[s][t];
            b[0] = b[1] = b[2] = b[3] = 0;
            if (row < p.m && col < p.k) load_cached(b, p.x + ((u64)row * p.k + col) * 2);
        }
#pragma unroll
    for (u32 s = 0; s < STEPS; s++)
#pragma unroll
        for (u32 t = 0; t < NT; t++) turn(x.b[s][t], w.lane);
}

// multiply_half adds the products of half an atom to its sums.
__device__ __forceinline__ void multiply_half(Sums& sums, const u32 (&a)[HALF_STEPS][4], const u32 (&pattern)[4], const Columns& x, u32 half) {
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) {
        const u32 step = half * HALF_STEPS + i;
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            float(&c)[4] = sums.c[step / (STEPS / GROUPS)][t];
            const u32(&b)[4] = x.b[step][t];
            if (step % 2)
                mma_sparse<1>(c, a[i], b, pattern[step / 2]);
            else
                mma_sparse<0>(c, a[i], b, pattern[step / 2]);
        }
    }
}

// Whether the first half of an atom is multiplied before the second is looked up.
constexpr bool HALVES = NT == 2;

// multiply_item multiplies a tile's atom, adds to its slot or begins it, if it is there, and calls next behind the
// first lookups, with a 0 that is not known before them.
template <class Next>
__device__ __forceinline__ void multiply_item(const Params& p, const Warp& w, const Table& table, const Columns& x, const Item& item, u32 at, bool there,
                                              bool add, Next next) {
    float total[NT][4] = {};
    if (add && there) {
#pragma unroll
        for (u32 t = 0; t < NT; t++)
            if (w.writes[t]) {
                const Floats4 v = *(const Floats4*)(shared + at + 4 * t * p.slot_pitch);
#pragma unroll
                for (u32 j = 0; j < 4; j++) total[t][j] = v.f[j];
            }
    }
    u32 a[2][HALF_STEPS][4];
    Sums sums = {};
    dequantize(a[0], item.atom.w, IN_TABLE, 0, table);
    next(a[0][0][0] & p.n >> 31);
    if (HALVES) multiply_half(sums, a[0], item.pattern, x, 0);
    dequantize(a[1], item.atom.w, IN_TABLE, 1, table);
    float scales[GROUPS * 2];
#pragma unroll
    for (u32 j = 0; j < GROUPS * 2; j++) scales[j] = GROUP ? scale_at(item.atom.s, j) : 1.0f;
    if (!HALVES) multiply_half(sums, a[0], item.pattern, x, 0);
    multiply_half(sums, a[1], item.pattern, x, 1);
    scale(total, sums, scales);
#pragma unroll
    for (u32 t = 0; t < NT; t++)
        if (there && w.writes[t]) *(Floats4*)(shared + at + 4 * t * p.slot_pitch) = {{total[t][0], total[t][1], total[t][2], total[t][3]}};
}

// Tiles that are multiplied in one basic block: sixteen warps have no registers for two.
constexpr u32 TOGETHER = WARPS > 8 ? 1 : 2;

// multiply multiplies the batch in half of a ring, whose slots begin at an address, and has the next one loaded to the other.
// Of two tiles in one basic block the first decides whether they are there.
template <u32 HALF>
__device__ __forceinline__ void multiply(const Params& p, const Warp& w, const Table& table, const Columns& x, Ring& ring, Cursor& ahead, u32 count,
                                         u32 at, u32 stride, bool add) {
    const auto nothing = [](u32) {};
#pragma unroll
    for (u32 i = 0; i < BATCH; i += TOGETHER) {
        if (i > 0 && i >= count) break;
        const Item(&items)[BATCH] = ring.item[HALF];
        if (i == 0)
            multiply_item(p, w, table, x, items[i], at, true, add, [&](u32 delay) { load<1 - HALF>(ring, ahead, p, w, delay); });
        else
            multiply_item(p, w, table, x, items[i], at + i * stride, true, add, nothing);
        if (TOGETHER == 2 && i + 1 < BATCH) multiply_item(p, w, table, x, items[min(i + 1, BATCH - 1)], at + (i + 1) * stride, i + 1 < count, add, nothing);
    }
}

// ---- kernels ----

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutgemm(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    Cursor ahead = {};
    if (w.steps) seek(ahead, p, w);
    Ring ring = {};
#pragma unroll
    for (u32 i = 0; i < 2 * BATCH; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) ring.item[i / BATCH][i % BATCH].pattern[j] = 0x44444444;  // what is multiplied in vain is multiplied as well
    load<0>(ring, ahead, p, w);
    if (GROUP) prefetch_scales_of(p, w);
    check_base();
    fill_table(p);
    __syncthreads();
    wait_previous();

    const Table table = table_of(p, w.lane);
    const u32 slot0 = slot(p, w.group, w.slice, w.lane % 4, w.lane / 4), stride = TEAMS * SLICES * p.pairs * p.slot_pitch;
    Columns x;
    u32 half = 0;  // of the ring, at work
    if (w.steps) load_columns(x, p, w, 0);
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 tiles = tiles_of(p, w, first);
        const bool again = first + p.run < w.tiles;
        for (u32 step = 0; step < w.steps; step++) {
            if (tiles && (step > 0 || first > 0 && w.steps > 1)) load_columns(x, p, w, step);
            u32 at = slot0, left = tiles;
            while (left) {
                const u32 count = min(left, BATCH);
                if (half)
                    multiply<1>(p, w, table, x, ring, ahead, count, at, stride, step != 0);
                else
                    multiply<0>(p, w, table, x, ring, ahead, count, at, stride, step != 0);
                half ^= 1;
                at += count * stride;
                left -= count;
            }
        }
        finish(p, w, first);
        if (again) __syncthreads();  // before the slots are written again
    }
}

// lutread is the read-only twin: the same grid, shared memory, prefetched scales and loads, in the same order, and
// nothing done with them. It bounds what the kernel could reach.
extern "C" __global__ void __launch_bounds__(THREADS, 1) lutread(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    Cursor ahead = {};
    if (w.steps) seek(ahead, p, w);
    Ring ring = {};
    u32 count = load<0>(ring, ahead, p, w);
    if (GROUP) prefetch_scales_of(p, w);
    wait_previous();

    u32 sink = 0;
    const auto look = [&](const Item(&items)[BATCH]) {
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
#pragma unroll
            for (u32 j = 0; j < 2 * BITS; j++) sink ^= items[i].atom.w[j];
#pragma unroll
            for (u32 j = 0; j < 4; j++) sink ^= items[i].pattern[j];
#pragma unroll
            for (u32 j = 0; j != SCALE_WORDS; j++) sink ^= items[i].atom.s[j];
        }
    };
    while (count) {
        count = load<1>(ring, ahead, p, w);
        look(ring.item[0]);
        if (!count) break;
        count = load<0>(ring, ahead, p, w);
        look(ring.item[1]);
    }
    // Never true for the codes of a real matrix; the compiler cannot know.
    if (sink == 0x9e3779b9 && p.m == 0) p.y[threadIdx.x] = (u16)sink;
}
