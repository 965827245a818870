package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/gemm/research/lmma"
	"github.com/lutq/lutq/repack"
)

func planesOf(t interface {
	Helper()
	Fatal(...any)
}, m *bcq.Matrix,
) *Planes {
	t.Helper()
	p, err := repack.Planes(m)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewPlanes(p)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func drawCodes(t *rapid.T, r *rand.Rand, k int, groups ...int) *bcq.Matrix {
	types := bcq.Kind{}.ScaleTypes()
	return conform.RandomBCQ(r, rapid.IntRange(1, 70).Draw(t, "n"), k, rapid.IntRange(bcq.MinBits, bcq.MaxBits).Draw(t, "bits"),
		rapid.SampledFrom(groups).Draw(t, "group"), rapid.SampledFrom(types).Draw(t, "factors"), rapid.Bool().Draw(t, "offsets"))
}

// TestPlanes: products by binary codes are those of the weights, with the same bits on every instruction set and
// any threads, and of few rows with those of each row alone.
func TestPlanes(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		k := rapid.OneOf(rapid.IntRange(1, 100), rapid.SampledFrom([]int{128, 160, 256, 544, 700})).Draw(t, "k")
		q := drawCodes(t, r, k, 32, 64, 96, 128, 160, 256, 20, 1<<20)
		w := planesOf(t, q)
		m := rapid.IntRange(1, planesRows+3).Draw(t, "m")
		x := normal(r, m*k)
		factor := float32(math.Exp2(float64(rapid.IntRange(-60, 60).Draw(t, "size of x"))))
		for i := range x {
			x[i] *= factor
			if r.IntN(20) == 0 {
				x[i] *= 30 // an outlier
			}
		}
		dense := weight.Dequantize(q)
		want := ref.MatMul(x, dense, m, q.N, k)
		// Against what is added up: of few columns next to nothing may be left.
		for i, v := range dense {
			dense[i] = float32(math.Abs(float64(v)))
		}
		size := make([]float32, len(x))
		for i, v := range x {
			size[i] = float32(math.Abs(float64(v)))
		}
		sizes := ref.MatMul(size, dense, m, q.N, k)
		for i := range sizes {
			sizes[i] += float64(factor) * 8 * float64(q.Bits) // of sums of signs, most of which may cancel
		}
		var first []float32
		for _, e := range es {
			y := poisoned(m * q.N)
			e.MatMul(y, x, m, w)
			if first == nil {
				first = y
			} else if i := diff(y, first); i >= 0 {
				t.Fatalf("%s: row %d, column %d: got %g, %s has %g", e.label(), i/q.N, i%q.N, y[i], es[0].label(), first[i])
			}
			for i, v := range y {
				if d := math.Abs(float64(v) - want[i]); !(d <= 2e-5*sizes[i]) {
					t.Fatalf("%s: row %d, column %d: got %g, want %g within %g", e.label(), i/q.N, i%q.N, v, want[i], 2e-5*sizes[i])
				}
			}
			if m <= planesRows {
				last := poisoned(q.N)
				e.MatMul(last, x[(m-1)*k:], 1, w)
				if i := diff(last, y[(m-1)*q.N:]); i >= 0 {
					t.Fatalf("%s: column %d of the last row alone: got %g, want %g", e.label(), i, last[i], y[(m-1)*q.N+i])
				}
			}
		}
	})
}

// TestPlanesError holds the relative error of products to what float32 sums have.
func TestPlanesError(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 64, 4096
	for _, group := range []int{32, 128, k} {
		q := conform.RandomBCQ(r, n, k, 3, group, weight.F16, true)
		w := planesOf(t, q)
		for name, outliers := range map[string]float32{"normal": 1, "outliers": 50} {
			x := normal(r, k)
			for i := 7; i < k; i += 200 {
				x[i] *= outliers
			}
			want := ref.MatMul(x, weight.Dequantize(q), 1, n, k)
			for _, e := range engines(t) {
				y := poisoned(n)
				e.MatMul(y, x, 1, w)
				got := ref.RelErr(y, want)
				if !(got < 5e-6) {
					t.Errorf("groups of %d, %s, %s: relative error %g", group, name, e.label(), got)
				}
			}
		}
	}
}

