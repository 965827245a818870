package gptq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// fixed are statistics in memory.
type fixed struct {
	k, tokens int
	h, d      []float32
}

func (f fixed) K() int      { return f.k }
func (f fixed) Tokens() int { return f.tokens }
func (f fixed) Diagonal() ([]float32, error) {
	d := make([]float32, f.k)
	for i := range d {
		d[i] = f.h[i*f.k+i]
	}
	return d, nil
}
func (f fixed) Hessian() ([]float32, error) { return f.h, nil }
func (f fixed) Drift() ([]float32, error)   { return f.d, nil }

// gram returns Σ a·bᵀ over the rows of two [tokens, k] matrices.
func gram(a, b []float64, k int) []float32 {
	sum := make([]float64, k*k)
	for t := 0; t < len(a); t += k {
		for i, v := range a[t : t+k] {
			for j, u := range b[t : t+k] {
				sum[i*k+j] += v * u
			}
		}
	}
	h := make([]float32, k*k)
	for i, v := range sum {
		h[i] = float32(v)
	}
	return h
}

// layer is a quantized layer, unpacked.
type layer struct {
	m    *lut.Matrix
	errs []rounding.RowError
}

func (l layer) codes() []uint8 {
	codes := make([]uint8, l.m.N*l.m.K)
	for n := range l.m.N {
		l.m.RowCodes(codes[n*l.m.K:(n+1)*l.m.K], n)
	}
	return codes
}

// sum returns the loss of all rows.
func (l layer) sum() (chosen, nearest float64) {
	for _, e := range l.errs {
		chosen += e.Loss
		nearest += e.NearestLoss
	}
	return chosen, nearest
}

