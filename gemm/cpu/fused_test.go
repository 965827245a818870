package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
)

// fusedByDefinition computes a row of the fused product from the canonical
// form, as the package documentation has it.
func fusedByDefinition(x []float32, m *lut.Matrix, row int) float32 {
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	m.RowCodes(codes, row)
	m.RowScales(scales, row)
	at := func(k int) (v, w float32) { // zeros fill up a pair
		if k < m.K {
			return x[k], m.Codebook[codes[k]]
		}
		return 0, m.Codebook[0]
	}
	var y float32
	for g, scale := range scales {
		end := min((g+1)*m.Group, m.K)
		for k0 := g * m.Group; k0 < end; k0 += 256 {
			var sum float32
			for k := k0; k < min(k0+256, end); k++ {
				v, w := at(k)
				if m.Bits != 2 {
					sum = fma32(v, w, sum)
				} else if k%2 == 0 {
					v1, w1 := at(k + 1)
					sum += fma32(v1, w1, float32(v*w))
				}
			}
			y = fma32(sum, scale, y)
		}
	}
	return y
}

// TestFusedDefinition compares the kernels with the documented arithmetic.
func TestFusedDefinition(t *testing.T) {
	es := engines(t)
	types := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits")
		m := rapid.IntRange(1, fusedRows).Draw(t, "m")
		n := rapid.OneOf(rapid.IntRange(1, 150), rapid.SampledFrom([]int{64, 65, 128, 176})).Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(1, 100), rapid.SampledFrom([]int{172, 256, 257, 288, 544, 700})).Draw(t, "k")
		group := rapid.SampledFrom([]int{32, 64, 96, 128, 256, 288, 320, 512, k, k}).Draw(t, "group")
		if group > k {
			group = k
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		q := randomMatrix(r, n, k, bits, group, rapid.SampledFrom(types).Draw(t, "scales"))
		p, err := repack.CPU(q)
		if err != nil {
			t.Fatal(err)
		}
		w, err := NewLUT(p)
		if err != nil {
			t.Fatal(err)
		}
		if !w.fusable() {
			t.Fatalf("group %d of %d columns is not fusable", group, k)
		}
		x := normal(r, m*k)
		want := make([]float32, m*n)
		for i := range want {
			want[i] = fusedByDefinition(x[i/n*k:][:k], q, i%n)
		}
		for _, e := range es {
			y := poisoned(m * n)
			e.MatMul(y, x, m, w)
			if i := diff(y, want); i >= 0 {
				t.Fatalf("%s: row %d, column %d: got %g, want %g", e.label(), i/n, i%n, y[i], want[i])
			}
		}
	})
}

// TestFusedCodes has every code in every place of a half-block and every
// lane, with numbers that leave nothing to round.
func TestFusedCodes(t *testing.T) {
	es := engines(t)
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		values := 1 << bits
		const n, k = 80, 96 // a wide kernel and a narrow one
		for shift := range values {
			q := &lut.Matrix{N: n, K: k, Bits: bits, Group: 32, ScaleType: weight.F16}
			for i := range values {
				q.Codebook = append(q.Codebook, float32(3*i-7))
			}
			codes := make([]uint8, k)
			q.Codes = make([]byte, n*q.RowBytes())
			scales := make([]float32, n*q.Groups())
			for i := range n {
				for j := range codes {
					codes[j] = uint8((i*j + i/7 + shift) % values)
				}
				codes[(7*i+shift)%k] = uint8(shift)
				lut.PackCodes(q.Codes[i*q.RowBytes():(i+1)*q.RowBytes()], codes, bits)
				for g := range q.Groups() {
					scales[i*q.Groups()+g] = float32(int(1) << ((i + g) % 4))
				}
			}
			q.Scales = make([]byte, 2*len(scales))
			q.ScaleType.Encode(q.Scales, scales)
			p, err := repack.CPU(q)
			if err != nil {
				t.Fatal(err)
			}
			w, err := NewLUT(p)
			if err != nil {
				t.Fatal(err)
			}
			for m := 1; m <= fusedRows; m++ {
				x := make([]float32, m*k)
				for i := range x {
					x[i] = float32((i*29+shift)%101 - 50)
				}
				exact := ref.LUT(x, q, m)
				for _, e := range es {
					y := poisoned(m * n)
					e.MatMul(y, x, m, w)
					for i, v := range y {
						if float64(v) != exact[i] {
							t.Fatalf("%d bits, %s, %d rows, shift %d: row %d, column %d: got %g, want %g", bits, e.label(), m, shift, i/n, i%n, v, exact[i])
						}
					}
				}
			}
		}
	}
}

