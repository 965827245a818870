// Y = X·Ŵᵀ for weights that are windows on rings of bits, for up to 8·NT rows of X. X is rotated before (trellisrotate.cu), so that it is
// multiplied by what the rings hold: y = scale·√128·(R·x'). What was measured, and tried and lost, is in NOTES.md.
//
// Words. A tile is 64 rows of R by 64 columns (trellis.cuh); a field is WARPS/slices bands of 64 rows over all of K; a piece is a field,
// or part of its K, in tiles.
//
// Work. Workers do pieces, as many workers as on a GPU of 132 multiprocessors whatever there are: so the order of sums is a matter of the
// shape alone. All have equal shares of the columns of tiles of all fields, side by side, and take theirs from the end. Of a piece each
// warp has a band, and every slices-th tile of it. Who has the end of a field adds what the workers before it have left of it: each did that first,
// so that nobody waits for long, and nobody for who cannot go on.
//
// Order of sums. A warp adds its tiles in order, of each four times 16 columns by mma. Then come the slices of a piece in order, and the pieces of
// a field from the last to the first.
//
// Latency. Rings and X come straight from memory to registers, for the port of shared memory is busy with the table, of which each lane has a
// copy. The next tile is asked for behind the first window of the one at work. ptxas has one scoreboard for all that is asked for in the loop, so that
// this window waits for all of it: what begins behind it has the time of a tile, and what begins in front of it is waited for at once. The first
// rings and the table are asked for before the kernel waits for the one in front of it. Of a piece that ends warps only leave their sums in slots, and go on with
// the next: those are added up two tiles later, and what the end of a field needs from far is gathered two tiles before it.
//
// Set by the host, beside what trellis.cuh names:
//   NT      tiles of 8 rows of X: 1 or 2
//   WARPS   of a block

constexpr u32 THREADS = WARPS * 32;

struct Params {
    const u8* rings;
    u32 columns;   // of tiles: ⌈k/64⌉
    u32 columns_inverse;  // ⌈2^32/columns⌉, or 0 where products of columns would not fit 32 bits
    u32 slices;    // of a piece
    u32 inverse;   // ⌈65536/slices⌉, to divide columns by it
    u32 each, over;  // columns of tiles that a worker has; the first so many have one more
    u32 together;  // bands of a field: WARPS/slices
    u32 together_inverse;  // ⌈65536/together⌉
    u32 bands;     // ⌈n/64⌉
    u32 workers;
    u32 n, m;
    u32 groups;    // ⌈m/8⌉, each 1024 bytes of X for a column of tiles
    u32 unused;
    const u32* table;     // [ENTRIES]
    const u8* x;   // rotated: [columns][groups][2][8 rows][4][16 bytes] of float16, 16 columns in two halves
    const float* scales;  // of rows: [64·bands]
    u16* y;               // [m][n]
    const u16* bias;      // [n] or null
    Floats4* sums;        // [workers][bands of a field·m·16]
    u32* flags;           // [workers][WARPS], 0 before and after
};

extern __shared__ __align__(128) u8 shared[];

// Where that lies, which the addresses of the table hold as a constant. It is the table, 32 copies side by side, 16 bytes for phases, slots of two
// pieces, and what is kept for the end of a field.
#if __CUDA_ARCH__ >= 900
constexpr u32 SHARED_BASE = 1024;
#else
constexpr u32 SHARED_BASE = 0;
#endif
constexpr u32 PHASES = ENTRIES * 128;
constexpr u32 SLOTS = PHASES + 16;

// ---- work ----

struct Warp {
    u32 lane, band, slice;
};

// warp_of spreads slices over the schedulers, each of which has every fourth warp, for some slices have a tile more than others.
__device__ __forceinline__ Warp warp_of(const Params& p) {
    const u32 warp = threadIdx.x / 32, slice = warp * p.together_inverse >> 16;
    return {threadIdx.x % 32, warp - slice * p.together, slice};
}

// before returns how many columns of tiles the workers before one have.
__device__ __forceinline__ u32 before(const Params& p, u32 worker) { return worker * p.each + min(worker, p.over); }

// Piece is a part of a field, or all of it.
struct Piece {
    u32 field, from, to;  // columns of tiles
    u32 slice;            // of the warp: those of a worker's pieces follow each other, for none to have more to do than others
};

