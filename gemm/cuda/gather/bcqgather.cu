// Y = X·Ŵᵀ for Ŵ of binary codes and one or two rows of X by tables, as LUT-GEMM has it (Park et al., 2024): eight columns of X
// have a table in shared memory of what their 256 sums with either sign are, and a byte of a plane looks one up. The layout
// is that of repack.BCQGather.
//
// A half table has the sums in which the last column is taken off alone, for the others are theirs with the sign turned. The
// layout stores the byte of such a one with its other bits turned, so that these are the entry and the top bit is the sign.
//
// Entries are float16, after a power of two that brings the largest of them below 2^14, and are added in float32. A block has the
// tables of a slice of K and a share of the tiles of 32 rows, of which a lane has one; a warp has every WARPS-th 128 columns of the slice. Sums of
// warps are added in order, and so are those of slices, by the block that is the last to finish its tiles.
//
// Set by the host: BITS, GROUP, BF16 and WARPS as bcqplanes.cu has them, and
//   HALF   1 for half tables, 0 for full ones
//   ROWS   of X, 1 or 2
// Factors are float16.

constexpr u32 THREADS = WARPS * 32;
constexpr u32 ENTRIES = HALF ? 128 : 256;
constexpr u32 TABLE_BYTES = ENTRIES * 2 * ROWS;                      // of eight columns
constexpr u32 SETS = GROUP == 0 || GROUP >= 128 ? 1 : 128 / GROUP;  // of factors of 128 columns
constexpr u32 PIECES = 16 / SETS;                                   // tables of a set
constexpr u32 CHUNK = BITS * 512;                                   // bytes of 128 columns of a tile

struct Gather {
    const u8* planes;   // [tiles][chunks][BITS][32][16]
    const u16* factors; // [tiles][sets][BITS + 1][32]
    const u8* x;        // [ROWS][k]
    u16* y;             // [ROWS][n]
    const u16* bias;    // [n] or null
    float* parts;       // [slices][ROWS][n]
    u32* done;          // by blockIdx.x: slices whose sums are there, 0 between launches
    u32 n, k;
    u32 chunks, slice_chunks;  // of 128 columns, and those of a slice
    u32 tiles, sets;           // of a row
    u32 run;                   // tiles that are summed at a time
    u32 unused;
};

extern __shared__ __align__(128) u8 shared[];

__device__ __forceinline__ float float_of(u16 h) { return BF16 ? f32_of_bits((u32)h << 16) : f32_of_f16(h); }
__device__ __forceinline__ u16 rounded_of(float f) { return BF16 ? bf16_of_f32(f) : f16_of_f32(f); }

// Codes is what a lane has of 128 columns of a row.
struct Codes {
    u32 w[BITS][4];
};

__device__ __forceinline__ void load_codes(Codes& c, const Gather& p, u32 tile, u32 chunk, u32 lane) {
    const u8* at = p.planes + ((u64)tile * p.chunks + chunk) * CHUNK + lane * 16;
#pragma unroll
    for (u32 i = 0; i < BITS; i++) load_stream(c.w[i], at + i * 512);
}

// eight returns columns of a row of X, zeros behind the last.
__device__ __forceinline__ void eight(float (&v)[8], const Gather& p, u32 row, u32 col) {
    u32 w[4] = {0, 0, 0, 0};
    if (col < p.k) load_cached(w, p.x + ((u64)row * p.k + col) * 2);
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] = float_of(w[i / 2] >> (i % 2 * 16));
}

