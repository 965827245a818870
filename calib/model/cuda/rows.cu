// Kernels with a block for each row.

// embed copies a row of the weight for every token, a whole number.
template <class I>
__device__ __forceinline__ void embed_row(F32* h, const I* tokens, const Act* w, u32 cols, float scale) {
    begin();
    const Act* from = w + (u64)(u32)tokens[blockIdx.x] * cols;
    F32* to = h + (u64)blockIdx.x * cols;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) set(to[i], scale * value(from[i]));
}
extern "C" __global__ void __launch_bounds__(1024) embed(F32* h, const u32* tokens, const Act* w, u32 cols, float scale) { embed_row(h, tokens, w, cols, scale); }
extern "C" __global__ void __launch_bounds__(1024) embed_at(F32* h, const float* tokens, const Act* w, u32 cols, float scale) { embed_row(h, tokens, w, cols, scale); }

// gather copies rows, each times its weight; weights may be null.
template <class T>
__device__ __forceinline__ void gather(Act* dst, const T* src, const u32* rows, const float* weights, u32 cols) {
    const T* from = src + (u64)rows[blockIdx.x] * cols;
    Act* to = dst + (u64)blockIdx.x * cols;
    const float w = weights ? weights[blockIdx.x] : 1.0f;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) set(to[i], w * value(from[i]));
}
extern "C" __global__ void __launch_bounds__(1024) gather_f(Act* dst, const F32* src, const u32* rows, const float* weights, u32 cols) { gather(dst, src, rows, weights, cols); }
extern "C" __global__ void __launch_bounds__(1024) gather_a(Act* dst, const Act* src, const u32* rows, const float* weights, u32 cols) { gather(dst, src, rows, weights, cols); }

// scatter adds to rows, of which none is named twice.
template <class T>
__device__ __forceinline__ void scatter(F32* h, const T* src, const u32* rows, const float* weights, u32 cols) {
    const T* from = src + (u64)blockIdx.x * cols;
    F32* to = h + (u64)rows[blockIdx.x] * cols;
    const float w = weights ? weights[blockIdx.x] : 1.0f;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) set(to[i], fmaf(w, value(from[i]), value(to[i])));
}
extern "C" __global__ void __launch_bounds__(1024) scatter_f(F32* h, const F32* src, const u32* rows, const float* weights, u32 cols) { scatter(h, src, rows, weights, cols); }
extern "C" __global__ void __launch_bounds__(1024) scatter_a(F32* h, const Act* src, const u32* rows, const float* weights, u32 cols) { scatter(h, src, rows, weights, cols); }

template <class A, class B>
__device__ __forceinline__ void row_dots(float* dst, const A* a, const B* b, u32 cols) {
    const u64 at = (u64)blockIdx.x * cols;
    float sum = 0;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) sum = fmaf(value(a[at + i]), value(b[at + i]), sum);
    sum = reduce(sum, Sum());
    if (threadIdx.x == 0) dst[blockIdx.x] = sum;
}
extern "C" __global__ void __launch_bounds__(1024) row_dots_ff(float* dst, const F32* a, const F32* b, u32 cols) { row_dots(dst, a, b, cols); }
extern "C" __global__ void __launch_bounds__(1024) row_dots_fa(float* dst, const F32* a, const Act* b, u32 cols) { row_dots(dst, a, b, cols); }
extern "C" __global__ void __launch_bounds__(1024) row_dots_af(float* dst, const Act* a, const F32* b, u32 cols) { row_dots(dst, a, b, cols); }
extern "C" __global__ void __launch_bounds__(1024) row_dots_aa(float* dst, const Act* a, const Act* b, u32 cols) { row_dots(dst, a, b, cols); }

// rmsnorm normalizes group blockIdx.y of row blockIdx.x, of cols each.
template <class T>
__device__ __forceinline__ void rmsnorm(Act* y, u8* prepared, u8* rotated, const T* x, const float* w, u32 cols, float eps) {
    begin();
    const u32 column = blockIdx.y * cols;
    const u64 row = (u64)blockIdx.x * gridDim.y * cols + column, end = row + cols;
    const u32 first = threadIdx.x * EACH, stride = blockDim.x * EACH, before = threadIdx.x % 32 * EACH;
    const Inputs to = {y, prepared, rotated, (gridDim.x + 7) / 8};
    float kept[EACH] = {}, sum = 0;  // the first of a thread's, mostly all of them
    for (u32 i = first; i < cols; i += stride) {
        float v[EACH];
        Elements(row + i, end).load(v, x);
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            sum += v[j] * v[j];
            if (i == first) kept[j] = v[j];
        }
    }
    const float scale = 1 / sqrtf(reduce(sum, Sum()) / cols + eps);
    for (u32 i = first; i - before < cols; i += stride) {  // by whole warps
        const Elements e(row + i, end);
        float factors[EACH];
        Elements(column + i, column + cols).load(factors, (const F32*)w);
        if (i != first) e.load(kept, x);
#pragma unroll
        for (u32 j = 0; j < EACH; j++) kept[j] *= scale * factors[j];
        to.store(e, blockIdx.x, column + i, kept);
    }
}
#define RMSNORM(NAME, T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(1024)                                                         \
    rmsnorm_##NAME(Act* y, u8* prepared, u8* rotated, const T* x, const float* w, u32 cols, float eps) {       \
        rmsnorm(y, prepared, rotated, x, w, cols, eps);                                                        \
    }