// Share is what a worker has yet to do: so many columns of tiles, from the end of a field's on.
struct Share {
    u32 left, field, to;
    u32 slice;  // of the warp in the next piece
};

__device__ __forceinline__ Share share_of(const Params& p, const Warp& w, u32 worker) {
    const u32 begin = before(p, worker), end = before(p, worker + 1);
    const u32 field = p.columns_inverse ? __umulhi(end - 1, p.columns_inverse) : (end - 1) / p.columns;
    return {end - begin, field, end - field * p.columns, w.slice};
}

// take returns whether there is another piece.
__device__ __forceinline__ bool take(Piece& piece, Share& s, const Params& p) {
    if (s.left == 0) return false;
    piece = {s.field, s.to > s.left ? s.to - s.left : 0, s.to, s.slice};
    const u32 taken = piece.to - piece.from;
    s.left -= taken;
    s.field--;
    s.to = p.columns;
    const u32 past = taken - (taken * p.inverse >> 16) * p.slices;
    s.slice = s.slice >= past ? s.slice - past : s.slice + p.slices - past;
    return true;
}

// tiles_of returns how many tiles of a piece a warp has.
__device__ __forceinline__ u32 tiles_of(const Params& p, const Warp& w, const Piece& piece) {
    const u32 first = piece.from + piece.slice;
    if (first >= piece.to || piece.field * p.together + w.band >= p.bands) return 0;
    return (piece.to - first + p.slices - 1) * p.inverse >> 16;
}

// ---- rings ----

// Cursor is at the tile that a warp asks for next.
struct Cursor {
    Share share;    // what follows its piece
    const u8* at;   // the lane's part of the rings
    const u8* x;    // and of X, in the lane's columns
    u32 any, any_x; // what a window is less than where there is a tile to ask for, and where the lane has a row of X
};

// seek goes to the first tile of the next piece of which the warp has some.
__device__ __forceinline__ void seek(Cursor& c, const Params& p, const Warp& w) {
    Piece piece;
    c.any = 0;
    while (c.any == 0 && take(piece, c.share, p)) {
        if (tiles_of(p, w, piece)) c.any = 0x10000;
        const u32 band = piece.field * p.together + w.band, column = piece.from + piece.slice;
        c.at = p.rings + ((u64)band * p.columns + column) * TILE_BYTES + w.lane * 16;
        c.x = p.x + (u64)column * p.groups * 1024 + w.lane * 16;
    }
    c.any_x = w.lane / 4 < p.m ? c.any : 0;
}

__device__ __forceinline__ void advance(Cursor& c, const Params& p) {
    c.at += p.slices * TILE_BYTES;
    c.x += p.slices * p.groups * 1024;
}

__device__ __forceinline__ void load_ring(u32 (&w)[WORDS], const u8* at, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < RATE / 2; i++) {
        u32 v[4];
        load_stream(v, at + 512 * i);
#pragma unroll
        for (u32 j = 0; j < 4; j++) w[4 * i + j] = v[j];
    }
    if (RATE % 2) {
        u32 v[2];
        load_stream(v, at + 512 * (RATE / 2) - 8 * lane);
        w[WORDS - 2] = v[0];
        w[WORDS - 1] = v[1];
    }
}

// ---- windows ----

// What a host runs in place of the instructions below.
[[maybe_unused]] __device__ __forceinline__ void dp2a_lo_u32_u32(u32& d, u32 a, u32 b, u32 c) { d = (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff) + c; }
[[maybe_unused]] __device__ __forceinline__ void dp2a_hi_u32_u32(u32& d, u32 a, u32 b, u32 c) { dp2a_lo_u32_u32(d, a, b >> 16, c); }

// HALVES has the factors of both instructions of half, so that they share a register.
constexpr u32 HALVES = 0x01000001;

// half returns the low half of a word, or the high one: as a sum of products, for which there is another pipe than for what moves bits.
__device__ __forceinline__ u32 half(u32 word, bool high, u32 halves) {
    u32 d;
    if (high)
        asm("dp2a.hi.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(word), "r"(halves), "r"(0u));
    else
        asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(word), "r"(halves), "r"(0u));
    return d;
}

