package table

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
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
	if *cudatest.Long {
		formats = Formats()
	}
	var all []rows
	for i, f := range formats {
		for _, out := range []driver.DType{f.Type, driver.F32} {
			for j, arch := range []string{"sm_80", "sm_90a"} {
				if *cudatest.Long || i%2 == j {
					all = append(all, rows{lutrows{f, out}, arch})
				}
			}
		}
	}
	var variants []kerneltest.Variant
	for i, f := range formats {
		for j, arch := range []string{"sm_80", "sm_90a"} {
			if *cudatest.Long || i%2 == j {
				k := lutdense{f}.Kernel()
				k.Options.Arch = arch
				variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("tiles of %d bits", f.Bits), Kernel: k})
			}
		}
	}
	for _, r := range all {
		k := r.Kernel()
		k.Options.Arch = r.arch
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("rows of %d bits as %v", r.format.Bits, r.out), Kernel: k})
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover), variants)
}

// TestGPUDequantize compares every weight with the product of table value and scale.
func TestGPUDequantize(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for i, f := range testFormats() {
			const n, k = 37, 800
			m := testMatrix(uint64(i), n, k, f)
			w := upload(t, g, m, f.Type)
			want := heldWeights(m, f.Type)
			index := []uint32{36, 0, 17, 17, 5}
			at := cudatest.Must(g.Dev.Upload(driver.Bytes(index)))(t)
			dst := cudatest.Must(g.Dev.Alloc(4 * n * k))(t)

			whole := make([]uint16, n*k)
			err := errors.Join(w.Rows(g.Stream, cuda.Rows{To: dst, Type: f.Type, Count: 16}), w.Rows(g.Stream, cuda.Rows{To: dst + 2*16*k, Type: f.Type, First: 16, Count: n - 16}),
				g.Dev.Read(driver.Bytes(whole), dst))
			cudatest.SkipMissing(t, err)
			picked := make([]float32, len(index)*k)
			err = errors.Join(err, w.Rows(g.Stream, cuda.Rows{To: dst, Type: driver.F32, Index: at, Count: len(index)}), g.Dev.Read(driver.Bytes(picked), dst))
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
			if err := w.Rows(g.Stream, cuda.Rows{To: dst, Type: f.Type, First: 1, Count: n}); err == nil {
				t.Error("rows beyond the last: no error")
			}
			if err := errors.Join(w.Close(), g.Dev.Free(at), g.Dev.Free(dst)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestHostDequantize runs the kernel that dequantizes on the host's processor.
func TestHostDequantize(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range testFormats() {
		if !*cudatest.Long && i%6 != 0 && i != 14 { // each width and group
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			inTiles := []int{800, 900}[i/2%2]
			rows := kerneltest.Modules(800, lutrows{f, f.Type}.Kernel(), lutrows{f, driver.F32}.Kernel())
			stamps.Due(t, append(rows, kerneltest.Modules(inTiles, lutdense{f}.Kernel())...)...)
			n, k := 37, 800
			if i%2 == 1 {
				k = 2336 // more than a block for each 256 columns of a row
			}
			m := testMatrix(uint64(i), n, k, f)
			tiles := cudatest.Must(repack.CUDA(m))(t)
			var mem kerneltest.Memory
			scales := f.Scales(tiles)
			w, at := cudatest.Must(New(f, n, k, tiles.Codebook, scales))(t), []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
			launch := func(arch int, reverse bool, r cuda.Rows) {
				l := cudatest.Must(w.Rows(cuda.GPU{DeviceInfo: driver.DeviceInfo{SMs: 1}}, at, r))(t)
				cudatest.Launch(t, stamps.OnHost(t, l.Of.Kernel(), arch), &mem, l, reverse)
			}
			want := heldWeights(m, f.Type)

			all := make([]uint16, (n-16)*k)
			dst := mem.Upload(make([]byte, 2*len(all)))
			launch(inTiles, i%4 < 2, cuda.Rows{To: dst, Type: f.Type, First: 16, Count: n - 16})
			copy(driver.Bytes(all), mem.Read(dst))
			for j, v := range all {
				if got, want := v, f.convert(want[16*k+j]); got != want {
					t.Fatalf("weight %d,%d in tiles is %#x, want %#x", 16+j/k, j%k, got, want)
				}
			}

			halves := make([]uint16, (n-5)*k)
			dst = mem.Upload(make([]byte, 2*len(halves)))
			launch(800, false, cuda.Rows{To: dst, Type: f.Type, First: 5, Count: n - 5})
			copy(driver.Bytes(halves), mem.Read(dst))
			for j, v := range halves {
				if got, want := v, f.convert(want[5*k+j]); got != want {
					t.Fatalf("weight %d,%d is %#x, want %#x", 5+j/k, j%k, got, want)
				}
			}

			index := []uint32{36, 0, 17, 17, 5}
			picked := make([]float32, len(index)*k)
			dst = mem.Upload(make([]byte, 4*len(picked)))
			launch(800, true, cuda.Rows{To: dst, Type: driver.F32, Index: mem.Upload(driver.Bytes(index)), Count: len(index)})
			copy(driver.Bytes(picked), mem.Read(dst))
			for j, v := range picked {
				if want := want[int(index[j/k])*k+j%k]; v != want {
					t.Fatalf("element %d of row %d is %g, want %g", j%k, index[j/k], v, want)
				}
			}
		})
	}
}
