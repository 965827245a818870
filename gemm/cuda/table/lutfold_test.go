package table

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/repack"
)

// TestHostRoundRows holds rounded rows of X to package fp8.
func TestHostRoundRows(t *testing.T) {
	stamps := cudatest.Stamps(t)
	stamps.Due(t, kerneltest.Modules(900, cuda.RoundedRowsKernel(driver.F16), cuda.RoundedRowsKernel(driver.BF16))...)
	for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
		host := stamps.OnHost(t, cuda.RoundedRowsKernel(dtype), 900)
		for _, test := range []struct{ m, k int }{{1, 16}, {7, 96}, {5, 4512}} {
			x := conform.RandomHalves(rand.New(rand.NewPCG(uint64(test.m), 7)), test.m*test.k, dtype)
			if test.m > 3 {
				x[2*test.k-1] = 0x7fff // NaN
				clear(x[2*test.k : 3*test.k])
			}
			for _, reverse := range []bool{false, true} {
				var mem kerneltest.Memory
				to := mem.Upload(slices.Repeat([]byte{0xff}, cuda.InE4M3.Bytes(test.m, test.k)))
				cudatest.Launch(t, host, &mem, cuda.InE4M3.Prepare(cuda.GPU{}, dtype, to, mem.Upload(driver.Bytes(x)), test.m, test.k), reverse)
				got := mem.Read(to)
				for m := range test.m {
					values, want := make([]float32, test.k), make([]float32, test.k)
					for i := range values {
						values[i] = conform.FromHalf(dtype, x[m*test.k+i])
					}
					fp8.RoundRow(want, values)
					scale := math.Float32frombits(binary.LittleEndian.Uint32(got[test.m*test.k+4*m:]))
					for i, v := range want {
						if y := num.F8E4M3ToF32(got[m*test.k+i]) * scale; y != v && (y == y || v == v) {
							t.Fatalf("%v, %d×%d: number %d of row %d is %v, want %v", dtype, test.m, test.k, i, m, y, v)
						}
					}
				}
			}
		}
	}
}

// foldedCodes returns what rows of a matrix are folded to, and their scales.
func foldedCodes(m *lut.Matrix, t driver.DType) (codes []byte, scales []float32) {
	folder, held := fp8.NewFolder(m.Codebook), conform.RoundedTable(m.Codebook, t)
	row, groups := make([]uint8, m.K), make([]float32, m.Groups())
	for n := range m.N {
		m.RowCodes(row, n)
		m.RowScales(groups, n)
		scale := folder.Scale(groups)
		for k, c := range row {
			codes = append(codes, num.F32ToF8E4M3(groups[k/m.Group]*(1/scale)*held[c]))
		}
		scales = append(scales, scale)
	}
	return codes, scales
}

// firstDifference returns the first of some numbers of E4M3 that differ, but for the sign of zeros, or -1.
func firstDifference(got, want []byte) int {
	for i, b := range want {
		if got[i] != b && (got[i]|b)&0x7f != 0 {
			return i
		}
	}
	return -1
}

// folding returns tiles whose products of many rows are folded.
func folding(t *testing.T, f Format, m *lut.Matrix) (*Tiles, *repack.CUDATiles, []byte) {
	t.Helper()
	tiles := cudatest.Must(repack.CUDA(m))(t)
	scales := f.Scales(tiles)
	w := cudatest.Must(New(f, m.N, m.K, tiles.Codebook, scales))(t)
	w.fp8 = true
	return w, tiles, scales
}

// TestHostFold runs the kernel that folds on the host's processor, and holds scales of rows to package fp8.
func TestHostFold(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range testFormats() {
		if f.Group == 32 || !*cudatest.Long && i%6 != 0 && i%6 != 4 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			stamps.Due(t, kerneltest.Modules(900, lutfold{f}.Kernel())...)
			const n, k = 48, 800
			m := testMatrix(uint64(i), n, k, f)
			w, tiles, scales := folding(t, f, m)
			codes, rows := foldedCodes(m, f.Type)
			got := cudatest.Must(w.RowScales(func(int) ([]byte, error) { return scales, nil }))(t)
			if !slices.Equal(got, rows) {
				t.Fatalf("rows have the scales %v, want %v", got, rows)
			}
			for j := range rows {
				rows[j] = 1 / rows[j]
			}
			var mem kerneltest.Memory
			at := []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
			const first = 16
			to := mem.Upload(make([]byte, (n-first)*k))
			l := cudatest.Must(w.Rows(cuda.GPU{DeviceInfo: driver.DeviceInfo{SMs: 1}}, at, cuda.Rows{
				To: to, Type: driver.E4M3, First: first, Count: n - first, Inverses: mem.Upload(driver.Bytes(rows)),
			}))(t)
			cudatest.Launch(t, stamps.OnHost(t, l.Of.Kernel(), 900), &mem, l, i%4 < 2)
			if j := firstDifference(mem.Read(to), codes[first*k:]); j >= 0 {
				t.Fatalf("weight %d,%d is %#x, want %#x", first+j/k, j%k, mem.Read(to)[j], codes[first*k+j])
			}
		})
	}
}

