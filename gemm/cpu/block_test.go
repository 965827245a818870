package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/gemm/ref"
)

func TestBlock(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.IntRange(1, 40).Draw(t, "m")
		bn := rapid.IntRange(1, 70).Draw(t, "packed n")
		bk := rapid.OneOf(rapid.IntRange(1, 70), rapid.IntRange(250, 530)).Draw(t, "packed k")
		n := rapid.IntRange(1, bn).Draw(t, "n")
		k := rapid.IntRange(0, bk).Draw(t, "k")
		ldx := k + rapid.IntRange(0, 20).Draw(t, "ldx-k")
		ldy := n + rapid.IntRange(0, 20).Draw(t, "ldy-n")
		add := rapid.Bool().Draw(t, "add")
		cols := rapid.Bool().Draw(t, "stored by columns")
		alpha := rapid.SampledFrom([]float32{1, 0.125, -0.3}).Draw(t, "alpha")
		pad := rapid.IntRange(0, 9).Draw(t, "ld of b")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))

		x := normal(r, (m-1)*ldx+k)
		w := normal(r, n*k) // what b should be, row-major [n,k]
		before := normal(r, (m-1)*ldy+n)
		// Terms are what is added up, without signs: a sum that is next to nothing is as far off as they let it be.
		exact, terms := make([]float64, len(before)), make([]float64, len(before))
		for i, v := range before {
			exact[i] = float64(v)
		}
		for i := range m {
			for j := range n {
				at := i*ldy + j
				for c, u := range x[i*ldx:][:k] {
					terms[at] += math.Abs(float64(alpha) * float64(u) * float64(w[j*k+c]))
				}
				v := float64(alpha) * ref.Dot(x[i*ldx:][:k], w[j*k:])
				if add {
					v += exact[at]
					terms[at] += math.Abs(exact[at])
				}
				exact[at] = v
			}
		}

		var want []float32
		for _, e := range es {
			var b PackedB
			e.PackRows(&b, normal(r, 48*31), 48, 31, 31) // leave something behind
			if cols {
				ld := bn + pad
				src := poisoned((bk-1)*ld + bn)
				for i := range k {
					for j := range n {
						src[i*ld+j] = w[j*k+i]
					}
				}
				e.PackCols(&b, src, bn, bk, ld)
			} else {
				ld := bk + pad
				src := poisoned((bn-1)*ld + bk)
				for j := range n {
					copy(src[j*ld:], w[j*k:(j+1)*k])
				}
				e.PackRows(&b, src, bn, bk, ld)
			}
			y := append([]float32(nil), before...)
			if !add {
				for i := range m {
					copy(y[i*ldy:], poisoned(n))
				}
			}
			e.Block(y, ldy, x, ldx, m, &b, n, k, alpha, add)
			var off, all float64
			for i, v := range exact {
				off += (float64(y[i]) - v) * (float64(y[i]) - v)
				all += terms[i] * terms[i]
			}
			if !(off <= 1e-12*all) {
				t.Fatalf("%s: off by %g of what is added up", e.label(), math.Sqrt(off/all))
			}
			if want == nil {
				want = y
			}
			if i := diff(y, want); i >= 0 {
				t.Fatalf("%s: element %d: got %g, want %g as elsewhere", e.label(), i, y[i], want[i])
			}
			for i := range m - 1 { // between the rows
				if j := diff(y[i*ldy+n:(i+1)*ldy], before[i*ldy+n:(i+1)*ldy]); j >= 0 {
					t.Fatalf("%s: wrote %d elements past the end of row %d", e.label(), j+1, i)
				}
			}
		}
	})
}

func TestBadBlocks(t *testing.T) {
	e := engines(t)[0]
	var b PackedB
	e.PackRows(&b, make([]float32, 12), 3, 4, 4)
	y, x := make([]float32, 6), make([]float32, 8)
	for _, test := range []struct {
		name string
		call func()
	}{
		{"n", func() { e.Block(make([]float32, 8), 4, x, 4, 2, &b, 4, 4, 1, false) }},
		{"k", func() { e.Block(y, 3, make([]float32, 10), 5, 2, &b, 3, 5, 1, false) }},
		{"ldx", func() { e.Block(y, 3, x, 3, 2, &b, 3, 4, 1, false) }},
		{"ldy", func() { e.Block(y, 2, x, 4, 2, &b, 3, 4, 1, false) }},
		{"short y", func() { e.Block(y[:5], 3, x, 4, 2, &b, 3, 4, 1, false) }},
		{"short x", func() { e.Block(y, 3, x[:7], 4, 2, &b, 3, 4, 1, false) }},
		{"pack rows", func() { e.PackRows(&b, make([]float32, 11), 3, 4, 4) }},
		{"pack columns", func() { e.PackCols(&b, make([]float32, 11), 3, 4, 3) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != badShape {
					t.Errorf("got panic %v, want %q", got, badShape)
				}
			}()
			test.call()
		})
	}
}

func TestBlockAllocates(t *testing.T) {
	for _, e := range engines(t) {
		var b PackedB
		src := make([]float32, 40*64)
		x, y := make([]float32, 20*64), make([]float32, 20*40)
		got := testing.AllocsPerRun(5, func() {
			e.PackRows(&b, src, 40, 64, 64)
			e.Block(y, 40, x, 64, 20, &b, 40, 64, 1, false)
			e.PackCols(&b, src, 64, 40, 64)
			e.ExpSum(y, y, 0)
		})
		if got > 0 { // AllocsPerRun runs once before it counts
			t.Errorf("%s: %g allocations", e.label(), got)
		}
	}
}