// product returns that of a step's window. A window is shifted to a byte with the word that it is in, and so are others of that word. Where it is
// half of a word then it is taken by itself; else one instruction has it twice, in both halves, which are multiplied by another factor
// for it. The three instructions that each pair takes besides are of the pipe that moves bits, so that half of the windows in the other are the most even.
__device__ __forceinline__ u32 product(const u32 (&w)[WORDS], u32 step, u32 halves) {
    constexpr u32 twice = (u32)FACTOR - ((u32)FACTOR << 16);  // FACTOR over 65537
    const u32 bit = step * RATE % 32, i = step * RATE / 32, byte = bit / 8, shift = bit % 8;
    // Of steps of 4 bits this word is shifted for others anyway.
    if (RATE % 4 && shift && byte == 1) return half(w[i] << (16 - bit), true, halves) * (u32)FACTOR;
    u32 lo = w[i], hi = w[(i + 1) % WORDS];
    if (shift) {
        if (byte == 3) hi = funnel(hi, w[(i + 2) % WORDS], shift);
        lo = funnel(lo, w[(i + 1) % WORDS], shift);
    }
    if (byte % 2 == 0) return half(lo, byte == 2, halves) * (u32)FACTOR;
    return prmt(lo, hi, 0x1010 + byte * 0x1111) * twice;
}

// Lane is what a lane keeps for its lookups: 4 times its number, and HALVES.
struct Lane {
    u32 self, halves;
};

// fetch_table begins to copy the table to where slots will be: not through registers, since what waits for those waits for rings too.
__device__ __forceinline__ void fetch_table(const u32* table) {
    if (threadIdx.x < ENTRIES / 4) copy_weights(SHARED_BASE + SLOTS + threadIdx.x * 16, table + threadIdx.x * 4);
    end_copies();
}

// fill_table writes a pair, of which each thread has one, 32 times; neighbours begin at different 16 bytes, which are in different banks.
__device__ __forceinline__ void fill_table() {
    wait_copies<0>();
    __syncthreads();
    if (threadIdx.x < ENTRIES) {
        const u32 pair = *(const u32*)(shared + SLOTS + threadIdx.x * 4);
#pragma unroll
        for (u32 j = 0; j < 8; j++) *(Words4*)(shared + threadIdx.x * 128 + (j + threadIdx.x) % 8 * 16) = {{pair, pair, pair, pair}};
    }
    __syncthreads();
}
static_assert(ENTRIES <= THREADS);

// ---- multiply ----

// Columns is what a lane holds of X for a tile: 16 neighbours of a row, for each tile of 8 rows.
struct Columns {
    u32 x[NT][2][4];
};

struct Sums {
    float c[NT][4][4];
};

// Group is what a lane has of the weights of an mma: the products of its windows, and what the table has for them.
struct Group {
    u32 y[4], v[4];
};

__device__ __forceinline__ void look_up(Group& g, const u32 (&w)[WORDS], u32 at, const Lane& lane) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        g.y[i] = product(w, 4 * at + i, lane.halves);
        g.v[i] = lookup<SHARED_BASE>(masked_or<INDEX>(g.y[i], lane.self));
    }
}

__device__ __forceinline__ void multiply(Sums& sums, const Group& g, u32 at, const Columns& x) {
    const u32 u = at / 4, t = at % 4;
    u32 a[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) a[i] = g.v[i] ^ (g.y[i] & (u32)FLIPS);
#pragma unroll
    for (u32 n = 0; n < NT; n++) mma_f16(sums.c[n][t], a[0], a[1], a[2], a[3], x.x[n][u / 2][u % 2 * 2], x.x[n][u / 2][u % 2 * 2 + 1]);
}

// Stage is what a warp has asked for of a tile.
struct Stage {
    u32 w[WORDS];
    Columns x;
};

// load_if and load_cached_if load where there is something to load, without a branch, across which the compiler would move nothing. A host has no instruction
// that may do nothing.
#ifdef __CUDACC_RTC__
__device__ __forceinline__ void load_if(bool any, u32 (&w)[4], const u8* p) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3]) : "l"(p), "r"((u32)any));
}
__device__ __forceinline__ void load_if(bool any, u32 (&w)[2], const u8* p) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(w[0]), "+r"(w[1]) : "l"(p), "r"((u32)any));
}
__device__ __forceinline__ void load_cached_if(bool any, u32 (&w)[4], const u8* p) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3]) : "l"(p), "r"((u32)any) : "memory");
}
#else
template <u32 N>
__device__ __forceinline__ void load_if(bool any, u32 (&w)[N], const u8* p) {
    if (any) load_stream(w, p);
}
__device__ __forceinline__ void load_cached_if(bool any, u32 (&w)[4], const u8* p) {
    if (any) load_cached(w, p);
}
#endif

