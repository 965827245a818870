// Weights whose scales are learned, and the optimizer. The loops of memory-bound
// kernels are over 16-byte pieces where shapes allow it, and over elements where not.

constexpr u32 MAX_TABLE = 32;  // 2^5: as many entries as banks, so that looking up never waits

// ---- types of scales ----

// stored returns a scale as its type keeps it: to nearest, ties to even; the byte
// types saturate. Package formats/num defines them.
__device__ __forceinline__ float stored(float v, u32 type) {
    const u32 bits = (u32)__float_as_int(v), sign = bits & 0x80000000, mag = bits & 0x7fffffff;
    const float a = __int_as_float((int)mag);
    switch (type) {
        case 1:
            return rounded<F16>(v);
        case 2:
            return rounded<BF16>(v);
        case 4:  // E4M4: no sign, steps of 2^-14 below 2^-10, 4 bits of mantissa above
            if (!(v > 0)) return 0;
            if (v >= 31) return 31;
            if (v < 0x1p-10f) return (v + 512.0f) - 512.0f;
            return __int_as_float((int)((bits + 0x3ffff + (bits >> 19 & 1)) & ~0x7ffffu));
        case 5: {  // S1E4M3: steps of 2^-13 below 2^-10, 3 bits of mantissa above; no −0
            if (a != a) return 0;
            float r;
            if (a >= 30)
                r = 30;
            else if (a < 0x1p-10f)
                r = (a + 1024.0f) - 1024.0f;
            else
                r = __int_as_float((int)((mag + 0x7ffff + (mag >> 20 & 1)) & ~0xfffffu));
            return r == 0 ? 0.0f : __int_as_float((int)((u32)__float_as_int(r) | sign));
        }
        case 6:  // E8M0: powers of two, the least of them for zero, and no sign
            if (!(v > 0x1.8p-127f)) return 0x1p-127f;
            if (v < 0x1p-126f) return 0x1p-126f;
            return __int_as_float((int)min((bits + 0x3fffff + (bits >> 23 & 1)) & ~0x7fffffu, 254u << 23));
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) set_scales(float* dst, const float* src, u32 n, u32 type) {
    u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) dst[i] = stored(src[i], type);
}

// ---- weights ----

// Matrix is a stretch of rows of a trainable weight, of fewer than 2^32 elements.
struct Matrix {
    const u8* codes;      // [rows, k], or none
    const float* table;   // entries
    const float* scales;  // [rows, groups]
    const Act* original;  // [rows, k], or none
    u32 rows, k, group, groups, entries;
};
#define MATRIX                                                                                              \
    const u8 *codes, const float *table, const float *scales, const Act *original, u32 rows, u32 k, u32 group, \
        u32 groups, u32 entries
#define THE_MATRIX {codes, table, scales, original, rows, k, group, groups, entries}

__device__ __forceinline__ void load_table(float* to, const Matrix& m) {
    if (threadIdx.x < m.entries) to[threadIdx.x] = m.table[threadIdx.x];
    __syncthreads();
}

// Codes are read V at a time.
template <u32 V>
__device__ __forceinline__ void load_codes(u32 (&c)[V], const u8* p) {
    const Vector<u8, V> x = *(const Vector<u8, V>*)p;
#pragma unroll
    for (u32 j = 0; j < V; j++) c[j] = x.at[j];
}

