package lut

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/weight"
)

// quantizeAll quantizes rows of k weights at once.
func quantizeAll(t testing.TB, o Options, w []float32, k int) (*Matrix, []weight.RowError) {
	t.Helper()
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	bits, n := o.Codebook.Bits(), len(w)/k
	group := min(o.Group, k)
	m := &Matrix{
		N: n, K: k, Bits: bits, Group: group, ScaleType: o.ScaleType, Codebook: o.Codebook.Values,
		Codes:  make([]byte, n*RowBytes(k, bits)),
		Scales: make([]byte, n*weight.GroupsIn(k, group)*o.ScaleType.Size()),
	}
	errs := make([]weight.RowError, n)
	if err := q.Rows([][]byte{ScalesPart: m.Scales, CodesPart: m.Codes}, errs, w); err != nil {
		t.Fatal(err)
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m, errs
}

// widths returns those that a built-in codebook has.
func widths(name string) []int {
	if only := OnlyBits(name); only != 0 {
		return []int{only}
	}
	return []int{2, 3, 4, 5}
}

func builtin(t testing.TB, name string, bits, group int) Codebook {
	t.Helper()
	c, err := NewCodebook(name, bits, group)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func normal(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

func TestValidate(t *testing.T) {
	o := Options{Codebook: builtin(t, "nf", 3, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16}
	for _, tc := range []struct {
		name  string
		spoil func(m *Matrix)
		want  string // empty: it is valid
	}{
		{"whole", func(*Matrix) {}, ""},
		{"no rows", func(m *Matrix) { m.N, m.Codes, m.Scales = 0, nil, nil }, "shape 0×40 has no elements"},
		{"no columns", func(m *Matrix) { m.K, m.Codes, m.Scales = 0, nil, nil }, "shape 2×0 has no elements"},
		{"too few bits", func(m *Matrix) { m.Bits = MinBits - 1 }, "1 bits a code: want 2 to 5"},
		{"too many bits", func(m *Matrix) { m.Bits = MaxBits + 1 }, "6 bits a code: want 2 to 5"},
		{"no group", func(m *Matrix) { m.Group = 0 }, "group of 0 columns in a row of 40"},
		{"group", func(m *Matrix) { m.Group = 41 }, "group of 41 columns in a row of 40"},
		{"codes", func(m *Matrix) { m.Codes = m.Codes[1:] }, "codes take 29 bytes: want 30"},
		{"scale type", func(m *Matrix) { m.ScaleType = 0 }, "unknown scale type"},
		{"scales", func(m *Matrix) { m.Scales = m.Scales[1:] }, "scales take 7 bytes: want 8"},
		{"table", func(m *Matrix) { m.Codebook = m.Codebook[1:] }, "codebook of 7 values: want 8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, _ := quantizeAll(t, o, normal(1, 80), 40)
			tc.spoil(m)
			got := ""
			if err := m.Validate(); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got error %q, want %q", got, tc.want)
			}
		})
	}
}

// TestCheckPadding: 7 codes of 3 bits leave the highest 3 of a row's 24 bits unused.
func TestCheckPadding(t *testing.T) {
	m := &Matrix{N: 3, K: 7, Bits: 3, Group: 7, ScaleType: weight.F16, Codes: make([]byte, 9)}
	for i := range m.Codes {
		m.Codes[i] = 0xff
	}
	m.Codes[2], m.Codes[5], m.Codes[8] = 0x1f, 0x1f, 0x1f
	if err := m.CheckPadding(); err != nil {
		t.Error(err)
	}
	for row := range 3 {
		spoiled := *m
		spoiled.Codes = slices.Clone(m.Codes)
		spoiled.Codes[3*row+2] |= 0x20
		if err := spoiled.CheckPadding(); err == nil || err.Error() != fmt.Sprintf("row %d has bits set after its last code", row) {
			t.Errorf("got error %v", err)
		}
	}
	m.K, m.Codes = 8, []byte{255, 255, 255, 255, 255, 255, 255, 255, 255}
	if err := m.CheckPadding(); err != nil {
		t.Errorf("where no bits are left: %v", err)
	}
}

// TestFarther: a code is not the nearest where a neighbour is nearer by more than rounding.
func TestFarther(t *testing.T) {
	m := &Matrix{
		N: 2, K: 4, Bits: 2, Group: 2, ScaleType: weight.F32, Codebook: []float32{-1, -0.25, 0.5, 1},
		Codes: make([]byte, 2), Scales: make([]byte, 16),
	}
	PackCodes(m.Codes[1:], []uint8{0, 2, 1, 3}, 2)
	num.EncodeF32(m.Scales, []float32{1, 1, 2, -4}) // row 1 stands for -2, 1, 1, -4
	for _, tc := range []struct {
		w    []float32
		want int
	}{
		{[]float32{-2, 1, 1, -4}, -1},
		{[]float32{-9, 1.49, -0.4, -3.1}, -1},
		{[]float32{-1.24, 1, 1, -4}, 0},
		{[]float32{-2, 1.51, 1, -4}, 1},
		{[]float32{-2, 0.24, 1, -4}, 1},
		{[]float32{-2, 1, -0.51, -4}, 2},
		{[]float32{-2, 1, 1, -2.9}, 3},
		{[]float32{-2, 1.500001, 1, -4}, -1}, // between two
		{[]float32{-2, 1, -0.50001, -4}, -1}, // the same, of a scale below 0
		{[]float32{-2, 1.5001, 1, -4}, 1},
	} {
		if got := m.Farther(1, tc.w); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc.w, got, tc.want)
		}
	}
}

