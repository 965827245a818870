package gptq

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// multiples rounds to multiples of a step, without a rotation. It stores the weights themselves.
type multiples struct {
	step      float32
	stretches bool

	k     int
	rows  []float32
	wants []weight.ScaleType
}

func (m *multiples) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if err := m.Fit(w, len(errs)); err != nil {
		return err
	}
	m.Round(m.rows, w, 0)
	m.Store(parts, 0)
	return nil
}
func (m *multiples) Shared([][]byte) {}
func (m *multiples) CheckParts(parts [][]byte, n, k int) error {
	return rounding.CheckParts(parts, map[int]int{0: 4 * n * k})
}

func (m *multiples) Rotate(dst, w []float32, n int) error {
	copy(dst, w)
	return nil
}

func (m *multiples) Fit(rotated []float32, n int) error {
	m.k, m.rows, m.wants = len(rotated)/n, make([]float32, len(rotated)), make([]weight.ScaleType, n)
	return nil
}
func (m *multiples) Wants(row int) weight.ScaleType { return m.wants[row] }

func (m *multiples) Round(stored, v []float32, first int) {
	n := len(m.rows) / m.k
	columns := len(v) / n
	for i, x := range v {
		stored[i] = m.nearest(x)
		m.rows[i/columns*m.k+first+i%columns] = stored[i]
	}
}

func (m *multiples) nearest(v float32) float32 {
	return float32(math.RoundToEven(float64(v/m.step))) * m.step
}

func (m *multiples) Stretch(row int, factor float64) float64 {
	if !m.stretches {
		return 1
	}
	by := float32(factor)
	for i := range m.k {
		m.rows[row*m.k+i] *= by
	}
	return float64(by)
}

func (m *multiples) Store(parts [][]byte, to int) { num.EncodeF32(parts[0][4*to*m.k:], m.rows) }

// blocked quantizes rows of k weights, some of them at a time.
func blocked(t testing.TB, s *State, b Blocker, w []float32, k, some int) ([]float32, []rounding.RowError) {
	t.Helper()
	q, err := s.Blocks(b)
	if err != nil {
		t.Fatal(err)
	}
	n := len(w) / k
	data, errs := make([]byte, 4*n*k), make([]rounding.RowError, n)
	for from := 0; from < n; from += some {
		to := min(from+some, n)
		if err := q.Rows([][]byte{data[4*from*k : 4*to*k]}, errs[from:to], w[from*k:to*k]); err != nil {
			t.Fatal(err)
		}
	}
	stored := make([]float32, n*k)
	num.DecodeF32(stored, data)
	return stored, errs
}

// byInverse rounds rows block by block in float64, by the inverse of what is left of the Hessian: once a block is rounded, all that
// comes after moves to where it makes up for most of the errors so far.
func byInverse(w []float32, h []float32, k, block int, damp float64, order []int, nearest func(v float32) float32) []float32 {
	n := len(w) / k
	var mean float64
	for i := range k {
		mean += float64(h[i*k+i]) / float64(k)
	}
	damped := mat.NewDense(k, k, nil)
	for i, a := range order {
		for j, b := range order {
			v := float64(h[a*k+b])
			if i == j {
				v += damp * mean
			}
			damped.Set(i, j, v)
		}
	}
	out, errs := make([]float32, n*k), mat.NewDense(n, k, nil)
	for from := 0; from < k; from += block {
		to := min(from+block, k)
		moved := mat.NewDense(n, k-from, nil)
		if from > 0 {
			var inverse, before mat.Dense
			if err := inverse.Inverse(damped.Slice(from, k, from, k)); err != nil {
				panic(err)
			}
			before.Mul(errs.Slice(0, n, 0, from), damped.Slice(0, from, from, k))
			moved.Mul(&before, &inverse)
		}
		for r := range n {
			for i := from; i < to; i++ {
				at := r*k + order[i]
				out[at] = nearest(float32(float64(w[at]) + moved.At(r, i-from)))
				errs.Set(r, i, float64(w[at])-float64(out[at]))
			}
		}
	}
	return out
}

// quadratic returns e·H·eᵀ of a row over a number of tokens, H damped.
func quadratic(e []float64, h []float32, damp float64, tokens int) (sum float64) {
	k := len(e)
	var mean float64
	for i := range k {
		mean += float64(h[i*k+i]) / float64(k)
	}
	for i := range e {
		sum += damp * mean * e[i] * e[i]
		for j := range e {
			sum += e[i] * e[j] * float64(h[i*k+j])
		}
	}
	return sum / float64(tokens)
}

