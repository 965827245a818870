package table

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

// hostLeft is put behind left.cuh, whose functions have other names then, where blocks run one after the other. A grid runs twice, with blockIdx.y 0
// and 1: in the first run all is left and nothing found, and in the second all is there.
const hostLeft = `
void leave_sums(float* to, const Floats4& v) {
    if (blockIdx.y == 0) leave_sums_now(to, v);
}
bool find_sums(Floats4& v, const float* from) {
    v = {};
    if (blockIdx.y == 1 && !find_sums_now(v, from)) __trap();  // left by nobody
    return true;
}
void forget_sums(float* at) {
    if (blockIdx.y == 1) forget_sums_now(at);
}
`

// onHost returns lutspread.cu with that.
func (k spreadKernel) onHost(t *testing.T) driver.Kernel {
	t.Helper()
	of := k.Kernel()
	if strings.Count(of.Source, ptx.Left()) != 1 {
		t.Fatal("the source leaves no sums")
	}
	renamed := strings.NewReplacer("leave_sums(", "leave_sums_now(", "find_sums(", "find_sums_now(", "forget_sums(", "forget_sums_now(").Replace(ptx.Left())
	of.Source = strings.Replace(of.Source, ptx.Left(), renamed+hostLeft, 1)
	return of
}

// TestHostSpread runs lutspread.cu on the host's processor, with what is asynchronous done at once and as late as it may be. Fields are shared or
// not, workers have several of them or parts of one of fewer atoms than splits, and blocks several workers.
func TestHostSpread(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for _, test := range []struct {
		f Format
		v spread
	}{
		{Format{4, 128, weight.F16, driver.F16}, spread{64, 2, 2, Replicated}},
		{Format{4, 128, weight.F16, driver.F16}, spread{64, 1, 4, Integers}},
		{Format{4, 64, weight.F16, driver.BF16}, spread{128, 2, 1, Replicated}},
		{Format{3, 0, weight.F32, driver.F16}, spread{96, 3, 1, Replicated}},
		{Format{2, 256, weight.BF16, driver.BF16}, spread{48, 2, 2, Replicated}},
		{Format{4, 32, weight.E4M4, driver.F16}, spread{192, 2, 1, Integers}},
		{Format{5, 128, weight.F16, driver.F16}, spread{64, 2, 2, Replicated}},
	} {
		t.Run(fmt.Sprintf("%s %v", test.f.name(), test.v), func(t *testing.T) {
			t.Parallel()
			if !slices.Contains(test.f.spreadVariants(), test.v) {
				t.Fatal("not compiled")
			}
			h := hostSpread{f: test.f, v: test.v}
			prepare, multiply := lutcolumns{test.v.many().form()}.Kernel(), spreadKernel{test.f, test.v}.onHost(t)
			stamps.Due(t, kerneltest.Modules(900, prepare, multiply)...)
			h.prepare, h.multiply = stamps.OnHost(t, prepare, 900), stamps.OnHost(t, multiply, 900)
			for i, p := range []manyProduct{
				{333, 480, test.v.Columns + 9, 3}, {64 * test.v.Groups, 1888, 40, 5}, {17, 96, test.v.Columns, 1}, {200, 1312, 2*test.v.Columns - 1, 9},
			} {
				if *cudatest.Long || i == 0 || i == 1 {
					h.check(t, uint64(i), p)
				}
			}
		})
	}
}

type hostSpread struct {
	f                 Format
	v                 spread
	prepare, multiply *kerneltest.Host
}

func (h hostSpread) check(t *testing.T, seed uint64, p manyProduct) {
	t.Helper()
	if h.f.Group >= p.k {
		return
	}
	of := testMatrix(seed, p.n, p.k, h.f)
	if h.v.Lookup == Integers {
		of.Codebook = cudatest.Must(lut.NewCodebook("sym", h.f.Bits, h.f.Group))(t).Values
	}
	tiles := cudatest.Must(repack.CUDA(of))(t)
	scales := h.f.Scales(tiles)
	w := cudatest.Must(New(h.f, of.N, of.K, tiles.Codebook, scales))(t)
	x := cudatest.Product(of.N, of.K, p.m, h.f.Type, seed%2 == 0)
	cudatest.Fields{
		Variant: h.v, Type: h.f.Type, Form: h.v.many().form(), Sums: 16, Tiles: h.v.many().Tiles(),
		N: of.N, K: of.K, Product: x, Workers: p.workers,
		Reference: conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, x.X, x.Bias, p.m, 1, h.f.Type), Bound: 1.5 * conform.Bound(h.f.Type),
		Multiply: func(mem *kerneltest.Memory, x driver.Ptr, o cuda.Operands, sms int, reverse bool) {
			at := []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
			cudatest.Launch(t, h.prepare, mem, lutcolumns{h.v.many().form()}.launch(x, o.X, p.m, of.K, 2), reverse)
			o.Flags = mem.Upload(make([]byte, p.workers*h.v.fieldBytes()))
			l := w.spreadOut(at, h.v, o, p.workers, sms)
			l.Grid.Y = 2
			cudatest.Launch(t, h.multiply, mem, l, reverse)
			if slices.Max(mem.Read(o.Flags)) != 0 {
				t.Errorf("%v, %+v: sums are not taken away", h.v, p)
			}
		},
	}.Run(t)
}

