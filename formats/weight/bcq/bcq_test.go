package bcq

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

func normal(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

// TestLevels: levels are all that rows can hold, in order.
func TestLevels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(MinBits, MaxBits).Draw(t, "bits")
		alpha := rapid.SliceOfN(rapid.Float32Range(-4, 4), bits, bits).Draw(t, "alpha")
		z := rapid.Float32Range(-4, 4).Draw(t, "z")
		var l Levels
		l.Set(alpha, z)
		var want []float32
		for c := range 1 << bits {
			v := z
			for i, a := range alpha {
				if c>>i&1 != 0 {
					v += a
				} else {
					v -= a
				}
			}
			want = append(want, v)
		}
		for i, c := range l.Code {
			if want[c] != l.Value[i] {
				t.Fatalf("level %d is %v, its code's %v", i, l.Value[i], want[c])
			}
			if i > 0 && l.Value[i] == l.Value[i-1] && l.Code[i] != l.Code[i-1] {
				t.Fatalf("equal levels %d and %d have different codes", i-1, i)
			}
			if least := slices.Index(want, l.Value[i]); least != int(c) {
				t.Fatalf("level %v has the code %d, want %d", l.Value[i], c, least)
			}
		}
		slices.Sort(want)
		if !slices.Equal(l.Value, want) {
			t.Fatalf("levels are %v, want %v", l.Value, want)
		}
	})
}

// table returns a matrix of random codes with a table.
func table(seed uint64, bits int, values []float32, scales weight.ScaleType) *lut.Matrix {
	const n, k, group = 5, 70, 32
	r := rand.New(rand.NewPCG(seed, 1))
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: group, ScaleType: scales, Codebook: values}
	m.Codes, m.Scales = make([]byte, n*m.RowBytes()), make([]byte, n*m.Groups()*scales.Size())
	codes := make([]uint8, k)
	for i := range n {
		for c := range codes {
			codes[c] = uint8(r.IntN(1 << bits))
		}
		lut.PackCodes(m.Codes[i*m.RowBytes():(i+1)*m.RowBytes()], codes, bits)
	}
	all := make([]float32, n*m.Groups())
	for i := range all {
		all[i] = 0.02 * (1 + float32(r.NormFloat64())/4)
	}
	all[1] = 0
	scales.Encode(m.Scales, all)
	return m
}

// TestAffine turns tables of equal steps into factors and back.
func TestAffine(t *testing.T) {
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		var symmetric []float32 // (c - 2^(b-1)) / 2^(b-1)
		half := float32(int(1) << (bits - 1))
		for c := range 1 << bits {
			symmetric = append(symmetric, (float32(c)-half)/half)
		}
		m := table(uint64(bits), bits, symmetric, weight.F16)
		exact, err := FromLUT(m, weight.F32)
		if err != nil {
			t.Fatal(err)
		}
		if !Equal(m, exact) {
			t.Errorf("%d bits: other weights", bits)
		}
		back, err := exact.LUT()
		if err != nil {
			t.Fatal(err)
		}
		if !Equal(m, back) || !slices.Equal(back.Codes, m.Codes) {
			t.Errorf("%d bits: other weights after turning back", bits)
		}
		// Float16 rounds offsets alone: by half a unit in their last place.
		short, err := FromLUT(m, weight.F16)
		if err != nil {
			t.Fatal(err)
		}
		var f, g Factors
		want, got := make([]float32, m.K), make([]float32, m.K)
		for n := range m.N {
			m.Row(want, n)
			short.Row(got, n)
			for c := range want {
				exact.ReadFactors(&f, n, c/m.Group)
				short.ReadFactors(&g, n, c/m.Group)
				if f.Alpha != g.Alpha {
					t.Fatalf("%d bits: factors %v, want %v", bits, g.Alpha, f.Alpha)
				}
				_, exp := math.Frexp(float64(f.Z))
				if d := math.Abs(float64(got[c]) - float64(want[c])); d > math.Ldexp(1, exp-12) {
					t.Fatalf("%d bits: weight [%d, %d] is %v, want %v, with an offset of %v", bits, n, c, got[c], want[c], f.Z)
				}
			}
		}
	}
}

// random returns a row of 64 columns in two groups, of factors that have nothing to do with each other.
func random(seed uint64, bits int) *Matrix {
	m := &Matrix{N: 1, K: 64, Bits: bits, Group: 32, ScaleType: weight.F32}
	m.Planes = make([]byte, bits*m.PlaneBytes())
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range m.Planes {
		m.Planes[i] = byte(r.Uint32())
	}
	m.Alphas, m.Offsets = make([]byte, 4*2*bits), make([]byte, 4*2)
	m.ScaleType.Encode(m.Alphas, normal(seed, 2*bits))
	m.ScaleType.Encode(m.Offsets, normal(seed+1, 2))
	return m
}

func TestNotAffine(t *testing.T) {
	nf, err := lut.NewCodebook("nf", 3, 64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FromLUT(table(1, 3, nf.Values, weight.F16), weight.F32); err == nil || !strings.Contains(err.Error(), "of the table is") {
		t.Errorf("a table of unequal steps: got error %v", err)
	}
	uneven := table(1, 2, []float32{-1, 0, 1, 5}, weight.F16)
	if _, err := FromLUT(uneven, weight.F32); err == nil || err.Error() != "value 1 of the table is 0: equal steps, as binary codes have them, would make it 1" {
		t.Errorf("a table of unequal steps: got error %v", err)
	}
	if _, err := FromLUT(table(1, 2, []float32{-1e9, -0.5e9, 0, 0.5e9}, weight.F16), weight.F16); err == nil || !strings.Contains(err.Error(), "factors of row") {
		t.Errorf("factors beyond float16: got error %v", err)
	}
	m := random(1, 3)
	if _, err := m.LUT(); err == nil || !strings.Contains(err.Error(), "equal steps take") {
		t.Errorf("factors of unequal steps: got error %v", err)
	}
	a, b := float32(1), float32(3)
	for i := range 2 {
		weight.F32.Encode(m.Alphas[12*i:], []float32{a, 2 * a, 4 * a})
	}
	weight.F32.Encode(m.Offsets, []float32{a, b})
	if _, err := m.LUT(); err == nil || !strings.Contains(err.Error(), "an offset of") {
		t.Errorf("offsets of two tables: got error %v", err)
	}
	clear(m.Alphas)
	if _, err := m.LUT(); err == nil || !strings.Contains(err.Error(), "cannot hold the same numbers") {
		t.Errorf("offsets alone: got error %v", err)
	}
	if _, err := random(1, 6).LUT(); err == nil || !strings.Contains(err.Error(), "tables have 2 to 5") {
		t.Errorf("6 bits: got error %v", err)
	}
}
