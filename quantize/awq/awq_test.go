package awq_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/quantize/awq"
)

// uneven is a state of k components, every eighth about 20 times as large as the others, by n tokens: its second moments.
func uneven(k, n int) []float32 {
	r := rand.New(rand.NewPCG(3, 4))
	h := make([]float32, k*k)
	x := make([]float64, k)
	for range n {
		for i := range x {
			if x[i] = r.NormFloat64(); i%8 == 0 {
				x[i] *= 20
			}
		}
		for i := range x {
			for j := range x {
				h[i*k+j] += float32(x[i] * x[j])
			}
		}
	}
	return h
}

func weights(rows, k int) []float32 {
	r := rand.New(rand.NewPCG(5, 6))
	w := make([]float32, rows*k)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	return w
}

// steps rounds to multiples of an eighth of the largest of each row of k.
func steps(k int) func(w []float32) error {
	return func(w []float32) error {
		for row := range slices.Chunk(w, k) {
			var top float64
			for _, v := range row {
				top = max(top, math.Abs(float64(v)))
			}
			for i, v := range row {
				row[i] = float32(math.Round(float64(v)/top*8) * top / 8)
			}
		}
		return nil
	}
}

// lossOf is the squared error of what a layer of rows puts out, in plain loops.
func lossOf(w, f, h []float32, tokens int, round func(w []float32) error) float64 {
	k := len(f)
	stored := make([]float32, len(w))
	for i, v := range w {
		stored[i] = v * f[i%k]
	}
	if err := round(stored); err != nil {
		panic(err)
	}
	sum := 0.
	for r := 0; r < len(w); r += k {
		for i := range k {
			for j := range k {
				a := float64(w[r+i]) - float64(stored[r+i])/float64(f[i])
				b := float64(w[r+j]) - float64(stored[r+j])/float64(f[j])
				sum += a * b * float64(h[i*k+j])
			}
		}
	}
	return sum / float64(tokens)
}

// TestSearch: factors grow with inputs as their α says, and leave the least error of all α, which is what loops over the same
// weights find.
func TestSearch(t *testing.T) {
	const k, n, rows = 32, 4000, 24
	h, w := uneven(k, n), weights(rows, k)
	found, err := awq.Search(t.Context(), []awq.Layer{{Weights: w, Share: 3, Round: []func([]float32) error{steps(k)}}}, h, n, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	var losses []float64
	for i := range awq.Steps {
		f := make([]float32, k)
		least, most := math.Inf(1), 0.
		for j := range f {
			v := math.Pow(float64(h[j*(k+1)])/n, float64(i)/awq.Steps/2)
			f[j], least, most = float32(v), min(least, v), max(most, v)
		}
		for j := range f {
			f[j] /= float32(math.Sqrt(least * most))
		}
		losses = append(losses, 3*lossOf(w, f, h, n, steps(k)))
		if math.Abs(found.Alpha-float64(i)/awq.Steps) < 1e-9 {
			for j, v := range f {
				if math.Abs(float64(found.Factors[j]/v)-1) > 1e-5 {
					t.Errorf("factor %d is %v: want %v", j, found.Factors[j], v)
				}
			}
		}
	}
	if least := slices.Min(losses); math.Abs(found.Loss/least-1) > 1e-3 || math.Abs(found.Plain/losses[0]-1) > 1e-3 {
		t.Errorf("losses are %v and %v: want %v and %v", found.Loss, found.Plain, least, losses[0])
	}
	if !(found.Loss < 0.8*found.Plain) || found.Alpha == 0 {
		t.Errorf("α %v gains nothing: %v of %v", found.Alpha, found.Loss, found.Plain)
	}
}

// TestTables: layers take the table that they err least with together, and one whose table is known has that.
func TestTables(t *testing.T) {
	const k, n = 16, 500
	h, w := uneven(k, n), weights(4, k)
	by := func(factor float32) func(w []float32) error { // what is stored is off by a part
		return func(w []float32) error {
			for i := range w {
				w[i] *= 1 - factor
			}
			return nil
		}
	}
	loss := func(layers ...awq.Layer) float64 {
		found, err := awq.Search(t.Context(), layers, h, n, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return found.Plain
	}
	layer := func(round ...func([]float32) error) awq.Layer { return awq.Layer{Weights: w, Share: 1, Round: round} }
	unit := loss(layer(by(1)))
	for _, tc := range []struct {
		name   string
		layers []awq.Layer
		want   float64
	}{
		{"one of two", []awq.Layer{layer(by(0.2), by(0.1))}, 0.01},
		{"together", []awq.Layer{layer(by(0.2), by(0.1)), layer(by(0.1), by(0.4))}, 0.05},
		{"beside one that is known", []awq.Layer{layer(by(0.2), by(0.1)), layer(by(0.3))}, 0.10},
	} {
		if got := loss(tc.layers...) / unit; math.Abs(got-tc.want) > 1e-4 {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestNothingToGain: weights that rounding leaves as they are get no factors, and components that are always zero none of their own.
func TestNothingToGain(t *testing.T) {
	const k, n = 8, 100
	h := uneven(k, n)
	exact := func([]float32) error { return nil }
	ones := make([]float32, 2*k)
	for i := range ones {
		ones[i] = 1
	}
	found, err := awq.Search(t.Context(), []awq.Layer{{Weights: make([]float32, 2*k), Share: 1, Round: []func([]float32) error{exact}}}, h, n, 2, nil)
	if err != nil || found.Alpha != 0 || !slices.Equal(found.Factors, ones[:k]) {
		t.Errorf("%+v, %v", found, err)
	}
	for i := range k {
		h[3*k+i], h[i*k+3] = 0, 0
	}
	tied := 0
	found, err = awq.Search(t.Context(), []awq.Layer{{Weights: weights(9, k), Share: 1, Round: []func([]float32) error{steps(k)}}}, h, n, 1, func(f []float32) {
		if tied++; f[3] != 1 {
			t.Errorf("a component of zeros has the factor %v", f[3])
		}
	})
	if err != nil || found.Alpha == 0 || tied != awq.Steps {
		t.Errorf("%+v, %v, tied %d times", found, err, tied)
	}
}

// TestErrors: what cannot be searched is an error.
func TestErrors(t *testing.T) {
	stop := errors.New("stop")
	fails := awq.Layer{Weights: weights(1, 4), Share: 1, Round: []func([]float32) error{func([]float32) error { return stop }}}
	if _, err := awq.Search(t.Context(), []awq.Layer{fails}, uneven(4, 9), 9, 1, nil); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	if _, err := awq.Search(t.Context(), nil, uneven(4, 9), 9, 1, nil); err == nil {
		t.Error("no layers are no error")
	}
}
