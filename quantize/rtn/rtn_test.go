package rtn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// quantizeAll quantizes rows of k weights at once.
func quantizeAll(t testing.TB, o lut.Format, w []float32, k int) (*lut.Matrix, []rounding.RowError) {
	t.Helper()
	return quantizeWeighed(t, o, w, k, nil)
}

// quantizeWeighed is quantizeAll where columns count so much.
func quantizeWeighed(t testing.TB, o lut.Format, w []float32, k int, columns []float32) (*lut.Matrix, []rounding.RowError) {
	t.Helper()
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	q.Weigh(columns)
	bits, n := o.Codebook.Bits(), len(w)/k
	group := min(o.Group, k)
	m := &lut.Matrix{
		N: n, K: k, Bits: bits, Group: group, ScaleType: o.ScaleType, Codebook: o.Codebook.Values,
		Codes:  make([]byte, n*lut.RowBytes(k, bits)),
		Scales: make([]byte, n*weight.GroupsIn(k, group)*o.ScaleType.Size()),
	}
	errs := make([]rounding.RowError, n)
	if err := q.Rows([][]byte{lut.ScalesPart: m.Scales, lut.CodesPart: m.Codes}, errs, w); err != nil {
		t.Fatal(err)
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m, errs
}

// TestQuantize: the one call makes what a quantizer does, and says what it was not given.
func TestQuantize(t *testing.T) {
	const n, k = 3, 40
	w := normal(7, n*k)
	f := lut.Format{Codebook: builtin(t, "nf", 3, 64), Group: 64, Scale: weight.MSE, ScaleType: weight.BF16}
	want, _ := quantizeAll(t, f, w, k)
	got, err := Quantize(w, n, k, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil || got.Group != k || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: got %+v, want %+v", err, got, want)
	}
	for _, tc := range []struct {
		name string
		do   func() error
		want string
	}{
		{"a weight too few", func() error { _, err := Quantize(w[1:], n, k, f); return err }, "119 weights for 3 rows of 40"},
		{"no rows", func() error { _, err := Quantize(nil, 0, k, f); return err }, "0 weights for 0 rows of 40"},
		{"no format", func() error { _, err := Quantize(w, n, k, lut.Format{}); return err }, "codebook  has 0 values: want 4, 8, 16 or 32"},
		{"NaN", func() error {
			v := slices.Clone(w)
			v[k+2] = float32(math.NaN())
			_, err := Quantize(v, n, k, f)
			return err
		}, "weight [1, 2] is NaN"},
	} {
		if err := tc.do(); err == nil || err.Error() != tc.want {
			t.Errorf("%s: got error %v, want %q", tc.name, err, tc.want)
		}
	}
}

// widths returns those that a built-in codebook has.
func widths(name string) []int {
	if only := lut.OnlyBits(name); only != 0 {
		return []int{only}
	}
	return []int{2, 3, 4, 5}
}

func builtin(t testing.TB, name string, bits, group int) lut.Codebook {
	t.Helper()
	c, err := lut.NewCodebook(name, bits, group)
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
	o := lut.Format{Codebook: builtin(t, "nf", 3, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16}
	for _, tc := range []struct {
		name  string
		spoil func(m *lut.Matrix)
		want  string // empty: it is valid
	}{
		{"whole", func(*lut.Matrix) {}, ""},
		{"no rows", func(m *lut.Matrix) { m.N, m.Codes, m.Scales = 0, nil, nil }, "shape 0×40 has no elements"},
		{"no columns", func(m *lut.Matrix) { m.K, m.Codes, m.Scales = 0, nil, nil }, "shape 2×0 has no elements"},
		{"too few bits", func(m *lut.Matrix) { m.Bits = lut.MinBits - 1 }, "1 bits a code: want 2 to 5"},
		{"too many bits", func(m *lut.Matrix) { m.Bits = lut.MaxBits + 1 }, "6 bits a code: want 2 to 5"},
		{"no group", func(m *lut.Matrix) { m.Group = 0 }, "group of 0 columns in a row of 40"},
		{"group", func(m *lut.Matrix) { m.Group = 41 }, "group of 41 columns in a row of 40"},
		{"codes", func(m *lut.Matrix) { m.Codes = m.Codes[1:] }, "codes take 29 bytes: want 30"},
		{"scale type", func(m *lut.Matrix) { m.ScaleType = 0 }, "unknown scale type"},
		{"scales", func(m *lut.Matrix) { m.Scales = m.Scales[1:] }, "scales take 7 bytes: want 8"},
		{"table", func(m *lut.Matrix) { m.Codebook = m.Codebook[1:] }, "codebook of 7 values: want 8"},
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

// TestSymmetric holds sym to the integers, and its errors on normal weights in groups of 128 to those of
// MARLIN's scales: 2m/15 of the largest magnitude m, the best of those with a part of m in steps of
// a hundredth, and m/7, which int has. They were computed with another program.
func TestSymmetric(t *testing.T) {
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
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
		o := lut.Format{Codebook: builtin(t, tc.name, 4, 128), Group: 128, Scale: tc.scale, ScaleType: weight.F16}
		m, errs := quantizeAll(t, o, normal(3, 1<<19), 1024)
		var sum rounding.RowError
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

// TestNearest checks every code against the definition, a count of midpoints.
func TestNearest(t *testing.T) {
	for _, name := range lut.CodebookNames() {
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
	for _, name := range lut.CodebookNames() {
		for _, bits := range widths(name) {
			for _, group := range []int{32, 64, 128, 256, k} {
				for _, st := range (lut.Kind{}).ScaleTypes() {
					for _, method := range []weight.ScaleMethod{weight.Absmax, weight.MSE} {
						o := lut.Format{Codebook: builtin(t, name, bits, group), Group: group, Scale: method, ScaleType: st}
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
func checkMatrix(t *testing.T, what string, m *lut.Matrix, errs []rounding.RowError, w []float32) {
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
		bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(rt, "bits")
		k := rapid.IntRange(1, 200).Draw(rt, "k")
		group := rapid.SampledFrom([]int{32, 64, k}).Draw(rt, "group")
		n := rapid.IntRange(1, 6).Draw(rt, "n")
		cut := rapid.IntRange(0, n).Draw(rt, "cut")
		w := normal(rapid.Uint64().Draw(rt, "seed"), n*k)
		o := lut.Format{Codebook: builtin(t, "js", bits, group), Group: group, Scale: weight.MSE, ScaleType: weight.F16}
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
			_, errs := quantizeAll(t, lut.Format{Codebook: builtin(t, tc.codebook, tc.bits, tc.group), Group: tc.group, Scale: tc.scale, ScaleType: weight.F32}, w, tc.group)
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
			_, errs := quantizeAll(t, lut.Format{Codebook: builtin(t, tc.codebook, 4, 32), Group: 32, Scale: weight.MSE, ScaleType: st}, w, 32)
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
		m, _ := quantizeAll(t, lut.Format{Codebook: table, Group: group, Scale: method, ScaleType: weight.E8M0}, w, group)
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
		for _, o := range []lut.Format{
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
				m := lut.Matrix{N: 1, K: 32, Bits: o.Codebook.Bits(), Group: 32, ScaleType: o.ScaleType, Codebook: o.Codebook.Values, Codes: make([]byte, 20), Scales: make([]byte, o.ScaleType.Size())}
				m.Codes = m.Codes[:lut.RowBytes(32, m.Bits)]
				errs := make([]rounding.RowError, 1)
				err = q.Rows([][]byte{lut.ScalesPart: m.Scales, lut.CodesPart: m.Codes}, errs, tc.w)
				var bad *rounding.NotFiniteError
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
	q, err := NewQuantizer(lut.Format{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Rows([][]byte{lut.ScalesPart: make([]byte, 2), lut.CodesPart: make([]byte, 16)}, make([]rounding.RowError, 1), group(1e6)); err == nil {
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
			q, err := NewQuantizer(lut.Format{Codebook: builtin(b, tc.codebook, tc.bits, 64), Group: 64, Scale: tc.scale, ScaleType: weight.F16})
			if err != nil {
				b.Fatal(err)
			}
			n := len(w) / k
			codes, scales := make([]byte, n*lut.RowBytes(k, tc.bits)), make([]byte, n*k/64*2)
			errs := make([]rounding.RowError, n)
			for b.Loop() {
				if err := q.Rows([][]byte{lut.ScalesPart: scales, lut.CodesPart: codes}, errs, w); err != nil {
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
		o := lut.Format{Codebook: builtin(t, "js", 2, group), Group: group, Scale: weight.MSE, ScaleType: st}
		if st.Size() == 1 {
			o.Codebook = o.Codebook.Scaled(.25)
		}
		weighted := func(m *lut.Matrix) (sum float64) {
			for i, v := range m.Dequantize() {
				d := float64(w[i] - v)
				sum += float64(weights[i%k]) * d * d
			}
			return sum
		}
		plain, _ := quantizeAll(t, o, w, k)
		searched, _ := quantizeWeighed(t, o, w, k, weights)
		if got, without := weighted(searched), weighted(plain); !(got < .85*without) {
			t.Errorf("%v: weighted error %v, %v unless it is searched for", st, got, without)
		}
	}

	o := lut.Format{Codebook: builtin(t, "nf", 4, k), Group: k, Scale: weight.MSE, ScaleType: weight.F32}
	columns := make([]float32, k)
	for i := range k / 2 {
		columns[i] = 1
	}
	for i := k / 2; i < k; i++ {
		w[i] *= 1.5
	}
	whole, _ := quantizeWeighed(t, o, w[:k], k, columns)
	o.Group = k / 2
	half, _ := quantizeAll(t, o, w[:k/2], k/2)
	squared := func(m *lut.Matrix) (sum float64) {
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
					o := lut.Format{Codebook: builtin(t, name, 4, 64), Group: 64, Scale: method, ScaleType: weight.F32}
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
				m, errs := quantizeAll(t, lut.Format{Codebook: builtin(t, "nf", 4, 64), Group: 64, Scale: method, ScaleType: tc.scale}, tiny, k)
				if c := m.Farther(0, tiny); c >= 0 {
					t.Errorf("the code of weight %d is not the nearest", c)
				}
				var want rounding.RowError
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
			q, err := NewQuantizer(lut.Format{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: method, ScaleType: tc.scale})
			if err != nil {
				t.Fatal(err)
			}
			w := make([]float32, 64)
			w[40] = tc.size
			err = q.Rows([][]byte{lut.ScalesPart: make([]byte, 2*tc.scale.Size()), lut.CodesPart: make([]byte, 32)}, make([]rounding.RowError, 1), w)
			var bad *rounding.ScaleError
			if got := errors.As(err, &bad); got != (tc.wants != 0) || got && (bad.Group != 1 || bad.Wants() != tc.wants) {
				t.Errorf("%v in %v, %v: got error %+v, want %v", tc.size, tc.scale, method, err, tc.wants)
			}
		}
	}
}

// TestWrongParts: parts in another order, or of another size, are an error.
func TestWrongParts(t *testing.T) {
	q, err := NewQuantizer(lut.Format{Codebook: builtin(t, "nf", 4, 32), Group: 32, Scale: weight.Absmax, ScaleType: weight.F16})
	if err != nil {
		t.Fatal(err)
	}
	table, scales, codes := make([]byte, 64), make([]byte, 2*2*2), make([]byte, 2*32)
	for name, parts := range map[string][][]byte{
		"none": {}, "two": {table, scales}, "turned": {table, codes, scales}, "short codes": {table, scales, codes[1:]}, "long scales": {table, codes, codes},
	} {
		if err := q.Rows(parts, make([]rounding.RowError, 2), normal(1, 128)); err == nil || strings.Contains(err.Error(), "\n") {
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
			o := lut.Format{Codebook: builtin(t, name, bits, k), Group: k, Scale: weight.MSE, ScaleType: weight.F32}
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

// TestRescale: a scale is the fitted one times the last factor, as it is stored, and codes are by it. What the type does not hold
// changes nothing.
func TestRescale(t *testing.T) {
	const k, group = 128, 64
	cb, err := lut.NewCodebook("nf", 3, group)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewQuantizer(lut.Format{Codebook: cb, Group: group, Scale: weight.Absmax, ScaleType: weight.F16})
	if err != nil {
		t.Fatal(err)
	}
	w := make([]float32, 2*k)
	for i := range w {
		w[i] = float32(i%group-20) / 10
	}
	if err := q.Fit(w, 2); err != nil {
		t.Fatal(err)
	}
	const row, col = 1, 70
	_, before := q.Nearest(row, col, 100)
	for _, tc := range []struct {
		by, want float32
		ok       bool
	}{{.5, .5, true}, {2, 2, true}, {1e9, 2, false}, {1e-12, 2, false}, {1, 1, true}} {
		if ok := q.Rescale(row, col, tc.by); ok != tc.ok {
			t.Errorf("by %v: %v", tc.by, ok)
		}
		if _, got := q.Nearest(row, col, 100); got != tc.want*before {
			t.Errorf("by %v: the largest weight is %v, of %v", tc.by, got, before)
		}
		if _, got := q.Nearest(row, col-group, 100); got != before {
			t.Errorf("by %v: another group's is %v", tc.by, got)
		}
	}
}
