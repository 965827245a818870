// A mixture of experts of some rows: who is chosen, products by experts that are not packed, and what becomes of the results.

constexpr u32 CHOOSE_WARPS = 32, CHOOSE_THREADS = 32 * CHOOSE_WARPS;
constexpr u32 TOGETHER = 8;         // rows of a group, as gemm's kernels have them, and that a weight is multiplied by at once
constexpr u32 MOST_EXPERTS = 1024;
constexpr u32 MASKS = 2;            // words of a bit for each row
constexpr u32 MOST_PAIRS = 64 * 32; // of rows and the experts that they choose
constexpr u32 HELD = 8;             // logits of a lane in registers

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
    const float* correction;  // [experts] of the scores that choose, or null
    u32 rows, cols, experts, top;
    u32 normalize;
    u32 sigmoid;              // scores are the sigmoids of logits; correction and regions are for these only
    u32 regions, top_regions; // at most 32, as many experts each, of which those with the best two of the most are chosen from; 0: all are
    float scale;              // of weights
};

__device__ __forceinline__ float logistic(float v) { return 1 / (1 + expf(-v)); }

// order_of is a number by which logits can be compared, above 0; what is not a number is less than others, as it must be some expert.
__device__ __forceinline__ u32 order_of(float v) {
    const u32 bits = (u32)__float_as_int(v >= LOWEST ? v + 0.0f : LOWEST);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}
__device__ __forceinline__ float logit_of(u32 order) { return __int_as_float((int)(order >> 31 ? order & 0x7fffffff : ~order)); }

// regions returns a bit for each region that can be chosen from: those whose two best scores sum to the most, of equals the first. A
// warp does so, with what score returns of an expert.
template <class Score>
__device__ __forceinline__ u32 regions(const ChooseArgs& a, Score score) {
    const u32 lane = threadIdx.x % 32, size = a.experts / a.regions;
    float mine = LOWEST;
    for (u32 r = 0; r < a.regions; r++) {
        float best = LOWEST, next = LOWEST;
        for (u32 e = lane; e < size; e += 32) {
            const float s = score(r * size + e);
            next = fmaxf(next, fminf(best, s));
            best = fmaxf(best, s);
        }
#pragma unroll
        for (u32 o = 16; o > 0; o /= 2) {
            const float b = __shfl_xor_sync(0xffffffff, best, o), n = __shfl_xor_sync(0xffffffff, next, o);
            next = fmaxf(fmaxf(next, n), fminf(best, b));
            best = fmaxf(best, b);
        }
        if (lane == r) mine = size > 1 ? best + next : best;
    }
    u32 ahead = 0, in = 0;
    for (u32 r = 0; r < a.regions; r++) {
        const float other = __shfl_sync(0xffffffff, mine, r);
        ahead += other > mine || other == mine && r < lane;
    }
    for (u32 r = 0; r < a.regions; r++) in |= (__shfl_sync(0xffffffff, ahead, r) < a.top_regions ? 1u : 0u) << r;
    return in;
}

// choose writes a row's experts in order, and their weights: the largest scores, of equals the first. A warp does so. Logits stand for
// scores where these have the same order.
__device__ __forceinline__ void choose(const ChooseArgs& a, u32 row, u16* chosen) {
    const u32 lane = threadIdx.x % 32;
    const volatile float* logits = a.logits + (u64)row * a.experts;
    const bool scored = a.correction || a.regions;
    const auto score = [&](u32 e) { return logistic(logits[e]) + (a.correction ? a.correction[e] : 0.0f); };
    const u32 size = a.regions ? a.experts / a.regions : 1, in = a.regions ? regions(a, score) : 0;
    const auto read = [&](u32 i) {
        const u32 e = 32 * i + lane;
        if (e >= a.experts) return 0u;
        if (!scored) return order_of(logits[e]);
        return order_of(!a.regions || in >> e / size & 1 ? score(e) : LOWEST);
    };
    u32 held[HELD];
#pragma unroll
    for (u32 i = 0; i < HELD; i++) held[i] = read(i);
    u32 taken = 0, mine = 0;
    float most = 0, own = 0, total = 0;
    for (u32 j = 0; j < a.top; j++) {
        u32 best = 0, at = 0;
        const auto look = [&](u32 i, u32 order) {
            if (order > best && !(taken >> i & 1)) {
                best = order;
                at = i;
            }
        };
#pragma unroll
        for (u32 i = 0; i < HELD; i++) look(i, held[i]);
        for (u32 i = HELD; 32 * i < a.experts; i++) look(i, read(i));
        const u32 largest = __reduce_max_sync(0xffffffff, best);
        const u32 e = __reduce_min_sync(0xffffffff, best == largest ? 32 * at + lane : ~0u);
        if (e % 32 == lane) taken |= 1u << e / 32;
        const float logit = a.sigmoid ? logits[e] : logit_of(largest);
        if (j == 0) most = logit;
        const float power = a.sigmoid ? logistic(logit) : expf(logit - most);
        total += power;
        if (lane == j) {
            mine = e;
            own = power;
        }
    }
    if (!a.normalize && a.sigmoid) total = 1;
    if (!a.normalize && !a.sigmoid) {
        total = 0;
        for (u32 i = 0; 32 * i + lane < a.experts; i++) total += expf(logit_of(read(i)) - most);
        total = sum_of_warp(total);
    }
    u32 rank = 0;
    for (u32 j = 0; j < a.top; j++) rank += __shfl_sync(0xffffffff, mine, j) < mine;
    if (lane < a.top) {
        chosen[row * a.top + rank] = (u16)mine;
        a.weight[row * a.top + rank] = own / total * a.scale;
    }
}

