package cuda

import (
	"bytes"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestGPUStreamed holds operations to the reference when no dense weight stays on the
// device.
func TestGPUStreamed(t *testing.T) {
	onGPU(t, func(t *testing.T, resident *Ops, i int) {
		o, err := New(resident.dev, resident.engine, Options{Type: types[i].acts, Resident: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		}()
		opstest.Run(t, o, opstest.Options{Floats: 3e-5, Acts: types[i].tol})

		// Weights that take turns in the one place, and a smaller one after a larger.
		products := func(o *Ops) []float32 {
			var all []float32
			in := o.Acts(3 * 40)
			o.Write(in, randoms(1, 3*40, 1))
			var weights []model.Weight
			for j, n := range []int{24, 56, 8} {
				data := make([]byte, 4*n*40)
				num.EncodeF32(data, randoms(uint64(2+j), n*40, 1))
				w, err := o.Dense(n, 40, hf.F32, data)
				if err != nil {
					t.Fatal(err)
				}
				weights = append(weights, w)
			}
			for range 2 {
				for _, w := range weights {
					n, _ := w.Shape()
					y := o.Floats(3 * n)
					o.Linear(in, 3, model.Product{Y: y, W: w})
					got := make([]float32, 3*n)
					o.Read(got, y)
					all = append(all, got...)
				}
			}
			for _, w := range weights {
				o.FreeWeight(w)
			}
			if err := o.Err(); err != nil {
				t.Fatal(err)
			}
			return all
		}
		if got, want := products(o), products(resident); !bytes.Equal(driver.Bytes(got), driver.Bytes(want)) {
			t.Error("weights that are streamed multiply to other bits than those that stay")
		}
	})
}

func TestTranscode(t *testing.T) {
	values := []float32{0, 1, -2.5, 0.3333, 65504, 1e-7}
	for _, from := range []driver.DType{driver.F32, driver.F16, driver.BF16} {
		for _, to := range []driver.DType{driver.F32, driver.F16, driver.BF16} {
			bits := func(d driver.DType, v []float32) []byte {
				b := make([]byte, len(v)*d.Size())
				map[driver.DType]func([]byte, []float32){driver.F32: num.EncodeF32, driver.F16: num.EncodeF16, driver.BF16: num.EncodeBF16}[d](b, v)
				return b
			}
			back := func(d driver.DType, b []byte) []float32 {
				v := make([]float32, len(b)/d.Size())
				map[driver.DType]func([]float32, []byte){driver.F32: num.DecodeF32, driver.F16: num.DecodeF16, driver.BF16: num.DecodeBF16}[d](v, b)
				return v
			}
			src := bits(from, values)
			got := make([]byte, len(values)*to.Size())
			transcode(got, to, src, from)
			if want := bits(to, back(from, src)); !bytes.Equal(got, want) {
				t.Errorf("%v to %v: got %x, want %x", from, to, got, want)
			}
		}
	}
}