// TestPlanesUnits reads weights back through products by unit vectors, and decodes all, to the bit.
func TestPlanesUnits(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		k := rapid.OneOf(rapid.IntRange(1, 100), rapid.SampledFrom([]int{128, 288})).Draw(t, "k")
		q := drawCodes(t, r, k, 32, 64, 128, 20, 1<<20)
		w, want := planesOf(t, q), weight.Dequantize(q)
		m := min(k, planesRows)
		columns := r.Perm(k)[:m]
		x := make([]float32, m*k)
		for i, c := range columns {
			x[i*k+c] = 1
		}
		all := make([]int, q.N)
		for i := range all {
			all[i] = i
		}
		for _, e := range es {
			y := poisoned(m * q.N)
			e.MatMul(y, x, m, w)
			for i, v := range y {
				if w := want[i%q.N*k+columns[i/q.N]]; v != w {
					t.Fatalf("%s: weight [%d, %d]: got %g, want %g", e.label(), i%q.N, columns[i/q.N], v, w)
				}
			}
			rows := poisoned(q.N * k)
			e.Gather(rows, w, all)
			if i := diff(rows, want); i >= 0 {
				t.Fatalf("%s: weight [%d, %d] is decoded as %g, want %g", e.label(), i/k, i%k, rows[i], want[i])
			}
		}
	})
}

// TestTables: entries are sums of columns as whole numbers, the same on every instruction set, and those of inverse
// bits their negatives.
func TestTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		k := 32 * rapid.IntRange(1, 11).Draw(t, "half-blocks")
		x := normal(r, k)
		factor := float32(math.Exp2(float64(rapid.IntRange(-70, 120).Draw(t, "size of x"))))
		for i := range x {
			x[i] *= factor
			switch r.IntN(30) {
			case 0:
				x[i] = 0
			case 1:
				x[i] = factor * (8 - 0x1p-21) // rounds up beyond the largest
			}
		}
		var want PlaneTables
		want.resize(1, k, entryBytes, tableBlock)
		want.fill(generic, 0, x)
		for h := range k / 32 {
			unit := want.units[h/tableBlock]
			for i := range 8 {
				table := want.bytes[h*want.halfBytes():]
				for w := range uint8(16) {
					var sum, size float64
					for j, v := range x[32*h+4*i:][:4] {
						sum += float64(v) * float64(2*int(w>>j&1)-1)
						size += math.Abs(float64(v))
					}
					got := tableEntry(table, entryBytes, i, w)
					if d := math.Abs(float64(got)*float64(unit) - sum); !(d <= 4*float64(unit)) || !(float64(unit) <= 0x1p-19*float64(factor)*30) {
						t.Fatalf("entry %d of table %d of half-block %d is %d of %g: want %g", w, i, h, got, unit, sum)
					}
					if inverse := tableEntry(table, entryBytes, i, 15-w); inverse != -got {
						t.Fatalf("entries %d and %d: %d and %d", w, 15-w, got, inverse)
					}
				}
			}
		}
		for s := avx2; s <= avx512; s++ {
			if !s.available() {
				continue
			}
			var got PlaneTables
			got.resize(1, k, entryBytes, tableBlock)
			got.fill(s, 0, x)
			if !slices.Equal(got.bytes, want.bytes) || diff(got.units, want.units) >= 0 || diff(got.sums, want.sums) >= 0 {
				t.Fatalf("%v makes other tables than portable code", s)
			}
		}
	})
}

