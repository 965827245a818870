// What is kept of texts that go on: keys and values [slots][heads][head], the positions of a head one after the
// other, dim elements each. rows [rows][2] has slot and position of every row of a step.

// keep writes keys and values of n heads [rows][heads][dim] to their places. A thread has EACH elements of both.
extern "C" __global__ void __launch_bounds__(256)
keep(Act* keys, Act* values, const Act* k, const Act* v, const float* rows, u32 heads, u32 dim, u64 head, u32 n) {
    const u32 threads = (dim - 1) / EACH + 1, thread = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 at = thread / threads, i = thread % threads * EACH, row = at / heads;
    if (at >= n) return;
    const u64 from = (u64)at * dim, to = ((u64)rows[2 * row] * heads + at % heads) * head + (u64)rows[2 * row + 1] * dim;
    const Elements source(from + i, from + dim), place(to + i, to + dim);
    float key[EACH], value[EACH];
    source.load(key, k);
    source.load(value, v);
    place.store(keys, key);
    place.store(values, value);
}

// The warps of a block of recall, the elements of a head that they have at once, and the keys that a part of a warp has at a
// time, or of heads that are wider half as many.
constexpr u32 RECALL_WARPS = 16, RECALL_DIM = 256, RECALL_KEYS = 4;

// Mixed are values mixed by the exponentials of scores beside the largest of these: their sum, and N elements.
template <u32 N>
struct Mixed {
    float top, sum, at[N];
    __device__ __forceinline__ Mixed() : top(LOWEST), sum(0) {
#pragma unroll
        for (u32 i = 0; i < N; i++) at[i] = 0;
    }
    // rise makes top the largest score, which shrinks what there is.
    __device__ __forceinline__ void rise(float score) {
        const float above = fmaxf(top, score), shrink = __expf(top - above);
        top = above;
        sum *= shrink;
#pragma unroll
        for (u32 i = 0; i < N; i++) at[i] *= shrink;
    }
};

// recall is the attention of one query, head blockIdx.y of row blockIdx.x, over a part of what is kept, one of gridDim.z. As
// many lanes as it takes have a key together, SPANS times EACH elements each, and some of them at a time; what they and the
// warps have mixed is added up in the end. Where there are several parts, these write the
// mixture, its sum and the largest score to parts [rows][heads][gridDim.z][dim + 2], for recall_sum. out may be q.
template <bool CAPPED, u32 SPANS>
__device__ __forceinline__ void recall(Act* out, float* parts, const Act* q, const Act* keys, const Act* vals, const float* rows, u32 heads,
                                       u32 group, u32 dim, u64 head, u32 window, const float* sinks, float scale, float cap) {
    constexpr u32 DIM = RECALL_DIM * SPANS, KEYS = RECALL_KEYS / SPANS;
    __shared__ float mixtures[RECALL_WARPS * DIM];
    __shared__ float tops[RECALL_WARPS], sums[RECALL_WARPS];
    begin();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 slot = (u64)rows[2 * blockIdx.x];
    const u32 position = (u32)rows[2 * blockIdx.x + 1];
    const u32 seen = window && position + 1 > window ? position + 1 - window : 0, share = (position - seen) / gridDim.z + 1;
    const u32 first = seen + blockIdx.z * share, end = min(first + share, position + 1);
    const u64 from = (slot * (heads / group) + blockIdx.y / group) * head;
    const u64 at = (u64)blockIdx.x * heads + blockIdx.y;

    const u32 lanes = dim <= 8 * EACH ? 8 : dim <= 16 * EACH ? 16 : 32, each = 32 / lanes;
    const u32 d = lane % lanes * EACH;
    float x[SPANS][EACH];
#pragma unroll
    for (u32 p = 0; p < SPANS; p++) Elements(at * dim + d + p * RECALL_DIM, (at + 1) * dim).load(x[p], q);
    Mixed<SPANS * EACH> m;
    for (u32 base = first + warp * each * KEYS; base < end; base += RECALL_WARPS * each * KEYS) {
        Pack<Act> k[KEYS][SPANS], v[KEYS][SPANS];
        float s[KEYS], top = LOWEST;
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            const u64 key = from + (u64)min(base + i * each + lane / lanes, end - 1) * dim;
#pragma unroll
            for (u32 p = 0; p < SPANS; p++) {
                const Elements e(key + d + p * RECALL_DIM, key + dim);
                k[i][p] = e.read(keys);
                v[i][p] = e.read(vals);
            }
        }
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            s[i] = 0;
#pragma unroll
            for (u32 p = 0; p < SPANS; p++)
#pragma unroll
                for (u32 j = 0; j < EACH; j++) s[i] = fmaf(x[p][j], value(k[i][p].at[j]), s[i]);
#pragma unroll
            for (u32 half = 16; half > 0; half /= 2) {
                const float other = __shfl_xor_sync(0xffffffff, s[i], half);
                if (half < lanes) s[i] += other;
            }
            s[i] *= scale;
            if (CAPPED) s[i] = cap * tanhf(s[i] / cap);
            if (base + i * each + lane / lanes < end) top = fmaxf(top, s[i]);
        }
        m.rise(top);
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            const float e = base + i * each + lane / lanes < end ? __expf(s[i] - m.top) : 0;
            m.sum += e;
