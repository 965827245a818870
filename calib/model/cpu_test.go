package model_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/gemm/cpu"
)

// TestCPU compares the operations with the reference, on one thread and on
// two, which must give the same bits.
func TestCPU(t *testing.T) {
	first := make(map[string][]float32)
	for _, threads := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d threads", threads), func(t *testing.T) {
			e, err := cpu.New(cpu.Options{Threads: threads})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			calls := make(map[string]int) // of the outputs of a name
			opstest.Run(t, model.NewCPU(e), opstest.Options{
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
					if !ok || len(want) != len(v) {
						t.Errorf("%s: %d elements on two threads, %d on one", name, len(v), len(want))
						return
					}
					for i := range v {
						if math.Float32bits(v[i]) != math.Float32bits(want[i]) {
							t.Errorf("%s: element %d is %v on two threads, %v on one", name, i, v[i], want[i])
							return
						}
					}
				},
			})
		})
	}
	if len(first) == 0 {
		t.Error("no outputs were compared")
	}
}