func TestCodebooks(t *testing.T) {
	raw := map[string]float32{"q2": 2, "q3": 4, "q4": 8, "q5": 16, "iq4nl": 127, "e2m1": 6}
	for _, name := range CodebookNames() {
		for _, bits := range widths(name) {
			for _, group := range []int{32, 64, 128, 256, 4096} {
				c := builtin(t, name, bits, group)
				if err := c.Check(bits); err != nil {
					t.Error(err)
				}
				most, isRaw := raw[name]
				switch {
				case name == "sym":
					most = float32(int(1) << (bits - 1))
				case !isRaw:
					most = 1
				}
				if c.Max() != most || c.Bits() != bits {
					t.Errorf("%s: reaches %v with %d bits, want %v with %d", c.Name, c.Max(), c.Bits(), most, bits)
				}
				if got, want := c.OneSided(), name == "js" || isRaw && name != "e2m1"; got != want {
					t.Errorf("%s at %d bits: one-sided is %v", name, bits, got)
				}
			}
		}
	}
}

// TestNormalFloat holds the tables against the formula in nfValues, which
// they follow to the rounding of a float32 evaluation.
func TestNormalFloat(t *testing.T) {
	const delta = 0.5 * (1.0/32 + 1.0/30)
	quantile := distuv.UnitNormal.Quantile
	for bits := MinBits; bits <= MaxBits; bits++ {
		half := 1 << (bits - 1)
		var want []float64
		for i := range half {
			p := 1 - delta + (delta-0.5)*float64(i)/float64(half-1)
			want = append(want, -quantile(p)/quantile(1-delta))
		}
		for i := 1; i <= half; i++ {
			p := 0.5 + (0.5-delta)*float64(i)/float64(half)
			want = append(want, quantile(p)/quantile(1-delta))
		}
		for i, v := range nfValues(bits) {
			if math.Abs(float64(v)-want[i]) > 5e-7 {
				t.Errorf("%d bits: value %d is %v, the formula gives %v", bits, i, v, want[i])
			}
		}
	}
}

// TestKbit compares with the constants in bitsandbytes' k-bit branch.
func TestKbit(t *testing.T) {
	for bits, want := range map[int][]float32{
		2: {0.2769935547, 1},
		3: {0.1025412802, 0.318603654, 0.5782769563, 1},
		4: {0.0420953837, 0.1273409842, 0.2159463057, 0.3109047375, 0.4168188534, 0.5422090999, 0.7075687706, 1},
	} {
		got := kbitValues(bits)[1<<(bits-1):]
		for i, w := range want {
			if math.Abs(float64(got[i]-w)) > 1e-7 {
				t.Errorf("%d bits: positive value %d is %v, want %v", bits, i, got[i], w)
			}
		}
	}
}

func TestFloatingPoint(t *testing.T) {
	want := map[int][]float32{
		2: {-1, 0, 0, 1},
		3: {-1, -0.5, -0.25, 0, 0, 0.25, 0.5, 1},
		4: {-1, -4. / 6, -3. / 6, -2. / 6, -1.5 / 6, -1. / 6, -0.5 / 6, 0, 0, 0.5 / 6, 1. / 6, 1.5 / 6, 2. / 6, 3. / 6, 4. / 6, 1},
	}
	for bits, w := range want {
		if got := fpValues(bits); !slices.Equal(got, w) {
			t.Errorf("%d bits: got %v, want %v", bits, got, w)
		}
	}
}

