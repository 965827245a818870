package kerneltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

const hostTestKernels = `
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
extern __shared__ __align__(128) u8 shared[];

#define KERNEL(name, body)                                                                \
    extern "C" __global__ void __launch_bounds__(64) name(u32* y, const u32* x, u32 n) { \
        const u32 i = blockIdx.x * 64 + threadIdx.x;                                      \
        body                                                                              \
    }
KERNEL(turns, ((u32*)shared)[threadIdx.x] = x[i]; __syncthreads(); y[i] = ((u32*)shared)[63 - threadIdx.x];)
KERNEL(races, ((u32*)shared)[threadIdx.x] = x[i]; y[i] = ((u32*)shared)[63 - threadIdx.x];)
KERNEL(races_back, u32 v = ((u32*)shared)[63 - threadIdx.x]; __syncwarp(); ((u32*)shared)[threadIdx.x] = x[i]; y[i] = v;)
KERNEL(races_in_warps, ((u32*)shared)[threadIdx.x] = x[i]; y[i] = ((u32*)shared)[threadIdx.x ^ 1];)
KERNEL(races_in_static, __shared__ u32 last; last = x[i]; __syncthreads(); y[i] = last;)
KERNEL(halves, ((u16*)shared)[threadIdx.x] = (u16)x[i]; __syncthreads(); y[i] = ((u16*)shared)[63 - threadIdx.x];
    __syncthreads(); shared[threadIdx.x] = (u8)x[i]; __syncwarp(); y[i] += shared[threadIdx.x ^ 1];)
KERNEL(shuffles, y[i] = __shfl_xor_sync(0xffffffff, x[i], 5);)
KERNEL(takes, y[i] = __shfl_sync(0xffffffff, x[i], i % 32 * 3 + 1);)
KERNEL(votes, y[i] = __syncthreads_or(x[i] == 77);)
KERNEL(diverges, if (threadIdx.x == 7) __syncthreads(); else __syncwarp();)
KERNEL(leaves, if (threadIdx.x == 40) return; __syncwarp();)
KERNEL(traps, if (i == 70) __trap();)
KERNEL(far, y[1 << 20] = 1;)
KERNEL(beside, y[n + 1] = 1;)
KERNEL(before, y[-1] = 1;)
KERNEL(shared_beside, if (threadIdx.x == 0) shared[264] = 1;)
KERNEL(shifts, y[i] = 1u << n;)
KERNEL(unaligned, u32 v[2]; asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(x + 1));)

#define COPY asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(threadIdx.x * 4), "l"(x + i), "r"(threadIdx.x == 60 ? 8 : 16) : "memory");
#define END asm volatile("cp.async.commit_group;" ::: "memory");
#define WAIT(left) asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#define READ y[i] = ((u32*)shared)[63 - threadIdx.x];
KERNEL(copies, if (i % 4 == 0) { COPY } END END WAIT(1) __syncthreads(); READ)
KERNEL(copies_under_way, if (i % 4 == 0) { COPY } END WAIT(1) __syncthreads(); READ)

#define PHASES(count) if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(256), "r"(count) : "memory"); __syncthreads();
#define ARRIVE { unsigned long long s; asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(s) : "r"(256) : "memory"); }
#define AWAIT(odd) { u32 ended; do asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
    : "=r"(ended) : "r"(256), "r"(odd) : "memory"); while (!ended); }
#define TURN(write) write __syncwarp(); if (threadIdx.x % 32 == 0) ARRIVE
KERNEL(phases, PHASES(2) TURN(((u32*)shared)[threadIdx.x] = x[i];) AWAIT(0) u32 v = ((u32*)shared)[63 - threadIdx.x];
    TURN() AWAIT(1) TURN(((u32*)shared)[threadIdx.x] = v;) AWAIT(0) y[i] = ((u32*)shared)[threadIdx.x ^ 32];)
KERNEL(endless, PHASES(3) TURN() AWAIT(0))
KERNEL(not_begun, ARRIVE)

extern "C" __global__ void from_f16(u32* y) {
    const u32 i = blockIdx.x * 64 + threadIdx.x;
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)i));
    y[i] = __float_as_int(f);
}
extern "C" __global__ void to_halves(u16* f16, u16* bf16, const float* x) {
    const u32 i = blockIdx.x * 64 + threadIdx.x;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(f16[i]) : "f"(x[i]));
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bf16[i]) : "f"(x[i]));
}
extern "C" __global__ void instructions(u32* y) {
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y[0]) : "r"(0x83020100), "r"(0x07060504), "r"(0xb704));
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(y[1]) : "r"(0x12345678), "r"(0x9abcdef0), "n"(0x0f0f0f0f));
    asm("shf.r.wrap.b32 %0, %1, %1, %2;" : "=r"(y[2]) : "r"(0x80000001), "r"(4));
    asm volatile("" : "+r"(y[3]));
}
`

