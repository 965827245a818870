// Rounding of one column after the other, with the error of each fed into those after it, a block of
// columns at a time: see package quantize/gptq.

constexpr u32 WIDTH = 128;    // columns of a block
constexpr u32 THREADS = 256;  // which are as many warps as rows of a thread block

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

// round_columns rounds columns of v [rows, k], the WIDTH from a first one on and those of the blocks after it
// that the grid has, to the nearest of count levels, which are those of their row and group, the first of equals.
// It writes codes [rows, k] in the columns' own order, and what goal [rows, k] is off from the levels to e. With
// feed each column's error goes into those of the block that come after it, and what is lost is added to loss.
//
// A warp has a row, WIDTH / 32 columns a lane in registers, and each lane holds one level against the column at
// hand: a column takes as long as a minimum over the warp, and many rows are under way on a multiprocessor.
extern "C" __global__ void __launch_bounds__(256) round_columns(u8* codes, float* e, u32 lde, float* loss, const float* v, const float* goal,
                                                                const float* levels, const float* a, const float* squares, const u32* order,
                                                                u32 rows, u32 k, u32 from, u32 group, u32 count, u32 feed) {
    const u32 lane = threadIdx.x % 32, row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    from += blockIdx.y * WIDTH;
    const u32 n = k - from < WIDTH ? k - from : WIDTH;
    v += (u64)row * k + from;
    goal += (u64)row * k + from;
    codes += (u64)row * k;
    e += (u64)row * lde + blockIdx.y * WIDTH;
    levels += (u64)row * ((k + group - 1) / group) * count;
    a += (u64)from * k + from;
    float x[WIDTH / 32], lost = 0;
#pragma unroll
    for (u32 m = 0; m < WIDTH / 32; m++) x[m] = m * 32 + lane < n ? v[m * 32 + lane] : 0.0f;
#pragma unroll
    for (u32 m = 0; m < WIDTH / 32; m++) {
        for (u32 i = m * 32; i < m * 32 + 32 && i < n; i++) {
            const u32 column = order[from + i];
            const float level = lane < count ? levels[(u64)(column / group) * count + lane] : 0.0f;
            const float own = goal[i], value = __shfl_sync(0xffffffff, x[m], i % 32);
            // Distances are not negative, so that their bits are in their order.
            u64 least = lane < count ? (u64)(u32)__float_as_int(fabsf(value - level)) << 32 | lane : ~0ull;
#pragma unroll
            for (u32 other = 16; other > 0; other /= 2) {
                const u64 there = __shfl_xor_sync(0xffffffff, least, other);
                least = there < least ? there : least;
            }
            const float at = __shfl_sync(0xffffffff, level, (u32)least % 32), error = own - at;
            if (lane == 0) {
                codes[column] = (u8)least;
                e[i] = error;
            }
            if (!feed) continue;
            lost = fmaf(squares[from + i] * (value - at), value - at, lost);
            const float* carry = a + (u64)i * k;
#pragma unroll
            for (u32 j = m; j < WIDTH / 32; j++)
                if (j * 32 + lane < n) x[j] = fmaf(error, carry[j * 32 + lane], x[j]);
        }
    }
    if (feed && lane == 0) loss[row] += lost;
}

// weigh writes Σ squares[j]·x[row, j]² to y[row].
extern "C" __global__ void __launch_bounds__(256) weigh(float* y, const float* x, const float* squares, u32 k) {
    const u64 row = (u64)blockIdx.x * k;
    float sum = 0;
    for (u32 j = threadIdx.x; j < k; j += THREADS) sum = fmaf(squares[j] * x[row + j], x[row + j], sum);
    sum = reduce(sum, Sum());
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