// TestRawTables holds the tables of formats of others to numbers from elsewhere: those of
// llama.cpp's kvalues_iq4nl, of the OCP's list of E2M1, and two's complement.
func TestRawTables(t *testing.T) {
	for name, want := range map[string][]float32{
		"q2":    {-2, -1, 0, 1},
		"q3":    {-4, -3, -2, -1, 0, 1, 2, 3},
		"q4":    {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
		"iq4nl": {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
		"e2m1":  {-6, -4, -3, -2, -1.5, -1, -.5, 0, 0, .5, 1, 1.5, 2, 3, 4, 6},
	} {
		if got := builtin(t, name, OnlyBits(name), 32).Values; !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		for _, bits := range []int{2, 3, 4, 5} {
			if _, err := NewCodebook(name, bits, 32); (err == nil) != (bits == OnlyBits(name)) {
				t.Errorf("%s at %d bits: got error %v", name, bits, err)
			}
		}
	}
	q5 := builtin(t, "q5", 5, 32).Values
	for i, v := range q5 {
		if v != float32(i-16) {
			t.Errorf("q5: value %d is %v", i, v)
		}
	}
}

// TestSymmetric holds sym to the integers, and its errors on normal weights in groups of 128 to those of
// MARLIN's scales: 2m/15 of the largest magnitude m, the best of those with a part of m in steps of
// a hundredth, and m/7, which int has. They were computed with another program.
func TestSymmetric(t *testing.T) {
	for bits := MinBits; bits <= MaxBits; bits++ {
		c := builtin(t, "sym", bits, 128)
		if q := builtin(t, fmt.Sprint("q", bits), bits, 128); !slices.Equal(c.Values, q.Values) || c.Reach() != q.Max()-0.5 || c.OneSided() {
			t.Errorf("%d bits: %+v", bits, c)
		}
		if half := c.Scaled(0.5); half.Reach() != c.Reach()/2 {
			t.Errorf("halved, it reaches %v", half.Reach())
		}
	}
	for _, tc := range []struct {
		name  string
		scale weight.ScaleMethod
		want  float64
	}{{"sym", weight.Absmax, 0.0123}, {"sym", weight.MSE, 0.0102}, {"int", weight.Absmax, 0.0138}} {
		o := Options{Codebook: builtin(t, tc.name, 4, 128), Group: 128, Scale: tc.scale, ScaleType: weight.F16}
		m, errs := quantizeAll(t, o, normal(3, 1<<19), 1024)
		var sum weight.RowError
		for _, e := range errs {
			sum.Squared += e.Squared
			sum.Energy += e.Energy
		}
		if got := sum.Squared / sum.Energy; math.Abs(got/tc.want-1) > 0.015 {
			t.Errorf("%s %v: relative error %.5f, want %.4f", tc.name, tc.scale, got, tc.want)
		}
		scales := make([]float32, m.Groups())
		for n := range m.N {
			if m.RowScales(scales, n); slices.Min(scales) <= 0 {
				t.Fatalf("%s %v: row %d has scales %v", tc.name, tc.scale, n, scales)
			}
		}
	}
}

func TestParseCodebook(t *testing.T) {
	for _, tc := range []struct {
		name, json string
		bits       int
		ok         bool
	}{
		{"array", "[-1, -0.3, 0.3, 1]", 2, true},
		{"object", `{"values": [-1, 0, 0.5, 1]}`, 2, true},
		{"too few values", "[-1, 1]", 2, false},
		{"descending", "[1, 0.5, 0, -1]", 2, false},
		{"out of range", "[-1e39, 0, 0.5, 1]", 2, false},
		{"all zero", "[0, 0, 0, 0]", 2, false},
		{"not JSON", "-1 0 1", 2, false},
		{"other object", `{"table": [1]}`, 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseCodebook([]byte(tc.json), "test", tc.bits)
			if (err == nil) != tc.ok {
				t.Errorf("got error %v", err)
			}
		})
	}
}

// TestNearest checks every code against the definition, a count of midpoints.
func TestNearest(t *testing.T) {
	for _, name := range CodebookNames() {
		for _, bits := range widths(name) {
			c := builtin(t, name, bits, 64)
			tab := newTable(c)
			xs := normal(1, 4000)
			for i := range len(c.Values) - 1 {
				mid := (c.Values[i] + c.Values[i+1]) * 0.5
				xs = append(xs, mid, math.Nextafter32(mid, 2), math.Nextafter32(mid, -2), c.Values[i])
			}
			xs = append(xs, 0, float32(math.Copysign(0, -1)), 1, -1, 1e30, -1e30, float32(math.Inf(1)), float32(math.Inf(-1)), 1e-45)
			for _, x := range xs {
				var want uint8
				for i := range len(c.Values) - 1 {
					if (c.Values[i]+c.Values[i+1])*0.5 < x {
						want++
					}
				}
				if got := tab.code(x); got != want {
					t.Fatalf("%s at %d bits: code of %v is %d, want %d", name, bits, x, got, want)
				}
			}
		}
	}
}

// TestRows checks a matrix of odd shape against a slow quantizer in float64,
// for every format.
func TestRows(t *testing.T) {
	const n, k = 5, 172
	w := normal(7, n*k)
	clear(w[k : k+64]) // a group of zeros
	for _, name := range CodebookNames() {
		for _, bits := range widths(name) {
			for _, group := range []int{32, 64, 128, 256, k} {
				for _, st := range (Kind{}).ScaleTypes() {
					for _, method := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
						o := Options{Codebook: builtin(t, name, bits, group), Group: group, Scale: method, ScaleType: st}
						m, errs := quantizeAll(t, o, w, k)
						checkMatrix(t, fmt.Sprintf("%s %d bits group %d %v %v", name, bits, group, st, method), m, errs, w)
					}
				}
			}
		}
	}
}