RMSNORM(f, F32)
RMSNORM(a, Act)

// score is one under the cap.
template <bool CAPPED>
__device__ __forceinline__ float score(F32 x, float cap) {
    return CAPPED ? cap * tanhf(value(x) / cap) : value(x);
}

// softmax turns the scores [heads][rows][ld] of a block of queries, the first of which
// is token from, into probabilities. Column j is the key lo + j. Keys that a query
// does not see have probability 0. lse [heads][tokens] may be null. A warp takes a row: first
// for the largest score and the sum of exponentials beside it, which shrinks as a larger one
// turns up, then for the probabilities. ld is a multiple of EACH. A cap of 0 is none; sinks [heads], a score
// of each row besides its own, may be null.
template <bool CAPPED>
__device__ __forceinline__ void softmax(Act* p, float* lse, const float* scores, u32 rows, u32 ld, u32 from, u32 lo, u32 window, u32 tokens,
                                        const float* sinks, float cap) {
    const u32 r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    const u32 token = from + r;
    const u32 begin = window && token + 1 > window + lo ? token + 1 - window - lo : 0, end = token + 1 - lo;
    const u64 row = ((u64)blockIdx.y * rows + r) * ld;
    scores += row;
    p += row;
    float m = -__int_as_float(0x7f800000), sum = 0;
    for (u32 i = (begin / EACH / 32 * 32 + lane) * EACH; i < end; i += 32 * EACH) {
        const Pack<F32> x = *(const Pack<F32>*)(scores + i);
        float top = m;
#pragma unroll
        for (u32 j = 0; j < EACH; j++)
            if (i + j >= begin && i + j < end) top = fmaxf(top, score<CAPPED>(x.at[j], cap));
        sum *= top == m ? 1.0f : __expf(m - top);
        m = top;
#pragma unroll
        for (u32 j = 0; j < EACH; j++)
            if (i + j >= begin && i + j < end) sum += __expf(score<CAPPED>(x.at[j], cap) - m);
    }
    float top = m;
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, half));
    sum = m == top ? sum : sum * __expf(m - top);
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffff, sum, half);
    if (sinks) {
        const float sink = sinks[blockIdx.y], above = fmaxf(top, sink);
        sum = sum * __expf(top - above) + __expf(sink - above);
        top = above;
    }
    const float inverse = 1 / sum;
    for (u32 i = lane * EACH; i < ld; i += 32 * EACH) {
        Pack<Act> to;
        if (i < end && i + EACH > begin) {
            const Pack<F32> x = *(const Pack<F32>*)(scores + i);
#pragma unroll
            for (u32 j = 0; j < EACH; j++) set(to.at[j], i + j >= begin && i + j < end ? __expf(score<CAPPED>(x.at[j], cap) - top) * inverse : 0);
        } else {
#pragma unroll
            for (u32 j = 0; j < EACH; j++) set(to.at[j], 0);
        }
        *(Pack<Act>*)(p + i) = to;
    }
    if (lse && lane == 0) lse[(u64)blockIdx.y * tokens + token] = top + logf(sum);
}
#define SOFTMAX(NAME, CAPPED)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) NAME(Act* p, float* lse, const float* scores, u32 rows, u32 ld, \
                                                           u32 from, u32 lo, u32 window, u32 tokens, const float* sinks, float cap) { \
        softmax<CAPPED>(p, lse, scores, rows, ld, from, lo, window, tokens, sinks, cap);                              \
    }
SOFTMAX(softmax_plain, false)
SOFTMAX(softmax_capped, true)

// ---- losses ----

// Exponentials are float32, and sums of them float64: the losses are differences of
// such sums, and there are two additions for each of hundreds of bytes.

__device__ __forceinline__ float row_max(const float* x, u32 n) {
    float m = -__int_as_float(0x7f800000);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, finite(x[i]) ? x[i] : not_a_number());
    return reduce(m, Max());
}

// exponential is e^(x−m), and not a number for an x that is not finite.
__device__ __forceinline__ float exponential(float x, float m) { return finite(x) ? expf(x - m) : not_a_number(); }

extern "C" __global__ void __launch_bounds__(1024)
cross_entropy(float* loss, Act* dlogits, const float* logits, const u32* targets, u32 n, float scale) {
    const u64 row = (u64)blockIdx.x * n;
    const u32 target = targets[blockIdx.x];
    logits += row;
    const float m = row_max(logits, n);
    double sum = 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum += exponential(logits[i], m);
    sum = reduce(sum, Sum());
    if (threadIdx.x == 0) loss[blockIdx.x] = (float)(log(sum) - ((double)logits[target] - m));
    if (!dlogits) return;
    const float inverse = (float)(1 / sum);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x)
        set(dlogits[row + i], scale * (expf(logits[i] - m) * inverse - (i == target ? 1.0f : 0.0f)));
}

