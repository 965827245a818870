// Y = X·Ŵᵀ for very many rows of X, on Hopper: wgmma with the weights looked up into its registers. X is prepared
// (lutcolumns.cu). What was measured, and tried and lost, is in NOTES.md.
//
// Unlike in lut.cuh, scales are applied to the weights: a table value times its group's scale is rounded to the type
// of X, as lutdense.cu does it. Scales come into the range of that type by a power of two that is the matrix's own,
// taken back at the end; one scale a row is applied to the sums. Sums are wgmma's, over all columns of a piece in order.
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
// Latency. One warp copies X, 64 columns at once, and CODING others codes and scales, by atoms, of 16 bytes a lane: copies of
// whole pieces take longer to begin than these to be made.
// Warpgroups look up the weights of one half of an atom while they multiply by the other's, and read the codes of the
// next atom before they wait for that.
//
// Set by the host, beside what lut.cuh names:
//   COLUMNS  rows of X of a field: 64 to 256, in steps of 32
//   GROUPS4  warpgroups that multiply
//   STAGES   of 64 columns of X that are in shared memory
//   ATOMS    of codes and scales that are in shared memory
//   PLANES   whether weights are looked up in registers, of 4 bits
// and WARPS is 4·GROUPS4 + 4.

constexpr u32 CODING = 3;
constexpr u32 TILES = 4 * GROUPS4;  // of a field

// Shared memory: the table, a row for each pair of codes; X, 128 bytes of each row, in the order of columns_at; codes and
// scales; for each warp OUT_ROWS rows of X by 16 of Ŵ; and the phases.
constexpr u32 ROW_BYTES = 128;  // 32 copies for as many lanes
constexpr u32 TABLE_BYTES = PLANES ? 0 : ROW_BYTES << 2 * BITS;
constexpr u32 X_BYTES = COLUMNS * 128;
constexpr u32 X_BASE = SHARED_BASE + TABLE_BYTES;
constexpr u32 CODES_BASE = X_BASE + STAGES * X_BYTES;
constexpr u32 SCALES_BASE = CODES_BASE + ATOMS * TILES * ATOM_BYTES;
constexpr u32 ATOM_SCALES = 8 * SCALE_BYTES;  // of a tile
constexpr u32 OUT_BASE = SCALES_BASE + ATOMS * TILES * ATOM_SCALES;
// Registers of a thread that multiplies and of one that does not: in all what the block begins with.
constexpr u32 MULTIPLYING = GROUPS4 == 2 ? 232 : GROUPS4 == 3 ? 144 : 104, ASKING = GROUPS4 == 2 ? 40 : GROUPS4 == 3 ? 80 : 64;

constexpr u32 OUT_ROWS = 32, OUT_PITCH = 48, OUT_BYTES = OUT_ROWS * OUT_PITCH;  // a row of X's 32 bytes, not to share banks
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
    u32 groups_of_x;  // ⌈m/8⌉, each 1024 bytes for 64 columns
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
    while (take(piece, share, w)) {
        const u32 group = piece.field / w.rows * (COLUMNS / 8), bytes = min(COLUMNS / 8u, w.groups_of_x - group) * 1024;
        const u8* x = (const u8*)p.x + ((u64)piece.from * 2 * w.groups_of_x + group) * 1024;
        for (u32 half = piece.from * 2; half < piece.to * 2; half++) {
            stage.wait_empty();
            arrive_expecting(stage.full(), bytes);
            copy_bulk(X_BASE + stage.i * X_BYTES, x, bytes, stage.full());
            x += (u64)w.groups_of_x * 1024;
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
    const u32 tile_codes = p.units * 2 * ATOM_BYTES, tile_scales = p.units * UNIT_SCALE_BYTES;
    Share share = share_of(w, worker);
    Piece piece;
    while (take(piece, share, w)) {
        const u32 tile = piece.field % w.rows * TILES, tiles = min(TILES, (p.n + 15) / 16 - tile);
        const u8* codes = p.codes + ((u64)(tile + first) * tile_codes + piece.from * ATOM_BYTES);
        const u8* scales = p.scales + (u64)(tile + first) * tile_scales;
        for (u32 atom = piece.from; atom < piece.to; atom++) {
            place.wait_empty();
            const u8 *c = codes, *s = scales + (GROUP == 256 ? atom / 2 : atom) * ATOM_SCALES;
#pragma unroll 1
            for (u32 t = first; t < tiles; t += CODING) {
                copy_parts<ATOM_BYTES>(CODES_BASE + (place.i * TILES + t) * ATOM_BYTES, c, lane);
                if constexpr (GROUP != 0) copy_parts<ATOM_SCALES>(SCALES_BASE + (place.i * TILES + t) * ATOM_SCALES, s, lane);
                c += CODING * tile_codes;
                s += CODING * tile_scales;
            }
            arrive_copied(place.full());
            codes += ATOM_BYTES;
            place.step();
        }
    }
}

// ---- weights ----

// Bytes holds the table's low bytes and its high ones, for codes of 4 bits.
struct Bytes {
    u32 low[4], high[4];
};

__device__ __forceinline__ Bytes bytes_of(const Params& p) {
    Bytes b = {};
#if PLANES
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        b.low[i / 4] |= (p.codebook[i] & 0xff) << i % 4 * 8;
        b.high[i / 4] |= p.codebook[i] >> 8 << i % 4 * 8;
    }
#endif
    return b;
}

