package table

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// TestHostColumns holds prepared X to what wgmma multiplies: of step s of 32 columns, register pair r of a lane 4g + t
// of A has columns 8t + 4s + 2⌊r/2⌋ and the next ([repack.CUDATiles]), which are numbers 2t + 8⌊r/2⌋ and the next of 16
// of B ("Register fragments for wgmma.mma_async.m64nNk16"). Of row i of B 16 bytes lie at their number exclusive-or i%8. Pairs
// that arithmetic makes are of columns 0 and 2 of four, and 1 and 3; where every four keep two, columns are in their own order.
func TestHostColumns(t *testing.T) {
	stamps := cudatest.Stamps(t)
	t.Run("columns", func(t *testing.T) {
		checkColumns(t, stamps, Columns, func(lane, s, r, e int) int { return 8*lane + 4*s + 2*r + e })
	})
	t.Run("skipping", func(t *testing.T) {
		checkColumns(t, stamps, Skipping, func(lane, s, r, e int) int { return 8*lane + 4*s + r + 2*e })
	})
	t.Run("in order", func(t *testing.T) {
		checkColumns(t, stamps, InOrder, func(lane, s, r, e int) int { return 16*s + 8*r + 2*lane + e })
	})
}

// checkColumns prepares X of some shapes in a form, of which column tells which of 32 is number e of pair r of lane t in step s.
func checkColumns(t *testing.T, stamps *kerneltest.Stamps, form Form, column func(t, s, r, e int) int) {
	by := lutcolumns{form}
	stamps.Due(t, kerneltest.Modules(900, by.Kernel())...)
	host := stamps.OnHost(t, by.Kernel(), 900)
	for _, test := range []struct{ m, k int }{{1, 32}, {7, 96}, {8, 128}, {19, 160}, {33, 416}} {
		x := make([]uint16, test.m*test.k)
		for i := range x {
			x[i] = uint16(i + 1) // each another
		}
		groups := (test.m + 7) / 8
		want := make([]uint16, form.Bytes(test.m, test.k)/2)
		for m := range test.m {
			for of32 := 0; of32 < test.k; of32 += 32 {
				for s := range 2 {
					for lane := range 4 {
						for r := range 2 {
							for e := range 2 {
								in64 := of32%64 + 16*s + 2*lane + 8*r + e
								at := (of32/64*groups+m/8)*512 + m%8*64 + (in64/8^m%8)*8 + in64%8
								want[at] = x[m*test.k+of32+column(lane, s, r, e)]
							}
						}
					}
				}
			}
		}
		for _, reverse := range []bool{false, true} {
			var mem kerneltest.Memory
			from := mem.Upload(driver.Bytes(x))
			to := mem.Upload(slices.Repeat([]byte{0xff}, 2*len(want)))
			cudatest.Launch(t, host, &mem, by.launch(from, to, test.m, test.k, 1), reverse)
			if !slices.Equal(mem.Read(to), driver.Bytes(want)) {
				t.Errorf("%d×%d: X is prepared otherwise", test.m, test.k)
			}
		}
	}
}

// manyProduct is a product for tests of kernels for many rows, and among how many workers it is divided.
type manyProduct struct{ n, k, m, workers int }

// manyProducts returns some for fields of so many rows of X and groups of 64 rows of Ŵ.
func manyProducts(columns, groups int) []manyProduct {
	return []manyProduct{{333, 480, columns + 9, 3}, {64 * groups, 992, 40, 5}, {17, 320, columns, 1}, {200, 1312, 2*columns - 1, 4}}
}

