// Y = X·Ŵᵀ for some 40 to 256 rows of X, on Hopper: as lutmany.cu, for layers of which a field is shared by many workers. What follows the
// products is spread over all of them: each adds up and writes some rows of X of the field. NOTES.md has why, and what was predicted.
//
// Work. Either each field is a worker's, or all fields have as many workers, side by side, with equal parts of their columns: a worker has one piece
// then. SPLITS warpgroups have every so manyth atom of the same 64 rows of Ŵ, so that fields can be small where X has few rows.
//
// Sums. When a piece is multiplied by, X has been read, and the sums take its place in shared memory. From there each thread adds four neighbours of a row at a
// time, those of all splits, and leaves them for who has these rows (left.cuh), or adds those of others. A block that has several workers, for
// there are fewer blocks, leaves its own too and comes back to them when it has multiplied all, so that nobody waits for who waits. All blocks
// have to be at work at once.
//
// Order of sums. A warpgroup's sum is wgmma's, over its columns in order. Those of a worker are added first, in order, and then those of workers, in
// order: a matter of the shape alone.
//
// Latency. Codes are asked for before the table is written, which only those do that multiply.
//
// Set by the host, beside what fields.cuh names:
//   SPLITS   warpgroups that share the columns of 64 rows: STAGES are a multiple of 2·SPLITS, and ATOMS of SPLITS
// WARPS is 4·GROUPS4·SPLITS + 4, and OF_ATOM 2.

constexpr u32 MULTIPLYING_WARPS = TILES * SPLITS, MULTIPLYING_THREADS = 32 * MULTIPLYING_WARPS;
static_assert(OF_ATOM == 2 && STAGES % (2 * SPLITS) == 0 && ATOMS % SPLITS == 0 && !SPARSE && !GATES);

// Shared memory: as in fields.cuh up to the scales, and then phases.
constexpr u32 X_PHASES = OUT_BASE, CODE_PHASES = X_PHASES + 16 * STAGES;
constexpr u32 MET_PHASE = CODE_PHASES + 16 * ATOMS;  // ends when all that multiply have come to it
constexpr u32 FREE_PHASE = MET_PHASE + 8;            // ends when sums are no more where X will be

// Sums in the place of X: [SPLITS][COLUMNS][FIELD_ROWS], where eights of a row change places for lanes not to share banks.
constexpr u32 FIELD_ROWS = 16 * TILES, FIELD_SUMS = COLUMNS * FIELD_ROWS;
constexpr u32 FOURS = FIELD_ROWS / 4;  // of a row of X
static_assert(SPLITS * FIELD_SUMS * 4 <= STAGES * X_BYTES && MULTIPLYING_THREADS % FOURS == 0);

__device__ __forceinline__ u32 sum_at(u32 m, u32 n) { return m * FIELD_ROWS + (n ^ m / 2 % 4 * 8); }
__device__ __forceinline__ float* sums_here() { return (float*)(shared + (X_BASE - SHARED_BASE)); }

// Turns is fields.cuh's Ring for who takes some of the places.
template <u32 PLACES, u32 PHASES>
struct Turns {
    u32 i, odd;

    __device__ __forceinline__ u32 full() const { return PHASES + 16 * i; }
    __device__ __forceinline__ u32 empty() const { return PHASES + 16 * i + 8; }
    __device__ __forceinline__ u32 is_full() const { return has_ended(full(), odd); }
    __device__ __forceinline__ void wait_full() const { wait_phase(full(), odd); }
    __device__ __forceinline__ void wait_empty() const { wait_phase(empty(), odd ^ 1); }
    __device__ __forceinline__ void step(u32 by) {
        i += by;
        if (i >= PLACES) i -= PLACES, odd ^= 1;
    }
};
using XTurns = Turns<STAGES, X_PHASES>;
using CodeTurns = Turns<ATOMS, CODE_PHASES>;

// Sharers are the workers of a field.
struct Sharers {
    u32 first, count;
};
__device__ __forceinline__ Sharers sharers_of(const Work& w, u32 worker) {
    if (w.shared == 0) return {worker, 1};
    const u32 count = opaque(w.workers) / w.shared;  // anew for each piece, or registers would keep it beside the sums; so is what follows
    return {worker - worker % count, count};
}

