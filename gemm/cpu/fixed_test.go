package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
)

// fixedOf returns m for products in fixed point.
func fixedOf(t interface {
	Helper()
	Fatal(...any)
}, m *lut.Matrix,
) *LUT {
	t.Helper()
	p, err := repack.CPU(m)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewLUT(p)
	if err != nil {
		t.Fatal(err)
	}
	if !w.Fix() {
		t.Fatal("weights that have no products in fixed point")
	}
	return w
}

// fixedByDefinition computes a row of the product in fixed point from the
// canonical form, as the package documentation has it.
func fixedByDefinition(x []float32, m *lut.Matrix, w *LUT, row int) float32 {
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	m.RowCodes(codes, row)
	m.RowScales(scales, row)
	var y float32
	for k0 := 0; k0 < m.K; k0 += 32 {
		k1 := min(k0+32, m.K)
		most := float32(fixedTiny)
		var sums [8]float32
		for i := range 8 {
			var a [4]float32
			for j := range a {
				if k := k0 + i + 8*j; k < k1 {
					a[j] = float32(math.Abs(float64(x[k])))
					most = max(most, a[j])
				}
			}
			sums[i] = float32(float32(a[0]+a[1])+float32(a[2]+a[3])) / 16
		}
		most = max(most, ((sums[0]+sums[4])+(sums[2]+sums[6]))+((sums[1]+sums[5])+(sums[3]+sums[7])))
		inverse, scale := 16383/most, most*(float32(1)/16383)
		var sum int64
		for k := k0; k < k1; k++ {
			q := int64(math.RoundToEven(float64(float32(x[k] * inverse))))
			sum += q * int64(w.fixed.values[codes[k]])
		}
		if sum != int64(int32(sum)) {
			panic("a sum in fixed point beyond 2^31")
		}
		y = fma32(float32(float32(sum)*scale), float32(scales[k0/m.Group]*w.fixed.unit), y)
	}
	return y
}

// TestFixedDefinition compares the kernels with the documented arithmetic, to the bit.
func TestFixedDefinition(t *testing.T) {
	es := engines(t)
	types := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits")
		m := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, 30), rapid.SampledFrom([]int{64, 200})).Draw(t, "m")
		n := rapid.OneOf(rapid.IntRange(1, 150), rapid.SampledFrom([]int{64, 65, 128, 176})).Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(1, 100), rapid.SampledFrom([]int{172, 256, 257, 288, 544, 700})).Draw(t, "k")
		n = min(n, max(1, 1_000_000/(m*k))) // the definition is slow
		group := rapid.SampledFrom([]int{32, 64, 96, 128, 256, 288, 320, 512, k, k}).Draw(t, "group")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		q := randomMatrix(r, n, k, bits, group, rapid.SampledFrom(types).Draw(t, "scales"))
		switch rapid.IntRange(0, 4).Draw(t, "table") {
		case 3, 4:
			first, step := r.NormFloat64(), r.NormFloat64()
			for i := range q.Codebook { // equal steps
				q.Codebook[i] = float32(first*float64(len(q.Codebook))/3 + step*float64(i))
			}
		case 0:
			for i := range q.Codebook { // symmetric
				q.Codebook[i] = -q.Codebook[len(q.Codebook)-1-i]
			}
		case 1:
			for i := range q.Codebook {
				q.Codebook[i] *= float32(math.Exp2(float64(r.IntN(60) - 30)))
			}
		}
		x := normal(r, m*k)
		factor := float32(math.Exp2(float64(rapid.IntRange(-90, 90).Draw(t, "size of x"))))
		for i := range x {
			x[i] *= factor
			if r.IntN(20) == 0 {
				x[i] *= 30 // an outlier
			}
			if r.IntN(20) == 0 {
				x[i] = 0
			}
		}
		w := fixedOf(t, q)
		want := make([]float32, m*n)
		for i := range want {
			want[i] = fixedByDefinition(x[i/n*k:][:k], q, w, i%n)
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

// TestFixedSteps has tables of equal steps, which need no lookup, with sums of codes by x as large as they can be.
func TestFixedSteps(t *testing.T) {
	es := engines(t)
	const n, k, m = 40, 96, 2
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, first := range []float32{0, 1, -1, 0.5} { // in widths of the table
			for _, codes := range []string{"all", "largest", "none"} {
				q := randomMatrix(rand.New(rand.NewPCG(1, 2)), n, k, bits, 32, weight.F16)
				for i := range q.Codebook {
					q.Codebook[i] = float32(i) - first*float32(len(q.Codebook)-1)
				}
				for i := range q.Codes {
					switch codes {
					case "largest":
						q.Codes[i] = 0xff
					case "none":
						q.Codes[i] = 0
					}
				}
				w := fixedOf(t, q)
				if w.fixed.steps == nil {
					t.Fatalf("%d bits, from %g: steps differ", bits, first)
				}
				for _, x := range []struct {
					name string
					at   func(i int) float32
				}{
					{"equal", func(int) float32 { return 3 }},
					{"equal, below 0", func(int) float32 { return -3 }},
					{"half of them", func(i int) float32 { return float32(i % 2) }},
					{"one", func(i int) float32 { return float32(max(0, i%32-30)) }},
					{"lowest", func(i int) float32 { return -float32(max(0, i%32-30)) }},
					{"some", func(i int) float32 { return float32(i%32/16) * float32(1-i%3) }},
				} {
					in := make([]float32, m*k)
					for i := range in {
						in[i] = x.at(i)
					}
					want := make([]float32, m*n)
					for i := range want {
						want[i] = fixedByDefinition(in[i/n*k:][:k], q, w, i%n)
					}
					for i := range m * len(es) {
						e, rows := es[i/m], 1+i%m
						y := poisoned(rows * n)
						e.MatMul(y, in, rows, w)
						if i := diff(y, want[:len(y)]); i >= 0 {
							t.Fatalf("%d bits, from %g, %s codes, %s x, %s: row %d of %d, column %d: got %g, want %g",
								bits, first, codes, x.name, e.label(), i/n, rows, i%n, y[i], want[i])
						}
					}
				}
			}
		}
	}
}

