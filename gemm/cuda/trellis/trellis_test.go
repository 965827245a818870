package trellis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	codes "github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// bound is the relative error that a product may have, of which rotated activations are rounded beside the result.
func bound(t driver.DType) float64 { return Family{}.Loosened() * conform.Bound(t) }

// onH200 is what kernels are planned for, with so many multiprocessors.
func onH200(sms int) cuda.GPU {
	g := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	g.SMs = sms
	return g
}

// TestHash holds what the kernels make of windows to package trellis.
func TestHash(t *testing.T) {
	for _, rate := range codes.Rates() {
		for x := range uint32(1 << codes.Window) {
			y := x * factor
			if index, flip := codes.Hash(uint16(x), rate); index != y>>7&(codes.Entries-1) || flip != y&codes.Flips(rate) {
				t.Fatalf("rate %d: window %#x is pair %d, turned over in %#x", rate, x, index, flip)
			}
		}
	}
}

// TestInverseOf divides all columns that there may be among slices, as kernels do.
func TestInverseOf(t *testing.T) {
	for _, warps := range []int{8, 12} {
		for _, slices := range slicesIn(warps) {
			for n := range maxColumns/repack.TrellisCols + slices {
				if got := n * inverseOf(slices) >> 16; got != n/slices {
					t.Fatalf("%d columns in %d slices: %d each, want %d", n, slices, got, n/slices)
				}
			}
		}
	}
}

// TestOthersFit has no way be offered that a block has no shared memory for.
func TestOthersFit(t *testing.T) {
	for _, room := range []int{99 << 10, 163 << 10, 227 << 10} {
		g := onH200(workers)
		g.SharedPerBlock = room
		for _, m := range []int{1, rowsOfB, cuda.MaxRows} {
			one := like(6, 8192, 8192, driver.F16, false)
			ways := one.Others(g, m)
			if m == 1 && len(ways) != len(slicesIn(12))-1 {
				t.Errorf("%d bytes: %d other ways for a row", room, len(ways))
			}
			for _, by := range ways {
				l, err := one.Launch(g, make([]driver.Ptr, len(one.Parts)), by, cuda.Operands{M: m})
				if err != nil || l[0].Shared > room {
					t.Errorf("%d rows by %v take %d bytes of %d: %v", m, by, l[0].Shared, room, err)
				}
			}
		}
	}
}

// TestCompileTrellis compiles the kernels for rings of some rates, or with -long of all.
func TestCompileTrellis(t *testing.T) {
	var variants []kerneltest.Variant
	add := func(group, arch string, k driver.Kernel) {
		k.Options.Arch = arch
		variants = append(variants, kerneltest.Variant{Group: group, Kernel: k})
	}
	for rate := leastRate; rate <= mostRate; rate++ {
		if !*cudatest.Long && !slices.Contains([]int{4, 6, 7, 8, 12}, rate) {
			continue
		}
		for _, m := range []int{1, cuda.MaxRows} {
			w := variantOf(rate, m, false)
			add(fmt.Sprintf("rate %d, %v", rate, w), "sm_90a", product{rate, driver.F16, w}.Kernel())
		}
		add(fmt.Sprintf("rows of rate %d", rate), "sm_80", rows{rate, driver.BF16, driver.BF16}.Kernel())
	}
	add("rotation", "sm_80", rotation{driver.BF16}.Kernel())
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover), variants)
}

// hostTests are matrices: of fields of a band and of several, of less than a tile and of many; where 64 does not divide K they have factors.
func hostTests() []struct{ rate, n, k, m, slices int } {
	return []struct{ rate, n, k, m, slices int }{
		{6, 128, 576, 1, 4},
		{4, 200, 352, 8, 12},
		{8, 64, 1312, 3, 12},
		{8, 350, 128, 7, 2},
		{7, 130, 224, 5, 6},
		{3, 31, 32, 2, 12},
		{12, 70, 160, 8, 4},
		{2, 320, 96, 4, 4},
		{6, 192, 192, 16, 3},
		{4, 65, 416, 9, 6},
		{5, 256, 96, 12, 1},
		{9, 100, 288, 11, 2},
	}
}