// TestPlanesLMMA: products of whole numbers through tables of 8 bits are those of the simulated instruction, exactly.
func TestPlanesLMMA(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		bits := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "bits")
		n, m := rapid.IntRange(1, 40).Draw(t, "n"), rapid.IntRange(1, 3).Draw(t, "m")
		k := 4 * rapid.IntRange(1, 70).Draw(t, "tables")
		shared := 8 * rapid.IntRange(1, 9).Draw(t, "tables of a unit, by 8")
		o := lmma.Operands{M: m, N: n, K: k}
		x := make([]float32, m*k)
		for i := range x {
			x[i] = float32(r.IntN(63) - 31) // sums of four fit in 8 bits
		}
		for i := 0; i < m*k; i += k { // and the largest of a scale are 127, so that it is 1
			for j := 0; j < k; j += 4 * shared {
				copy(x[i+j:], []float32{31, 32, 32, 32})
			}
		}
		for _, v := range x {
			o.A = append(o.A, float64(v))
		}
		q := &bcq.Matrix{N: n, K: k, Bits: bits, Group: rapid.SampledFrom([]int{min(32, k), k}).Draw(t, "group"), ScaleType: weight.F16}
		q.Planes = make([]byte, n*bits*q.PlaneBytes())
		for i := range n * k {
			code := uint8(r.IntN(1 << bits))
			o.W = append(o.W, code)
			for b := range bits {
				q.Planes[(i/k*bits+b)*q.PlaneBytes()+i%k/8] |= code >> b & 1 << (i % k % 8)
			}
		}
		alphas := slices.Repeat([]float32{1, 2, 4, 8}[:bits], n*q.Groups())
		q.Alphas = make([]byte, 2*len(alphas))
		q.ScaleType.Encode(q.Alphas, alphas)
		in, err := lmma.Parse(fmt.Sprintf("lmma.m1n16k4.i8.i%d.i32.i32", bits))
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := in.Run(o, lmma.Schedule{Order: "mnk"})
		if err != nil {
			t.Fatal(err)
		}
		w := planesOf(t, q)
		for _, e := range es {
			y := poisoned(m * n)
			var tables PlaneTables
			tables.Reset(lookup.Precision{Shared: shared}, m, k)
			for i := range m {
				e.FillTables(&tables, 0, i, x[i*k:(i+1)*k])
			}
			e.MatMulTables(&tables, 0, m, Op{Y: y, W: w})
			for i, v := range y {
				if float64(v) != want[i] {
					t.Fatalf("%s, %v [%d, %d]: got %g, want %g", e.label(), in, i/n, i%n, v, want[i])
				}
			}
		}
	})
}

// TestPlanesNonFinite follows NaN and infinity through the kernels.
func TestPlanesNonFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 40, 300
	w := planesOf(t, conform.RandomBCQ(r, n, k, 3, 64, weight.BF16, true))
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		x := normal(r, k)
		x[150] = float32(v)
		for _, e := range engines(t) {
			y := make([]float32, n)
			e.MatMul(y, x, 1, w)
			if slices.ContainsFunc(y, func(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }) {
				t.Errorf("%s: a %g in x vanished: %v", e.label(), v, y)
			}
		}
	}
}

// BenchmarkPlanes reports the weights that one thread multiplies in a nanosecond, from level 2.
func BenchmarkPlanes(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 64, 2048
	for _, bits := range []int{2, 3, 4} {
		w := planesOf(b, conform.RandomBCQ(r, n, k, bits, 128, weight.F16, true))
		for s := generic; s <= avx2; s++ {
			if !s.available() {
				continue
			}
			x, y := normal(r, k), make([]float32, n)
			var t PlaneTables
			t.resize(1, k, entryBytes, tableBlock)
			b.Run(fmt.Sprintf("%d bits/%v", bits, s), func(b *testing.B) {
				t.fill(s, 0, x)
				for b.Loop() {
					w.panels(s, y, &t, 0, 1, 0, w.p.PanelCount())
				}
				perNano(b, n*k, "w/ns")
			})
			b.Run(fmt.Sprintf("%d bits/%v/decode", bits, s), func(b *testing.B) {
				dst := make([]float32, 16*kBlock)
				for b.Loop() {
					for k0 := 0; k0 < k; k0 += kBlock {
						w.decode(s, dst, 0, k0, kBlock)
					}
				}
				perNano(b, 16*k, "w/ns")
			})
			b.Run(fmt.Sprintf("tables/%v", s), func(b *testing.B) {
				for b.Loop() {
					t.fill(s, 0, x)
				}
				perNano(b, k, "columns/ns")
			})
		}
	}
}