// checkMatrix checks that every code is a nearest one for its stored scale and
// that the reported errors are the true ones.
func checkMatrix(t *testing.T, what string, m *Matrix, errs []weight.RowError, w []float32) {
	t.Helper()
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	deq := m.Dequantize()
	for n := range m.N {
		m.RowCodes(codes, n)
		m.RowScales(scales, n)
		var energy, squared float64
		for k := range m.K {
			v, s := float64(w[n*m.K+k]), float64(scales[k/m.Group])
			d := math.Abs(v - float64(deq[n*m.K+k]))
			energy += v * v
			squared += d * d
			for _, c := range m.Codebook {
				if other := math.Abs(v - float64(c)*s); other < d-1e-6*(math.Abs(v)+math.Abs(s)) {
					t.Fatalf("%s: weight [%d, %d] = %v has the code of %v, which is %v off; %v is %v off", what, n, k, v, deq[n*m.K+k], d, float64(c)*s, other)
				}
			}
		}
		if math.Abs(errs[n].Energy-energy) > 1e-5*energy || math.Abs(errs[n].Squared-squared) > 1e-4*squared+1e-9 {
			t.Fatalf("%s: row %d has energy %v and error %v, reported %+v", what, n, energy, squared, errs[n])
		}
	}
}

// TestPieces checks that rows quantized apart are the rows quantized together.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bits := rapid.IntRange(MinBits, MaxBits).Draw(rt, "bits")
		k := rapid.IntRange(1, 200).Draw(rt, "k")
		group := rapid.SampledFrom([]int{32, 64, k}).Draw(rt, "group")
		n := rapid.IntRange(1, 6).Draw(rt, "n")
		cut := rapid.IntRange(0, n).Draw(rt, "cut")
		w := normal(rapid.Uint64().Draw(rt, "seed"), n*k)
		o := Options{Codebook: builtin(t, "js", bits, group), Group: group, Scale: weight.MSE, ScaleType: weight.F16}
		whole, _ := quantizeAll(t, o, w, k)
		var codes, scales []byte
		for _, part := range [][]float32{w[:cut*k], w[cut*k:]} {
			if len(part) > 0 {
				m, _ := quantizeAll(t, o, part, k)
				codes, scales = append(codes, m.Codes...), append(scales, m.Scales...)
			}
		}
		if !slices.Equal(codes, whole.Codes) || !slices.Equal(scales, whole.Scales) {
			rt.Fatal("rows quantized in two pieces differ from the same rows in one")
		}
	})
}

// TestGaussianError compares the error on normal weights with independently
// computed figures (relative squared error × 1000). A table of ours may be
// somewhat better than the one that a figure was computed with.
func TestGaussianError(t *testing.T) {
	w := normal(3, 1<<18)
	for _, tc := range []struct {
		codebook    string
		bits, group int
		scale       weight.ScaleMethod
		want        float64
	}{
		{"nf", 2, 64, weight.Absmax, 317},
		{"nf", 3, 64, weight.Absmax, 40.6},
		{"nf", 4, 32, weight.Absmax, 7.61},
		{"nf", 4, 64, weight.Absmax, 8.46},
		{"nf", 4, 128, weight.Absmax, 9.13},
		{"nf", 5, 64, weight.Absmax, 1.96},
		{"kbit", 3, 64, weight.Absmax, 36.4},
		{"nf", 3, 64, weight.MSE, 33.0},
		{"nf", 4, 64, weight.MSE, 7.23},
		{"nf", 5, 64, weight.MSE, 1.65},
		{"jt", 2, 64, weight.MSE, 111},
		{"jt", 3, 64, weight.MSE, 29.2},
		{"jt", 4, 64, weight.MSE, 6.92},
		{"jt", 5, 64, weight.MSE, 1.73},
		{"js", 2, 64, weight.MSE, 105},
		{"js", 3, 64, weight.MSE, 27.0},
		{"js", 4, 32, weight.MSE, 5.30},
		{"js", 4, 64, weight.MSE, 6.47},
		{"js", 4, 128, weight.MSE, 7.37},
		{"js", 5, 64, weight.MSE, 1.62},
	} {
		t.Run(fmt.Sprintf("%s%d g%d %v", tc.codebook, tc.bits, tc.group, tc.scale), func(t *testing.T) {
			_, errs := quantizeAll(t, Options{Codebook: builtin(t, tc.codebook, tc.bits, tc.group), Group: tc.group, Scale: tc.scale, ScaleType: weight.F32}, w, tc.group)
			var energy, squared float64
			for _, e := range errs {
				energy += e.Energy
				squared += e.Squared
			}
			if got := 1000 * squared / energy; got/tc.want > 1.025 || got/tc.want < 0.92 {
				t.Errorf("relative squared error is %.3g/1000, want %.3g", got, tc.want)
			}
		})
	}
}