// TestHostTrellis rotates X and multiplies by rings on the host's processor, on as many blocks as there are workers and on few.
func TestHostTrellis(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, test := range hostTests() {
		dtype := []driver.DType{driver.F16, driver.BF16}[i%2]
		t.Run(fmt.Sprintf("%d of %dx%d", test.rate, test.n, test.k), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(5, uint64(i)))
			of := conform.RandomTrellis(r, test.n, test.k, test.rate)
			packed, parts, err := Family{}.Pack(of, dtype)
			if err != nil {
				t.Fatal(err)
			}
			tiles := packed.(*Tiles)
			w := tiles.way(onH200(workers), test.m)
			w.slices = test.slices
			stamps.Due(t, kerneltest.Modules(900, tiles.Kernels(onH200(workers), w, test.m)...)...)
			p := cudatest.Product(test.n, test.k, test.m, dtype, i%3 != 1)
			want := conform.NewRowReference(r, of, p.X, p.Bias, test.m, 1, dtype)
			var first []byte
			for _, sms := range []int{workers, 3} {
				var mem kerneltest.Memory
				var at []driver.Ptr
				for _, part := range parts {
					at = append(at, mem.Upload(part))
				}
				y := make([]uint16, test.m*test.n)
				for i := range y {
					y[i] = 0xffff
				}
				needs := w.Needs(test.n, test.k, test.m)
				flags := make([]byte, 4*workers*w.warps)
				alignment := 16
				if sms == 3 {
					alignment = 2
				}
				o := cuda.Operands{M: test.m, X: mem.Upload(driver.Bytes(p.X)), Y: mem.UploadAligned(driver.Bytes(y), alignment)}
				o.Scratch, o.Flags = mem.Upload(slices.Repeat([]byte{0xff}, needs.Sums)), mem.Upload(flags)
				if p.Bias != nil {
					o.Bias = mem.UploadAligned(driver.Bytes(p.Bias), alignment)
				}
				launch := func(l cuda.Launch) {
					cudatest.Launch(t, stamps.OnHost(t, l.Of.Kernel(), 900), &mem, l, sms == 3)
				}
				if needs.Form != nil {
					to := mem.Upload(slices.Repeat([]byte{0xff}, needs.Form.Bytes(test.m, test.k)))
					launch(needs.Form.Prepare(onH200(sms), dtype, to, o.X, test.m, test.k))
					o.X = to
				}
				for _, by := range []cuda.Way{twin{w}, w} {
					all, err := tiles.Launch(onH200(sms), at, by, o)
					if err != nil {
						t.Fatal(err)
					}
					for _, l := range all {
						launch(l)
					}
					if _, read := by.(twin); read && !slices.Equal(mem.Read(o.Y), driver.Bytes(y)) {
						t.Error("the twin that only reads writes")
					}
				}
				copy(driver.Bytes(y), mem.Read(o.Y))
				if rel, _ := want.Errors(y); !(rel <= bound(dtype)) {
					t.Errorf("relative error %.3g", rel)
				}
				if first == nil {
					first = slices.Clone(driver.Bytes(y))
				} else if !slices.Equal(first, driver.Bytes(y)) {
					t.Error("other bits on few blocks")
				}
				if !slices.Equal(mem.Read(o.Flags), flags) {
					t.Error("flags are left")
				}
			}
		})
	}
}