// ---- copies ----

// ask_x_in_turn asks for X for all of a worker's pieces.
__device__ __forceinline__ void ask_x_in_turn(const Params& p, const Work& w, XTurns& stage, u32 worker, u32& pieces) {
    Share share = share_of(w, worker);
    Piece piece;
    while (take(piece, share, w)) {
        const u32 group = piece.field / w.rows * (COLUMNS / 8), bytes = min(COLUMNS / 8u, w.groups_of_x - group) * 1024;
        const u8* x = (const u8*)p.x + ((u64)piece.from * OF_ATOM * w.groups_of_x + group) * 1024;
        if (pieces > 0) wait_phase(FREE_PHASE, (pieces - 1) & 1);
        for (u32 i = piece.from * OF_ATOM; i < piece.to * OF_ATOM; i++) {
            stage.wait_empty();
            arrive_expecting(stage.full(), bytes);
            if (pieces == 0 && i == piece.from * OF_ATOM) wait_previous();  // no sooner, for all that has to be fetched to be there by then
            copy_bulk(X_BASE + stage.i * X_BYTES, x, bytes, stage.full());
            x += (u64)w.groups_of_x * 1024;
            stage.step(1);
        }
        pieces++;
    }
}

// ask_codes_in_turn asks for the codes and scales of all of a worker's pieces, for every CODING-th tile of a field.
__device__ __forceinline__ void ask_codes_in_turn(const Params& p, const Work& w, CodeTurns& place, u32 worker, u32 first, u32 lane) {
    const u32 tile_codes = p.units * 2 * ATOM_BYTES, tile_scales = p.units * UNIT_SCALE_BYTES;
    Share share = share_of(w, worker);
    Piece piece;
    while (take(piece, share, w)) {
        const u32 tile = piece.field % w.rows * TILES, tiles = min(TILES, tiles_together(p) - tile);
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
            place.step(1);
        }
    }
}

// fill_rows writes the table, each row by two of the threads that multiply.
__device__ __forceinline__ void fill_rows(const Params& p) {
#if !DECODE
    constexpr u32 rows = WIDE_ROWS ? ENTRIES : 1 << 2 * BITS, pitch = WIDE_ROWS ? TABLE_PITCH : ROW_BYTES;
    constexpr u32 parts = WIDE_ROWS && BITS == 2 ? 8 : 4;  // of 16 bytes, of half a row
    for (u32 i = threadIdx.x; i < 2 * rows; i += MULTIPLYING_THREADS) {
        u32 lo, hi;
        if (WIDE_ROWS) {
            entry_of(p, i / 2, lo, hi);
        } else {
            lo = BITS == 3 ? pair_of(p, (i / 2 & 3) | (i / 2 >> 2 & 4), (i / 2 >> 2 & 3) | (i / 2 >> 3 & 4)) : pair_of(p, i / 2 & ((1 << BITS) - 1), i / 2 >> BITS);
            hi = lo;
        }
#pragma unroll
        for (u32 j = 0; j < parts; j++) *(Words4*)(shared + i / 2 * pitch + (i % 2 * parts + (j + i / 2) % parts) * 16) = {{lo, hi, lo, hi}};
    }
#endif
}

// ---- multiply ----

__device__ __forceinline__ void read_atom(Read& r, const CodeTurns& place, u32 tile, u32 lane) {
    read_codes(r.words, CODES_BASE + (place.i * TILES + tile) * ATOM_BYTES, lane);
    if constexpr (GROUP != 0) read_shared(r.scales, SCALES_BASE + (place.i * TILES + tile) * ATOM_SCALES + lane / 4 * SCALE_BYTES);
}