// TestHostMany runs lutmany.cu on the host's processor, with what is asynchronous done at once and as late as it may be.
func TestHostMany(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range append(testFormats(), Format{4, 128, weight.F16, driver.BF16}) {
		variants := f.manyVariants()
		if len(variants) == 0 {
			continue
		}
		if !*cudatest.Long {
			if i%6 != 1 && i < len(testFormats()) { // of each width one
				continue
			}
			variants = variants[i%len(variants):][:1]
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			kernels := []driver.Kernel{lutcolumns{Columns}.Kernel()}
			for _, v := range variants {
				kernels = append(kernels, manyKernel{f, v}.Kernel())
			}
			stamps.Due(t, kerneltest.Modules(900, kernels...)...)
			for i, v := range variants {
				h := hostMany{f, v, stamps.OnHost(t, kernels[0], 900), stamps.OnHost(t, kernels[1+i], 900)}
				for l, test := range manyProducts(v.Columns, v.Groups) {
					if *cudatest.Long || l == 0 || l == 1+i%3 {
						h.check(t, uint64(i), test.n, test.k, test.m, test.workers)
					}
				}
			}
		})
	}
}

// TestHostManySharers has a field shared by more workers than a warp has lanes.
func TestHostManySharers(t *testing.T) {
	f, v := Format{2, 64, weight.F16, driver.F16}, Many{32, 4, Replicated}
	prepare, multiply := lutcolumns{Columns}.Kernel(), manyKernel{f, v}.Kernel()
	stamps := cudatest.Stamps(t)
	stamps.Due(t, kerneltest.Modules(900, prepare, multiply)...)
	const atoms, workers = 170, 34
	if w := v.divide(16, 128*atoms, 17, workers); w.shared != 1 || w.workers != workers {
		t.Fatalf("divided as %+v", w)
	}
	hostMany{f, v, stamps.OnHost(t, prepare, 900), stamps.OnHost(t, multiply, 900)}.check(t, 1, 16, 128*atoms, 17, workers)
}

// TestHostManyIntegers holds arithmetic in place of the table to the table's bits, where that has the integers.
func TestHostManyIntegers(t *testing.T) {
	stamps := cudatest.Stamps(t)
	variants := map[Format]Many{
		{4, 128, weight.F16, driver.F16}: {64, 4, Replicated},
		{4, 32, weight.F16, driver.BF16}: {128, 3, Replicated},
	}
	if *cudatest.Long {
		variants[Format{4, 0, weight.F32, driver.F16}] = Many{256, 2, Replicated}
	}
	for f, v := range variants {
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			lookups := []Lookup{Replicated, Integers}
			var kernels []driver.Kernel // two of each
			for _, l := range lookups {
				kernels = append(kernels, lutcolumns{v.with(l).form()}.Kernel(), manyKernel{f, v.with(l)}.Kernel())
			}
			stamps.Due(t, kerneltest.Modules(900, kernels...)...)
			var first []byte
			for i, l := range lookups {
				h := hostMany{f, v.with(l), stamps.OnHost(t, kernels[2*i], 900), stamps.OnHost(t, kernels[2*i+1], 900)}
				of := testMatrix(1, 333, 480, f)
				of.Codebook = cudatest.Must(lut.NewCodebook("sym", f.Bits, f.Group))(t).Values
				y := h.checkOf(t, of, 1, v.Columns+9, 3)
				if first != nil && !slices.Equal(y, first) {
					t.Errorf("%v: other bits than by the table", v)
				}
				first = y
			}
		})
	}
}

type hostMany struct {
	f                 Format
	v                 Many
	prepare, multiply *kerneltest.Host
}

func (h hostMany) check(t *testing.T, seed uint64, n, k, m, workers int) {
	if h.f.Group < k {
		h.checkOf(t, testMatrix(seed, n, k, h.f), seed, m, workers)
	}
}

