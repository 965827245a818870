package cpu_test

import (
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
)

// TestTables: products of one x share the tables of one build, dense ones need none, and biases and sums are
// as without tables.
func TestTables(t *testing.T) {
	const rows, k, n = 5, 96, 70
	rng := rand.New(rand.NewPCG(1, 5))
	normal := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	m := &lut.Matrix{N: n, K: k, Bits: 4, Group: 32, ScaleType: weight.F32, Codes: make([]byte, n*k/2), Scales: make([]byte, 4*n*3)}
	for i := range m.Codes {
		m.Codes[i] = byte(rng.Uint32())
	}
	scales := make([]float32, n*3)
	for i := range scales {
		scales[i] = float32(1+rng.IntN(9)) / 8 // sums with which are exact
	}
	weight.F32.Encode(m.Scales, scales)
	for c := range 16 {
		m.Codebook = append(m.Codebook, float32(c-8))
	}
	dense := normal(k)
	data := make([]byte, 4*k)
	weight.F32.Encode(data, dense)

	ops := cpu.NewTableOps(newOps(t), lookup.Precision{})
	w, err := ops.Packed(m)
	if err != nil {
		t.Fatal(err)
	}
	d, err := ops.Dense(1, k, hf.F32, data)
	if err != nil {
		t.Fatal(err)
	}
	array := func(v []float32) model.Array {
		a := ops.Floats(len(v))
		ops.Write(a, v)
		return a
	}
	x, bias, before := normal(rows*k), normal(n), normal(rows*n)
	plain, added, one := ops.Acts(rows*n), array(before), ops.Acts(rows)
	ops.Linear(array(x), rows, model.Product{Y: plain, W: w}, model.Product{Y: one, W: d}, model.Product{Y: added, W: w, Bias: array(bias), Add: true})

	want := ref.LUT(x, m, rows)
	sums := make([]float64, rows*n)
	for i, v := range want {
		sums[i] = v + float64(before[i]) + float64(bias[i%n])
	}
	for name, tc := range map[string]struct {
		got  model.Array
		want []float64
	}{"plain": {plain, want}, "added": {added, sums}, "dense": {one, ref.MatMul(x, dense, rows, 1, k)}} {
		got := make([]float32, tc.got.Len())
		ops.Read(got, tc.got)
		if e := ref.RelErr(got, tc.want); !(e < 1e-5) {
			t.Errorf("%s: relative error %v", name, e)
		}
	}
	wantCounts := cpu.TableCounts{Builds: 1, Products: 2, Tables: rows * k / 4, Bytes: rows * k / 4 * 8 * 4, PerTile: 4}
	if got := ops.Counts(); got != wantCounts {
		t.Errorf("counts %+v, want %+v", got, wantCounts)
	}

	// The rows of a quantized embedding are those of the matrix.
	h, row := ops.Floats(2*k), make([]float32, 2*k)
	ops.Embed(h, []int{3, 69}, w, 2)
	ops.Read(row, h)
	for i, v := range m.Dequantize()[69*k:] {
		if row[k+i] != 2*v {
			t.Fatalf("element %d of the embedding is %v, want %v", i, row[k+i], 2*v)
		}
	}
}
