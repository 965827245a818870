package gather

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// gatherBound is the relative error that a product by tables may have, whose entries are rounded to float16 beside the result.
func gatherBound(t driver.DType) float64 { return 1.5 * conform.Bound(t) }

// gatherTests are kernels with shapes: a slice of K and several, rows and columns of padding, and every kind of group.
func gatherTests() []struct {
	format cuda.Format
	half   bool
	n, k   int
} {
	return []struct {
		format cuda.Format
		half   bool
		n, k   int
	}{
		{cuda.Format{Bits: 3, Group: 128, Scale: weight.F16, Type: driver.F16}, true, 70, 4512},
		{cuda.Format{Bits: 2, Group: 32, Scale: weight.F16, Type: driver.BF16}, false, 33, 2336},
		{cuda.Format{Bits: 1, Group: 256, Scale: weight.F16, Type: driver.F16}, false, 64, 800},
		{cuda.Format{Bits: 4, Group: 0, Scale: weight.F16, Type: driver.BF16}, true, 100, 288},
	}
}

// TestCompileGather compiles the kernels that look tables of activations up.
func TestCompileGather(t *testing.T) {
	var variants []kerneltest.Variant
	for _, test := range gatherTests() {
		for rows := 1; rows <= mostRows; rows++ {
			k := kernel{test.format, test.half, rows}.Kernel()
			k.Options.Arch = "sm_90a"
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("gather, %d planes, %d rows", test.format.Bits, rows), Kernel: k})
		}
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover), variants)
}

// TestHostGather runs them on the host's processor.
func TestHostGather(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, test := range gatherTests() {
		f := test.format
		if !*cudatest.Long && i > 1 {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			t.Parallel()
			stamps.Due(t, kerneltest.Modules(900, kernel{f, test.half, 1}.Kernel(), kernel{f, test.half, 2}.Kernel())...)
			r := rand.New(rand.NewPCG(5, uint64(i)))
			group := f.Group
			if group == 0 {
				group = test.k
			}
			of := conform.RandomBCQ(r, test.n, test.k, f.Bits, group, f.Scale, i%2 == 0)
			laid := cudatest.Must(repack.GatherBCQ(of, test.half))(t)
			for _, rows := range []int{1, 2} {
				p := cudatest.Product(test.n, test.k, rows, f.Type, rows == 1)
				want := conform.NewRowReference(r, of, p.X, p.Bias, rows, 1, f.Type)
				m := Family{Half: test.half}.Like(f, test.n, test.k).(*Tiles)
				gpu := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
				gpu.SMs = 5
				g, args, launch := m.plan(gpu, rows)
				if need := (byTables{test.half}).Needs(test.n, test.k, rows); need.Sums < 4*rows*test.n*int(launch.Grid.Y) || launch.Grid.X > cuda.FlagWords {
					t.Errorf("%d bytes of sums are needed, for %d slices", need.Sums, launch.Grid.Y)
				}
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
				host := stamps.OnHost(t, g.Kernel(), 900)
				host.Launch(t, &mem, readName, launch, false, kerneltest.Struct(args.bytes()))
				if !slices.Equal(mem.Read(at), driver.Bytes(y)) {
					t.Error("the twin that only reads writes")
				}
				var first []byte
				for _, reverse := range []bool{false, true} {
					host.Launch(t, &mem, gatherName, launch, reverse, kerneltest.Struct(args.bytes()))
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
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for i, f := range (Family{}).Formats() {
			if !*cudatest.Long && i%8 != 0 {
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
				tiles, parts, err := Family{Half: half}.Pack(of, f.Type)
				if err != nil {
					t.Fatal(err)
				}
				w := g.Upload(t, tiles, parts)
				for _, rows := range []int{1, 2, 5} {
					what := fmt.Sprintf("%s, half %v, %d rows of %d×%d", f.Name(), half, rows, n, k)
					p := cudatest.Product(n, k, rows, f.Type, rows%2 == 1)
					want := conform.NewRowReference(rand.New(rand.NewPCG(4, uint64(rows))), of, p.X, p.Bias, rows, 1, f.Type)
					var first []uint16
					for _, blocks := range []int{g.Dev.Info.SMs, 7} {
						g.LimitBlocks(blocks)
						y := g.Check(t, what, w, p, want, gatherBound(f.Type), func(o cuda.Operands) error { return g.MatMul(g.Stream, w, o) })
						if first == nil {
							first = y
						} else if !slices.Equal(y, first) {
							t.Errorf("%s: other bits on up to %d blocks", what, blocks)
						}
					}
					g.LimitBlocks(g.Dev.Info.SMs)
				}
				y := conform.Poisoned(n)
				o := g.Operands(t, &conform.Product{Rows: 1, X: make([]uint16, k)}, y)
				o.Scratch = cudatest.Must(g.Dev.Alloc(g.ScratchBytes(w.Tiles, 1)))(t)
				err = errors.Join(g.MatMulWay(g.Stream, w, o, g.Twins(w.Tiles, 1)[0]), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y), w.Close())
				if g.Free(t, o); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(y, conform.Poisoned(n)) {
					t.Errorf("%s, half %v: the twin that only reads writes", f.Name(), half)
				}
			}
		}
	})
}
