// What is kept of texts that go on: keys and values [slots][heads][head], the positions of a head one after the
// other, dim elements each. rows [rows][2] has slot and position of every row of a step.

// keep writes keys and values [rows][heads][dim] to their places.
extern "C" __global__ void __launch_bounds__(256)
keep(Act* keys, Act* values, const Act* k, const Act* v, const float* rows, u32 heads, u32 dim, u64 head, u64 n) {
    for (u64 i = (u64)blockIdx.x * EACH * blockDim.x + threadIdx.x, end = i + EACH * blockDim.x; i < end && i < n; i += blockDim.x) {
        const u64 row = i / dim / heads, h = i / dim % heads, slot = (u64)rows[2 * row], position = (u64)rows[2 * row + 1];
        const u64 to = (slot * heads + h) * head + position * dim + i % dim;
        keys[to] = k[i];
        values[to] = v[i];
    }
}

// The threads of a block of recall, and the most elements of a head.
constexpr u32 RECALL_WARPS = 8, RECALL_DIM = 256;

// recall is the attention of one query, head blockIdx.y of row blockIdx.x, over what is kept. Its warps take the keys
// in turn. Each has the largest score so far, the sum of exponentials beside it and the mixture of values by those,
// which shrink as a larger score turns up; in the end the mixtures are added up. out may be q.
template <bool CAPPED>
__device__ __forceinline__ void recall(Act* out, const Act* q, const Act* keys, const Act* values, const float* rows, u32 heads, u32 group,
                                       u32 dim, u64 head, u32 window, const float* sinks, float scale, float cap) {
    __shared__ float mixtures[RECALL_WARPS * RECALL_DIM];
    __shared__ float tops[RECALL_WARPS], sums[RECALL_WARPS];
    begin();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 slot = (u64)rows[2 * blockIdx.x];
    const u32 position = (u32)rows[2 * blockIdx.x + 1];
    const u32 first = window && position + 1 > window ? position + 1 - window : 0;
    const u64 from = (slot * (heads / group) + blockIdx.y / group) * head;
    const u64 at = ((u64)blockIdx.x * heads + blockIdx.y) * dim;
    keys += from;
    values += from;

    constexpr u32 SHARE = RECALL_DIM / 32;
    float x[SHARE], mixture[SHARE], top = -__int_as_float(0x7f800000), sum = 0;
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
        const u32 d = lane + 32 * i;
        x[i] = d < dim ? value(q[at + d]) : 0;
        mixture[i] = 0;
    }
    for (u32 j = first + warp; j <= position; j += RECALL_WARPS) {
        const u64 key = (u64)j * dim;
        float s = 0;
#pragma unroll
        for (u32 i = 0; i < SHARE; i++)
            if (lane + 32 * i < dim) s = fmaf(x[i], value(keys[key + lane + 32 * i]), s);
#pragma unroll
        for (u32 half = 16; half > 0; half /= 2) s += __shfl_xor_sync(0xffffffff, s, half);
        s *= scale;
        if (CAPPED) s = cap * tanhf(s / cap);
        const float above = fmaxf(top, s), shrink = __expf(top - above), p = __expf(s - above);
        top = above;
        sum = sum * shrink + p;
#pragma unroll
        for (u32 i = 0; i < SHARE; i++)
            if (lane + 32 * i < dim) mixture[i] = fmaf(p, value(values[key + lane + 32 * i]), mixture[i] * shrink);
    }
#pragma unroll
    for (u32 i = 0; i < SHARE; i++)
        if (lane + 32 * i < dim) mixtures[warp * RECALL_DIM + lane + 32 * i] = mixture[i];
    if (lane == 0) {
        tops[warp] = top;
        sums[warp] = sum;
    }
    __syncthreads();

    float above = sinks ? sinks[blockIdx.y] : tops[0], all = 0;
    for (u32 w = 0; w < RECALL_WARPS; w++) above = fmaxf(above, tops[w]);
    if (sinks) all = __expf(sinks[blockIdx.y] - above);
    for (u32 w = 0; w < RECALL_WARPS; w++) all += sums[w] * __expf(tops[w] - above);
    for (u32 d = threadIdx.x; d < dim; d += blockDim.x) {
        float v = 0;
        for (u32 w = 0; w < RECALL_WARPS; w++)
            if (sums[w] > 0) v = fmaf(__expf(tops[w] - above), mixtures[w * RECALL_DIM + d], v);
        set(out[at + d], v / all);
    }
}
#define RECALL(NAME, CAPPED)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) NAME(Act* out, const Act* q, const Act* keys, const Act* values, const float* rows,   \
                                                           u32 heads, u32 group, u32 dim, u64 head, u32 window, const float* sinks,        \
                                                           float scale, float cap) {                                                        \
        recall<CAPPED>(out, q, keys, values, rows, heads, group, dim, head, window, sinks, scale, cap);                                     \
    }
RECALL(recall_plain, false)
RECALL(recall_capped, true)
