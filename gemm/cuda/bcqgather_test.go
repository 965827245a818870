package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// gatherBound is the relative error that a product by tables may have, whose entries are rounded to float16 beside the result.
func gatherBound(t driver.DType) float64 { return 1.5 * conform.Bound(t) }

// gatherTests are kernels with shapes: a slice of K and several, rows and columns of padding, and every kind of group.
func gatherTests() []struct {
	format BCQFormat
	half   bool
	n, k   int
} {
	return []struct {
		format BCQFormat
		half   bool
		n, k   int
	}{
		{BCQFormat{3, 128, weight.F16, driver.F16}, true, 70, 4512},
		{BCQFormat{2, 32, weight.F16, driver.BF16}, false, 33, 2336},
		{BCQFormat{1, 256, weight.F16, driver.F16}, false, 64, 800},
		{BCQFormat{4, 0, weight.F16, driver.BF16}, true, 100, 288},
	}
}

// TestCompileGather compiles the kernels that look tables of activations up.
func TestCompileGather(t *testing.T) {
	var variants []kerneltest.Variant
	for _, test := range gatherTests() {
		for rows := 1; rows <= gatherMostRows; rows++ {
			k := bcqGather{test.format, test.half, rows}.kernel()
			k.Options.Arch = "sm_90a"
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("gather, %d planes, %d rows", test.format.Bits, rows), Kernel: k})
		}
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *long || *cover), variants)
}

// TestHostGather runs them on the host's processor.
func TestHostGather(t *testing.T) {
	for i, test := range gatherTests() {
		f := test.format
		if !*long && i > 1 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(5, uint64(i)))
			group := f.Group
			if group == 0 {
				group = test.k
			}
			of := conform.RandomBCQ(r, test.n, test.k, f.Bits, group, f.Scale, i%2 == 0)
			laid := must(repack.GatherBCQ(of, test.half))(t)
			for _, rows := range []int{1, 2} {
				p := testProduct(test.n, test.k, rows, f.Type, rows == 1)
				want := conform.NewRowReference(r, of, p.X, p.Bias, rows, 1, f.Type)
				m := &BCQGatherMatrix{N: test.n, K: test.k, Format: f, half: test.half}
				g, args, launch := m.plan(rows, limits{sms: 5, sharedBlock: h200.sharedBlock})
				var mem kerneltest.Memory
				y := make([]uint16, rows*test.n)
				for i := range y {
					y[i] = 0xffff
				}
				done := make([]byte, 4*launch.Grid.X)
				at, doneAt := mem.UploadAligned(driver.Bytes(y), 2), mem.Upload(done)
				args.planes, args.factors = uint64(mem.Upload(laid.Planes)), uint64(mem.Upload(laid.Factors))
				args.x, args.y = uint64(mem.Upload(driver.Bytes(p.X))), uint64(at)
				args.parts, args.done = uint64(mem.Upload(make([]byte, 4*rows*test.n*int(launch.Grid.Y)))), uint64(doneAt)
				if p.Bias != nil {
					args.bias = uint64(mem.UploadAligned(driver.Bytes(p.Bias), 2))
				}
				host := kerneltest.OnHost(t, g.kernel(), 900)
				host.Launch(t, &mem, bcqGatherReadName, launch, false, kerneltest.Struct(args.bytes()))
				if !slices.Equal(mem.Read(at), driver.Bytes(y)) {
					t.Error("the twin that only reads writes")
				}
				var first []byte
				for _, reverse := range []bool{false, true} {
					host.Launch(t, &mem, bcqGatherName, launch, reverse, kerneltest.Struct(args.bytes()))
					copy(driver.Bytes(y), mem.Read(at))
					if rel, _ := want.Errors(y); !(rel <= gatherBound(f.Type)) {
						t.Errorf("%d rows: relative error %.3g", rows, rel)
					}
					if first == nil {
						first = slices.Clone(driver.Bytes(y))
					} else if !slices.Equal(first, driver.Bytes(y)) {
						t.Errorf("%d rows: other bits the second time", rows)
					}
					if !slices.Equal(mem.Read(doneAt), done) {
						t.Errorf("%d rows: slices are still counted", rows)
					}
				}
			}
		})
	}
}

// TestGPUGather multiplies through tables of activations on a GPU, full and half, by matrices of a slice of K and of several, on as many
// blocks as the GPU takes and on few, which gives the same bits; and the twin that only reads leaves Y alone.
func TestGPUGather(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		for i, f := range BCQFormats() {
			if f.Scale != weight.F16 || !*long && i%23 != 0 {
				continue
			}
			r := rand.New(rand.NewPCG(6, uint64(i)))
			n, k := 1+r.IntN(9000), 32*(9+r.IntN(300))
			group := f.Group
			if group == 0 {
				group = k
			}
			of := conform.RandomBCQ(r, n, k, f.Bits, group, f.Scale, i%3 != 1)
			for _, half := range []bool{false, true} {
				w := must(e.UploadBCQGather(must(repack.GatherBCQ(of, half))(t), f.Type))(t)
				for _, rows := range []int{1, 2, 5} {
					var first []uint16
					for _, blocks := range []int{e.dev.Info.SMs, 7} {
						e.LimitBlocks(blocks)
						y := checkBCQ(t, e, s, w, of, rows, f, gatherBound(f.Type))
						if first == nil {
							first = y
						} else if !slices.Equal(y, first) {
							t.Errorf("%s, half %v, %d rows of %d×%d: other bits on up to %d blocks", f.name(), half, rows, n, k, blocks)
						}
					}
					e.LimitBlocks(e.dev.Info.SMs)
				}
				y := conform.Poisoned(n)
				o := Operands{M: 1, X: must(e.dev.Upload(make([]byte, 2*k)))(t), Y: must(e.dev.Upload(driver.Bytes(y)))(t)}
				if err := errors.Join(w.Read(s, o), s.Sync(), e.dev.Read(driver.Bytes(y), o.Y), e.dev.Free(o.X), e.dev.Free(o.Y), w.Close()); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(y, conform.Poisoned(n)) {
					t.Errorf("%s, half %v: the twin that only reads writes", f.name(), half)
				}
			}
		}
	})
}
