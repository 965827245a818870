// Factors of symmetric matrices, and what is solved with them: L·Lᵀ = H with L lower
// triangular, a block of 64 columns after the other. What lies off the diagonal blocks is
// left to products; here are the blocks, and the rows below them.

constexpr u32 SIDE = 64;      // of a block
constexpr u32 THREADS = 256;

// reorder writes y[i, j] = h[order[i], order[j]], with more added to the diagonal, or h itself where
// there is no order.
extern "C" __global__ void __launch_bounds__(256) reorder(float* y, const float* h, const u32* order, float more, u32 k) {
    const u32 row = blockIdx.x, from = order ? order[row] : row;
    for (u32 j = threadIdx.x; j < k; j += THREADS)
        y[(u64)row * k + j] = h[(u64)from * k + (order ? order[j] : j)] + (j == row ? more : 0.0f);
}

// factor_block factors the n rows and columns of a block at a, on and below its diagonal. A pivot
// that is not positive sets failed, and counts as 1. It is one thread block's work: a column
// after the other, in shared memory.
extern "C" __global__ void __launch_bounds__(256) factor_block(float* a, u32 ld, u32 n, u32* failed) {
    __shared__ float s[SIDE][SIDE + 1];
    for (u32 t = threadIdx.x; t < n * SIDE; t += THREADS)
        if (t % SIDE < n) s[t / SIDE][t % SIDE] = a[(u64)(t / SIDE) * ld + t % SIDE];
    __syncthreads();
    const u32 i = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
    for (u32 j = 0; j < n; j++) {
        float pivot = s[j][j];
        const bool bad = !(pivot > 0 && finite(pivot));
        if (bad) pivot = 1;
        const float root = sqrtf(pivot);
        __syncthreads();  // all have read it
        if (first == 0) {
            if (i == j) {
                s[j][j] = root;
                if (bad) *failed = 1;
            }
            if (i > j && i < n) s[i][j] = s[i][j] / root;
        }
        __syncthreads();
        if (i > j && i < n)
            for (u32 c = j + 1 + first; c <= i; c += THREADS / SIDE) s[i][c] = fmaf(-s[i][j], s[c][j], s[i][c]);
        __syncthreads();
    }
    for (u32 t = threadIdx.x; t < n * SIDE; t += THREADS)
        if (t % SIDE <= t / SIDE) a[(u64)(t / SIDE) * ld + t % SIDE] = s[t / SIDE][t % SIDE];
}

// solve_block replaces n columns of rows of x by x·L⁻ᵀ, or with BACK by x·L⁻¹, where L is a factored
// block. A thread holds a row in registers and all read L from shared memory, the same number at a time.
template <bool BACK>
__device__ __forceinline__ void solve_block(float* x, u32 ldx, u32 rows, const float* l, u32 ldl, u32 n) {
    __shared__ float s[SIDE][SIDE];
    for (u32 t = threadIdx.x; t < SIDE * SIDE; t += THREADS) {
        const u32 i = t / SIDE, j = t % SIDE;
        // Columns beyond n are those of the identity.
        float v = i < n && j <= i ? l[(u64)i * ldl + j] : i == j ? 1.0f : 0.0f;
        s[i][j] = i == j ? 1.0f / v : v;
    }
    __syncthreads();
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    x += (u64)row * ldx;
    float v[SIDE];
#pragma unroll
    for (u32 j = 0; j < SIDE; j++) v[j] = j < n ? x[j] : 0.0f;
    if (BACK) {
#pragma unroll
        for (u32 j = SIDE; j-- > 0;) {
            v[j] *= s[j][j];
#pragma unroll
            for (u32 c = 0; c < j; c++) v[c] = fmaf(-v[j], s[j][c], v[c]);
        }
    } else {
#pragma unroll
        for (u32 j = 0; j < SIDE; j++) {
#pragma unroll
            for (u32 c = 0; c < j; c++) v[j] = fmaf(-v[c], s[j][c], v[j]);
            v[j] *= s[j][j];
        }
    }
#pragma unroll
    for (u32 j = 0; j < SIDE; j++)
        if (j < n) x[j] = v[j];
}
extern "C" __global__ void __launch_bounds__(256) solve_block_forward(float* x, u32 ldx, u32 rows, const float* l, u32 ldl, u32 n) {
    solve_block<false>(x, ldx, rows, l, ldl, n);
}
extern "C" __global__ void __launch_bounds__(256) solve_block_back(float* x, u32 ldx, u32 rows, const float* l, u32 ldl, u32 n) {
    solve_block<true>(x, ldx, rows, l, ldl, n);
}

// unit_upper writes A[j, k] = R[j, k] / R[k, k] for j ≤ k and 0 below, of R that is the factor L with
// the order of its rows and columns reversed.
extern "C" __global__ void __launch_bounds__(256) unit_upper(float* a, const float* l, u32 k) {
    const u64 row = blockIdx.x, last = k - 1;
    for (u64 j = threadIdx.x; j < k; j += THREADS)
        a[row * k + j] = j < row ? 0.0f : j == row ? 1.0f : l[(last - row) * k + last - j] / l[(last - j) * k + last - j];
}
