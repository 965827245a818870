// Y = X·Ŵᵀ for Ŵ of binary codes, ŵ = z + Σ ±αᵢ, on tensor cores: each plane is multiplied by itself and its sums by the
// factors of the plane, for up to 16 rows of X. The layout is that of repack.BCQTiles.
//
// Operands. The columns of X come in pairs of themselves, −x and x, of which mma.sp keeps one: A is nothing but ones, and the bits of
// a plane are its pattern. So a product of 16 columns takes half an instruction to make its operands of a word.
//
// Order of sums. Columns come in units of 256; slice s of K has units s, s + slices and so on. A plane's sums over each half of a unit, or a
// group if that is shorter, are added by the mmas of 16 columns each. They are multiplied by the factors
// plane by plane and added to the unit's, to which the offset is added last; units are added in order, and so are slices.
//
// Work. As in lutgemm.cu a block owns whole tiles, a warp the units of a slice, whose columns of X it holds in registers while it runs down
// the tiles. Codes and factors come by asynchronous copies through a ring of the warp's own in shared memory, whose port
// has little else to do here, and each lane reads what it copied itself.
//
// Set by the host:
//   BITS     planes, 1 to 8
//   GROUP    32, 64, 128, 256, or 0 for one set of factors a row
//   SCALE    lut.ScaleType of the factors: 1, 2 or 3
//   BF16     1 for bfloat16 X, 0 for float16
//   NT       tiles of 8 rows of X: 1 or 2
//   STAGES   of a warp's ring, each for a unit of a tile
//   WARPS    of a block

constexpr u32 THREADS = WARPS * 32;
constexpr u32 PLANE_BYTES = 512;
constexpr u32 GROUPS = GROUP == 0 || GROUP == 256 ? 1 : 256 / GROUP;  // of a unit
constexpr u32 CHAINS = GROUPS == 1 ? 2 : GROUPS;                      // of mmas that are added up, of a plane and a unit
constexpr u32 FACTOR_SIZE = SCALE == 3 ? 4 : 2;
constexpr u32 FACTOR_BYTES = GROUPS * (BITS + 1) * 16 * FACTOR_SIZE;
constexpr u32 RECORD = BITS * PLANE_BYTES + FACTOR_BYTES;  // of a unit of a tile

struct Params {
    const u8* planes;
    const u8* factors;
    u32 units;       // of a tile: ⌈k/256⌉
    u32 slices;      // of K
    u32 teams;       // of warps, each at its own tiles: slices·teams = WARPS
    u32 tiles_each;  // tiles of a block; the first tiles_over have one more
    u32 tiles_over;
    u32 run;         // tiles that are summed at a time
    u32 n, k;
    const u8* x;      // [m][k]
    u16* y;           // [m][n]
    const u16* bias;  // [n] or null
    u32 m, pairs;     // ⌈m/2⌉
};

extern __shared__ __align__(128) u8 shared[];

// What lies in shared memory: the rings of all warps, the sums of X of their units, and the slots.
constexpr u32 TOTALS = CHAINS * NT * 4 * 8;  // bytes of a warp: of each chain for a lane's two rows of X
constexpr u32 RINGS = WARPS * STAGES * RECORD;
constexpr u32 SLOTS = RINGS + WARPS * TOTALS;

