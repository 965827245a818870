package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
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
		for _, rows := range bcqRowsAtMost() {
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
			if n == 37 {
				k += 4096 // more units than a block has warps
			}
			group := f.Group
			if group == 0 {
				group = k
			}
			k = max(k, group+32*min(f.Group, 1)) // a row of one group is another format
			of := conform.RandomBCQ(r, n, k, f.Bits, group, f.Scale, i%3 != 1)
			tiles := must(repack.BCQ(of))(t)
			l := limits{sms: 3, sharedBlock: h200.sharedBlock}
			hosts := map[bcqPlanes]*kerneltest.Host{}
			for _, test := range []struct {
				rows     int
				outliers bool
			}{{1, false}, {2, false}, {2, true}, {6, false}, {8, false}, {15, false}} {
				rows := test.rows
				p := testProduct(n, k, rows, f.Type, rows%2 == 1)
				if test.outliers {
					addOutliers(p.X[:k], f)
				}
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
					host.Launch(t, &mem, v.function(), launch, reverse, kerneltest.Struct(args.bytes()))
					copy(driver.Bytes(y), mem.Read(at))
					if rel, _ := want.Errors(y); !(rel <= conform.Bound(f.Type)) {
						t.Errorf("%+v of %d×%d: relative error %.3g", test, n, k, rel)
					}
					if first == nil {
						first = y
					} else if !slices.Equal(y, first) {
						t.Errorf("%+v of %d×%d: other bits in shorter runs", test, n, k)
					}
				}
			}
		})
	}
}

// addOutliers makes a number of every third unit of a row of X a thousand times as large as others are, and those of the unit behind it zeros.
func addOutliers(x []uint16, f BCQFormat) {
	for i := 0; i < len(x); i += 3 * repack.UnitCols {
		x[i] = Format(f).convert(1000)
		clear(x[min(i+repack.UnitCols, len(x)):min(i+2*repack.UnitCols, len(x))])
	}
}

// TestHostBCQDigits holds kernels that make digits of X to what they do with numbers that have no end, or hardly any size: as others
// do, rows of those have no number, and others are not touched by them.
func TestHostBCQDigits(t *testing.T) {
	const n, k = 20, 544
	f := BCQFormat{2, 64, weight.F16, driver.BF16}
	value := Format(f).value
	of := conform.RandomBCQ(rand.New(rand.NewPCG(5, 5)), n, k, f.Bits, f.Group, f.Scale, true)
	tiles := must(repack.BCQ(of))(t)
	x := testProduct(n, k, 2, f.Type, false).X
	tiny := slices.Clone(x)
	for i, v := range tiny {
		tiny[i] = Format(f).convert(value(v) * 0x1p-110)
	}
	set := func(at int, v float64) []uint16 {
		x := slices.Clone(x)
		x[at] = Format(f).convert(float32(v))
		return x
	}
	v, args, launch, err := (&BCQMatrix{N: n, K: k, Format: f}).plan(2, h200)
	if err != nil {
		t.Fatal(err)
	}
	host := kerneltest.OnHost(t, v.kernel(), 900)
	for _, test := range []struct {
		name string
		x    []uint16
		lost int // row of Y that has no numbers, if one has none
	}{
		{"infinity", set(3, math.Inf(1)), 0},
		{"NaN", set(k+543, math.NaN()), 1},
		{"the largest number", set(k+300, 0x1.fep127), -1},
		{"tiny numbers", tiny, -1},
		{"zeros", make([]uint16, 2*k), -1},
	} {
		var mem kerneltest.Memory
		args.planes, args.factors = uint64(mem.Upload(tiles.Planes)), uint64(mem.Upload(tiles.Factors))
		at := mem.UploadAligned(make([]byte, 4*n), 2)
		args.x, args.y = uint64(mem.Upload(driver.Bytes(test.x))), uint64(at)
		host.Launch(t, &mem, v.function(), launch, false, kerneltest.Struct(args.bytes()))
		y := make([]uint16, 2*n)
		copy(driver.Bytes(y), mem.Read(at))
		for m := range 2 {
			if m == test.lost {
				if i := slices.IndexFunc(y[m*n:][:n], func(v uint16) bool { return !math.IsNaN(float64(value(v))) }); i >= 0 {
					t.Errorf("%s: element %d of row %d is %g", test.name, i, m, value(y[m*n+i]))
				}
				continue
			}
			want := conform.NewRowReference(rand.New(rand.NewPCG(6, 6)), of, test.x[m*k:][:k], nil, 1, 1, f.Type)
			if rel, _ := want.Errors(y[m*n:][:n]); !(rel <= conform.Bound(f.Type)) {
				t.Errorf("%s: relative error %.3g of row %d", test.name, rel, m)
			}
		}
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
			for _, rows := range []int{1, 2, 8, 16} {
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
			for _, rows := range []int{1, 2, 3, 8, 16, 37} {
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
