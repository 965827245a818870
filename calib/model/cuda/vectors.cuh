// Vectors of elements, and sums over the threads that share a row, for the kernels
// of gradients.

constexpr u32 THREADS = 256;

__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ void set(float& x, float f) { x = f; }

// rounded is a number as T holds it.
template <class T>
__device__ __forceinline__ float rounded(float f) {
    T t;
    set(t, f);
    return value(t);
}

// Vector is V consecutive elements, accessed 16 bytes at a time where there are as
// many. Its address is a multiple of its alignment: the host chooses V.
template <class T, u32 V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Vector {
    T at[V];
};
template <class T, u32 V>
__device__ __forceinline__ void load(float (&f)[V], const T* p) {
    const Vector<T, V> x = *(const Vector<T, V>*)p;
#pragma unroll
    for (u32 i = 0; i < V; i++) f[i] = value(x.at[i]);
}
template <class T, u32 V>
__device__ __forceinline__ void store(T* p, const float (&f)[V]) {
    Vector<T, V> x;
#pragma unroll
    for (u32 i = 0; i < V; i++) set(x.at[i], f[i]);
    *(Vector<T, V>*)p = x;
}

// team_sum adds up over a warp, or over a block of TEAM threads.
template <u32 TEAM>
__device__ __forceinline__ float team_sum(float v) {
    if constexpr (TEAM > 32) {
        return reduce(v, Sum());
    } else {
#pragma unroll
        for (u32 half = 16; half; half /= 2) v += __shfl_xor_sync(0xffffffff, v, half);
        return v;
    }
}
