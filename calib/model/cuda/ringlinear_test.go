package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// TestHostLinearRings multiplies by several layers of rings that read one state, which is rotated once for all without factors of their own.
func TestHostLinearRings(t *testing.T) {
	kerneltest.HostGPU(t, 9, false)
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if types[i].acts == driver.F16 {
			testLinearRings(t, o, i)
		}
	})
}

// TestGPULinearRings does so on a GPU, in all types.
func TestGPULinearRings(t *testing.T) { onGPU(t, testLinearRings) }

func testLinearRings(t *testing.T, o *Ops, i int) {
	// 64 does not divide 160 columns, so that those have factors of their own.
	for _, k := range []int{192, 160} {
		for _, rows := range []int{1, 9, 20} {
			x, host := o.Acts(rows*k), randoms(11, rows*k, 1)
			o.Write(x, host)
			var products []model.Product
			var matrices []weight.Matrix
			for j, n := range []int{64, 100} {
				m := conform.RandomTrellis(rand.New(rand.NewPCG(12, uint64(j))), n, k, 6)
				w, err := o.Packed(m)
				if err != nil {
					t.Fatal(err)
				}
				matrices = append(matrices, m)
				products = append(products, model.Product{W: w, Y: o.Floats(rows * n)})
			}
			o.Linear(x, rows, products...)
			for j, p := range products {
				n, _ := matrices[j].Shape()
				got, weights := make([]float32, rows*n), weight.Dequantize(matrices[j])
				o.Read(got, p.Y)
				want := make([]float32, rows*n)
				for r := range rows {
					for c := range n {
						sum := 0.0
						for l := range k {
							sum += float64(host[r*k+l]) * float64(weights[c*k+l])
						}
						want[r*n+c] = float32(sum)
					}
				}
				if d := distance(got, want); !(d <= types[i].tol) {
					t.Errorf("%d rows of %d columns, product %d: off by %.2g", rows, k, j, d)
				}
				o.FreeWeight(p.W)
				o.Free(p.Y)
			}
			o.Free(x)
		}
	}
}
