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

// TestFP8: products of 17 rows are those of what package fp8 rounds, of 256 by weights that it folds, where those are multiples of 16
// rows; fewer rows and groups of 32 are left as they are.
func TestFP8(t *testing.T) {
	const k = 128
	rng := rand.New(rand.NewPCG(1, 6))
	matrix := func(n, group int) *lut.Matrix {
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
		rows, n, group  int
		rounded, folded bool
	}{
		{17, 70, 64, true, false},
		{40, 70, k, true, false},
		{16, 70, 64, false, false},
		{17, 70, 32, false, false},
		{255, 80, 64, true, false},
		{256, 80, 64, true, true},
		{300, 80, k, true, true},
		{256, 70, 64, true, false},
	} {
		m, n := matrix(test.n, test.group), test.n
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
		want := ref.LUT(values, &of, test.rows)
		if test.folded {
			want = ref.MatMul(values, folded(m), test.rows, n, k)
		}
		if e := ref.RelErr(got, want); !(e < 1e-5) {
			t.Errorf("%d rows, groups of %d: relative error %v", test.rows, test.group, e)
		}
	}
	if ops.Others() != 1 {
		t.Errorf("%d weights are multiplied otherwise, want 1", ops.Others())
	}
}

// folded returns a matrix as package fp8 folds it.
func folded(m *lut.Matrix) []float32 {
	folder, codes, groups, values := fp8.NewFolder(m.Codebook), make([]uint8, m.K), make([]float32, m.Groups()), make([]float32, len(m.Codebook))
	var all []float32
	for n := range m.N {
		m.RowCodes(codes, n)
		m.RowScales(groups, n)
		for k, c := range codes {
			if k%m.Group == 0 {
				fp8.FoldTable(values, m.Codebook, groups[k/m.Group], folder.Scale(groups))
			}
			all = append(all, values[c])
		}
	}
	return all
}
