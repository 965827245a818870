package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/cpu"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// stateSpace is the recurrence as arch.Mamba2 says it, in float64, from a state of zeros.
func stateSpace(x, dt, aLog, bias, d []float32, s model.StateSpaceShape) []float64 {
	inner, each := s.Heads*s.Dim, s.Groups*s.State
	y := make([]float64, len(dt)/s.Heads*inner)
	for h := range s.Heads {
		state, of := make([]float64, s.Dim*s.State), h*s.Groups/s.Heads*s.State
		for r := range len(dt) / s.Heads {
			token := x[r*(inner+2*each):]
			step := math.Log(1 + math.Exp(float64(dt[r*s.Heads+h])+float64(bias[h])))
			for i := range s.Dim {
				v := float64(token[h*s.Dim+i])
				sum := float64(d[h]) * v
				for j := range s.State {
					at := &state[i*s.State+j]
					*at = *at*math.Exp(-step*math.Exp(float64(aLog[h]))) + step*v*float64(token[inner+of+j])
					sum += *at * float64(token[inner+each+of+j])
				}
				y[r*inner+h*s.Dim+i] = sum
			}
		}
	}
	return y
}

// TestStateSpace compares texts that are read at once, and in parts beside another into slots of anything, with the recurrence.
func TestStateSpace(t *testing.T) {
	for _, s := range []model.StateSpaceShape{{Heads: 1, Dim: 1, Groups: 1, State: 1}, {Heads: 6, Dim: 5, Groups: 2, State: 7}, {Heads: 4, Dim: 64, Groups: 4, State: 128}} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			e, err := gemmcpu.New(gemmcpu.Options{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			o, r := cpu.New(e), rand.New(rand.NewPCG(1, 2))
			array := func(n int) (model.Array, []float32) {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(r.NormFloat64())
				}
				a := o.Floats(n)
				o.Write(a, v)
				return a, v
			}
			const rows, first, slots = 23, 9, 3
			inner := s.Heads * s.Dim
			wide := inner + 2*s.Groups*s.State
			x, xs := array(rows * wide)
			dt, dts := array(rows * s.Heads)
			aLog, logs := array(s.Heads)
			bias, offsets := array(s.Heads)
			d, direct := array(s.Heads)
			state, _ := array(slots * inner * s.State)
			want := stateSpace(xs, dts, logs, offsets, direct, s)
			compare := func(what string, got []float32, want []float64) {
				t.Helper()
				var diff, norm float64
				for i, w := range want {
					diff += (float64(got[i]) - w) * (float64(got[i]) - w)
					norm += w * w
				}
				if !(diff <= 1e-12*norm) {
					t.Errorf("%s: relative error %.2g", what, math.Sqrt(diff/norm))
				}
			}
			y, got := o.Floats(rows*inner), make([]float32, rows*inner)
			o.StateSpace(y, x, dt, aLog, bias, d, nil, model.Step{Runs: []model.Run{{Rows: rows}}}, s)
			o.Read(got, y)
			compare("at once", got, want)

			o.StateSpace(y.Slice(0, first*inner), x.Slice(0, first*wide), dt.Slice(0, first*s.Heads), aLog, bias, d, state,
				model.Step{Runs: []model.Run{{Slot: 2, Rows: first}}}, s)
			o.Read(got, y)
			compare("its beginning", got[:first*inner], want[:first*inner])
			rest := model.Step{Runs: []model.Run{{Slot: 2, From: first, Rows: 4}, {Slot: 0, Rows: rows - first - 4}}}
			o.StateSpace(y.Slice(first*inner, rows*inner), x.Slice(first*wide, rows*wide), dt.Slice(first*s.Heads, rows*s.Heads), aLog, bias, d, state, rest, s)
			o.Read(got, y)
			const other = first + 4
			compare("its next part", got[first*inner:other*inner], want[first*inner:other*inner])
			compare("another text", got[other*inner:], stateSpace(xs[other*wide:], dts[other*s.Heads:], logs, offsets, direct, s))
		})
	}
}