// TestByteScales checks that the scale bytes cost what they should: a little
// more error than float32 scales, with codes chosen for the rounded scale.
func TestByteScales(t *testing.T) {
	w := normal(5, 1<<17)
	for _, tc := range []struct {
		codebook string
		st       weight.ScaleType
		most     float64 // error over that with float32 scales
	}{{"jt", weight.E4M4, 1.04}, {"js", weight.S1E4M3, 1.09}, {"js", weight.BF16, 1.01}, {"js", weight.F16, 1.001}} {
		var squared [2]float64
		for i, st := range []weight.ScaleType{weight.F32, tc.st} {
			_, errs := quantizeAll(t, Options{Codebook: builtin(t, tc.codebook, 4, 32), Group: 32, Scale: weight.MSE, ScaleType: st}, w, 32)
			for _, e := range errs {
				squared[i] += e.Squared
			}
		}
		if ratio := squared[1] / squared[0]; ratio > tc.most {
			t.Errorf("%s with %v scales: %.4f times the error with f32 scales, want at most %v", tc.codebook, tc.st, ratio, tc.most)
		}
	}
}

// TestPowersOfTwo holds scales that are powers of two to the best one of all, by brute
// force in float64, and absmax to the nearest to the largest weight's.
func TestPowersOfTwo(t *testing.T) {
	const group, n = 32, 300
	w := normal(9, n*group)
	for i := range w { // of all sizes
		w[i] = float32(math.Ldexp(float64(w[i]), i/group*2/3-n/3))
	}
	table := builtin(t, "e2m1", 4, group)
	for _, method := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
		m, _ := quantizeAll(t, Options{Codebook: table, Group: group, Scale: method, ScaleType: weight.E8M0}, w, group)
		back := m.Dequantize()
		for row := range n {
			w, back := w[row*group:(row+1)*group], back[row*group:(row+1)*group]
			var got float64
			for i, v := range w {
				got += (float64(v) - float64(back[i])) * (float64(v) - float64(back[i]))
			}
			best, at, top := math.Inf(1), 0, 0.0
			for u := range 255 {
				var sum float64
				for _, v := range w {
					d := math.Inf(1)
					for _, c := range table.Values {
						d = min(d, math.Abs(float64(v)-math.Ldexp(float64(c), u-127)))
					}
					sum += d * d
				}
				if sum < best {
					best, at = sum, u
				}
			}
			for _, v := range w {
				top = max(top, math.Abs(float64(v)))
			}
			nearest := int(math.Floor(math.Log2(top/6/.75))) + 127
			switch {
			case method == weight.MSE && got > best*(1+1e-4):
				t.Errorf("row %d: error %v with the scale %d, %v with %d", row, got, m.Scales[row], best, at)
			case method == weight.Absmax && int(m.Scales[row]) != nearest:
				t.Errorf("row %d: scale %d, want %d", row, m.Scales[row], nearest)
			}
		}
	}
}

// TestOpenScales: a byte of no number, and a scale whose largest product is none, are found.
func TestOpenScales(t *testing.T) {
	spec := weight.Spec{Bits: 4, Group: 32, ScaleType: weight.E8M0}
	table := make([]byte, 64)
	num.EncodeF32(table, builtin(t, "e2m1", 4, 32).Values)
	for scale, want := range map[byte]string{0: "", 127: "", 251: "", 252: "", 253: "scale [1, 0] is 8.507", 254: "scale [1, 0] is 1.7", 255: "scale [1, 0] is NaN"} {
		_, err := Kind{}.Open(spec, 2, 32, [][]byte{CodebookPart: table, ScalesPart: {127, scale}, CodesPart: make([]byte, 32)})
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("byte %d: got error %v, want %q", scale, err, want)
		}
	}
}

