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
