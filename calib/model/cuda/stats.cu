// Statistics of what linear layers read.

// difference writes y = a − b, rounded once. An element is one of the activations.
extern "C" __global__ void __launch_bounds__(256) difference(Act* y, const Act* a, const Act* b, u64 n) {
    Elements e(n);
    float f[EACH], g[EACH];
    e.load(f, a);
    e.load(g, b);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) f[i] -= g[i];
    e.store(y, f);
}

// mirror writes what lies above the diagonal of h [k, k] below it, a tile of 32x32 a block,
// through shared memory so that both sides are read and written in rows.
extern "C" __global__ void __launch_bounds__(256) mirror(float* h, u32 k) {
    __shared__ float tile[32][33];  // a column more, so that a column lies in 32 banks
    const u32 row = blockIdx.y * 32, col = blockIdx.x * 32, lane = threadIdx.x % 32, first = threadIdx.x / 32;
    if (row > col) return;
    for (u32 i = first; i < 32; i += 8)
        if (row + i < k && col + lane < k) tile[i][lane] = h[(u64)(row + i) * k + col + lane];
    __syncthreads();
    for (u32 i = first; i < 32; i += 8) {
        const u32 to = col + i, from = row + lane;  // the element (to, from) below is (from, to) above
        if (to < k && from < to) h[(u64)to * k + from] = tile[lane][i];
    }
}
