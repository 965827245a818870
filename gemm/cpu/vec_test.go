package cpu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/racetest"
)

// lengths covers whole registers, rests and the chunks of the sums.
func lengths() []int {
	ns := []int{0, 127, 128, 576, 1023, 1024, 1025, 2048, 3001}
	for n := 1; n <= 70; n++ {
		ns = append(ns, n)
	}
	return ns
}

// TestVectors runs every vector function on every instruction set, compares
// the bits with those of the first and the values with float64.
func TestVectors(t *testing.T) {
	racetest.Skip(t)
	es := engines(t)
	near := func(got, want, scale float64) bool { return math.Abs(got-want) <= 1e-6*scale }
	for _, test := range []struct {
		name string
		run  func(e *Engine, dst, x, y []float32) float64
		want func(x, y float64) float64                // of an element, if not nil
		sum  func(x, y []float32) (want, size float64) // of the result, if not nil
	}{
		{
			name: "ExpSum",
			run:  func(e *Engine, dst, x, _ []float32) float64 { return e.ExpSum(dst, x, 1.5) },
			want: func(x, _ float64) float64 { return math.Exp(x - 1.5) },
			sum: func(x, _ []float32) (s, size float64) {
				for _, v := range x {
					s += math.Exp(float64(v) - 1.5)
				}
				return s, s
			},
		},
		{
			name: "SumExp",
			run:  func(e *Engine, _, x, _ []float32) float64 { return e.SumExp(x, 1.5) },
			sum: func(x, _ []float32) (s, size float64) {
				for _, v := range x {
					s += math.Exp(float64(v) - 1.5)
				}
				return s, s
			},
		},
		{
			name: "Max",
			run:  func(e *Engine, _, x, _ []float32) float64 { return float64(e.Max(x)) },
			sum: func(x, _ []float32) (m, size float64) {
				m = math.Inf(-1)
				for _, v := range x {
					m = math.Max(m, float64(v))
				}
				return m, 0
			},
		},
		{
			name: "SiLUMul",
			run:  func(e *Engine, dst, x, y []float32) float64 { e.SiLUMul(dst, x, y); return 0 },
			want: func(x, y float64) float64 { return x / (1 + math.Exp(-x)) * y },
		},
		{
			name: "Dot",
			run:  func(e *Engine, _, x, y []float32) float64 { return e.Dot(x, y) },
			sum: func(x, y []float32) (s, size float64) {
				for i, v := range x {
					s += float64(v) * float64(y[i])
					size += math.Abs(float64(v) * float64(y[i]))
				}
				return s, size
			},
		},
		{
			name: "Axpy",
			run:  func(e *Engine, dst, x, y []float32) float64 { copy(dst, y); e.Axpy(-0.7, x, dst); return 0 },
			want: func(x, y float64) float64 { return y + float64(float32(-0.7))*x },
		},
		{
			name: "Scale",
			run:  func(e *Engine, dst, x, _ []float32) float64 { e.Scale(dst, x, -0.7); return 0 },
			want: func(x, _ float64) float64 { return float64(float32(-0.7)) * x },
		},
		{
			name: "Add",
			run:  func(e *Engine, dst, x, y []float32) float64 { e.Add(dst, x, y); return 0 },
			want: func(x, y float64) float64 { return x + y },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for _, n := range lengths() {
				x, y := normal(r, n), normal(r, n)
				for i := range x {
					x[i] *= 5
				}
				var first []float32
				var firstSum float64
				for i, e := range es {
					dst := poisoned(n + 1)
					sum := test.run(e, dst[:n], x, y)
					if dst[n] == dst[n] {
						t.Fatalf("%s, %d elements: wrote past the end", e.label(), n)
					}
					dst = dst[:n]
					if i == 0 {
						first, firstSum = dst, sum
					}
					if sum != firstSum {
						t.Fatalf("%s, %d elements: got %g, want %g as elsewhere", e.label(), n, sum, firstSum)
					}
					if test.sum != nil {
						if want, size := test.sum(x, y); sum != want && !near(sum, want, size) {
							t.Fatalf("%s, %d elements: got %g, want %g", e.label(), n, sum, want)
						}
					}
					if test.want == nil {
						continue
					}
					if j := diff(dst, first); j >= 0 {
						t.Fatalf("%s, %d elements: element %d: got %g, want %g as elsewhere", e.label(), n, j, dst[j], first[j])
					}
					for j, got := range dst {
						want := test.want(float64(x[j]), float64(y[j]))
						if !near(float64(got), want, math.Abs(want)+math.Abs(float64(y[j]))*1e-3) {
							t.Fatalf("%s, %d elements: element %d: got %g, want %g", e.label(), n, j, got, want)
						}
					}
				}
			}
		})
	}
}

func TestRMSNorm(t *testing.T) {
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range lengths()[1:] {
		x, w := normal(r, n), normal(r, n)
		var square float64
		for _, v := range x {
			square += float64(v) * float64(v)
		}
		s := 1 / math.Sqrt(square/float64(n)+1e-5)
		var first []float32
		for _, e := range es {
			dst := poisoned(n)
			e.RMSNorm(dst, x, w, 1e-5)
			if first == nil {
				first = dst
			}
			if i := diff(dst, first); i >= 0 {
				t.Fatalf("%s, %d elements: element %d: got %g, want %g as elsewhere", e.label(), n, i, dst[i], first[i])
			}
			for i, got := range dst {
				if want := float64(x[i]) * s * float64(w[i]); math.Abs(float64(got)-want) > 1e-6*math.Abs(want) {
					t.Fatalf("%s, %d elements: element %d: got %g, want %g", e.label(), n, i, got, want)
				}
			}
		}
	}
}

