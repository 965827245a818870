package sparse

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// TestHostSparseMany runs lutmany.cu by what is kept on the host's processor, with what is asynchronous done at once and as late
// as it may be: for more rows of Ŵ than tiles have, and columns that do not fill an atom.
func TestHostSparseMany(t *testing.T) {
	stamps := cudatest.Stamps(t)
	formats := []table.Format{{Bits: 4, Group: 64, Scale: weight.F16, Type: driver.F16}, {Bits: 3, Group: 32, Scale: weight.BF16, Type: driver.BF16}, {Bits: 5, Group: 128, Scale: weight.F16, Type: driver.BF16}, {Bits: 2, Group: 0, Scale: weight.F16, Type: driver.F16}, {Bits: 4, Group: 128, Scale: weight.BF16, Type: driver.BF16}}
	if *cudatest.Long {
		formats = sparseTestFormats()
	}
	for i, f := range formats {
		variants := manyVariants(f)
		if !*cudatest.Long { // with stages of half an atom and of a quarter, and lookups in registers
			some := []many{
				{table.Many{Columns: 64, Groups: 4}, false},
				{table.Many{Columns: 256, Groups: 2}, false},
				{table.Many{Columns: 64, Groups: 3}, false},
				{table.Many{Columns: 48, Groups: 4}, false},
				{table.Many{Columns: 128, Groups: 3}, true},
			}[i]
			if !slices.Contains(variants, some) {
				t.Fatalf("%s: no variant %v", cuda.Format(f).Name(), some)
			}
			variants = []many{some}
		}
		t.Run(cuda.Format(f).Name(), func(t *testing.T) {
			t.Parallel()
			kernels := []driver.Kernel{table.InOrder.Kernel()}
			for _, v := range variants {
				kernels = append(kernels, manyKernel{f, v}.Kernel())
			}
			stamps.Due(t, kerneltest.Modules(900, kernels...)...)
			for i, v := range variants {
				h := hostSparseMany{f, v, stamps.OnHost(t, kernels[0], 900), stamps.OnHost(t, kernels[1+i], 900)}
				for l, test := range []manyProduct{{333, 992, v.Columns + 9, 3}, {64 * v.Groups, 1824, 33, 5}, {17, 416, v.Columns, 1}} {
					if *cudatest.Long || l == 0 || l == 1+i%2 {
						h.check(t, uint64(i), test)
					}
				}
			}
		})
	}
}

// manyProduct is a product for tests of kernels for many rows, and among how many workers it is divided.
type manyProduct struct{ n, k, m, workers int }

type hostSparseMany struct {
	f                 table.Format
	v                 many
	prepare, multiply *kerneltest.Host
}

func (h hostSparseMany) check(t *testing.T, seed uint64, test manyProduct) {
	n, k, m, workers := test.n, test.k, test.m, test.workers
	of := random(h.f, seed, n, k)
	tiles := cudatest.Must(repack.SparseCUDA(of))(t)
	scales := h.f.Scales(tiles.Kept)
	w := &Tiles{n: n, k: k, format: h.f, exponent: h.f.ScaleExponent(scales, tiles.Kept.Codebook), codebook: cudatest.Must(h.f.Table(tiles.Kept.Codebook))(t)}
	p := cudatest.Product(n, k, m, h.f.Type, seed%2 == 0)
	cudatest.Fields{
		Variant: h.v, Type: h.f.Type, Form: table.InOrder, Sums: h.v.SumBytes(workers), Tiles: h.v.Tiles(), N: n, K: k, Product: p, Workers: workers,
		Reference: conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), Family{}.Held(of, h.f.Type), p.X, p.Bias, m, 1, h.f.Type), Bound: 1.5 * conform.Bound(h.f.Type),
		Multiply: func(mem *kerneltest.Memory, x driver.Ptr, o cuda.Operands, sms int, reverse bool) {
			at := []driver.Ptr{mem.Upload(interleaved(tiles)), mem.Upload(scales)}
			g := cuda.GPU{DeviceInfo: driver.DeviceInfo{SMs: 2}}
			cudatest.Launch(t, h.prepare, mem, table.InOrder.Prepare(g, h.f.Type, o.X, x, m, k), reverse)
			cudatest.Launch(t, h.multiply, mem, w.many(at, h.v, o, workers, sms), reverse)
		},
	}.Run(t)
}