// dequantize writes table[code]·scale, or original·scale, rounded to acts. V divides
// k and group.
template <bool CODES, u32 V>
__device__ __forceinline__ void dequantize(Act* w, const Matrix& m) {
    __shared__ float table[MAX_TABLE];
    const u32 pieces = m.k / V, i = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = i < m.rows * pieces;
    const u32 row = i / pieces, col = (i - row * pieces) * V;
    u32 c[V];
    float v[V], s;
    if (inside) {  // before the wait for the table
        if constexpr (CODES) load_codes(c, m.codes + (u64)i * V);
        s = m.scales[row * m.groups + col / m.group];
    }
    if (CODES) load_table(table, m);
    if (!inside) return;
    if constexpr (CODES) {
#pragma unroll
        for (u32 j = 0; j < V; j++) v[j] = table[c[j]] * s;
    } else {
        load(v, m.original + (u64)i * V);
#pragma unroll
        for (u32 j = 0; j < V; j++) v[j] *= s;
    }
    store(w + (u64)i * V, v);
}
#define DEQUANTIZE(NAME, CODES, V)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME##_##V(Act* w, MATRIX) {       \
        dequantize<CODES, V>(w, THE_MATRIX);                                                 \
    }
DEQUANTIZE(dequantize_codes, true, 16)
DEQUANTIZE(dequantize_codes, true, 1)
DEQUANTIZE(dequantize_original, false, 16)
DEQUANTIZE(dequantize_original, false, 1)

// Divisor gives x/s for several x, with r = 1/s rounded to nearest: the remainder of the
// first guess corrects it to what a division gives (Markstein), where nothing is near
// the ends of float32's range.
struct Divisor {
    float s, r;
    bool plain;
    __device__ __forceinline__ Divisor(float scale) : s(scale), r(__frcp_rn(scale)), plain(fabsf(scale) > 0x1p-60f && fabsf(scale) < 0x1p60f) {}
    __device__ __forceinline__ float quotient(float x) const {
        if (!plain) return __fdiv_rn(x, s);
        const float q = x * r;
        return fmaf(fmaf(-q, s, x), r, q);
    }
};

// recode finds the table entry nearest to original/scale, among up to MOST, by halving.
// The code is the number of midpoints strictly below, so that a tie goes to the lower code.
template <u32 MOST, u32 V>
__device__ __forceinline__ void recode(u8* codes, const Matrix& m, bool round) {
    __shared__ float mids[MOST];
    const float infinity = __int_as_float(0x7f800000);
    const u32 pieces = m.k / V, i = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = i < m.rows * pieces;
    const u32 row = i / pieces, col = (i - row * pieces) * V;
    float x[V], s;
    if (inside) {
        load(x, m.original + (u64)i * V);
        s = m.scales[row * m.groups + col / m.group];
    }
    if (threadIdx.x < MOST)
        mids[threadIdx.x] = threadIdx.x + 1 < m.entries ? (m.table[threadIdx.x] + m.table[threadIdx.x + 1]) * 0.5f : infinity;
    __syncthreads();
    if (!inside) return;
    const Divisor by(s);
    Vector<u8, V> c;
#pragma unroll
    for (u32 j = 0; j < V; j++) {
        float q = s == 0 ? 0.0f : by.quotient(x[j]);
        if (round) q = rounded<BF16>(q);
        u32 code = 0;
#pragma unroll
        for (u32 half = MOST / 2; half; half /= 2)
            if (q > mids[code + half - 1]) code += half;
        c.at[j] = (u8)code;
    }
    *(Vector<u8, V>*)(codes + (u64)i * V) = c;
}
#define RECODE(MOST, V)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) recode_##MOST##_##V(u8* to, u32 round, MATRIX) {         \
        recode<MOST, V>(to, THE_MATRIX, round);                                                                    \
    }
RECODE(16, 16)
RECODE(16, 1)
RECODE(32, 16)
RECODE(32, 1)

// ---- gradients ----

