// What the kernels that multiply very many rows of X by wgmma have in common: how a product is divided among blocks,
// how operands are copied to shared memory, and what becomes of the sums.
//
// Words. A tile is 16 rows of Ŵ over all of K, as ever, and four of them are a warpgroup's, a warp each; a field is
// 64·GROUPS4 rows of Ŵ by COLUMNS rows of X, of which a block multiplies one at a time; a piece is a field, or part of its K,
// in atoms of 128 columns.
//
// Work. Workers do pieces, as many workers as on a GPU of 132 multiprocessors whatever there are: so the order of sums
// is a matter of the shape alone. The first fields are shared: the workers have equal shares of their atoms, side by
// side. The others each have a worker, in turn. Fields are in the order of X first, so that all that are at work at
// once have the same rows of it. Who has the end of a shared field waits for the others' sums of it and adds them to its
// own, its neighbour's first: all of them come before it, and each does the part of a field that others finish first,
// so that nobody waits for who cannot go on.
//
// Latency. One warp copies X, a stage at once, and CODING others codes and scales, by atoms, of 16 bytes a lane: copies of
// whole pieces take longer to begin than these to be made.
//
// Set by the host, beside what lut.cuh names:
//   COLUMNS  rows of X of a field: 32, 48, or 64 to 256 in steps of 32
//   GROUPS4  warpgroups that multiply
//   STAGES   of X that are in shared memory, of 128 bytes of each row
//   OF_ATOM  stages that have the columns of an atom
//   ATOMS    of codes and scales that are in shared memory
//   PLANES   whether weights are looked up in registers
//   WIDE_ROWS  whether the table is that of lut.cuh, which takes more room and fewer instructions
//   SPARSE   whether every four columns keep two (lutsparse.cu): an atom is 256 columns then, of which 128 are kept, its
//            pattern lies behind its codes, and units are those of what is kept
// and WARPS is 4·GROUPS4 + 4.
//
// With GATES (lut.cuh) the first half of a field's tiles are of gates, and the second of what these are multiplied by.
#ifndef WIDE_ROWS
#define WIDE_ROWS 0
#endif

constexpr u32 CODING = 3;
constexpr u32 TILES = 4 * GROUPS4;  // of a field
constexpr u32 NEIGHBOURS = GATES ? TILES / 2 : TILES;  // of them, that follow each other in Ŵ
constexpr u32 PATTERN_BYTES = SPARSE ? 512 : 0;
constexpr u32 BOTH_BYTES = ATOM_BYTES + PATTERN_BYTES;  // an atom's codes, and its pattern behind them
constexpr u32 PARTS = SPARSE ? 4 / OF_ATOM : 1;         // of a stage, each 128 bytes of each row of X

// Shared memory: the table, a row for each pair of codes; X, 128 bytes of each row, in the order of columns_at; codes and
// patterns, and scales; for each warp OUT_ROWS rows of X by 16 of Ŵ; and the phases.
constexpr u32 ROW_BYTES = 128;  // 32 copies for as many lanes, unless rows are those of lut.cuh
constexpr u32 TABLE_BYTES = PLANES || DECODE ? 0 : WIDE_ROWS ? ENTRIES * TABLE_PITCH : ROW_BYTES << 2 * BITS;
constexpr u32 PART_BYTES = COLUMNS * 128, X_BYTES = PARTS * PART_BYTES;  // of X, a stage
constexpr u32 X_BASE = SHARED_BASE + TABLE_BYTES;
constexpr u32 CODES_BASE = X_BASE + STAGES * X_BYTES;
constexpr u32 SCALES_BASE = CODES_BASE + ATOMS * TILES * BOTH_BYTES;
constexpr u32 ATOM_SCALES = 8 * SCALE_BYTES;  // of a tile
constexpr u32 OUT_BASE = SCALES_BASE + ATOMS * TILES * ATOM_SCALES;

