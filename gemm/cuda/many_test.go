package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// TestHostColumns holds prepared X to what wgmma multiplies: of step s of 32 columns, register pair r of a lane 4g + t
// of A has columns 8t + 4s + 2⌊r/2⌋ and the next ([repack.CUDATiles]), which are numbers 2t + 8⌊r/2⌋ and the next of 16
// of B ("Register fragments for wgmma.mma_async.m64nNk16"). Of row i of B 16 bytes lie at their number exclusive-or i%8. Pairs
// that arithmetic makes are of columns 0 and 2 of four, and 1 and 3; where every four keep two, columns are in their own order.
func TestHostColumns(t *testing.T) {
	t.Run("columns", func(t *testing.T) {
		checkColumns(t, Columns, func(lane, s, r, e int) int { return 8*lane + 4*s + 2*r + e })
	})
	t.Run("skipping", func(t *testing.T) {
		checkColumns(t, Skipping, func(lane, s, r, e int) int { return 8*lane + 4*s + r + 2*e })
	})
	t.Run("in order", func(t *testing.T) {
		checkColumns(t, InOrder, func(lane, s, r, e int) int { return 16*s + 8*r + 2*lane + e })
	})
}

// checkColumns prepares X of some shapes in a form, of which column tells which of 32 is number e of pair r of lane t in step s.
func checkColumns(t *testing.T, form Form, column func(t, s, r, e int) int) {
	by := lutcolumns{form}
	host := kerneltest.OnHost(t, by.kernel(), 900)
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
			l, args := by.launch(from, to, test.m, test.k, 1)
			host.Launch(t, &mem, columnsName, l, reverse, kerneltest.Struct(args))
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
	prepare := kerneltest.OnHost(t, lutcolumns{Columns}.kernel(), 900)
	for i, f := range append(testFormats(), Format{4, 128, weight.F16, driver.BF16}) {
		variants := f.manyVariants()
		if len(variants) == 0 {
			continue
		}
		if !*long {
			if i%6 != 1 && i < len(testFormats()) { // of each width one
				continue
			}
			variants = variants[i%len(variants):][:1]
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			for _, v := range variants {
				h := hostMany{f, v, prepare, kerneltest.OnHost(t, manyKernel{f, v}.kernel(), 900)}
				for l, test := range manyProducts(v.columns, v.groups) {
					if *long || l == 0 || l == 1+i%3 {
						h.check(t, uint64(i), test.n, test.k, test.m, test.workers)
					}
				}
			}
		})
	}
}

// TestHostManySharers has a field shared by more workers than a warp has lanes.
func TestHostManySharers(t *testing.T) {
	f, v := Format{2, 64, weight.F16, driver.F16}, manyVariant{32, 4, Replicated}
	prepare, multiply := kerneltest.OnHost(t, lutcolumns{Columns}.kernel(), 900), kerneltest.OnHost(t, manyKernel{f, v}.kernel(), 900)
	const atoms, workers = 170, 34
	if w := v.divide(16, 128*atoms, 17, workers); w.shared != 1 || w.workers != workers {
		t.Fatalf("divided as %+v", w)
	}
	hostMany{f, v, prepare, multiply}.check(t, 1, 16, 128*atoms, 17, workers)
}

