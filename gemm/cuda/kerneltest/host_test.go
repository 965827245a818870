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
KERNEL(shuffles, y[i] = __shfl_xor_sync(0xffffffff, x[i], 5);)
KERNEL(takes, y[i] = __shfl_sync(0xffffffff, x[i], i % 32 * 3 + 1);)
KERNEL(votes, y[i] = __syncthreads_or(x[i] == 77);)
KERNEL(diverges, if (threadIdx.x == 7) __syncthreads(); else __syncwarp();)
KERNEL(leaves, if (threadIdx.x == 40) return; __syncwarp();)
KERNEL(traps, if (i == 70) __trap();)
KERNEL(far, y[1 << 20] = 1;)
KERNEL(beside, y[n + 1] = 1;)
KERNEL(before, y[-1] = 1;)
KERNEL(shared_beside, shared[264] = 1;)
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
		{"leaves", nil, "thread 40: ended where others of its warp are at a warp's barrier"},
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

	// Without its barrier a kernel finds what the order of threads leaves there.
	var results [2][]uint32
	for i, reverse := range []bool{false, true} {
		var m Memory
		y, from := m.Upload(make([]byte, 4*n)), m.Upload(driver.Bytes(x))
		h.Launch(t, &m, "races", driver.Launch{Grid: driver.Dim{X: n / 64}, Block: driver.Dim{X: 64}, Shared: 264}, reverse, y, from, n)
		results[i] = words(m.Read(y))
	}
	if slices.Equal(results[0], results[1]) {
		t.Error("a missing barrier makes no difference")
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
