// Y = X·Ŵᵀ with the sums in shared memory, for few rows of X: lut.cuh tells what is computed.
// With more than 8, and on some matrices with more than 2, it is for where lutwide.cu is not: on
// GPUs without room for it or without a compiler, and with float32 scales.
// What was measured, and tried and lost, is in NOTES.md.
//
// Words. A tile is 16 rows of Ŵ over all of K; a unit 256 of its columns and an atom half a unit;
// a slice every slices-th unit, which one warp of each group multiplies; a run the tiles that a block
// takes at once; a slot the place in shared memory of the sums of a tile in a slice.
//
// Work. A block owns whole tiles, so nothing is summed across blocks. Its sixteen warps are the slices
// of K times as many groups as are left. The warp of slice s holds the fragments of X for unit
// slices·i + s in registers while it runs down the tiles of the block, reading 256 columns of each
// (one step i). What a step adds to a tile goes to the warp's own slot, and at the end the slots of a
// tile are summed in order.
//
// Latency. Weights pass through a ring of DEPTH atoms in registers, straight from memory: the
// shared-memory port is busy with the table. The ring's first loads are out before the table is
// filled and before the kernel waits for the one in front of it.
//
// Set by the host, beside what lut.cuh names:
//   KA       atoms of a unit that are read in one step: 1 or 2. At 1 a unit takes two steps and
//            X half the registers.
// and WARPS is 16, DEPTH a multiple of KA.

constexpr u32 ATOM_COLS = 128;

// Whether K is split into any number of slices. For few rows of X it is 8 or 16, which takes less to compute.
constexpr bool ANY_SLICES = NT == 2 || EXPERTS;

// Cursor goes through the steps of a warp: the tiles of a run, for each step of K, for
// each run of tiles of the block.
struct Cursor {
    u32 first;  // tile of the block that the run begins at
    u32 step;   // of K
    u32 left;   // tiles to do in this step, 0 at the end; of gates or of what they are multiplied by where there are some
    bool ups;   // which of the two
    const u8* codes;
    const u8* scales;
};

// tiles_of returns how many tiles of the run at first fall to the warp.
__device__ __forceinline__ u32 tiles_of(const Params& p, const Warp& w, u32 first) {
    if (first >= w.tiles) return 0;
    u32 run = min(p.run, w.tiles - first);
    if (ANY_SLICES) return (run + p.groups - 1 - w.group) / p.groups;
    return p.groups == 2 ? (run + 1 - w.group) / 2 : run;
}

// gates_of returns how many of them are gates: those of the first half of the run, of which they come first.
__device__ __forceinline__ u32 gates_of(const Params& p, const Warp& w, u32 first) {
    const u32 half = min(p.run, w.tiles - first) / 2;
    return half > w.group ? (half - w.group + p.groups - 1) / p.groups : 0;
}

__device__ __forceinline__ void seek(Cursor& c, const Params& p, const Warp& w) {
    u32 tile = w.tile0 + c.first + w.group;
    u32 gates = 0;
    if (GATES) {
        tile = w.tile0 + c.first / 2 + w.group;
        const u32 all = tiles_of(p, w, c.first);
        if (all) {
            gates = gates_of(p, w, c.first);
            if (gates == 0) c.ups = true;
        }
        if (c.ups) tile += gates * p.groups - min(p.run, w.tiles - c.first) / 2 + p.n / 32;
    }
    u32 unit = tile * p.units + p.slices * (KA == 2 ? c.step : c.step / 2) + w.slice;
    u32 second = KA == 2 ? 0 : c.step % 2;
    c.left = tiles_of(p, w, c.first);
    if (GATES && c.left) c.left = c.ups ? c.left - gates : gates;
    c.codes = p.codes + (u64)unit * (2 * ATOM_BYTES) + second * ATOM_BYTES + w.lane * 16;
    c.scales = p.scales + (u64)unit * UNIT_SCALE_BYTES + w.lane / 4 * SCALE_BYTES +
               (GROUP == 256 ? 0 : second * 8 * SCALE_BYTES);
}