// TestBlocks: blocks are rounded as the reference does it, losses are what they say they are, and neither how rows are divided nor what
// was quantized before changes anything.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		k := rapid.SampledFrom([]int{7, 16, 40, 128, 150, 272}).Draw(r, "K")
		n := rapid.IntRange(1, 5).Draw(r, "N")
		block := rapid.SampledFrom([]int{4, 16, 64}).Draw(r, "block")
		damp := rapid.SampledFrom([]float64{.01, .1, 1}).Draw(r, "damp")
		tokens := 2*k + 10
		x := inputs(rng, tokens, k)
		h, w := gram(x, x, k), normal(rng, n*k)
		s := state(t, fixed{k: k, tokens: tokens, h: h}, Options{Damp: damp, Block: block})
		if s.report != (Report{Damp: damp}) {
			r.Fatalf("prepared as %+v", s.report)
		}
		sorted := slices.Sorted(slices.Values(s.order))
		for i, c := range sorted {
			if c != i {
				r.Fatalf("the order is %v", s.order)
			}
		}
		m := &multiples{step: .5}
		got, errs := blocked(t, s, m, w, k, n)
		want := byInverse(w, h, k, block, damp, s.order, m.nearest)
		wrong := 0
		for i := range got {
			if got[i] != want[i] {
				wrong++
			}
		}
		if wrong > len(got)/100 { // where roundings of float32 decide
			r.Errorf("%d of %d weights differ from the reference", wrong, len(got))
		}
		e, zero := make([]float64, k), make([]float64, k)
		for row := range n {
			var plain rounding.RowError
			for i := range e {
				at := row*k + i
				e[i], zero[i] = float64(w[at])-float64(got[at]), float64(w[at])
				plain.Add(w[at], got[at])
			}
			near := func(name string, got, want, of float64) {
				if math.Abs(got-want) > 1e-4*of {
					r.Errorf("row %d: %s %v, want %v", row, name, got, want)
				}
			}
			loss, all := quadratic(e, h, damp, tokens), quadratic(zero, h, damp, tokens)
			near("loss", errs[row].Loss, loss, loss)
			near("output's error", errs[row].OutputSquared, quadratic(e, h, 0, tokens), loss)
			near("output", errs[row].Output, quadratic(zero, h, 0, tokens), all)
			near("energy", errs[row].Energy, plain.Energy, plain.Energy)
			near("squared error", errs[row].Squared, plain.Squared, plain.Energy)
		}
		again, _ := blocked(t, s, m, w, k, 2)
		if !slices.Equal(got, again) {
			r.Error("two rows at a time are rounded otherwise than all")
		}
	})
}

// TestStretch: rows get the scale with which they lose least, and say so.
func TestStretch(t *testing.T) {
	const n, k, tokens, damp = 6, 48, 200, .05
	rng := rand.New(rand.NewPCG(1, 2))
	x := inputs(rng, tokens, k)
	h, w := gram(x, x, k), normal(rng, n*k)
	s := state(t, fixed{k: k, tokens: tokens, h: h}, Options{Damp: damp, Block: 16})
	plain, before := blocked(t, s, &multiples{step: 1}, w, k, n)
	got, errs := blocked(t, s, &multiples{step: 1, stretches: true}, w, k, n)
	better := 0
	for r := range n {
		e := make([]float64, k)
		best := math.Inf(1)
		for by := .5; by < 1.5; by += 1e-3 {
			for i := range e {
				e[i] = float64(w[r*k+i]) - by*float64(plain[r*k+i])
			}
			best = min(best, quadratic(e, h, damp, tokens))
		}
		for i := range e {
			e[i] = float64(w[r*k+i]) - float64(got[r*k+i])
		}
		loss := quadratic(e, h, damp, tokens)
		if math.Abs(loss-errs[r].Loss) > 1e-4*loss || loss > best*(1+1e-6) || best > loss*(1+1e-4) {
			t.Errorf("row %d: loss %v, said to be %v: want %v", r, loss, errs[r].Loss, best)
		}
		if errs[r].Loss < before[r].Loss*.999 {
			better++
		}
	}
	if better == 0 {
		t.Error("no row loses less")
	}
}

// TestNearestGuess: what rounding to nearest is said to lose is about what it loses.
func TestNearestGuess(t *testing.T) {
	const n, k, tokens, damp = 40, 64, 300, .01
	rng := rand.New(rand.NewPCG(3, 4))
	x := inputs(rng, tokens, k)
	h, w := gram(x, x, k), normal(rng, n*k)
	s := state(t, fixed{k: k, tokens: tokens, h: h}, Options{Damp: damp, Block: 16})
	m := &multiples{step: .5}
	_, errs := blocked(t, s, m, w, k, n)
	var said, fed, want float64
	e := make([]float64, k)
	for r := range n {
		for i := range e {
			v := w[r*k+i]
			e[i] = float64(v) - float64(m.nearest(v))
		}
		want += quadratic(e, h, damp, tokens)
		said += errs[r].NearestLoss
		fed += errs[r].Loss
	}
	if math.Abs(said-want) > .2*want || fed > .8*want {
		t.Errorf("rounding to nearest is said to lose %v, and feeding loses %v: want %v, and less", said, fed, want)
	}
}

// TestBlocksNearest: where the inputs say too little the blocker rounds by itself.
func TestBlocksNearest(t *testing.T) {
	const n, k = 2, 20
	w := normal(rand.New(rand.NewPCG(5, 6)), n*k)
	s := state(t, fixed{k: k, tokens: k - 1, h: make([]float32, k*k)}, Options{Damp: .1, Block: 16})
	m := &multiples{step: .5}
	got, _ := blocked(t, s, m, w, k, n)
	for i, v := range got {
		if v != m.nearest(w[i]) {
			t.Fatalf("weight %d is %v: want %v", i, v, m.nearest(w[i]))
		}
	}
}

// TestBlockOptions: blocks that there are not are refused.
func TestBlockOptions(t *testing.T) {
	for _, o := range []Options{{Block: -16}, {Block: 12}, {Block: 128}, {Block: 16, Chunk: 4}} {
		if err := o.Check(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	for _, tc := range []struct {
		diagonal []float32
		want     string
	}{
		{[]float32{1, 1, 5, 5, 2, 2, 9}, "[2 3 4 5 0 1 6]"},
		{[]float32{3}, "[0]"},
	} {
		if got := fmt.Sprint(falling(tc.diagonal, 2)); got != tc.want {
			t.Errorf("%v in twos come as %s: want %s", tc.diagonal, got, tc.want)
		}
	}
}