// checkOf checks a product by a matrix, and returns its bits.
func (h hostMany) checkOf(t *testing.T, of *lut.Matrix, seed uint64, m, workers int) []byte {
	tiles := cudatest.Must(repack.CUDA(of))(t)
	scales := h.f.Scales(tiles)
	w := cudatest.Must(New(h.f, of.N, of.K, tiles.Codebook, scales))(t)
	p := cudatest.Product(of.N, of.K, m, h.f.Type, seed%2 == 0)
	return cudatest.Fields{
		Variant: h.v, Type: h.f.Type, Form: h.v.form(), Sums: h.v.SumBytes(workers), Tiles: h.v.Tiles(),
		N: of.N, K: of.K, Product: p, Workers: workers,
		Reference: conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, m, 1, h.f.Type), Bound: 1.5 * conform.Bound(h.f.Type),
		Multiply: func(mem *kerneltest.Memory, x driver.Ptr, o cuda.Operands, sms int, reverse bool) {
			at := []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
			cudatest.Launch(t, h.prepare, mem, lutcolumns{h.v.form()}.launch(x, o.X, m, of.K, 2), reverse)
			cudatest.Launch(t, h.multiply, mem, w.many(at, h.v, o, workers, sms), reverse)
		},
	}.Run(t)
}

// TestDivide holds how products are divided to what lutmany.cu takes: each atom of each field is one worker's, and a
// field with more than two workers is one of few.
func TestDivide(t *testing.T) {
	for _, v := range []Many{{256, 2, Replicated}, {128, 3, Replicated}, {64, 4, Replicated}} {
		for _, test := range []struct{ n, k, m int }{
			{8192, 8192, 256}, {28672, 4096, 1024}, {8192, 8192, 8192}, {4096, 4096, 100}, {16, 32, 17}, {1024, 8192, 300}, {57344, 8192, 257},
		} {
			w := v.divide(test.n, test.k, test.m, Workers)
			if w.workers < 1 || w.workers > Workers || w.shared > w.fields || w.shared > 0 && (w.fields-w.shared)%Workers != 0 {
				t.Errorf("%v, %+v: divided as %+v", v, test, w)
			}
			if w.fields > Workers && w.shared > 0 && w.shared*w.atoms/w.workers < w.atoms {
				t.Errorf("%v, %+v: more than two workers to a field in %+v", v, test, w)
			}
		}
	}
}

// TestMostTiles holds the flags of a stream to what products of any variant tell each other by.
func TestMostTiles(t *testing.T) {
	for _, f := range Formats() {
		all := f.manyVariants()
		for _, v := range f.fp8Variants() {
			all = append(all, v.Many)
		}
		for _, v := range all {
			if v.Tiles()*Workers > cuda.FlagWords {
				t.Errorf("%v of %s: %d tiles", v, f.name(), v.Tiles())
			}
		}
	}
}

// TestGuess holds what products are taken to take to cycles that an H200 took, from the end of the kernel in front on.
func TestGuess(t *testing.T) {
	for _, test := range []struct {
		v       Many
		n, k, m int
		cycles  float64
	}{
		{Many{64, 4, Replicated}, 8192, 8192, 64, 46400},
		{Many{64, 4, Replicated}, 28672, 4096, 64, 65400}, // whole fields, fewer than workers
		{Many{96, 3, Replicated}, 28672, 4096, 96, 76000},
		{Many{128, 3, Replicated}, 28672, 4096, 128, 84600},
		{Many{128, 2, Replicated}, 28672, 4096, 128, 93800},
		{Many{256, 2, Replicated}, 8192, 8192, 256, 86400},
		{Many{256, 2, Replicated}, 8192, 8192, 1024, 282100},
		{Many{256, 2, Replicated}, 28672, 4096, 256, 142800},
		{Many{256, 2, Replicated}, 28672, 4096, 1024, 511000},
	} {
		if guess := test.v.cost(test.n, test.k, test.m); guess < test.cycles*0.85 || guess > test.cycles*1.15 {
			t.Errorf("%v, %d rows by %d×%d: %.0f cycles for %.0f", test.v, test.m, test.n, test.k, guess, test.cycles)
		}
	}
}

