package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// TestHostSparseMany runs lutmany.cu by what is kept on the host's processor, with what is asynchronous done at once and as late
// as it may be: for more rows of Ŵ than tiles have, and columns that do not fill an atom.
func TestHostSparseMany(t *testing.T) {
	prepare := kerneltest.OnHost(t, lutcolumns{InOrder}.kernel(), 900)
	formats := []Format{{4, 64, weight.F16, driver.F16}, {3, 32, weight.BF16, driver.BF16}, {5, 128, weight.F16, driver.BF16}, {2, 0, weight.F16, driver.F16}, {4, 128, weight.BF16, driver.BF16}}
	if *long {
		formats = sparseTestFormats()
	}
	for i, f := range formats {
		variants := f.sparseManyVariants()
		if !*long { // with stages of half an atom and of a quarter, and lookups in registers
			some := []sparseMany{{manyVariant{64, 4, Replicated}, false}, {manyVariant{256, 2, Replicated}, false}, {manyVariant{64, 3, Replicated}, false}, {manyVariant{48, 4, Replicated}, false}, {manyVariant{128, 3, Replicated}, true}}[i]
			if !slices.Contains(variants, some) {
				t.Fatalf("%s: no variant %v", f.name(), some)
			}
			variants = []sparseMany{some}
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			for _, v := range variants {
				h := hostSparseMany{f, v, prepare, kerneltest.OnHost(t, sparseManyKernel{f, v}.kernel(), 900)}
				for l, test := range []manyProduct{{333, 992, v.columns + 9, 3}, {64 * v.groups, 1824, 33, 5}, {17, 416, v.columns, 1}} {
					if *long || l == 0 || l == 1+i%2 {
						h.check(t, uint64(i), test)
					}
				}
			}
		})
	}
}

type hostSparseMany struct {
	f                 Format
	v                 sparseMany
	prepare, multiply *kerneltest.Host
}

func (h hostSparseMany) check(t *testing.T, seed uint64, test manyProduct) {
	n, k, m, workers := test.n, test.k, test.m, test.workers
	of := h.f.randomSparse(seed, n, k)
	tiles := must(repack.SparseCUDA(of))(t)
	scales := h.f.scales(tiles.Kept)
	w := SparseMatrix{N: n, K: k, Format: h.f, exponent: h.f.scaleExponent(scales, tiles.Kept.Codebook), codebook: must(h.f.table(tiles.Kept.Codebook))(t)}
	p := testProduct(n, k, m, h.f.Type, seed%2 == 0)
	fieldsTest{
		variant: h.v, format: h.f, form: InOrder, sums: h.v.sumBytes(workers), tiles: h.v.tiles(), n: n, k: k, product: p, workers: workers,
		reference: conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), roundedSparse(of, h.f), p.X, p.Bias, m, 1, h.f.Type), bound: 1.5 * conform.Bound(h.f.Type),
		multiply: func(mem *kerneltest.Memory, x driver.Ptr, o Operands, flags driver.Ptr, sms int, reverse bool) {
			w := w
			w.codes, w.scales = mem.Upload(interleaved(tiles)), mem.Upload(scales)
			launch, args, share := h.v.sparsePlan(&w, o, flags, workers, sms)
			l, columns := lutcolumns{InOrder}.launch(x, o.X, m, k, 2)
			h.prepare.Launch(t, mem, columnsName, l, reverse, kerneltest.Struct(columns))
			h.multiply.Launch(t, mem, manyName, launch, reverse, kerneltest.Struct(args.bytes()), kerneltest.Struct(share.bytes()))
		},
	}.run(t)
}

// randomSparse returns a random matrix whose kept weights are of the format.
func (f Format) randomSparse(seed uint64, n, k int) *lut24.Matrix {
	group := 2 * f.Group
	if group == 0 {
		group = k
	}
	return conform.RandomSparse(rand.New(rand.NewPCG(seed, 24)), n, k, f.Bits, group, f.Scale)
}

// roundedSparse returns the matrix with its table as the kernels have it.
func roundedSparse(m *lut24.Matrix, f Format) *lut24.Matrix {
	kept := *m.Kept
	kept.Codebook = conform.RoundedTable(kept.Codebook, f.Type)
	return &lut24.Matrix{Kept: &kept, Pattern: m.Pattern}
}