// TestSpreadDivide goes through how products are divided: each atom of each field is one worker's, and a worker that shares a field has one piece,
// for whose sums there is room.
func TestSpreadDivide(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 41))
	f := Format{4, 128, weight.F16, driver.F16}
	all := f.spreadVariants()
	shared := 0
	for i := range 400 {
		v, n, k, m := all[i%len(all)], 1+r.IntN(12000), 32*(1+r.IntN(300)), fewestSpread+r.IntN(mostSpread-fewestSpread+1)
		if v.fieldBytes()*Workers > 4*cuda.LeftWords {
			t.Fatalf("%v leaves more than there is room for", v)
		}
		w := v.divide(n, k, m, Workers)
		if w.workers < 1 || w.workers > Workers || w.shared != 0 && (w.shared != w.fields || w.workers%w.fields != 0) {
			t.Fatalf("%v, %d rows by %d×%d: divided as %+v", v, m, n, k, w)
		}
		if w.shared == 0 {
			continue
		}
		shared++
		for worker := range w.workers {
			from, to, sharers := w.sharedBefore(worker), w.sharedBefore(worker+1), w.workers/w.fields
			field := int(worker / sharers)
			if from >= to || from/int(w.atoms) != field || (to-1)/int(w.atoms) != field {
				t.Errorf("%v, %d rows by %d×%d: worker %d of field %d has atoms %d to %d of %d each", v, m, n, k, worker, field, from, to, w.atoms)
			}
		}
	}
	if shared < 100 {
		t.Errorf("only %d products are shared", shared)
	}
}

// TestSpreadWays holds these ways to be few, and to be tried where they should be.
func TestSpreadWays(t *testing.T) {
	g := cuda.GPU{DeviceInfo: driver.DeviceInfo{Major: 9, SMs: 132, SharedPerBlock: HopperShared, CooperativeGrids: true}}
	is := func(by cuda.Way) bool { _, ok := by.(spread); return ok }
	for _, test := range []struct {
		n, k, m int
		want    string // the first of them
	}{
		{4096, 4096, 32, ""},
		{4096, 4096, 64, "spread c64 g2 s2"},
		{4096, 4096, 128, "spread c128 g2 s1"},
		{8192, 8192, 128, "spread c128 g3 s1"},
		{4096, 4096, 257, ""},
		{28672, 4096, 256, ""},
	} {
		w := Like(Format{4, 128, weight.F16, driver.F16}, test.n, test.k)
		all, got := w.spreadWays(g, test.m), ""
		if len(all) > 0 {
			got = all[0].String()
		}
		if got != test.want || len(all) > spreadTried {
			t.Errorf("%+v: %v", test, all)
		}
		alone := g
		alone.CooperativeGrids = false
		if all := w.spreadWays(alone, test.m); len(all) > 0 {
			t.Errorf("%+v: %v where blocks may not be at work at once", test, all)
		}
		if slices.ContainsFunc(w.Ways(g, test.m), is) != (spreadsTried && test.want != "") {
			t.Errorf("%+v: these are among what is tried: %v", test, !spreadsTried)
		}
	}
}

// TestGPUSpread multiplies by every variant, on grids of as many blocks as the GPU takes and of fewer.
func TestGPUSpread(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		if !g.Engine.GPU().Hopper() {
			t.Skip("Hopper alone has the kernel")
		}
		for i, f := range testFormats() {
			if !*cudatest.Long && i%3 != 0 && f != (Format{4, 128, weight.F16, driver.F16}) {
				continue
			}
			var kernels []driver.Kernel
			for _, v := range f.spreadVariants() {
				kernels = append(kernels, spreadKernel{f, v}.Kernel())
			}
			g.Dev.Prepare(kernels)
			for j, test := range []manyProduct{{4100, 544, 200, 0}, {2100, 1600, 129, 0}, {1000, 4128, 65, 0}, {40, 320, 48, 0}, {4096, 4096, 64, 0}, {2048, 8192, 96, 0}} {
				if !*cudatest.Long && (i+j)%2 == 1 {
					continue
				}
				of := testMatrix(uint64(i), test.n, test.k, f)
				if f.Bits == 4 {
					of.Codebook = cudatest.Must(lut.NewCodebook("sym", f.Bits, f.Group))(t).Values
				}
				p := cudatest.Product(test.n, test.k, test.m, f.Type, i%2 == 0)
				w := upload(t, g, of, f.Type)
				ref := conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, test.m, 1, f.Type)
				g.CheckWays(t, f.name(), w, p, ref, 1.5*conform.Bound(f.Type), ways(f.spreadVariants()), []int{math.MaxInt, math.MaxInt, 131, 77, 1})
				cudatest.Must(0, w.Close())(t)
			}
		}
	})
}
