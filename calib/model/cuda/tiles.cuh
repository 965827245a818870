// PTX's instructions for tiles of 16-bit numbers, one each under its own name: what brings them to shared memory,
// from there to registers, and multiplies them.

// The shared memory whose size the launch sets.
extern __shared__ __align__(128) u8 shared[];

// shared_address is an address in shared memory's own window.
__device__ __forceinline__ u32 shared_address(const void* p) {
    u64 a;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
    return (u32)a;
}

// copy_async copies 16 bytes to shared memory, of which those behind the first few are zeros. A thread waits for its own
// copies with wait_copies, for all but those of the last LEFT groups, each ended by end_copies; a barrier makes them
// visible to others.
__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 LEFT>
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

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
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// pair rounds two numbers to activations, the first in the low bits.
__device__ __forceinline__ u32 pair(float lo, float hi) {
    u32 d;
#if ACTS == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#endif
    return d;
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