constexpr u32 OUT_ROWS = COLUMNS % 32 ? 16 : 32, OUT_PITCH = 48, OUT_BYTES = 32 * OUT_PITCH;  // a row of X's 32 bytes, not to share banks
constexpr u32 PHASES_BASE = OUT_BASE + TILES * OUT_BYTES;

struct Work {
    Floats4* sums;    // [workers][TILES][COLUMNS/8][32]
    u32* flags;       // [workers][TILES], 0 before and after
    float power, back;  // of two, that scales are multiplied by, and what takes it back
    u32 fields;       // in all: [⌈m/COLUMNS⌉][rows]
    u32 rows;         // ⌈n/(64·GROUPS4)⌉
    u32 atoms;        // ⌈k/128⌉
    u32 workers;
    u32 shared;       // fields, the first
    u32 groups_of_x;  // ⌈m/8⌉, each 1024 bytes of a stage
};

// ---- work ----

// Piece is a part of a field, or all of it.
struct Piece {
    u32 field, from, to;  // atoms
};

// Share goes through the pieces of a worker.
struct Share {
    u32 begin, end;  // of the shared atoms, those that are left
    u32 next;        // field behind those that are shared
};

// shared_before returns how many of the shared atoms the workers before one have.
__device__ __forceinline__ u32 shared_before(const Work& w, u32 worker) { return (u32)((u64)w.shared * w.atoms * worker / w.workers); }

__device__ __forceinline__ Share share_of(const Work& w, u32 worker) {
    return {shared_before(w, worker), shared_before(w, worker + 1), w.shared + worker};
}

// take returns whether there is another piece.
__device__ __forceinline__ bool take(Piece& piece, Share& s, const Work& w) {
    if (s.begin < s.end) {
        piece.field = (s.end - 1) / w.atoms;
        const u32 first = piece.field * w.atoms;
        piece.from = max(s.begin, first) - first;
        piece.to = s.end - first;
        s.end = first + piece.from;
        return true;
    }
    piece = {s.next, 0, w.atoms};
    s.next += w.workers;
    return piece.field < w.fields;
}

// tiles_together returns how many tiles of Ŵ follow each other.
__device__ __forceinline__ u32 tiles_together(const Params& p) { return GATES ? p.n / 32 : (p.n + 15) / 16; }

// Ring is a number of places in shared memory that are filled and emptied in turn, of which each has two phases, 16
// bytes from phases on: the first ends when it is full, the second when it is empty.
template <u32 PLACES, u32 PHASES>
struct Ring {
    u32 i, odd;  // the place that is next, and whether its phase is an odd one

    __device__ __forceinline__ u32 full() const { return PHASES + 16 * i; }
    __device__ __forceinline__ u32 empty() const { return PHASES + 16 * i + 8; }
    __device__ __forceinline__ u32 is_full() const { return has_ended(full(), odd); }
    __device__ __forceinline__ void wait_full() const { wait_phase(full(), odd); }
    __device__ __forceinline__ void wait_empty() const { wait_phase(empty(), odd ^ 1); }
    __device__ __forceinline__ void step() {
        if (++i == PLACES) i = 0, odd ^= 1;
    }
};
using Stages = Ring<STAGES, PHASES_BASE>;
using Codes = Ring<ATOMS, PHASES_BASE + 16 * STAGES>;

// ---- copies ----

// ask_x asks for X for all of a worker's pieces.
__device__ __forceinline__ void ask_x(const Params& p, const Work& w, Stages& stage, u32 worker) {
    Share share = share_of(w, worker);
    Piece piece;
    bool waited = false;
    while (take(piece, share, w)) {
        const u32 group = piece.field / w.rows * (COLUMNS / 8), bytes = min(COLUMNS / 8u, w.groups_of_x - group) * 1024;
        const u8* x = (const u8*)p.x + ((u64)piece.from * (OF_ATOM * PARTS) * w.groups_of_x + group) * 1024;
        for (u32 i = piece.from * OF_ATOM; i < piece.to * OF_ATOM; i++) {
            stage.wait_empty();
            arrive_expecting(stage.full(), PARTS * bytes);
            if (!waited) wait_previous();  // no sooner, for all that has to be fetched to be there by then
            waited = true;
#pragma unroll
            for (u32 part = 0; part < PARTS; part++) {
                copy_bulk(X_BASE + stage.i * X_BYTES + part * PART_BYTES, x, bytes, stage.full());
                x += (u64)w.groups_of_x * 1024;
            }
            stage.step();
        }
    }
}