// sixteen looks up four codes in a table of bytes: the low three bits of each choose one of either half, and a
// selector of the half between them.
__device__ __forceinline__ u32 sixteen(const u32 (&bytes)[4], u32 codes, u32 halves) {
    return prmt(prmt(bytes[0], bytes[1], codes), prmt(bytes[2], bytes[3], codes), halves);
}

// look_up_bytes looks up a word of eight 4-bit codes, a step.
__device__ __forceinline__ void look_up_bytes(u32 (&a)[4], u32 word, const Bytes& b) {
    u32 codes = word & 0x77777777, halves = (word >> 1 & 0x44444444) | 0x32103210;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 low = sixteen(b.low, codes, halves), high = sixteen(b.high, codes, halves);
        a[2 * i] = prmt(low, high, 0x5140);
        a[2 * i + 1] = prmt(low, high, 0x7362);
        codes >>= 16;
        halves >>= 16;
    }
}

// Doubled is a scale twice, in the type of X, and what rounding it to that has left over where it is float16 and X
// bfloat16.
struct Doubled {
    u32 scale, rest;
};
constexpr bool RESTS = BF16 && SCALE == 1;

__device__ __forceinline__ Doubled doubled(float scale) {
    Doubled d = {};
    if (BF16) {
        d.scale = bf16x2_of_f32(scale, scale);
        if (RESTS) {
            const float rest = scale - f32_of_bits(d.scale & 0xffff0000);
            d.rest = bf16x2_of_f32(rest, rest);
        }
    } else {
        d.scale = f16x2_of_f32(scale, scale);
    }
    return d;
}

__device__ __forceinline__ u32 scaled(u32 pair, const Doubled& d) {
    return RESTS ? times_plus(pair, d.scale, times(pair, d.rest)) : times(pair, d.scale);
}

// fill_pairs writes every pair 32 times.
__device__ __forceinline__ void fill_pairs(const Params& p) {
    for (u32 i = threadIdx.x; i < 1 << 2 * BITS; i += THREADS) {
        const u32 v = BITS == 3 ? pair_of(p, (i & 3) | (i >> 2 & 4), (i >> 2 & 3) | (i >> 3 & 4)) : pair_of(p, i & ((1 << BITS) - 1), i >> BITS);
#pragma unroll
        for (u32 j = 0; j < 8; j++) *(Words4*)(shared + i * ROW_BYTES + (j + threadIdx.x) % 8 * 16) = {{v, v, v, v}};
    }
}

// pair_at looks up the pair of which the codes begin at a bit of a word.
template <u32 BIT>
__device__ __forceinline__ u32 pair_at(u32 word, u32 self) {
    constexpr u32 mask = ((1 << 2 * BITS) - 1) << 7;
    return lookup<SHARED_BASE>(((BIT < 7 ? word << (7 - BIT) % 32 : word >> (BIT - 7) % 32) & mask) | self);
}
template <u32 BIT>
__device__ __forceinline__ void pairs_at(u32 (&a)[4], u32 word, u32 self) {
    constexpr u32 next = BITS == 2 ? 4 : 8;
    a[0] = pair_at<BIT>(word, self);
    a[1] = pair_at<BIT + next>(word, self);
    a[2] = pair_at<BIT + 2 * next>(word, self);
    a[3] = pair_at<BIT + 3 * next>(word, self);
}

// look_up looks up half of an atom.
__device__ __forceinline__ void look_up(u32 (&a)[HALF_STEPS][4], const u32 (&w)[2 * BITS], u32 half, const Table& table, const Bytes& bytes) {
#if PLANES
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) look_up_bytes(a[i], w[4 * half + i], bytes);
#elif BITS == 2
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        pairs_at<0>(a[2 * i], w[2 * half + i], table.self);
        pairs_at<16>(a[2 * i + 1], w[2 * half + i], table.self);
    }
