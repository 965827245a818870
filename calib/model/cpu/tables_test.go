package cpu_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/gemm/ref"
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

// TestTablesRounded: products through rounded tables are those of package lookup but for the rounding of sums
// in float32, whatever the groups.
func TestTablesRounded(t *testing.T) {
	const rows, k, n = 3, 164, 21
	rng := rand.New(rand.NewPCG(1, 6))
	x := make([]float32, rows*k)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for _, group := range []int{32, 64, k, 20} {
		m := &bcq.Matrix{N: n, K: k, Bits: 3, Group: group, ScaleType: weight.F32}
		m.Planes = make([]byte, n*m.Bits*m.PlaneBytes())
		for i := range m.Planes {
			m.Planes[i] = byte(rng.Uint32())
			if (i+1)%m.PlaneBytes() == 0 {
				m.Planes[i] &= 1<<(k%8) - 1
			}
		}
		factors := make([]float32, n*m.Groups()*m.Bits)
		for i := range factors {
			factors[i] = .5 + rng.Float32()
		}
		m.Alphas, m.Offsets = make([]byte, 4*len(factors)), make([]byte, 4*n*m.Groups())
		weight.F32.Encode(m.Alphas, factors)
		weight.F32.Encode(m.Offsets, factors[:n*m.Groups()])
		weights, err := lookup.NewWeights(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []lookup.Precision{{}, {F16: true}, {Shared: 1}, {Shared: 3}, {Shared: 8}, {Shared: 16}, {Shared: 1024}} {
			ops := cpu.NewTableOps(newOps(t), p)
			w, err := ops.Packed(m)
			if err != nil {
				t.Fatal(err)
			}
			in, out := ops.Acts(len(x)), ops.Acts(rows*n)
			ops.Write(in, x)
			ops.Linear(in, rows, model.Product{Y: out, W: w})
			got := make([]float32, rows*n)
			ops.Read(got, out)
			tables := lookup.NewTables(p, rows, k)
			var want []float64
			for r := range rows {
				tables.Fill(r, x[r*k:(r+1)*k])
				for i := range n {
					want = append(want, float64(weights.Dot(tables, r, i)))
				}
			}
			if e := ref.RelErr(got, want); !(e < 1e-6) {
				t.Errorf("groups of %d, %v: relative error %v", group, p, e)
			}
		}
	}
}

// TestTablesOfNorm: a norm makes the tables of what it writes, which its Linear then takes, part by part, and none
// after the next norm.
func TestTablesOfNorm(t *testing.T) {
	const rows, k, n = 4, 64, 32
	rng := rand.New(rand.NewPCG(1, 7))
	m := &bcq.Matrix{N: n, K: k, Bits: 2, Group: 32, ScaleType: weight.F32, Planes: make([]byte, n*2*k/8), Alphas: make([]byte, 4*n*2*2)}
	for i := range m.Planes {
		m.Planes[i] = byte(rng.Uint32())
	}
	weight.F32.Encode(m.Alphas, slices.Repeat([]float32{.5, 1}, n*2))
	ops := cpu.NewTableOps(newOps(t), lookup.Precision{Shared: 8})
	w, err := ops.Packed(m)
	if err != nil {
		t.Fatal(err)
	}
	x, norm := ops.Floats(rows*k), ops.Floats(k)
	values := make([]float32, rows*k)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	ops.Write(x, values)
	ops.Write(norm, slices.Repeat([]float32{2}, k))
	product := func(y model.Array, from, to int) []float32 {
		out, got := ops.Acts((to-from)*n), make([]float32, (to-from)*n)
		ops.Linear(y.Slice(from*k, to*k), to-from, model.Product{Y: out, W: w})
		ops.Read(got, out)
		return got
	}
	plain, fused := ops.Acts(rows*k), ops.Acts(rows*k)
	ops.RMSNorm(plain, x, norm, rows, 1e-5)
	want := product(plain, 0, rows)
	ops.NormFor(w, fused, x, norm, rows, 1e-5)
	before := ops.Counts()
	got := append(product(fused, 0, 1), product(fused, 1, rows)...)
	if !slices.Equal(got, want) {
		t.Error("products of what a norm has made tables of differ")
	}
	if after := ops.Counts(); after.Builds != before.Builds || after.Fused != 1 || after.Saved != 4*rows*k {
		t.Errorf("counts %+v, then %+v", before, after)
	}
	ops.Write(x, slices.Repeat([]float32{1, -1}, rows*k/2))
	ops.RMSNorm(fused, x, norm, rows, 1e-5)
	if slices.Equal(product(fused, 0, rows), want) {
		t.Error("tables of what is no longer there are used")
	}
}
