// Sums and collections of small arrays of several GPUs, by what peers.cuh sends.

__device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Kinds of words: a float, or two numbers of 16 bits.
struct Floats {
    static constexpr u32 EACH = 1;
    __device__ __forceinline__ static void add(float (&sum)[2], u32 w) { sum[0] += __int_as_float((int)w); }
    __device__ __forceinline__ static u32 word(const float (&sum)[2]) { return (u32)__float_as_int(sum[0]); }
};
struct F16s {
    static constexpr u32 EACH = 2;
    __device__ __forceinline__ static float half(u16 v) {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
        return f;
    }
    __device__ __forceinline__ static u16 rounded(float f) {
        u16 v;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(f));
        return v;
    }
    __device__ __forceinline__ static void add(float (&sum)[2], u32 w) { sum[0] += half((u16)w), sum[1] += half((u16)(w >> 16)); }
    __device__ __forceinline__ static u32 word(const float (&sum)[2]) { return rounded(sum[0]) | (u32)rounded(sum[1]) << 16; }
};
struct BF16s {
    static constexpr u32 EACH = 2;
    __device__ __forceinline__ static u16 rounded(float f) {
        u16 v;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v) : "f"(f));
        return v;
    }
    __device__ __forceinline__ static void add(float (&sum)[2], u32 w) {
        sum[0] += __int_as_float((int)(w << 16)), sum[1] += __int_as_float((int)(w & 0xffff0000));
    }
    __device__ __forceinline__ static u32 word(const float (&sum)[2]) { return rounded(sum[0]) | (u32)rounded(sum[1]) << 16; }
};

constexpr u32 AT_ONCE = 4;  // words of a thread

// Words are those of a block of an array of n elements: each words from first on. The last may have half of its elements.
template <class T>
struct Words {
    u32 first, count;
    u64 n;
    __device__ __forceinline__ Words(u64 n, u32 each) : first(blockIdx.x * each), n(n) {
        const u64 all = (n + T::EACH - 1) / T::EACH;
        count = first >= all ? 0 : all - first < each ? (u32)(all - first) : each;
    }
    __device__ __forceinline__ bool whole(u32 i) const { return (u64)(first + i + 1) * T::EACH <= n; }
    __device__ __forceinline__ u32 read(const u32* x, u32 i) const { return whole(i) ? x[first + i] : *(const u16*)(x + first + i); }
    __device__ __forceinline__ void write(u32* y, u32 i, u32 w) const {
        if (whole(i))
            y[first + i] = w;
        else
            *(u16*)(y + first + i) = (u16)w;
    }
};

// sum adds the arrays of all GPUs up in the order of their ranks, in float32, so that all have the same bits. y may be x.
template <class T>
__device__ __forceinline__ void sum(const Peers& peers, u32* y, const u32* x, u64 n, u32 each, u32 does) {
    begin();
    const Words<T> words(n, each);
    const Mail mail(peers, blockIdx.x);
    if (does & SENDS)
        for (u32 i = threadIdx.x; i < words.count; i += blockDim.x) mail.send(i, words.read(x, i));
    if (!(does & TAKES)) return;
    for (u32 i = threadIdx.x; i < words.count; i += AT_ONCE * blockDim.x) {
        const u32 count = (words.count - i + blockDim.x - 1) / blockDim.x;
        float sums[AT_ONCE][2] = {};
#pragma unroll 1
        for (u32 r = 0; r < peers.ranks; r++) {
            u32 w[AT_ONCE] = {};
            if (r != peers.rank)
                mail.take(w, r, i, blockDim.x, count);
            else
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; j++)
                    if (j < count) w[j] = words.read(x, i + j * blockDim.x);
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) T::add(sums[j], w[j]);
        }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            if (j < count) words.write(y, i + j * blockDim.x, T::word(sums[j]));
    }
    mail.done();
}

extern "C" __global__ void __launch_bounds__(512) peers_sum_f32(Peers peers, u32* y, const u32* x, u64 n, u32 each, u32 does) {
    sum<Floats>(peers, y, x, n, each, does);
}
extern "C" __global__ void __launch_bounds__(512) peers_sum_f16(Peers peers, u32* y, const u32* x, u64 n, u32 each, u32 does) {
    sum<F16s>(peers, y, x, n, each, does);
}
extern "C" __global__ void __launch_bounds__(512) peers_sum_bf16(Peers peers, u32* y, const u32* x, u64 n, u32 each, u32 does) {
    sum<BF16s>(peers, y, x, n, each, does);
}

// peers_gather writes the rows of all GPUs, floats [rows][cols], beside each other to y [rows][ranks·cols] of each.
extern "C" __global__ void __launch_bounds__(512) peers_gather(Peers peers, u32* y, const u32* x, u64 n, u32 cols, u32 each, u32 does) {
    begin();
    const Words<Floats> words(n, each);
    const Mail mail(peers, blockIdx.x);
    if (does & SENDS)
        for (u32 i = threadIdx.x; i < words.count; i += blockDim.x) mail.send(i, words.read(x, i));
    if (!(does & TAKES)) return;
    for (u32 i = threadIdx.x; i < words.count; i += AT_ONCE * blockDim.x) {
        const u32 count = (words.count - i + blockDim.x - 1) / blockDim.x;
#pragma unroll 1
        for (u32 r = 0; r < peers.ranks; r++) {
            u32 w[AT_ONCE] = {};
            if (r != peers.rank)
                mail.take(w, r, i, blockDim.x, count);
            else
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; j++)
                    if (j < count) w[j] = words.read(x, i + j * blockDim.x);
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                const u32 at = words.first + i + j * blockDim.x;
                if (j < count) y[((u64)(at / cols) * peers.ranks + r) * cols + at % cols] = w[j];
            }
        }
    }
    mail.done();
}