#elif BITS == 3
    constexpr u32 nibble = 0x0f0f0f0f;  // as in dequantize
    const u32 low = w[2 * half], high = w[2 * half + 1], b = w[4 + half];
    pairs_at<0>(a[0], select<nibble>(low, b), table.self);
    pairs_at<0>(a[1], select<nibble>(low >> 4, b >> 2), table.self);
    pairs_at<0>(a[2], select<nibble>(high, b << 2), table.self);
    pairs_at<0>(a[3], select<nibble>(high >> 4, b << 4), table.self);
#elif BITS == 4
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) pairs_at<0>(a[i], w[4 * half + i], table.self);
#else
    dequantize(a, w, 0, half, table);
#endif
}

// weights looks up half of an atom and applies the scales.
__device__ __forceinline__ void weights(u32 (&a)[HALF_STEPS][4], const u32 (&words)[2 * BITS], const Doubled (&scales)[2 * GROUPS], u32 half,
                                        const Table& table, const Bytes& bytes) {
    look_up(a, words, half, table, bytes);
    if constexpr (GROUP != 0) {
#pragma unroll
        for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
            for (u32 r = 0; r < 4; r++) a[i][r] = scaled(a[i][r], scales[(half * HALF_STEPS + i) / (8 / GROUPS) * 2 + r % 2]);
    }
}

// ---- multiply ----

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

// double_scales makes of a lane's scales of an atom what weights are multiplied by.
__device__ __forceinline__ void double_scales(Doubled (&d)[2 * GROUPS], const u32 (&raw)[RAW_WORDS], float power) {
    if constexpr (GROUP != 0) {
        const u32 twice = f16x2_of_f32(power, power);
#pragma unroll
        for (u32 i = 0; i < 2 * GROUPS; i += 2) {
            if (!BF16 && SCALE == 1) {
                const u32 both = times(raw[i / 2 % RAW_WORDS], twice);
                d[i].scale = prmt(both, both, 0x1010);
                d[i + 1].scale = prmt(both, both, 0x3232);
            } else {
                d[i] = doubled(scale_at(raw, i) * power);
                d[i + 1] = doubled(scale_at(raw, i + 1) * power);
            }
        }
    }
}

// issue begins to multiply half an atom by a stage of X.
__device__ __forceinline__ void issue(float (&sums)[COLUMNS / 2], u32 (&a)[HALF_STEPS][4], u64 columns) {
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
        for (u32 r = 0; r < 4; r++) a[i][r] = opaque(a[i][r]);
    begin_products();
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) multiply_group(sums, a[i], columns + 2 * i);  // 32 bytes on
    end_products();
}

// let_go says that the warp has read what ends a phase so.
__device__ __forceinline__ void let_go(u32 phase, u32 lane) {
    __syncwarp();
    if (lane == 0) arrive(phase);
}

// Read is what a lane has of an atom.
struct Read {
    u32 words[2 * BITS];
    u32 scales[RAW_WORDS];
};

__device__ __forceinline__ void read(Read& r, const Codes& place, u32 tile, u32 lane) {
    read_codes(r.words, CODES_BASE + (place.i * TILES + tile) * ATOM_BYTES, lane);
    if constexpr (GROUP != 0) read_shared(r.scales, SCALES_BASE + (place.i * TILES + tile) * ATOM_SCALES + lane / 4 * SCALE_BYTES);
}