// copy_parts copies bytes, a multiple of 16.
template <u32 BYTES>
__device__ __forceinline__ void copy_parts(u32 to, const u8* from, u32 lane) {
#pragma unroll
    for (u32 i = lane * 16; i < (BYTES + 511) / 512 * 512; i += 512)
        if (i < BYTES) copy_weights(to + i, from + i);
}

// ask_codes asks for the codes and scales of all of a worker's pieces, for every CODING-th tile of a field.
__device__ __forceinline__ void ask_codes(const Params& p, const Work& w, Codes& place, u32 worker, u32 first, u32 lane) {
    const u32 tile_codes = p.units * 2 * BOTH_BYTES, tile_scales = p.units * UNIT_SCALE_BYTES;
    Share share = share_of(w, worker);
    Piece piece;
    while (take(piece, share, w)) {
        const u32 tile = piece.field % w.rows * NEIGHBOURS, tiles = min(NEIGHBOURS, tiles_together(p) - tile);
        const u8* codes = p.codes + ((u64)(tile + first) * tile_codes + piece.from * BOTH_BYTES);
        const u8* scales = p.scales + (u64)(tile + first) * tile_scales;
        for (u32 atom = piece.from; atom < piece.to; atom++) {
            place.wait_empty();
            const u8 *c = codes, *s = scales + (GROUP == 256 ? atom / 2 : atom) * ATOM_SCALES;
#pragma unroll 1
            for (u32 t = first; t < (GATES ? TILES : tiles); t += CODING) {
                if (GATES && t >= NEIGHBOURS && t < NEIGHBOURS + CODING) {  // the first of the second half
                    c += ((u64)tiles_together(p) - NEIGHBOURS) * tile_codes;
                    s += ((u64)tiles_together(p) - NEIGHBOURS) * tile_scales;
                }
                if (!GATES || t % NEIGHBOURS < tiles) {
                    copy_parts<BOTH_BYTES>(CODES_BASE + (place.i * TILES + t) * BOTH_BYTES, c, lane);
                    if constexpr (GROUP != 0) copy_parts<ATOM_SCALES>(SCALES_BASE + (place.i * TILES + t) * ATOM_SCALES, s, lane);
                }
                c += CODING * tile_codes;
                s += CODING * tile_scales;
            }
            arrive_copied(place.full());
            codes += BOTH_BYTES;
            place.step();
        }
    }
}

#if SPARSE
// fill_patterns has places that no tile is copied to keep the first two columns of each four, for all that is multiplied by
// has to keep two.
__device__ __forceinline__ void fill_patterns() {
    constexpr u32 first = 0x44444444;
    for (u32 i = threadIdx.x; i < ATOMS * TILES * PATTERN_BYTES / 16; i += THREADS)
        *(Words4*)(shared + (CODES_BASE - SHARED_BASE) + i / 32 * BOTH_BYTES + ATOM_BYTES + i % 32 * 16) = {{first, first, first, first}};
}
#endif

// ---- codes ----

// fill_pairs writes every pair 32 times.
__device__ __forceinline__ void fill_pairs(const Params& p) {
    for (u32 i = threadIdx.x; i < 1 << 2 * BITS; i += THREADS) {
        const u32 v = BITS == 3 ? pair_of(p, (i & 3) | (i >> 2 & 4), (i >> 2 & 3) | (i >> 3 & 4)) : pair_of(p, i & ((1 << BITS) - 1), i >> BITS);
#pragma unroll
        for (u32 j = 0; j < 8; j++) *(Words4*)(shared + i * ROW_BYTES + (j + threadIdx.x) % 8 * 16) = {{v, v, v, v}};
    }
}


