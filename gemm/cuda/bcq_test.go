package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/quantize/bcq"
	"github.com/lutq/lutq/quantize/weight"
	"github.com/lutq/lutq/repack"
)

// h200 is what a kernel is planned for.
var h200 = limits{sms: 132, sharedBlock: 227 << 10}

// bcqSpills is what a thread of the kernels may spill that is not for the loop over a plane: addresses and sums, beside X of 16 rows.
const bcqSpills = 160

// fewBCQFormats returns formats that have every width, group size, type of factors and of X.
func fewBCQFormats() []BCQFormat {
	var some []BCQFormat
	all := BCQFormats()
	for i := 0; i < len(all); i += 11 {
		some = append(some, all[i])
	}
	return some
}

// TestCompileBCQ compiles the kernels for binary codes: some, or with -long all.
func TestCompileBCQ(t *testing.T) {
	formats := []BCQFormat{{4, 128, weight.F16, driver.F16}, {2, 0, weight.BF16, driver.BF16}, {8, 32, weight.F32, driver.F16}}
	if *long {
		formats = BCQFormats()
	}
	var variants []kerneltest.Variant
	for _, f := range formats {
		for _, rows := range []int{rowsOfB, MaxRows} {
			k := bcqPlanesFor(f, rows, h200).kernel()
			k.Options.Arch = "sm_90a"
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d planes, to %d rows", f.Bits, rows), Kernel: k, Spills: bcqSpills})
		}
		k := bcqRows{f, f.Type}.kernel()
		k.Options.Arch = "sm_80"
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("rows of %d planes", f.Bits), Kernel: k})
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *long || *cover), variants)
}

// TestHostBCQ runs the kernels for binary codes on the host's processor.
func TestHostBCQ(t *testing.T) {
	for i, f := range fewBCQFormats() {
		if !*long && i%5 != 0 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(i)))
			n, k := []int{37, 100, 161}[i%3], 32*(1+r.IntN(70))
			group := f.Group
			if group == 0 {
				group = k
			}
			k = max(k, group+32*min(f.Group, 1)) // a row of one group is another format
			of := conform.RandomBCQ(r, n, k, f.Bits, group, f.Scale, i%3 != 1)
			tiles := must(repack.BCQ(of))(t)
			l := limits{sms: 3, sharedBlock: h200.sharedBlock}
			hosts := map[bcqPlanes]*kerneltest.Host{}
			for _, rows := range []int{1, 6, 8, 15} {
				p := testProduct(n, k, rows, f.Type, rows%2 == 1)
				want := conform.NewRowReference(r, of, p.X, p.Bias, rows, 1, f.Type)
				var first []uint16
				for _, reverse := range []bool{false, true} {
					var mem kerneltest.Memory
					m := &BCQMatrix{N: n, K: k, Format: f, planes: mem.Upload(tiles.Planes), factors: mem.Upload(tiles.Factors)}
					y := make([]uint16, rows*n)
					for i := range y {
						y[i] = 0xffff
					}
					v, args, launch, err := m.plan(rows, l)
					if err != nil {
						t.Fatal(err)
					}
					if reverse {
						args.run = min(args.run, args.teams)
					}
					at := mem.UploadAligned(driver.Bytes(y), 2)
					args.x, args.y = uint64(mem.Upload(driver.Bytes(p.X))), uint64(at)
					if p.Bias != nil {
						args.bias = uint64(mem.UploadAligned(driver.Bytes(p.Bias), 2))
					}
					host := hosts[v]
					if host == nil {
						host = kerneltest.OnHost(t, v.kernel(), 900)
						hosts[v] = host
					}
					if rows == 1 && !reverse {
						host.Launch(t, &mem, bcqReadName, launch, false, kerneltest.Struct(args.bytes()))
						if !slices.Equal(mem.Read(at), driver.Bytes(y)) {
							t.Error("the twin that only reads writes")
						}
					}
					host.Launch(t, &mem, bcqName, launch, reverse, kerneltest.Struct(args.bytes()))
					copy(driver.Bytes(y), mem.Read(at))
					if rel, _ := want.Errors(y); !(rel <= conform.Bound(f.Type)) {
						t.Errorf("%d rows of %d×%d: relative error %.3g", rows, n, k, rel)
					}
					if first == nil {
						first = y
					} else if !slices.Equal(y, first) {
						t.Errorf("%d rows of %d×%d: other bits in shorter runs", rows, n, k)
					}
				}
			}
		})
	}
}

