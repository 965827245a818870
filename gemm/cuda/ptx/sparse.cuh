// mma_sparse adds the product of a 16×32 tile, of which every four columns keep two, and a 32×8 tile to c. Which is in the
// patterns of lanes 4g + 2·SELECTOR and the next, of rows g and g + 8, in pairs in order.
template <u32 SELECTOR>
__device__ __forceinline__ void mma_sparse(float (&c)[4], const u32 (&a)[4], const u32 (&b)[4], u32 pattern) {
#define MMA_SPARSE(TYPE)                                                                                                          \
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, " \
        "{%0,%1,%2,%3}, %12, %13;"                                                                                                \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(pattern), "n"(SELECTOR))
#if BF16
    MMA_SPARSE("bf16");
#else
    MMA_SPARSE("f16");
#endif
#undef MMA_SPARSE
}
