// What the kernels that multiply by binary codes as they are packed have in common: how a matrix in the layout of
// repack.BCQTiles is divided among blocks and warps, how it comes to shared memory, and what becomes of sums.
//
// Work. As in lutgemm.cu a block owns whole tiles, a warp the units of a slice, whose columns of X it holds in registers while it runs down
// the tiles. Codes and factors come by asynchronous copies through a ring of the warp's own in shared memory, whose port
// has little else to do here, and each lane reads what its warp copied itself.
//
// Set by the host:
//   BITS     planes, 1 to 8
//   GROUP    32, 64, 128, 256, or 0 for one set of factors a row
//   SCALE    lut.ScaleType of the factors: 1, 2 or 3
//   BF16     1 for bfloat16 X, 0 for float16
//   STAGES   of a warp's ring, each for a unit of a tile
//   WARPS    of a block
//   BESIDE   bytes of shared memory that a warp has for itself, beside its ring

constexpr u32 THREADS = WARPS * 32;
constexpr u32 PLANE_BYTES = 512;
constexpr u32 GROUPS = GROUP == 0 || GROUP == 256 ? 1 : 256 / GROUP;  // of a unit
constexpr u32 CHAINS = GROUPS == 1 ? 2 : GROUPS;                      // of mmas that are added up, of a plane and a unit
constexpr u32 FACTOR_SIZE = SCALE == 3 ? 4 : 2;
constexpr u32 SET_BYTES = (BITS + 1) * 16 * FACTOR_SIZE;
constexpr u32 FACTOR_BYTES = GROUPS * SET_BYTES;
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
    u32 m;
    u32 parts;        // that the sums of a tile and a slice of K have, of 128 bytes each
    u32 slices_log;   // of slices, a power of two
};

extern __shared__ __align__(128) u8 shared[];

// What lies in shared memory: the rings of all warps, what they have beside, and the slots.
constexpr u32 RINGS = WARPS * STAGES * RECORD;
constexpr u32 SLOTS = RINGS + WARPS * BESIDE;