// scale_grad adds Σ G·u over each group to ds. team lanes of a warp, a power of 2,
// take a group, and a lane PIECES times V elements of it at a time, so that enough loads are on
// their way; V divides k and group. u is the table value (HELD), less original/scale inside
// the table's range (LSQ), or the original (FREE).
//
// With TABLE, Σ G·scale over the weights of each code goes to a row of sums for each
// block, whose number the host fixes. Each thread has a column of shared memory, so
// that no two add to the same sum and the order is always the same.
enum Mode { HELD, LSQ, FREE };
constexpr u32 PIECES = 4;
template <Mode MODE, bool TABLE, u32 V>
__device__ __forceinline__ void scale_grad(float* ds, float* sums, const float* grad, const Matrix& m, u32 team) {
    __shared__ float table[MAX_TABLE];
    __shared__ float columns[TABLE ? MAX_TABLE : 1][TABLE ? THREADS : 1];
    if (MODE != FREE) load_table(table, m);
    if (TABLE)
        for (u32 c = 0; c < m.entries; c++) columns[c][threadIdx.x] = 0;
    const u32 all = m.rows * m.groups, each = THREADS / team, step = team * V;
    // All lanes of a warp go round together, for the sum at the end.
    for (u32 base = blockIdx.x * each; base < all; base += gridDim.x * each) {
        const u32 i = base + threadIdx.x / team, row = i / m.groups, col = (i - row * m.groups) * m.group;
        const u32 at = row * m.k + col, len = i < all ? min(m.group, m.k - col) : 0;
        const Divisor by((MODE == LSQ || TABLE) && i < all ? m.scales[i] : 1.0f);
        float sum = 0;
        for (u32 from = threadIdx.x % team * V; from < len; from += PIECES * step) {
            float g[PIECES][V], x[PIECES][V];
            u32 c[PIECES][V];
#pragma unroll
            for (u32 n = 0; n < PIECES; n++) {
                const u32 k = from + n * step;
                if (k >= len) continue;
                load(g[n], grad + at + k);
                if (MODE != FREE) load_codes(c[n], m.codes + at + k);
                if (MODE != HELD) load(x[n], m.original + at + k);
            }
#pragma unroll
            for (u32 n = 0; n < PIECES; n++) {
                if (from + n * step >= len) continue;
#pragma unroll
                for (u32 j = 0; j < V; j++) {
                    float u = MODE == FREE ? x[n][j] : table[c[n][j]];
                    if (MODE == LSQ) {
                        const float q = by.quotient(x[n][j]);
                        if (q >= table[0] && q <= table[m.entries - 1]) u -= q;
                    }
                    sum = fmaf(g[n][j], u, sum);
                    if (TABLE) columns[c[n][j]][threadIdx.x] += g[n][j] * by.s;
                }
            }
        }
        for (u32 half = team / 2; half; half /= 2) sum += __shfl_xor_sync(0xffffffff, sum, half);
        if (threadIdx.x % team == 0 && i < all) ds[i] += sum;
    }
    if (TABLE) {
        __syncthreads();
        for (u32 c = threadIdx.x / 32; c < m.entries; c += THREADS / 32) {
            float sum = 0;
            for (u32 t = threadIdx.x % 32; t < THREADS; t += 32) sum += columns[c][t];
            sum = team_sum<32>(sum);
            if (threadIdx.x % 32 == 0) sums[blockIdx.x * MAX_TABLE + c] = sum;
        }
    }
}
#define SCALE_GRAD(NAME, MODE, TABLE, V)                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) scale_grad_##NAME##_##V(             \
        float* ds, float* sums, const float* grad, u32 team, MATRIX) {                         \
        scale_grad<MODE, TABLE, V>(ds, sums, grad, THE_MATRIX, team);                          \
    }
SCALE_GRAD(held, HELD, false, 4)
SCALE_GRAD(held, HELD, false, 1)
SCALE_GRAD(held_table, HELD, true, 4)
SCALE_GRAD(held_table, HELD, true, 1)
SCALE_GRAD(lsq, LSQ, false, 4)
SCALE_GRAD(lsq, LSQ, false, 1)
SCALE_GRAD(lsq_table, LSQ, true, 4)
SCALE_GRAD(lsq_table, LSQ, true, 1)
SCALE_GRAD(free, FREE, false, 4)
SCALE_GRAD(free, FREE, false, 1)