// TestHostTrellisRows writes weights as numbers on the host's processor, which are those of package trellis to the bit.
func TestHostTrellisRows(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, test := range []struct{ rate, n, k int }{{6, 64, 224}, {7, 75, 96}, {4, 21, 320}, {12, 128, 64}} {
		dtype := []driver.DType{driver.F16, driver.BF16}[i%2]
		t.Run(fmt.Sprintf("%d of %dx%d", test.rate, test.n, test.k), func(t *testing.T) {
			t.Parallel()
			halves, floats := rows{test.rate, dtype, dtype}.Kernel(), rows{test.rate, dtype, driver.F32}.Kernel()
			stamps.Due(t, kerneltest.Modules(800, halves, floats)...)
			of := conform.RandomTrellis(rand.New(rand.NewPCG(6, uint64(i))), test.n, test.k, test.rate)
			tiles, parts, err := Family{}.Pack(of, dtype)
			if err != nil {
				t.Fatal(err)
			}
			want := weight.Dequantize(of)
			var mem kerneltest.Memory
			var at []driver.Ptr
			for _, part := range parts {
				at = append(at, mem.Upload(part))
			}
			launch := func(r cuda.Rows) {
				l := cudatest.Must(tiles.Rows(onH200(1), at, r))(t)
				cudatest.Launch(t, stamps.OnHost(t, l.Of.Kernel(), 800), &mem, l, false)
			}
			written := make([]uint16, (test.n-5)*test.k)
			dst := mem.UploadAligned(driver.Bytes(written), []int{16, 2}[i%2])
			launch(cuda.Rows{To: dst, Type: dtype, First: 5, Count: test.n - 5})
			copy(driver.Bytes(written), mem.Read(dst))
			for j, v := range written {
				if half := conform.ToHalf(dtype, want[5*test.k+j]); v != half {
					t.Fatalf("weight %d,%d is %#x, want %#x", 5+j/test.k, j%test.k, v, half)
				}
			}
			index := []uint32{20, 0, 17, 17, 5}
			picked := make([]float32, len(index)*test.k)
			dst = mem.Upload(driver.Bytes(picked))
			launch(cuda.Rows{To: dst, Type: driver.F32, Index: mem.Upload(driver.Bytes(index)), Count: len(index)})
			copy(driver.Bytes(picked), mem.Read(dst))
			for j, v := range picked {
				if want := want[int(index[j/test.k])*test.k+j%test.k]; v != want {
					t.Fatalf("element %d of row %d is %g, want %g", j%test.k, index[j/test.k], v, want)
				}
			}
		})
	}
}

// TestGPUTrellis multiplies by rings of every rate on a GPU, as the engine chooses and in other ways, on as many blocks as the GPU takes and on few, and
// writes them as numbers.
func TestGPUTrellis(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for rate := leastRate; rate <= mostRate; rate++ {
			if !*cudatest.Long && !slices.Contains([]int{3, 4, 6, 8, 9}, rate) {
				continue
			}
			r := rand.New(rand.NewPCG(7, uint64(rate)))
			for i, shape := range [][2]int{{1 + r.IntN(3000), 32 * (1 + r.IntN(100))}, {64 * (1 + r.IntN(150)), 64 * (1 + r.IntN(30))}} {
				n, k := shape[0], shape[1]
				dtype := []driver.DType{driver.F16, driver.BF16}[(rate+i)%2]
				of := conform.RandomTrellis(r, n, k, rate)
				tiles, parts, err := Family{}.Pack(of, dtype)
				if err != nil {
					t.Fatal(err)
				}
				w := g.Upload(t, tiles, parts)
				for _, rows := range []int{1, 3, 8, 11, 16, 37} {
					what := fmt.Sprintf("rate %d, %d rows of %d×%d", rate, rows, n, k)
					p := cudatest.Product(n, k, rows, dtype, rows%2 == 1)
					want := conform.NewRowReference(rand.New(rand.NewPCG(4, uint64(rows))), of, p.X, p.Bias, rows, 1, dtype)
					g.Check(t, what, w, p, want, bound(dtype), func(o cuda.Operands) error { return g.MatMul(g.Stream, w, o) })
					if rows <= cuda.MaxRows {
						ways := slices.Concat(g.Configs(tiles, rows), g.Others(tiles, rows))
						g.CheckWays(t, what, w, p, want, bound(dtype), ways, []int{g.Dev.Info.SMs, 7, g.Dev.Info.SMs})
					}
				}
				all, row := make([]float32, n*k), make([]float32, k)
				dst := cudatest.Must(g.Dev.Alloc(4 * n * k))(t)
				err = errors.Join(w.Rows(g.Stream, cuda.Rows{To: dst, Type: driver.F32, Count: n}), g.Stream.Sync(), g.Dev.Read(driver.Bytes(all), dst), g.Dev.Free(dst), w.Close())
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range conform.Sample(r, n, 50) {
					if of.Row(row, i); !slices.Equal(row, all[i*k:(i+1)*k]) {
						t.Errorf("rate %d: row %d of %d×%d differs", rate, i, n, k)
					}
				}
			}
		}
	})
}