// TestHostBCQRows runs the kernel that writes weights of binary codes as numbers on the host's processor.
func TestHostBCQRows(t *testing.T) {
	for i, f := range fewBCQFormats() {
		if !*long && i%16 != 1 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			n, k, group := 37, 800, f.Group
			if group == 0 {
				group = k
			}
			of := conform.RandomBCQ(rand.New(rand.NewPCG(2, uint64(i))), n, k, f.Bits, group, f.Scale, i%2 == 0)
			tiles := must(repack.BCQ(of))(t)
			var mem kerneltest.Memory
			m := &BCQMatrix{N: n, K: k, Format: f, planes: mem.Upload(tiles.Planes), factors: mem.Upload(tiles.Factors)}
			want := weight.Dequantize(of)

			halves := make([]uint16, (n-5)*k)
			dst := mem.Upload(make([]byte, 2*len(halves)))
			l, args := m.rowsLaunch(dst, 0, 5, n-5)
			kerneltest.OnHost(t, bcqRows{f, f.Type}.kernel(), 800).Launch(t, &mem, bcqRowsName, l, false, kerneltest.Struct(args))
			copy(driver.Bytes(halves), mem.Read(dst))
			for j, v := range halves {
				if half := Format(f).convert(want[5*k+j]); v != half {
					t.Fatalf("weight %d,%d is %#x, want %#x", 5+j/k, j%k, v, half)
				}
			}

			tiles16 := make([]uint16, (n-16)*k)
			dst = mem.Upload(make([]byte, 2*len(tiles16)))
			_, args = m.rowsLaunch(dst, 0, 16, n-16)
			kerneltest.OnHost(t, bcqDense{bcqRows{f, f.Type}}.kernel(), 900).Launch(t, &mem, bcqDenseName, m.denseLaunch(n-16, 1), true, kerneltest.Struct(args))
			copy(driver.Bytes(tiles16), mem.Read(dst))
			for j, v := range tiles16 {
				if half := Format(f).convert(want[16*k+j]); v != half {
					t.Fatalf("weight %d,%d in tiles is %#x, want %#x", 16+j/k, j%k, v, half)
				}
			}

			index := []uint32{36, 0, 17, 17, 5}
			picked := make([]float32, len(index)*k)
			dst = mem.Upload(make([]byte, 4*len(picked)))
			l, args = m.rowsLaunch(dst, mem.Upload(driver.Bytes(index)), 0, len(index))
			kerneltest.OnHost(t, bcqRows{f, driver.F32}.kernel(), 900).Launch(t, &mem, bcqRowsName, l, true, kerneltest.Struct(args))
			copy(driver.Bytes(picked), mem.Read(dst))
			for j, v := range picked {
				if want := want[int(index[j/k])*k+j%k]; v != want {
					t.Fatalf("element %d of row %d is %g, want %g", j%k, index[j/k], v, want)
				}
			}
		})
	}
}

// TestBCQPlan holds plans of every format to what an H200 has room for, and slices to the warps.
func TestBCQPlan(t *testing.T) {
	for _, f := range BCQFormats() {
		for _, shape := range [][2]int{{16, 288}, {12288, 12288}, {28672, 4096}, {4096, 14336}, {128256, 4096}} {
			for _, rows := range []int{1, 8, 16} {
				m := &BCQMatrix{N: shape[0], K: shape[1], Format: f}
				v, p, l, err := m.plan(rows, h200)
				if err != nil {
					t.Fatalf("%s, %v, %d rows: %v", f.name(), shape, rows, err)
				}
				if l.Shared > h200.sharedBlock || int(p.slices*p.teams) != v.warps || p.run%p.teams != 0 || p.run == 0 {
					t.Errorf("%s, %v, %d rows: %+v in %d bytes", f.name(), shape, rows, p, l.Shared)
				}
			}
		}
	}
}