// load_stage asks for a tile if there is one, and a window of the one at work is there.
__device__ __forceinline__ void load_stage(Stage& s, const Cursor& c, u32 lane, u32 m, u32 window) {
    const bool any = window < c.any;
#pragma unroll
    for (u32 i = 0; i < RATE / 2; i++) load_if(any, (u32(&)[4])s.w[4 * i], c.at + 512 * i);
    if (RATE % 2) load_if(any, (u32(&)[2])s.w[WORDS - 2], c.at + 512 * (RATE / 2) - 8 * lane);
#pragma unroll
    for (u32 t = 0; t < NT; t++)
#pragma unroll
        for (u32 h = 0; h < 2; h++)
            load_cached_if(t == 0 ? window < c.any_x : any && 8 * t + lane / 4 < m, s.x.x[t][h], c.x + t * 1024 + h * 512);
}

// multiply_tile multiplies by a tile, and asks for the next one as soon as what this tile has been asked for is there, which its first window tells.
// Weights of an mma are looked up while the one before is multiplied by.
__device__ __forceinline__ void multiply_tile(Sums& sums, const Stage& now, Stage& next, const Cursor& ahead, u32 number, u32 m, const Lane& lane) {
    Group g[16];
    look_up(g[0], now.w, 0, lane);
    load_stage(next, ahead, number, m, half(now.w[0], false, lane.halves));
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        if (i < 15) look_up(g[i + 1], now.w, i + 1, lane);
        multiply(sums, g[i], i, now.x);
    }
}

// ---- sums ----

// slot returns where 16 bytes of the sums of a slice of a piece lie: four rows of a band of the field, part g·2 + h for rows 8g + 4h on, for
// a row of X. Parts are turned so that neither those who write nor those who read share banks.
__device__ __forceinline__ u32 slot(const Params& p, u32 odd, u32 slice, u32 band, u32 m, u32 part) {
    const u32 q = m / 2;
    return SLOTS + ((((odd * p.slices + slice) * p.together + band) * p.m + m) * 16 + (part ^ (q & 1) ^ (q & 2) * 2)) * 16;
}

__device__ __forceinline__ void put(const Params& p, const Warp& w, const Sums& sums, u32 odd, u32 slice) {
#pragma unroll
    for (u32 n = 0; n < NT; n++)
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const u32 m = 8 * n + w.lane % 4 * 2 + j;
            if (m >= p.m) continue;
#pragma unroll
            for (u32 h = 0; h < 2; h++)
                *(Floats4*)(shared + slot(p, odd, slice, w.band, m, w.lane / 4 * 2 + h)) = {
                    {sums.c[n][2 * h][j], sums.c[n][2 * h][2 + j], sums.c[n][2 * h + 1][j], sums.c[n][2 * h + 1][2 + j]}};
        }
}

__device__ __forceinline__ void add(Floats4& to, const Floats4& v) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) to.f[j] += v.f[j];
}

// add_slices adds up the slices of a part, four at a time.
__device__ __forceinline__ Floats4 add_slices(const Params& p, u32 at, u32 slices) {
    const u32 pitch = p.together * p.m * 256;
    Floats4 sum = {};
    for (u32 s = 0; s < slices; s += 4) {
        Floats4 v[4] = {};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (s + i < slices) v[i] = *(const Floats4*)(shared + at + (s + i) * pitch);
#pragma unroll
        for (u32 i = 0; i < 4; i++) add(sum, v[i]);
    }
    return sum;
}

struct alignas(8) Four { u16 h[4]; };

