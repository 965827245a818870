package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/lookup"
)

// hardRow returns activations of many sizes, with quotients half way between codes among them.
func hardRow(t *rapid.T, r *rand.Rand, k int) []float32 {
	x := normal(r, k)
	factor := float32(math.Exp2(float64(rapid.IntRange(-150, 130).Draw(t, "size of x"))))
	for i := range x {
		x[i] *= factor
		switch r.IntN(12) {
		case 0:
			x[i] = 0
		case 1:
			x[i] *= 40
		case 2: // whole numbers, sums of which are half way between codes where the largest is 254
			x[i] = float32(r.IntN(65) - 32)
		}
	}
	if rapid.Bool().Draw(t, "254") {
		copy(x, []float32{63, 64, 63, 64})
		for i := range x[min(4, k):] {
			x[4+i] = float32(r.IntN(65) - 32)
		}
	}
	if v := rapid.SampledFrom([]float64{0, 0, 0, math.NaN(), math.Inf(1), math.Inf(-1)}).Draw(t, "one of x"); v != 0 {
		x[r.IntN(k)] = float32(v)
	}
	return x
}

// TestFillTables: tables of every precision are those of package lookup, with the same bits on every instruction set.
func TestFillTables(t *testing.T) {
	es := engines(t)
	precisions := []lookup.Precision{{}, {F16: true}, {Shared: 1}, {Shared: 3}, {Shared: 8}, {Shared: 16}, {Shared: 40}, {Shared: 1 << 20}}
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		k := rapid.IntRange(1, 400).Draw(t, "k")
		p := rapid.SampledFrom(precisions).Draw(t, "precision")
		x := hardRow(t, r, k)
		want := lookup.NewTables(p, 1, k)
		want.Fill(0, x)
		row := want.Row(0)
		var first PlaneTables
		for _, e := range es {
			var got PlaneTables
			got.Reset(p, 2, k)
			e.FillTables(&got, 0, 1, x)
			if first.rows == 0 {
				first = got
			}
			if !slices.Equal(got.bytes, first.bytes) || diff(got.units, first.units) >= 0 || diff(got.sums, first.sums) >= 0 {
				t.Fatalf("%v: %s makes other tables than %s", p, e.label(), es[0].label())
			}
			bytes, units, sums := got.row(1)
			for i := range row.Sums {
				unit := units[i/8/got.block]
				table := bytes[i/8*got.halfBytes():]
				for w := range uint8(16) {
					entry := tableEntry(table, got.width, i%8, w)
					if got.width == 1 {
						if c := row.Codes[i].Plain()[w]; entry != int32(c) || !same(unit, row.Scales[i/p.Shared]) {
							t.Fatalf("%v, %s: entry %d of table %d is %d of %g, want %d of %g", p, e.label(), w, i, entry, unit, c, row.Scales[i/p.Shared])
						}
						continue
					}
					var v float32
					if p.Shared > 0 {
						v = float32(row.Codes[i].Plain()[w]) * row.Scales[i/p.Shared]
					} else {
						v = row.Entries[i].Plain()[w]
					}
					// Rounded once more, and no larger than fits; NaN where the block is not finite.
					if d := math.Abs(float64(entry)*float64(unit) - float64(v)); !(d <= float64(unit)) && unit == unit {
						t.Fatalf("%v, %s: entry %d of table %d is %d of %g, want %g", p, e.label(), w, i, entry, unit, v)
					}
				}
				if i%8 == 0 {
					var all, size float64
					for _, s := range row.Sums[i:min(i+8, len(row.Sums))] {
						all += float64(s)
						size += math.Abs(float64(s))
					}
					if d := math.Abs(float64(sums[i/8]) - all); !(d <= 1e-7*math.Abs(all)+1e-15*size) && size <= math.MaxFloat32 {
						t.Fatalf("%s: the sum of half-block %d is %g, want %g", e.label(), i/8, sums[i/8], all)
					}
				}
			}
		}
	})
}

// same reports whether two numbers are equal, or both NaN.
func same(a, b float32) bool { return a == b || a != a && b != b }

// TestTableScales tries every scale there is, and the numbers around its 127-fold.
func TestTableScales(t *testing.T) {
	for s := generic; s <= avx512; s++ {
		if !s.available() {
			continue
		}
		for h := range uint16(0x7c00) {
			scale := num.F16ToF32(h)
			most := math.Float32bits(127 * scale)
			in := [8]uint32{most, max(1, most) - 1, most + 1, most, 0, 0, math.Float32bits(float32(math.NaN())), math.Float32bits(float32(math.Inf(1)))}
			next := num.F16ToF32(h + 1)
			if h == 0x7bff {
				next = float32(math.NaN())
			}
			nan := float32(math.NaN())
			want := [8]float32{scale, scale, next, scale, 0, 0, nan, nan}
			var got [8]float32
			s.tableScales(got[:], in[:])
			for i, v := range got {
				if !same(v, want[i]) {
					t.Fatalf("%v: the scale of %g is %g, want %g", s, math.Float32frombits(in[i]), v, want[i])
				}
			}
		}
	}
}

// TestTablesFull: products of tables that all have the same sign, and as many as share a scale, stay exact.
func TestTablesFull(t *testing.T) {
	const n, k = 3, 4096
	m := &bcq.Matrix{N: n, K: k, Bits: 1, Group: k, ScaleType: weight.F32, Planes: slices.Repeat([]byte{255}, n*k/8), Alphas: make([]byte, 4*n)}
	weight.F32.Encode(m.Alphas, []float32{1, 1, 1})
	w := planesOf(t, m)
	x := slices.Repeat([]float32{31, 32, 32, 32}, k/4)
	for _, shared := range []int{16, 8 * 64, 8 * 96, 8 * 67, 1024, 1 << 20} {
		for _, e := range engines(t) {
			var tables PlaneTables
			tables.Reset(lookup.Precision{Shared: shared}, 1, k)
			e.FillTables(&tables, 0, 0, x)
			y := poisoned(n)
			e.MatMulTables(&tables, 0, 1, Op{Y: y, W: w})
			for i, v := range y {
				if v != 127*k/4 {
					t.Errorf("%d tables of a scale, %s: product %d is %g, want %d", shared, e.label(), i, v, 127*k/4)
				}
			}
		}
	}
}

// BenchmarkFillTables reports the columns of which tables are made in a nanosecond.
func BenchmarkFillTables(b *testing.B) {
	const k = 1536
	x := normal(rand.New(rand.NewPCG(1, 2)), k)
	for _, e := range engines(b) {
		if e.Threads() > 2 { // the same
			continue
		}
		for _, p := range []lookup.Precision{{Shared: 16}, {Shared: 1}, {F16: true}} {
			b.Run(fmt.Sprintf("%v/%v", e.isa, p), func(b *testing.B) {
				var t PlaneTables
				t.Reset(p, 1, k)
				for b.Loop() {
					e.FillTables(&t, 0, 0, x)
				}
				perNano(b, k, "columns/ns")
			})
		}
	}
}