// TestPackBCQ packs layers of binary codes by what they stand for.
func TestPackBCQ(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	learned := conform.RandomBCQ(r, 20, 256, 3, 64, weight.F16, true)
	odd := conform.RandomBCQ(r, 20, 250, 3, 250, weight.F16, true)
	table := conform.RandomMatrix(r, 20, 256, 4, 64, weight.F16)
	for c := range table.Codebook {
		table.Codebook[c] = float32(c-8) / 8
	}
	uniform := must(bcq.FromLUT(table, weight.F32))(t)
	for _, test := range []struct {
		name  string
		m     weight.Matrix
		t     driver.DType
		packs bool
	}{
		{"learned", learned, driver.F16, true},
		{"float32 activations", learned, driver.F32, false},
		{"odd columns", odd, driver.BF16, false},
		{"uniform", uniform, driver.BF16, true},
	} {
		upload, err := Pack(test.m, test.t)
		if err != nil || (upload != nil) != test.packs {
			t.Errorf("%s: packed %v, error %v", test.name, upload != nil, err)
		}
	}
	if TableOf(uniform, driver.BF16) == nil {
		t.Error("equal steps have no table")
	}
	if TableOf(learned, driver.F16) != nil {
		t.Error("factors that were learned have a table")
	}
}

// TestGPUBCQ multiplies by packed binary codes on a GPU.
func TestGPUBCQ(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		for i, f := range BCQFormats() {
			if !*long && i%29 != 0 {
				continue
			}
			r := rand.New(rand.NewPCG(4, uint64(i)))
			n, k := 1+r.IntN(5000), 32*(2+r.IntN(200))
			group := f.Group
			if group == 0 {
				group = k
			}
			k = max(k, 288)
			of := conform.RandomBCQ(r, n, k, f.Bits, min(group, k), f.Scale, i%3 != 1)
			w := must(e.UploadBCQ(must(repack.BCQ(of))(t), f.Type))(t)
			for _, rows := range []int{1, 3, 8, 16, 37} {
				checkBCQ(t, e, s, w, of, rows, f, conform.Bound(f.Type))
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// checkBCQ multiplies rows of X by binary codes on a GPU, and returns the bits of the result.
func checkBCQ(t *testing.T, e *Engine, s *driver.Stream, w interface {
	MatMul(s *driver.Stream, o Operands) error
}, of *bcq.Matrix, rows int, f BCQFormat, bound float64,
) []uint16 {
	t.Helper()
	p := testProduct(of.N, of.K, rows, f.Type, rows%2 == 1)
	want := conform.NewRowReference(rand.New(rand.NewPCG(4, uint64(rows))), of, p.X, p.Bias, rows, 1, f.Type)
	y := conform.Poisoned(rows * of.N)
	o := Operands{M: rows, X: must(e.dev.Upload(driver.Bytes(p.X)))(t), Y: must(e.dev.Upload(driver.Bytes(y)))(t)}
	if p.Bias != nil {
		o.Bias = must(e.dev.Upload(driver.Bytes(p.Bias)))(t)
	}
	if err := errors.Join(w.MatMul(s, o), s.Sync(), e.dev.Read(driver.Bytes(y), o.Y)); err != nil {
		skipMissing(t, err)
		t.Fatal(err)
	}
	if err := conform.CheckWritten(y, f.Type); err != nil {
		t.Errorf("%s, %d rows of %d×%d: %v", f.name(), rows, of.N, of.K, err)
	}
	if rel, _ := want.Errors(y); !(rel <= bound) {
		t.Errorf("%s, %d rows of %d×%d: relative error %.3g", f.name(), rows, of.N, of.K, rel)
	}
	for _, at := range []driver.Ptr{o.X, o.Y, o.Bias} {
		if at != 0 {
			must(0, e.dev.Free(at))(t)
		}
	}
	return y
}
