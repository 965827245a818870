// What a step of one token a text has to do between products, in few kernels.

// add_norm adds rows of x to h and writes the RMS norm of the sums.
extern "C" __global__ void __launch_bounds__(1024) add_norm(Act* y, u8* prepared, u8* rotated, F32* h, const Act* x, const float* w, u32 cols, float eps) {
    const u64 row = (u64)blockIdx.x * cols, end = row + cols;
    const u32 first = threadIdx.x * EACH, stride = blockDim.x * EACH, before = threadIdx.x % 32 * EACH;
    const Inputs inputs = {y, prepared, rotated, (gridDim.x + 7) / 8};
    float kept[EACH] = {}, factors[EACH], sum = 0;  // the first of a thread's, mostly all of them
    Elements(first, cols).load(factors, (const F32*)w);  // which no kernel writes
    begin();
    for (u32 i = first; i < cols; i += stride) {
        const Elements e(row + i, end);
        const Pack<F32> to = e.read(h);
        const Pack<Act> more = e.read(x);
        float a[EACH], b[EACH];
        values(a, to);
        values(b, more);
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            a[j] += b[j];
            sum += a[j] * a[j];
            if (i == first) kept[j] = a[j];
        }
        e.store(h, a);
    }
    const float scale = 1 / sqrtf(reduce(sum, Sum()) / cols + eps);
    for (u32 i = first; i - before < cols; i += stride) {  // by whole warps
        const Elements e(row + i, end);
        if (i != first) {
            e.load(kept, h);
            Elements(i, cols).load(factors, (const F32*)w);
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) kept[j] *= scale * factors[j];
        inputs.store(e, blockIdx.x, i, kept);
    }
}

// turn_keep turns the pairs (i, i + half) of a head of queries or keys by the angles of the row, queries in place, and writes
// keys and values [slots][heads][head] to their places. rows [rows][2] has slot and position of each. A block has a
// head: the first are queries, then come keys, then values.
extern "C" __global__ void __launch_bounds__(64)
turn_keep(Act* q, Act* keys, Act* values, const Act* k, const Act* v, const float* cos, const float* sin, const float* rows,
          u32 heads, u32 kv_heads, u32 dim, u32 half, u64 head) {
    begin();
    const u32 row = blockIdx.y, kv = (blockIdx.x - heads) % kv_heads;
    const bool query = blockIdx.x < heads, turned = blockIdx.x < heads + kv_heads;
    const u64 slot = (u64)rows[2 * row], position = (u64)rows[2 * row + 1];
    const Act* from = query ? q + ((u64)row * heads + blockIdx.x) * dim : (turned ? k : v) + ((u64)row * kv_heads + kv) * dim;
    Act* to = query ? (Act*)from : (turned ? keys : values) + (slot * kv_heads + kv) * head + position * dim;
    if (turned)
        for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
            const float a = value(from[i]), b = value(from[half + i]), c = cos[row * half + i], s = sin[row * half + i];
            set(to[i], a * c - b * s);
            set(to[half + i], b * c + a * s);
        }
    if (!query)
        for (u32 i = (turned ? 2 * half : 0) + threadIdx.x; i < dim; i += blockDim.x) to[i] = from[i];
}
