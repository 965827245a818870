package gguf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
)

func searchedTypes() []Type { return []Type{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS} }

// TestPackBlocks holds any block, packed and decoded, to its values bit for bit.
func TestPackBlocks(t *testing.T) {
	for _, typ := range searchedTypes() {
		t.Run(typ.String(), rapid.MakeCheck(func(t *rapid.T) {
			k := searchedOf(typ)
			var b kBlock
			b.d = num.F32ToF16(rapid.Float32Range(-10, 10).Draw(t, "d"))
			for p := range super / k.size {
				b.scales[p] = rapid.IntRange(k.scales[0], k.scales[1]).Draw(t, "scale")
				b.mins[p] = rapid.IntRange(0, k.mins).Draw(t, "min")
			}
			if k.mins > 0 {
				b.dmin = num.F32ToF16(rapid.Float32Range(-10, 10).Draw(t, "dmin"))
			}
			for i, c := range rapid.SliceOfN(rapid.IntRange(0, k.codes-1), super, super).Draw(t, "codes") {
				b.codes[i] = uint8(c)
			}
			_, size := typ.Block()
			packed, got := make([]byte, size), make([]float32, super)
			b.pack(typ, packed)
			typ.Decode(got, packed)
			for i, want := range b.values(k) {
				if math.Float32bits(got[i]) != math.Float32bits(want) {
					t.Fatalf("value %d is %v: want %v", i, got[i], want)
				}
			}
		}))
	}
}

// relativeError returns ‖W-Ŵ‖/‖W‖, weighted.
func relativeError(t testing.TB, typ Type, w, importance, judge []float32) float64 {
	t.Helper()
	n, size := typ.Block()
	packed, got := make([]byte, len(w)/n*size), make([]float32, len(w))
	if err := NewEncoder(typ).Encode(packed, w, importance); err != nil {
		t.Fatal(err)
	}
	typ.Decode(got, packed)
	var e, x float64
	for i, v := range w {
		f := 1.0
		if judge != nil {
			f = float64(judge[i])
		}
		e += f * float64(v-got[i]) * float64(v-got[i])
		x += f * float64(v) * float64(v)
	}
	return math.Sqrt(e / x)
}

func normal(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 20))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	return w
}

// TestEncodeErrors holds the error on normal weights to that of ggml's own quantizer on the same, by
// scripts/gguf_kquants.py with libggml-base of node-llama-cpp 3.22.1. It must not be exceeded.
func TestEncodeErrors(t *testing.T) {
	w := normal(1, 64*super)
	for typ, ggml := range map[Type]float64{Q2_K: 0.298220, Q3_K: 0.151972, Q4_K: 0.071238, Q5_K: 0.036233, Q6_K: 0.017770, IQ4_XS: 0.076593} {
		got := relativeError(t, typ, w, nil, nil)
		t.Logf("%s: %.4f %%, ggml %.4f %%", typ, 100*got, 100*ggml)
		if got > ggml {
			t.Errorf("%s: relative error %.5f: ggml has %.5f", typ, got, ggml)
		}
	}
}

// TestEncodeImportance shows that importance lowers the error that it weighs.
func TestEncodeImportance(t *testing.T) {
	w := normal(2, 16*super)
	imp := make([]float32, len(w))
	r := rand.New(rand.NewPCG(3, 20))
	for i := range imp {
		imp[i] = float32(math.Exp(3 * r.NormFloat64()))
	}
	for _, typ := range searchedTypes() {
		with, without := relativeError(t, typ, w, imp, imp), relativeError(t, typ, w, nil, imp)
		if with > 0.9*without {
			t.Errorf("%s: weighted error %.5f with importance, %.5f without", typ, with, without)
		}
	}
}

// TestEncodeEdges encodes what is rare.
func TestEncodeEdges(t *testing.T) {
	constant := func(v float32) []float32 { return slices.Repeat([]float32{v}, super) }
	one := make([]float32, super)
	one[100] = -3
	tests := map[string][]float32{
		"zeros": make([]float32, super), "one": one, "positive": constant(2.5), "negative": constant(-2.5), "tiny": constant(1e-7), "large": constant(5e4),
	}
	for _, typ := range searchedTypes() {
		for name, w := range tests {
			_, size := typ.Block()
			packed, got := make([]byte, size), make([]float32, super)
			if err := NewEncoder(typ).Encode(packed, w, nil); err != nil {
				t.Errorf("%s %s: %v", typ, name, err)
				continue
			}
			typ.Decode(got, packed)
			top := float64(max(slices.Max(w), -slices.Min(w)))
			for i, v := range w {
				// A d of F16 has steps of 2^-24.
				if !(math.Abs(float64(got[i]-v)) <= 0.02*top+0x1p-19) {
					t.Errorf("%s %s: weight %d, %v, is %v", typ, name, i, v, got[i])
					break
				}
			}
		}
		for name, v := range map[string]float32{"NaN": float32(math.NaN()), "infinity": float32(math.Inf(1)), "beyond": 3e38} {
			w := constant(1)
			w[7] = v
			if err := NewEncoder(typ).Encode(make([]byte, 256), w, nil); err == nil {
				t.Errorf("%s: %s was encoded", typ, name)
			}
		}
	}
}

func TestFallbackOf(t *testing.T) {
	for _, tt := range []struct {
		t    Type
		k    int
		want Type
	}{{Q4_K, 512, Q4_K}, {Q4_K, 576, Q5_0}, {Q5_K, 576, Q5_1}, {Q6_K, 576, Q8_0}, {Q2_K, 576, IQ4_NL}, {Q3_K, 576, IQ4_NL}, {IQ4_XS, 576, IQ4_NL}, {Q4_K, 100, F16}, {Q8_0, 64, Q8_0}} {
		if got, err := FallbackOf(tt.t, tt.k); err != nil || got != tt.want {
			t.Errorf("%s with rows of %d: %s, %v, want %s", tt.t, tt.k, got, err, tt.want)
		}
	}
	if got, err := FallbackOf(Q8_0, 100); err == nil {
		t.Errorf("q8_0 with rows of 100 is %s", got)
	}
}

func BenchmarkEncode(b *testing.B) {
	w := normal(1, 16*super)
	for _, typ := range searchedTypes() {
		b.Run(typ.String(), func(b *testing.B) {
			_, size := typ.Block()
			packed, e := make([]byte, 16*size), NewEncoder(typ)
			b.SetBytes(int64(len(w)))
			for b.Loop() {
				if err := e.Encode(packed, w, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
