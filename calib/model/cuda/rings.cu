// Rounding of rings of weights, a block of columns at a time, with the error of each fed into those after it: see packages
// quantize/gptq and formats/weight/trellis. What the weights of a ring are rounded to is left to trellis.cu.

constexpr u32 THREADS = 256;
constexpr u32 MIXED = 128;  // columns that a Hadamard matrix mixes, where there are as many
constexpr u32 RING = 16;    // columns of a ring

// mixed is the size of the block that the i-th of n columns left is mixed in: blocks are powers of two, the largest first.
__device__ __forceinline__ u32 mixed(u32 i, u32 n) {
    if (n >= MIXED) return MIXED;
    u32 size = MIXED / 2;
    while (size > (i ^ n)) size /= 2;
    return size;
}

// mix multiplies the n columns left of a row, up to MIXED of which a warp has, 4 a lane, by normed Hadamard matrices.
__device__ __forceinline__ void mix(float (&v)[4], u32 n) {
    const u32 lane = threadIdx.x % 32;
    u32 size[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) size[i] = lane * 4 + i < n ? mixed(lane * 4 + i, n) : 1;
#pragma unroll
    for (u32 apart = 1; apart < 4; apart *= 2)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (i & apart || size[i] <= apart) continue;
            const float a = v[i], b = v[i + apart];
            v[i] = a + b;
            v[i + apart] = a - b;
        }
#pragma unroll
    for (u32 apart = 4; apart < MIXED; apart *= 2)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(0xffffffff, v[i], apart / 4);
            if (size[i] > apart) v[i] = lane & (apart / 4) ? other - v[i] : v[i] + other;
        }
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] /= sqrtf((float)size[i]);
}

// rotate_rows writes rows of x [rows, k], each number times its column's factor, and mixed. y may be x. A warp has a block of a row.
extern "C" __global__ void __launch_bounds__(256) rotate_rows(float* y, const float* x, const float* factors, u32 rows, u32 k) {
    const u32 lane = threadIdx.x % 32, across = (k + MIXED - 1) / MIXED;
    const u64 warp = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const u32 row = (u32)(warp / across), from = (u32)(warp % across) * MIXED, n = k - from;
    if (row >= rows) return;
    const u64 at = (u64)row * k + from;
    float v[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 c = lane * 4 + i;
        v[i] = c < n ? x[at + c] * factors[from + c] : 0.0f;
    }
    mix(v, n);
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (lane * 4 + i < n) y[at + lane * 4 + i] = v[i];
}

// rotate_columns does the same to the columns of a matrix [k, k], in place: 32 of them in a block of rows a thread block.
extern "C" __global__ void __launch_bounds__(256) rotate_columns(float* h, const float* factors, u32 k) {
    __shared__ float tile[MIXED][33];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane, from = blockIdx.y * MIXED, n = k - from;
    for (u32 i = warp; i < MIXED; i += THREADS / 32)
        tile[i][lane] = i < n && column < k ? h[(u64)(from + i) * k + column] * factors[from + i] : 0.0f;
    __syncthreads();
    for (u32 c = warp; c < 32; c += THREADS / 32) {
        float v[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) v[i] = tile[lane * 4 + i][c];
        mix(v, n);
#pragma unroll
        for (u32 i = 0; i < 4; i++) tile[lane * 4 + i][c] = v[i];
    }
    __syncthreads();
    for (u32 i = warp; i < MIXED; i += THREADS / 32)
        if (i < n && column < k) h[(u64)(from + i) * k + column] = tile[i][lane];
}