func TestExtremeGroups(t *testing.T) {
	inf := float32(math.Inf(1))
	group := func(v ...float32) []float32 { return append(v, make([]float32, 32-len(v))...) }
	for _, tc := range []struct {
		name string
		w    []float32
		fail bool
	}{
		{"zeros", group(), false},
		{"one outlier", group(1e4, 1e-4), false},
		{"subnormal", group(1e-45, -3e-42), false},
		{"largest", group(math.MaxFloat32, -math.MaxFloat32), false},
		{"NaN", group(0, float32(math.NaN())), true},
		{"infinity", group(0, 0, inf), true},
		{"negative infinity", group(-inf), true},
	} {
		for _, o := range []Options{
			{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F32},
			{Codebook: builtin(t, "js", 3, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F32},
			{Codebook: builtin(t, "e2m1", 4, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.E8M0},
			{Codebook: builtin(t, "e2m1", 4, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.E8M0},
		} {
			t.Run(tc.name+" "+o.Codebook.Name, func(t *testing.T) {
				q, err := NewQuantizer(o)
				if err != nil {
					t.Fatal(err)
				}
				m := Matrix{N: 1, K: 32, Bits: o.Codebook.Bits(), Group: 32, ScaleType: o.ScaleType, Codebook: o.Codebook.Values, Codes: make([]byte, 20), Scales: make([]byte, o.ScaleType.Size())}
				m.Codes = m.Codes[:RowBytes(32, m.Bits)]
				errs := make([]weight.RowError, 1)
				err = q.Rows([][]byte{ScalesPart: m.Scales, CodesPart: m.Codes}, errs, tc.w)
				var bad *weight.NotFiniteError
				if got := errors.As(err, &bad); got != tc.fail || err != nil && !tc.fail {
					t.Fatalf("got error %v", err)
				}
				if err != nil {
					return
				}
				if e := errs[0]; math.IsInf(e.Energy, 0) || math.IsInf(e.Squared, 0) || e.Squared > e.Energy {
					t.Errorf("the error is %+v", e)
				}
				for i, v := range m.Dequantize() {
					if v-v != 0 {
						t.Errorf("weight %d = %v comes back as %v", i, tc.w[i], v)
					}
				}
			})
		}
	}
	q, err := NewQuantizer(Options{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Rows([][]byte{ScalesPart: make([]byte, 2), CodesPart: make([]byte, 16)}, make([]weight.RowError, 1), group(1e6)); err == nil {
		t.Error("a scale of 1e6 fits f16, want an error")
	}
}

func BenchmarkRows(b *testing.B) {
	w := normal(1, 1<<18)
	for _, tc := range []struct {
		codebook string
		bits     int
		scale    weight.ScaleMethod
	}{{"nf", 4, weight.Absmax}, {"nf", 2, weight.Absmax}, {"nf", 5, weight.Absmax}, {"js", 4, weight.MSE}, {"js", 3, weight.MSE}, {"jt", 4, weight.MSE}} {
		b.Run(fmt.Sprintf("%s%d/%v", tc.codebook, tc.bits, tc.scale), func(b *testing.B) {
			const k = 4096
			q, err := NewQuantizer(Options{Codebook: builtin(b, tc.codebook, tc.bits, 64), Group: 64, Scale: tc.scale, ScaleType: weight.F16})
			if err != nil {
				b.Fatal(err)
			}
			n := len(w) / k
			codes, scales := make([]byte, n*RowBytes(k, tc.bits)), make([]byte, n*k/64*2)
			errs := make([]weight.RowError, n)
			for b.Loop() {
				if err := q.Rows([][]byte{ScalesPart: scales, CodesPart: codes}, errs, w); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(w))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mweights/s")
		})
	}
}

// TestWeights: a weighted search finds scales of less weighted error than one that is not,
// and does not see columns that count for nothing.
func TestWeights(t *testing.T) {
	const k, n, group = 192, 50, 64
	rng := rand.New(rand.NewPCG(6, 0))
	weights := make([]float32, k)
	for i := range weights {
		weights[i] = float32(math.Exp(2 * rng.NormFloat64()))
	}
	w := normal(7, n*k)
	for _, st := range []weight.ScaleType{weight.F16, weight.S1E4M3} {
		o := Options{Codebook: builtin(t, "js", 2, group), Group: group, Scale: weight.MSE, ScaleType: st}
		if st.Size() == 1 {
			o.Codebook = o.Codebook.Scaled(.25)
		}
		weighted := func(m *Matrix) (sum float64) {
			for i, v := range m.Dequantize() {
				d := float64(w[i] - v)
				sum += float64(weights[i%k]) * d * d
			}
			return sum
		}
		plain, _ := quantizeAll(t, o, w, k)
		o.Weights = weights
		searched, _ := quantizeAll(t, o, w, k)
		if got, without := weighted(searched), weighted(plain); !(got < .85*without) {
			t.Errorf("%v: weighted error %v, %v unless it is searched for", st, got, without)
		}
	}

	o := Options{Codebook: builtin(t, "nf", 4, k), Group: k, Scale: weight.MSE, ScaleType: weight.F32, Weights: make([]float32, k)}
	for i := range k / 2 {
		o.Weights[i] = 1
	}
	for i := k / 2; i < k; i++ {
		w[i] *= 1.5
	}
	whole, _ := quantizeAll(t, o, w[:k], k)
	o.Weights, o.Group = nil, k/2
	half, _ := quantizeAll(t, o, w[:k/2], k/2)
	squared := func(m *Matrix) (sum float64) {
		for i, v := range m.Dequantize()[:k/2] {
			d := float64(w[i] - v)
			sum += d * d
		}
		return sum
	}
	if got, want := squared(whole), squared(half); !(got < 1.02*want) {
		t.Errorf("squared error %v, %v without the columns that count for nothing", got, want)
	}
}

// TestRow holds rows against codes and scales that are read by themselves, over
// more columns than are unpacked at a time.
func TestRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, bits := rapid.IntRange(1, 700).Draw(t, "k"), rapid.IntRange(MinBits, MaxBits).Draw(t, "bits")
		m := &Matrix{N: 2, K: k, Bits: bits, Group: rapid.IntRange(1, k).Draw(t, "group"), ScaleType: weight.F16, Codebook: normal(1, 1<<bits)}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		all := make([]uint8, 2*k)
		m.Codes, m.Scales = make([]byte, 2*m.RowBytes()), make([]byte, 2*2*m.Groups())
		for i := range all {
			all[i] = uint8(r.IntN(1 << bits))
		}
		for n := range 2 {
			PackCodes(m.Codes[n*m.RowBytes():(n+1)*m.RowBytes()], all[n*k:(n+1)*k], bits)
		}
		m.ScaleType.Encode(m.Scales, normal(r.Uint64(), 2*m.Groups()))
		row, scales := make([]float32, k), make([]float32, m.Groups())
		for n := range 2 {
			m.Row(row, n)
			m.RowScales(scales, n)
			for i, got := range row {
				if want := m.Codebook[all[n*k+i]] * scales[i/m.Group]; got != want {
					t.Fatalf("weight [%d, %d] is %v, want %v", n, i, got, want)
				}
			}
		}
	})
}

// TestFar: weights far from 1 become what those near it become, but for the scales, and errors are true
// where float32 squares are 0 or infinite.
func TestFar(t *testing.T) {
	const n, k = 3, 150
	w := normal(9, n*k)
	for _, name := range []string{"nf", "js", "q4"} {
		for _, method := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
			for _, isa := range available() {
				t.Run(fmt.Sprint(name, method, isa.isa), func(t *testing.T) {
					t.Setenv("LUTQ_ISA", isa.isa)
					o := Options{Codebook: builtin(t, name, 4, 64), Group: 64, Scale: method, ScaleType: weight.F32}
					want, wantErrs := quantizeAll(t, o, w, k)
					for _, exp := range []int{-110, -70, -45, 45, 70, 120} {
						far := make([]float32, len(w))
						for i, v := range w {
							far[i] = float32(math.Ldexp(float64(v), exp))
						}
						m, errs := quantizeAll(t, o, far, k)
						if !slices.Equal(m.Codes, want.Codes) {
							t.Errorf("times 2^%d: other codes", exp)
						}
						for r, e := range errs {
							energy, squared := math.Ldexp(wantErrs[r].Energy, 2*exp), math.Ldexp(wantErrs[r].Squared, 2*exp)
							if math.Abs(e.Energy/energy-1) > 1e-5 || math.Abs(e.Squared/squared-1) > 1e-5 || e.Wants != 0 {
								t.Errorf("times 2^%d: row %d has the error %+v, want %v of %v", exp, r, e, squared, energy)
							}
						}
					}
				})
			}
		}
	}
}

// TestSubnormal: of weights that are subnormal in float32 codes are nearest ones, and a type that cannot hold the
// scales is told together with one that can.
func TestSubnormal(t *testing.T) {
	const k = 64
	w := normal(4, k)
	for _, tc := range []struct {
		size  float64
		scale weight.ScaleType
		wants weight.ScaleType
		error float64 // relative, at most
	}{
		{2e-40, weight.F32, 0, 0.11},
		{2e-40, weight.BF16, 0, 0.13},
		{2e-40, weight.F16, weight.F32, 1},
		{1e-45, weight.F32, 0, 0.9}, // a few steps of the least number
		{1e-37, weight.F16, weight.BF16, 1},
		{1e-9, weight.F16, weight.BF16, 1},
		{4e-8, weight.F16, weight.BF16, 0.8},
		{1e-6, weight.F16, 0, 0.13},
		{1e-9, weight.BF16, 0, 0.11},
		{1e-9, weight.E4M4, weight.BF16, 1},
		{1e-9, weight.S1E4M3, weight.BF16, 1},
		{1e-9, weight.E8M0, 0, 0.2},
	} {
		for _, method := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
			t.Run(fmt.Sprint(tc.size, tc.scale, method), func(t *testing.T) {
				tiny := make([]float32, k)
				for i, v := range w {
					tiny[i] = float32(tc.size * float64(v))
				}
				m, errs := quantizeAll(t, Options{Codebook: builtin(t, "nf", 4, 64), Group: 64, Scale: method, ScaleType: tc.scale}, tiny, k)
				if c := m.Farther(0, tiny); c >= 0 {
					t.Errorf("the code of weight %d is not the nearest", c)
				}
				var want weight.RowError
				for i, v := range m.Dequantize() {
					want.Add(tiny[i], v)
				}
				e := errs[0]
				if math.Abs(e.Energy/want.Energy-1) > 1e-5 || math.Abs(e.Squared-want.Squared) > 1e-5*want.Energy {
					t.Errorf("the error is %+v, want %+v", e, want)
				}
				if e.Wants != tc.wants {
					t.Errorf("wants %v, want %v", e.Wants, tc.wants)
				}
				if got := math.Sqrt(e.Squared / e.Energy); got > tc.error || tc.error == 1 && got < 0.99 {
					t.Errorf("the relative error is %v, want %v", got, tc.error)
				}
			})
		}
	}
}