// TestSparseWays holds the choice of how to multiply many rows by what is kept to the rule, and to what was kept.
func TestSparseWays(t *testing.T) {
	f := Format{4, 64, weight.F16, driver.F16}
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
			e := &Engine{
				dev: &driver.Device{Info: driver.DeviceInfo{Major: test.major}}, limits: limits{132, hopperShared}, cache: driver.NewCache(t.TempDir()),
				many: map[tuningKey]Way{}, noCompiler: test.noCompiler,
			}
			w := &SparseMatrix{N: test.n, K: test.k, Format: f, engine: e}
			way := w.Way(test.m)
			if way.String() != test.want || w.Unpacks(test.m) != way.Unpacked() || (w.ScratchBytes(test.m) > 0) != (way.sparse != sparseMany{}) || w.ScratchBytes(test.m) > w.MostScratch(test.m) && test.m > MaxRows {
				t.Errorf("%v, %d bytes of scratch memory: want %s", way, w.ScratchBytes(test.m), test.want)
			}
			if test.m <= MaxRows {
				return
			}
			clear(e.many)
			if err := e.cache.Put(e.cacheKey(ofWay, w.manyKey(test.m), w.choosable(w.manyKey(test.m))), []byte("unpacked")); err != nil {
				t.Fatal(err)
			}
			if !w.Unpacks(test.m) {
				t.Errorf("unpacked was the fastest, but %v is chosen", w.Way(test.m))
			}
		})
	}
}

// TestGPUSparseMany multiplies many rows by what is kept in every way that there is, on grids of as many blocks as the GPU takes
// and of fewer.
func TestGPUSparseMany(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		for i, f := range sparseTestFormats() {
			if !*long && i%3 != 0 {
				continue
			}
			ways := []Way{{}}
			for _, v := range f.sparseManyVariants() {
				if e.dev.Info.Major == 9 {
					ways = append(ways, Way{sparse: v})
				}
			}
			for _, test := range []struct{ n, k, m int }{{4100, 1088, 600}, {2100, 3200, 300}, {1000, 8256, 65}, {40, 640, 17}}[i%2:] {
				checkSparseWays(t, e, s, f.randomSparse(uint64(i), test.n, test.k), f, test.m, ways, []int{math.MaxInt, 131, 77, 1})
			}
		}
	})
}

// TestHostSparseWays runs what the engine launches for many rows on a GPU that is the host's processor.
func TestHostSparseWays(t *testing.T) {
	kerneltest.HostGPU(t, 9, true)
	onGPU(t, func(e *Engine, s *driver.Stream) {
		f := Format{4, 128, weight.F16, driver.F16}
		of := f.randomSparse(1, 100, 800)
		way := e.SparseWays(&SparseMatrix{N: 100, K: 800, Format: f}, 20)[0]
		if way.Kernel() != "wgmma.sp:c32g2" {
			t.Errorf("the first way is %v", way)
		}
		checkSparseWays(t, e, s, of, f, 20, []Way{way}, []int{math.MaxInt})
	})
}

// checkSparseWays multiplies m rows by a matrix in some ways, on grids of up to some numbers of blocks.
func checkSparseWays(t *testing.T, e *Engine, s *driver.Stream, of *lut24.Matrix, f Format, m int, ways []Way, blocks []int) {
	t.Helper()
	n, k := of.Shape()
	p := testProduct(n, k, m, f.Type, m%2 == 0)
	w, err := e.UploadSparse(must(repack.SparseCUDA(of))(t), f.Type)
	skipMissing(t, err)
	if err != nil {
		t.Fatal(err)
	}
	o := Operands{M: m, X: must(e.dev.Upload(driver.Bytes(p.X)))(t), Y: must(e.dev.Upload(driver.Bytes(conform.Poisoned(m * n))))(t)}
	if p.Bias != nil {
		o.Bias = must(e.dev.Upload(driver.Bytes(p.Bias)))(t)
	}
	scratch := 16
	for _, way := range ways {
		scratch = max(scratch, way.ScratchBytes(m, k))
	}
	o.Scratch = must(e.dev.Alloc(scratch))(t)
	ref := conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), roundedSparse(of, f), p.X, p.Bias, m, 1, f.Type)
	for _, way := range ways {
		what := fmt.Sprintf("%s, %v, %d rows by %d×%d", f.name(), way, m, n, k)
		var first []uint16
		for _, most := range blocks {
			e.LimitBlocks(most)
			y := conform.Poisoned(m * n)
			err := errors.Join(e.dev.Write(o.Y, driver.Bytes(y)), e.MatMulSparseWay(s, w, o, way), s.Sync(), e.dev.Read(driver.Bytes(y), o.Y))
			skipMissing(t, err)
			if err = errors.Join(err, conform.CheckWritten(y, f.Type)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if first != nil && !slices.Equal(y, first) {
				t.Errorf("%s: other bits on up to %d blocks", what, most)
			}
			first = y
		}
		if rel, _ := ref.Errors(first); !(rel <= 1.5*conform.Bound(f.Type)) {
			t.Errorf("%s: relative error %.3g", what, rel)
		}
	}
	e.LimitBlocks(math.MaxInt)
	for _, at := range []driver.Ptr{o.X, o.Y, o.Bias, o.Scratch} {
		if at != 0 {
			err = errors.Join(err, e.dev.Free(at))
		}
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
}
