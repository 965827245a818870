package peers

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

func TestCompile(t *testing.T) {
	var variants []kerneltest.Variant
	for _, arch := range []string{"sm_80", "sm_90a"} {
		k := Kernel()
		k.Options.Arch = arch
		variants = append(variants, kerneltest.Variant{Group: "peers", Kernel: k})
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover), variants)
}

// TestHost has GPUs take turns, each of which sends before any takes.
func TestHost(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			t.Parallel()
			stamps.Due(t, kerneltest.Modules(900, Kernel())...)
			host := stamps.OnHost(t, Kernel(), 900)
			r := rand.New(rand.NewPCG(1, uint64(ranks)))
			var mem kerneltest.Memory
			boxes, sent := make([]driver.Ptr, ranks), make([]driver.Ptr, ranks)
			for i := range boxes {
				boxes[i], sent[i] = mem.Upload(make([]byte, BoxBytes(ranks, 3))), mem.Upload(make([]byte, 4*blocks))
			}
			ended := mem.Upload(make([]byte, 64))
			turns := func(kernel string, grid int, reverse bool, args func(rank int) []any) {
				for _, does := range []int{sends, takes} {
					for rank := range ranks {
						all := append([]any{kerneltest.Struct(Bytes(boxes, sent[rank], ended, rank))}, args(rank)...)
						l := driver.Launch{Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: threads}, Programmatic: true}
						host.Launch(t, &mem, kernel, l, reverse, append(all, does)...)
					}
				}
			}
			for i, c := range []struct {
				t driver.DType
				n int
			}{{driver.F16, 3000}, {driver.F32, 1500}, {driver.BF16, 777}} { // messages of a block, of several, and of an odd number
				x, want := randomParts(r, c.t, ranks, c.n)
				at, to := make([]driver.Ptr, ranks), make([]driver.Ptr, ranks)
				for rank := range ranks {
					at[rank] = mem.Upload(x[rank])
					if to[rank] = at[rank]; i > 0 {
						to[rank] = mem.Upload(make([]byte, len(want)))
					}
				}
				grid, each := message((len(want) + 3) / 4)
				turns(kernels[c.t], grid, i%2 > 0, func(rank int) []any { return []any{to[rank], at[rank], int64(c.n), each} })
				for rank := range ranks {
					if !bytes.Equal(mem.Read(to[rank]), want) {
						t.Errorf("%d numbers, %v: other sums on rank %d", c.n, c.t, rank)
					}
				}
			}
			const rows, cols = 3, 300
			x, _ := randomParts(r, driver.F32, ranks, rows*cols)
			at, to, want := make([]driver.Ptr, ranks), make([]driver.Ptr, ranks), []byte(nil)
			for row := range rows {
				for rank := range ranks {
					want = append(want, x[rank][4*row*cols:4*(row+1)*cols]...)
				}
			}
			for rank := range ranks {
				at[rank], to[rank] = mem.Upload(x[rank]), mem.Upload(make([]byte, len(want)))
			}
			grid, each := message(rows * cols)
			turns("peers_gather", grid, false, func(rank int) []any { return []any{to[rank], at[rank], int64(rows * cols), cols, each} })
			for rank := range ranks {
				if !bytes.Equal(mem.Read(to[rank]), want) {
					t.Errorf("other rows on rank %d", rank)
				}
			}
		})
	}
}