// multiply multiplies so many atoms of a piece, those that are a split's turn. It asks early whether the next stage is there, for the answer takes
// long.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], u32 atoms, XTurns& stage, CodeTurns& place, u32 tile, u32 lane, float power,
                                         const Table& table, const Bytes& bytes) {
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
    if (atoms == 0) return;
    u32 a[2][HALF_STEPS][4], pattern[2] = {};
    Read r = {};
    place.wait_full();
    read_atom(r, place, tile, lane);
    let_go(place.empty(), lane);
    place.step(SPLITS);
    const u32 twice = opaque(f16x2_of_f32(power, power));
    u32 last = 0;  // the phase of the stage before
    for (u32 left = atoms; left != 0; left--) {
        Doubled scales[2 * GROUPS];
        double_scales(scales, r.scales, power, twice);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const bool next = half == 1 && left > 1;  // whether another atom's codes are read
            const u32 there = stage.is_full(), codes_there = next ? place.is_full() : 1;
            // A number that all lanes have is the descriptor's, which uniform registers hold.
            const u64 columns[SPAN] = {columns_at(__shfl_sync(~0u, X_BASE + stage.i * X_BYTES, 0))};
            weights(a[half], r.words, scales, half, table, bytes);
            if (next) {
                if (!codes_there) place.wait_full();
                read_atom(r, place, tile, lane);
            }
            if (!there) stage.wait_full();
            issue(sums, a[half], pattern, columns);
            if (next) {
                let_go(place.empty(), lane);
                place.step(SPLITS);
            }
            wait_products<1>();
            if (last) let_go(last, lane);
            last = stage.empty();
            stage.step(half == 0 ? 1 : 2 * SPLITS - 1);
        }
    }
    wait_products<0>();
    let_go(last, lane);
}

// ---- sums ----

// put_down writes a warp's sums where X was.
__device__ __forceinline__ void put_down(const float (&sums)[COLUMNS / 2], u32 split, u32 tile, u32 lane) {
    const u32 first = opaque(split * FIELD_SUMS + sum_at(lane % 4 * 2, 16 * tile + lane / 4));
    float *to = sums_here() + first, *eight_on = sums_here() + (first ^ 8);
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 8; i++) {
        to[8 * i * FIELD_ROWS] = sums[4 * i];
        to[(8 * i + 1) * FIELD_ROWS] = sums[4 * i + 1];
        eight_on[8 * i * FIELD_ROWS] = sums[4 * i + 2];
        eight_on[(8 * i + 1) * FIELD_ROWS] = sums[4 * i + 3];
    }
}

// pick_up returns four of a worker's sums, by their number in the field.
__device__ __forceinline__ Floats4 pick_up(u32 four) {
    const float* from = sums_here() + sum_at(four / FOURS, four % FOURS * 4);
    Floats4 v = *(const Floats4*)from;
#pragma unroll
    for (u32 split = 1; split < SPLITS; split++) {
        const Floats4 more = *(const Floats4*)(from + split * FIELD_SUMS);
#pragma unroll
        for (u32 j = 0; j < 4; j++) v.f[j] += more.f[j];
    }
    return v;
}

// left_at returns where a worker leaves four: [workers][COLUMNS][FIELD_ROWS].
__device__ __forceinline__ float* left_at(const Work& w, u32 worker, u32 four) { return (float*)w.flags + (u64)worker * FIELD_SUMS + four * 4; }

// Fours are those of a field that are there, of which a sharer adds and writes some, side by side.
struct Fours {
    u32 all, from, to;
};
__device__ __forceinline__ Fours fours_of(const Params& p, const Work& w, u32 field, u32 sharer, u32 count) {
    const u32 all = min(COLUMNS + 0u, p.m - field / w.rows * COLUMNS) * FOURS;
    return {all, all * sharer / count, all * (sharer + 1) / count};
}

// is_row returns whether Ŵ has the rows that four sums are of.
__device__ __forceinline__ bool is_row(const Params& p, const Work& w, u32 field, u32 four) { return field % w.rows * FIELD_ROWS + four % FOURS * 4 < p.n; }

// leave_field leaves a worker's sums for the others of the field, first for the next one; with keep none of its own.
__device__ __forceinline__ void leave_field(const Params& p, const Work& w, u32 field, u32 worker, bool keep) {
    const Sharers s = sharers_of(w, worker);
    const Fours own = fours_of(p, w, field, worker - s.first, s.count);
    const u32 count = own.all - (keep ? own.to - own.from : 0);
    for (u32 i = opaque(threadIdx.x); i < count; i += MULTIPLYING_THREADS) {
        const u32 past = own.to + i, four = past < own.all ? past : past - own.all;
        if (is_row(p, w, field, four)) leave_sums(left_at(w, worker, four), pick_up(four));
    }
}