__device__ __forceinline__ void advance(Cursor& c, const Params& p, const Warp& w) {
    if (--c.left > 0) {
        c.codes += (u64)(p.units * (2 * ATOM_BYTES)) * p.groups;
        c.scales += (u64)(p.units * UNIT_SCALE_BYTES) * p.groups;
        return;
    }
    if (GATES && !c.ups && gates_of(p, w, c.first) < tiles_of(p, w, c.first)) {
        c.ups = true;
        seek(c, p, w);
        return;
    }
    c.ups = false;
    if (++c.step == w.steps) {
        c.step = 0;
        c.first += p.run;
    }
    seek(c, p, w);
}

// load_atom loads an atom from delay bytes behind its place.
__device__ __forceinline__ void load_atom(Atom& atom, const Warp& w, const Cursor& c, u32 a, u32 delay = 0) {
    load_codes(atom.w, c.codes + delay + a * ATOM_BYTES, w.lane);
    if constexpr (GROUP != 0) load_scales(atom.s, c.scales + delay + (GROUP == 256 ? 0 : a * 8 * SCALE_BYTES));
}

// ---- multiply ----

// Columns is what a lane holds of X for a unit: for each atom and each 32 columns
// eight consecutive ones, of a row for each tile of 8; pairs of neighbours, but of
// neighbours but one where the weights are looked up in registers.
struct Columns {
    u32 b[KA][4][NT][4];
};

__device__ __forceinline__ void load_columns(Columns& x, const Params& p, const Warp& w, u32 step) {
    u32 unit = p.slices * (KA == 2 ? step : step / 2) + w.slice;
    u32 col0 = (2 * unit + (KA == 2 ? 0 : step % 2)) * ATOM_COLS + w.lane % 4 * 8;
#pragma unroll
    for (u32 a = 0; a < KA; a++)
#pragma unroll
        for (u32 c = 0; c < 4; c++)
#pragma unroll
            for (u32 t = 0; t < NT; t++) {
                u32 row = 8 * t + w.lane / 4, col = col0 + a * ATOM_COLS + 32 * c;
                u32(&b)[4] = x.b[a][c][t];
                b[0] = b[1] = b[2] = b[3] = 0;
                if (row < p.m && col < p.k) load_cached(b, p.x + ((u64)(EXPERTS ? w.row : row) * p.k + col) * 2);
                if (turned(KA == 2 ? a : step % 2, c)) turn_columns(b);
            }
}

// ---- kernels ----

__device__ __forceinline__ Warp warp_of(const Params& p) {
    Warp w;
    u32 warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.group = ANY_SLICES ? warp / p.slices : p.groups == 2 ? warp / 8 : 0;
    w.slice = warp - (ANY_SLICES ? p.slices : 8) * w.group;
#pragma unroll
    for (u32 t = 0; t < NT; t++) w.writes[t] = w.lane % 4 + 4 * t < p.pairs;
    if (!EXPERTS) share_tiles(p, w.tile0, w.tiles);
    // With three slices a warp is left over.
    const u32 units = ANY_SLICES && w.group >= p.groups ? 0 : p.units + p.slices - 1 - w.slice;
    w.steps = (ANY_SLICES ? units / p.slices : units >> (p.slices == 16 ? 4 : 3)) * (2 / KA);
    return w;
}

constexpr u32 RING = DEPTH / KA;  // steps in registers

// Whether the ring is a double buffer, of two steps one in flight: the next is loaded as
// soon as the first codes of the one at work are looked up, and has the time of a whole
// step. With codes of 4 and 5 bits, which give way to those of the next step late, that
// gains up to 3 % up to 8 rows (at 4096×4096, and at 5 bits with 8 rows, it loses as much);
// with fewer bits it loses up to 5, and with more rows up to 7.
constexpr bool DOUBLE = RING == 2 && BITS >= 4 && NT == 1;

// Whether the registers, of which ring and scales take the most, suffice for a second,
// shorter copy of the loop, and for X beside the end of a run.
constexpr bool ROOM = DEPTH * (2 * BITS + SCALE_WORDS) + 4 * GROUPS <= (DOUBLE ? 48 : 35);

