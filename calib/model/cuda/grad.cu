// Gradients of what a decoder's blocks compute. A sum over a row is taken by the
// threads of a warp or a block, each in equal steps, and then by halves: in an order that
// depends on the row's length alone.

// ---- norm ----

// y = x·r·w with r = 1/√(mean x² + ε) has dx = r·w∘dy − x·r³·mean(w∘dy∘x).
// A row belongs to TEAM threads, which read it twice: the second time from cache.
template <class X, class DY, u32 TEAM, u32 V>
__device__ __forceinline__ void rms_norm_back(X* dx, const DY* dy, const X* x, const float* w, u32 rows, u32 n, float eps, u32 add) {
    const u32 row = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    const u32 first = threadIdx.x % TEAM * V;
    const u64 at = (u64)row * n;
    float squares = 0, dot = 0;
    if (row < rows)
        for (u32 i = first; i < n; i += TEAM * V) {
            float a[V], g[V], f[V];
            load(a, x + at + i);
            load(g, dy + at + i);
            load(f, w + i);
#pragma unroll
            for (u32 j = 0; j < V; j++) {
                squares = fmaf(a[j], a[j], squares);
                dot = fmaf(a[j] * f[j], g[j], dot);
            }
        }
    squares = team_sum<TEAM>(squares);
    dot = team_sum<TEAM>(dot);
    if (row >= rows) return;
    const float r = 1.0f / sqrtf(squares / n + eps);
    const float c = r * r * r * (dot / n);
    for (u32 i = first; i < n; i += TEAM * V) {
        float a[V], g[V], f[V], d[V];
        load(a, x + at + i);
        load(g, dy + at + i);
        load(f, w + i);
        if (add) load(d, dx + at + i);
#pragma unroll
        for (u32 j = 0; j < V; j++) {
            float v = r * f[j] * g[j] - a[j] * c;
            d[j] = add ? d[j] + v : v;
        }
        store(dx + at + i, d);
    }
}

#define RMS_NORM_BACK(NAME, X, DY, TEAM, V)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_back_##NAME##_##TEAM##_##V(                              \
        X* dx, const DY* dy, const X* x, const float* w, u32 rows, u32 n, float eps, u32 add) {                             \
        rms_norm_back<X, DY, TEAM, V>(dx, dy, x, w, rows, n, eps, add);                                                     \
    }
#define RMS_NORM_BACKS(NAME, X, DY)   \
    RMS_NORM_BACK(NAME, X, DY, 32, 1) \
    RMS_NORM_BACK(NAME, X, DY, 32, 8) \
    RMS_NORM_BACK(NAME, X, DY, 256, 1) \
    RMS_NORM_BACK(NAME, X, DY, 256, 8)
RMS_NORM_BACKS(ff, float, float)
RMS_NORM_BACKS(fa, float, Act)
RMS_NORM_BACKS(af, Act, float)
RMS_NORM_BACKS(aa, Act, Act)

// ---- gate ----

// y = act(g)·u. dg and du may be g and u: a thread reads before it writes.
template <Activation A, u32 V>
__device__ __forceinline__ void glu_back(Act* dg, Act* du, const Act* dy, const Act* g, const Act* u, Gating gating, u64 n) {
    u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= n) return;
    float y[V], a[V], b[V];
    load(y, dy + i);
    load(a, g + i);
    load(b, u + i);
#pragma unroll
    for (u32 j = 0; j < V; j++) {
        const float gate = y[j] * other_factor<A>(b[j], gating) * slope<A>(a[j], gating);
        const float act = A == SILU ? a[j] * (1.0f / (1.0f + __expf(-a[j]))) : activated<A>(a[j], gating);
        const bool through = A != SWIGLU_OAI || fabsf(b[j]) <= gating.limit;
        a[j] = gate;
        b[j] = through ? y[j] * act : 0.0f;
    }
    store(dg + i, a);
    store(du + i, b);
}
#define GLU_BACK(NAME, A, V)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) glu_back_##NAME##_##V(           \
        Act* dg, Act* du, const Act* dy, const Act* g, const Act* u, float alpha, float limit, u64 n) { \
        glu_back<A, V>(dg, du, dy, g, u, {alpha, limit}, n);                               \
    }
#define GLU_BACKS(NAME, A) \
    GLU_BACK(NAME, A, 1)   \
    GLU_BACK(NAME, A, 8)
GLU_BACKS(silu, SILU)
GLU_BACKS(gelu, GELU)
GLU_BACKS(gelu_tanh, GELU_TANH)
GLU_BACKS(relu, RELU)
GLU_BACKS(swiglu_oai, SWIGLU_OAI)

