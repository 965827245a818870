// What a kernel finds around itself where a CPU runs it: CUDA's words and functions,
// and PTX's instructions, a function each, which asm statements are turned into. What they do is in
// host_run.h, compiled once for all kernels: little is compiled again with each.

#include <cstdint>

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("shared_memory")))

struct Dim { uint32_t x, y, z; };
extern Dim threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr uint32_t SHARED_MOST = 256 << 10;
extern __align__(1024) uint8_t dynamic_shared[SHARED_MOST];

enum Number { F16, BF16, E4M3 };

// Operand is one of an instruction that takes many.
union Operand {
    float* number;  // that it changes
    uint64_t bits;

    Operand(float& f) : number(&f) {}
    template <class T>
    Operand(const T& v) : bits(v) {}
};

// product begins one of a warpgroup, by an A of which every four columns keep two if it is sparse.
void product(uint32_t columns, Number type, bool sparse, const Operand* operands);

uint64_t shuffled(uint64_t v, uint32_t lane);

// Kernel is one, its arguments by their sizes, 0 behind the last, and how it is called with those at some addresses.
struct Kernel {
    const char* name;
    const uint32_t* sizes;
    void (*call)(void** values);
};
extern const Kernel kernels[];  // the last has no name

template <uint32_t... I>
struct Numbers {};
#if __has_builtin(__make_integer_seq)
template <class, uint32_t... I>
using NumbersOf = Numbers<I...>;
template <uint32_t N>
using NumbersTo = __make_integer_seq<NumbersOf, uint32_t, N>;
#else
template <uint32_t N>
using NumbersTo = Numbers<__integer_pack(N)...>;
#endif

template <auto F>
struct Called;
template <class... A, void (*F)(A...)>
struct Called<F> {
    static constexpr uint32_t sizes[] = {sizeof(A)..., 0};

    template <uint32_t... I>
    static void with(void** values, Numbers<I...>) { F(*(A*)values[I]...); }
    static void call(void** values) { with(values, NumbersTo<sizeof...(A)>()); }
};

}  // namespace host

// ---- CUDA's functions ----

template <class T>
constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T>
constexpr T min(T a, T b) { return b < a ? b : a; }

extern "C" {
float erff(float), expf(float), fabsf(float), fmaf(float, float, float), fmaxf(float, float), fminf(float, float), logf(float), sqrtf(float), tanhf(float);
double exp(double), log(double);
}
inline float exp(float f) { return expf(f); }
inline float log(float f) { return logf(f); }

void __syncthreads();
int __syncthreads_or(int any);
void __syncwarp(uint32_t mask = ~0u);

template <class T>
inline T __shfl_sync(uint32_t mask, T v, uint32_t lane) {
    if (mask != ~0u) __builtin_trap();
    uint64_t from = 0;
    __builtin_memcpy(&from, &v, sizeof v);
    from = host::shuffled(from, lane % 32);
    __builtin_memcpy(&v, &from, sizeof v);
    return v;
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T v, uint32_t lane) {
    return __shfl_sync(mask, v, threadIdx.x ^ lane);
}
uint32_t __reduce_max_sync(uint32_t mask, uint32_t v);
uint32_t __reduce_min_sync(uint32_t mask, uint32_t v);

void __threadfence();
uint32_t atomicMax(uint32_t* p, uint32_t v);
uint32_t atomicAdd(uint32_t* p, uint32_t v);

[[noreturn]] void __trap();
inline uint32_t __popc(uint32_t v) { return (uint32_t)__builtin_popcount(v); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t)a * b >> 32; }
template <class To, class From>
inline To __bits_as(From v) {
    To to;
    __builtin_memcpy(&to, &v, sizeof to);
    return to;
}
inline float __int_as_float(int b) { return __bits_as<float>(b); }
inline int __float_as_int(float f) { return __bits_as<int>(f); }
inline uint32_t __float_as_uint(float f) { return __bits_as<uint32_t>(f); }
inline float __expf(float f) { return expf(f); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float f) { return 1 / f; }

// ---- PTX's instructions: operands in PTX's order, results first ----

void ld_global_nc_L1_no_allocate_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* p);
void ld_global_nc_L1_no_allocate_v2_u32(uint32_t& a, uint32_t& b, const void* p);
void ld_global_nc_L1_no_allocate_u32(uint32_t& a, const void* p);
void ld_global_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* p);
void ld_relaxed_gpu_global_v4_f32(float& a, float& b, float& c, float& d, const void* p);
void ld_acquire_gpu_global_u32(uint32_t& v, const uint32_t* flag);
void st_relaxed_gpu_global_u32(uint32_t* flag, uint32_t v);
void st_relaxed_gpu_global_v4_f32(void* p, float a, float b, float c, float d);
void st_global_v4_u32(void* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d);
void prefetch_global_L2(const void* p);
void fence_acq_rel_gpu();

void cvta_to_shared_u64(unsigned long long& a, const void* p);
void ld_shared_u32(uint32_t& v, uint32_t address);
void ld_shared_v2_u32(uint32_t& lo, uint32_t& hi, uint32_t address);
void ld_shared_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t address);
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t row);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t row);
void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d);
void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t& d, uint32_t from);