struct Ring {
    Atom atom[DEPTH];
};

template <u32 STEPS>
__device__ __forceinline__ void fill_ring(Ring& ring, Cursor& ahead, const Params& p, const Warp& w) {
#pragma unroll
    for (u32 d = 0; d < STEPS; d++)
        if (ahead.left) {
#pragma unroll
            for (u32 a = 0; a < KA; a++) load_atom(ring.atom[d * KA + a], w, ahead, a);
            advance(ahead, p, w);
        }
}

// rotate moves the ring on by a step, so that the second comes to the front.
__device__ __forceinline__ void rotate(Ring& ring) {
    Atom front[KA];
#pragma unroll
    for (u32 d = 0; d < KA; d++) front[d] = ring.atom[d];
#pragma unroll
    for (u32 d = 0; d + KA < DEPTH; d++) ring.atom[d] = ring.atom[d + KA];
#pragma unroll
    for (u32 d = 0; d < KA; d++) ring.atom[DEPTH - KA + d] = front[d];
}

// Whether the first half of an atom is multiplied before the second is looked up: with 16
// rows of X there are no registers for both, and it gains 7 %.
constexpr bool HALVES = NT == 2;

// turn multiplies by step d of the ring, adds to the slots at an address, or begins them,
// and loads the step that ahead points to, in place of it or beside it.
template <u32 ATOM>
__device__ __forceinline__ void turn(const Params& p, const Warp& w, const Table& table, const Columns& x, Ring& ring, u32 d,
                                     const Cursor& ahead, bool load, u32 at, bool add) {
    float total[NT][4] = {};
    if (add) {
#pragma unroll
        for (u32 t = 0; t < NT; t++)
            if (w.writes[t]) {
                const Floats4 v = *(const Floats4*)(shared + at + 4 * t * p.slot_pitch);
#pragma unroll
                for (u32 j = 0; j < 4; j++) total[t][j] = v.f[j];
            }
    }
#pragma unroll
    for (u32 i = 0; i < KA; i++) {
        Atom& atom = ring.atom[d * KA + i];
        Sums sums = {};
        float scales[GROUPS * 2];
        u32 a[2][HALF_STEPS][4];
        dequantize(a[0], atom.w, ATOM + i, 0, table);
        if (DOUBLE && i == 0 && load) {
            // Nothing, but not known before a first weight is: were these loads to begin
            // sooner, the wait for the step at work would be one for them, on the one scoreboard.
            const u32 delay = a[0][0][0] & p.n >> 31;
#pragma unroll
            for (u32 j = 0; j < KA; j++) load_atom(ring.atom[(1 - d) * KA + j], w, ahead, j, delay);
        }
        if (HALVES) multiply(sums, a[0], x.b[i], 0);
        dequantize(a[1], atom.w, ATOM + i, 1, table);
#pragma unroll
        for (u32 j = 0; j < GROUPS * 2; j++) scales[j] = GROUP ? scale_at(atom.s, j) : 1.0f;
        if (!DOUBLE && load) load_atom(atom, w, ahead, i);
        if (!HALVES) multiply(sums, a[0], x.b[i], 0);
        multiply(sums, a[1], x.b[i], 1);
        scale(total, sums, scales);
    }
#pragma unroll
    for (u32 t = 0; t < NT; t++)
        if (w.writes[t]) *(Floats4*)(shared + at + 4 * t * p.slot_pitch) = {{total[t][0], total[t][1], total[t][2], total[t][3]}};
}

