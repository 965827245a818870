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
