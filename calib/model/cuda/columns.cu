// Rounding of one column after the other, with the error of each fed into those after it, a block of
// columns at a time: see package quantize/gptq.

constexpr u32 SIDE = 64;  // columns of a block, and rows of a thread block
constexpr u32 THREADS = 256;

// reorder_columns writes y[row, i] = x[row, order[i]].
extern "C" __global__ void __launch_bounds__(256) reorder_columns(float* y, const float* x, const u32* order, u32 k) {
    const u64 row = (u64)blockIdx.x * k;
    for (u32 i = threadIdx.x; i < k; i += THREADS) y[row + i] = x[row + order[i]];
}

// pivots writes R[j, j]²·factor, of R that is the factor L with the order of its rows and columns reversed.
extern "C" __global__ void __launch_bounds__(256) pivots(float* y, const float* l, float factor, u32 k) {
    const u32 j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= k) return;
    const float r = l[(u64)(k - 1 - j) * (k + 1)];
    y[j] = r * r * factor;
}

// diagonal writes that of h.
extern "C" __global__ void __launch_bounds__(256) diagonal(float* y, const float* h, u32 k) {
    const u32 j = blockIdx.x * THREADS + threadIdx.x;
    if (j < k) y[j] = h[(u64)j * (k + 1)];
}

// round_columns rounds columns [from, from + n) of v [rows, k] to the nearest of count levels, which are
// those of their row and group, the first of equals. It writes codes [rows, k] in the columns' own order, what
// goal [rows, k] is off from the levels to e, and adds to loss. With feed each column's error goes into those of
// the block that come after it. A thread has a row, and all read the same number of A at a time.
extern "C" __global__ void __launch_bounds__(64) round_columns(u8* codes, float* e, u32 lde, float* loss, const float* v, const float* goal,
                                                               const float* levels, const float* a, const float* squares, const u32* order,
                                                               u32 rows, u32 k, u32 from, u32 n, u32 group, u32 count, u32 feed) {
    __shared__ float s[SIDE][SIDE];
    __shared__ float values[SIDE][SIDE + 1];  // a column more, so that a column lies in all banks
    const u32 first = blockIdx.x * SIDE, own = threadIdx.x, row = first + own;
    for (u32 i = 0; i < SIDE; i++) {
        const u32 j = threadIdx.x;
        s[i][j] = i < j && j < n ? a[(u64)(from + i) * k + from + j] : 0.0f;
        values[i][j] = first + i < rows && j < n ? v[(u64)(first + i) * k + from + j] : 0.0f;
    }
    __syncthreads();
    if (row >= rows) return;
    goal += (u64)row * k + from;
    codes += (u64)row * k;
    e += (u64)row * lde;
    levels += (u64)row * ((k + group - 1) / group) * count;
    float lost = 0;
    for (u32 i = 0; i < n; i++) {
        const u32 column = order[from + i];
        const float* level = levels + (u64)(column / group) * count;
        const float x = values[own][i];
        u32 code = 0;
        float at = level[0], least = fabsf(x - at);
        for (u32 c = 1; c < count; c++) {
            const float other = level[c], d = fabsf(x - other);
            if (d < least) {
                least = d;
                at = other;
                code = c;
            }
        }
        codes[column] = (u8)code;
        lost = fmaf(squares[from + i] * least, least, lost);
        const float error = goal[i] - at;
        e[i] = error;
        if (feed)
            for (u32 j = i + 1; j < n; j++) values[own][j] = fmaf(error, s[i][j], values[own][j]);
    }
    loss[row] += lost;
}

// weigh writes Σ squares[j]·x[row, j]² to y[row].
extern "C" __global__ void __launch_bounds__(256) weigh(float* y, const float* x, const float* squares, u32 k) {
    const u64 row = (u64)blockIdx.x * k;
    float sum = 0;
    for (u32 j = threadIdx.x; j < k; j += THREADS) sum = fmaf(squares[j] * x[row + j], x[row + j], sum);
    sum = reduce(sum, Sum());
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