// TestFusedError holds long rows to the error that is promised.
func TestFusedError(t *testing.T) {
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 48, 4096
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, group := range []int{32, 128, k} {
			q := randomMatrix(r, n, k, bits, group, weight.F16)
			p, err := repack.CPU(q)
			if err != nil {
				t.Fatal(err)
			}
			w, err := NewLUT(p)
			if err != nil {
				t.Fatal(err)
			}
			x := normal(r, k)
			y := poisoned(n)
			es[len(es)-1].MatMul(y, x, 1, w)
			if err := ref.RelErr(y, ref.LUT(x, q, 1)); !(err <= 1e-6) {
				t.Errorf("%d bits, group %d: relative error %.3g", bits, group, err)
			}
		}
	}
}

// TestFusedThreads divides products, several at once among them, differently.
func TestFusedThreads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const k = 172
	var ws []Weights
	for i, n := range []int{16, 700, 65, 1} {
		w, _, err := lutCase(2+i, k, weight.F16).make(r, n, k)
		if err != nil {
			t.Fatal(err)
		}
		ws = append(ws, w)
	}
	sameByThreads(t, r, k, ws)
}

// sameByThreads holds products of one and five rows of k columns to the same bits on any number of threads.
func sameByThreads(t *testing.T, r *rand.Rand, k int, ws []Weights) {
	t.Helper()
	for _, m := range []int{1, 5} {
		x := normal(r, m*k)
		var want []float32
		for threads := 1; threads <= 9; threads++ {
			e, err := New(Options{Threads: threads})
			if err != nil {
				t.Fatal(err)
			}
			var ops []Op
			for _, w := range ws {
				ops = append(ops, Op{Y: poisoned(m * w.Rows()), W: w})
			}
			e.MatMulMany(x, m, ops...)
			e.Close()
			var got []float32
			for _, op := range ops {
				got = append(got, op.Y...)
			}
			if want == nil {
				want = got
			}
			if i := diff(got, want); i >= 0 {
				t.Errorf("%d rows, %d threads: element %d: got %g, want %g as with one", m, threads, i, got[i], want[i])
			}
		}
	}
}

// TestFusedNonFinite follows NaN and infinity through the kernels.
func TestFusedNonFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 40, 100
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		w, _, err := lutCase(bits, 32, weight.BF16).make(r, n, k)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []float64{math.NaN(), math.Inf(1)} {
			x := normal(r, k)
			x[50] = float32(v)
			for _, e := range engines(t) {
				y := make([]float32, n)
				e.MatMul(y, x, 1, w)
				if slices.ContainsFunc(y, func(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }) {
					t.Errorf("%d bits, %s: a %g in x vanished: %v", bits, e.label(), v, y)
				}
			}
		}
	}
}

// BenchmarkFused reports the weights that one thread takes in a nanosecond
// from level 2 cache.
func BenchmarkFused(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 64, 512
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		p, err := repack.CPU(randomMatrix(r, n, k, bits, 64, weight.F16))
		if err != nil {
			b.Fatal(err)
		}
		w, err := NewLUT(p)
		if err != nil {
			b.Fatal(err)
		}
		for s := generic; s <= avx512; s++ {
			if !s.available() {
				continue
			}
			for _, m := range []int{1, 2, 4, 8} {
				x, y := normal(r, m*k), make([]float32, m*n)
				var scratch fusedScratch
				b.Run(fmt.Sprintf("%d bits/%v/%d", bits, s, m), func(b *testing.B) {
					for b.Loop() {
						w.fused(s, y, x, k, m, 0, p.PanelCount(), &scratch)
					}
					perNano(b, n*k, "w/ns")
				})
			}
		}
	}
}
