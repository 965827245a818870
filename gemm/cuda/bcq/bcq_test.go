package bcq

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	codes "github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// onH200 is what kernels are planned for, with so many multiprocessors.
func onH200(sms int) cuda.GPU {
	g := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	g.SMs = sms
	return g
}

// mostSpills is what a thread of the kernels may spill that is not for the loop over a plane: addresses and sums, beside X of 16 rows.
const mostSpills = 160

// fewFormats returns formats that have every width, group size, type of factors and of X.
func fewFormats() []cuda.Format {
	var some []cuda.Format
	all := (Family{}).Formats()
	for i := 0; i < len(all); i += 11 {
		some = append(some, all[i])
	}
	return some
}

// TestCompileBCQ compiles the kernels for binary codes: some, or with -long all.
func TestCompileBCQ(t *testing.T) {
	formats := []cuda.Format{{Bits: 4, Group: 128, Scale: weight.F16, Type: driver.F16}, {Bits: 2, Group: 0, Scale: weight.BF16, Type: driver.BF16}, {Bits: 8, Group: 32, Scale: weight.F32, Type: driver.F16}}
	if *cudatest.Long {
		formats = (Family{}).Formats()
	}
	var variants []kerneltest.Variant
	for _, f := range formats {
		for _, rows := range rowsAtMost() {
			k := planesFor(format{f}, rows, table.LimitsOf(onH200(132))).Kernel()
			k.Options.Arch = "sm_90a"
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d planes, to %d rows", f.Bits, rows), Kernel: k, Spills: mostSpills})
		}
		k := rows{format{f}, f.Type}.Kernel()
		k.Options.Arch = "sm_80"
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("rows of %d planes", f.Bits), Kernel: k})
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover), variants)
}