// TestTooLarge: a scale that does not fit names the type that holds it.
func TestTooLarge(t *testing.T) {
	for _, tc := range []struct {
		size  float32
		scale weight.ScaleType
		wants weight.ScaleType // 0: it fits
	}{
		{1e6, weight.F16, weight.BF16},
		{3e38, weight.BF16, 0},
		{math.MaxFloat32, weight.BF16, weight.F32},
		{math.MaxFloat32, weight.F32, 0},
		{1e30, weight.E4M4, weight.BF16},
		{1e30, weight.S1E4M3, weight.BF16},
	} {
		for _, method := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
			q, err := NewQuantizer(Options{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: method, ScaleType: tc.scale})
			if err != nil {
				t.Fatal(err)
			}
			w := make([]float32, 64)
			w[40] = tc.size
			err = q.Rows([][]byte{ScalesPart: make([]byte, 2*tc.scale.Size()), CodesPart: make([]byte, 32)}, make([]weight.RowError, 1), w)
			var bad *weight.ScaleError
			if got := errors.As(err, &bad); got != (tc.wants != 0) || got && (bad.Group != 1 || bad.Wants() != tc.wants) {
				t.Errorf("%v in %v, %v: got error %+v, want %v", tc.size, tc.scale, method, err, tc.wants)
			}
		}
	}
}