func state(t testing.TB, stats rounding.Stats, o Options) *State {
	t.Helper()
	s, err := NewState(stats, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// quantizerOf returns that of a layer that is stored by o.
func quantizerOf(t testing.TB, s *State, o lut.Format) rounding.Quantizer {
	t.Helper()
	inner, err := rtn.NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	inner.Weigh(s.Weights())
	q, err := s.Quantizer(inner)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// quantize quantizes rows of k weights, some of them at a time.
func quantize(t testing.TB, s *State, o lut.Format, w []float32, k, some int) layer {
	t.Helper()
	q, n, bits := quantizerOf(t, s, o), len(w)/k, o.Codebook.Bits()
	m := &lut.Matrix{
		N: n, K: k, Bits: bits, Group: min(o.Group, k), ScaleType: o.ScaleType, Codebook: o.Codebook.Values,
		Codes:  make([]byte, n*lut.RowBytes(k, bits)),
		Scales: make([]byte, n*weight.GroupsIn(k, o.Group)*o.ScaleType.Size()),
	}
	l := layer{m, make([]rounding.RowError, n)}
	for from := 0; from < n; from += some {
		to := min(from+some, n)
		parts := [][]byte{
			lut.ScalesPart: m.Scales[from*len(m.Scales)/n : to*len(m.Scales)/n],
			lut.CodesPart:  m.Codes[from*m.RowBytes() : to*m.RowBytes()],
		}
		if err := q.Rows(parts, l.errs[from:to], w[from*k:to*k]); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return l
}

// toNearest quantizes rows of k weights without statistics.
func toNearest(t testing.TB, o lut.Format, w []float32, k int) layer {
	t.Helper()
	return quantize(t, &State{k: k, report: Report{Nearest: "asked"}}, o, w, k, len(w)/k)
}

func table(t testing.TB, name string, bits, group int) lut.Codebook {
	t.Helper()
	c, err := lut.NewCodebook(name, bits, group)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// integers are those of scripts/gptq_reference.py.
func integers(seed uint64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		seed = seed*6364136223846793005 + 1442695040888963407
		out[i] = float64(seed>>60) - 8
	}
	return out
}

// TestReference compares codes with those of an independent program in float64,
// which inverts the Hessian.
func TestReference(t *testing.T) {
	data, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	var reference struct {
		Tokens int
		Cases  []struct {
			Bits, Group, N, K int
			Damp, Retarget    float64
			Codes             []string
		}
	}
	if err := json.Unmarshal(data, &reference); err != nil {
		t.Fatal(err)
	}
	for _, c := range reference.Cases {
		t.Run(fmt.Sprintf("%d bits, group %d, retarget %v", c.Bits, c.Group, c.Retarget), func(t *testing.T) {
			z := integers(1, reference.Tokens*c.K)
			x, drift := make([]float64, len(z)), make([]float64, len(z))
			for i := range z {
				row := i / c.K * c.K
				x[i] = z[i] + 2*z[row+(i-row+c.K-1)%c.K] + 3*z[row]*float64((i-row)%3)
			}
			for i := range z {
				row := i / c.K * c.K
				if before := x[row+(i-row+c.K-1)%c.K]; math.Abs(z[i]) > 4 && before != 0 {
					drift[i] = math.Copysign(1, before)
				}
			}
			w := make([]float32, c.N*c.K)
			a, b, d := integers(2, len(w)), integers(3, len(w)), integers(4, len(w))
			for i := range w {
				w[i] = float32(a[i] + b[i]/16 + d[i]/256)
			}
			s := state(t, fixed{c.K, reference.Tokens, gram(x, x, c.K), gram(drift, x, c.K)}, Options{Damp: c.Damp, Retarget: c.Retarget})
			got := quantize(t, s, lut.Format{Codebook: table(t, "nf", c.Bits, 64), Group: c.Group, Scale: weight.Absmax, ScaleType: weight.F32}, w, c.K, c.N)
			codes, wrong := got.codes(), 0
			for n, row := range c.Codes {
				for k := range row {
					if codes[n*c.K+k] != row[k]-'0' {
						wrong++
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d codes differ", wrong, len(codes))
			}
			if chosen, nearest := got.sum(); !(chosen < .9*nearest) {
				t.Errorf("loss %v, of nearest %v: want less", chosen, nearest)
			}
		})
	}
}

// inputs returns what a layer might read: correlated, with a few large elements.
func inputs(rng *rand.Rand, tokens, k int) []float64 {
	x := make([]float64, tokens*k)
	size := make([]float64, k)
	for i := range size {
		size[i] = math.Exp(rng.NormFloat64())
	}
	for t := range tokens {
		common := rng.NormFloat64()
		for i := range k {
			x[t*k+i] = size[i] * (rng.NormFloat64() + common)
		}
	}
	return x
}

func normal(rng *rand.Rand, n int) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

// output returns tr(e·H·eᵀ) in float64 for e = w - ŵ, H damped.
func output(l layer, w, h []float32, damp float64) float64 {
	k := l.m.K
	var mean, sum float64
	for i := range k {
		mean += float64(h[i*k+i]) / float64(k)
	}
	quantized := l.m.Dequantize()
	e := make([]float64, k)
	for n := range l.m.N {
		for i := range e {
			e[i] = float64(w[n*k+i]) - float64(quantized[n*k+i])
			sum += damp * mean * e[i] * e[i]
		}
		for i := range e {
			for j := range e {
				sum += e[i] * e[j] * float64(h[i*k+j])
			}
		}
	}
	return sum
}

// TestLoss: of any table, group and type of scales, codes are never worse than
// the nearest ones, both losses are what they say, and neither how rows are
// divided nor what was quantized before changes a byte.
func TestLoss(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		k := rapid.SampledFrom([]int{1, 5, 33, 64, 128, 150, 259}).Draw(r, "K")
		n := rapid.IntRange(1, 5).Draw(r, "N")
		group := rapid.SampledFrom([]int{32, 64, 128, 256, k}).Draw(r, "group")
		bits, name := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(r, "bits"), rapid.SampledFrom(lut.CodebookNames()).Draw(r, "codebook")
		if only := lut.OnlyBits(name); only != 0 {
			bits = only
		}
		cb := table(t, name, bits, group)
		scaleType := weight.ScaleType(rapid.IntRange(int(weight.F16), int(weight.S1E4M3)).Draw(r, "scale type"))
		if scaleType.Size() == 1 {
			cb = cb.Scaled(.5)
		}
		o := lut.Format{Codebook: cb, Group: group, ScaleType: scaleType, Scale: weight.ScaleMethod(rapid.IntRange(int(weight.Absmax), int(weight.MSE)).Draw(r, "scale"))}
		damp := rapid.SampledFrom([]float64{0, .01, 1}).Draw(r, "damp")

		tokens := 2*k + 10
		x := inputs(rng, tokens, k)
		h := gram(x, x, k)
		w := normal(rng, n*k)
		so := Options{Damp: damp}
		if group <= 128 && k%group == 0 && group%32 == 0 && rapid.Bool().Draw(r, "rescale") {
			so.Group = group
		}
		s := state(t, fixed{k: k, tokens: tokens, h: h}, so)
		if s.report != (Report{Damp: damp}) {
			r.Fatalf("prepared as %+v", s.report)
		}
		got, plain := quantize(t, s, o, w, k, n), toNearest(t, o, w, k)
		if so.Group == 0 && !bytes.Equal(got.m.Scales, plain.m.Scales) {
			r.Error("scales are not those of rounding to nearest")
		}
		for _, c := range []struct {
			name    string
			loss    float64
			squared float64
		}{
			{"chosen", first(got.sum()), output(got, w, h, damp)},
			{"nearest", second(got.sum()), output(plain, w, h, damp)},
		} {
			if want := c.squared / float64(tokens); math.Abs(c.loss-want) > 1e-4*want {
				r.Errorf("loss of the %s codes %v, want %v", c.name, c.loss, want)
			}
		}
		for i, e := range got.errs {
			if e.Loss > e.NearestLoss {
				r.Errorf("row %d: loss %v, of nearest %v", i, e.Loss, e.NearestLoss)
			}
		}
		// What rows put out, and are off by, knows no damping.
		zero := layer{m: &lut.Matrix{}}
		*zero.m = *got.m
		zero.m.Scales = make([]byte, len(got.m.Scales))
		for _, c := range []struct {
			name  string
			of    func(e rounding.RowError) float64
			layer layer
		}{
			{"output", func(e rounding.RowError) float64 { return e.Output }, zero},
			{"output's error", func(e rounding.RowError) float64 { return e.OutputSquared }, got},
		} {
			var sum float64
			for _, e := range got.errs {
				sum += c.of(e)
			}
			if want := output(c.layer, w, h, 0) / float64(tokens); math.Abs(sum-want) > 1e-4*output(c.layer, w, h, damp)/float64(tokens) {
				r.Errorf("the %s is %v, want %v", c.name, sum, want)
			}
		}
		for i, e := range got.errs {
			var squared float64
			row := make([]float32, k)
			got.m.Row(row, i)
			for j, v := range row {
				d := float64(w[i*k+j]) - float64(v)
				squared += d * d
			}
			if math.Abs(e.Squared-squared) > 1e-9*squared {
				r.Errorf("row %d: squared error %v, want %v", i, e.Squared, squared)
			}
		}
		if each := quantize(t, s, o, w, k, 1); !bytes.Equal(each.m.Codes, got.m.Codes) || !slices.Equal(each.errs, got.errs) {
			r.Error("one row at a time gives other codes")
		}
	})
}

func first(a, _ float64) float64  { return a }
func second(_, b float64) float64 { return b }

// TestRescale: scales that are chosen again are those fitted times one of some factors, as they are stored, and codes lose
// less with them. Those of a Rounder that chooses none again stay.
func TestRescale(t *testing.T) {
	const k, n, group = 256, 40, 64
	rng := rand.New(rand.NewPCG(3, 0))
	x := inputs(rng, 2*k, k)
	stats, w := fixed{k: k, tokens: 2 * k, h: gram(x, x, k)}, normal(rng, n*k)
	o := lut.Format{Codebook: table(t, "js", 3, group), Group: group, ScaleType: weight.F16, Scale: weight.MSE}
	plain := quantize(t, state(t, stats, Options{Damp: .1}), o, w, k, n)
	s := state(t, stats, Options{Damp: .1, Group: group})
	got := quantize(t, s, o, w, k, n)
	if loss, before := first(got.sum()), first(plain.sum()); loss > .95*before {
		t.Errorf("loss %v with scales chosen again, %v without", loss, before)
	}
	scales, begun := make([]float32, n*k/group), make([]float32, n*k/group)
	o.ScaleType.Decode(scales, got.m.Scales)
	o.ScaleType.Decode(begun, plain.m.Scales)
	changed := 0
	for i, v := range scales {
		stored := make([]byte, 2)
		if !slices.ContainsFunc(factors[:], func(by float32) bool {
			o.ScaleType.Encode(stored, []float32{by * begun[i]})
			return bytes.Equal(stored, got.m.Scales[2*i:2*i+2])
		}) {
			t.Errorf("scale %d is %v, of %v", i, v, begun[i])
		}
		if v != begun[i] {
			changed++
		}
	}
	if changed < len(scales)/4 {
		t.Errorf("%d of %d scales are others", changed, len(scales))
	}

	inner, err := rtn.NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.Quantizer(struct{ Rounder }{inner})
	if err != nil {
		t.Fatal(err)
	}
	parts := [][]byte{lut.ScalesPart: make([]byte, len(plain.m.Scales)), lut.CodesPart: make([]byte, len(plain.m.Codes))}
	if err := q.Rows(parts, make([]rounding.RowError, n), w); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(parts[lut.ScalesPart], plain.m.Scales) {
		t.Error("scales that stay are others")
	}
}

// TestRescaleBack: a row that goes back to the nearest codes goes back to the scales that these were found with.
func TestRescaleBack(t *testing.T) {
	const k, n, group = 32, 3000, 16
	rng := rand.New(rand.NewPCG(4, 0))
	x := inputs(rng, 2*k, k)
	w := normal(rng, n*k)
	o := lut.Format{Codebook: table(t, "nf", 4, group), Group: group, ScaleType: weight.F16, Scale: weight.MSE}
	got := quantize(t, state(t, fixed{k: k, tokens: 2 * k, h: gram(x, x, k)}, Options{Damp: 100, Group: group}), o, w, k, n)
	want := toNearest(t, o, w, k)
	back, size := 0, k/group*o.ScaleType.Size()
	for i, e := range got.errs {
		if e.Loss != e.NearestLoss {
			continue
		}
		back++
		if !bytes.Equal(got.m.Scales[i*size:(i+1)*size], want.m.Scales[i*size:(i+1)*size]) {
			t.Errorf("row %d has the codes of rounding to nearest, and other scales", i)
		}
	}
	if back == 0 {
		t.Error("no row went back")
	}
}

// TestManyRows crosses what goes through the columns together.
func TestManyRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0))
	const n, k = rowsAtOnce + 5, 140
	x := inputs(rng, 2*k, k)
	s := state(t, fixed{k: k, tokens: 2 * k, h: gram(x, x, k), d: gram(normalDrift(rng, x), x, k)}, Options{Damp: .01, Retarget: .5})
	o := lut.Format{Codebook: table(t, "js", 3, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F16}
	w := normal(rng, n*k)
	all, some := quantize(t, s, o, w, k, n), quantize(t, s, o, w, k, 7)
	if !bytes.Equal(all.m.Codes, some.m.Codes) || !bytes.Equal(all.m.Scales, some.m.Scales) || !slices.Equal(all.errs, some.errs) {
		t.Error("how rows are divided changes them")
	}
	w[(n-1)*k+3] = float32(math.NaN())
	err := quantizerOf(t, s, o).Rows([][]byte{lut.ScalesPart: all.m.Scales, lut.CodesPart: all.m.Codes}, all.errs, w)
	if want := "weight [132, 3] is NaN"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

func normalDrift(rng *rand.Rand, x []float64) []float64 {
	d := make([]float64, len(x))
	for i := range d {
		d[i] = .1 * rng.NormFloat64() * math.Abs(x[i])
	}
	return d
}

// TestPermutation: with one scale a row, the order of columns is no part of the
// result.
func TestPermutation(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0))
	const n, k = 6, 200
	x := inputs(rng, 3*k, k)
	h, w := gram(x, x, k), normal(rng, n*k)
	p := rng.Perm(k)
	hp, wp := make([]float32, k*k), make([]float32, n*k)
	for i, from := range p {
		for j, other := range p {
			hp[i*k+j] = h[from*k+other]
		}
		for r := range n {
			wp[r*k+i] = w[r*k+from]
		}
	}
	o := lut.Format{Codebook: table(t, "nf", 3, k), Group: k, Scale: weight.Absmax, ScaleType: weight.F16}
	plain := quantize(t, state(t, fixed{k: k, tokens: 3 * k, h: h}, Options{Damp: .01}), o, w, k, n).codes()
	permuted := quantize(t, state(t, fixed{k: k, tokens: 3 * k, h: hp}, Options{Damp: .01}), o, wp, k, n).codes()
	for i, from := range p {
		for r := range n {
			if permuted[r*k+i] != plain[r*k+from] {
				t.Fatalf("code [%d, %d] is %d, that of the permuted layer %d", r, from, plain[r*k+from], permuted[r*k+i])
			}
		}
	}
}

// TestNearest lists where codes are the nearest ones, and what the report says.
func TestNearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 0))
	const n, k, tokens = 4, 130, 300
	x := inputs(rng, tokens, k)
	full := gram(x, x, k)
	hessian := func(change func(h []float32)) []float32 {
		h := slices.Clone(full)
		change(h)
		return h
	}
	diagonal := func(h []float32) {
		for i := range h {
			if i/k != i%k {
				h[i] = 0
			}
		}
	}
	for _, c := range []struct {
		name   string
		tokens int
		h      []float32
		damp   float64
		want   Report
	}{
		{"few tokens", k - 1, full, .01, Report{Nearest: "129 tokens for 130 inputs"}},
		{"no inputs", tokens, make([]float32, k*k), .01, Report{Nearest: "all inputs are zero", Dead: k}},
		{"NaN", tokens, hessian(func(h []float32) { h[5*k+7] = float32(math.NaN()) }), .01, Report{Nearest: "the Hessian is not finite"}},
		{"infinite", tokens, hessian(func(h []float32) { h[3] = float32(math.Inf(-1)) }), .01, Report{Nearest: "the Hessian is not finite"}},
		{"diagonal", tokens, hessian(diagonal), .01, Report{Damp: .01}},
		{"identity", tokens, hessian(func(h []float32) {
			diagonal(h)
			for i := range k {
				h[i*k+i] = 1
			}
		}), 0, Report{}},
		{"damped beyond measure", tokens, full, 1e9, Report{Damp: 1e9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := state(t, fixed{k: k, tokens: c.tokens, h: c.h}, Options{Damp: c.damp})
			if s.Report() != c.want {
				t.Errorf("prepared as %+v, want %+v", s.Report(), c.want)
			}
			o := lut.Format{Codebook: table(t, "nf", 3, 64), Group: 64, Scale: weight.MSE, ScaleType: weight.F16}
			w := normal(rng, n*k)
			got, want := quantize(t, s, o, w, k, n), toNearest(t, o, w, k)
			if !bytes.Equal(got.m.Codes, want.m.Codes) || !bytes.Equal(got.m.Scales, want.m.Scales) {
				t.Error("codes or scales are not those of rounding to nearest")
			}
		})
	}
}