// ---- attention ----
//
// The queries of the heads that share keys and values are put side by side, as the
// rows of one matrix for each key-value head: row token·group + head of the group. So
// one product gives the scores of all of them, and one sums their gradients of keys and values.
//
// Things come in pairs, so that one batch of products does both: queries with the
// gradient of the output, whose rows are multiplied by keys with values, to give scores
// with dP; then dS with P, by the first pair, for the gradients of keys with values.
// [kv][2] is before the other dimensions of all of them.

struct Heads {
    u32 tokens, kv, group, dim;
};
#define HEADS u32 tokens, u32 kv, u32 group, u32 dim
#define THE_HEADS {tokens, kv, group, dim}

// query_row is the row of token t and head h among all first ones of pairs of
// queries. That of the second is Heads::tokens·group rows on.
__device__ __forceinline__ u64 query_row(const Heads& s, u32 t, u32 h) {
    return ((u64)(h / s.group) * 2 * s.tokens + t) * s.group + h % s.group;
}

// attention_queries gathers queries and dout.
template <u32 V>
__device__ __forceinline__ void attention_queries(Act* pairs, const Act* q, const Act* dout, const Heads& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    const u32 heads = s.kv * s.group, row = (u32)(i / s.dim), t = row / heads;
    if (t >= s.tokens) return;
    Act* to = pairs + query_row(s, t, row - t * heads) * s.dim + i % s.dim;
    float a[V], b[V];
    load(a, q + i);
    load(b, dout + i);
    store(to, a);
    store(to + (u64)s.tokens * s.group * s.dim, b);
}

// attention_queries_back puts the gradients of queries back; they lie like the first
// of pairs.
template <u32 V>
__device__ __forceinline__ void attention_queries_back(Act* dq, const Act* pairs, const Heads& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    const u32 heads = s.kv * s.group, row = (u32)(i / s.dim), t = row / heads;
    if (t >= s.tokens) return;
    float a[V];
    load(a, pairs + query_row(s, t, row - t * heads) * s.dim + i % s.dim);
    store(dq + i, a);
}

// key_pair is where element i of keys, [tokens, kv, dim], has its place among pairs.
// That of values is tokens·dim on.
__device__ __forceinline__ u64 key_pair(const Heads& s, u64 i) {
    const u32 row = (u32)(i / s.dim), t = row / s.kv, head = row - t * s.kv;
    return ((u64)head * 2 * s.tokens + t) * s.dim + i % s.dim;
}

template <u32 V>
__device__ __forceinline__ void attention_keys(Act* pairs, const Act* k, const Act* v, const Heads& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= (u64)s.tokens * s.kv * s.dim) return;
    float a[V], b[V];
    load(a, k + i);
    load(b, v + i);
    const u64 to = key_pair(s, i);
    store(pairs + to, a);
    store(pairs + to + (u64)s.tokens * s.dim, b);
}

template <u32 V>
__device__ __forceinline__ void attention_keys_back(Act* dk, Act* dv, const float* pairs, const Heads& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= (u64)s.tokens * s.kv * s.dim) return;
    const u64 from = key_pair(s, i);
    float a[V], b[V];
    load(a, pairs + from);
    load(b, pairs + from + (u64)s.tokens * s.dim);
    store(dk + i, a);
    store(dv + i, b);
}

#define ATTENTION(V)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_queries_##V(                                    \
        Act* pairs, const Act* q, const Act* dout, HEADS) {                                                         \
        attention_queries<V>(pairs, q, dout, THE_HEADS);                                                            \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_queries_back_##V(Act* dq, const Act* pairs, HEADS) { \
        attention_queries_back<V>(dq, pairs, THE_HEADS);                                                            \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_keys_##V(                                       \
        Act* pairs, const Act* k, const Act* v, HEADS) {                                                            \
        attention_keys<V>(pairs, k, v, THE_HEADS);                                                                  \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_keys_back_##V(                                  \
        Act* dk, Act* dv, const float* pairs, HEADS) {                                                              \
        attention_keys_back<V>(dk, dv, pairs, THE_HEADS);                                                           \
    }
ATTENTION(4)
ATTENTION(1)

// softmax_back turns pairs of scores and dP of a block into pairs of dS and P, with
// P = exp(scale·score − lse) and dS = scale·P∘(dP − Σ P∘dP), both 0 where a query does not
// look. Its rows begin at the queries of token query0, its columns at key0; pitch, a
// multiple of 8, is from one row to the next. lse is of the first head.
//
// A block takes a row and holds it in registers, HELD times 8 elements a thread; what
// they do not hold it reads twice. Σ P∘dP is also Σ dout∘o, but o has been rounded, and dS is a
// difference.
constexpr u32 EIGHT = 8;

template <bool CAPPED>
struct Row {
    u32 begin, end;  // the columns that are seen
    float scale, shift, cap;

