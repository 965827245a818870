// Sums that blocks leave for each other in memory that is 0 before and after: they are there when they are not 0, so that no flag is waited for and
// nothing has to be seen in order. It follows far.cuh.

// leave_sums leaves four, of which 0 becomes -0: to add that makes no difference.
__device__ __forceinline__ void leave_sums(float* to, const Floats4& v) {
    float f[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) f[i] = v.f[i] == 0 ? -0.0f : v.f[i];
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]) : "memory");
}

// find_sums reads four and returns whether all are there.
__device__ __forceinline__ bool find_sums(Floats4& v, const float* from) {
    v = load_far(from);
    bool there = true;
#pragma unroll
    for (u32 i = 0; i < 4; i++) there &= __float_as_uint(v.f[i]) != 0;
    return there;
}

// forget_sums makes the memory of four 0 again.
__device__ __forceinline__ void forget_sums(float* at) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(0.0f), "f"(0.0f), "f"(0.0f), "f"(0.0f) : "memory");
}