// TestSingular: a Hessian without full rank is damped until it can be factored,
// and inputs that are always zero keep the nearest codes.
func TestSingular(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 0))
	const n, k, tokens = 5, 70, 200
	x := inputs(rng, tokens, k)
	for i := range x {
		switch i % k {
		case 9:
			x[i] = x[i-1]
		case 20, 30:
			x[i] = 0
		}
	}
	h, w := gram(x, x, k), normal(rng, n*k)
	s := state(t, fixed{k: k, tokens: tokens, h: h}, Options{})
	if r := s.Report(); r.Raised == 0 || r.Damp == 0 || r.Dead != 2 || r.Nearest != "" {
		t.Errorf("prepared as %+v", r)
	}
	o := lut.Format{Codebook: table(t, "nf", 3, 64), Group: 64, Scale: weight.MSE, ScaleType: weight.F16}
	got, plain := quantize(t, s, o, w, k, n), toNearest(t, o, w, k)
	if chosen, nearest := got.sum(); !(chosen < .8*nearest) {
		t.Errorf("loss %v, of nearest %v: want less", chosen, nearest)
	}
	codes, want := got.codes(), plain.codes()
	for r := range n {
		for _, dead := range []int{20, 30} {
			if codes[r*k+dead] != want[r*k+dead] {
				t.Errorf("code [%d, %d] of an input that is always zero is not the nearest", r, dead)
			}
		}
	}
	negative := slices.Clone(h)
	for i := range k {
		negative[i*k+i] *= -1
	}
	if r := state(t, fixed{k: k, tokens: tokens, h: negative}, Options{Damp: .01}).Report(); r.Nearest == "" {
		t.Errorf("with a negative diagonal, prepared as %+v", r)
	}
}