// sixteen looks up four codes in a table of bytes: the low three bits of each choose one of either half, and a
// selector of the half between them.
__device__ __forceinline__ u32 sixteen(const u32 (&bytes)[4], u32 codes, u32 halves) {
    return prmt(prmt(bytes[0], bytes[1], codes), prmt(bytes[2], bytes[3], codes), halves);
}

// read_codes reads a lane's words of an atom, as load_codes does.
__device__ __forceinline__ void read_codes(u32 (&w)[2 * BITS], u32 at, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < BITS / 2; i++) {
        u32 v[4];
        read_shared(v, at + 512 * i + 16 * lane);
#pragma unroll
        for (u32 j = 0; j < 4; j++) w[4 * i + j] = v[j];
    }
    if (BITS % 2) {
        u32 v[2];
        read_shared(v, at + 512 * (BITS / 2) + 8 * lane);
        w[2 * BITS - 2] = v[0];
        w[2 * BITS - 1] = v[1];
    }
}

constexpr u32 RAW_WORDS = SCALE_WORDS == 0 ? 1 : SCALE_WORDS;

// let_go says that the warp has read what ends a phase so.
__device__ __forceinline__ void let_go(u32 phase, u32 lane) {
    __syncwarp();
    if (lane == 0) arrive(phase);
}

// Read is what a lane has of an atom.
struct Read {
    u32 words[2 * BITS];
    u32 scales[RAW_WORDS];
#if SPARSE
    u32 pattern[4];  // of 64 columns each
#endif
};

__device__ __forceinline__ void read(Read& r, const Codes& place, u32 tile, u32 lane) {
    read_codes(r.words, CODES_BASE + (place.i * TILES + tile) * BOTH_BYTES, lane);
#if SPARSE
    read_shared(r.pattern, CODES_BASE + (place.i * TILES + tile) * BOTH_BYTES + ATOM_BYTES + 16 * lane);
#endif
    if constexpr (GROUP != 0) read_shared(r.scales, SCALES_BASE + (place.i * TILES + tile) * ATOM_SCALES + lane / 4 * SCALE_BYTES);
}

// ---- epilogue ----

// leave leaves the sums of a piece for who has the end of the field.
__device__ __forceinline__ void leave(const float (&sums)[COLUMNS / 2], const Work& w, u32 worker, u32 tile, u32 lane) {
    Floats4* to = w.sums + (u64)(worker * TILES + tile) * (COLUMNS / 8 * 32) + lane;
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 8; i++) to[i * 32] = {{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}};
    __syncwarp();
    if (lane == 0) raise(w.flags + worker * TILES + tile);
}

// collect adds what others have left of the field that a piece ends.
__device__ __forceinline__ void collect(float (&sums)[COLUMNS / 2], const Work& w, const Piece& piece, u32 worker, u32 tile, u32 lane) {
    const u32 first = piece.field * w.atoms;
    for (u32 i = lane; i < worker && shared_before(w, worker - i) > first; i += 32) lower(w.flags + (worker - 1 - i) * TILES + tile);
    __syncwarp();
    for (u32 other = worker; other-- > 0;) {
        const Floats4* from = w.sums + (u64)(other * TILES + tile) * (COLUMNS / 8 * 32) + lane;
#pragma unroll
        for (u32 i = 0; i < COLUMNS / 8; i++) {
            const Floats4 v = load_far(from + i * 32);
#pragma unroll
            for (u32 j = 0; j < 4; j++) sums[4 * i + j] += v.f[j];
        }
        if (shared_before(w, other) <= first) break;
    }
}

