package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// TestOps compares the operations with the reference, on one thread and on
// two, which must give the same bits.
func TestOps(t *testing.T) {
	racetest.Skip(t)
	first := make(map[string][]float32)
	for _, threads := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d threads", threads), func(t *testing.T) {
			e, err := gemmcpu.New(gemmcpu.Options{Threads: threads})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			calls := make(map[string]int) // of the outputs of a name
			opstest.Run(t, cpu.New(e), opstest.Options{
				Floats: 1e-5,
				Output: func(name string, v []float32) {
					name = name[len(t.Name()):]
					calls[name]++
					name = fmt.Sprint(name, calls[name])
					if threads == 1 {
						first[name] = v
						return
					}
					want, ok := first[name]
					if len(first) > 0 && (!ok || len(want) != len(v)) {
						t.Errorf("%s: %d elements on two threads, %d on one", name, len(v), len(want))
						return
					}
					for i := range want {
						if math.Float32bits(v[i]) != math.Float32bits(want[i]) {
							t.Errorf("%s: element %d is %v on two threads, %v on one", name, i, v[i], want[i])
							return
						}
					}
				},
			})
		})
	}
}

func newOps(t *testing.T) *cpu.Ops {
	t.Helper()
	e, err := gemmcpu.New(gemmcpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return cpu.New(e)
}

// A trainable weight with codes that are held needs no original.
func TestTrainableWithoutOriginal(t *testing.T) {
	ops := newOps(t)
	w, err := ops.Trainable(model.Trainable{
		N: 2, K: 3, Group: 2, Codes: []uint8{0, 1, 2, 3, 1, 0},
		Table: []float32{-1, -0.5, 0.25, 1}, Scales: []float32{2, 4, 8, 0}, ScaleType: weight.F32,
	})
	if err != nil {
		t.Fatal(err)
	}
	x, y := ops.Acts(3), ops.Acts(2)
	ops.Write(x, []float32{1, 10, 100})
	ops.Linear(x, 1, model.Product{Y: y, W: w})
	got := make([]float32, 2)
	ops.Read(got, y)
	if want := []float32{-2 - 10 + 100, 8 - 40 + 0}; !slices.Equal(got, want) {
		t.Errorf("product: got %v, want %v", got, want)
	}
	dy, ds := ops.Acts(2), ops.Floats(4)
	ops.Write(dy, []float32{1, 3})
	ops.ScaleGrad(ds, nil, dy, x, 1, w, false)
	grads := make([]float32, 4)
	ops.Read(grads, ds)
	if want := []float32{-1 - 5, 25, 3 - 15, -300}; !slices.Equal(grads, want) {
		t.Errorf("gradient: got %v, want %v", grads, want)
	}
}
