// Attention of many queries of a text, whose scores stay in registers (FlashAttention-2, arXiv 2307.08691). The host sets
// DIM, the elements of a head that there is room for, a multiple of 16, KEYS, the keys of a tile, one of 32, and WARPS, 4 or 8.

constexpr u32 THREADS = 32 * WARPS;
constexpr u32 STRIPS = DIM <= 128 ? 2 : 1;  // of 16 queries, that a warp has: as many as registers hold sums of
constexpr u32 QUERIES = 16 * STRIPS * WARPS;
constexpr u32 PITCH = 2 * DIM + 16;  // bytes: of eight rows, what lies at the same place in each is in different banks
constexpr u32 TILE = KEYS * PITCH;   // bytes

constexpr float LOG2_E = 1.442695041f;
constexpr float NOTHING = -1e30f;  // is below all scores, but finite

// A row's exponentials are beside a score that was the largest once, and is not RISE or more, as a power of 2, below the one
// that is: what has been added up seldom has to shrink.
constexpr float RISE = 8;

// fetch has rows copied to shared memory, PITCH apart there, with zeros beyond count rows and dim elements.
template <u32 ROWS>
__device__ __forceinline__ void fetch(u32 to, const Act* from, u32 pitch, u32 count, u32 dim) {
#pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * (DIM / EACH); i += THREADS) {
        const u32 row = i / (DIM / EACH), column = i % (DIM / EACH) * EACH;
        const bool there = row < count && column < dim;
        copy_async(to + row * PITCH + column * 2, from + (there ? row * pitch + column : 0), there ? 16 : 0);
    }
}

// of_quad combines what the four lanes have that share a row.
template <class Op>
__device__ __forceinline__ float of_quad(float v, Op op) {
    v = op(v, __shfl_xor_sync(0xffffffff, v, 1));
    return op(v, __shfl_xor_sync(0xffffffff, v, 2));
}

