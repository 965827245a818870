// A mixture of experts of some rows: who is chosen, products by experts that are not packed, and what becomes of the results.

constexpr u32 CHOOSE_WARPS = 8, CHOOSE_THREADS = 32 * CHOOSE_WARPS;
constexpr u32 TOGETHER = 8;           // rows of a group, as gemm's kernels have them, and that a weight is multiplied by at once
constexpr u32 MOST_PAIRS = 4096;      // of rows and the experts that they choose
constexpr u32 MOST_LOGITS = 1024;     // of an expert each, at most, and of rows that choose together

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
    for (u32 lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffff, v, lane);
    return v;
}

// add_products adds to sums what a thread has of the products of a row of weights, of which it holds the first already, and some
// rows of x, each at its own place.
template <class At>
__device__ __forceinline__ void add_products(float (&sum)[TOGETHER], const Act* w, const float (&held)[EACH], const Act* x, At at, u32 rows,
                                             u32 cols, u32 first, u32 stride) {
    for (u32 i = first; i < cols; i += stride) {
        float f[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; j++) f[j] = held[j];
        if (i != first) Elements(i, cols).load(f, w);
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++)
            if (r < rows) {
                const u64 row = (u64)at(r) * cols;
                float g[EACH];
                Elements(row + i, row + cols).load(g, x);
#pragma unroll
                for (u32 j = 0; j < EACH; j++) sum[r] = fmaf(f[j], g[j], sum[r]);
            }
    }
}

struct ChooseArgs {
    float* logits;   // [rows][experts]
    u32* arrived;    // 0, which it is left
    u32* groups;     // [1 + groups][4]: how many; and of each the expert, its first pair, and how many
    u32* row;        // [pairs] of each; pairs are those of the first expert, by rows, and so on
    u32* pair;       // [rows][top] of each of the row's experts, in the order of these
    float* weight;   // [rows][top]
    const Act* x;       // [rows][cols]
    const Act* router;  // [experts][cols]
    const float* bias;  // [experts] or null
    u32 rows, cols, experts, top;
    u32 normalize;
};

// choose writes the experts of some rows in order, and their weights: the largest logits, of equals the first. Each logit is
// compared with all of its row.
__device__ __forceinline__ void choose(const ChooseArgs& a, u32 row0, u32 rows, u16* chosen) {
    __shared__ float logits[MOST_LOGITS], total[MOST_LOGITS];
    __shared__ u16 ranked[MOST_LOGITS];
    const volatile float* from = a.logits + (u64)row0 * a.experts;
    for (u32 i = threadIdx.x; i < rows * a.experts; i += CHOOSE_THREADS) {
        const float v = from[i];
        logits[i] = v >= LOWEST ? v : LOWEST;  // what is not a number too: it must be some expert
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * a.experts; i += CHOOSE_THREADS) {
        const u32 row = i / a.experts, e = i - row * a.experts;
        const float* of = logits + row * a.experts;
        const float v = of[e];
        u32 rank = 0;
#pragma unroll 8
        for (u32 j = 0; j < a.experts; j++) rank += of[j] > v || (of[j] == v && j < e);
        if (rank < a.top) ranked[row * a.top + rank] = (u16)e;
    }
    __syncthreads();
    const auto power = [&](u32 row, u32 e) { return expf(logits[row * a.experts + e] - logits[row * a.experts + ranked[row * a.top]]); };
    for (u32 row = threadIdx.x / 32; row < rows; row += CHOOSE_WARPS) {
        const u32 lane = threadIdx.x % 32;
        float sum = 0;
        for (u32 i = lane; i < (a.normalize ? a.top : a.experts); i += 32) sum += power(row, a.normalize ? ranked[row * a.top + i] : i);
        sum = sum_of_warp(sum);
        if (lane == 0) total[row] = sum;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * a.top; i += CHOOSE_THREADS) {
        const u32 row = i / a.top, e = ranked[i];
        u32 to = (row0 + row) * a.top;
        for (u32 j = 0; j < a.top; j++) to += ranked[row * a.top + j] < e;
        chosen[to] = (u16)e;
        a.weight[to] = power(row, e) / total[row];
    }
    __syncthreads();
}