void cp_async_cg_shared_global(uint32_t to, const void* from, uint32_t size, uint32_t bytes);
void cp_async_cg_shared_global_L2_128B(uint32_t to, const void* from, uint32_t size);
void cp_async_commit_group();
void cp_async_wait_group(uint32_t groups);
void cp_async_mbarrier_arrive_noinc_shared_b64(uint32_t at);
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t phase);

void mbarrier_init_shared_b64(uint32_t at, uint32_t count);
void mbarrier_arrive_shared_b64(unsigned long long& state, uint32_t at);
void mbarrier_arrive_expect_tx_shared_b64(unsigned long long& state, uint32_t at, uint32_t bytes);
void mbarrier_try_wait_parity_shared_b64(uint32_t& ended, uint32_t at, uint32_t odd);
void mbarrier_test_wait_parity_shared_b64(uint32_t& ended, uint32_t at, uint32_t odd);
void fence_mbarrier_init_release_cluster();
void fence_proxy_async();
void fence_proxy_async_shared_cta();
void fence_proxy_async_global();

void prmt_b32(uint32_t& d, uint32_t a, uint32_t b, uint32_t selector);
void lop3_b32(uint32_t& d, uint32_t a, uint32_t b, uint32_t c, uint32_t table);
inline void shf_r_wrap_b32(uint32_t& d, uint32_t lo, uint32_t hi, uint32_t n) { d = ((uint64_t)hi << 32 | lo) >> n % 32; }

void ex2_approx_ftz_f32(float& y, float x);
inline void rcp_approx_ftz_f32(float& y, float x) { y = 1 / x; }

void cvt_f32_f16(float& f, uint16_t h);
void cvt_rn_f16_f32(uint16_t& h, float f);
void cvt_rn_bf16_f32(uint16_t& h, float f);
void cvt_rn_f16x2_f32(uint32_t& d, float hi, float lo);
void cvt_rn_satfinite_e4m3x2_f32(uint16_t& d, float hi, float lo);
void cvt_rn_bf16x2_f32(uint32_t& d, float hi, float lo);
void mul_rn_f16x2(uint32_t& d, uint32_t a, uint32_t b);
void mul_rn_bf16x2(uint32_t& d, uint32_t a, uint32_t b);
void add_rn_f16x2(uint32_t& d, uint32_t a, uint32_t b);
void fma_rn_f16x2(uint32_t& d, uint32_t a, uint32_t b, uint32_t c);
void fma_rn_bf16x2(uint32_t& d, uint32_t a, uint32_t b, uint32_t c);

#define MMA(TYPE)                                                                                                             \
    void mma_sync_aligned_m16n8k16_row_col_f32_##TYPE##_##TYPE##_f32(                                                         \
        float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, \
        float c0, float c1, float c2, float c3);                                                                              \
    void mma_sp_ordered_metadata_sync_aligned_m16n8k32_row_col_f32_##TYPE##_##TYPE##_f32(                                     \
        float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, \
        uint32_t b2, uint32_t b3, float c0, float c1, float c2, float c3, uint32_t pattern, uint32_t selector);
MMA(f16)
MMA(bf16)
#undef MMA
void mma_sp_ordered_metadata_sync_aligned_m16n8k64_row_col_s32_s8_s8_s32(
    int32_t& d0, int32_t& d1, int32_t& d2, int32_t& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, uint32_t b2,
    uint32_t b3, int32_t c0, int32_t c1, int32_t c2, int32_t c3, uint32_t pattern, uint32_t selector);

#define WGMMA_OF(NAME, COLUMNS, DEEP, TYPE, NUMBER, MORE)                                             \
    template <class... A>                                                                             \
    inline void NAME##_sync_aligned_m64n##COLUMNS##k##DEEP##_f32_##TYPE##_##TYPE(A&&... a) {          \
        static_assert(sizeof...(A) == COLUMNS / 2 + MORE);                                            \
        const host::Operand operands[] = {a...};                                                      \
        host::product(COLUMNS, host::NUMBER, MORE == 11, operands);                                   \
    }
#define WGMMA(COLUMNS)                                                                                \
    WGMMA_OF(wgmma_mma_async, COLUMNS, 16, f16, F16, 9)                                               \
    WGMMA_OF(wgmma_mma_async, COLUMNS, 16, bf16, BF16, 9)                                             \
    WGMMA_OF(wgmma_mma_async, COLUMNS, 32, e4m3, E4M3, 8)                                             \
    WGMMA_OF(wgmma_mma_async_sp, COLUMNS, 32, f16, F16, 11)                                           \
    WGMMA_OF(wgmma_mma_async_sp, COLUMNS, 32, bf16, BF16, 11)
WGMMA(32)
WGMMA(48)
WGMMA(64)
WGMMA(96)
WGMMA(128)
WGMMA(160)
WGMMA(192)
WGMMA(224)
WGMMA(256)
#undef WGMMA
#undef WGMMA_OF
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(uint32_t groups);
void setmaxnreg_inc_sync_aligned_u32(uint32_t);
void setmaxnreg_dec_sync_aligned_u32(uint32_t);

void griddepcontrol_launch_dependents();
void griddepcontrol_wait();
