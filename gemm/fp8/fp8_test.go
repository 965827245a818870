package fp8

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestRoundRow has the relative error of normal and of log-normal activations, which rounding to three bits of mantissa
// makes whatever their distribution: 2^-4/√3 of a number at the begin of an octave, half of that at its end.
func TestRoundRow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, 1<<16), make([]float32, 1<<16)
	for _, name := range []string{"normal", "log-normal"} {
		for i := range x {
			v := rng.NormFloat64()
			if name == "log-normal" {
				v = math.Exp(v) * float64(1-2*(i%2))
			}
			x[i] = float32(v)
		}
		RoundRow(y, x)
		var e, all float64
		for i, v := range x {
			e += math.Pow(float64(y[i]-v), 2)
			all += math.Pow(float64(v), 2)
		}
		if rms := math.Sqrt(e / all); !(rms > .02 && rms < .03) {
			t.Errorf("%s: relative error %v", name, rms)
		}
	}
}

// TestRows: the largest keeps its value but for a rounding, rounding again changes nothing, and what is not finite shows.
func TestRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float32Range(-1e30, 1e30), 1, 40).Draw(t, "x")
		y, again := make([]float32, len(x)), make([]float32, len(x))
		RoundRow(y, x)
		RoundRow(again, y)
		var most float64
		for _, v := range x {
			most = max(most, math.Abs(float64(v)))
		}
		for i, v := range x {
			if e := math.Abs(float64(y[i] - v)); !(e <= math.Abs(float64(v))/16*1.0001+most/448*0x1p-9) && most > 0x1p-90 {
				t.Fatalf("%v becomes %v", v, y[i])
			}
			if e := math.Abs(float64(again[i] - y[i])); !(e <= 1e-6*math.Abs(float64(y[i]))) {
				t.Fatalf("%v becomes %v the second time", y[i], again[i])
			}
		}
	})
	for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
		y := make([]float32, 3)
		RoundRow(y, []float32{1, float32(bad), 2})
		for _, v := range y {
			if v == v {
				t.Errorf("%v: a row becomes %v", bad, y)
			}
		}
	}
}

// TestTable: tables that E4M3 has with some factor stay as they are, NF4 loses next to nothing of what it has of normal
// weights, and any table 2^-4 of a value at most.
func TestTable(t *testing.T) {
	for _, exact := range [][]float32{
		{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, // int4
		{0, .5, 1, 1.5, 2, 3, 4, 6},                              // e2m1
		{-1. / 3, 0, 1. / 3, 2. / 3}, {0, 0, 0, 0}, {0x1p-100, -0x1p-100, 0x1.8p-100, 0},
	} {
		for i, v := range RoundTable(exact) {
			if math.Abs(float64(v-exact[i])) > 2e-7*math.Abs(float64(exact[i])) {
				t.Errorf("%v of %v becomes %v", exact[i], exact, v)
			}
		}
	}
	// Dettmers et al., "QLoRA", appendix E.
	nf4 := []float32{
		-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
		0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
	}
	rng := rand.New(rand.NewPCG(3, 4))
	rounded := RoundTable(nf4)
	var before, after float64
	for range 2000 {
		group, most := make([]float64, 64), 0.0
		for i := range group {
			group[i] = rng.NormFloat64()
			most = max(most, math.Abs(group[i]))
		}
		for _, v := range group {
			best := 0
			for c := range nf4 {
				if math.Abs(v/most-float64(nf4[c])) < math.Abs(v/most-float64(nf4[best])) {
					best = c
				}
			}
			before += math.Pow(v-most*float64(nf4[best]), 2)
			after += math.Pow(v-most*float64(rounded[best]), 2)
		}
	}
	t.Logf("NF4: squared error %+.2f %%", 100*(after/before-1))
	if !(after < 1.01*before) {
		t.Errorf("squared error of normal weights %v, with NF4 itself %v", after, before)
	}
	rapid.Check(t, func(t *rapid.T) {
		table := rapid.SliceOfN(rapid.Float32Range(-1, 1), 4, 32).Draw(t, "table")
		var most float64
		for _, v := range table {
			most = max(most, math.Abs(float64(v)))
		}
		for i, v := range RoundTable(table) {
			if e := math.Abs(float64(v - table[i])); !(e <= math.Abs(float64(table[i]))/15+most*0x1p-15) {
				t.Fatalf("%v of %v becomes %v", table[i], fmt.Sprint(table), v)
			}
		}
	})
}
