package table

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/repack"
)

// TestHostBytes holds rounded X to package fp8 and to what wgmma multiplies: of step s of 32 columns, register pair r of a
// lane 4g + t of A has columns 8t + 4s + 2⌊r/2⌋ and the next ([repack.CUDATiles]); two steps are one of 32 columns, of which
// register 2s + i has numbers 4t + 16s to 4t + 16s + 3 of B ("Register fragments for wgmma.mma_async.m64nNk32"). Of row i of
// B 16 bytes lie at their number exclusive-or i%8.
func TestHostBytes(t *testing.T) {
	stamps := cudatest.Stamps(t)
	kernel := func(dtype driver.DType) driver.Kernel { return lutbytes{dtype}.Kernel() }
	stamps.Due(t, kerneltest.Modules(900, kernel(driver.F16), kernel(driver.BF16))...)
	for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
		host := stamps.OnHost(t, kernel(dtype), 900)
		for _, test := range []struct{ m, k int }{{1, 32}, {7, 96}, {8, 128}, {19, 160}, {33, 4512}} {
			rng := rand.New(rand.NewPCG(uint64(test.m), 7))
			x := conform.RandomHalves(rng, test.m*test.k, dtype)
			row := func(m int) []uint16 { return x[m*test.k : (m+1)*test.k] }
			clear(row(test.m - 1))
			if test.m > 3 {
				row(1)[test.k-1] = 0x7fff // NaN
				for i := range row(2) {
					row(2)[i] = uint16(i % 3) // the smallest there are
				}
			}
			groups, atoms := roundedRows(test.m)/8, atomsOf(test.k)
			want := make([]byte, roundedRows(test.m)*atoms*128)
			scales := make([]float32, roundedRows(test.m))
			for m := range test.m {
				values, rounded := make([]float32, test.k), make([]float32, test.k)
				most := float32(0x1p-100)
				for i, v := range row(m) {
					values[i] = conform.FromHalf(dtype, v)
					most = max(most, float32(math.Abs(float64(values[i]))))
				}
				fp8.RoundRow(rounded, values)
				scales[m] = most / 448
				for of32 := 0; of32 < test.k; of32 += 32 {
					for s := range 2 {
						for lane := range 4 {
							for e := range 4 {
								v := rounded[of32+8*lane+4*s+e]
								in128 := of32%128 + 16*s + 4*lane + e
								at := (of32/128*groups+m/8)*1024 + m%8*128 + (in128/16^m%8)*16 + in128%16
								want[at] = num.F32ToF8E4M3(v / scales[m])
							}
						}
					}
				}
			}
			for _, reverse := range []bool{false, true} {
				var mem kerneltest.Memory
				to := mem.Upload(slices.Repeat([]byte{0xff}, Rounded.Bytes(test.m, test.k)))
				cudatest.Launch(t, host, &mem, lutbytes{dtype}.launch(mem.Upload(driver.Bytes(x)), to, test.m, test.k), reverse)
				got := mem.Read(to)
				for i, v := range scales {
					s := math.Float32frombits(binary.LittleEndian.Uint32(got[len(want)+4*i:]))
					if s != v && (s == s || v == v) {
						t.Fatalf("%v, %d×%d: row %d has the scale %v, want %v", dtype, test.m, test.k, i, s, v)
					}
				}
				for i, b := range want {
					if got[i] != b && (got[i]&0x7f != 0x7f || b&0x7f != 0x7f) {
						t.Fatalf("%v, %d×%d: byte %d is %#x, want %#x", dtype, test.m, test.k, i, got[i], b)
					}
				}
			}
		}
	}
}

// TestHostFP8 runs lutfp8.cu on the host's processor, with what is asynchronous done at once and as late as it may be.
func TestHostFP8(t *testing.T) {
	formats := slices.DeleteFunc(Formats(), func(f Format) bool { return !f.hasFP8() })
	stamps := cudatest.Stamps(t)
	for i, f := range formats {
		variants := f.fp8Variants()
		if !*cudatest.Long {
			if i%29 != 5 {
				continue
			}
			variants = variants[i%len(variants):][:1]
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			kernels := []driver.Kernel{lutbytes{f.Type}.Kernel()}
			for _, v := range variants {
				kernels = append(kernels, fp8Kernel{f, v}.Kernel())
			}
			stamps.Due(t, kerneltest.Modules(900, kernels...)...)
			for i, v := range variants {
				h := hostFP8{f, v, stamps.OnHost(t, kernels[0], 900), stamps.OnHost(t, kernels[1+i], 900)}
				for l, test := range manyProducts(v.Columns, v.Groups) {
					if *cudatest.Long || l == 0 || l == 1+i%3 {
						h.check(t, uint64(i), test.n, test.k, test.m, test.workers)
					}
				}
			}
		})
	}
}

type hostFP8 struct {
	f                 Format
	v                 fp8Variant
	prepare, multiply *kerneltest.Host
}

func (h hostFP8) check(t *testing.T, seed uint64, n, k, m, workers int) {
	if h.f.Group >= k {
		return
	}
	of := testMatrix(seed, n, k, h.f)
	tiles := cudatest.Must(repack.CUDA(of))(t)
	scales := h.f.Scales(tiles)
	w := cudatest.Must(New(h.f, n, k, tiles.Codebook, scales))(t)
	p := cudatest.Product(n, k, m, h.f.Type, seed%2 == 0)
	cudatest.Fields{
		Variant: h.v, Type: h.f.Type, Form: Rounded, Sums: h.v.SumBytes(workers), Tiles: h.v.Tiles(), N: n, K: k, Product: p, Workers: workers,
		Reference: conform.NewFP8Reference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, m, 1, h.f.Type), Bound: conform.Bound(h.f.Type),
		Multiply: func(mem *kerneltest.Memory, x driver.Ptr, o cuda.Operands, sms int, reverse bool) {
			at := []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
			cudatest.Launch(t, h.prepare, mem, lutbytes{h.f.Type}.launch(x, o.X, m, k), reverse)
			cudatest.Launch(t, h.multiply, mem, w.byFP8(at, h.v, o, workers, sms), reverse)
		},
	}.Run(t)
}

// TestGPUFP8 multiplies many rows in E4M3 in every way that there is, on grids of as many blocks as the GPU takes and of fewer.
func TestGPUFP8(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		formats := slices.DeleteFunc(Formats(), func(f Format) bool { return !f.hasFP8() })
		for i, f := range formats {
			if !*cudatest.Long && i%19 != 3 {
				continue
			}
			for _, test := range manyOnGPU(i) {
				of := testMatrix(uint64(i), test.n, test.k, f)
				p := cudatest.Product(test.n, test.k, test.m, f.Type, i%2 == 0)
				w := upload(t, g, of, f.Type)
				if !g.RoundToFP8(w) {
					t.Skip("no GPU for E4M3, or no compiler")
				}
				ref := conform.NewFP8Reference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, test.m, 1, f.Type)
				g.CheckWays(t, f.name(), w, p, ref, conform.Bound(f.Type), ways(f.fp8Variants()), []int{math.MaxInt, 131, 77, 1})
				cudatest.Must(0, w.Close())(t)
			}
		}
	})
}