// unit_blocks replaces the columns of A [k, k], which is upper triangular with ones on its diagonal, by such that blocks of RING
// columns have the identity there: a column feeds nothing into others of its block, but the block what it is off by as a whole.
extern "C" __global__ void __launch_bounds__(256) unit_blocks(float* y, const float* a, u32 k) {
    __shared__ float corner[RING][RING];
    const u32 from = blockIdx.y * RING, row = blockIdx.x * THREADS + threadIdx.x, n = k - from < RING ? k - from : RING;
    {
        const u32 i = threadIdx.x / RING, j = threadIdx.x % RING;
        corner[i][j] = i < n && j < n ? a[(u64)(from + i) * k + from + j] : 0.0f;
    }
    __syncthreads();
    if (row >= k) return;
    float v[RING];
#pragma unroll
    for (u32 j = 0; j < RING; j++) v[j] = j < n && row < from ? a[(u64)row * k + from + j] : row == from + j ? 1.0f : 0.0f;
    if (row < from) {
#pragma unroll
        for (u32 j = 0; j < RING; j++)
#pragma unroll
            for (u32 i = 0; i < j; i++) v[j] = fmaf(-v[i], corner[i][j], v[j]);
    }
#pragma unroll
    for (u32 j = 0; j < RING; j++)
        if (j < n) y[(u64)row * k + from + j] = v[j];
}

// A ring's weights come in the order of Viterbi's steps: the i-th is in row and column place[i] >> 8 and & 255 of the ring. Rings go
// down the rows, RING_ROWS each; those that are beyond are zeros.

// ring_steps adds to the columns of value [rows, k] from one on, those of a ring, what errors [rows, k] of columns from group on feed into
// them by A, and writes them over their rows' scales, negated, as viterbi_forward reads them: steps [pairs][size] of two rings.
extern "C" __global__ void __launch_bounds__(256) ring_steps(u16* steps, float* value, const float* errors, const float* a, const float* scales,
                                                             const u32* place, u32 size, u32 height, u32 rows, u32 k, u32 group, u32 from,
                                                             float unit, float limit) {
    const u32 ring = blockIdx.x, i = threadIdx.x;
    if (i >= size) return;
    const u32 row = ring * height + (place[i] >> 8), column = from + (place[i] & 255);
    float w = 0;
    if (row < rows && column < k) {
        float v = value[(u64)row * k + column];
        for (u32 j = group; j < from; j++) v = fmaf(errors[(u64)row * k + j], a[(u64)j * k + column], v);
        value[(u64)row * k + column] = v;
        const float scale = scales[row];
        w = scale != 0 ? fminf(fmaxf(v / scale * unit, -limit), limit) : 0.0f;
    }
    F16 h;
    set(h, -w);
    steps[((u64)(ring / 2) * size + i) * 2 + ring % 2] = h.v;
}

// ring_errors writes what goal [rows, k] is off from what windows [rings][count] stand for, in the columns of a ring, to errors [rows, k].
// table has the values of windows, together of them a step, in a unit.
extern "C" __global__ void __launch_bounds__(256) ring_errors(float* errors, const float* goal, const u16* windows, const u16* table,
                                                              const float* scales, const u32* place, u32 size, u32 together, u32 height,
                                                              u32 rows, u32 k, u32 from, float unit) {
    const u32 ring = blockIdx.x, i = threadIdx.x;
    if (i >= size) return;
    const u32 row = ring * height + (place[i] >> 8), column = from + (place[i] & 255);
    if (row >= rows || column >= k) return;
    const u32 x = windows[(u64)ring * (size / together) + i / together];
    F16 h;
    h.v = table[x * together + i % together];
    errors[(u64)row * k + column] = goal[(u64)row * k + column] - scales[row] * (unit * value(h));
}

// ring_bytes packs the low bits of windows [rings][steps] as bytes of rings [rings][across], in the place of the columns that come from-th
// on, as package trellis does: those of pairs, or with single weights those of the other layout.
extern "C" __global__ void __launch_bounds__(256) ring_bytes(u8* out, const u16* windows, const u32* order, u32 rings, u32 steps, u32 bits,
                                                             u32 pairs, u32 bytes, u32 across, u32 from) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= rings * bytes) return;
    const u32 ring = at / bytes, byte = at % bytes;
    windows += (u64)ring * steps;
    u32 packed = 0;
    for (u32 b = 0; b < 8; b++) {
        if (pairs) {  // whose steps come last first
            const u32 bit = byte * 8 + b;
            packed |= (windows[steps - 1 - bit / bits] >> bit % bits & 1u) << b;
        } else {
            const u32 bit = byte / 4 * 32 + 31 - (byte % 4 * 8 + b);
            packed |= (windows[bit / bits] >> (bits - 1 - bit % bits) & 1u) << b;
        }
    }
    out[((u64)ring * across + order[from] / RING) * bytes + byte] = (u8)packed;
}