// group makes groups of the pairs of each expert, in order.
__device__ __forceinline__ void group(const ChooseArgs& a, const u16* chosen) {
    __shared__ u32 totals[CHOOSE_WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = a.rows * a.top;
    u32 before = 0;  // groups
    for (u32 base = 0; base < a.experts; base += CHOOSE_THREADS) {
        const u32 e = base + threadIdx.x;
        u32 count = 0, less = 0;
        for (u32 i = 0; i < pairs; i++) {
            count += chosen[i] == e;
            less += chosen[i] < e;
        }
        const u32 groups = (count + TOGETHER - 1) / TOGETHER;
        u32 to = groups;
#pragma unroll
        for (u32 d = 1; d < 32; d *= 2) {
            const u32 v = __shfl_sync(0xffffffff, to, lane < d ? lane : lane - d);
            if (lane >= d) to += v;
        }
        if (lane == 31) totals[warp] = to;
        __syncthreads();
        to += before;
        for (u32 w = 0; w < CHOOSE_WARPS; w++) {
            if (w < warp) to += totals[w];
            before += totals[w];
        }
        __syncthreads();  // before they are written again
        for (u32 g = 0; g < groups; g++) {
            u32* at = a.groups + 4 * (1 + to - groups + g);
            at[0] = e;
            at[1] = less + TOGETHER * g;
            at[2] = count - TOGETHER * g < TOGETHER ? count - TOGETHER * g : TOGETHER;
        }
        for (u32 i = 0, seen = 0; seen < count; i++)
            if (chosen[i] == e) {
                a.row[less + seen] = i / a.top;
                a.pair[i] = less + seen++;
            }
    }
    if (threadIdx.x == 0) a.groups[0] = before;
}

// choose_experts is the router: a block makes the logits of an expert, and the last to end chooses.
extern "C" __global__ void __launch_bounds__(256) choose_experts(const __grid_constant__ ChooseArgs a) {
    __shared__ float part[CHOOSE_WARPS][TOGETHER];
    __shared__ u16 chosen[MOST_PAIRS];
    __shared__ u32 order;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * EACH;
    const Act* w = a.router + (u64)blockIdx.x * a.cols;
    float held[EACH];
    Elements(first, a.cols).load(held, w);  // which no kernel writes
    const float bias = a.bias ? a.bias[blockIdx.x] : 0.0f;
    begin();
    for (u32 row = 0; row < a.rows; row += TOGETHER) {
        float sum[TOGETHER] = {};
        add_products(sum, w, held, a.x, [row](u32 r) { return row + r; }, a.rows - row, a.cols, first, CHOOSE_THREADS * EACH);
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++)
            if (row + r < a.rows) {
                sum[r] = sum_of_warp(sum[r]);
                if (lane == 0) part[warp][r] = sum[r];
            }
        __syncthreads();
        if (threadIdx.x < TOGETHER && row + threadIdx.x < a.rows) {
            float v = 0;
            for (u32 i = 0; i < CHOOSE_WARPS; i++) v += part[i][threadIdx.x];
            a.logits[(u64)(row + threadIdx.x) * a.experts + blockIdx.x] = v + bias;
        }
        __syncthreads();
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) order = atomicAdd(a.arrived, 1);
    __syncthreads();
    if (order + 1 < gridDim.x) return;
    __threadfence();
    if (threadIdx.x == 0) *a.arrived = 0;
    const u32 together = MOST_LOGITS / a.experts;
    for (u32 row = 0; row < a.rows; row += together) choose(a, row, a.rows - row < together ? a.rows - row : together, chosen);
    group(a, chosen);
}

