// Kernels that treat every element alike.

#define CONVERT(name, From, To)                                                                     \
    extern "C" __global__ void __launch_bounds__(256) convert_##name(To* y, const From* x, u64 n) { \
        Elements e(n);                                                                              \
        float f[EACH];                                                                              \
        e.load(f, x);                                                                               \
        e.store(y, f);                                                                              \
    }
CONVERT(f32_f16, F32, F16)
CONVERT(f32_bf16, F32, BF16)
CONVERT(f16_f32, F16, F32)
CONVERT(f16_bf16, F16, BF16)
CONVERT(bf16_f32, BF16, F32)
CONVERT(bf16_f16, BF16, F16)

// indices converts whole numbers below 2^24.
extern "C" __global__ void __launch_bounds__(256) indices(u32* y, const float* x, u64 n) {
    for (u64 i = (u64)blockIdx.x * EACH * blockDim.x + threadIdx.x, end = i + EACH * blockDim.x; i < end && i < n; i += blockDim.x) y[i] = (u32)x[i];
}

template <class T>
__device__ __forceinline__ void add(F32* h, const T* x, u64 n) {
    Elements e(n);
    const Pack<F32> to = e.read(h);
    const Pack<T> more = e.read(x);
    float a[EACH], b[EACH];
    values(a, to);
    values(b, more);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) a[i] += b[i];
    e.store(h, a);
}
extern "C" __global__ void __launch_bounds__(256) add_f(F32* h, const F32* x, u64 n) { add(h, x, n); }
extern "C" __global__ void __launch_bounds__(256) add_a(F32* h, const Act* x, u64 n) { add(h, x, n); }

extern "C" __global__ void __launch_bounds__(256) multiply(F32* x, float by, u64 n) {
    Elements e(n);
    float a[EACH];
    e.load(a, x);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) a[i] *= by;
    e.store(x, a);
}

// bias adds b[cols] to the rows of y.
template <class T>
__device__ __forceinline__ void bias(T* y, const float* b, u32 cols, u64 n) {
    Elements e(n);
    float a[EACH];
    e.load(a, y);
    u32 col = (u32)(e.from % cols);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (i < e.count) a[i] += b[col];
        if (++col == cols) col = 0;
    }
    e.store(y, a);
}
extern "C" __global__ void __launch_bounds__(256) bias_f(F32* y, const float* b, u32 cols, u64 n) { bias(y, b, cols, n); }
extern "C" __global__ void __launch_bounds__(256) bias_a(Act* y, const float* b, u32 cols, u64 n) { bias(y, b, cols, n); }

// glu applies an activation to the gates and multiplies by the other factor, of rows of cols: those of gates and of other factors are
// pitch elements apart.
template <Activation A>
__device__ __forceinline__ void glu(const Inputs& to, const Act* g, const Act* u, Gating gating, u64 pitch, u64 cols, u32 rows) {
    begin();
    const Share share(cols, pitch, rows);
    const Pack<Act> gates = share.from.read(g), others = share.from.read(u);
    float a[EACH], b[EACH];
    values(a, gates);
    values(b, others);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) a[i] = activated<A>(a[i], gating) * other_factor<A>(b[i], gating);
    to.store(share.to, share.row, (u32)share.column, a);
}
#define GLU(NAME, A)                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                                        \
    glu_##NAME(Act* y, u8* prepared, u8* rotated, const Act* g, const Act* u, float alpha, float limit, u64 pitch, u64 cols, u32 rows) {    \
        glu<A>({y, prepared, rotated, (rows + 7) / 8}, g, u, {alpha, limit}, pitch, cols, rows);                                             \
    }
GLU(silu, SILU)
GLU(gelu, GELU)
GLU(gelu_tanh, GELU_TANH)
GLU(relu, RELU)
GLU(swiglu_oai, SWIGLU_OAI)

extern "C" __global__ void __launch_bounds__(256) soft_cap(F32* x, float cap, u64 n) {
    Elements e(n);
    float a[EACH];
    e.load(a, x);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) a[i] = cap * tanhf(a[i] / cap);
    e.store(x, a);
}

// soft_cap_back multiplies by 1 − tanh², y being what soft_cap wrote.
extern "C" __global__ void __launch_bounds__(256) soft_cap_back(Act* dx, const F32* y, float cap, u64 n) {
    Elements e(n);
    float a[EACH], b[EACH];
    e.load(a, dx);
    e.load(b, y);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) a[i] *= 1 - (b[i] / cap) * (b[i] / cap);
    e.store(dx, a);
}

// rope turns pairs (i, i + half) of n heads of dim elements by the angles of their row, of which each has so many heads. A
// thread has EACH pairs of a head.
extern "C" __global__ void __launch_bounds__(256)
rope(Act* x, const float* cos, const float* sin, u32 heads, u32 half, u32 dim, float sign, u32 n) {
    const u32 threads = (half - 1) / EACH + 1, at = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 head = at / threads, i = at % threads * EACH;
    if (head >= n) return;
    const u64 from = (u64)head * dim, row = (u64)(head / heads) * half;
    const Elements lo(from + i, from + half), hi(from + half + i, from + 2 * half), angles(row + i, row + half);
    const Pack<Act> first = lo.read(x), second = hi.read(x);
    const Pack<F32> c = angles.read((const F32*)cos), s = angles.read((const F32*)sin);
    float a[EACH], b[EACH];
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        const float p = value(first.at[j]), q = value(second.at[j]), cosine = value(c.at[j]), sine = sign * value(s.at[j]);
        a[j] = p * cosine - q * sine;
        b[j] = q * cosine + p * sine;
    }
    lo.store(x, a);
    hi.store(x, b);
}