// In shared memory a matrix B of eight columns of 64 numbers begins at 1024, phases lie at 3072, and A has 1 in
// number k of row k % 8 of each 16 rows, so that a row of the product is a sum of numbers k of a column.
const hostGroupKernels = `
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
extern __shared__ __align__(128) u8 shared[];

#define KERNEL(name, body)                                                             \
    extern "C" __global__ void __launch_bounds__(128) name(float* y, const u8* x) {     \
        u32 a[4];                                                                      \
        float d[32] = {};                                                              \
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;                  \
        for (u32 r = 0; r < 4; r++) a[r] = g / 2 == t ? 0x3c00u << g % 2 * 16 : 0;      \
        body                                                                           \
        for (u32 j = 0; j < 32; j++) y[threadIdx.x * 32 + j] = d[j];                    \
    }
#define B(at, start, sbo) ((u64)(2048 + (at)) >> 4 | 1ull << 16 | (u64)(sbo) << 32 | (u64)(start) << 62)
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PRODUCT(b) asm volatile("wgmma.mma_async.sync.aligned.m64n" "64" "k16.f32.f16.f16 " "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"                     \
    : F4(0), F4(4), F4(8), F4(12), F4(16), F4(20), F4(24), F4(28) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#define SPARSE_PRODUCT(b, e, selector) asm volatile("wgmma.mma_async.sp.sync.aligned.m64n" "64" "k32.f32.f16.f16 " "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, %37, %38, 1, 1, 1, 0;"                     \
    : F4(0), F4(4), F4(8), F4(12), F4(16), F4(20), F4(24), F4(28) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(e), "n"(selector));
#define FENCE asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#define COMMIT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#define WAIT(left) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#define PHASES(count) if (threadIdx.x == 0) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(1024), "r"(count) : "memory"); SHOW } __syncthreads();
#define SHOW asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#define PROXIES asm volatile("fence.proxy.async;" ::: "memory");
#define EXPECT(bytes) { u64 s; asm volatile("mbarrier.arrive.expect_tx.shared.b64 %0, [%1], %2;" : "=l"(s) : "r"(1024), "r"(bytes) : "memory"); }
#define BULK(bytes) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(2048), "l"(x), "r"(bytes), "r"(1024) : "memory");
#define AWAIT(odd) { u32 ended; do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
    : "=r"(ended) : "r"(1024), "r"(odd) : "memory"); while (!ended); }
#define COPY asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(2048 + threadIdx.x * 16), "l"(x + threadIdx.x * 16), "r"(16) : "memory"); \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(4096 + threadIdx.x * 16), "l"(x + 2048 + threadIdx.x * 16), "r"(16) : "memory");  \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(6144 + threadIdx.x * 16), "l"(x + 4096 + threadIdx.x * 16), "r"(16) : "memory");  \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(8192 + threadIdx.x * 16), "l"(x + 6144 + threadIdx.x * 16), "r"(16) : "memory");
#define TELL asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(1024) : "memory");
#define FILL PHASES(1) if (threadIdx.x == 0) { EXPECT(8192) BULK(8192) } AWAIT(0)

KERNEL(products, FILL FENCE PRODUCT(B(0, 1, 64)) PRODUCT(B(32, 1, 64)) COMMIT WAIT(0))
KERNEL(products_apart, FILL FENCE PRODUCT(B(0, 1, 64)) COMMIT FENCE PRODUCT(B(32, 1, 64)) COMMIT WAIT(1) WAIT(0))
KERNEL(told, PHASES(128) COPY TELL AWAIT(0) PROXIES FENCE PRODUCT(B(0, 1, 64)) PRODUCT(B(32, 1, 64)) COMMIT WAIT(0))
KERNEL(sooner, PHASES(1) if (threadIdx.x == 0) { EXPECT(8192) BULK(8192) } FENCE PRODUCT(B(0, 1, 64)) PRODUCT(B(32, 1, 64)) COMMIT WAIT(0) AWAIT(0))
KERNEL(not_shown, if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(1024), "r"(1) : "memory"); __syncthreads();
    if (threadIdx.x == 0) { EXPECT(8192) BULK(8192) } AWAIT(0))
KERNEL(not_heard_of, if (threadIdx.x == 0) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(1024), "r"(1) : "memory"); SHOW EXPECT(8192) BULK(8192) } __syncwarp(); AWAIT(0))
KERNEL(told_unfenced, PHASES(128) COPY TELL AWAIT(0) FENCE PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(refilled, FILL FENCE PRODUCT(B(0, 1, 64)) PRODUCT(B(32, 1, 64)) COMMIT if (threadIdx.x == 0) { EXPECT(8192) BULK(8192) } WAIT(0) AWAIT(1))
#define SET if (threadIdx.x == 0) *(u16*)(shared + 1024) = 0x3c00;
KERNEL(set, FILL __syncthreads(); SET PROXIES __syncthreads(); FENCE PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(set_fenced_behind, FILL __syncthreads(); SET __syncthreads(); PROXIES FENCE PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(set_unfenced, FILL __syncthreads(); SET __syncthreads(); FENCE PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(set_fenced_before, FILL __syncthreads(); PROXIES SET __syncthreads(); FENCE PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(set_fenced_by_others, FILL __syncthreads(); SET if (threadIdx.x != 0) { PROXIES } __syncthreads(); FENCE PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(set_sooner, PHASES(1) SET if (threadIdx.x == 0) { EXPECT(8192) BULK(8192) } AWAIT(0))
KERNEL(far, PHASES(1) if (threadIdx.x == 0) { *(u16*)x = 0; PROXIES EXPECT(8192) BULK(8192) } AWAIT(0))
KERNEL(far_unfenced, PHASES(1) if (threadIdx.x == 0) { *(u16*)x = 0; EXPECT(8192) BULK(8192) } AWAIT(0))
KERNEL(far_fenced_by_others, PHASES(1) if (threadIdx.x == 127) *(u16*)x = 0; else { PROXIES } __syncthreads(); if (threadIdx.x == 0) { EXPECT(8192) BULK(8192) } AWAIT(0))
KERNEL(not_waited_for, FILL FENCE PRODUCT(B(0, 1, 64)) PRODUCT(B(32, 1, 64)) COMMIT WAIT(1) WAIT(1) float e = d[0]; WAIT(0) d[0] = e;)
KERNEL(sparse, FILL FENCE SPARSE_PRODUCT(B(0, 1, 64), t == 0 ? 0xc9e4d849 : t == 1 ? 0x4d8e9c48 : 0, 0) SPARSE_PRODUCT(B(64, 1, 64), t == 2 ? 0xc9e4d849 : t == 3 ? 0x4d8e9c48 : 0, 1) COMMIT WAIT(0))
KERNEL(sparse_unordered, FILL FENCE SPARSE_PRODUCT(B(0, 1, 64), 0x44144444, 0) COMMIT WAIT(0))
KERNEL(sparse_selector, FILL FENCE SPARSE_PRODUCT(B(0, 1, 64), 0x44444444, 2) COMMIT WAIT(0))
KERNEL(sparse_between, FILL FENCE SPARSE_PRODUCT(B(32, 1, 64), 0x44444444, 0) COMMIT WAIT(0))
KERNEL(meanwhile, FILL FENCE PRODUCT(B(0, 1, 64)) COMMIT if (threadIdx.x == 64) ((u16*)shared)[512] ^= 1; WAIT(0))
KERNEL(not_swizzled, FILL FENCE PRODUCT(B(0, 0, 64)) COMMIT WAIT(0))
KERNEL(other_pitch, FILL FENCE PRODUCT(B(0, 1, 32)) COMMIT WAIT(0))
KERNEL(between, FILL FENCE PRODUCT(B(16, 1, 64)) COMMIT WAIT(0))
KERNEL(beyond, FILL FENCE PRODUCT(B(1024, 1, 64)) COMMIT WAIT(0))
KERNEL(not_fenced, FILL PRODUCT(B(0, 1, 64)) COMMIT WAIT(0))
KERNEL(left, FILL FENCE PRODUCT(B(0, 1, 64)) COMMIT)
KERNEL(others, FILL FENCE PRODUCT(B(threadIdx.x / 32 * 32, 1, 64)) COMMIT WAIT(0))
KERNEL(too_few_bytes, PHASES(1) if (threadIdx.x == 0) { EXPECT(8192) BULK(4096) } AWAIT(0))
KERNEL(odd_bytes, PHASES(1) if (threadIdx.x == 0) { EXPECT(8) BULK(8) } AWAIT(0))

extern "C" __global__ void __launch_bounds__(32) stores_turned(u16* y, const u8* x) {
    const u32 lane = threadIdx.x;
    u32 v[4];
    for (u32 j = 0; j < 4; j++) v[j] = (100 * j + lane / 4 * 8 + lane % 4 * 2) * 0x10001 + 0x10000;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(1024 + lane * 16), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
    __syncthreads();
    for (u32 i = lane; i < 256; i += 32) y[i] = ((u16*)shared)[i];
}
extern "C" __global__ void pairs(u32* y, const u8* x) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y[0]) : "r"(0x3c014200), "r"(0x3c014000));
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y[1]) : "r"(0x3f814040), "r"(0x3f814000));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y[2]) : "r"(0x3f814040), "r"(0x3f814000), "r"(0xbf823f80));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y[3]) : "r"(0x640f4200), "r"(0x2c004000), "r"(0xd480bc00));
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y[4]) : "r"(0x640f4200), "r"(0xe4084000));
}
`