// SUMS of a row are those that come from what it is, w, what it aims at, g, what it was with what others fed into it, v, and what it is
// off by, e, so that s = g − e is stored. Those with a metric are of products with A, in squares; of v, by the diagonal of H.
enum { W_SQUARED, OFF_SQUARED, OFF_STORED, STORED_SQUARED, GOAL_SQUARED, ERROR_SQUARED, ERROR_STORED, BY_CHANCE, METRIC_GOAL, METRIC_BOTH, METRIC_ERROR, SUMS };

// ring_sums writes the first eight to y [rows, SUMS].
extern "C" __global__ void __launch_bounds__(256) ring_sums(float* y, const float* w, const float* goal, const float* value, const float* errors,
                                                            const float* diagonal, float factor, u32 k) {
    const u64 row = (u64)blockIdx.x * k;
    float s[8] = {};
    for (u32 i = threadIdx.x; i < k; i += THREADS) {
        const float own = w[row + i], g = goal[row + i], e = errors[row + i], stored = g - e, off = own - stored, chance = value[row + i] - stored;
        s[W_SQUARED] = fmaf(own, own, s[W_SQUARED]);
        s[OFF_SQUARED] = fmaf(off, off, s[OFF_SQUARED]);
        s[OFF_STORED] = fmaf(off, stored, s[OFF_STORED]);
        s[STORED_SQUARED] = fmaf(stored, stored, s[STORED_SQUARED]);
        s[GOAL_SQUARED] = fmaf(g, g, s[GOAL_SQUARED]);
        s[ERROR_SQUARED] = fmaf(e, e, s[ERROR_SQUARED]);
        s[ERROR_STORED] = fmaf(e, stored, s[ERROR_STORED]);
        s[BY_CHANCE] = fmaf(diagonal[i] * factor * chance, chance, s[BY_CHANCE]);
    }
    for (u32 i = 0; i < 8; i++) {
        const float sum = reduce(s[i], Sum());
        if (threadIdx.x == 0) y[blockIdx.x * SUMS + i] = sum;
    }
}

// ring_metric writes the others, given the products of the goal and the errors with A.
extern "C" __global__ void __launch_bounds__(256) ring_metric(float* y, const float* goal, const float* errors, const float* squares, u32 k) {
    const u64 row = (u64)blockIdx.x * k;
    float all = 0, both = 0, own = 0;
    for (u32 i = threadIdx.x; i < k; i += THREADS) {
        const float g = goal[row + i], e = errors[row + i], s = squares[i];
        all = fmaf(s * g, g, all);
        both = fmaf(s * g, e, both);
        own = fmaf(s * e, e, own);
    }
    all = reduce(all, Sum());
    both = reduce(both, Sum());
    own = reduce(own, Sum());
    if (threadIdx.x != 0) return;
    y += (u64)blockIdx.x * SUMS;
    y[METRIC_GOAL] = all;
    y[METRIC_BOTH] = both;
    y[METRIC_ERROR] = own;
}

// ring_targets makes goal [rows, k] what rows of w aim at: where that is not finite, w itself. It writes means of squares.
extern "C" __global__ void __launch_bounds__(256) ring_targets(float* goal, float* means, const float* w, u32 k) {
    const u64 row = (u64)blockIdx.x * k;
    float bad = 0;
    for (u32 i = threadIdx.x; i < k; i += THREADS) bad = finite(goal[row + i]) ? bad : 1.0f;
    bad = reduce(bad, Max());
    float sum = 0;
    for (u32 i = threadIdx.x; i < k; i += THREADS) {
        const float v = bad != 0 ? w[row + i] : goal[row + i];
        goal[row + i] = v;
        sum = fmaf(v, v, sum);
    }
    sum = reduce(sum, Sum());
    if (threadIdx.x == 0) means[blockIdx.x] = sum / (float)k;
}