// copy_codes copies 16 bytes of the matrix, as copy_async does, before the grids in front have ended too.
__device__ __forceinline__ void copy_codes(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

struct alignas(8) Floats2 { float f[2]; };

struct Warp {
    u32 lane, slice, team;
    u32 tile0, tiles;  // of the block
    u32 steps;         // units
    u32 ring;          // address
};

__device__ __forceinline__ Warp warp_of(const Params& p) {
    Warp w;
    const u32 warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.team = warp / p.slices;
    w.slice = warp - p.slices * w.team;
    w.tile0 = blockIdx.x * p.tiles_each + min(blockIdx.x, p.tiles_over);
    w.tiles = p.tiles_each + (blockIdx.x < p.tiles_over);
    w.steps = w.slice < p.units ? (p.units - w.slice + p.slices - 1) / p.slices : 0;
    w.ring = shared_address(shared) + warp * (STAGES * RECORD);
    return w;
}

// tiles_of returns how many tiles of the run at first fall to the warp.
__device__ __forceinline__ u32 tiles_of(const Params& p, const Warp& w, u32 first) {
    const u32 run = min(p.run, w.tiles - first);
    return run > w.team ? (run - w.team + p.teams - 1) / p.teams : 0;
}

// Cursor goes through the units that a warp multiplies: the tiles of a run, for each step of K, for each run.
struct Cursor {
    u32 first, step, i;  // of the run, of K, of the warp's tiles in it
    u32 tiles;           // of the warp in the run
    u32 stage;
    bool more;
};

__device__ __forceinline__ void begin(Cursor& c, const Params& p, const Warp& w) {
    c.more = false;
    for (; c.first < w.tiles && w.steps; c.first += p.run)
        if ((c.tiles = tiles_of(p, w, c.first))) {
            c.more = true;
            return;
        }
}

__device__ __forceinline__ void advance(Cursor& c, const Params& p, const Warp& w) {
    if (++c.i < c.tiles) return;
    c.i = 0;
    if (++c.step < w.steps) return;
    c.step = 0;
    c.first += p.run;
    begin(c, p, w);
}

// fetch begins the copies of the unit that the cursor is at, and moves it on.
__device__ __forceinline__ void fetch(Cursor& c, const Params& p, const Warp& w) {
    if (c.more) {
        const u32 tile = w.tile0 + c.first + w.team + c.i * p.teams;
        const u64 unit = (u64)tile * p.units + p.slices * c.step + w.slice;
        const u8* from = p.planes + unit * (BITS * PLANE_BYTES) + w.lane * 16;
        const u32 to = w.ring + c.stage * RECORD + w.lane * 16;
#pragma unroll
        for (u32 i = 0; i < BITS; i++) copy_codes(to + i * PLANE_BYTES, from + i * PLANE_BYTES);
        const u8* factors = p.factors + (GROUP ? unit : tile) * FACTOR_BYTES + w.lane * 16;
#pragma unroll
        for (u32 i = 0; i < FACTOR_BYTES; i += 512)
            if (i + 512 <= FACTOR_BYTES || w.lane * 16 < FACTOR_BYTES - i) copy_codes(to + BITS * PLANE_BYTES + i, factors + i);
        advance(c, p, w);
    }
    end_copies();
    if (++c.stage == STAGES) c.stage = 0;
}

// ---- operands ----

__device__ __forceinline__ float float_of(u16 h) { return BF16 ? f32_of_bits((u32)h << 16) : f32_of_f16(h); }
__device__ __forceinline__ u16 rounded_of(float f) { return BF16 ? bf16_of_f32(f) : f16_of_f32(f); }

// Columns is what a lane holds of X for a unit: for each product of 16 columns, of a row for each tile of 8, four columns with their negatives
// before them. Of 32 columns a lane has eight consecutive ones, of which the first product takes four.
struct Columns {
    u32 b[16][NT][4];
};

__device__ __forceinline__ void load_columns(Columns& x, const Params& p, const Warp& w, u32 step) {
    const u32 col0 = (p.slices * step + w.slice) * 256 + w.lane % 4 * 8;
#pragma unroll
    for (u32 c = 0; c < 8; c++)
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            const u32 row = 8 * t + w.lane / 4, col = col0 + 32 * c;
            u32 v[4] = {0, 0, 0, 0};
            if (row < p.m && col < p.k) load_cached(v, p.x + ((u64)row * p.k + col) * 2);
#pragma unroll
            for (u32 i = 0; i < 8; i++) x.b[2 * c + i / 4][t][i % 4] = prmt(v[i / 2], 0, i % 2 ? 0x3232 : 0x1010) ^ 0x8000;
        }
}

// multiply adds the products of a plane's words by the columns to the sums of their chains. Both halves of the unit take turns:
// a product waits for the one before it in its chain.
__device__ __forceinline__ void multiply(float (&sums)[CHAINS][NT][4], const u32 (&plane)[4], const Columns& x) {
    const u32 one = BF16 ? 0x3f803f80 : 0x3c003c00;
    const u32 ones[4] = {one, one, one, one};
#pragma unroll
    for (u32 c = 0; c < 4; c++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 i = 4 * half + c;  // of the eight times 32 columns
            // Of each four columns a bit chooses among the first two, and one among the others.
            const u32 pattern = select<0x55555555>(i % 2 ? plane[i / 2] >> 1 : plane[i / 2], 0x88888888);
#pragma unroll
            for (u32 t = 0; t < NT; t++) {
                mma_sparse<0>(sums[i * CHAINS / 8][t], ones, x.b[2 * i][t], pattern);
                mma_sparse<1>(sums[i * CHAINS / 8][t], ones, x.b[2 * i + 1][t], pattern);
            }
        }
}

// ---- sums ----

// totals_of returns the sums of a chain's columns of X, for a lane's two rows of it.
__device__ __forceinline__ Floats2& totals_of(u32 chain, u32 t, u32 column) {
    return *(Floats2*)(shared + RINGS + threadIdx.x / 32 * TOTALS + ((chain * NT + t) * 4 + column) * 8);
}

// fill_totals makes those of a unit, as products by a plane of ones.
__device__ __forceinline__ void fill_totals(const Warp& w, const Columns& x) {
    float all[CHAINS][NT][4] = {};
    const u32 set[4] = {~0u, ~0u, ~0u, ~0u};
    multiply(all, set, x);
    __syncwarp();  // the last unit's are read
    if (w.lane < 4)
#pragma unroll
        for (u32 c = 0; c < CHAINS; c++)
#pragma unroll
            for (u32 t = 0; t < NT; t++) totals_of(c, t, w.lane) = {{all[c][t][0], all[c][t][1]}};
    __syncwarp();
}