#pragma unroll
            for (u32 p = 0; p < SPANS; p++)
#pragma unroll
                for (u32 j = 0; j < EACH; j++) m.at[p * EACH + j] = fmaf(e, value(v[i][p].at[j]), m.at[p * EACH + j]);
        }
    }
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) {
        const float top = __shfl_xor_sync(0xffffffff, m.top, half);
        if (half >= lanes) m.rise(top);
        const float sum = __shfl_xor_sync(0xffffffff, m.sum, half);
        if (half >= lanes) m.sum += sum;
#pragma unroll
        for (u32 j = 0; j < SPANS * EACH; j++) {
            const float other = __shfl_xor_sync(0xffffffff, m.at[j], half);
            if (half >= lanes) m.at[j] += other;
        }
    }
    if (lane < lanes)
#pragma unroll
        for (u32 p = 0; p < SPANS; p++)
#pragma unroll
            for (u32 j = 0; j < EACH; j++)
                if (d + p * RECALL_DIM + j < dim) mixtures[warp * DIM + d + p * RECALL_DIM + j] = m.at[p * EACH + j];
    if (lane == 0) {
        tops[warp] = m.top;
        sums[warp] = m.sum;
    }
    __syncthreads();

    // What a warp's mixture counts beside the others; every warp finds it for all.
    const bool whole = gridDim.z == 1;
    float top = lane < RECALL_WARPS ? tops[lane] : LOWEST, sink = LOWEST;
    if (whole && sinks) sink = sinks[blockIdx.y];
    const float mine = top;
    top = fmaxf(top, sink);
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, half));
    const float weight = __expf(mine - top);
    float sum = lane < RECALL_WARPS ? sums[lane] * weight : 0;
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffff, sum, half);
    if (whole && sinks) sum += __expf(sink - top);
    float* part = parts + (at * gridDim.z + blockIdx.z) * (dim + 2);
    for (u32 i = warp * 32; i < dim; i += blockDim.x) {
        float v = 0;
#pragma unroll
        for (u32 w = 0; w < RECALL_WARPS; w++) {
            const float share = __shfl_sync(0xffffffff, weight, w);
            if (i + lane < dim) v = fmaf(share, mixtures[w * DIM + i + lane], v);
        }
        if (i + lane >= dim) continue;
        if (whole)
            set(out[at * dim + i + lane], v / sum);
        else
            part[i + lane] = v;
    }
    if (!whole && threadIdx.x == 0) {
        part[dim] = sum;
        part[dim + 1] = top;
    }
}
#define RECALL(NAME, CAPPED, SPANS)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * RECALL_WARPS) NAME(Act* out, float* parts, const Act* q, const Act* keys,             \
                                                                         const Act* values, const float* rows, u32 heads, u32 group,        \
                                                                         u32 dim, u64 head, u32 window, const float* sinks, float scale,    \
                                                                         float cap) {                                                       \
        recall<CAPPED, SPANS>(out, parts, q, keys, values, rows, heads, group, dim, head, window, sinks, scale, cap);                       \
    }
RECALL(recall_plain, false, 1)
RECALL(recall_capped, true, 1)
RECALL(recall_wide_plain, false, 2)
RECALL(recall_wide_capped, true, 2)

// recall_sum adds up the parts of a query, head blockIdx.y of row blockIdx.x.
extern "C" __global__ void __launch_bounds__(128) recall_sum(Act* out, const float* parts, u32 heads, u32 dim, u32 count, const float* sinks) {
    begin();
    const u64 at = (u64)blockIdx.x * heads + blockIdx.y;
    const u32 pitch = dim + 2;
    parts += at * count * pitch;
    float top = sinks ? sinks[blockIdx.y] : LOWEST, sum = 0;
    for (u32 p = 0; p < count; p++) top = fmaxf(top, parts[p * pitch + dim + 1]);
    if (sinks) sum = __expf(sinks[blockIdx.y] - top);
    for (u32 p = 0; p < count; p++) sum += parts[p * pitch + dim] * __expf(parts[p * pitch + dim + 1] - top);
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = 0;
        for (u32 p = 0; p < count; p++) v = fmaf(__expf(parts[p * pitch + dim + 1] - top), parts[p * pitch + i], v);
        set(out[at * dim + i], v / sum);
    }
}