// multiply multiplies a piece. It asks early whether the next stage is there, for the answer takes long.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], const Piece& piece, Stages& stage, Codes& place, u32 tile, u32 lane, float power,
                                         const Table& table, const Bytes& bytes) {
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
    u32 a[2][HALF_STEPS][4];
    Read r = {};
    place.wait_full();
    read(r, place, tile, lane);
    let_go(place.empty(), lane);
    place.step();
    u32 last = 0;  // phase of the stage before
    for (u32 left = piece.to - piece.from; left != 0; left--) {
        Doubled scales[2 * GROUPS];
        double_scales(scales, r.scales, power);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const bool next = half == 1 && left > 1;  // whether another atom's codes are read
            const u32 there = stage.is_full(), codes_there = next ? place.is_full() : 1;
            // A number that all lanes have is the descriptor's, which uniform registers hold.
            const u64 columns = columns_at(__shfl_sync(~0u, X_BASE + stage.i * X_BYTES, 0));
            weights(a[half], r.words, scales, half, table, bytes);
            if (next) {
                if (!codes_there) place.wait_full();
                read(r, place, tile, lane);
            }
            if (!there) stage.wait_full();
            issue(sums, a[half], columns);
            if (next) {
                let_go(place.empty(), lane);
                place.step();
            }
            wait_products<1>();
            if (last) let_go(last, lane);
            last = stage.empty();
            stage.step();
        }
    }
    wait_products<0>();
    let_go(last, lane);
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
    for (u32 other = worker; other-- > 0;) {
        if (lane == 0) lower(w.flags + other * TILES + tile);
        __syncwarp();
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

// write rounds the sums of a field to Y: through shared memory, for a lane to have eight neighbours of a row of it.
__device__ __forceinline__ void write(const float (&sums)[COLUMNS / 2], const Params& p, const Work& w, const Piece& piece, u32 tile, u32 lane) {
    const u32 n0 = (piece.field % w.rows * TILES + tile) * 16, m0 = piece.field / w.rows * COLUMNS;
    if (n0 >= p.n) return;
    float scale[2], bias[2];
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const u32 n = n0 + lane / 4 + 8 * j;
        scale[j] = w.back;
        if constexpr (GROUP == 0) {
            const u32 at = (n0 + lane / 4 * 2 + j) * SCALE_SIZE;  // rows g and g + 8 lie together
            u32 bits[1] = {};
            for (u32 b = 0; b < SCALE_SIZE; b++) bits[0] |= (u32)p.scales[at + b] << 8 * b;
            scale[j] = scale_at(bits, 0);
        }
        bias[j] = p.bias && n < p.n ? float_of(p.bias[n]) : 0.0f;
    }
    const u32 out = OUT_BASE + tile * OUT_BYTES;
    const u32 to = out + (lane / 16 * 8 + lane % 8) * OUT_PITCH + lane / 8 % 2 * 16;
    const u32 from = out + lane / 2 * OUT_PITCH + lane % 2 * 16, n = n0 + lane % 2 * 8;
    const bool whole = p.n % 8 == 0 && (u64)p.y % 16 == 0;
    u16* y = p.y + ((u64)(m0 + lane / 2) * p.n + n);
#pragma unroll
    for (u32 i = 0; i < COLUMNS / OUT_ROWS; i++) {
        if (m0 + OUT_ROWS * i >= p.m) break;
        __syncwarp();
#pragma unroll
        for (u32 h = 0; h < OUT_ROWS / 16; h++) {
            u32 pairs[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 at = OUT_ROWS / 2 * i + 8 * h + 2 * j;
                const float lo = fmaf(sums[at], scale[j % 2], bias[j % 2]), hi = fmaf(sums[at + 1], scale[j % 2], bias[j % 2]);
                pairs[j] = BF16 ? bf16x2_of_f32(lo, hi) : f16x2_of_f32(lo, hi);
            }
            store_turned(to + 16 * OUT_PITCH * h, pairs[0], pairs[1], pairs[2], pairs[3]);
        }
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

// ---- kernel ----

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutmany(const __grid_constant__ Params p, const __grid_constant__ Work w) {
    launch_next();
    check_base();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < STAGES + ATOMS) {
        begin_phases(PHASES_BASE + 16 * threadIdx.x, threadIdx.x < STAGES ? 1 : 32 * CODING);
        begin_phases(PHASES_BASE + 16 * threadIdx.x + 8, TILES);
        show_phases();
    }
    if (!PLANES) fill_pairs(p);
    __syncthreads();
    if (warp <= TILES) wait_previous();  // weights are not what others write
    // Those of a block are neighbours, for all before them to be its own or of blocks before.
    const u32 begin = (u32)((u64)w.workers * blockIdx.x / gridDim.x), end = (u32)((u64)w.workers * (blockIdx.x + 1) / gridDim.x);
    Stages stage = {0, 0};
    Codes place = {0, 0};
    if (warp >= TILES) {
        fewer_registers<ASKING>();
        for (u32 worker = begin; worker < end; worker++) {
            if (warp == TILES && lane == 0) ask_x(p, w, stage, worker);
            if (warp > TILES) ask_codes(p, w, place, worker, warp - TILES - 1, lane);
        }
        return;
    }
    more_registers<MULTIPLYING>();
    Table table = {};
    table.self = lane * 4;
    const Bytes bytes = bytes_of(p);
    float sums[COLUMNS / 2];
    for (u32 worker = begin; worker < end; worker++) {
        Share share = share_of(w, worker);
        Piece piece;
        while (take(piece, share, w)) {
            multiply(sums, piece, stage, place, warp, lane, w.power, table, bytes);
            if (piece.to < w.atoms) {
                leave(sums, w, worker, warp, lane);
                continue;
            }
            if (piece.from > 0) collect(sums, w, piece, worker, warp, lane);
            write(sums, p, w, piece, warp, lane);
        }
    }
}
