package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
)

func drawRings(t *rapid.T, r *rand.Rand, n, k int) (*Rings, *trellis.Matrix) {
	rate := rapid.SampledFrom(trellistest.Rates(trellis.Pairs)).Draw(t, "rate")
	scales := rapid.SampledFrom(trellis.Kind{}.ScaleTypes()).Draw(t, "scales")
	m, err := trellistest.Matrix(r, trellistest.Spec(trellis.Pairs, rate, scales), n, k, rapid.Bool().Draw(t, "factors"), rapid.Bool().Draw(t, "table"))
	if err != nil {
		t.Fatal(err)
	}
	return ringsOf(t, m), m
}

func ringsOf(t interface{ Fatal(...any) }, m *trellis.Matrix) *Rings {
	p, err := repack.Rings(m)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewRings(p)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestRings: products by rings are those of the weights, with the same bits on every instruction set and any threads, and of few rows
// with those of each row alone. Weights themselves have the bits that define them.
func TestRings(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.OneOf(rapid.IntRange(1, 40), rapid.SampledFrom([]int{64, 127, 128, 129, 200, 260})).Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(1, 100), rapid.SampledFrom([]int{128, 160, 255, 256, 257, 544, 700})).Draw(t, "k")
		w, q := drawRings(t, r, n, k)
		m := rapid.OneOf(rapid.IntRange(1, ringsFew+3), rapid.Just(20)).Draw(t, "m")
		x := normal(r, m*k)
		factor := float32(math.Exp2(float64(rapid.IntRange(-40, 40).Draw(t, "size of x"))))
		for i := range x {
			x[i] *= factor
		}
		dense := weight.Dequantize(q)
		want := ref.MatMul(x, dense, m, n, k)
		shrunk := cancelled(want, x, dense, n, k)
		var first []float32
		for _, e := range es {
			y := poisoned(m*n + 3)
			e.MatMul(y, x, m, w)
			for i, v := range y[m*n:] {
				if v == v {
					t.Fatalf("%s: wrote %d elements past the end", e.label(), i+1)
				}
			}
			y = y[:m*n]
			if first == nil {
				first = y
			} else if i := diff(y, first); i >= 0 {
				t.Fatalf("%s: row %d, column %d: got %g, %s has %g", e.label(), i/n, i%n, y[i], es[0].label(), first[i])
			}
			if err := ref.RelErr(y, want) * shrunk; !(err <= tolerance(m*n)) {
				t.Fatalf("%s: relative error %g", e.label(), err)
			}
			if m <= ringsFew {
				last := poisoned(n)
				e.MatMul(last, x[(m-1)*k:], 1, w)
				if i := diff(last, y[(m-1)*n:]); i >= 0 {
					t.Fatalf("%s: column %d of the last row alone: got %g, want %g", e.label(), i, last[i], y[(m-1)*n+i])
				}
			}
			rows, at := poisoned(2*k), []int{n - 1, 0}
			e.Gather(rows, w, at)
			for i, n := range at {
				if j := diff(rows[i*k:], dense[n*k:][:k]); j >= 0 {
					t.Fatalf("%s: weight %d,%d: got %g, want %g", e.label(), n, j, rows[i*k+j], dense[n*k+j])
				}
			}
		}
	})
}

// TestRingsShare: products of one x by matrices whose columns have the same factors, others, and other weights are those of each alone.
func TestRingsShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const k = 300
	matrix := func(n int, factors bool) *Rings {
		m, err := trellistest.Matrix(r, trellistest.Spec(trellis.Pairs, 6, weight.F16), n, k, factors, false)
		if err != nil {
			t.Fatal(err)
		}
		return ringsOf(t, m)
	}
	dense, _, err := denseCase("F32").make(r, 20, k)
	if err != nil {
		t.Fatal(err)
	}
	all := []Weights{matrix(140, false), matrix(30, true), dense, matrix(16, false), matrix(9, true)}
	for _, e := range engines(t) {
		for _, m := range []int{1, 3, 40} {
			x := normal(r, m*k)
			var ops []Op
			for _, w := range all {
				ops = append(ops, Op{poisoned(m * w.Rows()), w})
			}
			e.MatMulMany(x, m, ops...)
			for i, op := range ops {
				want := poisoned(m * op.W.Rows())
				e.MatMul(want, x, m, op.W)
				if j := diff(op.Y, want); j >= 0 {
					t.Errorf("%s, %d rows, product %d: element %d: got %g, want %g as alone", e.label(), m, i, j, op.Y[j], want[j])
				}
			}
		}
	}
}

// TestRingAt: steps are at the rows and columns of the format.
func TestRingAt(t *testing.T) {
	c, err := trellis.NewCode(trellis.Pairs, 4)
	if err != nil {
		t.Fatal(err)
	}
	for step := range c.Layout().Steps() {
		row, col := ringAt(step)
		if r, k := c.Layout().At(step); r != row || k != col {
			t.Errorf("step %d at %d,%d: want %d,%d", step, row, col, r, k)
		}
	}
}

// TestRingHash: what kernels know of the hash is so.
func TestRingHash(t *testing.T) {
	for _, rate := range trellis.Rates() {
		c, err := trellis.NewCode(trellis.Pairs, rate)
		if err != nil {
			t.Fatal(err)
		}
		h := newRingTable(rate, c.Table).hash
		for x := range uint32(1 << trellis.Window) {
			y := x*(h.low&0xFFFF) + x*(h.high&0xFFFF)<<16
			index, flip := trellis.Hash(uint16(x), rate)
			if got := y >> 7 & 255; got != index {
				t.Fatalf("rate %d, window %#x: pair %d, want %d", rate, x, got, index)
			}
			if got := y&0xFFFF&h.flipLow | y&^0xFFFF&h.flipHigh; got != flip {
				t.Fatalf("rate %d, window %#x: flips %#x, want %#x", rate, x, got, flip)
			}
		}
	}
}