// random returns a random matrix whose kept weights are of the format.
func random(f table.Format, seed uint64, n, k int) *lut24.Matrix {
	group := 2 * f.Group
	if group == 0 {
		group = k
	}
	return conform.RandomSparse(rand.New(rand.NewPCG(seed, 24)), n, k, f.Bits, group, f.Scale)
}

// TestSparseWays holds the choice of how to multiply many rows by what is kept to the rule, and to what was kept.
func TestSparseWays(t *testing.T) {
	f := table.Format{Bits: 4, Group: 64, Scale: weight.F16, Type: driver.F16}
	for _, test := range []struct {
		name       string
		major      int
		noCompiler error
		n, k, m    int
		want       string
	}{
		{"few rows", 9, nil, 28672, 4096, 16, "packed"},
		{"more", 9, nil, 28672, 4096, 17, "sparse c32 g4"},
		{"33", 9, nil, 28672, 4096, 33, "sparse c48 g4"},
		{"64", 9, nil, 28672, 4096, 64, "sparse c64 g4"},
		{"many", 9, nil, 28672, 4096, 1024, "sparse c256 g2"},
		{"few fields", 9, nil, 4096, 4096, 32, "sparse c32 g2"},
		{"another GPU", 8, nil, 28672, 4096, 64, "packed"},
		{"another GPU, many", 8, nil, 28672, 4096, 129, "unpacked"},
		{"no compiler", 9, errors.New("none"), 28672, 4096, 129, "unpacked"},
	} {
		t.Run(test.name, func(t *testing.T) {
			info := driver.DeviceInfo{Major: test.major, SMs: 132, SharedPerBlock: table.HopperShared}
			e := cuda.Planner(cuda.GPU{DeviceInfo: info, NoCompiler: test.noCompiler}, driver.NewCache(t.TempDir()))
			w := Family{}.Like(cuda.Format(f), test.n, test.k)
			way := e.Way(w, test.m)
			_, allRows := way.(many)
			if way.String() != test.want || e.Unpacks(w, test.m) != (way == cuda.AsNumbers) || (e.ScratchBytes(w, test.m) > 0) != allRows || test.m > cuda.MaxRows && e.ScratchBytes(w, test.m) > e.MostScratch(w, test.m) {
				t.Errorf("%v, %d bytes of scratch memory: want %s", way, e.ScratchBytes(w, test.m), test.want)
			}
		})
	}
}

// TestGPUSparseMany multiplies many rows by what is kept in every way that there is, on grids of as many blocks as the GPU takes
// and of fewer.
func TestGPUSparseMany(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for i, f := range sparseTestFormats() {
			if !*cudatest.Long && i%3 != 0 {
				continue
			}
			ways := []cuda.Way{cuda.InTurns}
			for _, v := range manyVariants(f) {
				if g.Dev.Info.Major == 9 {
					ways = append(ways, v)
				}
			}
			for _, test := range []manyProduct{{4100, 1088, 600, 0}, {2100, 3200, 300, 0}, {1000, 8256, 65, 0}, {40, 640, 17, 0}}[i%2:] {
				checkWays(t, g, random(f, uint64(i), test.n, test.k), f, test.m, ways, []int{math.MaxInt, 131, 77, 1})
			}
		}
	})
}

// TestHostSparseWays runs what the engine launches for many rows on a GPU that is the host's processor.
func TestHostSparseWays(t *testing.T) {
	kerneltest.HostGPU(t, 9, true)
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		f := table.Format{Bits: 4, Group: 128, Scale: weight.F16, Type: driver.F16}
		way := g.Ways(Family{}.Like(cuda.Format(f), 100, 800), 20)[0]
		if cuda.Label(way) != "wgmma.sp:c32g2" {
			t.Errorf("the first way is %v", way)
		}
		checkWays(t, g, random(f, 1, 100, 800), f, 20, []cuda.Way{way}, []int{math.MaxInt})
	})
}

// checkWays multiplies m rows by a matrix in some ways, on grids of up to some numbers of blocks.
func checkWays(t *testing.T, g *cudatest.GPU, of *lut24.Matrix, f table.Format, m int, ways []cuda.Way, blocks []int) {
	t.Helper()
	n, k := of.Shape()
	p := cudatest.Product(n, k, m, f.Type, m%2 == 0)
	w := upload(t, g, of, f.Type)
	ref := conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), Family{}.Held(of, f.Type), p.X, p.Bias, m, 1, f.Type)
	g.CheckWays(t, cuda.Format(f).Name(), w, p, ref, 1.5*conform.Bound(f.Type), ways, blocks)
	cudatest.Must(0, w.Close())(t)
}