// TestScaleExponent holds scales to the range of float16.
func TestScaleExponent(t *testing.T) {
	f := Format{4, 64, weight.BF16, driver.F16}
	codebook := []float32{-1, -0.5, 0, 0.75}
	for _, largest := range []float32{1e-30, 3e-5, 0.01, 1, 300, 1e20} {
		scales := make([]byte, 6)
		f.Scale.Encode(scales, []float32{largest / 1000, largest, 0})
		e := f.ScaleExponent(scales, codebook)
		v := largest
		for range max(e, -e) {
			if e > 0 {
				v *= 2
			} else {
				v /= 2
			}
		}
		if h := num.F16ToF32(num.F32ToF16(v)); h < 1<<12 || h > 1<<13 {
			t.Errorf("scales up to %g become up to %g", largest, h)
		}
	}
	if e := f.ScaleExponent(make([]byte, 8), codebook); e != 0 {
		t.Errorf("all scales 0: exponent %d", e)
	}
	f.Type = driver.BF16
	if e := f.ScaleExponent([]byte{1, 0}, codebook); e != 0 {
		t.Errorf("bfloat16: exponent %d", e)
	}
}

// TestGPUMany multiplies many rows in every way that there is, on grids of as many blocks as the GPU takes and of fewer.
func TestGPUMany(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for i, f := range testFormats() {
			if !*cudatest.Long && i%3 != 0 {
				continue
			}
			for _, test := range manyOnGPU(i) {
				of := testMatrix(uint64(i), test.n, test.k, f)
				p := cudatest.Product(test.n, test.k, test.m, f.Type, i%2 == 0)
				w := upload(t, g, of, f.Type)
				ways := slices.DeleteFunc(g.Ways(w.Tiles, test.m), func(by cuda.Way) bool { return by == cuda.AsNumbers })
				ref := conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, test.m, 1, f.Type)
				g.CheckWays(t, f.name(), w, p, ref, 1.5*conform.Bound(f.Type), ways, []int{math.MaxInt, 131, 77, 1})
				cudatest.Must(0, w.Close())(t)
			}
		}
	})
}

// manyOnGPU returns products for format i.
func manyOnGPU(i int) []manyProduct {
	return []manyProduct{{4100, 544, 600, 0}, {2100, 1600, 300, 0}, {1000, 4128, 65, 0}, {40, 320, 17, 0}}[i%2:]
}

// TestGPUManyIntegers holds arithmetic in place of the table to the table's bits, in every variant of lutmany.cu.
func TestGPUManyIntegers(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		if !g.Engine.GPU().Hopper() {
			t.Skip("Hopper alone has the kernel")
		}
		for i, f := range []Format{{4, 128, weight.F16, driver.F16}, {4, 64, weight.BF16, driver.BF16}, {4, 32, weight.F16, driver.BF16}, {4, 0, weight.F32, driver.F16}} {
			const n, k, m = 2100, 1600, 300
			of := testMatrix(uint64(i), n, k, f)
			of.Codebook = cudatest.Must(lut.NewCodebook("sym", f.Bits, f.Group))(t).Values
			p := cudatest.Product(n, k, m, f.Type, i%2 == 0)
			w := upload(t, g, of, f.Type)
			o := g.Operands(t, p, conform.Poisoned(m*n))
			for _, v := range f.manyVariants() {
				o.Scratch = cudatest.Must(g.Dev.Alloc(g.NeedsOf(w.Tiles, v, m).Scratch(m, k)))(t)
				var first []uint16
				for _, l := range []Lookup{Replicated, Integers} {
					y := conform.Poisoned(m * n)
					err := errors.Join(g.Dev.Write(o.Y, driver.Bytes(y)), g.MatMulWay(g.Stream, w, o, v.with(l)), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y))
					cudatest.SkipMissing(t, err)
					if err != nil {
						t.Fatal(err)
					}
					if first != nil && !slices.Equal(y, first) {
						t.Errorf("%s, %v: other bits than by the table", f.name(), v)
					}
					first = y
				}
				cudatest.Must(0, g.Dev.Free(o.Scratch))(t)
				o.Scratch = 0
			}
			g.Free(t, o)
			cudatest.Must(0, w.Close())(t)
		}
	})
}