// TestRetarget: undamped, W* is the layer whose outputs on x̂ come nearest to
// those of W on x: no change of a weight makes them nearer.
func TestRetarget(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 0))
	const k, tokens = 24, 200
	x := inputs(rng, tokens, k) // x̂
	drift := normalDrift(rng, x)
	s := state(t, fixed{k, tokens, gram(x, x, k), gram(drift, x, k)}, Options{Retarget: 1})
	o := lut.Format{Codebook: table(t, "nf", 3, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16}
	retargeted := func(s *State, w []float32) []float32 { return quantizerOf(t, s, o).(*quantizer).retargeted(w, 1) }
	w := normal(rng, k)
	mismatch := func(v []float32) (sum float64) {
		for at := 0; at < len(x); at += k {
			var y float64
			for i := range k {
				y += float64(w[i])*(x[at+i]+drift[at+i]) - float64(v[i])*x[at+i]
			}
			sum += y * y
		}
		return sum
	}
	target := retargeted(s, w)
	least := mismatch(target)
	if !(least < .9*mismatch(w)) {
		t.Errorf("mismatch %v, of the weights themselves %v: want less", least, mismatch(w))
	}
	for i := range k {
		for _, step := range []float32{-.01, .01} {
			moved := slices.Clone(target)
			moved[i] += step
			if got := mismatch(moved); got < least {
				t.Errorf("weight %d moved by %v: mismatch %v, below %v", i, step, got, least)
			}
		}
	}
	half := state(t, fixed{k, tokens, gram(x, x, k), gram(drift, x, k)}, Options{Retarget: .5})
	for i, v := range retargeted(half, w) {
		if want := (w[i] + target[i]) / 2; math.Abs(float64(v-want)) > 1e-5 {
			t.Errorf("half way, weight %d is %v, want %v", i, v, want)
		}
	}
	if _, err := NewState(fixed{k: k, tokens: tokens, h: gram(x, x, k)}, Options{Retarget: 1}); err == nil {
		t.Error("retargets without what the original reads")
	}
}

