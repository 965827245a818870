// Kernels of ways to mix tokens besides attention, and of what some attentions have that others have not.

// rope_pairs turns the pairs (2i, 2i + 1) of n heads, dim elements apart, by the angles of their row, of which each has so
// many heads. A thread has a pair.
extern "C" __global__ void __launch_bounds__(256)
rope_pairs(Act* x, const float* cos, const float* sin, u32 heads, u32 half, u32 dim, float sign, u32 n) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x, head = at / half, i = at % half;
    if (head >= n) return;
    const u64 from = (u64)head * dim + 2 * i, angle = (u64)(head / heads) * half + i;
    const float a = value(x[from]), b = value(x[from + 1]), c = cos[angle], s = sign * sin[angle];
    set(x[from], a * c - b * s);
    set(x[from + 1], b * c + a * s);
}

// glu_sigmoid multiplies by the sigmoids of gates, as the kernels glu of elements.cu do by other activations.
extern "C" __global__ void __launch_bounds__(256)
glu_sigmoid(Act* y, u8* prepared, u8* rotated, const Act* g, const Act* u, float, float, u64 pitch, u64 cols, u32 rows) {
    begin();
    const Share share(cols, pitch, rows);
    float a[EACH], b[EACH];
    share.from.load(a, g);
    share.from.load(b, u);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) b[i] /= 1.0f + __expf(-a[i]);
    Inputs{y, prepared, rotated, (rows + 7) / 8}.store(share.to, share.row, (u32)share.column, b);
}

// copy_heads copies n elements: heads of width, as many of a row as there are heads, from where they stand in rows to where they stand in
// others. A thread has an element.
template <class T>
__device__ __forceinline__ void copy_heads(T* dst, const T* src, u32 heads, u32 width, u32 toRow, u32 toHead, u32 fromRow, u32 fromHead, u32 n) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x, i = at % width, head = at / width % heads;
    const u64 row = at / width / heads;
    if (at >= n) return;
    dst[row * toRow + (u64)head * toHead + i] = src[row * fromRow + (u64)head * fromHead + i];
}
#define COPY_HEADS(NAME, T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                                   \
    NAME(T* dst, const T* src, u32 heads, u32 width, u32 toRow, u32 toHead, u32 fromRow, u32 fromHead, u32 n) {         \
        copy_heads(dst, src, heads, width, toRow, toHead, fromRow, fromHead, n);                                        \
    }
COPY_HEADS(copy_heads_f, F32)
COPY_HEADS(copy_heads_a, Act)

// Run are the rows of a text in a step from row first on. rows [n][2] has the slot and the position of each row, those of a text one
// behind the other; without, all n rows are a text from its beginning.
struct Run {
    const float* rows;
    u32 first, n, slot, position;
    __device__ __forceinline__ Run(const float* rows, u32 first, u32 n) : rows(rows), first(first), n(n) {
        slot = rows ? (u32)rows[2 * first] : 0;
        position = rows ? (u32)rows[2 * first + 1] : 0;
    }
    __device__ __forceinline__ bool begins() const { return first == 0 || (u32)rows[2 * first - 2] != slot; }
    __device__ __forceinline__ bool has(u32 row) const { return row < n && (!rows || (u32)rows[2 * row] == slot); }
};

// The most tokens that a convolution sees.
constexpr u32 CONVOLVED = 8;

// convolve passes each channel of the rows of the run that begins at row blockIdx.y through its own weights, and SiLU. The input of
// position p is kept in row p mod width - 1 of its slot. A thread has a channel.
extern "C" __global__ void __launch_bounds__(256)
convolve(Act* y, const Act* x, const float* w, const float* bias, Act* kept, const float* rows, u32 channels, u32 width, u32 silu, u32 n) {
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x, behind = width - 1;
    const Run run(rows, blockIdx.y, n);
    if (c >= channels || !run.begins()) return;
    float weights[CONVOLVED], past[CONVOLVED];  // the last first
    Act* ring = kept + (u64)run.slot * behind * channels + c;
#pragma unroll
    for (u32 j = 0; j < CONVOLVED; j++) {
        weights[j] = j < width ? w[(u64)c * width + behind - j] : 0;
        past[j] = kept && j < behind && j < run.position ? value(ring[(u64)((run.position - 1 - j) % behind) * channels]) : 0;
    }
    u32 row = run.first;
    for (; run.has(row); row++) {
        const float in = value(x[(u64)row * channels + c]);
        float sum = bias ? bias[c] : 0;
#pragma unroll
        for (u32 j = CONVOLVED - 1; j > 0; j--) sum = fmaf(weights[j], past[j - 1], sum);
        sum = fmaf(weights[0], in, sum);
        if (silu) sum *= 1.0f / (1.0f + __expf(-sum));
        set(y[(u64)row * channels + c], sum);
#pragma unroll
        for (u32 j = CONVOLVED - 1; j > 0; j--) past[j] = past[j - 1];
        past[0] = in;
    }
    if (!kept) return;
    const u32 end = run.position + row - run.first;
#pragma unroll
    for (u32 j = 0; j < CONVOLVED; j++) {
        if (j < behind && j < end) set(ring[(u64)((end - 1 - j) % behind) * channels], past[j]);
    }
}