// copy_codes copies 16 bytes of the matrix, as copy_async does, before the grids in front have ended too.
__device__ __forceinline__ void copy_codes(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

struct alignas(8) Floats2 { float f[2]; };

struct Warp {
    u32 lane, slice, team;
    u32 tile0, tiles;  // of the block
    u32 steps;         // units
    u32 ring, beside;  // of shared memory, where those begin
    u32 copies;        // the address in its own window of what the lane copies to where that begins
};

__device__ __forceinline__ Warp warp_of(const Params& p) {
    Warp w;
    const u32 warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.team = warp >> p.slices_log;
    w.slice = warp - p.slices * w.team;
    w.tile0 = blockIdx.x * p.tiles_each + min(blockIdx.x, p.tiles_over);
    w.tiles = p.tiles_each + (blockIdx.x < p.tiles_over);
    w.steps = w.slice < p.units ? (p.units - w.slice + p.slices - 1) >> p.slices_log : 0;
    w.ring = warp * (STAGES * RECORD);
    w.beside = RINGS + warp * BESIDE;
    w.copies = opaque(shared_address(shared) + w.lane * 16);
    return w;
}

// tiles_of returns how many tiles of the run at first fall to the warp.
__device__ __forceinline__ u32 tiles_of(const Params& p, const Warp& w, u32 first) {
    const u32 run = min(p.run, w.tiles - first);
    return run > w.team ? (run - w.team + p.teams - 1) * p.slices / WARPS : 0;  // by teams
}

// Cursor goes through the units that a warp multiplies: the tiles of a run, for each step of K, for each run.
struct Cursor {
    u32 first, step;  // of the run, of K
    u32 tiles, left;  // of the warp: in the run; that it has yet to go through in the step, none at the end
    const u8* planes;
    const u8* factors;  // from what the lane copies on
};

// begin goes to the first tile of a step, or of the first run from this one on that has any for the warp.
__device__ __forceinline__ void begin(Cursor& c, const Params& p, const Warp& w) {
    for (; c.step == 0 && c.first < w.tiles && w.steps; c.first += p.run)
        if ((c.tiles = tiles_of(p, w, c.first))) break;
    c.left = c.first < w.tiles && w.steps ? c.tiles : 0;
    const u32 tile = w.tile0 + c.first + w.team;
    const u64 unit = (u64)tile * p.units + p.slices * c.step + w.slice;
    c.planes = p.planes + unit * (BITS * PLANE_BYTES) + w.lane * 16;
    c.factors = p.factors + (GROUP ? unit : tile) * FACTOR_BYTES + w.lane * 16;
}

// fetch begins the copies of the unit that the cursor is at to a stage of the ring, and moves it on.
__device__ __forceinline__ void fetch(Cursor& c, const Params& p, const Warp& w, u32 stage) {
    if (c.left) {
        const u32 to = w.copies + stage;
#pragma unroll
        for (u32 i = 0; i < BITS; i++) copy_codes(to + i * PLANE_BYTES, c.planes + i * PLANE_BYTES);
#pragma unroll
        for (u32 i = 0; i < FACTOR_BYTES; i += 512)
            if (i + 512 <= FACTOR_BYTES || w.lane * 16 < FACTOR_BYTES - i) copy_codes(to + BITS * PLANE_BYTES + i, c.factors + i);
        c.planes += (u64)(p.teams * p.units) * (BITS * PLANE_BYTES);
        c.factors += (u64)(GROUP ? p.teams * p.units : p.teams) * FACTOR_BYTES;
        if (--c.left == 0) {
            if (++c.step == w.steps) {
                c.step = 0;
                c.first += p.run;
            }
            begin(c, p, w);
        }
    }
    end_copies();
}

// Ring is where a warp is in its ring, of which it fills again the stage that it has read last.
struct Ring {
    u32 stage, last;
};

__device__ __forceinline__ Ring ring_of(const Warp& w) { return {w.ring, w.ring + (STAGES - 1) * RECORD}; }

// fill begins copies to stages from FIRST on, up to END; all but the last are filled before the first is read.
template <u32 FIRST, u32 END>
__device__ __forceinline__ void fill(Cursor& c, const Params& p, const Warp& w) {
#pragma unroll 1  // less to read of the kernel before it begins
    for (u32 s = FIRST; s < END; s++) fetch(c, p, w, w.ring + s * RECORD);
}

// next moves on by a stage.
__device__ __forceinline__ void next(Ring& r, const Warp& w) {
    r.last = r.stage;
    r.stage = r.stage == w.ring + (STAGES - 1) * RECORD ? w.ring : r.stage + RECORD;
}

// ---- operands ----

__device__ __forceinline__ float float_of(u16 h) { return BF16 ? f32_of_bits((u32)h << 16) : f32_of_f16(h); }
__device__ __forceinline__ u16 rounded_of(float f) { return BF16 ? bf16_of_f32(f) : f16_of_f32(f); }

// pattern_of returns the pattern of mma.sp for 32 columns of a word's 64: of each four numbers of X a bit chooses among the first two,
// and one among the others.
__device__ __forceinline__ u32 pattern_of(u32 word, u32 half) { return select<0x55555555>(half ? word >> 1 : word, 0x88888888); }

// factors_of returns the factors of a plane for the lane's rows g and g + 8, out of those of a record from its own on.
__device__ __forceinline__ void factors_of(float (&f)[2], const u8* factors, u32 group, u32 plane) {
    const u8* at = factors + group * SET_BYTES + plane * (16 * FACTOR_SIZE);
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

// own_factors returns where in a record those begin that a lane reads.
__device__ __forceinline__ const u8* own_factors(const u8* record, u32 lane) {
    return record + BITS * PLANE_BYTES + lane / 4 * (2 * FACTOR_SIZE);
}

// ---- sums ----

// slot returns where part q of the sums of a tile of a run and a slice lies; 16 bytes for each of the eight values of g follow, turned so that
// four neighbours in q do not share banks.
__device__ __forceinline__ u32 slot(const Params& p, u32 tile, u32 slice, u32 q, u32 g) {
    return SLOTS + ((tile * p.slices + slice) * p.parts + q) * 128 + (g + 2 * q) % 8 * 16;
}

// write writes the sums of a part for rows row and row + 8 of Ŵ to Y, as the kernel has them.
__device__ __forceinline__ void write(const Params& p, u32 row, u32 q, const float (&v)[4]);

// write_sum rounds a sum to Y.
__device__ __forceinline__ void write_sum(const Params& p, u32 row, u32 m, float sum) {
    if (row < p.n && m < p.m) p.y[(u64)m * p.n + row] = rounded_of(sum + (p.bias ? float_of(p.bias[row]) : 0.0f));
}

// finish sums the slots of a run and writes Y.
__device__ __forceinline__ void finish(const Params& p, const Warp& w, u32 first) {
    const u32 tiles = min(p.run, w.tiles - first), slices = min(p.slices, p.units);
    __syncthreads();
    for (u32 i = threadIdx.x; i < tiles * p.parts * 8; i += THREADS) {
        const u32 g = i % 8, tile = i / 8 / p.parts, q = i / 8 % p.parts;
        float v[4] = {0, 0, 0, 0};
        for (u32 s = 0; s < slices; s++) {
            const Floats4 part = *(const Floats4*)(shared + slot(p, tile, s, q, g));
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[j] += part.f[j];
        }
        write(p, (w.tile0 + first + tile) * 16 + g, q, v);
    }
}

// bcqread is the read-only twin: the same grid and copies, and nothing done with them.
extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqread(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    Cursor ahead = {};
    begin(ahead, p, w);
    fill<0, STAGES - 1>(ahead, p, w);
    wait_previous();
    Ring ring = ring_of(w);
    while (ahead.left) {
        wait_copies<STAGES - 2>();
        fetch(ahead, p, w, ring.last);
        next(ring, w);
    }
    wait_copies<0>();
}