// TestZeros: a group of zeros has the code of zero, whatever errors reach it.
func TestZeros(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 0))
	const k = 96
	x := inputs(rng, 2*k, k)
	s := state(t, fixed{k: k, tokens: 2 * k, h: gram(x, x, k)}, Options{Damp: .01})
	w := normal(rng, k)
	clear(w[32:64])
	o := lut.Format{Codebook: table(t, "nf", 4, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F16}
	for i, c := range quantize(t, s, o, w, k, 1).codes()[32:64] {
		if c != 7 {
			t.Errorf("weight %d of a group of zeros has code %d, want 7", i, c)
		}
	}
}

// TestWeighScales: scales are those of a search that columns are weighted in.
func TestWeighScales(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 0))
	const n, k = 4, 96
	x := inputs(rng, 3*k, k)
	h, w := gram(x, x, k), normal(rng, n*k)
	s := state(t, fixed{k: k, tokens: 3 * k, h: h}, Options{Damp: .01, WeighScales: true})
	o := lut.Format{Codebook: table(t, "nf", 3, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F16}
	got := quantize(t, s, o, w, k, n)
	if bytes.Equal(got.m.Scales, toNearest(t, o, w, k).m.Scales) {
		t.Error("weights change no scale")
	}
	var mean float32
	for i := range k {
		mean += h[i*k+i] / k
	}
	var weights []float32
	for i := range k {
		weights = append(weights, h[i*k+i]/mean+.01)
	}
	q, err := rtn.NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	q.Weigh(weights)
	scales, codes := make([]byte, len(got.m.Scales)), make([]byte, len(got.m.Codes))
	if err := q.Rows([][]byte{lut.ScalesPart: scales, lut.CodesPart: codes}, make([]rounding.RowError, n), w); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.m.Scales, scales) {
		t.Error("scales are not those of a weighted search")
	}
}