__device__ __forceinline__ float over_quad(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The most elements of a key, and threads of a block.
constexpr u32 DELTA_KEY = 256, DELTA_THREADS = 256;

// delta_rule takes the state of value head blockIdx.y through the rows of the run that begins at row blockIdx.x. Four threads have a
// column of the state [kDim][vDim], every fourth element of it each, in registers; queries and keys pass through shared memory, in
// two places by turns, so that a token takes one barrier. Blocks share out the columns, since the longest keys take the registers.
template <u32 EACH_KEY>
__device__ __forceinline__ void delta_rule(Act* o, const Act* x, const float* a, const float* b, const float* aLog, const float* bias, float* state,
                                           const float* rows, u32 kHeads, u32 vHeads, u32 kDim, u32 vDim, u32 n) {
    __shared__ float places[2][2 * DELTA_KEY];
    const Run run(rows, blockIdx.x, n);
    if (!run.begins()) return;
    const u32 h = blockIdx.y, part = threadIdx.x % 4, column = (blockIdx.z * blockDim.x + threadIdx.x) / 4, j = min(column, vDim - 1), keys = kHeads * kDim;
    const u64 channels = 2 * keys + vHeads * vDim, of = h / (vHeads / kHeads) * kDim;
    float* kept = state + ((u64)run.slot * vHeads + h) * kDim * vDim + j;
    float s[EACH_KEY];
#pragma unroll
    for (u32 i = 0; i < EACH_KEY; i++) s[i] = state && run.position > 0 && 4 * i + part < kDim ? kept[(u64)(4 * i + part) * vDim] : 0;
    const float rate = expf(aLog[h]), shorter = 1.0f / sqrtf((float)kDim);
    for (u32 row = run.first; run.has(row); row++) {
        float* place = places[row % 2];
        const Act* token = x + row * channels;
        for (u32 i = threadIdx.x; i < 4 * EACH_KEY; i += blockDim.x) {
            place[i] = i < kDim ? value(token[of + i]) : 0;
            place[DELTA_KEY + i] = i < kDim ? value(token[keys + of + i]) : 0;
        }
        __syncthreads();
        float qq = 0, kk = 0, found = 0;
#pragma unroll
        for (u32 i = 0; i < EACH_KEY; i++) {
            const float q = place[4 * i + part], k = place[DELTA_KEY + 4 * i + part];
            qq = fmaf(q, q, qq);
            kk = fmaf(k, k, kk);
            found = fmaf(s[i], k, found);
        }
        const float byQuery = shorter / sqrtf(over_quad(qq) + 1e-6f), byKey = 1.0f / sqrtf(over_quad(kk) + 1e-6f);
        const u64 gate = (u64)row * vHeads + h;
        const float step = a[gate] + bias[h], soft = step > 20 ? step : logf(1.0f + expf(step));
        const float decay = expf(-rate * soft), beta = 1.0f / (1.0f + expf(-b[gate]));
        const float d = (value(token[2 * keys + h * vDim + j]) - decay * byKey * over_quad(found)) * beta * byKey;
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < EACH_KEY; i++) {
            s[i] = fmaf(place[DELTA_KEY + 4 * i + part], d, s[i] * decay);
            sum = fmaf(s[i], place[4 * i + part], sum);
        }
        sum = over_quad(sum) * byQuery;
        if (part == 0 && column < vDim) set(o[gate * vDim + j], sum);
    }
    if (!state || column >= vDim) return;
#pragma unroll
    for (u32 i = 0; i < EACH_KEY; i++) {
        if (4 * i + part < kDim) kept[(u64)(4 * i + part) * vDim] = s[i];
    }
}
#define DELTA_RULE(KEY)                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(DELTA_THREADS, 1)                                                                            \
    delta_rule_##KEY(Act* o, const Act* x, const float* a, const float* b, const float* aLog, const float* bias, float* state,                \
                     const float* rows, u32 kHeads, u32 vHeads, u32 kDim, u32 vDim, u32 n) {                                                  \
        delta_rule<KEY / 4>(o, x, a, b, aLog, bias, state, rows, kHeads, vHeads, kDim, vDim, n);                                              \
    }
DELTA_RULE(64)
DELTA_RULE(128)
DELTA_RULE(256)

// The rows that a warp of by_heads has at a time.
constexpr u32 BY_HEADS_ROWS = 4;

// by_heads multiplies head blockIdx.y of rows x by its matrix w [heads][n][k]. A warp has a row of the matrix, and some rows of x.
extern "C" __global__ void __launch_bounds__(256)
by_heads(Act* y, const Act* x, const Act* w, u32 rows, u32 n, u32 k, u32 toRow, u32 toHead, u32 fromRow, u32 fromHead) {
    const u32 i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.y, first = blockIdx.z * BY_HEADS_ROWS;
    if (i >= n) return;
    const Act* by = w + ((u64)h * n + i) * k;
    const Act* from = x + (u64)h * fromHead;
    float sums[BY_HEADS_ROWS] = {};
    for (u32 j = lane; j < k; j += 32) {
        const float factor = value(by[j]);
#pragma unroll
        for (u32 r = 0; r < BY_HEADS_ROWS; r++) {
            if (first + r < rows) sums[r] = fmaf(value(from[(u64)(first + r) * fromRow + j]), factor, sums[r]);
        }
    }
#pragma unroll
    for (u32 r = 0; r < BY_HEADS_ROWS; r++) {
        for (u32 o = 16; o > 0; o /= 2) sums[r] += __shfl_xor_sync(0xffffffff, sums[r], o);
        if (lane == 0 && first + r < rows) set(y[(u64)(first + r) * toRow + (u64)h * toHead + i], sums[r]);
    }
}
