// PTX's instructions for tiles of 16-bit numbers, beside those of ptx.cuh: what brings them from shared memory to registers, and
// multiplies them.

// The shared memory whose size the launch sets.
extern __shared__ __align__(128) u8 shared[];

// load_tiles loads four tiles of 8×8 numbers: lane 8i + r has the address of row r of tile i. Lane 4g + t gets elements 2t and
// 2t + 1 of row g of each, or of column g. Volatile, to stay behind the barrier after which they are there.
__device__ __forceinline__ void load_tiles(u32 (&w)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(row));
}
__device__ __forceinline__ void load_tiles_turned(u32 (&w)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(row));
}

// mma adds the product of a 16×16 and a 16×8 tile of activations to c. Their places are those of PTX's "Matrix fragments for
// mma.m16n8k16": with lane = 4g + t, pair r of a is of row g + 8(r%2) and columns 2t + 8(r/2), that of b of column g and
// rows 2t + 8r, and element j of c is of row g + 8(j/2) and column 2t + j%2.
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ACTS == 1
    mma_f16(c, a[0], a[1], a[2], a[3], b0, b1);
#else
    mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
#endif
}

// pair rounds two numbers to activations, the first in the low bits.
__device__ __forceinline__ u32 pair(float lo, float hi) {
#if ACTS == 1
    return f16x2_of_f32(lo, hi);
#else
    return bf16x2_of_f32(lo, hi);
#endif
}

// power is 2^x, and reciprocal 1/x, to two units in the last place; what is not normal is 0.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