// TestHostBCQ runs the kernels for binary codes on the host's processor.
func TestHostBCQ(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range fewFormats() {
		if !*cudatest.Long && i%5 != 0 {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
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
			tiles := cudatest.Must(repack.BCQ(of))(t)
			g, m := onH200(3), Family{}.Like(f, n, k).(*Tiles)
			tests := []struct {
				rows     int
				outliers bool
			}{{1, false}, {2, false}, {2, true}, {6, false}, {8, false}, {15, false}}
			var modules []kerneltest.Module
			for _, test := range tests {
				v, _, _, err := m.plan(g, test.rows)
				if err != nil {
					t.Fatal(err)
				}
				modules = append(modules, kerneltest.Modules(900, v.Kernel())...)
			}
			stamps.Due(t, modules...)
			for _, test := range tests {
				rows := test.rows
				p := cudatest.Product(n, k, rows, f.Type, rows%2 == 1)
				if test.outliers {
					addOutliers(p.X[:k], f)
				}
				want := conform.NewRowReference(r, of, p.X, p.Bias, rows, 1, f.Type)
				var first []uint16
				for _, reverse := range []bool{false, true} {
					var mem kerneltest.Memory
					y := make([]uint16, rows*n)
					for i := range y {
						y[i] = 0xffff
					}
					v, args, launch, err := m.plan(g, rows)
					if err != nil {
						t.Fatal(err)
					}
					if reverse {
						args.run = min(args.run, args.teams)
					}
					args.planes, args.factors = uint64(mem.Upload(tiles.Planes)), uint64(mem.Upload(tiles.Factors))
					at := mem.UploadAligned(driver.Bytes(y), 2)
					args.x, args.y = uint64(mem.Upload(driver.Bytes(p.X))), uint64(at)
					if p.Bias != nil {
						args.bias = uint64(mem.UploadAligned(driver.Bytes(p.Bias), 2))
					}
					host := stamps.OnHost(t, v.Kernel(), 900)
					if rows == 1 && !reverse {
						host.Launch(t, &mem, readName, launch, false, kerneltest.Struct(args.bytes()))
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
func addOutliers(x []uint16, f cuda.Format) {
	for i := 0; i < len(x); i += 3 * repack.UnitCols {
		x[i] = f.Round(1000)
		clear(x[min(i+repack.UnitCols, len(x)):min(i+2*repack.UnitCols, len(x))])
	}
}

// TestHostBCQDigits holds kernels that make digits of X to what they do with numbers that have no end, or hardly any size: as others
// do, rows of those have no number, and others are not touched by them.
func TestHostBCQDigits(t *testing.T) {
	const n, k = 20, 544
	f := cuda.Format{Bits: 2, Group: 64, Scale: weight.F16, Type: driver.BF16}
	value := f.Value
	of := conform.RandomBCQ(rand.New(rand.NewPCG(5, 5)), n, k, f.Bits, f.Group, f.Scale, true)
	tiles := cudatest.Must(repack.BCQ(of))(t)
	x := cudatest.Product(n, k, 2, f.Type, false).X
	tiny := slices.Clone(x)
	for i, v := range tiny {
		tiny[i] = f.Round(value(v) * 0x1p-110)
	}
	set := func(at int, v float64) []uint16 {
		x := slices.Clone(x)
		x[at] = f.Round(float32(v))
		return x
	}
	v, args, launch, err := Family{}.Like(f, n, k).(*Tiles).plan(onH200(132), 2)
	if err != nil {
		t.Fatal(err)
	}
	stamps := cudatest.Stamps(t)
	stamps.Due(t, kerneltest.Modules(900, v.Kernel())...)
	host := stamps.OnHost(t, v.Kernel(), 900)
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
	stamps := cudatest.Stamps(t)
	for i, f := range fewFormats() {
		if !*cudatest.Long && i%16 != 1 {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			t.Parallel()
			halves, floats := rows{format{f}, f.Type}.Kernel(), rows{format{f}, driver.F32}.Kernel()
			stamps.Due(t, append(kerneltest.Modules(800, halves), kerneltest.Modules(900, halves, floats)...)...)
			n, k, group := 37, 800, f.Group
			if group == 0 {
				group = k
			}
			of := conform.RandomBCQ(rand.New(rand.NewPCG(2, uint64(i))), n, k, f.Bits, group, f.Scale, i%2 == 0)
			tiles := cudatest.Must(repack.BCQ(of))(t)
			var mem kerneltest.Memory
			m, at := Family{}.Like(f, n, k), []driver.Ptr{mem.Upload(tiles.Planes), mem.Upload(tiles.Factors)}
			launch := func(arch int, reverse bool, r cuda.Rows) {
				l := cudatest.Must(m.Rows(onH200(1), at, r))(t)
				cudatest.Launch(t, stamps.OnHost(t, l.Of.Kernel(), arch), &mem, l, reverse)
			}
			want := weight.Dequantize(of)

			written := make([]uint16, (n-5)*k)
			dst := mem.Upload(make([]byte, 2*len(written)))
			launch(800, false, cuda.Rows{To: dst, Type: f.Type, First: 5, Count: n - 5})
			copy(driver.Bytes(written), mem.Read(dst))
			for j, v := range written {
				if half := f.Round(want[5*k+j]); v != half {
					t.Fatalf("weight %d,%d is %#x, want %#x", 5+j/k, j%k, v, half)
				}
			}

			tiles16 := make([]uint16, (n-16)*k)
			dst = mem.Upload(make([]byte, 2*len(tiles16)))
			launch(900, true, cuda.Rows{To: dst, Type: f.Type, First: 16, Count: n - 16})
			copy(driver.Bytes(tiles16), mem.Read(dst))
			for j, v := range tiles16 {
				if half := f.Round(want[16*k+j]); v != half {
					t.Fatalf("weight %d,%d in tiles is %#x, want %#x", 16+j/k, j%k, v, half)
				}
			}

			index := []uint32{36, 0, 17, 17, 5}
			picked := make([]float32, len(index)*k)
			dst = mem.Upload(make([]byte, 4*len(picked)))
			launch(900, true, cuda.Rows{To: dst, Type: driver.F32, Index: mem.Upload(driver.Bytes(index)), Count: len(index)})
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
	for _, f := range (Family{}).Formats() {
		for _, shape := range [][2]int{{16, 288}, {12288, 12288}, {28672, 4096}, {4096, 14336}, {128256, 4096}} {
			for _, rows := range []int{1, 2, 8, 16} {
				v, p, l, err := Family{}.Like(f, shape[0], shape[1]).(*Tiles).plan(onH200(132), rows)
				if err != nil {
					t.Fatalf("%s, %v, %d rows: %v", f.Name(), shape, rows, err)
				}
				if l.Shared > 227<<10 || int(p.slices*p.teams) != v.warps || p.run%p.teams != 0 || p.run == 0 {
					t.Errorf("%s, %v, %d rows: %+v in %d bytes", f.Name(), shape, rows, p, l.Shared)
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
	uniform := cudatest.Must(codes.FromLUT(table, weight.F32))(t)
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
		tiles, parts, err := Family{}.Pack(test.m, test.t)
		if err != nil || (tiles != nil) != test.packs {
			t.Errorf("%s: packed %v, error %v", test.name, tiles != nil, err)
		}
		if tiles == nil {
			continue
		}
		for i, size := range tiles.Sizes() {
			if len(parts[i]) != size {
				t.Errorf("%s: part %d has %d bytes: want %d", test.name, i, len(parts[i]), size)
			}
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
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for i, f := range (Family{}).Formats() {
			if !*cudatest.Long && i%29 != 0 {
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
			tiles, parts, err := Planes(of, f.Type)
			if err != nil {
				t.Fatal(err)
			}
			w := g.Upload(t, tiles, parts)
			for _, rows := range []int{1, 2, 3, 8, 16, 37} {
				p := cudatest.Product(n, k, rows, f.Type, rows%2 == 1)
				want := conform.NewRowReference(rand.New(rand.NewPCG(4, uint64(rows))), of, p.X, p.Bias, rows, 1, f.Type)
				g.Check(t, fmt.Sprintf("%s, %d rows of %d×%d", f.Name(), rows, n, k), w, p, want, conform.Bound(f.Type), func(o cuda.Operands) error { return g.MatMul(g.Stream, w, o) })
			}
			cudatest.Must(0, w.Close())(t)
		}
	})
}