// TestWide: weights near the ends of float32 neither fail nor lose to nearest.
func TestWide(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 0))
	const n, k = 3, 64
	x := inputs(rng, 2*k, k)
	s := state(t, fixed{k, 2 * k, gram(x, x, k), gram(normalDrift(rng, x), x, k)}, Options{Damp: .01, Retarget: 30})
	for _, size := range []float32{0, 1e-40, 1e-30, 1e30, 3e37, 1e38} {
		w := normal(rng, n*k)
		for i := range w {
			w[i] = size * min(max(w[i], -3), 3)
		}
		for i, e := range quantize(t, s, lut.Format{Codebook: table(t, "nf", 4, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F32}, w, k, n).errs {
			if e.Loss > e.NearestLoss || math.IsNaN(e.Loss) {
				t.Errorf("weights of %v, row %d: loss %v, of nearest %v", size, i, e.Loss, e.NearestLoss)
			}
		}
	}
}

// TestWrongParts: parts in another order are an error.
func TestWrongParts(t *testing.T) {
	const k = 64
	x := inputs(rand.New(rand.NewPCG(1, 1)), 2*k, k)
	s := state(t, fixed{k: k, tokens: 2 * k, h: gram(x, x, k)}, Options{Damp: .01})
	q := quantizerOf(t, s, lut.Format{Codebook: table(t, "nf", 4, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F16})
	scales, codes := make([]byte, 2*4), make([]byte, 2*32)
	if err := q.Rows([][]byte{nil, codes, scales}, make([]rounding.RowError, 2), make([]float32, 2*k)); err == nil {
		t.Error("codes where scales belong: no error")
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Damp: -1}, {Damp: math.NaN()}, {Retarget: math.Inf(1)}, {Retarget: -.1}, {Group: 8}, {Group: 48}, {Group: 256}, {Group: 64, Chunk: 4}, {Group: 64, Block: 16}, {Group: 64}} {
		if _, err := NewState(fixed{k: 1, tokens: 1, h: []float32{1}}, o); err == nil {
			t.Errorf("options %+v are taken", o)
		}
	}
}

