// What Hopper alone has: products of a warpgroup out of shared memory, copies of whole pieces
// of memory, and fragments written turned.

// multiply_group begins to add to d, or unless it ADDS to write there, the products of 64 rows of A, of which each warp
// holds 16 as mma.m16n8k16 has them, and the COLUMNS columns of B, 16 rows deep, that descriptor tells of. Of a
// tile of 8 columns d has what mma has. begin_products comes before the first, for what the registers
// hold by then, end_products after the last that are waited for together; wait_products waits for all
// but the last LEFT of those, and until then neither a nor d is touched.
// With FP8 numbers are E4M3 and B is 32 rows deep: of A lane 4g + t has columns 4t to 4t + 3 of row g in register 0, of
// row g + 8 in register 1, and those 16 columns on in 2 and 3.
// With SPARSE every four columns of A keep two and B is 32 rows deep: A and the pattern of each warp are mma_sparse's, and the
// pattern is not touched either until the wait.
#ifndef FP8
#define FP8 0
#endif
#ifndef SPARSE
#define SPARSE 0
#endif
#if SPARSE
#if BF16
#define TYPES "k32.f32.bf16.bf16 "
#else
#define TYPES "k32.f32.f16.f16 "
#endif
#define SIGNS ", 1, 1, 0;"
#elif FP8
#define TYPES "k32.f32.e4m3.e4m3 "
#define SIGNS ", 1, 1;"
#elif BF16
#define TYPES "k16.f32.bf16.bf16 "
#define SIGNS ", 1, 1, 0;"
#else
#define TYPES "k16.f32.f16.f16 "
#define SIGNS ", 1, 1, 0;"
#endif
#define COMMA ,
#define DO8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define DO32(i) DO8(i), DO8(i + 8), DO8(i + 16), DO8(i + 24)
#define AND_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor)
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_16_8 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#if SPARSE
#define MULTIPLY(N, NAMES, A, MORE, OPERANDS)                                                                                      \
    template <u32 SELECTOR>                                                                                                        \
    __device__ __forceinline__ void multiply_group(float (&d)[N / 2], const u32 (&a)[4], u64 descriptor, u32 pattern) {            \
        asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" #N TYPES "{" NAMES "}, " A MORE SIGNS                                  \
                     : OPERANDS : AND_A, "r"(pattern), "n"(SELECTOR), "n"(1));                                                     \
    }
#else
#define MULTIPLY(N, NAMES, A, MORE, OPERANDS)                                                                                      \
    template <u32 ADDS = 1>                                                                                                        \
    __device__ __forceinline__ void multiply_group(float (&d)[N / 2], const u32 (&a)[4], u64 descriptor) {                         \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N TYPES "{" NAMES "}, " A SIGNS : OPERANDS : AND_A, "n"(ADDS));          \
    }
#endif
#if COLUMNS == 32
MULTIPLY(32, NAMES_0, "{%16, %17, %18, %19}, %20, %21", ", %22, %23", DO8(0) COMMA DO8(8))
#elif COLUMNS == 48
MULTIPLY(48, NAMES_0 NAMES_16_8, "{%24, %25, %26, %27}, %28, %29", ", %30, %31", DO8(0) COMMA DO8(8) COMMA DO8(16))
#elif COLUMNS == 64
MULTIPLY(64, NAMES_0 NAMES_16, "{%32, %33, %34, %35}, %36, %37", ", %38, %39", DO32(0))
#elif COLUMNS == 96
MULTIPLY(96, NAMES_0 NAMES_16 NAMES_32, "{%48, %49, %50, %51}, %52, %53", ", %54, %55", DO32(0) COMMA DO8(32) COMMA DO8(40))
#elif COLUMNS == 128
MULTIPLY(128, NAMES_0 NAMES_16 NAMES_32 NAMES_48, "{%64, %65, %66, %67}, %68, %69", ", %70, %71", DO32(0) COMMA DO32(32))
#elif COLUMNS == 160
MULTIPLY(160, NAMES_0 NAMES_16 NAMES_32 NAMES_48 NAMES_64, "{%80, %81, %82, %83}, %84, %85", ", %86, %87", DO32(0) COMMA DO32(32) COMMA DO8(64) COMMA DO8(72))
#elif COLUMNS == 192
MULTIPLY(192, NAMES_0 NAMES_16 NAMES_32 NAMES_48 NAMES_64 NAMES_80, "{%96, %97, %98, %99}, %100, %101", ", %102, %103", DO32(0) COMMA DO32(32) COMMA DO32(64))
#elif COLUMNS == 224
MULTIPLY(224, NAMES_0 NAMES_16 NAMES_32 NAMES_48 NAMES_64 NAMES_80 NAMES_96, "{%112, %113, %114, %115}, %116, %117", ", %118, %119",
         DO32(0) COMMA DO32(32) COMMA DO32(64) COMMA DO8(96) COMMA DO8(104))
#elif COLUMNS == 256
MULTIPLY(256, NAMES_0 NAMES_16 NAMES_32 NAMES_48 NAMES_64 NAMES_80 NAMES_96 NAMES_112, "{%128, %129, %130, %131}, %132, %133", ", %134, %135",
         DO32(0) COMMA DO32(32) COMMA DO32(64) COMMA DO32(96))
#endif
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 LEFT>
__device__ __forceinline__ void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// A warpgroup gives registers of each thread back, or takes what others have given, in steps of 8.
template <u32 LEFT>
__device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LEFT)); }
template <u32 HAVE>
__device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(HAVE)); }

// columns_at describes columns of B in shared memory, 8 of them in 1024 bytes and 64 numbers of each,
// whose 16-byte parts are at their number exclusive-or the column's, to begin at an address: a multiple of
// 1024 and of what 16 rows take, 32. The fields are those of PTX's "matrix descriptor" in units of 16 bytes:
// the address, the distance of groups of 8 columns, and the swizzle of 128 bytes.
__device__ __forceinline__ u64 columns_at(u32 address) { return (u64)(address >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// show_phases lets copies that follow a barrier know of phases begun before.
__device__ __forceinline__ void show_phases() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// has_ended returns whether a phase has, as wait_phase waits for it.
__device__ __forceinline__ u32 has_ended(u32 at, u32 odd) {
    u32 ended;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(ended) : "r"(at), "r"(odd) : "memory");
    return ended;
}

// arrive_expecting is arrive, and has the phase end no sooner than so many bytes are copied as well.
__device__ __forceinline__ void arrive_expecting(u32 at, u32 bytes) {
    [[maybe_unused]] u64 state;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 %0, [%1], %2;" : "=l"(state) : "r"(at), "r"(bytes) : "memory");
}

// store writes 16 bytes.
__device__ __forceinline__ void store(void* p, const u32 (&w)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}

// arrive_copied is arrive when all that the thread has begun to copy with copy_weights is there.
__device__ __forceinline__ void arrive_copied(u32 at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}

// copy_bulk copies bytes, a multiple of 16, to shared memory, which counts for the phase at an address.
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 phase) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(phase) : "memory");
}

__device__ __forceinline__ void read_shared(u32 (&w)[1], u32 address) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[0]) : "r"(address) : "memory");
}
__device__ __forceinline__ void read_shared(u32 (&w)[2], u32 address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(address) : "memory");
}

// store_turned stores four matrices of 8×8 numbers, of which lane 4g + t has numbers 2t and 2t + 1 of row
// g: column i of the jth to the address that lane 8j + i has.
__device__ __forceinline__ void store_turned(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