// TestWrongParts: parts in another order, or of another size, are an error.
func TestWrongParts(t *testing.T) {
	q, err := NewQuantizer(Options{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16})
	if err != nil {
		t.Fatal(err)
	}
	table, scales, codes := make([]byte, 64), make([]byte, 2*2*2), make([]byte, 2*32)
	for name, parts := range map[string][][]byte{
		"none": {}, "two": {table, scales}, "turned": {table, codes, scales}, "short codes": {table, scales, codes[1:]}, "long scales": {table, codes, codes},
	} {
		if err := q.Rows(parts, make([]weight.RowError, 2), normal(1, 128)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

// TestSearch holds the scales that are searched against the best of some thousand.
func TestSearch(t *testing.T) {
	const k, n = 64, 60
	w := normal(21, n*k)
	for _, name := range []string{"nf", "js", "jt"} {
		for _, bits := range []int{2, 3, 4} {
			o := Options{Codebook: builtin(t, name, bits, k), Group: k, Scale: weight.MSE, ScaleType: weight.F32}
			m, errs := quantizeAll(t, o, w, k)
			q, err := NewQuantizer(o)
			if err != nil {
				t.Fatal(err)
			}
			q.codes, q.sums = make([]uint8, k), make([]groupError, 1)
			scale := make([]float32, 1)
			var best, got float64
			for r := range n {
				row := w[r*k : (r+1)*k]
				m.RowScales(scale, r)
				least := errs[r].Squared
				for i := range 2500 {
					s := scale[0] * float32(.5+float64(i)/1250)
					least = min(least, float64(q.squared(row, s)))
					if q.signed {
						least = min(least, float64(q.squared(row, -s)))
					}
				}
				best += least
				got += errs[r].Squared
			}
			if got > best*(1+4e-4) {
				t.Errorf("%s of %d bits: error %v, the best is %v", name, bits, got, best)
			}
		}
	}
}