// FieldEnds are what four rows of Ŵ end with.
struct FieldEnds {
    float scale[4], bias[4];
};

__device__ __forceinline__ FieldEnds field_ends_of(const Params& p, const Work& w, u32 n) {
    FieldEnds e;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        e.scale[j] = w.back;
        if constexpr (GROUP == 0) {
            const u32 at = (n / 16 * 16 + (n + j) % 8 * 2 + n / 8 % 2) * SCALE_SIZE;  // rows g and g + 8 lie together
            u32 bits[1] = {};
            for (u32 b = 0; b < SCALE_SIZE; b++) bits[0] |= (u32)p.scales[at + b] << 8 * b;
            e.scale[j] = scale_at(bits, 0);
        }
        e.bias[j] = p.bias && n + j < p.n ? float_of(p.bias[n + j]) : 0.0f;
    }
    return e;
}

// write_four rounds four sums to Y.
__device__ __forceinline__ void write_four(const Params& p, const Floats4& sums, const FieldEnds& e, u32 m, u32 n, bool whole) {
    struct alignas(8) Words2 {
        u32 w[2];
    } r;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const float lo = fmaf(sums.f[2 * j], e.scale[2 * j], e.bias[2 * j]), hi = fmaf(sums.f[2 * j + 1], e.scale[2 * j + 1], e.bias[2 * j + 1]);
        r.w[j] = BF16 ? bf16x2_of_f32(lo, hi) : f16x2_of_f32(lo, hi);
    }
    u16* y = p.y + ((u64)m * p.n + n);
    if (whole) {
        *(Words2*)y = r;
        return;
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++)
        if (n + j < p.n) y[j] = (u16)(r.w[j / 2] >> 16 * (j % 2));
}

// collect adds up and writes what a sharer has of a field, so many fours and workers at once. Its own sums are with keep where it has put them down.
template <u32 FOURS_AT_ONCE, u32 AT_ONCE>
__device__ __forceinline__ void collect_field(const Params& p, const Work& w, u32 field, u32 worker, const Sharers& s, bool keep) {
    const Fours own = fours_of(p, w, field, worker - s.first, s.count);
    const u32 begin = own.from + opaque(threadIdx.x), n = field % w.rows * FIELD_ROWS + begin % FOURS * 4;  // which all of a thread have
    if (begin >= own.to || n >= p.n) return;
    const FieldEnds ends = field_ends_of(p, w, n);
    const bool whole = p.n % 4 == 0 && (u64)p.y % 8 == 0;
#pragma unroll 1
    for (u32 four = begin; four < own.to; four += FOURS_AT_ONCE * MULTIPLYING_THREADS) {
        const u32 some = min((own.to - four + MULTIPLYING_THREADS - 1) / MULTIPLYING_THREADS, FOURS_AT_ONCE);
        Floats4 total[FOURS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < FOURS_AT_ONCE; i++) total[i] = {{-0.0f, -0.0f, -0.0f, -0.0f}};  // which makes no difference
#pragma unroll 1
        for (u32 first = 0; first < s.count; first += AT_ONCE) {
            float* const from = left_at(w, s.first + first, four);  // constants on are those that are read at once
            const u32 others = s.count - first, self = keep ? worker - s.first - first : ~0u;
            Floats4 v[FOURS_AT_ONCE][AT_ONCE] = {};  // or ptxas keeps registers for them all along
            bool there;
            do {
                there = true;
#pragma unroll
                for (u32 i = 0; i < FOURS_AT_ONCE; i++)
#pragma unroll
                    for (u32 j = 0; j < AT_ONCE; j++)
                        if (i < some && j < others && j != self) there &= find_sums(v[i][j], from + j * FIELD_SUMS + i * (MULTIPLYING_THREADS * 4));
            } while (!there);
#pragma unroll
            for (u32 i = 0; i < FOURS_AT_ONCE; i++)
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; j++) {
                    if (i >= some || j >= others) continue;
                    if (j == self)
                        v[i][j] = pick_up(four + i * MULTIPLYING_THREADS);
                    else
                        forget_sums(from + j * FIELD_SUMS + i * (MULTIPLYING_THREADS * 4));
#pragma unroll
                    for (u32 k = 0; k < 4; k++) total[i].f[k] += v[i][j].f[k];
                }
        }
#pragma unroll
        for (u32 i = 0; i < FOURS_AT_ONCE; i++)
            if (i < some) write_four(p, total[i], ends, field / w.rows * COLUMNS + four / FOURS + i * (MULTIPLYING_THREADS / FOURS), n, whole);
    }
}

