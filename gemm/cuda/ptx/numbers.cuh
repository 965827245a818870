// e4m3x2_of_f32 rounds two numbers to E4M3, those beyond its range to its largest; lo is in the low byte.
__device__ __forceinline__ u16 e4m3x2_of_f32(float lo, float hi) {
    u16 d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
    return d;
}

// times multiplies two numbers by two, each product rounded, and times_plus adds two others before.
__device__ __forceinline__ u32 times(u32 a, u32 b) {
    u32 d;
#if BF16
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#endif
    return d;
}
__device__ __forceinline__ u32 times_plus(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
