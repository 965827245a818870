// What a step ends with: what follows, and the beginning of the next one.

// argmax finds the best of part blockIdx.y of a row; argmax_best the best of those of a row.
template <class T>
__device__ __forceinline__ void argmax(Best* parts, const T* x, u32 n) {
    begin();
    x += (u64)blockIdx.x * n;
    const u32 share = (n - 1) / gridDim.y + 1, from = min(blockIdx.y * share, n - 1), end = min(from + share, n);
    Best best = {value(x[from]), from};
    for (u32 i = from + threadIdx.x; i < end; i += blockDim.x) {
        Best at = {value(x[i]), i};
        if (better(at, best)) best = at;
    }
    best = best_of(best);
    if (threadIdx.x == 0) parts[(u64)blockIdx.x * gridDim.y + blockIdx.y] = best;
}
extern "C" __global__ void __launch_bounds__(1024) argmax_f(Best* parts, const F32* x, u32 n) { argmax(parts, x, n); }
extern "C" __global__ void __launch_bounds__(1024) argmax_a(Best* parts, const Act* x, u32 n) { argmax(parts, x, n); }

// best_part returns the best of a row to the first thread of a warp.
__device__ __forceinline__ Best best_part(const Best* parts, u32 count) {
    parts += (u64)blockIdx.x * count;
    Best best = parts[0];
    for (u32 i = threadIdx.x; i < count; i += 32)
        if (better(parts[i], best)) best = parts[i];
    return best_of(best);
}
extern "C" __global__ void __launch_bounds__(32) argmax_best(float* index, const Best* parts, u32 count) {
    begin();
    const Best best = best_part(parts, count);
    if (threadIdx.x == 0) index[blockIdx.x] = (float)best.i;
}

// advance writes the best of a row where the next step reads its token, moves its place on, and tells the host of the mark and
// the best: in one after the other of some slots of posts [slots][2][rows], which is the host's memory. turns [rows] counts.
extern "C" __global__ void __launch_bounds__(32)
advance_step(float* tokens, float* places, float* posts, u32* turns, const float* marks, const Best* parts, u32 count, u32 slots) {
    begin();
    const u32 row = blockIdx.x, rows = gridDim.x;
    const Best best = best_part(parts, count);
    if (threadIdx.x != 0) return;
    tokens[row] = (float)best.i;
    places[2 * row + 1] += 1;
    float* post = posts + (u64)(turns[row]++ % slots) * 2 * rows;
    post[row] = marks[row];
    post[rows + row] = (float)best.i;
}

// angles copies those of the position of a row, or of the last there is, from tables [positions][half].
extern "C" __global__ void __launch_bounds__(64)
angles(float* cos, float* sin, const float* cos_table, const float* sin_table, const float* places, u32 half, u32 positions) {
    begin();
    const u64 to = (u64)blockIdx.x * half, from = (u64)min((u32)places[2 * blockIdx.x + 1], positions - 1) * half;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        cos[to + i] = cos_table[from + i];
        sin[to + i] = sin_table[from + i];
    }
}