// multiply_tiles multiplies the tiles of a run by the columns of a step. ATOM says which
// of its unit that is, at 2 bits and where a step is one atom.
template <u32 ATOM>
__device__ __forceinline__ void multiply_tiles(const Params& p, const Warp& w, const Table& table, const Columns& x, Ring& ring,
                                               Cursor& ahead, u32 tiles, u32 step) {
    // That is WARPS times, but written so, the compiler spills at five bits.
    const u32 stride = p.groups * p.slices * p.pairs * p.slot_pitch;
    const u32 slot0 = slot(p, w.group, w.slice, w.lane % 4, w.lane / 4);
    const u32 code_stride = p.units * (2 * ATOM_BYTES) * p.groups;  // from one tile to the next
    const u32 scale_stride = p.units * UNIT_SCALE_BYTES * p.groups;
    u32 left = tiles, at = slot0;
    while (left) {
        // As long as the loads stay inside a step of K, there is little to decide.
        u32 inside = ROOM && ahead.left ? min(left, ahead.left - 1) : 0;
        inside -= inside % RING;
        left -= inside;
        ahead.left -= inside;
        while (inside) {
#pragma unroll
            for (u32 d = 0; d < RING; d++) {
#if WITHIN
                if (inside - d + ahead.left > WITHIN) ask(ahead.codes + WITHIN * (u64)code_stride - w.lane * 16, KA * ATOM_BYTES, w.lane);
#endif
                turn<ATOM>(p, w, table, x, ring, d, ahead, true, at, step != 0);
                // Within straight code the compiler moves loads down to their use,
                // and their lead is gone; over a branch, never taken, it does not.
                at = opaque(at);
                if (at == ~0u) __trap();
                ahead.codes += code_stride;
                ahead.scales += scale_stride;
                at += stride;
            }
            inside -= RING;
        }
        if (!left) break;
#pragma unroll
        for (u32 d = 0; d < RING; d++) {
            const bool more = ahead.left != 0;
#if AHEAD
            if (!more && left == 1) ask_for_next(p.ahead, WARPS);
#endif
            turn<ATOM>(p, w, table, x, ring, d, ahead, more, at, step != 0);
            if (more) advance(ahead, p, w);
            at += stride;
            if (--left == 0) {
#pragma unroll
                for (u32 n = 0; n < (d + 1) % RING; n++) rotate(ring);
                break;
            }
        }
    }
}

// multiply_block multiplies the tiles of a block, the first steps of which are in the ring.
__device__ __forceinline__ void multiply_block(const Params& p, const Warp& w, const Table& table, Ring& ring, Cursor& ahead) {
    Columns x;
    if (w.steps) load_columns(x, p, w, 0);
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 tiles = tiles_of(p, w, first);
        for (u32 step = 0; step < w.steps && tiles; step++) {
            if (step) load_columns(x, p, w, step);
            if (BITS == 2 && KA == 1 && step % 2)
                multiply_tiles<1>(p, w, table, x, ring, ahead, tiles, step);
            else
                multiply_tiles<0>(p, w, table, x, ring, ahead, tiles, step);
        }
        const bool again = first + p.run < w.tiles;
        if (ROOM && again && w.steps > 1) load_columns(x, p, w, 0);
        finish(p, w, first);
        if (again) __syncthreads();  // before the slots are written again
        if (!ROOM && again && w.steps > 1) load_columns(x, p, w, 0);
    }
}

#if EXPERTS
// Group is rows of Y that an expert makes, no more than p.m.
struct Group {
    u32 expert, first, rows;
};

__device__ __forceinline__ Group group_at(const Params& p, u32 number) {
    const Words4 words = *(const Words4*)(p.chosen + 4 * (1 + number));
    return {words.w[0], words.w[1], words.w[2]};
}