// look_up adds to sums the entries that a byte, at a bit of a word, looks up in the table at an address.
__device__ __forceinline__ void look_up(float (&sums)[ROWS], u32 word, u32 byte, const u8* table) {
    constexpr u32 SHIFT = ROWS == 2 ? 2 : 1;  // of an entry's bytes
    const u32 mask = (ENTRIES - 1) << SHIFT;
    const u32 offset = (byte == 0 ? word << SHIFT : word >> (8 * byte - SHIFT)) & mask;
    const u32 sign = HALF ? word << (24 - 8 * byte) & 0x80000000 : 0;
    if (ROWS == 2) {
        const u32 v = *(const u32*)(table + offset);
        sums[0] += f32_of_bits(__float_as_uint(f32_of_f16(v)) ^ sign);
        sums[ROWS - 1] += f32_of_bits(__float_as_uint(f32_of_f16(v >> 16)) ^ sign);
    } else {
        const u32 v = *(const u16*)(table + offset);
        sums[0] += f32_of_bits(__float_as_uint(f32_of_f16(v)) ^ sign);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqgather(const __grid_constant__ Gather p) {
    launch_next();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 chunk0 = blockIdx.y * p.slice_chunks, chunks = min(p.slice_chunks, p.chunks - chunk0);
    const u32 each = p.tiles / gridDim.x, over = p.tiles % gridDim.x;
    const u32 tile0 = blockIdx.x * each + min(blockIdx.x, over), tiles = each + (blockIdx.x < over);
    const u32 tables = p.slice_chunks * 16 * TABLE_BYTES;  // and behind them
    float* const totals = (float*)(shared + tables);       // of X, [slice_chunks·SETS][ROWS]
    u32* const largest = (u32*)(totals + p.slice_chunks * SETS * ROWS);
    float* const slots = (float*)(largest + 4);  // [run][WARPS][ROWS][32]

    Codes codes;
    if (warp < chunks) load_codes(codes, p, tile0, chunk0 + warp, lane);
    if (threadIdx.x == 0) *largest = 0;
    __syncthreads();
    wait_previous();

    // The largest sum there can be, of any table, decides the power of two.
    u32 most = 0;
    for (u32 i = threadIdx.x; i < chunks * 16 * ROWS; i += THREADS) {
        float v[8], sum = 0;
        eight(v, p, i / (chunks * 16), chunk0 * 128 + i % (chunks * 16) * 8);
#pragma unroll
        for (u32 j = 0; j < 8; j++) sum += fabsf(v[j]);
        most = max(most, __float_as_uint(sum));
    }
    atomicMax(largest, most);
    __syncthreads();
    const int exponent = max((int)(*largest >> 23) - 127 + 1, -100);  // the largest is below 2 to it
    const float up = f32_of_bits((u32)(127 + min(14 - exponent, 100)) << 23), down = f32_of_bits((u32)(127 - min(14 - exponent, 100)) << 23);

    // A warp makes a table; a lane the entries of which it is the bits above the lowest.
    constexpr u32 OWN = ENTRIES / 32;
    for (u32 i = warp; i < chunks * 16; i += WARPS) {
        float sums[ROWS][OWN];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float v[8], high = 0;
            eight(v, p, r, chunk0 * 128 + i * 8);
#pragma unroll
            for (u32 j = 0; j < 8; j++) v[j] *= up;
            constexpr u32 LOW = HALF ? 2 : 3;  // bits of an entry that a lane has all of
#pragma unroll
            for (u32 j = LOW; j < 8; j++) high += lane >> (j - LOW) & 1 ? v[j] : -v[j];
#pragma unroll
            for (u32 e = 0; e < OWN; e++) {
                float sum = high;
#pragma unroll
                for (u32 j = 0; j < LOW; j++) sum += e >> j & 1 ? v[j] : -v[j];
                sums[r][e] = sum;
            }
        }
        u32 packed[OWN * ROWS / 2];
#pragma unroll
        for (u32 e = 0; e < OWN * ROWS / 2; e++)
            packed[e] = ROWS == 2 ? f16x2_of_f32(sums[0][e], sums[ROWS - 1][e]) : f16x2_of_f32(sums[0][2 * e % OWN], sums[0][(2 * e + 1) % OWN]);
        u32* to = (u32*)(shared + i * TABLE_BYTES) + lane * (OWN * ROWS / 2);
#pragma unroll
        for (u32 e = 0; e < OWN * ROWS / 2; e++) to[e] = packed[e];
    }
    // The sum of the columns of each set, which the offset is multiplied by.
    for (u32 i = threadIdx.x; i < chunks * SETS * ROWS; i += THREADS) {
        float sum = 0;
        for (u32 j = 0; j < PIECES; j++) {
            float v[8];
            eight(v, p, i % ROWS, chunk0 * 128 + (i / ROWS * PIECES + j) * 8);
#pragma unroll
            for (u32 l = 0; l < 8; l++) sum += v[l];
        }
        totals[i] = sum * up;
    }
    __syncthreads();

    for (u32 first = 0; first < tiles; first += p.run) {
        const u32 run = min(p.run, tiles - first);
        for (u32 t = 0; t < run; t++) {
            float total[ROWS] = {};
            const u32 tile = tile0 + first + t;
            for (u32 c = warp; c < chunks; c += WARPS) {
                const Codes now = codes;
                u32 next = tile, at = c + WARPS;
                if (at >= chunks) next++, at = warp;
                if (next < tile0 + tiles) load_codes(codes, p, next, chunk0 + at, lane);
                const u32 set0 = GROUP == 0 ? 0 : (chunk0 + c) * 128 / (GROUP == 0 ? 1 : GROUP);
                const u8* table = shared + c * 16 * TABLE_BYTES;
                const u16* factors = p.factors + ((u64)tile * p.sets + set0) * ((BITS + 1) * 32) + lane;
#pragma unroll
                for (u32 s = 0; s < SETS; s++) {
#pragma unroll
                    for (u32 i = 0; i < BITS; i++) {
                        float sums[ROWS] = {};
#pragma unroll
                        for (u32 b = s * PIECES; b < (s + 1) * PIECES; b++) look_up(sums, now.w[i][b / 4], b % 4, table + b * TABLE_BYTES);
                        const float alpha = f32_of_f16(factors[(s * (BITS + 1) + i) * 32]);
#pragma unroll
                        for (u32 r = 0; r < ROWS; r++) total[r] = fmaf(alpha, sums[r], total[r]);
                    }
                    const float z = f32_of_f16(factors[(s * (BITS + 1) + BITS) * 32]);
#pragma unroll
                    for (u32 r = 0; r < ROWS; r++) total[r] = fmaf(z, totals[(c * SETS + s) * ROWS + r], total[r]);
                }
            }
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) slots[((t * WARPS + warp) * ROWS + r) * 32 + lane] = total[r];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < run * ROWS * 32; i += THREADS) {
            const u32 t = i / (ROWS * 32), r = i / 32 % ROWS, row = (tile0 + first + t) * 32 + i % 32;
            float sum = 0;
            for (u32 w = 0; w < min((u32)WARPS, chunks); w++) sum += slots[((t * WARPS + w) * ROWS + r) * 32 + i % 32];
            if (row >= p.n) continue;
            sum *= down;
            if (gridDim.y == 1)
                p.y[(u64)r * p.n + row] = rounded_of(sum + (p.bias ? float_of(p.bias[row]) : 0.0f));
            else
                p.parts[((u64)blockIdx.y * ROWS + r) * p.n + row] = sum;
        }
        __syncthreads();
    }
    if (gridDim.y == 1) return;

    // The last of the slices' blocks adds them.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *largest = atomicAdd(p.done + blockIdx.x, 1u);
    __syncthreads();
    if (*largest != gridDim.y - 1) return;
    __threadfence();
    for (u32 i = threadIdx.x; i < tiles * 32 * ROWS; i += THREADS) {
        const u32 r = i / (tiles * 32), row = tile0 * 32 + i % (tiles * 32);
        if (row >= p.n) continue;
        float sum = p.bias ? float_of(p.bias[row]) : 0.0f;
        for (u32 s = 0; s < gridDim.y; s++) sum += ((const volatile float*)p.parts)[((u64)s * ROWS + r) * p.n + row];
        p.y[(u64)r * p.n + row] = rounded_of(sum);
    }
    if (threadIdx.x == 0) p.done[blockIdx.x] = 0;
}