// TestFixedBytes compares the parting of x with its portable form.
func TestFixedBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const blocks = 5
	x := make([]int16, 32*blocks)
	for i := range x {
		x[i] = int16(r.IntN(2*fixedX+1) - fixedX)
	}
	copy(x, []int16{fixedX, -fixedX, math.MinInt16, 0, 127, 128, -1, -128, -129})
	scales := normal(r, blocks)
	for s := generic; s <= neon; s++ {
		if !s.available() || !s.steps() {
			continue
		}
		bytes, want := make([]int16, len(x)), make([]int16, len(x))
		sums, wantSums := make([]float32, 2*len(scales)), make([]float32, 2*len(scales))
		s.fixedBytes(bytes, x, sums, scales)
		fixedBytesGeneric(want, x, wantSums, scales)
		if !slices.Equal(bytes, want) {
			t.Errorf("%v: got %x, want %x", s, bytes, want)
		}
		for i, v := range wantSums {
			if math.Float32bits(sums[i]) != math.Float32bits(v) {
				t.Errorf("%v: number %d beside the sums is %g, want %g", s, i, sums[i], v)
			}
		}
	}
}

// TestFixedExtremes has every code in every place, each product as large as it
// can be and of one sign: no sum may overflow.
func TestFixedExtremes(t *testing.T) {
	es := engines(t)
	const n, k, m = 40, 96, 20
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		q := &lut.Matrix{N: n, K: k, Bits: bits, Group: 32, ScaleType: weight.F16}
		for i := range 1 << bits {
			v := float32(1)
			if i%2 == 1 {
				v = -1
			}
			q.Codebook = append(q.Codebook, v)
		}
		codes := make([]uint8, k)
		q.Codes = make([]byte, n*q.RowBytes())
		for i := range n {
			for j := range codes {
				codes[j] = uint8((i/2*j*2 + i) % (1 << bits)) // of one parity in a row
			}
			lut.PackCodes(q.Codes[i*q.RowBytes():(i+1)*q.RowBytes()], codes, bits)
		}
		scales := slices.Repeat([]float32{1}, n*q.Groups())
		q.Scales = make([]byte, 2*len(scales))
		q.ScaleType.Encode(q.Scales, scales)
		w := fixedOf(t, q)
		for _, some := range []int{1, 15, 16, 17, 32} { // of every 32 columns
			x := make([]float32, m*k)
			for i := range x {
				if i%32 < some {
					x[i] = 3
				}
			}
			for _, rows := range []int{1, 2, m} {
				for _, e := range es {
					y := poisoned(rows * n)
					e.MatMul(y, x, rows, w)
					for i, v := range y {
						want := float32(3 * k / 32 * some)
						if i%n%2 == 1 {
							want = -want
						}
						if math.Abs(float64(v-want)) > 1e-4*math.Abs(float64(want)) {
							t.Fatalf("%d bits, %s, %d of %d rows: row %d: got %g, want %g", bits, e.label(), i/n, rows, i%n, v, want)
						}
					}
				}
			}
		}
	}
}

