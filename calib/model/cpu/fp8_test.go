package cpu_test

import (
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/gemm/ref"
)

// TestFP8: products of 17 rows are those of what package fp8 rounds, fewer rows and groups of 32 are left as they are.
func TestFP8(t *testing.T) {
	const k, n = 128, 70
	rng := rand.New(rand.NewPCG(1, 6))
	matrix := func(group int) *lut.Matrix {
		m := &lut.Matrix{N: n, K: k, Bits: 4, Group: group, ScaleType: weight.F32, Codes: make([]byte, n*k/2)}
		for i := range m.Codes {
			m.Codes[i] = byte(rng.Uint32())
		}
		scales := make([]float32, n*k/group)
		for i := range scales {
			scales[i] = 1 + rng.Float32()
		}
		m.Scales = make([]byte, 4*len(scales))
		weight.F32.Encode(m.Scales, scales)
		for range 16 {
			m.Codebook = append(m.Codebook, float32(rng.NormFloat64()))
		}
		return m
	}
	ops := cpu.NewFP8Ops(newOps(t))
	for _, test := range []struct {
		rows, group int
		rounded     bool
	}{{17, 64, true}, {40, k, true}, {16, 64, false}, {17, 32, false}} {
		m := matrix(test.group)
		w, err := ops.Packed(m)
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, test.rows*k)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		values, of := x, *m
		if test.rounded {
			values = make([]float32, len(x))
			for i := range test.rows {
				fp8.RoundRow(values[i*k:(i+1)*k], x[i*k:(i+1)*k])
			}
			of.Codebook = fp8.RoundTable(m.Codebook)
		}
		in, y := ops.Floats(len(x)), ops.Acts(test.rows*n)
		ops.Write(in, x)
		ops.Linear(in, test.rows, model.Product{Y: y, W: w})
		got := make([]float32, y.Len())
		ops.Read(got, y)
		if e := ref.RelErr(got, ref.LUT(values, &of, test.rows)); !(e < 1e-5) {
			t.Errorf("%d rows, groups of %d: relative error %v", test.rows, test.group, e)
		}
	}
	if ops.Others() != 1 {
		t.Errorf("%d weights are multiplied otherwise, want 1", ops.Others())
	}
}