// table_grad adds the blocks' sums to dtable, in their order. A warp takes an entry.
extern "C" __global__ void __launch_bounds__(32) table_grad(float* dtable, const float* sums, u32 blocks) {
    float sum = 0;
    for (u32 b = threadIdx.x; b < blocks; b += 32) sum += sums[b * MAX_TABLE + blockIdx.x];
    sum = team_sum<32>(sum);
    if (threadIdx.x == 0) dtable[blockIdx.x] += sum;
}

// ---- optimizer ----

struct Step {
    float scale;               // of the gradient
    float beta1, beta2;        // of m and v
    float rest1, rest2;        // 1 − β
    float step, root, inverse; // lr/(1−β1^t), √(1−β2^t), 1/(1−β2^t)
    float eps;
};

template <u32 V>
__device__ __forceinline__ void adam(float* p, float* m, float* v, const float* g, u64 n, const Step& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= n) return;
    float a[V], b[V], c[V], d[V];
    load(a, p + i);
    load(b, m + i);
    load(c, v + i);
    load(d, g + i);
#pragma unroll
    for (u32 j = 0; j < V; j++) {
        d[j] *= s.scale;
        b[j] = s.beta1 * b[j] + s.rest1 * d[j];
        c[j] = s.beta2 * c[j] + s.rest2 * d[j] * d[j];
        a[j] -= s.step * b[j] / (sqrtf(c[j] * s.inverse) + s.eps);
    }
    store(p + i, a);
    store(m + i, b);
    store(v + i, c);
}

// adam_bf16 rounds wherever PyTorch's optimizer stores a bfloat16 tensor: its
// default implementation goes through memory after lerp, mul, addcmul, sqrt, div, add and
// addcdiv (torch/optim/adam.py, _multi_tensor_adam), each computed in float32.
template <u32 V>
__device__ __forceinline__ void adam_bf16(float* p, float* m, float* v, const float* g, u64 n, const Step& s) {
    const u64 i = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= n) return;
    float a[V], b[V], c[V], d[V];
    load(a, p + i);
    load(b, m + i);
    load(c, v + i);
    load(d, g + i);
#pragma unroll
    for (u32 j = 0; j < V; j++) {
        d[j] = rounded<BF16>(d[j] * s.scale);
        b[j] = rounded<BF16>(b[j] + s.rest1 * (d[j] - b[j]));
        c[j] = rounded<BF16>(s.beta2 * c[j]);
        c[j] = rounded<BF16>(c[j] + s.rest2 * (d[j] * d[j]));
        float root = rounded<BF16>(sqrtf(c[j]));
        root = rounded<BF16>(__fdiv_rn(root, s.root));
        root = rounded<BF16>(root + s.eps);
        a[j] = rounded<BF16>(a[j] - s.step * __fdiv_rn(b[j], root));
    }
    store(p + i, a);
    store(m + i, b);
    store(v + i, c);
}
#define ADAM(NAME, V)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME##_##V(                                                             \
        float* p, float* m, float* v, const float* g, u64 n,                                                                       \
        float scale, float beta1, float beta2, float rest1, float rest2, float step, float root, float inverse, float eps) {       \
        NAME<V>(p, m, v, g, n, {scale, beta1, beta2, rest1, rest2, step, root, inverse, eps});                                     \
    }
ADAM(adam, 4)
ADAM(adam, 1)
ADAM(adam_bf16, 4)
ADAM(adam_bf16, 1)

extern "C" __global__ void __launch_bounds__(THREADS) exp_scale(float* s, const float* base, const float* theta, u64 n) {
    u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) s[i] = base[i] * expf(theta[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) exp_scale_back(float* g, const float* s, u64 n) {
    u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) g[i] *= s[i];
}

// sum_squares writes one partial sum for each block. The host fixes their number, and
// adds them up.
extern "C" __global__ void __launch_bounds__(THREADS) sum_squares(double* sums, const float* x, u64 n) {
    __shared__ double part[THREADS];
    double sum = 0;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (u64)gridDim.x * THREADS) sum += (double)x[i] * (double)x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (u32 half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