// TestFixedError holds products to the bound, with x and tables of all kinds.
func TestFixedError(t *testing.T) {
	racetest.Skip(t)
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 64, 4096
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, table := range []struct {
			name  string
			value func(i int) float64 // of code i
		}{
			{"random", nil},
			{"even", func(i int) float64 { return float64(i) - 7.5 }},
			{"skewed", func(i int) float64 { return math.Exp(float64(i)/4) - 1 }},
			{"large", func(i int) float64 { return 1e9 * (float64(i) - 1.3) }},
			{"small", func(i int) float64 { return 1e-9 * (float64(i) - 1.3) }},
		} {
			for _, group := range []int{32, 64, k} {
				q := randomMatrix(r, n, k, bits, group, weight.F16)
				if table.value != nil {
					for i := range q.Codebook {
						q.Codebook[i] = float32(table.value(i))
					}
				}
				w, values := fixedOf(t, q), q.Dequantize()
				for _, in := range []struct {
					name string
					at   func(i int, v float32) float32
				}{
					{"normal", func(_ int, v float32) float32 { return v }},
					{"outliers", func(i int, v float32) float32 {
						if i%200 == 3 {
							return 20 * v
						}
						return v
					}},
					{"one", func(i int, v float32) float32 {
						if i == 1234 {
							return 1000
						}
						return v
					}},
					{"sparse", func(i int, v float32) float32 {
						if i%3 == 0 {
							return v
						}
						return 0
					}},
					{"huge", func(_ int, v float32) float32 { return 1e20 * v }},
					{"tiny", func(_ int, v float32) float32 { return 1e-25 * v }},
				} {
					x := normal(r, k)
					for i, v := range x {
						x[i] = in.at(i, v)
					}
					y := poisoned(n)
					es[len(es)-1].MatMul(y, x, 1, w)
					exact := ref.LUT(x, q, 1)
					if err := ref.RelErr(y, exact) * cancelled(exact, x, values, n, k); !(err <= FixedError) {
						t.Errorf("%d bits, group %d, %s table, %s x: relative error %.3g", bits, group, table.name, in.name, err)
					}
				}
			}
		}
	}
}

// TestFix: what is not done in fixed point keeps its bits, and weights that cannot be are left alone.
func TestFix(t *testing.T) {
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, k := range []int{64, 300, 544} {
			const n = 50
			q := randomMatrix(r, n, k, bits, min(k, 64), weight.BF16)
			if k == 300 {
				q = randomMatrix(r, n, k, bits, 96, weight.E4M4)
			}
			p, err := repack.CPU(q)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := NewLUT(p)
			if err != nil {
				t.Fatal(err)
			}
			fixed := fixedOf(t, q)
			if fixed.Bytes() != plain.Bytes() {
				t.Errorf("%d bits: %d bytes have become %d", bits, plain.Bytes(), fixed.Bytes())
			}
			const m = 13
			dy := normal(r, m*n)
			rows := []int{0, n - 1, 17, 17}
			for _, e := range es {
				want, got := make([]float32, m*k), make([]float32, m*k)
				e.MatMulBack(want, dy, m, plain, false)
				e.MatMulBack(got, dy, m, fixed, false)
				if i := diff(got, want); i >= 0 {
					t.Errorf("%d bits, %s: gradient of %d rows: element %d: got %g, want %g", bits, e.label(), m, i, got[i], want[i])
				}
				want, got = poisoned(len(rows)*k), poisoned(len(rows)*k)
				e.Gather(want, plain, rows)
				e.Gather(got, fixed, rows)
				if i := diff(got, want); i >= 0 {
					t.Errorf("%d bits, %s: gathered element %d: got %g, want %g", bits, e.label(), i, got[i], want[i])
				}
			}
		}
	}
	for _, test := range []struct {
		name  string
		group int
		table func(v float32) float32
	}{
		{"groups", 48, func(v float32) float32 { return v }},
		{"a huge table", 64, func(v float32) float32 { return 1e30 * v }},
		{"a tiny table", 64, func(v float32) float32 { return 1e-30 * v }},
		{"not a number", 64, func(v float32) float32 { return v * float32(math.Inf(1)) * 0 }},
	} {
		q := randomMatrix(r, 20, 128, 4, test.group, weight.F16)
		for i, v := range q.Codebook {
			q.Codebook[i] = test.table(v)
		}
		p, err := repack.CPU(q)
		if err != nil {
			continue
		}
		w, err := NewLUT(p)
		if err != nil {
			t.Fatal(err)
		}
		if w.Fix() || w.p.ByBytes {
			t.Errorf("%s: in fixed point", test.name)
		}
	}
	zero := randomMatrix(r, 20, 128, 4, 64, weight.F16)
	clear(zero.Codebook)
	y := poisoned(20)
	es[0].MatMul(y, normal(r, 128), 1, fixedOf(t, zero))
	if i := diff(y, make([]float32, 20)); i >= 0 {
		t.Errorf("a table of zeros: got %g", y[i])
	}
}

