package cuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// TestCompileRows compiles the kernels that dequantize: for some formats, or with -long for all.
func TestCompileRows(t *testing.T) {
	type rows struct {
		lutrows
		arch string
	}
	formats := testFormats()
	if *long {
		formats = Formats()
	}
	var all []rows
	for i, f := range formats {
		for _, out := range []driver.DType{f.Type, driver.F32} {
			for j, arch := range []string{"sm_80", "sm_90a"} {
				if *long || i%2 == j {
					all = append(all, rows{lutrows{f, out}, arch})
				}
			}
		}
	}
	var variants []kerneltest.Variant
	for i, f := range formats {
		for j, arch := range []string{"sm_80", "sm_90a"} {
			if *long || i%2 == j {
				k := lutdense{f}.kernel()
				k.Options.Arch = arch
				variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("tiles of %d bits", f.Bits), Kernel: k})
			}
		}
	}
	for _, r := range all {
		k := r.kernel()
		k.Options.Arch = r.arch
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("rows of %d bits as %v", r.format.Bits, r.out), Kernel: k})
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *long || *cover), variants)
}

// TestGPUDequantize compares every weight with the product of table value and scale.
func TestGPUDequantize(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		for i, f := range testFormats() {
			const n, k = 37, 800
			m := testMatrix(uint64(i), n, k, f)
			w := must(e.Upload(must(repack.CUDA(m))(t), f.Type))(t)
			want := heldWeights(m, f.Type)
			index := []uint32{36, 0, 17, 17, 5}
			at := must(e.dev.Upload(driver.Bytes(index)))(t)
			dst := must(e.dev.Alloc(4 * n * k))(t)

			whole := make([]uint16, n*k)
			err := errors.Join(w.Rows(s, dst, f.Type, 0, 0, 16), w.Rows(s, dst+2*16*k, f.Type, 0, 16, n-16),
				e.dev.Read(driver.Bytes(whole), dst))
			var missing *driver.MissingError
			if errors.As(err, &missing) {
				t.Skip(err)
			}
			picked := make([]float32, len(index)*k)
			err = errors.Join(err, w.Rows(s, dst, driver.F32, at, 0, len(index)), e.dev.Read(driver.Bytes(picked), dst))
			if err != nil {
				t.Fatal(err)
			}
			for j, v := range whole {
				if half := f.convert(want[j]); v != half {
					t.Fatalf("%s: weight %d,%d is %#x, want %#x", f.name(), j/k, j%k, v, half)
				}
			}
			for j, v := range picked {
				if want := want[int(index[j/k])*k+j%k]; v != want {
					t.Fatalf("%s: element %d of row %d is %g, want %g", f.name(), j%k, index[j/k], v, want)
				}
			}
			if err := w.Rows(s, dst, f.Type, 0, 1, n); err == nil {
				t.Error("rows beyond the last: no error")
			}
			if err := errors.Join(w.Close(), e.dev.Free(at), e.dev.Free(dst)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestHostDequantize runs the kernel that dequantizes on the host's processor.
func TestHostDequantize(t *testing.T) {
	for i, f := range testFormats() {
		if !*long && i%6 != 0 && i != 14 { // each width and group
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			n, k := 37, 800
			if i%2 == 1 {
				k = 2336 // more than a block for each 256 columns of a row
			}
			m := testMatrix(uint64(i), n, k, f)
			tiles := must(repack.CUDA(m))(t)
			var mem kerneltest.Memory
			w := &Matrix{N: n, K: k, Format: f, codes: mem.Upload(tiles.Codes), scales: mem.Upload(f.scales(tiles))}
			for _, v := range tiles.Codebook {
				w.codebook = append(w.codebook, uint32(f.convert(v)))
			}
			want := heldWeights(m, f.Type)

			all := make([]uint16, (n-16)*k)
			dst := mem.Upload(make([]byte, 2*len(all)))
			l, args := w.denseLaunch(dst, 16, n-16, 1)
			kerneltest.OnHost(t, lutdense{f}.kernel(), []int{800, 900}[i/2%2]).Launch(t, &mem, denseName, l, i%4 < 2, kerneltest.Struct(args))
			copy(driver.Bytes(all), mem.Read(dst))
			for j, v := range all {
				if got, want := v, f.convert(want[16*k+j]); got != want {
					t.Fatalf("weight %d,%d in tiles is %#x, want %#x", 16+j/k, j%k, got, want)
				}
			}

			halves := make([]uint16, (n-5)*k)
			dst = mem.Upload(make([]byte, 2*len(halves)))
			l, args = w.rowsLaunch(dst, 0, 5, n-5)
			kerneltest.OnHost(t, lutrows{f, f.Type}.kernel(), 800).Launch(t, &mem, rowsName, l, false, kerneltest.Struct(args))
			copy(driver.Bytes(halves), mem.Read(dst))
			for j, v := range halves {
				if got, want := v, f.convert(want[5*k+j]); got != want {
					t.Fatalf("weight %d,%d is %#x, want %#x", 5+j/k, j%k, got, want)
				}
			}

			index := []uint32{36, 0, 17, 17, 5}
			picked := make([]float32, len(index)*k)
			dst = mem.Upload(make([]byte, 4*len(picked)))
			l, args = w.rowsLaunch(dst, mem.Upload(driver.Bytes(index)), 0, len(index))
			kerneltest.OnHost(t, lutrows{f, driver.F32}.kernel(), 800).Launch(t, &mem, rowsName, l, true, kerneltest.Struct(args))
			copy(driver.Bytes(picked), mem.Read(dst))
			for j, v := range picked {
				if want := want[int(index[j/k])*k+j%k]; v != want {
					t.Fatalf("element %d of row %d is %g, want %g", j%k, index[j/k], v, want)
				}
			}
		})
	}
}