// TestHostGroups runs kernels whose warpgroups multiply, and ones that are wrong: at once and as late as may be.
func TestHostGroups(t *testing.T) {
	h := OnHost(t, driver.Kernel{Name: "groups.cu", Source: hostGroupKernels}, 900)
	b := make([]uint16, 64*64) // 64 columns of 64 numbers
	value := func(column, k int) float32 { return float32(column*17%50 + k) }
	for column := range 64 {
		for k := range 64 {
			b[column*64+(k/8^column%8)*8+k%8] = num.F32ToF16(value(column, k))
		}
	}
	want := make([]float32, 128*32)
	for thread := range 128 {
		for j := range 32 {
			row, column := thread%32/4, j/4*8+thread%4*2+j%2 // rows g and g + 8 are alike, and all warps'
			want[thread*32+j] = 0
			for _, k := range []int{row, row + 8, row + 16, row + 24} {
				want[thread*32+j] += value(column, k)
			}
		}
	}
	// Of what is kept number k of row k%8 is 1: one of chunk k/2, whose pattern is that of the row's half of 16 and of four chunks,
	// the same in both steps.
	sparse := make([]float32, 128*32)
	for thread := range 128 {
		for j := range 32 {
			row, column := thread%32/4, j/4*8+thread%4*2+j%2
			patterns := [][8]int{{9, 4, 8, 13, 8, 4, 12, 9}, {4, 14, 9, 12, 14, 8, 13, 4}}[j/2%2]
			for _, k := range []int{row, row + 8, row + 16, row + 24} {
				kept := patterns[k/2%8] >> (k % 2 * 2) & 3
				sparse[thread*32+j] += value(column, k/2*4+kept)
			}
		}
	}
	wants := map[bool][]float32{false: want, true: sparse}
	l := driver.Launch{Block: driver.Dim{X: 128}, Shared: 1024 + 8192}
	launch := func(kernel string, reverse bool, n int) ([]byte, error) {
		var m Memory
		y, x := m.Upload(make([]byte, n)), m.Upload(driver.Bytes(b))
		err := h.launch(&m, kernel, l, reverse, []any{y, x})
		return m.Read(y), err
	}
	for _, test := range []struct{ kernel, err string }{
		{"products", ""},
		{"products_apart", ""},
		{"told", ""},
		{"sparse", ""},
		{"sparse_unordered", "a sparse product keeps columns 1 and 0 of chunk 1"},
		{"sparse_selector", "selector 2 of a sparse product"},
		{"sparse_between", "a product by a matrix at 2080"},
		{"meanwhile", "a race: "},
		{"not_swizzled", "a product by a matrix of descriptor"},
		{"other_pitch", "a product by a matrix of descriptor"},
		{"between", "a product by a matrix at 2064"},
		{"beyond", "bytes at 10240 of shared memory"},
		{"not_fenced", "a product without a fence before"},
		{"left", "ends while products are under way"},
		{"others", "another product than others of its warpgroup"},
		{"sooner", "a race: multiplies by 2048 of shared memory, which a copy has written"},
		{"refilled", "a race: "},
		{"not_shown", "copies for phases at 1024, which have not been shown to copies"},
		{"not_heard_of", "a race: counts phases at 1024 of shared memory"}, // in reverse, none have begun
		{"told_unfenced", "multiplies by 2048 of shared memory, which thread 0 has written, without a fence"},
		{"set", "runs"},
		{"set_fenced_behind", "runs"},
		{"set_unfenced", "multiplies by 2048 of shared memory, which thread 0 has written, without a fence"},
		{"set_fenced_before", "multiplies by 2048 of shared memory, which thread 0 has written, without a fence"},
		{"set_fenced_by_others", "multiplies by 2048 of shared memory, which thread 0 has written, without a fence"},
		{"set_sooner", "copies to 2048 of shared memory, which thread 0 has written, without a fence"},
		{"far", "runs"},
		{"far_unfenced", "which thread 0 of some block has written, without a fence"},
		{"far_fenced_by_others", "which thread 127 of some block has written, without a fence"},
		{"too_few_bytes", "waits for a phase that does not end"},
		{"odd_bytes", "copies 8 bytes"},
	} {
		for _, reverse := range []bool{false, true} {
			got, err := launch(test.kernel, reverse, 4*len(want))
			switch {
			case test.err == "runs":
				if err != nil {
					t.Errorf("%s: %v", test.kernel, err)
				}
			case test.err == "" && err != nil:
				t.Errorf("%s: %v", test.kernel, err)
			case test.err == "" && !slices.Equal(got, driver.Bytes(wants[test.kernel == "sparse"])):
				t.Errorf("%s: another product", test.kernel)
			case test.kernel == "not_heard_of" && reverse && err != nil && strings.Contains(err.Error(), "no phases have begun"):
			case test.err != "" && !(test.kernel == "left" && reverse) && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("%s: got error %v, want %q", test.kernel, err, test.err)
			}
		}
	}
	early, err := launch("not_waited_for", true, 4*len(want))
	late, err2 := launch("not_waited_for", false, 4*len(want))
	if err != nil || err2 != nil || slices.Equal(early, late) {
		t.Errorf("the same at once and late, or errors %v, %v", err, err2)
	}

	l.Block.X = 32
	turned, err := launch("stores_turned", false, 512)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 256 {
		if got, want := int(binary.LittleEndian.Uint16(turned[2*i:])), i/64*100+i%8*8+i%64/8; got != want {
			t.Fatalf("stmatrix stores %d as number %d, want %d", got, i, want)
		}
	}
	pairs, err := launch("pairs", false, 20)
	if err != nil {
		t.Fatal(err)
	}
	// 1.0009766² and 3·2 in float16; 1.0078125² and 3·2 in bfloat16, and with -1.015625 and 1 added before rounding;
	// 1039/16 - 72 and 3·2 - 1, 1039 - 1032 and 3 + 2 in float16.
	if got, want := words(pairs), []uint32{0x3c024600, 0x3f8240c0, 0x388040e0, 0xc7104500, 0x47004500}; !slices.Equal(got, want) {
		t.Errorf("pairs: got %#x, want %#x", got, want)
	}
}