__device__ __forceinline__ void end_field(const Params& p, const Work& w, u32 field, u32 worker, bool keep) {
    constexpr u32 many = SPLITS == 1 ? 4 : 2;  // of small fields a thread has no more
    const Sharers s = sharers_of(w, worker);
    if (s.count <= 2)
        collect_field<many, 2>(p, w, field, worker, s, keep);
    else
        collect_field<many / 2, 4>(p, w, field, worker, s, keep);
}

// ---- kernel ----

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutspread(const __grid_constant__ Params p, const __grid_constant__ Work w) {
    // Registers of a thread that multiplies and of one that does not: in all what the block begins with.
    constexpr u32 groups = GROUPS4 * SPLITS, multiplying = groups == 2 ? 232 : groups == 3 ? 144 : 104, asking = groups == 2 ? 40 : groups == 3 ? 80 : 64;
    launch_next();
    check_base();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < STAGES + ATOMS) {
        begin_phases(X_PHASES + 16 * threadIdx.x, threadIdx.x < STAGES ? 1 : 32 * CODING);
        begin_phases(X_PHASES + 16 * threadIdx.x + 8, TILES);
        show_phases();
    } else if (threadIdx.x < STAGES + ATOMS + 2) {
        begin_phases(MET_PHASE + 8 * (threadIdx.x - STAGES - ATOMS), MULTIPLYING_WARPS);
        show_phases();
    }
    __syncthreads();
    const u32 begin = (u32)((u64)w.workers * blockIdx.x / gridDim.x), end = (u32)((u64)w.workers * (blockIdx.x + 1) / gridDim.x);
    XTurns stage = {0, 0};
    CodeTurns place = {0, 0};
    if (warp >= MULTIPLYING_WARPS) {
        fewer_registers<asking>();
        u32 pieces = 0;
        for (u32 worker = begin; worker < end; worker++) {
            if (warp == MULTIPLYING_WARPS && lane == 0) ask_x_in_turn(p, w, stage, worker, pieces);
            if (warp > MULTIPLYING_WARPS) ask_codes_in_turn(p, w, place, worker, warp - MULTIPLYING_WARPS - 1, lane);
        }
        return;
    }
    more_registers<multiplying>();
    const u32 split = warp / TILES, tile = warp % TILES;
    u32 met = 0;
    const auto meet = [&] {
        let_go(MET_PHASE, lane);
        wait_phase(MET_PHASE, met++ & 1);
    };
    fill_rows(p);
    meet();
    Table table = {};
#if !DECODE
    table.self = lane * (WIDE_ROWS && BITS == 2 ? 8 : 4);
#endif
    const Bytes bytes = bytes_of(p);
    stage.step(2 * split);
    place.step(split);
    const bool keep = end - begin == 1;
    u32 before = 0;  // atoms of the block
    float sums[COLUMNS / 2];
    for (u32 worker = begin; worker < end; worker++) {
        Share share = share_of(w, worker);
        Piece piece;
        while (take(piece, share, w)) {
            const u32 atoms = piece.to - piece.from, turn = (split + SPLITS - before % SPLITS) % SPLITS;
            multiply(sums, atoms > turn ? (atoms - turn + SPLITS - 1) / SPLITS : 0, stage, place, tile, lane, w.power, table, bytes);
            before += atoms;
            meet();  // behind all products
            put_down(sums, split, tile, lane);
            meet();
            wait_previous();  // long over, for X has been there
            if (w.shared > 0) leave_field(p, w, piece.field, worker, keep);
            if (keep || w.shared == 0) end_field(p, w, piece.field, worker, true);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            let_go(FREE_PHASE, lane);
        }
    }
    if (keep || w.shared == 0) return;
    for (u32 worker = begin; worker < end; worker++) end_field(p, w, worker / (w.workers / w.shared), worker, false);
}