// TestCompileFold compiles the kernels that fold and that round rows of X.
func TestCompileFold(t *testing.T) {
	var variants []kerneltest.Variant
	add := func(group string, k driver.Kernel) {
		k.Options.Arch = "sm_90a"
		variants = append(variants, kerneltest.Variant{Group: group, Kernel: k})
	}
	formats := testFormats()
	if *cudatest.Long {
		formats = Formats()
	}
	for i, f := range formats {
		if f.hasFP8() && (*cudatest.Long || i%4 == 0) {
			add("folded tiles", lutfold{f}.Kernel())
		}
	}
	for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
		add("rounded rows", cuda.RoundedRowsKernel(dtype))
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover), variants)
}

// TestGPUFolded multiplies by folded weights at once, in parts and kept, writing and adding, and holds kept rows to package fp8.
func TestGPUFolded(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		blas, err := g.Dev.NewFP8BLAS()
		cudatest.SkipMissing(t, err)
		u := cuda.Folded{BLAS: cudatest.Must(blas, err)(t)}
		for i, f := range testFormats() {
			if !f.hasFP8() {
				continue
			}
			const n, k, rows = 400, 800, 259
			p := cudatest.Product(n, k, rows, f.Type, false)
			of := testMatrix(uint64(i), n, k, f)
			w := upload(t, g, of, f.Type)
			if !g.RoundToFP8(w) {
				t.Skip("no GPU for E4M3, or no compiler")
			}
			if by := g.Way(w.Tiles, rows); by != cuda.InFP8 {
				t.Fatalf("%d rows are multiplied by %v", rows, by)
			}
			want := conform.NewFoldedReference(rand.New(rand.NewPCG(1, 1)), of, p.X, nil, rows, 1, f.Type)
			o := g.Operands(t, p, make([]uint16, rows*n))
			x := cudatest.Must(g.Dev.Alloc(cuda.InE4M3.Bytes(rows, k)))(t)
			sums := cudatest.Must(g.Dev.Alloc(4 * rows * n))(t)
			cudatest.Must(0, g.Prepare(g.Stream, cuda.InE4M3, f.Type, x, o.X, rows, k))(t)
			o.X, o.Form = x, cuda.InE4M3
			in32 := o
			in32.Y = sums
			var first []uint16
			for step, bytes := range []int{cuda.FoldedScratch(w), k * 150, 0} {
				if u.Bytes = bytes; bytes > 0 {
					u.Scratch = cudatest.Must(g.Dev.Alloc(bytes))(t)
				} else {
					cudatest.Must(0, w.Keep(g.Stream, driver.E4M3))(t)
				}
				y, twice := make([]uint16, rows*n), make([]float32, rows*n)
				err := errors.Join(
					u.MatMul(g.Stream, w, o, f.Type, false), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y),
					u.MatMul(g.Stream, w, in32, driver.F32, false), u.MatMul(g.Stream, w, in32, driver.F32, true),
					g.Stream.Sync(), g.Dev.Read(driver.Bytes(twice), sums))
				if err != nil {
					t.Fatal(err)
				}
				rel, _ := want.Errors(y)
				t.Logf("%s, %d: relative error %.3g", f.name(), step, rel)
				if !(rel <= foldedBound+conform.Bound(f.Type)) {
					t.Errorf("%s in %d bytes: relative error %.3g", f.name(), bytes, rel)
				}
				if step == 0 {
					first = y
				} else if !slices.Equal(y, first) {
					t.Errorf("%s in %d bytes: other results than at once", f.name(), bytes)
				}
				for j, v := range twice {
					y[j] = f.convert(v / 2)
				}
				if rel, _ := want.Errors(y); !(rel <= foldedBound+conform.Bound(f.Type)) {
					t.Errorf("%s in %d bytes, added: relative error %.3g", f.name(), bytes, rel)
				}
				cudatest.Must(0, g.Dev.Free(u.Scratch))(t)
				u.Scratch = 0
			}
			codes, _ := foldedCodes(of, f.Type)
			got := make([]byte, n*k)
			cudatest.Must(0, w.ReadKept(got))(t)
			if j := firstDifference(got, codes); j >= 0 {
				t.Errorf("%s: weight %d,%d is %#x, want %#x", f.name(), j/k, j%k, got[j], codes[j])
			}
			if err := errors.Join(g.Dev.Free(x), g.Dev.Free(sums), w.Close()); err != nil {
				t.Fatal(err)
			}
		}
		if err := blas.Close(); err != nil {
			t.Error(err)
		}
	})
}

// foldedBound is the error that sums of tensor cores add to products in E4M3 that keep few bits of them.
const foldedBound = 1e-3