// factors_of returns the factors of a plane for the lane's rows g and g + 8, in a record.
__device__ __forceinline__ void factors_of(float (&f)[2], const u8* record, u32 group, u32 plane, u32 g) {
    const u8* at = record + BITS * PLANE_BYTES + ((group * (BITS + 1) + plane) * 8 + g) * 2 * FACTOR_SIZE;
    if (SCALE == 3) {
        const Words2 v = *(const Words2*)at;
        f[0] = f32_of_bits(v.w[0]);
        f[1] = f32_of_bits(v.w[1]);
    } else {
        const u32 v = *(const u32*)at;
        f[0] = SCALE == 1 ? f32_of_f16(v) : f32_of_bits(v << 16);
        f[1] = SCALE == 1 ? f32_of_f16(v >> 16) : f32_of_bits(v & 0xffff0000);
    }
}

// multiply_unit adds the products of a record to sums.
__device__ __forceinline__ void multiply_unit(float (&total)[NT][4], const u8* record, const Warp& w, const Columns& x) {
    const u32 g = w.lane / 4;
#pragma unroll
    for (u32 i = 0; i < BITS; i++) {
        u32 plane[4];
        float sums[CHAINS][NT][4] = {};
        const Words4 v = *(const Words4*)(record + i * PLANE_BYTES + w.lane * 16);
#pragma unroll
        for (u32 j = 0; j < 4; j++) plane[j] = v.w[j];
        multiply(sums, plane, x);
#pragma unroll
        for (u32 c = 0; c < CHAINS; c++) {
            float f[2];
            factors_of(f, record, c * GROUPS / CHAINS, i, g);
#pragma unroll
            for (u32 t = 0; t < NT; t++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) total[t][j] = fmaf(sums[c][t][j], f[j / 2], total[t][j]);
        }
    }
#pragma unroll
    for (u32 c = 0; c < CHAINS; c++) {
        float z[2];
        factors_of(z, record, c * GROUPS / CHAINS, BITS, g);
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            const Floats2 of = totals_of(c, t, w.lane % 4);
#pragma unroll
            for (u32 j = 0; j < 4; j++) total[t][j] = fmaf(of.f[j % 2], z[j / 2], total[t][j]);
        }
    }
}

// slot returns where pair q of rows of X lies for a tile of a run and a slice; the eight values of g follow, turned so that four
// neighbours in q do not share banks.
__device__ __forceinline__ u32 slot(const Params& p, u32 tile, u32 slice, u32 q, u32 g) {
    return SLOTS + ((tile * p.slices + slice) * p.pairs + q) * 128 + (g + 2 * q) % 8 * 16;
}

// finish sums the slots of a run and writes Y.
__device__ __forceinline__ void finish(const Params& p, const Warp& w, u32 first) {
    const u32 tiles = min(p.run, w.tiles - first), slices = min(p.slices, p.units);
    __syncthreads();
    for (u32 i = threadIdx.x; i < tiles * p.pairs * 8; i += THREADS) {
        const u32 g = i % 8, tile = i / 8 / p.pairs, q = i / 8 % p.pairs;
        float v[4] = {0, 0, 0, 0};
        for (u32 s = 0; s < slices; s++) {
            const Floats4 part = *(const Floats4*)(shared + slot(p, tile, s, q, g));
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[j] += part.f[j];
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 row = (w.tile0 + first + tile) * 16 + g + j / 2 * 8, m = 2 * q + j % 2;
            if (row < p.n && m < p.m) p.y[(u64)m * p.n + row] = rounded_of(v[j] + (p.bias ? float_of(p.bias[row]) : 0.0f));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqplanes(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    Cursor ahead = {};
    begin(ahead, p, w);
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) fetch(ahead, p, w);
    wait_previous();

    Columns x;
    u32 stage = 0;
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 tiles = tiles_of(p, w, first);
        for (u32 step = 0; step < w.steps && tiles; step++) {
            load_columns(x, p, w, step);
            fill_totals(w, x);
            for (u32 i = 0; i < tiles; i++) {
                wait_copies<STAGES - 2>();
                __syncwarp();  // all lanes' copies are there, and all have read the stage that is filled next
                fetch(ahead, p, w);
                float total[NT][4] = {};
                multiply_unit(total, shared + (w.ring - shared_address(shared)) + stage * RECORD, w, x);
                if (++stage == STAGES) stage = 0;
#pragma unroll
                for (u32 t = 0; t < NT; t++) {
                    const u32 q = 4 * t + w.lane % 4;
                    if (q >= p.pairs) continue;
                    Floats4* to = (Floats4*)(shared + slot(p, w.team + i * p.teams, w.slice, q, w.lane / 4));
#pragma unroll
                    for (u32 j = 0; j < 4; j++) to->f[j] = step ? to->f[j] + total[t][j] : total[t][j];
                }
            }
        }
        finish(p, w, first);
        if (first + p.run < w.tiles) __syncthreads();  // before the slots are written again
    }
    wait_copies<0>();
}

// bcqread is the read-only twin: the same grid and copies, and nothing done with them.
extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqread(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    Cursor ahead = {};
    begin(ahead, p, w);
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) fetch(ahead, p, w);
    wait_previous();
    while (ahead.more) {
        wait_copies<STAGES - 2>();
        fetch(ahead, p, w);
    }
    wait_copies<0>();
}