func BenchmarkState(b *testing.B) {
	for _, k := range []int{576, 1536, 4096} {
		rng := rand.New(rand.NewPCG(1, 0))
		h := make([]float32, k*k)
		for i := range k {
			for j := range i {
				h[i*k+j] = float32(rng.NormFloat64())
				h[j*k+i] = h[i*k+j]
			}
			h[i*k+i] = float32(4 * k)
		}
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			for b.Loop() {
				state(b, fixed{k: k, tokens: k, h: h}, Options{Damp: .01})
			}
		})
	}
}

func BenchmarkRows(b *testing.B) {
	for _, shape := range [][2]int{{576, 576}, {1536, 576}, {576, 1536}, {4096, 4096}} {
		n, k := shape[0], shape[1]
		rng := rand.New(rand.NewPCG(1, 0))
		h := make([]float32, k*k)
		for i := range k {
			for j := range i {
				h[i*k+j] = float32(rng.NormFloat64())
				h[j*k+i] = h[i*k+j]
			}
			h[i*k+i] = float32(4 * k)
		}
		s := state(b, fixed{k: k, tokens: k, h: h}, Options{Damp: .01})
		w := normal(rng, n*k)
		for _, scale := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
			b.Run(fmt.Sprintf("%dx%d/%v", n, k, scale), func(b *testing.B) {
				o := lut.Format{Codebook: table(b, "nf", 3, 64), Group: 64, Scale: scale, ScaleType: weight.F16}
				for b.Loop() {
					quantize(b, s, o, w, k, n)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n*k), "ns/weight")
			})
		}
	}
}
