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

// The threads of a block of add_norm_beside, and the columns that it has room for.
constexpr u32 BESIDE_THREADS = 128, BESIDE_COLUMNS = 4096;

extern __shared__ __align__(128) u8 shared[];

// add_norm_beside is add_norm of rows of a multiple of 128 columns, to the same bits, in blocks for which a multiprocessor has registers and shared memory
// beside a block of lutmany.cu: the product behind has its table and its first codes by the time that this ends.
extern "C" __global__ void __launch_bounds__(128, 16)
add_norm_beside(u8* prepared, F32* h, const Act* x, const float* w, u32 cols, float eps) {
    constexpr u32 PART = BESIDE_THREADS * EACH, PARTS = BESIDE_COLUMNS / PART, SUMS = BESIDE_COLUMNS / 256;
    struct alignas(16) Four { float at[4]; };
    float* const kept = (float*)shared;         // [cols]
    __shared__ __align__(16) float sums[SUMS];  // of 256 columns each, as add_norm's warps have them
    const u32 first = threadIdx.x * EACH;
    if (threadIdx.x * 32 < cols) prefetch(w + threadIdx.x * 32);
    begin();
    h += (u64)blockIdx.x * cols;
    x += (u64)blockIdx.x * cols;
    Pack<Act> more[PARTS];
#pragma unroll
    for (u32 r = 0; r < PARTS; r++) {
        const u32 i = first + r * PART;
        if (i >= cols) break;
        copy_async(shared_address(kept + i), h + i, 16);
        copy_async(shared_address(kept + i + 4), h + i + 4, 16);
        more[r] = *(const Pack<Act>*)(x + i);
    }
    end_copies();
    wait_copies<0>();
#pragma unroll
    for (u32 r = 0; r < PARTS; r++) {
        const u32 i = first + r * PART;
        float sum = 0;
        if (i < cols)
#pragma unroll
            for (u32 j = 0; j < EACH; j += 4) {
                Four to = *(const Four*)(kept + i + j);
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    to.at[k] += value(more[r].at[j + k]);
                    sum += to.at[k] * to.at[k];
                }
                *(Four*)(kept + i + j) = to;
                *(Four*)(h + i + j) = to;
            }
#pragma unroll
        for (u32 lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
        if (threadIdx.x % 32 == 0) sums[(first + r * PART) / 256] = sum;
    }
    Four factors[2];
#pragma unroll
    for (u32 j = 0; j < 2; j++)
        if (first < cols) factors[j] = *(const Four*)(w + first + 4 * j);
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < SUMS; i++) sum += sums[i];
    const float scale = 1 / sqrtf(sum / cols + eps);
#pragma unroll
    for (u32 r = 0; r < PARTS; r++) {
        const u32 i = first + r * PART;
        if (i - threadIdx.x % 32 * EACH >= cols) break;  // by whole warps
        float normed[EACH] = {};
#pragma unroll
        for (u32 j = 0; j < EACH; j += 4)
            if (i < cols) {
                const Four at = *(const Four*)(kept + i + j);
#pragma unroll
                for (u32 k = 0; k < 4; k++) normed[j + k] = at.at[k] * (scale * factors[j / 4].at[k]);
                if (i + PART < cols) factors[j / 4] = *(const Four*)(w + i + PART + j);
            }
        Inputs{nullptr, prepared, nullptr, (gridDim.x + 7) / 8}.store(Elements(i, cols), blockIdx.x, i, normed);
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