// The tiles of the experts of all groups are shared out to the blocks, as even as they go. What makes groups is in front of the
// kernel that reads rows by them, and the other is behind that, which lets it begin no sooner than groups are there.
extern "C" __global__ void __launch_bounds__(THREADS, 1) lutgemm(const __grid_constant__ Params all) {
    check_base();
    fill_table(all);
    __syncthreads();
    bool wait = true;
    const auto begin = [&wait] {
        if (wait) wait_previous();
        if (wait) launch_next();
        wait = false;
    };
    if (GATES || all.rows) begin();

    // Each lane has one of the first groups, so that a block mostly waits once for them.
    Group first = {};
    const u32 lane = threadIdx.x % 32;
    if (lane < all.most) first = group_at(all, lane);
    constexpr u32 together = GATES ? 2 : 1;
    const u32 each = all.tiles / together;
    const u64 tiles = (u64)*all.chosen * each;
    const u32 end = (u32)(tiles * (blockIdx.x + 1) / gridDim.x);
    const Table table = table_of(all, lane);
    for (u32 at = (u32)(tiles * blockIdx.x / gridDim.x); at < end;) {
        const u32 number = at / each;
        Group group = {__shfl_sync(0xffffffff, first.expert, number % 32), __shfl_sync(0xffffffff, first.first, number % 32),
                       __shfl_sync(0xffffffff, first.rows, number % 32)};
        if (number >= 32) group = group_at(all, number);
        Params p = all;
        p.codes += group.expert * p.codes_of;
        p.scales += group.expert * p.scales_of;
        if (p.bias) p.bias += (u64)group.expert * p.n;
        p.y += (u64)group.first * (p.n / together);
        p.m = group.rows;
        p.pairs = (p.m + 1) / 2;
        p.pairs_inverse = 0xffffffff / p.pairs + 1;
        Warp w = warp_of(p);
        w.tile0 = at % each;
        w.tiles = min(each - w.tile0, end - at) * together;
        at += w.tiles / together;
        Cursor ahead = {};
        if (w.steps) seek(ahead, p, w);
        Ring ring = {};
        fill_ring<DOUBLE ? 1 : RING>(ring, ahead, p, w);
        begin();
        w.row = group.first + min(w.lane / 4, p.m - 1);
        if (p.rows) w.row = p.rows[w.row];
        multiply_block(p, w, table, ring, ahead);
        __syncthreads();  // before the slots are written again
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 1) lutgemm(const __grid_constant__ Params p) {
    launch_next();
    Warp w = warp_of(p);
    Cursor ahead = {};
    if (w.steps) seek(ahead, p, w);
    Ring ring = {};
    fill_ring<DOUBLE ? 1 : RING>(ring, ahead, p, w);
    if (GROUP) prefetch_scales(p, w.tile0, w.tiles);
#if AHEAD
    ask_for_own(p.ahead, WARPS);
    if (!w.steps || !tiles_of(p, w, 0)) ask_for_next(p.ahead, WARPS);  // who has nothing to multiply
#endif

    check_base();
    fill_table(p);
    __syncthreads();
    wait_previous();
    multiply_block(p, w, table_of(p, w.lane), ring, ahead);
}

// lutread is the read-only twin: the same grid, shared memory, prefetched scales and
// loads, in the same order and at the distance of a full ring, and nothing done with them.
// It bounds what the kernel could reach.
extern "C" __global__ void __launch_bounds__(THREADS, 1) lutread(const __grid_constant__ Params p) {
    launch_next();
    Warp w = warp_of(p);
    Cursor ahead = {};
    if (w.steps) seek(ahead, p, w);
    Ring ring = {};
    fill_ring<RING>(ring, ahead, p, w);
    if (GROUP) prefetch_scales(p, w.tile0, w.tiles);
    wait_previous();

    u32 sink = 0;
    for (u32 first = 0; first < w.tiles; first += p.run) {
        u32 left = tiles_of(p, w, first) * w.steps;
        while (left) {
#pragma unroll
            for (u32 d = 0; d < RING; d++) {
                const bool more = ahead.left != 0;
#pragma unroll
                for (u32 i = 0; i < KA; i++) {
                    Atom& atom = ring.atom[d * KA + i];
#pragma unroll
                    for (u32 j = 0; j < 2 * BITS; j++) sink ^= atom.w[j];
#pragma unroll
                    for (u32 j = 0; j != SCALE_WORDS; j++) sink ^= atom.s[j];
                    if (more) load_atom(atom, w, ahead, i);
                }
                if (more) advance(ahead, p, w);
                if (--left == 0) {
#pragma unroll
                    for (u32 n = 0; n < (d + 1) % RING; n++) rotate(ring);
                    break;
                }
            }
        }
    }
    // Never true for the codes of a real matrix; the compiler cannot know.
    if (sink == 0x9e3779b9 && p.m == 0) p.y[threadIdx.x] = (u16)sink;
}
#endif