// bcqgatherread is the read-only twin: the same grid and loads, and nothing done with them.
extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqgatherread(const __grid_constant__ Gather p) {
    launch_next();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 chunk0 = blockIdx.y * p.slice_chunks, chunks = min(p.slice_chunks, p.chunks - chunk0);
    const u32 each = p.tiles / gridDim.x, over = p.tiles % gridDim.x;
    const u32 tile0 = blockIdx.x * each + min(blockIdx.x, over), tiles = each + (blockIdx.x < over);
    wait_previous();
    u32 sink = 0;
    for (u32 t = tile0; t < tile0 + tiles; t++)
        for (u32 c = warp; c < chunks; c += WARPS) {
            Codes codes;
            load_codes(codes, p, t, chunk0 + c, lane);
#pragma unroll
            for (u32 i = 0; i < BITS; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) sink ^= codes.w[i][j];
            const u32 set0 = GROUP == 0 ? 0 : (chunk0 + c) * 128 / (GROUP == 0 ? 1 : GROUP);
            const u16* factors = p.factors + ((u64)t * p.sets + set0) * ((BITS + 1) * 32) + lane;
#pragma unroll
            for (u32 i = 0; i < SETS * (BITS + 1); i++) sink ^= factors[i * 32];
        }
    // Never true for the codes of a real matrix; the compiler cannot know.
    if (sink == 0x9e3779b9 && p.tiles == 0) p.y[threadIdx.x] = (u16)sink;
}