// KL(t‖s) = Σ p_t·(t − s) − ln Σ eᵗ + ln Σ eˢ with p_t = eᵗ/Σ eᵗ
extern "C" __global__ void __launch_bounds__(1024)
divergence(float* loss, Act* dlogits, const float* logits, const float* teacher, u32 n, float scale) {
    const u64 row = (u64)blockIdx.x * n;
    logits += row;
    teacher += row;
    const float ms = row_max(logits, n), mt = row_max(teacher, n);
    double zs = 0, zt = 0, apart = 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        float s = logits[i], t = teacher[i], e = exponential(t, mt);
        zs += exponential(s, ms);
        zt += e;
        apart += e * ((double)t - s);
    }
    zs = reduce(zs, Sum());
    zt = reduce(zt, Sum());
    apart = reduce(apart, Sum());
    if (threadIdx.x == 0) loss[blockIdx.x] = (float)(apart / zt - (log(zt) + mt) + (log(zs) + ms));
    if (!dlogits) return;
    const float is = (float)(1 / zs), it = (float)(1 / zt);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x)
        set(dlogits[row + i], scale * (expf(logits[i] - ms) * is - expf(teacher[i] - mt) * it));
}

// ---- others ----

// Exponentials are those of a thread's part of a row beside the largest number so far: their sum, in float64.
struct Exponentials {
    float top;
    double sum;
    // rise makes top the largest of some more, and returns what the sums so far shrink by.
    __device__ __forceinline__ float rise(const Pack<F32>& x, u32 count) {
        float above = top;
#pragma unroll
        for (u32 j = 0; j < EACH; j++)
            if (j < count && finite(value(x.at[j]))) above = fmaxf(above, value(x.at[j]));
        const float shrink = above == top ? 1.0f : expf(top - above);
        top = above;
        sum *= shrink;
        return shrink;
    }
};

// score finds of every row of logits [n] in one pass −ln p of the target, the most likely token and, unless teacher is null, the divergence
// from the teacher's: what cross_entropy, argmax and divergence find. scores is [3][rows].
template <bool TAUGHT>
__device__ __forceinline__ void score_row(float* scores, const float* logits, const float* teacher, const u32* targets, u32 n) {
    const u64 row = (u64)blockIdx.x * n;
    Exponentials s = {-3.402823466e38f, 0}, t = s;
    double apart = 0;
    Best best = {-__int_as_float(0x7f800000), n};
    for (u32 i = threadIdx.x * EACH; i < n; i += blockDim.x * EACH) {
        const Elements e(row + i, row + n);
        const Pack<F32> x = e.read((const F32*)logits);
        Pack<F32> y;
        if (TAUGHT) y = e.read((const F32*)teacher);
        s.rise(x, e.count);
        if (TAUGHT) apart *= t.rise(y, e.count);
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            if (j >= e.count) break;
            const float a = value(x.at[j]);
            s.sum += exponential(a, s.top);
            if (a > best.v) best = {a, i + j};
            if (TAUGHT) {
                const float b = value(y.at[j]), p = exponential(b, t.top);
                t.sum += p;
                apart += p * ((double)b - a);
            }
        }
    }
    const float top = reduce(s.top, Max());
    const double z = log(reduce(s.sum * expf(s.top - top), Sum())) + top;
    double kl = 0;
    if (TAUGHT) {
        const float above = reduce(t.top, Max()), shrink = expf(t.top - above);
        const double sum = reduce(t.sum * shrink, Sum());
        kl = reduce(apart * shrink, Sum()) / sum - (log(sum) + above) + z;
    }
    best = best_of(best);
    if (threadIdx.x != 0) return;
    scores[blockIdx.x] = (float)(z - logits[row + targets[blockIdx.x]]);
    scores[gridDim.x + blockIdx.x] = (float)best.i;
    scores[2 * gridDim.x + blockIdx.x] = (float)kl;
}
extern "C" __global__ void __launch_bounds__(1024)
score_alone(float* scores, const float* logits, const float*, const u32* targets, u32 n) { score_row<false>(scores, logits, nullptr, targets, n); }
extern "C" __global__ void __launch_bounds__(1024)
score_taught(float* scores, const float* logits, const float* teacher, const u32* targets, u32 n) { score_row<true>(scores, logits, teacher, targets, n); }

// not_finite notes 1 for a row with a NaN or infinity, and 0 for others.
template <class T>
__device__ __forceinline__ void not_finite(float* bad, const T* x, u32 n) {
    begin();
    x += (u64)blockIdx.x * n;
    bool any = false;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) any |= !finite(value(x[i]));
    any = __syncthreads_or(any);
    if (threadIdx.x == 0) bad[blockIdx.x] = any;
}
extern "C" __global__ void __launch_bounds__(1024) not_finite_f(float* bad, const F32* x, u32 n) { not_finite(bad, x, n); }
extern "C" __global__ void __launch_bounds__(1024) not_finite_a(float* bad, const Act* x, u32 n) { not_finite(bad, x, n); }
