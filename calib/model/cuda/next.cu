// What a step ends with: what follows, and the beginning of the next one.

// Line is what a thread reads at once.
template <class T>
struct alignas(16) Line {
    T at[16 / sizeof(T)];
};

// argmax finds the best of part blockIdx.y of a row; argmax_best the best of those of a row.
template <class T>
__device__ __forceinline__ void argmax(Best* parts, const T* x, u32 n) {
    constexpr u32 WIDE = 16 / sizeof(T), AHEAD = 4;  // lines of a thread that are on their way together
    begin();
    x += (u64)blockIdx.x * n;
    const u32 share = ((n - 1) / gridDim.y + 8) / 8 * 8, from = min(blockIdx.y * share, n - 1), end = min(from + share, n), stride = blockDim.x * WIDE;
    const u32 whole = (u64)(x + from) % 16 == 0 ? end - (end - from) % WIDE : from;  // to where there are lines
    Best best = {value(x[from]), from};
    for (u32 first = from + threadIdx.x * WIDE; first < whole; first += AHEAD * stride) {
        Line<T> lines[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++)
            if (first + j * stride < whole) lines[j] = *(const Line<T>*)(x + first + j * stride);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (first + j * stride >= whole) break;
#pragma unroll
            for (u32 k = 0; k < WIDE; k++)
                if (value(lines[j].at[k]) > best.v) best = {value(lines[j].at[k]), first + j * stride + k};
        }
    }
    for (u32 i = whole + threadIdx.x; i < end; i += blockDim.x)
        if (value(x[i]) > best.v) best = {value(x[i]), i};
    best = best_of(best);
    if (threadIdx.x == 0) parts[(u64)blockIdx.x * gridDim.y + blockIdx.y] = best;
}
extern "C" __global__ void __launch_bounds__(256) argmax_f(Best* parts, const F32* x, u32 n) { argmax(parts, x, n); }
extern "C" __global__ void __launch_bounds__(256) argmax_a(Best* parts, const Act* x, u32 n) { argmax(parts, x, n); }

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

// ---- the most likely tokens ----

// The numbers of a part of a row, the most that are looked at of all its parts together, and the most that are told.
constexpr u32 RANK_PART = 2048, RANK_MOST = 4096, RANKED = 256;

// rank_key is larger for a larger number, and of equals for the first; 0 is that of none.
__device__ __forceinline__ u64 rank_key(float v, u32 i) {
    const u32 bits = (u32)__float_as_int(v + 0.0f);  // of which there is one zero
    return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~i;
}
__device__ __forceinline__ u32 rank_index(u64 key) { return ~(u32)key; }

// sort_down sorts n keys of a block's shared memory, a power of two, the largest first: a bitonic sort.
__device__ __forceinline__ void sort_down(u64* keys, u32 n) {
    for (u32 size = 2; size <= n; size *= 2)
        for (u32 step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < n / 2; i += blockDim.x) {
                const u32 a = 2 * i - (i & (step - 1)), b = a + step;
                const u64 x = keys[a], y = keys[b];
                if ((x < y) == ((a & size) == 0)) {
                    keys[a] = y;
                    keys[b] = x;
                }
            }
        }
    __syncthreads();
}

struct Larger {
    __device__ __forceinline__ u64 operator()(u64 a, u64 b) const { return a > b ? a : b; }
};

