package cuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// TestCompileRows compiles the kernel that dequantizes, with -long for every format.
func TestCompileRows(t *testing.T) {
	formats := testFormats()
	if *long {
		formats = Formats()
	}
	var variants []kerneltest.Variant
	for i, f := range formats {
		for _, out := range []driver.DType{f.Type, driver.F32} {
			for j, arch := range []string{"sm_80", "sm_90a"} {
				if !*long && i%2 != j {
					continue
				}
				k := f.rowsKernel(out)
				k.Options.Arch = arch
				variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("rows of %d bits as %v", f.Bits, out), Kernel: k})
			}
		}
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *long), variants)
}

// TestGPUDequantize compares every weight with the product of table value and scale.
func TestGPUDequantize(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		d := NewDequantizer(e.dev)
		for i, f := range testFormats() {
			const n, k = 37, 800
			group := f.Group
			if group == 0 {
				group = k
			}
			m := randomMatrix(uint64(i), n, k, f.Bits, group, f.Scale)
			w := must(e.Upload(must(repack.CUDA(m))(t), f.Type))(t)
			rm, _ := rounded(m, nil, f)
			want := rm.Dequantize()
			index := []uint32{36, 0, 17, 17, 5}
			at := must(e.dev.Upload(driver.Bytes(index)))(t)
			dst := must(e.dev.Alloc(4 * n * k))(t)

			whole := make([]uint16, n*k)
			err := errors.Join(d.Rows(s, w, dst, f.Type, 0, 0, 16), d.Rows(s, w, dst+2*16*k, f.Type, 0, 16, n-16),
				e.dev.Read(driver.Bytes(whole), dst))
			var missing *driver.MissingError
			if errors.As(err, &missing) {
				t.Skip(err)
			}
			picked := make([]float32, len(index)*k)
			err = errors.Join(err, d.Rows(s, w, dst, driver.F32, at, 0, len(index)), e.dev.Read(driver.Bytes(picked), dst))
			if err != nil {
				t.Fatal(err)
			}
			for j, v := range floats(whole, f.Type) {
				half := num.F16ToF32(num.F32ToF16(want[j]))
				if f.Type == driver.BF16 {
					half = num.BF16ToF32(num.F32ToBF16(want[j]))
				}
				if v != half {
					t.Fatalf("%s: weight %d,%d is %g, want %g", f.name(), j/k, j%k, v, half)
				}
			}
			for j, v := range picked {
				if want := want[int(index[j/k])*k+j%k]; v != want {
					t.Fatalf("%s: element %d of row %d is %g, want %g", f.name(), j%k, index[j/k], v, want)
				}
			}
			if err := d.Rows(s, w, dst, f.Type, 0, 1, n); err == nil {
				t.Error("rows beyond the last: no error")
			}
			if err := errors.Join(w.Close(), e.dev.Free(at), e.dev.Free(dst)); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}