// TestRingsFixed: products in fixed point are near those of the weights, with the same bits on every instruction set and of each row
// alone, also where x or the table is very large or small and in front of what is no number.
func TestRingsFixed(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.SampledFrom([]int{1, 9, 127, 128, 129, 200}).Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(64, 100), rapid.SampledFrom([]int{128, 160, 255, 256, 257, 544})).Draw(t, "k")
		w, q := drawRings(t, r, n, k)
		how := w.Rounded()
		m := rapid.IntRange(1, ringsFew).Draw(t, "m")
		x := normal(r, m*k)
		factor := float32(math.Exp2(float64(rapid.IntRange(-40, 40).Draw(t, "size of x"))))
		for i := range x {
			x[i] *= factor
		}
		dense := weight.Dequantize(q)
		want := ref.MatMul(x, dense, m, n, k)
		shrunk := cancelled(want, x, dense, n, k)
		bad := rapid.IntRange(-1, m-1).Draw(t, "row with what is no number")
		if bad >= 0 {
			x[bad*k] = float32(math.NaN())
		}
		var first []float32
		for _, e := range es {
			y := poisoned(m * n)
			how.By(e, x, m)(y, how.Weights)
			if first == nil {
				first = y
			} else if i := diff(y, first); i >= 0 {
				t.Fatalf("%s: row %d, column %d: got %g, %s has %g", e.label(), i/n, i%n, y[i], es[0].label(), first[i])
			}
			last := poisoned(n)
			how.By(e, x[(m-1)*k:], 1)(last, how.Weights)
			if i := diff(last, y[(m-1)*n:]); i >= 0 {
				t.Fatalf("%s: column %d of the last row alone: got %g, want %g", e.label(), i, last[i], y[(m-1)*n+i])
			}
			switch {
			case bad >= 0 && y[bad*n] == y[bad*n]:
				t.Fatalf("%s: row %d, with a NaN, became %g", e.label(), bad, y[bad*n])
			case bad < 0:
				if err := ref.RelErr(y, want) * shrunk; !(err <= FixedError) {
					t.Fatalf("%s: relative error %g", e.label(), err)
				}
			}
		}
	})
}

// TestRingsFixedError holds the relative error of products in fixed point to a part of its bound.
func TestRingsFixedError(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 256, 2048
	e := engines(t)[0]
	for _, rate := range trellis.Rates() {
		m, err := trellistest.Matrix(r, trellistest.Spec(trellis.Pairs, rate, weight.F16), n, k, false, false)
		if err != nil {
			t.Fatal(err)
		}
		w := ringsOf(t, m)
		for name, outliers := range map[string]float32{"normal": 1, "outliers": 50} {
			x := normal(r, k)
			for i := 7; i < k; i += 200 {
				x[i] *= outliers
			}
			y := poisoned(n)
			how := w.Rounded()
			how.By(e, x, 1)(y, how.Weights)
			got := ref.RelErr(y, ref.MatMul(x, weight.Dequantize(m), 1, n, k))
			if !(got < 1.2e-4) || got < 1e-6 {
				t.Errorf("rate %d, %s: relative error %g", rate, name, got)
			}
			t.Logf("rate %d, %s: %.2g", rate, name, got)
		}
	}
}

// TestRingsSubnormal: values of a table that are subnormal are what they are, and none is left to the kernels where that can be avoided.
func TestRingsSubnormal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k = 40, 300
	for name, test := range map[string]struct {
		rate  int
		pair  uint32
		left  bool
		value float32
	}{
		"none":                          {6, 0x3C003C00, false, 1},
		"zero":                          {6, 0x00008000, false, 1},
		"a first value":                 {6, 0x3C0003A6, false, 0x1p-14},
		"the least":                     {6, 0x3C008001, false, 0x1p-14},
		"a second value":                {6, 0x03A63C00, true, 1},
		"a first value, turned over":    {10, 0x3C0003A6, true, 1},
		"in a table of large and small": {6, 0x78000001, true, 1},
	} {
		m, err := trellistest.Matrix(r, trellistest.Spec(trellis.Pairs, test.rate, weight.F16), n, k, false, true)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.Code.Table {
			m.Code.Table[i] = 0x3C00BC00 // 1 and -1
		}
		for i := 0; i < trellis.Entries; i += 3 {
			m.Code.Table[i] = test.pair
		}
		m.Code.Table[1] = 0x40004000 // 2
		w := ringsOf(t, m)
		left := false
		for _, pair := range w.table.pairs {
			for _, h := range []uint32{pair, pair >> 16} {
				left = left || h&0x7C00 == 0 && h&0x3FF != 0
			}
		}
		if left != test.left || w.table.value != test.value {
			t.Errorf("%s: subnormal values left: %v, times %g: want %v, %g", name, left, w.table.value, test.left, test.value)
		}
		x, dense := normal(r, k), weight.Dequantize(m)
		for _, e := range engines(t) {
			y, row := poisoned(n), poisoned(k)
			e.MatMul(y, x, 1, w)
			if err := ref.RelErr(y, ref.MatMul(x, dense, 1, n, k)); !(err < 4e-6) {
				t.Errorf("%s, %s: relative error %g", name, e.label(), err)
			}
			e.Gather(row, w, []int{5})
			if i := diff(row, dense[5*k:6*k]); i >= 0 {
				t.Errorf("%s, %s: weight %d is %g, want %g", name, e.label(), i, row[i], dense[5*k+i])
			}
		}
	}
}