// TestExpAccuracy sweeps the whole range of the exponential.
func TestExpAccuracy(t *testing.T) {
	var x []float32
	for v := -90.0; v < 88.7; v += 1.0 / 512 {
		x = append(x, float32(v))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		x = append(x, float32(-20*r.Float64()), float32(r.NormFloat64()*1e-3))
	}
	want := poisoned(len(x))
	for i, e := range engines(t) {
		got := poisoned(len(x))
		e.ExpSum(got, x, 0)
		if i == 0 {
			copy(want, got)
		}
		if j := diff(got, want); j >= 0 {
			t.Fatalf("%s: exp(%g): got %g, want %g as elsewhere", e.label(), x[j], got[j], want[j])
		}
	}
	var worst float64
	for i, v := range x {
		exact := math.Exp(float64(v))
		if v < expLo {
			if want[i] != 0 {
				t.Fatalf("exp(%g) = %g: want 0", v, want[i])
			}
			continue
		}
		err := math.Abs(float64(want[i])-exact) / exact
		if worst = max(worst, err); err > 2e-7 {
			t.Fatalf("exp(%g): got %g, want %g: relative error %g", v, want[i], exact, err)
		}
	}
	t.Logf("largest relative error %.3g", worst)
}

func TestExpSpecial(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, e := range engines(t) {
		for _, test := range []struct{ x, want float32 }{
			{-inf, 0},
			{-math.MaxFloat32, 0},
			{-200, 0},
			{-87.34, 0},
			{0, 1},
			{math.Float32frombits(1 << 31), 1},
			{1e-30, 1},
			{89, inf},
			{1000, inf},
			{inf, inf},
		} {
			for _, n := range []int{1, 16, 17} {
				src := make([]float32, n)
				for i := range src {
					src[i] = test.x
				}
				dst := poisoned(n)
				sum := e.ExpSum(dst, src, 0)
				for i, got := range dst {
					if got != test.want {
						t.Errorf("%s: exp(%g) = %g at %d of %d: want %g", e.label(), test.x, got, i, n, test.want)
					}
				}
				if want := float64(test.want) * float64(n); sum != want {
					t.Errorf("%s: sum of %d exp(%g) = %g: want %g", e.label(), n, test.x, sum, want)
				}
			}
		}
		for _, n := range []int{1, 20} {
			src := make([]float32, n)
			src[n-1] = float32(math.NaN())
			if sum := e.ExpSum(make([]float32, n), src, 0); sum == sum {
				t.Errorf("%s: a NaN among %d gave the sum %g", e.label(), n, sum)
			}
		}
		masked := []float32{3, -inf, 4, -inf}
		if sum := e.ExpSum(masked, masked, 4); masked[1] != 0 || masked[3] != 0 || masked[2] != 1 || sum != 1+float64(masked[0]) {
			t.Errorf("%s: masked scores gave %v, sum %g", e.label(), masked, sum)
		}
		gate := []float32{-1000, -89, 89, 1000, 0}
		up := []float32{2, 2, 2, 2, 2}
		e.SiLUMul(gate, gate, up)
		for i, want := range []float32{0, 0, 178, 2000, 0} {
			if gate[i] != want {
				t.Errorf("%s: silu element %d: got %g, want %g", e.label(), i, gate[i], want)
			}
		}
	}
}

// TestFMA32 holds the portable multiply-add against exact arithmetic, with
// numbers chosen so that rounding twice would often go wrong.
func TestFMA32(t *testing.T) {
	exact := func(x, y, z float32) float32 {
		f := new(big.Float).SetPrec(1000)
		f.Mul(big.NewFloat(float64(x)).SetPrec(1000), big.NewFloat(float64(y)))
		f.Add(f, big.NewFloat(float64(z)))
		got, _ := f.Float32()
		return got
	}
	check := func(t interface {
		Helper()
		Fatalf(string, ...any)
	}, x, y, z float32,
	) {
		t.Helper()
		got, want := fma32(x, y, z), exact(x, y, z)
		if got != want {
			t.Fatalf("%x·%x + %x: got %x, want %x", x, y, z, got, want)
		}
	}
	// 1 + 2^-24 is half-way between two float32; the product decides.
	for _, tiny := range []float32{0x1p-80, -0x1p-80, 0x1p-140, -0x1p-140} {
		check(t, tiny, 1, 1)
		check(t, 1+0x1p-12, 1+0x1p-12, tiny)      // exact square ends below float32
		check(t, 1+0x1p-23, 0x1p-24, 1)           // just above half
		check(t, 0x1p-75, 0x1p-75, tiny)          // half the smallest subnormal
		check(t, 0x1.8p-75, 0x1p-75, tiny*0x1p-9) // subnormal results
	}
	rapid.Check(t, func(t *rapid.T) {
		float := rapid.Custom(func(t *rapid.T) float32 {
			// few significant bits, exponents close together or very small
			m := rapid.Int32Range(-1<<12, 1<<12).Draw(t, "m")
			e := rapid.OneOf(rapid.IntRange(-30, 30), rapid.IntRange(-80, -60), rapid.IntRange(-149, -120)).Draw(t, "e")
			return float32(math.Ldexp(float64(m), e))
		})
		check(t, float.Draw(t, "x"), float.Draw(t, "y"), float.Draw(t, "z"))
	})
}