// rank_parts finds the first keys of part blockIdx.y of a row, tops [rows][parts][keep], and the sum of exponentials of its numbers over the
// temperature, beside the largest of them. Numbers next to each other are in different parts, but for 32, as are likely tokens.
extern "C" __global__ void __launch_bounds__(256)
rank_parts(u64* tops, double* sums, const float* x, u32 n, u32 keep, double temperature) {
    __shared__ u64 keys[RANK_PART];
    begin();
    x += (u64)blockIdx.x * n;
    const u64 part = (u64)blockIdx.x * gridDim.y + blockIdx.y;
    for (u32 i = threadIdx.x; i < RANK_PART; i += blockDim.x) {
        const u32 at = (i / 32 * gridDim.y + blockIdx.y) * 32 + i % 32;
        keys[i] = at < n ? rank_key(x[at], at) : 0;
    }
    sort_down(keys, RANK_PART);
    for (u32 i = threadIdx.x; i < keep; i += blockDim.x) tops[part * keep + i] = keys[i];
    const double top = x[rank_index(keys[0])] / temperature;
    double sum = 0;
    for (u32 i = threadIdx.x; i < RANK_PART && keys[i] != 0; i += blockDim.x) sum += exp(x[rank_index(keys[i])] / temperature - top);
    sum = reduce(sum, Sum());
    if (threadIdx.x == 0) sums[part] = sum;
}

// rank_rows puts what the parts of a row have found in order, and tells of the first: out [rows][2·RANKED + 3] has numbers, their indices, how many
// of them it is certain of, as a part may have more than it has told, and the sum of exponentials beside the largest number as two floats.
extern "C" __global__ void __launch_bounds__(1024)
rank_rows(float* out, const u64* tops, const double* sums, const float* x, u32 n, u32 parts, u32 keep, double temperature) {
    __shared__ u64 keys[RANK_MOST];
    begin();
    x += (u64)blockIdx.x * n;
    out += (u64)blockIdx.x * (2 * RANKED + 3);
    tops += (u64)blockIdx.x * parts * keep;
    sums += (u64)blockIdx.x * parts;
    u32 size = RANKED;
    while (size < parts * keep) size *= 2;
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) keys[i] = i < parts * keep ? tops[i] : 0;
    sort_down(keys, size);

    const double top = x[rank_index(keys[0])] / temperature;
    u64 last = 1;  // the largest of those behind which a part may have more
    double sum = 0;
    for (u32 p = threadIdx.x; p < parts; p += blockDim.x) {
        last = Larger()(last, tops[(u64)p * keep + keep - 1]);
        sum += sums[p] * exp(x[rank_index(tops[(u64)p * keep])] / temperature - top);
    }
    last = reduce(last, Larger());
    sum = reduce(sum, Sum());
    for (u32 i = threadIdx.x; i < RANKED; i += blockDim.x) {
        const bool told = keys[i] >= last;
        out[i] = told ? x[rank_index(keys[i])] : 0;
        out[RANKED + i] = told ? (float)rank_index(keys[i]) : 0;
        if (told && (i + 1 == RANKED || keys[i + 1] < last)) out[2 * RANKED] = (float)(i + 1);
    }
    if (threadIdx.x == 0) {
        out[2 * RANKED + 1] = (float)sum;
        out[2 * RANKED + 2] = (float)(sum - (float)sum);
    }
}

// weigh_parts finds of part blockIdx.y of a row, numbers that follow each other, the largest and the sum of exponentials over the temperature
// beside it: parts [rows][parts][2].
extern "C" __global__ void __launch_bounds__(256)
weigh_parts(double* parts, const float* x, u32 n, double temperature) {
    begin();
    x += (u64)blockIdx.x * n;
    const u32 from = blockIdx.y * RANK_PART, end = min(from + RANK_PART, n);
    const float least = -__int_as_float(0x7f800000);
    float top = least;
    for (u32 i = from + threadIdx.x; i < end; i += blockDim.x) top = fmaxf(top, x[i]);
    top = reduce(top, Max());
    const double above = top == least ? 0 : top / temperature;
    double sum = 0;
    for (u32 i = from + threadIdx.x; i < end; i += blockDim.x) sum += exp(x[i] / temperature - above);
    sum = reduce(sum, Sum());
    if (threadIdx.x != 0) return;
    parts += ((u64)blockIdx.x * gridDim.y + blockIdx.y) * 2;
    parts[0] = top;
    parts[1] = sum;
}