// TestHostManyIntegers holds arithmetic in place of the table to the table's bits, where that has the integers.
func TestHostManyIntegers(t *testing.T) {
	variants := map[Format]manyVariant{
		{4, 128, weight.F16, driver.F16}: {64, 4, Replicated},
		{4, 32, weight.F16, driver.BF16}: {128, 3, Replicated},
	}
	if *long {
		variants[Format{4, 0, weight.F32, driver.F16}] = manyVariant{256, 2, Replicated}
	}
	for f, v := range variants {
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			var first []byte
			for _, l := range []Lookup{Replicated, Integers} {
				v := v.with(l)
				h := hostMany{f, v, kerneltest.OnHost(t, lutcolumns{v.form()}.kernel(), 900), kerneltest.OnHost(t, manyKernel{f, v}.kernel(), 900)}
				of := testMatrix(1, 333, 480, f)
				of.Codebook = must(lut.NewCodebook("sym", f.Bits, f.Group))(t).Values
				y := h.checkOf(t, of, 1, v.columns+9, 3)
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
	v                 manyVariant
	prepare, multiply *kerneltest.Host
}

func (h hostMany) check(t *testing.T, seed uint64, n, k, m, workers int) {
	if h.f.Group < k {
		h.checkOf(t, testMatrix(seed, n, k, h.f), seed, m, workers)
	}
}

// checkOf checks a product by a matrix, and returns its bits.
func (h hostMany) checkOf(t *testing.T, of *lut.Matrix, seed uint64, m, workers int) []byte {
	tiles := must(repack.CUDA(of))(t)
	scales := h.f.scales(tiles)
	w := Matrix{N: of.N, K: of.K, Format: h.f, exponent: h.f.scaleExponent(scales, tiles.Codebook)}
	for _, v := range tiles.Codebook {
		w.codebook = append(w.codebook, uint32(h.f.convert(v)))
	}
	p := testProduct(of.N, of.K, m, h.f.Type, seed%2 == 0)
	return fieldsTest{
		variant: h.v, format: h.f, form: h.v.form(), sums: h.v.sumBytes(workers), tiles: h.v.tiles(),
		n: of.N, k: of.K, product: p, workers: workers,
		reference: conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, m, 1, h.f.Type), bound: 1.5 * conform.Bound(h.f.Type),
		multiply: func(mem *kerneltest.Memory, x driver.Ptr, o Operands, flags driver.Ptr, sms int, reverse bool) {
			w := w
			w.codes, w.scales = mem.Upload(tiles.Codes), mem.Upload(scales)
			launch, args, share := h.v.manyPlan(&w, o, flags, workers, sms)
			l, columns := lutcolumns{h.v.form()}.launch(x, o.X, m, of.K, 2)
			h.prepare.Launch(t, mem, columnsName, l, reverse, kerneltest.Struct(columns))
			h.multiply.Launch(t, mem, manyName, launch, reverse, kerneltest.Struct(args.bytes()), kerneltest.Struct(share.bytes()))
		},
	}.run(t)
}

// fieldsTest is a product that is divided into fields, on the host.
type fieldsTest struct {
	variant     fmt.Stringer
	format      Format
	form        Form
	sums, tiles int // bytes of all workers' sums, tiles of a field
	n, k        int
	product     *conform.Product
	workers     int
	reference   *conform.Reference
	bound       float64
	// multiply prepares X, which lies row by row, to o.X, and multiplies it.
	multiply func(mem *kerneltest.Memory, x driver.Ptr, o Operands, flags driver.Ptr, sms int, reverse bool)
}

// run multiplies in both orders of a block's threads, on as many blocks as there are workers and on half as many, checks the
// results, and returns their bits.
func (f fieldsTest) run(t *testing.T) (first []byte) {
	p, m := f.product, f.product.Rows
	what := fmt.Sprintf("%v, %d rows by %d×%d, %d workers", f.variant, m, f.n, f.k, f.workers)
	for _, reverse := range []bool{false, true} {
		var mem kerneltest.Memory
		y := conform.Poisoned(m * f.n)[:m*f.n]
		o := Operands{M: m, X: mem.Upload(slices.Repeat([]byte{0xff}, f.form.Bytes(m, f.k))), Scratch: mem.Upload(slices.Repeat([]byte{0xff}, f.sums))}
		flags := mem.Upload(make([]byte, 4*f.workers*f.tiles))
		alignment, sms := 16, f.workers
		if reverse {
			alignment, sms = 2, (f.workers+1)/2
		}
		o.Y = mem.UploadAligned(driver.Bytes(y), alignment)
		if p.Bias != nil {
			o.Bias = mem.UploadAligned(driver.Bytes(p.Bias), alignment)
		}
		f.multiply(&mem, mem.Upload(driver.Bytes(p.X)), o, flags, sms, reverse)
		got := mem.Read(o.Y)
		if first == nil {
			first = got
		} else if !slices.Equal(got, first) {
			t.Errorf("%s: other bits in another order and on fewer blocks", what)
		}
		copy(driver.Bytes(y), got)
		if slices.Max(mem.Read(flags)) != 0 {
			t.Errorf("%s: flags are not left 0", what)
		}
		if err := conform.CheckWritten(append(y, conform.Poisoned(0)...), f.format.Type); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if rel, _ := f.reference.Errors(y); !(rel <= f.bound) {
			t.Errorf("%s: relative error %.3g", what, rel)
		}
	}
	return first
}

// TestDivide holds how products are divided to what lutmany.cu takes: each atom of each field is one worker's, and a
// field with more than two workers is one of few.
func TestDivide(t *testing.T) {
	for _, v := range []manyVariant{{256, 2, Replicated}, {128, 3, Replicated}, {64, 4, Replicated}} {
		for _, test := range []struct{ n, k, m int }{
			{8192, 8192, 256}, {28672, 4096, 1024}, {8192, 8192, 8192}, {4096, 4096, 100}, {16, 32, 17}, {1024, 8192, 300}, {57344, 8192, 257},
		} {
			w := v.divide(test.n, test.k, test.m, manyWorkers)
			if w.workers < 1 || w.workers > manyWorkers || w.shared > w.fields || w.shared > 0 && (w.fields-w.shared)%manyWorkers != 0 {
				t.Errorf("%v, %+v: divided as %+v", v, test, w)
			}
			if w.fields > manyWorkers && w.shared > 0 && w.shared*w.atoms/w.workers < w.atoms {
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
			all = append(all, v.manyVariant)
		}
		for _, v := range f.sparseManyVariants() {
			all = append(all, v.manyVariant)
		}
		for _, v := range all {
			if v.tiles() > mostTiles {
				t.Errorf("%v of %s: %d tiles", v, f.name(), v.tiles())
			}
		}
	}
}

// TestGuess holds what products are taken to take to cycles that an H200 took, from the end of the kernel in front on.
func TestGuess(t *testing.T) {
	for _, test := range []struct {
		v       manyVariant
		n, k, m int
		cycles  float64
	}{
		{manyVariant{64, 4, Replicated}, 8192, 8192, 64, 46400},
		{manyVariant{64, 4, Replicated}, 28672, 4096, 64, 65400}, // whole fields, fewer than workers
		{manyVariant{96, 3, Replicated}, 28672, 4096, 96, 76000},
		{manyVariant{128, 3, Replicated}, 28672, 4096, 128, 84600},
		{manyVariant{128, 2, Replicated}, 28672, 4096, 128, 93800},
		{manyVariant{256, 2, Replicated}, 8192, 8192, 256, 86400},
		{manyVariant{256, 2, Replicated}, 8192, 8192, 1024, 282100},
		{manyVariant{256, 2, Replicated}, 28672, 4096, 256, 142800},
		{manyVariant{256, 2, Replicated}, 28672, 4096, 1024, 511000},
	} {
		if guess := test.v.guess(test.n, test.k, test.m); guess < test.cycles*0.85 || guess > test.cycles*1.15 {
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
		e := f.scaleExponent(scales, codebook)
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
	if e := f.scaleExponent(make([]byte, 8), codebook); e != 0 {
		t.Errorf("all scales 0: exponent %d", e)
	}
	f.Type = driver.BF16
	if e := f.scaleExponent([]byte{1, 0}, codebook); e != 0 {
		t.Errorf("bfloat16: exponent %d", e)
	}
}

// TestGPUMany multiplies many rows in every way that there is, on grids of as many blocks as the GPU takes and of fewer.
func TestGPUMany(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		for i, f := range testFormats() {
			if !*long && i%3 != 0 {
				continue
			}
			for _, test := range []struct{ n, k, m int }{{4100, 544, 600}, {2100, 1600, 300}, {1000, 4128, 65}, {40, 320, 17}}[i%2:] {
				of := testMatrix(uint64(i), test.n, test.k, f)
				p := testProduct(test.n, test.k, test.m, f.Type, i%2 == 0)
				m := newGPUMatrix(t, e, s, of, f.Type)
				if err := m.load(p); err != nil {
					t.Fatal(err)
				}
				m.o.Scratch = must(e.dev.Alloc(max(e.MostScratch(m.w, test.m), 16)))(t)
				ref := conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, test.m, 1, f.Type)
				for _, way := range e.Ways(m.w, test.m) {
					if way.unpacked {
						continue
					}
					what := fmt.Sprintf("%s, %v, %+v", f.name(), way, test)
					var first []uint16
					for _, blocks := range []int{math.MaxInt, 131, 77, 1} {
						e.LimitBlocks(blocks)
						y := conform.Poisoned(test.m * test.n)
						err := errors.Join(e.dev.Write(m.o.Y, driver.Bytes(y)), e.MatMulWay(s, m.w, m.o, way), s.Sync(), e.dev.Read(driver.Bytes(y), m.o.Y))
						skipMissing(t, err)
						if err = errors.Join(err, conform.CheckWritten(y, f.Type)); err != nil {
							t.Fatalf("%s: %v", what, err)
						}
						if first != nil && !slices.Equal(y, first) {
							t.Errorf("%s: other bits on up to %d blocks", what, blocks)
						}
						first = y
					}
					if rel, _ := ref.Errors(first); !(rel <= 1.5*conform.Bound(f.Type)) {
						t.Errorf("%s: relative error %.3g", what, rel)
					}
				}
				e.LimitBlocks(math.MaxInt)
				err := e.dev.Free(m.o.Scratch)
				m.o.Scratch = 0
				if err != nil {
					t.Fatal(err)
				}
				m.close(t)
			}
		}
	})
}

// TestGPUManyIntegers holds arithmetic in place of the table to the table's bits, in every variant of lutmany.cu.
func TestGPUManyIntegers(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		if e.dev.Info.Major != 9 {
			t.Skip("Hopper alone has the kernel")
		}
		for i, f := range []Format{{4, 128, weight.F16, driver.F16}, {4, 64, weight.BF16, driver.BF16}, {4, 32, weight.F16, driver.BF16}, {4, 0, weight.F32, driver.F16}} {
			of := testMatrix(uint64(i), 2100, 1600, f)
			of.Codebook = must(lut.NewCodebook("sym", f.Bits, f.Group))(t).Values
			p := testProduct(2100, 1600, 300, f.Type, i%2 == 0)
			m := newGPUMatrix(t, e, s, of, f.Type)
			if err := m.load(p); err != nil {
				t.Fatal(err)
			}
			for _, v := range f.manyVariants() {
				m.o.Scratch = must(e.dev.Alloc(Way{many: v}.ScratchBytes(300, 1600)))(t)
				var first []uint16
				for _, l := range []Lookup{Replicated, Integers} {
					y := conform.Poisoned(300 * 2100)
					err := errors.Join(e.dev.Write(m.o.Y, driver.Bytes(y)), e.MatMulWay(s, m.w, m.o, Way{many: v.with(l)}), s.Sync(), e.dev.Read(driver.Bytes(y), m.o.Y))
					skipMissing(t, err)
					if err != nil {
						t.Fatal(err)
					}
					if first != nil && !slices.Equal(y, first) {
						t.Errorf("%s, %v: other bits than by the table", f.name(), v)
					}
					first = y
				}
				if err := e.dev.Free(m.o.Scratch); err != nil {
					t.Fatal(err)
				}
				m.o.Scratch = 0
			}
			m.close(t)
		}
	})
}