// write rounds the sums of four rows to Y.
__device__ __forceinline__ void write(const Params& p, u32 row, u32 m, const Floats4& v, const Floats4& scale, const float (&bias)[4]) {
    Four r;
#pragma unroll
    for (u32 i = 0; i < 4; i++) r.h[i] = rounded_of(fmaf(v.f[i], scale.f[i] * ROOT, bias[i]));
    u16* y = p.y + ((u64)m * p.n + row);
    if (row + 4 <= p.n && (u64)y % 8 == 0) {
        *(Four*)y = r;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (row + i < p.n) y[i] = r.h[i];
}

// Pending is a piece whose sums are in slots, or will be when all warps have put theirs there.
struct Pending {
    Piece piece;
    u32 odd;   // of how many it is
    bool any;  // whether there is one
};

// Part is four rows of a band of a field, for a row of X.
struct Part {
    u32 band, m, part, row;
};

__device__ __forceinline__ Part part_of(const Params& p, const Piece& piece, u32 i) {
    const u32 part = i % 16, m = i / 16 * p.together_inverse >> 16, band = i / 16 - m * p.together;
    return {band, m, part, (piece.field * p.together + band) * TILE + part * 4};
}

// kept is where what is far is kept until the slices of the worker's last piece are added up: behind the slots, the scales of a part and then what others
// have left of it.
__device__ __forceinline__ Floats4* kept(const Params& p, u32 i) {
    return (Floats4*)(shared + SLOTS + 2 * p.slices * p.together * p.m * 256 + i * 32);
}

// gather brings what the end of a field needs from far, while the warps still multiply: scales, and of other workers' sums those that the same warp of theirs
// has left.
__device__ __forceinline__ void gather(const Params& p, const Piece& piece, u32 worker) {
    const u32 parts = p.together * p.m * 16, warp = threadIdx.x / 32, first = piece.field * p.columns;
    if (warp * 32 >= parts) return;
    const bool others = piece.from > 0;
    if (others)
        for (u32 i = threadIdx.x % 32; i < worker && before(p, worker - i) > first; i += 32) lower(p.flags + (worker - 1 - i) * WARPS + warp);
    __syncwarp();
    for (u32 i = threadIdx.x; i < parts; i += THREADS) {
        const Part at = part_of(p, piece, i);
        if (at.row >= p.n) continue;
        Floats4 far = {};
        const Floats4 scale = *(const Floats4*)(p.scales + at.row);
        if (others)
            for (u32 other = worker; other-- > 0;) {
                add(far, load_far(p.sums + (u64)other * parts + i));
                if (before(p, other) <= first) break;
            }
        kept(p, i)[0] = scale;
        kept(p, i)[1] = far;
    }
}

// finish adds up the slices of a piece. Where the field ends with it, what has been gathered is added and Y is written; else it is left.
__device__ __forceinline__ void finish(const Params& p, const Warp& w, Pending& pending, u32 worker) {
    if (!pending.any) return;
    pending.any = false;
    const Piece& piece = pending.piece;
    const u32 parts = p.together * p.m * 16, warp = threadIdx.x / 32, phases = SHARED_BASE + PHASES;
    const u32 slices = min(p.slices, piece.to - piece.from);
    const bool ends = piece.to == p.columns;
    wait_phase(phases, pending.odd);
    for (u32 i = threadIdx.x; i < parts; i += THREADS) {
        const Part at = part_of(p, piece, i);
        if (at.row >= p.n) continue;
        Floats4 v = add_slices(p, slot(p, pending.odd, 0, at.band, at.m, at.part), slices);
        if (!ends) {
            p.sums[(u64)worker * parts + i] = v;
            continue;
        }
        float bias[4] = {};
        if (p.bias)
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                if (at.row + j < p.n) bias[j] = float_of(p.bias[at.row + j]);
        add(v, kept(p, i)[1]);
        write(p, at.row, at.m, v, kept(p, i)[0], bias);
    }
    if (!ends) {
        __syncwarp();
        if (w.lane == 0 && warp * 32 < parts) raise(p.flags + worker * WARPS + warp);
    }
}

// ---- kernels ----

// prefetch_scales brings those of a worker's rows into the level-2 cache.
__device__ __forceinline__ void prefetch_scales(const Params& p, const Share& s) {
    const u32 rows = p.together * TILE, end = (s.field + 1) * rows, i = (threadIdx.x + 1) * 32;
    if (i * p.columns <= (s.left + 2 * p.columns) * rows && i <= end && end - i < p.bands * TILE) prefetch(p.scales + (end - i));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) trellisgemm(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    const u32 phases = SHARED_BASE + PHASES;
    if (shared_address(shared) != SHARED_BASE) __trap();
    fetch_table(p.table);
    const Lane lane = {opaque(w.lane * 4), opaque(HALVES)};
    u32 worker = blockIdx.x, last = worker + 1;
    if (gridDim.x != p.workers) {
        last = last * p.workers / gridDim.x;
        worker = worker * p.workers / gridDim.x;
    }
    bool begun = false;
    u32 odd = 0;
    for (; worker < last; worker++) {
        Share share = share_of(p, w, worker);
        Cursor ahead = {share, nullptr, nullptr, 0, 0};
        seek(ahead, p, w);
        Stage stage[2] = {};
        bool second = false;
        if (ahead.any) load_ring(stage[0].w, ahead.at, w.lane);
        if (!begun) {
            if (threadIdx.x == 0) begin_phases(phases, WARPS);
            fill_table();
        }
        prefetch_scales(p, share);
        if (!begun) wait_previous();
        begun = true;
        // Lanes of rows that there are not keep zeros.
#pragma unroll
        for (u32 t = 0; t < NT; t++)
#pragma unroll
            for (u32 h = 0; h < 2; h++)
                if (ahead.any && 8 * t + w.lane / 4 < p.m) load_cached(stage[0].x.x[t][h], ahead.x + t * 1024 + h * 512);
        advance(ahead, p);
        Piece piece = {};
        Pending pending = {};
        for (;;) {
            const bool more = take(piece, share, p);
            Sums sums = {};
            const u32 tiles = more ? tiles_of(p, w, piece) : 0;
            u32 left = tiles;
            // A run of tiles ends where the loop would have more to do: the last tile of a piece is one of its own, since what is asked for meanwhile is of
            // another piece. A piece whose sums are in slots is added up behind two tiles of the next; what the end of a field needs is gathered two
            // tiles before it.
            bool ready = !more || piece.to < p.columns;
            while (left) {
                u32 now = left - 1;
                if (left == 1) {
                    seek(ahead, p, w);
                    now = 1;
                } else if (pending.any)
                    now = min(now, 2u);
                else if (!ready && left > 2)
                    now = left - 2;
                left -= now;
                // Two copies, each with the tile in its own registers; a run begins with that where the last one has ended.
                if (second) goto other;
            one:
                multiply_tile(sums, stage[0], stage[1], ahead, w.lane, p.m, lane);
                advance(ahead, p);
                second = true;
                if (--now == 0) goto ended;
            other:
                multiply_tile(sums, stage[1], stage[0], ahead, w.lane, p.m, lane);
                advance(ahead, p);
                second = false;
                if (--now > 0) goto one;
            ended:
                if (left == 0) break;
                if (pending.any)
                    finish(p, w, pending, worker);
                else if (!ready) {
                    gather(p, piece, worker);
                    ready = true;
                }
            }
            finish(p, w, pending, worker);
            if (!more) break;
            if (!ready) gather(p, piece, worker);
            if (tiles) put(p, w, sums, odd, piece.slice);
            __syncwarp();
            if (w.lane == 0) arrive(phases);
            pending = {piece, odd, true};
            odd ^= 1;
        }
    }
}

// trellisread is the read-only twin: the same grid and loads, in the same order, and nothing done with them.
extern "C" __global__ void __launch_bounds__(THREADS, 1) trellisread(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    const u32 last = (blockIdx.x + 1) * p.workers / gridDim.x;
    u32 sink = 0;
    for (u32 worker = blockIdx.x * p.workers / gridDim.x; worker < last; worker++) {
        Share share = share_of(p, w, worker);
        Cursor ahead = {share, nullptr, nullptr, 0, 0};
        seek(ahead, p, w);
        bool asked = ahead.any;
        u32 first[WORDS] = {};
        if (asked) load_ring(first, ahead.at, w.lane);
        prefetch_scales(p, share);
        wait_previous();
        Piece piece;
        while (take(piece, share, p)) {
            u32 left = tiles_of(p, w, piece);
            const u32 band = piece.field * p.together + w.band;
            const u8* at = p.rings + ((u64)band * p.columns + piece.from + piece.slice) * TILE_BYTES + w.lane * 16;
            if (asked && left > 0) {
                asked = false;
                left--;
                at += p.slices * TILE_BYTES;
            }
#pragma unroll 4
            for (; left > 0; left--) {
                u32 ring[WORDS];
                load_ring(ring, at, w.lane);
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) sink ^= ring[i];
                at += p.slices * TILE_BYTES;
            }
        }
#pragma unroll
        for (u32 i = 0; i < WORDS; i++) sink ^= first[i];
    }
    // Never true for real rings; the compiler cannot know.
    if (sink == 0x9e3779b9 && p.m == 0) p.y[threadIdx.x] = (u16)sink;
}
