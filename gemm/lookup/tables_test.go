package lookup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/ref"
)

// steps returns a random matrix whose table has equal steps.
func steps(rng *rand.Rand, n, k, bits, group int) *lut.Matrix {
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: group, ScaleType: weight.F16}
	m.Codes = make([]byte, n*m.RowBytes())
	codes := make([]uint8, k)
	for i := range n {
		for j := range codes {
			codes[j] = uint8(rng.IntN(1 << bits))
		}
		lut.PackCodes(m.Codes[i*m.RowBytes():(i+1)*m.RowBytes()], codes, bits)
	}
	scales := make([]float32, n*m.Groups())
	for i := range scales {
		scales[i] = .5 + rng.Float32()
	}
	m.Scales = make([]byte, 2*len(scales))
	m.ScaleType.Encode(m.Scales, scales)
	for c := range 1 << bits {
		m.Codebook = append(m.Codebook, float32(c-1<<(bits-1)))
	}
	return m
}

func product(t fataler, p Precision, m weight.Matrix, x []float32) []float32 {
	t.Helper()
	w, err := NewWeights(m)
	if err != nil {
		t.Fatal(err)
	}
	n, k := m.Shape()
	rows := len(x) / k
	tables := NewTables(p, rows, k)
	var y []float32
	for i := range rows {
		tables.Fill(i, x[i*k:(i+1)*k])
		for j := range n {
			y = append(y, w.Dot(tables, i, j))
		}
	}
	return y
}

// TestProduct: without rounding of tables products are those of the weights, for any shape.
func TestProduct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		k := rapid.IntRange(1, 90).Draw(t, "k")
		group := min(rapid.SampledFrom([]int{4, 12, 32, 1000}).Draw(t, "group"), k)
		m := steps(rng, rapid.IntRange(1, 5).Draw(t, "n"), k, rapid.IntRange(2, 5).Draw(t, "bits"), group)
		x := make([]float32, rapid.IntRange(1, 3).Draw(t, "rows")*k)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		want := ref.LUT(x, m, len(x)/k)
		// Against what is added up: few columns may leave next to nothing of it.
		size := make([]float32, len(x))
		w := m.Dequantize()
		for i, v := range x {
			size[i] = float32(math.Abs(float64(v)))
		}
		for i, v := range w {
			w[i] = float32(math.Abs(float64(v))) + 1
		}
		sizes := ref.MatMul(size, w, len(x)/k, m.N, k)
		for i, v := range product(t, Precision{}, m, x) {
			if d := math.Abs(float64(v) - want[i]); !(d <= 2e-6*sizes[i]) {
				t.Errorf("product %d is %v, want %v within %v", i, v, want[i], 2e-6*sizes[i])
			}
		}
	})
}

// fataler is what tests of both kinds have.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// TestErrors has the relative errors of normal activations over 4096 columns, which were found by a Monte Carlo
// of the same definition written apart from this.
func TestErrors(t *testing.T) {
	const k = 4096
	rng := rand.New(rand.NewPCG(1, 2))
	m := steps(rng, 256, k, 4, 128)
	x := make([]float32, 16*k)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	want := ref.LUT(x, m, 16)
	for shared, percent := range map[int]float64{1: .39, 8: .57, 16: .66, k / Columns: .91} {
		t.Run(fmt.Sprintf("int8:%d", shared), func(t *testing.T) {
			got := 100 * ref.RelErr(product(t, Precision{Shared: shared}, m, x), want)
			t.Logf("%.3f %%", got)
			if !(math.Abs(got/percent-1) <= .15) {
				t.Errorf("relative error %.3f %%, want %.2f %%", got, percent)
			}
		})
	}
	if got := ref.RelErr(product(t, Precision{F16: true}, m, x), want); !(got < 5e-4) {
		t.Errorf("relative error of float16 %v", got)
	}
}

// TestExtremes: rows of zeros, of large and of small numbers keep their size, and what is not finite stays so.
func TestExtremes(t *testing.T) {
	m := steps(rand.New(rand.NewPCG(1, 3)), 8, 64, 3, 32)
	for name, scale := range map[string]float32{"zeros": 0, "large": 1e5, "small": 1e-3} {
		x := make([]float32, 64)
		for i := range x {
			x[i] = scale * float32(i%7-3)
		}
		want := ref.LUT(x, m, 1)
		for _, p := range []Precision{{}, {F16: true}, {Shared: 1}, {Shared: 16}} {
			if got := ref.RelErr(product(t, p, m, x), want); !(got < .05) {
				t.Errorf("%s, %v: relative error %v", name, p, got)
			}
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		x := make([]float32, 64)
		x[5] = float32(bad)
		for _, p := range []Precision{{}, {F16: true}, {Shared: 16}} {
			for i, y := range product(t, p, m, x) {
				if v := float64(y); !math.IsNaN(v) && !math.IsInf(v, 0) {
					t.Errorf("%v, %v: product %d is %v", bad, p, i, y)
				}
			}
		}
	}
}

func TestRefused(t *testing.T) {
	m := steps(rand.New(rand.NewPCG(1, 4)), 2, 64, 4, 32)
	m.Codebook[3] += .1
	if _, err := NewWeights(m); err == nil || !strings.Contains(err.Error(), "other values of 4 bits 15 planes") {
		t.Errorf("a table of unequal steps: error %v", err)
	}
	m = steps(rand.New(rand.NewPCG(1, 4)), 2, 64, 4, 30)
	if _, err := NewWeights(m); err == nil || !strings.Contains(err.Error(), "groups of 30 columns") {
		t.Errorf("groups of 30: error %v", err)
	}
}

func FuzzParsePrecision(f *testing.F) {
	for _, s := range []string{"fp16", "int8:1", "int8:16", "int8:", "int8:01", "int8:-1", "none", "int8:1048577"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePrecision(s)
		if err == nil && p.String() != s {
			t.Errorf("%q is read as %v", s, p)
		}
		if err == nil && !p.F16 && (p.Shared < 1 || p.Shared > maxShared) {
			t.Errorf("%q is read as %d tables", s, p.Shared)
		}
	})
}

func BenchmarkDot(b *testing.B) {
	const k = 4096
	rng := rand.New(rand.NewPCG(1, 6))
	w, err := NewWeights(steps(rng, 64, k, 4, 128))
	if err != nil {
		b.Fatal(err)
	}
	x := make([]float32, k)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for _, p := range []Precision{{}, {Shared: 1}, {Shared: 16}} {
		b.Run(p.String(), func(b *testing.B) {
			t := NewTables(p, 1, k)
			t.Fill(0, x)
			for b.Loop() {
				for n := range 64 {
					w.Dot(t, 0, n)
				}
			}
			b.ReportMetric(float64(64*k*b.N)/float64(b.Elapsed().Nanoseconds()), "weights/ns")
		})
	}
}

// TestScale: the step is the least float16 that brings the largest entry to 127 or less.
func TestScale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.Float32Range(1e-4, 1e6).Draw(t, "most")
		s := scaleOf([]float32{-most, most / 3})
		below := num.F16ToF32(num.F32ToF16(s) - 1)
		if want := float64(most) / 127; float64(s) < want || float64(below) >= want {
			t.Errorf("a largest entry of %v has the step %v, and %v is below that", most, s, below)
		}
	})
}