// flash is the attention of head blockIdx.x of the queries [rows][heads][dim] of a text, the first of which comes after so many
// tokens, over keys and values [positions]: those of a head are stride apart, and pitch from one position to the next. A block
// has QUERIES queries, and takes keys a tile at a time, from multiples of KEYS on, so that the numbers of a query do not depend on
// which others it is asked with. dim is a multiple of 8. A window and a cap of 0 are none; sinks [heads], a score
// of each row besides its own, may be null. out may be q. Where prepared is not null it is written in place of out, as prepared.cuh
// has it: heads * dim is a multiple of 128 then, and dim of 32.
extern "C" __global__ void __launch_bounds__(THREADS, 8 / WARPS)
flash(Act* out, const Act* q, const Act* keys, const Act* values, u32 rows, u32 heads, u32 group, u32 dim, u32 pitch, u64 stride,
      u32 before, u32 window, const float* sinks, float scale, float cap, u8* prepared) {
    begin();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
    const u32 query = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // the block's first: those that see the most begin first
    const u32 end = before + min(query + QUERIES, rows);       // of the keys that any sees
    const u32 low = window && before + query + 1 > window ? (before + query + 1 - window) / KEYS * KEYS : 0;
    const u32 mine = 16 * STRIPS * warp, first = before + query + mine, last = first + 16 * STRIPS - 1;  // the warp's own
    const u64 row = (u64)heads * dim;
    q += query * row + (u64)head * dim;
    keys += head / group * stride;
    values += head / group * stride;

    const u32 at_q = shared_address(shared), at_k = at_q + QUERIES * PITCH, at_v = at_k + 2 * TILE;
    fetch<QUERIES>(at_q, q, (u32)row, rows - query, dim);
    fetch<KEYS>(at_k, keys + (u64)low * pitch, pitch, end - low, dim);
    fetch<KEYS>(at_v, values + (u64)low * pitch, pitch, end - low, dim);
    end_copies();

    // Where a lane's rows lie of the tiles that it loads: of queries and values two below two others, of keys beside them.
    const u32 below = lane % 16 * PITCH + lane / 16 * 16, beside = (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    const float unit = cap > 0 ? 1 : scale * LOG2_E;  // what scores are multiplied by to be exponents of 2
    float o[STRIPS][DIM / 8][4], top[STRIPS][2], sum[STRIPS][2];
#pragma unroll
    for (u32 m = 0; m < STRIPS; m++) {
#pragma unroll
        for (u32 n = 0; n < DIM / 8; n++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) o[m][n][j] = 0;
#pragma unroll
        for (u32 h = 0; h < 2; h++) top[m][h] = NOTHING, sum[m][h] = 0;
    }
    u32 stage = 0;
    for (u32 from = low; from < end; from += KEYS, stage ^= 1) {
        wait_copies<0>();
        __syncthreads();  // the tile is there, and no one reads the one before
        if (const u32 next = from + KEYS; next < end) {
            fetch<KEYS>(at_k + (stage ^ 1) * TILE, keys + (u64)next * pitch, pitch, end - next, dim);
            fetch<KEYS>(at_v + (stage ^ 1) * TILE, values + (u64)next * pitch, pitch, end - next, dim);
            end_copies();
        }
        if (query + mine >= rows || from > last || (window && from + KEYS + window <= first + 1)) continue;  // nothing is seen

        float s[STRIPS][KEYS / 8][4];
#pragma unroll
        for (u32 m = 0; m < STRIPS; m++)
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) s[m][n][j] = 0;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++) {
            u32 a[STRIPS][4];
#pragma unroll
            for (u32 m = 0; m < STRIPS; m++) load_tiles(a[m], at_q + (mine + 16 * m) * PITCH + below + 32 * k);
#pragma unroll
            for (u32 n = 0; n < KEYS / 16; n++) {
                u32 b[4];
                load_tiles(b, at_k + stage * TILE + 16 * n * PITCH + beside + 32 * k);
#pragma unroll
                for (u32 m = 0; m < STRIPS; m++) {
                    mma(s[m][2 * n], a[m], b[0], b[1]);
                    mma(s[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }

        if (cap > 0) {
            const float inner = scale / cap * (2 * LOG2_E), outer = cap * LOG2_E;
#pragma unroll
            for (u32 m = 0; m < STRIPS; m++)
#pragma unroll
                for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++)  // tanh x = 1 − 2/(1 + e²ˣ)
                        s[m][n][j] = outer - 2 * outer * reciprocal(1 + power(s[m][n][j] * inner));
        }
        if (from + KEYS > first + 1 || (window && from + window <= last)) {
#pragma unroll
            for (u32 m = 0; m < STRIPS; m++)
#pragma unroll
                for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        const u32 position = first + 16 * m + lane / 4 + j / 2 * 8, key = from + 8 * n + lane % 4 * 2 + j % 2;
                        if (key > position || (window && key + window <= position)) s[m][n][j] = -__int_as_float(0x7f800000);
                    }
        }
#pragma unroll
        for (u32 m = 0; m < STRIPS; m++)
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                float above = top[m][h];
#pragma unroll
                for (u32 n = 0; n < KEYS / 8; n++) above = fmaxf(above, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
                above = of_quad(above, Max());
                if ((above - top[m][h]) * unit > RISE) {
                    const float shrink = power((top[m][h] - above) * unit);
                    top[m][h] = above;
                    sum[m][h] *= shrink;
#pragma unroll
                    for (u32 n = 0; n < DIM / 8; n++) o[m][n][2 * h] *= shrink, o[m][n][2 * h + 1] *= shrink;
                }
                const float less = -top[m][h] * unit;
#pragma unroll
                for (u32 n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (u32 j = 2 * h; j < 2 * h + 2; j++) {
                        s[m][n][j] = power(fmaf(s[m][n][j], unit, less));
                        sum[m][h] += s[m][n][j];
                    }
            }

#pragma unroll
        for (u32 k = 0; k < KEYS / 16; k++) {
            u32 a[STRIPS][4];
#pragma unroll
            for (u32 m = 0; m < STRIPS; m++)
#pragma unroll
                for (u32 r = 0; r < 4; r++) a[m][r] = pair(s[m][2 * k + r / 2][r % 2 * 2], s[m][2 * k + r / 2][r % 2 * 2 + 1]);
#pragma unroll
            for (u32 n = 0; n < DIM / 16; n++) {
                u32 b[4];
                load_tiles_turned(b, at_v + stage * TILE + 16 * k * PITCH + below + 32 * n);
#pragma unroll
                for (u32 m = 0; m < STRIPS; m++) {
                    mma(o[m][2 * n], a[m], b[0], b[1]);
                    mma(o[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    // The results lie where the warp's queries were until they are written.
    u8* own = shared + mine * PITCH;
    __syncwarp();
#pragma unroll
    for (u32 m = 0; m < STRIPS; m++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float all = of_quad(sum[m][h], Sum()), factor = 1;
            if (sinks) {
                const float sink = sinks[head] * LOG2_E, highest = top[m][h] * unit, above = fmaxf(highest, sink);
                factor = power(highest - above);
                all = all * factor + power(sink - above);
            }
            factor /= all;
#pragma unroll
            for (u32 n = 0; n < DIM / 8; n++)
                *(u32*)(own + (16 * m + 8 * h + lane / 4) * PITCH + n * 16 + lane % 4 * 4) = pair(o[m][n][2 * h] * factor, o[m][n][2 * h + 1] * factor);
        }
    __syncwarp();
    if (DIM % 32 == 0 && prepared) {
#pragma unroll 1
        for (u32 i = lane; i < 16 * STRIPS * (DIM / EACH); i += 32) {
            const u32 r = i / (DIM / EACH), column = i % (DIM / EACH) * EACH;
            Prepared x = *(const Prepared*)(own + r * PITCH + column * 2);
            prepare(prepared, (rows + 7) / 8, query + mine + r, head * dim + column, x.w, query + mine + r < rows && column < dim);
        }
        return;
    }
#pragma unroll
    for (u32 i = lane; i < 16 * STRIPS * (DIM / EACH); i += 32) {
        const u32 r = i / (DIM / EACH), column = i % (DIM / EACH) * EACH;
        if (query + mine + r < rows && column < dim)
            *(Pack<Act>*)(out + (query + mine + r) * row + head * dim + column) = *(const Pack<Act>*)(own + r * PITCH + column * 2);
    }
}
