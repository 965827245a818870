// What the kernels share. They include no header, so that NVRTC needs nothing but
// itself. ACTS, set by the host, is the type of activations: 0 for float32, 1 for
// float16, 2 for bfloat16.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- number types, each its own, so that templates tell activations from floats ----

struct F32 { float v; };
struct F16 { u16 v; };
struct BF16 { u16 v; };

__device__ __forceinline__ float value(F32 x) { return x.v; }
__device__ __forceinline__ float value(F16 x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.v));
    return f;
}
__device__ __forceinline__ float value(BF16 x) { return __int_as_float((int)((u32)x.v << 16)); }

__device__ __forceinline__ void set(F32& x, float f) { x.v = f; }
__device__ __forceinline__ void set(F16& x, float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.v) : "f"(f)); }
__device__ __forceinline__ void set(BF16& x, float f) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.v) : "f"(f)); }

// Act is the type of activations. It is never F32 itself: the kernels of floats and of
// activations stand beside each other.
struct ActF32 { float v; };
__device__ __forceinline__ float value(ActF32 x) { return x.v; }
__device__ __forceinline__ void set(ActF32& x, float f) { x.v = f; }
#if ACTS == 0
typedef ActF32 Act;
#elif ACTS == 1
typedef F16 Act;
#else
typedef BF16 Act;
#endif

[[maybe_unused]] constexpr float LOWEST = -3.402823466e38f;

__device__ __forceinline__ bool finite(float f) { return fabsf(f) <= 3.402823466e38f; }
__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fc00000); }

// slope is the derivative of activated.
template <Activation A>
__device__ __forceinline__ float slope(float g, Gating a) {
    if (A == GELU) return normal_below(g) + g * 0.3989422804f * expf(-0.5f * g * g);
    if (A == GELU_TANH) {
        const float t = tanhf(gelu_angle(g));
        return 0.5f * (1.0f + t) + 0.5f * g * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * g * g);
    }
    if (A == RELU) return g > 0 ? 1.0f : 0.0f;
    const float alpha = A == SWIGLU_OAI ? a.alpha : 1.0f;
    if (A == SWIGLU_OAI && g > a.limit) return 0;
    const float s = 1.0f / (1.0f + __expf(-alpha * g));
    return s + alpha * g * s * (1.0f - s);
}

// begin lets the kernel behind this one begin, and waits for those before it: kernels that call it first of all may be
// launched before these have ended.
__device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- elements ----

// A thread of an element-wise kernel takes EACH consecutive elements, read and written
// 16 bytes at a time where all arrays allow it.
constexpr u32 EACH = 8;

template <class T>
struct alignas(16) Pack {
    T at[EACH];
};

template <class T>
__device__ __forceinline__ void values(float (&f)[EACH], const Pack<T>& pack) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) f[i] = value(pack.at[i]);
}

// Elements are those of one thread, count of them.
struct Elements {
    u64 from;
    u32 count;
    __device__ __forceinline__ Elements(u64 n) {
        from = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * EACH;
        count = from >= n ? 0 : n - from < EACH ? (u32)(n - from) : EACH;
    }
    // Those from one on of a row that ends before another.
    __device__ __forceinline__ Elements(u64 first, u64 end) {
        from = first;
        count = first >= end ? 0 : end - first < EACH ? (u32)(end - first) : EACH;
    }
    // read returns them as they are: of several that are read before the first is looked at none waits for another.
    template <class T>
    __device__ __forceinline__ Pack<T> read(const T* p) const {
        p += from;
        if (count == EACH && (u64)p % 16 == 0) return *(const Pack<T>*)p;
        Pack<T> pack;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (i < count)
                pack.at[i] = p[i];
            else
                set(pack.at[i], 0);
        }
        return pack;
    }
    template <class T>
    __device__ __forceinline__ void load(float (&f)[EACH], const T* p) const {
        values(f, read(p));
    }
    template <class T>
    __device__ __forceinline__ void store(T* p, const float (&f)[EACH]) const {
        p += from;
        if (count == EACH && (u64)p % 16 == 0) {
            Pack<T> pack;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) set(pack.at[i], f[i]);
            *(Pack<T>*)p = pack;
        } else {
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (i < count) set(p[i], f[i]);
        }
    }
};

// ---- reductions over a block ----

struct Sum {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// reduce returns the same value to every thread of a block of whole warps, combined
// in an order that the block's size alone fixes. op is commutative.
template <class T, class Op>
__device__ __forceinline__ T reduce(T v, Op op) {
    __shared__ T part[32];
#pragma unroll
    for (u32 lane = 16; lane > 0; lane /= 2) v = op(v, __shfl_xor_sync(0xffffffff, v, lane));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (u32 warp = 1; warp < blockDim.x / 32; warp++) v = op(v, part[warp]);
    __syncthreads();  // part is written again by the next one
    return v;
}

// Best is the largest value and its first index.
struct Best {
    float v;
    u32 i;
};
__device__ __forceinline__ bool better(Best a, Best b) { return a.v > b.v || (a.v == b.v && a.i < b.i); }

// best_of returns the best of a block's threads to the first.
__device__ __forceinline__ Best best_of(Best best) {
    __shared__ Best part[32];
#pragma unroll
    for (u32 lane = 16; lane > 0; lane /= 2) {
        Best other = {__shfl_xor_sync(0xffffffff, best.v, lane), __shfl_xor_sync(0xffffffff, best.i, lane)};
        if (better(other, best)) best = other;
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = best;
    __syncthreads();
    for (u32 warp = 1; threadIdx.x == 0 && warp < blockDim.x / 32; warp++)
        if (better(part[warp], best)) best = part[warp];
    return best;
}
