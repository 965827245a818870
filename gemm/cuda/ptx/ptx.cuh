// One PTX instruction each, under its own name. The kernels include no header,
// so that NVRTC needs nothing but itself; what C++ cannot say is here.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(8) Words2 { u32 w[2]; };
struct alignas(16) Words4 { u32 w[4]; };
struct alignas(16) Floats4 { float f[4]; };

// Weights are read once, so they stay out of L1. The asm is volatile to keep
// its place: the compiler would rather load late and save registers, and the
// distance between a load and its use is what hides the latency of memory.
__device__ __forceinline__ void load_stream(u32 (&w)[4], const void* p) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}
__device__ __forceinline__ void load_stream(u32 (&w)[2], const void* p) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
}
__device__ __forceinline__ void load_stream(u32 (&w)[1], const void* p) {
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(w[0]) : "l"(p));
}

// Activations are read by several warps of a block, so they go through L1.
// Volatile, to stay behind wait_previous.
__device__ __forceinline__ void load_cached(u32 (&w)[4], const void* p) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p) : "memory");
}

// prefetch brings a line into the level-2 cache.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// shared_address is an address in shared memory's own window.
__device__ __forceinline__ u32 shared_address(const void* p) {
    u64 a;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(a) : "l"(p));
    return (u32)a;
}

// lookup reads shared memory at a constant base, which the instruction holds: an
// address computed by C++ would cost an addition each. Volatile, to stay behind the
// barrier after which the table is there.
template <u32 BASE>
__device__ __forceinline__ u32 lookup(u32 offset) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(offset), "n"(BASE));
    return v;
}
template <u32 BASE>
__device__ __forceinline__ void lookup2(u32& lo, u32& hi, u32 offset) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+%3];" : "=r"(lo), "=r"(hi) : "r"(offset), "n"(BASE));
}

__device__ __forceinline__ void read_shared(u32 (&w)[4], u32 address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address));
}

// copy_async copies 16 bytes to shared memory, of which those behind the first few are
// zeros. A thread waits for its own copies with wait_copies, for all but those of the
// last LEFT groups, each ended by end_copies; a barrier or a phase makes them visible to others.
__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// copy_weights is copy_async of 16 bytes of what no kernel writes: it need not stay behind wait_previous.
__device__ __forceinline__ void copy_weights(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 LEFT>
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// begin_phases makes 8 bytes of shared memory count phases: one ends, and the next begins, when
// count threads have arrived. What they did before is seen by who has waited for the phase, which
// is known by whether its number is odd: it is the one that has not ended or the one before.
__device__ __forceinline__ void begin_phases(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(u32 at) {
    [[maybe_unused]] u64 state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
}
__device__ __forceinline__ void wait_phase(u32 at, u32 odd) {
    u32 ended;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended) : "r"(at), "r"(odd) : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended) : "r"(at), "r"(odd) : "memory");
#endif
    } while (!ended);
}

// prmt picks the bytes of the result from those of a (0 to 3) and b (4 to 7).
__device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// select takes the bits of MASK from a and the others from b. What the compiler knows
// of a and b would lead it to two instructions.
template <u32 MASK>
__device__ __forceinline__ u32 select(u32 a, u32 b) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(d) : "r"(a), "r"(b), "n"(MASK));
    return d;
}

// masked_or takes the bits of MASK from a, and sets those of b.
template <u32 MASK>
__device__ __forceinline__ u32 masked_or(u32 a, u32 b) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "n"(MASK), "r"(b));
    return d;
}

// Two numbers at once, each result rounded once.
__device__ __forceinline__ u32 f16x2_add(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 f16x2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u32 bf16x2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// opaque hides from the compiler where a value comes from: it is kept, not computed
// anew, and nothing is concluded from it.
__device__ __forceinline__ u32 opaque(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// rotr rotates right by a constant: one funnel shift.
__device__ __forceinline__ u32 rotr(u32 a, u32 n) {
    u32 d;
    asm("shf.r.wrap.b32 %0, %1, %1, %2;" : "=r"(d) : "r"(a), "r"(n & 31));
    return d;
}

__device__ __forceinline__ float f32_of_f16(u32 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)h));
    return f;
}
__device__ __forceinline__ u16 f16_of_f32(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ u16 bf16_of_f32(float f) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// Two at once, lo in the low bits.
__device__ __forceinline__ u32 f16x2_of_f32(float lo, float hi) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
__device__ __forceinline__ u32 bf16x2_of_f32(float lo, float hi) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
__device__ __forceinline__ float f32_of_bits(u32 b) { return __int_as_float((int)b); }

// mma adds the product of a 16×16 and a 16×8 tile to c.
__device__ __forceinline__ void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Programmatic dependent launch, where the architecture has it. launch_next
// lets the next grid start; wait_previous returns when the grids before are
// complete and what they wrote is visible.
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
