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

// y = g·σ(g)·u. dg and du may be g and u: a thread reads before it writes.
template <u32 V>
__device__ __forceinline__ void swiglu_back(Act* dg, Act* du, const Act* dy, const Act* g, const Act* u, u64 n) {
    u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= n) return;
    float y[V], a[V], b[V];
    load(y, dy + i);
    load(a, g + i);
    load(b, u + i);
#pragma unroll
    for (u32 j = 0; j < V; j++) {
        float s = 1.0f / (1.0f + __expf(-a[j]));
        float silu = a[j] * s;
        float slope = s + silu * (1.0f - s);
        a[j] = y[j] * b[j] * slope;
        b[j] = y[j] * silu;
    }
    store(dg + i, a);
    store(du + i, b);
}
extern "C" __global__ void __launch_bounds__(THREADS) swiglu_back_8(Act* dg, Act* du, const Act* dy, const Act* g, const Act* u, u64 n) {
    swiglu_back<8>(dg, du, dy, g, u, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) swiglu_back_1(Act* dg, Act* du, const Act* dy, const Act* g, const Act* u, u64 n) {
    swiglu_back<1>(dg, du, dy, g, u, n);
}

// ---- attention ----
//
// The queries of the heads that share keys and values are put side by side, as the
// rows of one matrix for each key-value head: row token·group + head of the group. So
// one product gives the scores of all of them, and one sums their gradients of keys and values.

struct Heads {
    u32 tokens, kv, group, dim;
};

// row_of is the row, in that order, of token t and head h.
__device__ __forceinline__ u64 row_of(const Heads& s, u32 t, u32 h) {
    return ((u64)(h / s.group) * s.tokens + t) * s.group + h % s.group;
}

// attention_gather puts q and dout in that order, and beside them the two numbers of
// a row that the gradient of its softmax needs: lse, and Σ dout∘o = Σ P∘dP.
template <u32 V>
__device__ __forceinline__ void attention_gather(Act* qs, Act* douts, float* lses, float* dots, const Act* q, const Act* dout,
                                                 const Act* o, const float* lse, const Heads& s) {
    const u32 heads = s.kv * s.group, lane = threadIdx.x % 32;
    const u64 i = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (i >= (u64)s.tokens * heads) return;
    const u32 t = (u32)(i / heads), h = (u32)(i % heads);
    const u64 to = row_of(s, t, h);
    float dot = 0;
    for (u32 d = lane * V; d < s.dim; d += 32 * V) {
        float a[V], b[V], c[V];
        load(a, q + i * s.dim + d);
        load(b, dout + i * s.dim + d);
        load(c, o + i * s.dim + d);
#pragma unroll
        for (u32 j = 0; j < V; j++) dot = fmaf(b[j], c[j], dot);
        store(qs + to * s.dim + d, a);
        store(douts + to * s.dim + d, b);
    }
    dot = team_sum<32>(dot);
    if (lane == 0) {
        lses[to] = lse[(u64)h * s.tokens + t];
        dots[to] = dot;
    }
}
extern "C" __global__ void __launch_bounds__(THREADS) attention_gather_4(
    Act* qs, Act* douts, float* lses, float* dots, const Act* q, const Act* dout, const Act* o, const float* lse,
    u32 tokens, u32 kv, u32 group, u32 dim) {
    attention_gather<4>(qs, douts, lses, dots, q, dout, o, lse, {tokens, kv, group, dim});
}
extern "C" __global__ void __launch_bounds__(THREADS) attention_gather_1(
    Act* qs, Act* douts, float* lses, float* dots, const Act* q, const Act* dout, const Act* o, const float* lse,
    u32 tokens, u32 kv, u32 group, u32 dim) {
    attention_gather<1>(qs, douts, lses, dots, q, dout, o, lse, {tokens, kv, group, dim});
}

// attention_scatter puts rows back.
template <u32 V>
__device__ __forceinline__ void attention_scatter(Act* dq, const Act* dqs, const Heads& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    const u32 heads = s.kv * s.group;
    if (i >= (u64)s.tokens * heads * s.dim) return;
    const u64 row = i / s.dim;
    float a[V];
    load(a, dqs + row_of(s, (u32)(row / heads), (u32)(row % heads)) * s.dim + i % s.dim);
    store(dq + i, a);
}
extern "C" __global__ void __launch_bounds__(THREADS) attention_scatter_4(
    Act* dq, const Act* dqs, u32 tokens, u32 kv, u32 group, u32 dim) {
    attention_scatter<4>(dq, dqs, {tokens, kv, group, dim});
}
extern "C" __global__ void __launch_bounds__(THREADS) attention_scatter_1(
    Act* dq, const Act* dqs, u32 tokens, u32 kv, u32 group, u32 dim) {
    attention_scatter<1>(dq, dqs, {tokens, kv, group, dim});
}

// softmax_back turns the scores of a block and dP into P = exp(scale·score − lse) and
// dS = scale·P∘(dP − Σ P∘dP), both 0 where a query does not look. Its rows begin at the
// queries of token query0, its columns at key0; pitch, a multiple of 8, is from one row to the
// next. lse and dots have tokens·group rows for each key-value head. A warp takes a row.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_back(
    Act* p, Act* ds, const float* scores, const float* dp, const float* lse, const float* dots,
    u32 rows, u32 pitch, u32 query0, u32 key0, u32 window, u32 group, u32 tokens, float scale) {
    const u32 r = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    const u64 at = ((u64)blockIdx.y * rows + r) * pitch;
    const u64 of = ((u64)blockIdx.y * tokens + query0) * group + r;
    const u32 query = query0 + r / group;
    const u32 end = query + 1 - key0;  // the columns from begin to end are seen
    const u32 begin = end > window ? end - window : 0;
    const float shift = lse[of], dot = dots[of];
    for (u32 i = threadIdx.x % 32 * 8; i < pitch; i += 32 * 8) {
        float s[8] = {}, d[8] = {};
        if (i < end && i + 8 > begin) {
            load(s, scores + at + i);
            load(d, dp + at + i);
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                const bool seen = i + j >= begin && i + j < end;
                s[j] = seen ? __expf(fmaf(scale, s[j], -shift)) : 0.0f;
                d[j] = seen ? scale * s[j] * (d[j] - dot) : 0.0f;
            }
        }
        store(p + at + i, s);
        store(ds + at + i, d);
    }
}