// TestHostEngine has the engine multiply on a GPU that is the host's processor: rows as they are and rotated, in turns, and tuned.
func TestHostEngine(t *testing.T) {
	kerneltest.HostGPU(t, 9, false)
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		const n, k = 200, 320
		of := conform.RandomTrellis(rand.New(rand.NewPCG(8, 8)), n, k, 6)
		tiles, parts, err := Family{}.Pack(of, driver.F16)
		if err != nil {
			t.Fatal(err)
		}
		w := g.Upload(t, tiles, parts)
		for _, m := range []int{1, 9, 20} {
			p := cudatest.Product(n, k, m, driver.F16, false)
			want := conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), of, p.X, nil, m, 1, driver.F16)
			bits := g.Check(t, "rows as they are", w, p, want, bound(driver.F16), func(o cuda.Operands) error { return g.MatMul(g.Stream, w, o) })
			if needs := g.Needs(tiles, m); needs.Form != (Rotated{}) {
				if m <= cuda.MaxRows {
					t.Errorf("%d rows are read in form %v", m, needs.Form)
				}
				continue
			}
			rotated := g.Check(t, "rotated rows", w, p, want, bound(driver.F16), func(o cuda.Operands) error {
				x := cudatest.Must(g.Dev.Alloc(Rotated{}.Bytes(m, k)))(t)
				err := g.Prepare(g.Stream, Rotated{}, driver.F16, x, o.X, m, k)
				o.X, o.Form = x, Rotated{}
				return errors.Join(err, g.MatMul(g.Stream, w, o), g.Stream.Sync(), g.Dev.Free(x))
			})
			if m > 1 {
				if !slices.Equal(bits, rotated) {
					t.Errorf("%d rows: other bits where X is rotated before", m)
				}
				continue // tuned once: it compiles every way there is
			}
			tuned := g.Check(t, "tuned", w, p, want, bound(driver.F16), func(o cuda.Operands) error {
				scratch := o.Scratch
				o.Scratch = cudatest.Must(g.Dev.Alloc(g.TuneScratch(tiles, m)))(t)
				_, err := g.Tune(g.Stream, []*cuda.Matrix{w, w}, o)
				err = errors.Join(err, g.Stream.Sync(), g.Dev.Free(o.Scratch))
				o.Scratch = scratch
				return errors.Join(err, g.MatMul(g.Stream, w, o))
			})
			if !slices.Equal(bits, rotated) || !slices.Equal(bits, tuned) {
				t.Errorf("%d rows: other bits where X is rotated before, or tuned", m)
			}
		}
		cudatest.Must(0, w.Close())(t)
	})
}

// TestHostJoin multiplies by matrices that are joined, which gives the rows that each gives.
func TestHostJoin(t *testing.T) {
	kerneltest.HostGPU(t, 9, true)
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		const k, m = 128, 3
		r := rand.New(rand.NewPCG(9, 9))
		table := conform.RandomTrellis(r, 1, k, 6).Code.Table
		p := cudatest.Product(1, k, m, driver.F16, false)
		var parts []*cuda.Matrix
		var of []*codes.Matrix
		for _, n := range []int{64, 128, 70} {
			one := conform.RandomTrellis(r, n, k, 6)
			one.Code.Table = table
			tiles, data, err := Family{}.Pack(one, driver.F16)
			if err != nil {
				t.Fatal(err)
			}
			of, parts = append(of, one), append(parts, g.Upload(t, tiles, data))
		}
		if cuda.Joined(parts[2], parts[0]) != nil {
			t.Error("70 rows are joined with others behind them")
		}
		all := cudatest.Must(g.Join(parts...))(t)
		n, _ := all.Shape()
		o := g.Operands(t, p, conform.Poisoned(m*n))
		o.Scratch = cudatest.Must(g.Dev.Alloc(g.ScratchBytes(all.Tiles, m)))(t)
		y := make([]uint16, m*n)
		if err := errors.Join(g.MatMul(g.Stream, all, o), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y)); err != nil {
			t.Fatal(err)
		}
		from := 0
		for i, one := range of {
			want := conform.NewRowReference(r, one, p.X, nil, m, 1, driver.F16)
			var part []uint16
			for row := range m {
				part = append(part, y[row*n+from:][:one.N]...)
			}
			if rel, _ := want.Errors(part); !(rel <= bound(driver.F16)) {
				t.Errorf("part %d: relative error %.3g", i, rel)
			}
			from += one.N
		}
		g.Free(t, o)
		cudatest.Must(0, all.Close())(t)
	})
}