func testHost(t *testing.T) *Host {
	t.Helper()
	return OnHost(t, driver.Kernel{Name: "test.cu", Source: hostTestKernels}, 800)
}

func words(b []byte) []uint32 {
	w := make([]uint32, len(b)/4)
	copy(driver.Bytes(w), b)
	return w
}

// TestHostThreads runs kernels whose threads work together, and ones that are wrong.
func TestHostThreads(t *testing.T) {
	h := testHost(t)
	const n = 192
	x := make([]uint32, n)
	for i := range x {
		x[i] = uint32(i)
	}
	for _, test := range []struct {
		kernel string
		want   func(i uint32) uint32
		err    string
	}{
		{"turns", func(i uint32) uint32 { return i/64*64 + 63 - i%64 }, ""},
		{"shuffles", func(i uint32) uint32 { return i ^ 5 }, ""},
		{"takes", func(i uint32) uint32 { return i&^31 | (i%32*3+1)%32 }, ""},
		{"votes", func(i uint32) uint32 { return (^(i/64 ^ 1)) & 1 & ^(i / 128) }, ""},
		{"copies", func(i uint32) uint32 {
			if i%64 < 2 { // of the last 16 bytes only 8
				return 0
			}
			return i/64*64 + 63 - i%64
		}, ""},
		{"phases", func(i uint32) uint32 { return i ^ 31 }, ""},
		{"copies_under_way", nil, "thread 0: ends while copies are under way"},
		{"endless", nil, "waits for a phase that does not end"},
		{"not_begun", nil, "no phases have begun at 256 of shared memory"},
		{"diverges", nil, "thread 7: is at a barrier where others are at a warp's barrier"},
		{"leaves", nil, "thread 40: ended where others are at a warp's barrier"},
		{"halves", func(i uint32) uint32 { return i/64*64 + 63 - i%64 + (i ^ 1) }, ""},
		{"races", nil, "a race: writes 128 of shared memory, which thread 31 has read"},
		{"races_back", nil, "a race: reads 124 of shared memory, which thread 31 has written"},
		{"races_in_warps", nil, "a race: writes 4 of shared memory, which thread 0 has read"},
		{"races_in_static", nil, "a race: writes 0 of static shared memory, which thread 0 has written"},
		{"traps", nil, "block (1, 0), thread 6: trap"},
		{"far", nil, "where no memory is"},
		{"beside", nil, "wrote at 772 of 772 bytes"},
		{"before", nil, "wrote at -4 of 772 bytes"},
		{"shared_beside", nil, "wrote at 264 of 264 bytes of shared memory"},
		{"shifts", nil, "shifts by too much"},
		{"unaligned", nil, "reads 8 bytes at"},
		{"missing", nil, "there is no kernel missing"},
	} {
		for _, reverse := range []bool{false, true} {
			var m Memory
			y, from := m.Upload(make([]byte, 4*(n+1))), m.Upload(driver.Bytes(x))
			l := driver.Launch{Grid: driver.Dim{X: n / 64}, Block: driver.Dim{X: 64}, Shared: 264}
			err := h.launch(&m, test.kernel, l, reverse, []any{y, from, n})
			if test.err != "" {
				if err == nil || !reverse && !strings.Contains(err.Error(), test.err) {
					t.Errorf("%s: got error %v, want %q", test.kernel, err, test.err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range words(m.Read(y))[:n] {
				if want := test.want(uint32(i)); v != want {
					t.Fatalf("%s: element %d is %d, want %d", test.kernel, i, v, want)
				}
			}
		}
	}

	var m Memory
	y := m.Upload(make([]byte, 4*n))
	if err := h.launch(&m, "turns", driver.Launch{Block: driver.Dim{X: 64}}, false, []any{y, y}); err == nil {
		t.Error("an argument too few: no error")
	}
	if err := h.launch(&m, "turns", driver.Launch{Block: driver.Dim{X: 64}}, false, []any{y, y, int64(1)}); err == nil {
		t.Error("an argument too long: no error")
	}
}

// TestHostInstructions compares numbers with package num, and bits with PTX's manual.
func TestHostInstructions(t *testing.T) {
	h := testHost(t)
	var m Memory
	y := m.Upload(make([]byte, 4<<16))
	h.Launch(t, &m, "from_f16", driver.Launch{Grid: driver.Dim{X: 1 << 16 / 64}, Block: driver.Dim{X: 64}}, false, y)
	for i, v := range words(m.Read(y)) {
		got, want := math.Float32frombits(v), num.F16ToF32(uint16(i))
		if math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
			t.Fatalf("float16 %#x is %g, want %g", i, got, want)
		}
	}

	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = math.Float32frombits(r.Uint32())
		if i%2 == 0 { // where ties are, and float16's numbers
			x[i] = math.Float32frombits(r.Uint32()>>12<<12&0x8fffffff | 0x30000000)
		}
	}
	m = Memory{}
	f16, bf16 := m.Upload(make([]byte, 2*len(x))), m.Upload(make([]byte, 2*len(x)))
	from := m.Upload(driver.Bytes(x))
	h.Launch(t, &m, "to_halves", driver.Launch{Grid: driver.Dim{X: uint32(len(x) / 64)}, Block: driver.Dim{X: 64}}, false, f16, bf16, from)
	for i, f := range x {
		if f != f {
			continue
		}
		if got, want := binary.LittleEndian.Uint16(m.Read(f16)[2*i:]), num.F32ToF16(f); got != want {
			t.Fatalf("%g is %#x in float16, want %#x", f, got, want)
		}
		if got, want := binary.LittleEndian.Uint16(m.Read(bf16)[2*i:]), num.F32ToBF16(f); got != want {
			t.Fatalf("%g is %#x in bfloat16, want %#x", f, got, want)
		}
	}

	m = Memory{}
	y = m.Upload(make([]byte, 16))
	h.Launch(t, &m, "instructions", driver.Launch{Block: driver.Dim{X: 32}}, false, y)
	// Byte 3 of a repeated as a sign is 0xff.
	want := []uint32{0xff070004, 0x92b4d6f8, 0x18000000, 0}
	if got := words(m.Read(y)); !slices.Equal(got, want) {
		t.Errorf("got %#x, want %#x", got, want)
	}
}

func TestWithoutAssembly(t *testing.T) {
	for _, test := range []struct{ asm, want string }{
		{`asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));`, `prmt_b32((d), (a), (b), (selector));`},
		{`asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(f(x, y)), "n"(BASE));`, `ld_shared_u32((v), ((f(x, y))+(BASE)));`},
		{`asm("shf.r.wrap.b32 %0, %1, %1, %2;" : "=r"(d) : "r"(a), "r"(n & 31));`, `shf_r_wrap_b32((d), (a), (a), (n & 31));`},
		{`asm volatile("griddepcontrol.wait;" ::: "memory");`, `griddepcontrol_wait();`},
		{`asm volatile("" : "+r"(v)); x;`, `; x;`},
		{`asm("{ .reg .pred p; a.b p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(d) : "r"(a), "r"(b));`, `a_b((d), ((a)), (b));`},
		{"asm(\"a.b {%0},\" : \"=r\"(d)\n: \"l\"(p) : \"memory\"); y;", "a_b((d),)\n; y;"},
	} {
		if got, err := withoutAssembly(test.asm); got != test.want || err != nil {
			t.Errorf("%s\nbecomes %s, %v\nwant    %s", test.asm, got, err, test.want)
		}
	}
	for _, bad := range []string{`asm("a %0`, `asm("a %1;" : "=r"(d));`, `asm(x);`} {
		if got, err := withoutAssembly(bad); err == nil {
			t.Errorf("%s becomes %s: no error", bad, got)
		}
	}
}