// group makes groups of the pairs of each expert, by rows, of which masks have those that chose it.
__device__ __forceinline__ void group(const ChooseArgs& a, const u16* chosen, u32 (*masks)[MASKS]) {
    __shared__ u32 totals[CHOOSE_WARPS];
    __shared__ u16 firsts[MOST_EXPERTS];  // pairs
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = a.rows * a.top, e = threadIdx.x;
    for (u32 i = threadIdx.x; i < pairs; i += CHOOSE_THREADS) {
        const u32 row = i / a.top;
        atomicAdd(&masks[chosen[i]][row / 32], 1u << row % 32);  // once for each bit
    }
    __syncthreads();
    u32 count = 0;
    for (u32 i = 0; e < a.experts && 32 * i < a.rows; i++) count += __popc(masks[e][i]);
    const u32 groups = (count + TOGETHER - 1) / TOGETHER;
    u32 to = count << 16 | groups;  // sums of both at once
    const u32 own = to;
#pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
        const u32 v = __shfl_sync(0xffffffff, to, lane < d ? lane : lane - d);
        if (lane >= d) to += v;
    }
    if (lane == 31) totals[warp] = to;
    __syncthreads();
    for (u32 w = 0; w < warp; w++) to += totals[w];
    if (threadIdx.x + 1 == CHOOSE_THREADS) a.groups[0] = to & 0xffff;
    to -= own;
    const u32 first = to >> 16;
    if (e < a.experts) firsts[e] = (u16)first;
    for (u32 g = 0; g < groups; g++) {
        u32* at = a.groups + 4 * (1 + (to & 0xffff) + g);
        at[0] = e;
        at[1] = first + TOGETHER * g;
        at[2] = count - TOGETHER * g < TOGETHER ? count - TOGETHER * g : TOGETHER;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < pairs; i += CHOOSE_THREADS) {
        const u32 expert = chosen[i], row = i / a.top;
        u32 pair = firsts[expert] + __popc(masks[expert][row / 32] & ((1u << row % 32) - 1));
        for (u32 w = 0; w < row / 32; w++) pair += __popc(masks[expert][w]);
        a.row[pair] = row;
        a.pair[i] = pair;
    }
}

// choose_experts is the router: a block makes the logits of an expert, a quarter of its threads those of every fourth row, and the last
// to end chooses.
extern "C" __global__ void __launch_bounds__(1024) choose_experts(const __grid_constant__ ChooseArgs a) {
    constexpr u32 QUARTER = CHOOSE_THREADS / 4, AT_ONCE = 4 * TOGETHER;
    __shared__ float part[CHOOSE_WARPS][TOGETHER];
    __shared__ u16 chosen[MOST_PAIRS];
    __shared__ u32 masks[MOST_EXPERTS][MASKS];
    __shared__ u32 order;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = threadIdx.x / QUARTER, first = threadIdx.x % QUARTER * EACH;
    const Act* w = a.router + (u64)blockIdx.x * a.cols;
    float held[EACH];
    Elements(first, a.cols).load(held, w);  // which no kernel writes
    const float bias = a.bias ? a.bias[blockIdx.x] : 0.0f;
    for (u32 i = threadIdx.x; i < a.experts * MASKS; i += CHOOSE_THREADS) masks[i / MASKS][i % MASKS] = 0;
    begin();
    for (u32 row = 0; row < a.rows; row += AT_ONCE) {
        const u32 from = row + quarter, rows = a.rows > from ? (a.rows - from + 3) / 4 : 0;
        float sum[TOGETHER] = {};
        add_products(sum, w, held, a.x, [from](u32 r) { return from + 4 * r; }, rows, a.cols, first, QUARTER * EACH);
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++)
            if (r < rows) {
                sum[r] = sum_of_warp(sum[r]);
                if (lane == 0) part[warp][r] = sum[r];
            }
        __syncthreads();
        if (threadIdx.x < AT_ONCE && row + threadIdx.x < a.rows) {
            float v = 0;
            for (u32 i = 0; i < CHOOSE_WARPS / 4; i++) v += part[threadIdx.x % 4 * (CHOOSE_WARPS / 4) + i][threadIdx.x / 4];
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
    for (u32 row = warp; row < a.rows; row += CHOOSE_WARPS) choose(a, row, chosen);
    __syncthreads();
    group(a, chosen, masks);
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

// add_mixture adds what its experts have made of a row to h, and what a shared one has, by the sigmoid of its gate where it has one, and
// writes the RMS norm of the sum.
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
            const float share = shared_gate ? logistic(shared_gate[blockIdx.x]) : 1.0f;
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