// expert_rows multiplies groups of rows of x, [rows][k], each by the weights of its expert, [n][k]. rows are of x, for each row of y; null: the
// same. biases may be null.
extern "C" __global__ void __launch_bounds__(256)
expert_rows(Act* y, const Act* x, const u64* weights, const u64* biases, const u32* groups, const u32* rows, u32 n, u32 k) {
    begin();
    if (blockIdx.y >= groups[0]) return;
    const u32* g = groups + 4 * (1 + blockIdx.y);
    const u32 expert = g[0], pair = g[1], count = g[2], lane = threadIdx.x % 32, i = blockIdx.x * 8 + threadIdx.x / 32;
    if (i >= n) return;
    const Act* w = (const Act*)weights[expert] + (u64)i * k;
    float held[EACH], sum[TOGETHER] = {};
    Elements(lane * EACH, k).load(held, w);
    add_products(sum, w, held, x, [=](u32 r) { return rows ? rows[pair + r] : pair + r; }, count, k, lane * EACH, 32 * EACH);
    const float bias = biases ? ((const float*)biases[expert])[i] : 0.0f;
#pragma unroll
    for (u32 r = 0; r < TOGETHER; r++)
        if (r < count) {
            const float v = sum_of_warp(sum[r]) + bias;
            if (lane == 0) set(y[(u64)(pair + r) * n + i], v);
        }
}

// add_mixture adds what its experts have made of a row to h, and what a shared one has by the sigmoid of its gate, and writes the
// RMS norm of the sum.
extern "C" __global__ void __launch_bounds__(512)
add_mixture(Act* y, F32* h, const Act* parts, const u32* pair, const float* weight, const Act* shared, const float* shared_gate, const float* w,
            u32 top, u32 cols, float eps) {
    const u64 row = (u64)blockIdx.x * cols, end = row + cols;
    const u32 first = threadIdx.x * EACH, stride = blockDim.x * EACH;
    float kept[EACH], factors[EACH], sum = 0;  // the first of a thread's, mostly all of them
    Elements(first, cols).load(factors, (const F32*)w);  // which no kernel writes
    begin();
    pair += blockIdx.x * top;
    weight += blockIdx.x * top;
    for (u32 i = first; i < cols; i += stride) {
        const Elements e(row + i, end);
        float a[EACH];
        e.load(a, h);
        for (u32 j = 0; j < top; j += 8) {
            Pack<Act> more[8];
#pragma unroll
            for (u32 k = 0; k < 8; k++)
                if (j + k < top) {
                    const u64 from = (u64)pair[j + k] * cols;
                    more[k] = Elements(from + i, from + cols).read(parts);
                }
#pragma unroll
            for (u32 k = 0; k < 8; k++)
                if (j + k < top) {
                    float b[EACH];
                    values(b, more[k]);
#pragma unroll
                    for (u32 l = 0; l < EACH; l++) a[l] = fmaf(weight[j + k], b[l], a[l]);
                }
        }
        if (shared) {
            const float share = 1 / (1 + expf(-shared_gate[blockIdx.x]));
            float b[EACH];
            e.load(b, shared);
#pragma unroll
            for (u32 l = 0; l < EACH; l++) a[l] = fmaf(share, b[l], a[l]);
        }
        e.store(h, a);
#pragma unroll
        for (u32 l = 0; l < EACH; l++) {
            sum += a[l] * a[l];
            if (i == first) kept[l] = a[l];
        }
    }
    const float scale = 1 / sqrtf(reduce(sum, Sum()) / cols + eps);
    for (u32 i = first; i < cols; i += stride) {
        const Elements e(row + i, end);
        if (i != first) {
            e.load(kept, h);
            Elements(i, cols).load(factors, (const F32*)w);
        }
#pragma unroll
        for (u32 l = 0; l < EACH; l++) kept[l] *= scale * factors[l];
        e.store(y, kept);
    }
}