// shift_down moves eight numbers on by one.
__device__ __forceinline__ void shift_down(u32 (&v)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] = v[i] >> 16 | (i < 3 ? v[(i + 1) % 4] << 16 : 0);
}

// Ends are what a lane's two rows of Ŵ end with.
struct Ends {
    float scale[2], bias[2];
};

// ends_of returns those of a tile, of which n0 is the first row.
__device__ __forceinline__ Ends ends_of(const Params& p, const Work& w, u32 n0, u32 lane) {
    Ends e;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const u32 n = n0 + lane / 4 + 8 * j;
        e.scale[j] = w.back;
        if constexpr (GROUP == 0) {
            const u32 at = (n0 + lane / 4 * 2 + j) * SCALE_SIZE;  // rows g and g + 8 lie together
            u32 bits[1] = {};
            for (u32 b = 0; b < SCALE_SIZE; b++) bits[0] |= (u32)p.scales[at + b] << 8 * b;
            e.scale[j] = scale_at(bits, 0);
        }
        e.bias[j] = p.bias && n < p.n ? float_of(p.bias[n]) : 0.0f;
    }
    return e;
}

// put rounds the sums of the ith OUT_ROWS rows of X to shared memory.
__device__ __forceinline__ void put(const float (&sums)[COLUMNS / 2], u32 i, const Ends& e, u32 tile, u32 lane) {
    const u32 to = OUT_BASE + tile * OUT_BYTES + (lane / 16 * 8 + lane % 8) * OUT_PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (u32 h = 0; h < OUT_ROWS / 16; h++) {
        u32 pairs[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 at = OUT_ROWS / 2 * i + 8 * h + 2 * j;
            const float lo = fmaf(sums[at], e.scale[j % 2], e.bias[j % 2]), hi = fmaf(sums[at + 1], e.scale[j % 2], e.bias[j % 2]);
            pairs[j] = BF16 ? bf16x2_of_f32(lo, hi) : f16x2_of_f32(lo, hi);
        }
        store_turned(to + 16 * OUT_PITCH * h, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// write rounds the sums of a field to Y: through shared memory, for a lane to have eight neighbours of a row of it.
__device__ __forceinline__ void write(const float (&sums)[COLUMNS / 2], const Params& p, const Work& w, const Piece& piece, u32 tile, u32 lane) {
    const u32 n0 = (piece.field % w.rows * TILES + tile) * 16, m0 = piece.field / w.rows * COLUMNS;
    if (n0 >= p.n) return;
    const Ends ends = ends_of(p, w, n0, lane);
    const u32 from = OUT_BASE + tile * OUT_BYTES + lane / 2 * OUT_PITCH + lane % 2 * 16, n = n0 + lane % 2 * 8;
    const bool whole = p.n % 8 == 0 && (u64)p.y % 16 == 0;
    u16* y = p.y + ((u64)(m0 + lane / 2) * p.n + n);
#pragma unroll
    for (u32 i = 0; i < COLUMNS / OUT_ROWS; i++) {
        if (m0 + OUT_ROWS * i >= p.m) break;
        __syncwarp();
        put(sums, i, ends, tile, lane);
        __syncwarp();
        u32 row[OUT_ROWS / 16][4];
#pragma unroll
        for (u32 h = 0; h < OUT_ROWS / 16; h++) read_shared(row[h], from + 16 * OUT_PITCH * h);
#pragma unroll
        for (u32 h = 0; h < OUT_ROWS / 16; h++) {
            if (m0 + OUT_ROWS * i + 16 * h + lane / 2 < p.m) {
                if (whole) {
                    if (n < p.n) store(y, row[h]);
                } else {
#pragma unroll 1
                    for (u32 j = 0; j < 8 && n + j < p.n; j++) {
                        y[j] = (u16)row[h][0];
                        shift_down(row[h]);
                    }
                }
            }
            y += (u64)16 * p.n;
        }
    }
}
