package fp8

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestFold has the error of normal weights in groups of 64 with NF4's table: less than what rounding to three bits of mantissa makes
// wherever numbers lie in an octave, 2.6 %, and more than what the table alone loses.
func TestFold(t *testing.T) {
	nf4 := []float32{
		-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
		0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
	}
	f := NewFolder(nf4)
	share := shares(nf4, 1)
	rng := rand.New(rand.NewPCG(5, 6))
	var e, first, all float64
	values, plain := make([]float32, 16), make([]float32, 16)
	for range 500 {
		groups := make([]float32, 64)
		for g := range groups { // the largest magnitude of 64 normal weights, about
			groups[g] = float32(2.5 + .4*rng.NormFloat64())
		}
		scale := f.Scale(groups)
		var most float32
		for _, s := range groups {
			most = max(most, s)
		}
		for _, s := range groups {
			FoldTable(values, nf4, s, scale)
			FoldTable(plain, nf4, s, most/f.factor)
			for c, v := range nf4 {
				w := float64(s) * float64(v)
				e += share[c] * math.Pow(float64(values[c])-w, 2)
				first += share[c] * math.Pow(float64(plain[c])-w, 2)
				all += share[c] * w * w
			}
		}
	}
	got, other := math.Sqrt(e/all), math.Sqrt(first/all)
	t.Logf("relative error %.4f, by the largest scale alone %.4f", got, other)
	if !(got > .015 && got < .026 && got < other) {
		t.Errorf("relative error %v, by the largest scale alone %v", got, other)
	}
}

// TestFoldExact: tables that E4M3 has with some factor are exact in groups whose scales are powers of two apart, whatever the row's.
func TestFoldExact(t *testing.T) {
	for _, codebook := range [][]float32{
		{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, // int4
		{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6},
		RoundTable([]float32{-1, -.7, -.5, -.3, 0, .2, .6, 1}),
	} {
		f := NewFolder(codebook)
		rapid.Check(t, func(t *rapid.T) {
			unit := rapid.Float32Range(1e-6, 1e3).Draw(t, "unit")
			groups := make([]float32, rapid.IntRange(1, 40).Draw(t, "groups"))
			for g := range groups {
				groups[g] = float32(math.Ldexp(float64(unit), -rapid.IntRange(0, 5).Draw(t, "power")))
			}
			scale := f.Scale(groups)
			values := make([]float32, len(codebook))
			for _, s := range groups {
				FoldTable(values, codebook, s, scale)
				for c, v := range codebook {
					if want := s * v; math.Abs(float64(values[c]-want)) > 4e-7*math.Abs(float64(want)) {
						t.Fatalf("%v of %v with scale %v becomes %v, want %v", v, codebook, s, values[c], want)
					}
				}
			}
		})
	}
}

// TestFoldBounds: a weight is off by a sixteenth of itself at most, or by half of the smallest step there is, and what is not finite
// shows.
func TestFoldBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		codebook := rapid.SliceOfN(rapid.Float32Range(-1, 1), 4, 32).Draw(t, "codebook")
		groups := rapid.SliceOfN(rapid.Float32Range(-1e3, 1e3), 1, 40).Draw(t, "groups")
		f := NewFolder(codebook)
		scale := f.Scale(groups)
		values := make([]float32, len(codebook))
		for _, s := range groups {
			FoldTable(values, codebook, s, scale)
			for c, v := range codebook {
				w := float64(s) * float64(v)
				if e := math.Abs(float64(values[c]) - w); !(e <= math.Abs(w)/16*1.0001+float64(scale)*0x1p-10) {
					t.Fatalf("%v of a group with scale %v becomes %v, the row's scale is %v", w, s, values[c], scale)
				}
			}
		}
	})
	f := NewFolder([]float32{-1, 0, .5, 1})
	for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
		if s := f.Scale([]float32{1, float32(bad), 2}); s == s {
			t.Errorf("%v: a row has the scale %v", bad, s)
		}
	}
	if s := f.Scale([]float32{0, 0}); !(s > 0 && 1/s <= math.MaxFloat32) {
		t.Errorf("a row of zeros has the scale %v", s)
	}
}