    // probabilities turns scores into them, notes the slopes of their cap, and returns its part of Σ P∘dP.
    __device__ __forceinline__ float probabilities(float (&p)[EIGHT], float (&d)[EIGHT], float (&slopes)[EIGHT], const float* from, u64 second, u32 i) const {
        float dot = 0;
        if (i < end && i + EIGHT > begin) {
            load(p, from + i);
            load(d, from + second + i);
        }
#pragma unroll
        for (u32 j = 0; j < EIGHT; j++) {
            const bool seen = i + j >= begin && i + j < end;
            if (CAPPED) {
                const float t = seen ? tanhf(scale * p[j] / cap) : 0.0f;
                p[j] = seen ? __expf(fmaf(cap, t, -shift)) : 0.0f;
                slopes[j] = 1.0f - t * t;
            } else {
                p[j] = seen ? __expf(fmaf(scale, p[j], -shift)) : 0.0f;
            }
            d[j] = seen ? d[j] : 0.0f;
            dot = fmaf(p[j], d[j], dot);
        }
        return dot;
    }
    __device__ __forceinline__ void finish(Act* to, float (&p)[EIGHT], float (&d)[EIGHT], const float (&slopes)[EIGHT], float dot, u64 second, u32 i) const {
#pragma unroll
        for (u32 j = 0; j < EIGHT; j++) {
            d[j] = scale * p[j] * (d[j] - dot);
            if (CAPPED) d[j] *= slopes[j];
        }
        store(to + i, d);
        store(to + second + i, p);
    }
};

template <u32 HELD, bool CAPPED>
__device__ __forceinline__ void softmax_back(Act* to, const float* from, const float* lse, u32 pitch, u32 query0, u32 key0,
                                             u32 window, u32 group, u32 tokens, float scale, float cap) {
    const u32 r = blockIdx.x, query = query0 + r / group;
    const u64 at = ((u64)blockIdx.y * 2 * gridDim.x + r) * pitch, second = (u64)gridDim.x * pitch;
    Row<CAPPED> row;
    row.end = query + 1 - key0;
    row.begin = row.end > window ? row.end - window : 0;
    row.scale = scale;
    row.cap = cap;
    row.shift = lse[(u64)(blockIdx.y * group + r % group) * tokens + query];
    from += at;
    to += at;
    const u32 first = threadIdx.x * EIGHT, step = blockDim.x * EIGHT, rest = first + HELD * step;
    float p[HELD][EIGHT], d[HELD][EIGHT], slopes[HELD][EIGHT], dot = 0;
#pragma unroll
    for (u32 n = 0; n < HELD; n++) dot += row.probabilities(p[n], d[n], slopes[n], from, second, first + n * step);
    for (u32 i = rest; i < row.end; i += step) {
        float p[EIGHT], d[EIGHT], slopes[EIGHT];
        dot += row.probabilities(p, d, slopes, from, second, i);
    }
    dot = reduce(dot, Sum());
#pragma unroll
    for (u32 n = 0; n < HELD; n++)
        if (first + n * step < pitch) row.finish(to, p[n], d[n], slopes[n], dot, second, first + n * step);
    for (u32 i = rest; i < pitch; i += step) {
        float p[EIGHT], d[EIGHT], slopes[EIGHT];
        row.probabilities(p, d, slopes, from, second, i);
        row.finish(to, p, d, slopes, dot, second, i);
    }
}
#define SOFTMAX_BACK(NAME, HELD, CAPPED)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) softmax_back_##NAME##_##HELD(                     \
        Act* to, const float* from, const float* lse, u32 pitch, u32 query0, u32 key0, u32 window, u32 group, \
        u32 tokens, float scale, float cap) {                                                               \
        softmax_back<HELD, CAPPED>(to, from, lse, pitch, query0, key0, window, group, tokens, scale, cap);  \
    }
SOFTMAX_BACK(plain, 1, false)
SOFTMAX_BACK(plain, 2, false)
SOFTMAX_BACK(plain, 4, false)
SOFTMAX_BACK(capped, 1, true)
SOFTMAX_BACK(capped, 2, true)
SOFTMAX_BACK(capped, 4, true)

// ---- heads ----

// sum_heads adds up the heads of rows, n sums of width elements each. A thread has one.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_heads(Act* y, const Act* x, u32 heads, u32 width, u32 toRow, u32 fromRow, u32 fromHead, u32 n) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x, i = at % width;
    const u64 row = at / width;
    if (at >= n) return;
    float sum = 0;
    for (u32 h = 0; h < heads; h++) sum += value(x[row * fromRow + (u64)h * fromHead + i]);
    set(y[row * toRow + i], sum);
}