// TestFixedTable: even levels are exact, symmetric ones stay so, and no value is further off than half a unit.
func TestFixedTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits")
		values := 1 << bits
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		step := r.Float64() + 0.1
		even, symmetric, other := make([]float32, values), make([]float32, values), make([]float32, values)
		for i := range values {
			even[i] = float32(step * float64(i-values/2))
			other[i] = float32(r.NormFloat64())
			symmetric[i] = other[i]
			if i >= values/2 {
				symmetric[i] = -symmetric[values-1-i]
			}
		}
		for _, codebook := range [][]float32{even, symmetric, other} {
			f := newFixedLUT(codebook)
			for i, c := range codebook {
				v := f.values[i]
				if v > fixedTable || v < -fixedTable {
					t.Fatalf("value %d of %v is %d", i, codebook, v)
				}
				if off := math.Abs(float64(v)*float64(f.unit)-float64(c)) / float64(f.unit); off > 0.5001 {
					t.Fatalf("value %d of %v is %v of a unit off", i, codebook, off)
				}
			}
		}
		f := newFixedLUT(even)
		for i := range values {
			if int(f.values[i])*(values/2) != int(f.values[0])*(values/2-i) {
				t.Fatalf("even levels %v have become %v", even, f.values[:values])
			}
		}
		f = newFixedLUT(symmetric)
		for i := range values {
			if f.values[i] != -f.values[values-1-i] {
				t.Fatalf("symmetric levels %v have become %v", symmetric, f.values[:values])
			}
		}
	})
}

// TestFixedNonFinite follows NaN and infinity through the kernels.
func TestFixedNonFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 40, 100
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		w := fixedOf(t, randomMatrix(r, n, k, bits, 32, weight.BF16))
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
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

// TestFixedThreads divides products, in fixed point and not, differently.
func TestFixedThreads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const k = 172
	var ws []Weights
	for i, n := range []int{16, 700, 65, 1} {
		q := randomMatrix(r, n, k, 2+i, k, weight.F16)
		ws = append(ws, fixedOf(t, q))
		if i%2 == 0 {
			w, _, err := lutCase(2+i, k, weight.F16).make(r, n, k)
			if err != nil {
				t.Fatal(err)
			}
			ws = append(ws, w)
		}
	}
	sameByThreads(t, r, k, ws)
}

// BenchmarkFixed is [BenchmarkFused] in fixed point.
func BenchmarkFixed(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 64, 512
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		w := fixedOf(b, randomMatrix(r, n, k, bits, 64, weight.F16))
		for s := generic; s <= avx2; s++ {
			if !s.available() {
				continue
			}
			for _, m := range []int{1, 2, 3, 4, 8} {
				x, y := normal(r, m*k), make([]float32, m*n)
				var scratch fusedScratch
				var f fixedRows
				b.Run(fmt.Sprintf("%d bits/%v/%d", bits, s, m), func(b *testing.B) {
					for b.Loop() {
						f.resize(m, k/32, fixedTurn)
						f.quantize(s, x, 0, m, false)
						w.fixedPanels(s, y, &f, m, 0, w.p.PanelCount(), &scratch)
					}
					perNano(b, n*k, "w/ns")
				})
			}
		}
	}
}

// BenchmarkFixedMany reports how many billions of products of a prompt one thread makes in a second.
func BenchmarkFixedMany(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{512, 576, 576}, {512, 1536, 576}, {512, 576, 1536}, {16, 2048, 2048}, {9, 2048, 2048}} {
		m, n, k := shape[0], shape[1], shape[2]
		q := randomMatrix(r, n, k, 4, 32, weight.F16)
		p, err := repack.CPU(q)
		if err != nil {
			b.Fatal(err)
		}
		plain, err := NewLUT(p)
		if err != nil {
			b.Fatal(err)
		}
		e, err := New(Options{Threads: 1, ISA: "avx2"})
		if err != nil {
			b.Skip(err)
		}
		x, y := normal(r, m*k), make([]float32, m*n)
		for _, w := range []*LUT{plain, fixedOf(b, q)} {
			b.Run(fmt.Sprintf("%dx%dx%d/%v", m, n, k, w.fixed != nil), func(b *testing.B) {
				for b.Loop() {
					e.MatMul(y, x, m, w)
				}
				perNano(b, m*n*k, "products/ns")
			})
		}
		e.Close()
	}
}
