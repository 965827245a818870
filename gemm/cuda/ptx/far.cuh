// raise sets a flag behind all that the warp has written, and lower waits until one is set and takes it back: what was
// written before it is seen then by load_far, and by the warp's other lanes behind a barrier of theirs.
__device__ __forceinline__ void raise(u32* flag) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}
__device__ __forceinline__ void lower(u32* flag) {
    u32 v;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    while (v == 0);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(0) : "memory");
}

// load_far reads what other multiprocessors have written.
__device__ __forceinline__ Floats4 load_far(const void* p) {
    Floats4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.f[0]), "=f"(v.f[1]), "=f"(v.f[2]), "=f"(v.f[3]) : "l"(p) : "memory");
    return v;
}

