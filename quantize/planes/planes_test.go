package planes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/quantize/rounding"
)

func normal(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

// empty returns a matrix of zeros of a format.
func empty(o Options, n, k int) *bcq.Matrix {
	m := &bcq.Matrix{N: n, K: k, Bits: o.Bits, Group: min(o.Group, k), ScaleType: o.ScaleType}
	m.Planes = make([]byte, n*o.Bits*m.PlaneBytes())
	m.Alphas = make([]byte, n*m.Groups()*o.Bits*o.ScaleType.Size())
	if o.Offset {
		m.Offsets = make([]byte, n*m.Groups()*o.ScaleType.Size())
	}
	return m
}

// failer is a test, or a draw of one.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// quantize quantizes rows of k weights at once.
func quantize(t failer, o Options, w []float32, k int) (*bcq.Matrix, []rounding.RowError) {
	t.Helper()
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	m := empty(o, len(w)/k, k)
	errs := make([]rounding.RowError, m.N)
	if err := q.Rows(m.Parts(), errs, w); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Validate(), m.CheckPadding(), opens(m)); err != nil {
		t.Fatal(err)
	}
	return m, errs
}

// opens reports what is wrong with the data of a matrix.
func opens(m *bcq.Matrix) error {
	s := weight.Spec{Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	_, err := bcq.Kind{}.Open(s, m.N, m.K, m.Parts())
	return err
}

// drawOptions draws options for rows of k weights.
func drawOptions(t *rapid.T, k int) Options {
	return Options{
		Bits:      rapid.IntRange(bcq.MinBits, bcq.MaxBits).Draw(t, "bits"),
		Group:     rapid.SampledFrom(append(weight.Groups(), k, 7)).Draw(t, "group"),
		ScaleType: rapid.SampledFrom(bcq.Kind{}.ScaleTypes()).Draw(t, "type"),
		Offset:    rapid.Bool().Draw(t, "offset"),
		Rounds:    rapid.IntRange(0, 4).Draw(t, "rounds"),
	}
}

// TestPlanes holds planes to those that another program made of the same codes.
func TestPlanes(t *testing.T) {
	const n, k = 128, 128
	for bits, want := range map[int]string{2: "e80f2e0ce427de19", 3: "d202d11ea18126f6", 4: "1c46352ece3f4318"} {
		m := empty(Options{Bits: bits, Group: k, ScaleType: weight.F32}, n, k)
		size := bits * m.PlaneBytes()
		codes, back := make([]uint8, k), make([]uint8, k)
		for row := range n {
			for col := range k {
				codes[col] = uint8((131*col + 7*row + col*row%5) % (1 << bits))
			}
			bcq.PackCodes(m.Planes[row*size:(row+1)*size], codes, bits)
			if m.RowCodes(back, row); !slices.Equal(back, codes) {
				t.Fatalf("%d bits: row %d is read as %v, want %v", bits, row, back, codes)
			}
		}
		sum := sha256.Sum256(m.Planes)
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("%d bits: the planes hash to %s, want %s", bits, got, want)
		}
	}
}

// TestRow holds rows against sums in float64 by the definition, which differ by float32's
// roundings alone, and errors against rows.
func TestRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, k := rapid.IntRange(1, 3).Draw(t, "n"), rapid.IntRange(1, 300).Draw(t, "k")
		o := drawOptions(t, k)
		w := normal(rapid.Uint64().Draw(t, "seed"), n*k)
		m, errs := quantize(t, o, w, k)
		size := m.ScaleType.Size()
		row := make([]float32, k)
		number := func(data []byte, i int) float64 {
			var v [1]float32
			m.ScaleType.Decode(v[:], data[i*size:(i+1)*size])
			return float64(v[0])
		}
		for r := range n {
			m.Row(row, r)
			var e rounding.RowError
			for c, got := range row {
				group := r*m.Groups() + c/m.Group
				var want, reach float64
				if m.Offsets != nil {
					want = number(m.Offsets, group)
				}
				reach = math.Abs(want)
				for i := range m.Bits {
					bit := m.Planes[(r*m.Bits+i)*m.PlaneBytes()+c/8] >> (c % 8) & 1
					a := number(m.Alphas, group*m.Bits+i)
					want += (2*float64(bit) - 1) * a
					reach += a
				}
				if math.Abs(float64(got)-want) > 1e-6*reach {
					t.Fatalf("weight [%d, %d] is %v, want %v", r, c, got, want)
				}
				v := float64(w[r*k+c])
				e.Energy += v * v
				e.Squared += (v - float64(got)) * (v - float64(got))
			}
			if math.Abs(e.Squared-errs[r].Squared) > 1e-9*e.Energy || math.Abs(e.Energy-errs[r].Energy) > 1e-9*e.Energy {
				t.Errorf("row %d has the error %+v, want %+v", r, errs[r], e)
			}
			if c := m.Farther(r, w[r*k:(r+1)*k]); c >= 0 {
				t.Errorf("the code of weight [%d, %d] is not the nearest", r, c)
			}
		}
	})
}

// TestRows: rows do not depend on each other, and those taken out of a matrix are what they
// were in it.
func TestRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, k := rapid.IntRange(1, 5).Draw(t, "n"), rapid.IntRange(1, 150).Draw(t, "k")
		o := drawOptions(t, k)
		w := normal(rapid.Uint64().Draw(t, "seed"), n*k)
		m, _ := quantize(t, o, w, k)
		first, step := rapid.IntRange(0, n-1).Draw(t, "first"), rapid.IntRange(1, 2).Draw(t, "step")
		some := m.Rows(first, step, (n-first+step-1)/step)
		got, want := make([]float32, k), make([]float32, k)
		for i := first; i < n; i += step {
			alone, _ := quantize(t, o, w[i*k:(i+1)*k], k)
			m.Row(want, i)
			for _, other := range []struct {
				m   weight.Matrix
				row int
			}{{alone, 0}, {some, (i - first) / step}} {
				if other.m.Row(got, other.row); !slices.Equal(got, want) {
					t.Fatalf("row %d is %v, want %v", i, got, want)
				}
			}
		}
	})
}

// groupErrors returns the error of every group of normal weights as steps of the search have
// it, over all energy.
func groupErrors(q *Quantizer, w []float32, step func() float64) float64 {
	var energy, squared float64
	for from := 0; from < len(w); from += q.opt.Group {
		q.load(w[from:from+q.opt.Group], 0)
		for _, v := range q.w {
			energy += v * v
		}
		squared += step()
	}
	return squared / energy
}

// TestErrors holds the squared error on normal weights, over their energy, against what
// another program computed: of the greedy beginning, of alternating from there, and of
// uniform levels. All of it together has less than any.
func TestErrors(t *testing.T) {
	// Not drawn but spread evenly, and shuffled, so that few are like many.
	w := make([]float32, 1<<17)
	for i := range w {
		w[i] = float32(distuv.UnitNormal.Quantile((float64(i) + 0.5) / float64(len(w))))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(w), func(i, j int) { w[i], w[j] = w[j], w[i] })
	for _, tc := range []struct {
		group, bits           int
		greedy, alternating   float64
		greedyZ, alternatingZ float64
		uniformZ              float64
	}{
		{128, 2, .129, .114, .128, .109, .252},
		{128, 3, .0576, .0351, .0572, .0335, .0460},
		{128, 4, .0321, .0109, .0318, .0101, .0100},
		{64, 2, .126, .111, .125, .103, .202},
		{64, 3, .0556, .0330, .0548, .0304, .0371},
		{64, 4, .0303, .0100, .0295, .0088, .0081},
	} {
		for _, offset := range []bool{false, true} {
			t.Run(fmt.Sprintf("group %d/%d bits/offset %v", tc.group, tc.bits, offset), func(t *testing.T) {
				o := Options{Bits: tc.bits, Group: tc.group, ScaleType: weight.F16, Offset: offset, Rounds: DefaultRounds}
				q, err := NewQuantizer(o)
				if err != nil {
					t.Fatal(err)
				}
				check := func(what string, got, want float64) {
					t.Helper()
					if math.Abs(got/want-1) > 0.03 {
						t.Errorf("%s: error %.4f, want %.4f to 3 %%", what, got, want)
					}
				}
				greedy, alternating := tc.greedy, tc.alternating
				if offset {
					greedy, alternating = tc.greedyZ, tc.alternatingZ
					check("uniform", groupErrors(q, w, func() float64 { q.uniform(); return q.now.error }), tc.uniformZ)
				}
				check("greedy", groupErrors(q, w, func() float64 { q.greedy(); return q.now.error }), greedy)
				check("alternating", groupErrors(q, w, func() float64 {
					q.greedy()
					q.best.copy(&q.now)
					q.alternate()
					return q.best.error
				}), alternating)
				_, errs := quantize(t, o, w[:1<<14], 8*tc.group)
				var energy, squared float64
				for _, e := range errs {
					energy += e.Energy
					squared += e.Squared
				}
				least := alternating
				if offset {
					least = min(least, tc.uniformZ)
				}
				if got := squared / energy; got > 1.02*least {
					t.Errorf("stored: error %.4f, want at most %.4f", got, least)
				}
			})
		}
	}
}

// TestRounds: a round more never makes the error of a group larger, nor does an offset of
// which the best may be 0.
func TestRounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 100).Draw(t, "k")
		o := drawOptions(t, k)
		o.Group = k
		w := normal(rapid.Uint64().Draw(t, "seed"), k)
		if rapid.Bool().Draw(t, "weighted") {
			for range k {
				o.Weights = append(o.Weights, float32(rapid.IntRange(0, 9).Draw(t, "counts")))
			}
		}
		last := math.Inf(1)
		for o.Rounds = range 6 {
			q, err := NewQuantizer(o)
			if err != nil {
				t.Fatal(err)
			}
			q.group(w, 0)
			if q.best.error > last {
				t.Fatalf("with %d rounds the error is %v, with one less %v", o.Rounds, q.best.error, last)
			}
			last = q.best.error
		}
	})
}

// TestWeights: columns that count more have less error, and those that do not count none of
// a say.
func TestWeights(t *testing.T) {
	const k = 128
	w := normal(3, 32*k)
	counts := make([]float32, k)
	for i := range counts {
		counts[i] = 1
		if i%4 == i/64 { // others in the second group
			counts[i] = 50
		}
	}
	o := Options{Bits: 3, Group: 64, ScaleType: weight.F32, Offset: true, Rounds: DefaultRounds}
	plain, _ := quantize(t, o, w, k)
	o.Weights = counts
	weighted, _ := quantize(t, o, w, k)
	error := func(m *bcq.Matrix) (sum float64) {
		row := make([]float32, k)
		for n := range m.N {
			m.Row(row, n)
			for c, v := range row {
				d := float64(w[n*k+c]) - float64(v)
				sum += float64(counts[c]) * d * d
			}
		}
		return sum
	}
	if a, b := error(weighted), error(plain); a > 0.8*b {
		t.Errorf("weighted error %v, of one that knows no weights %v", a, b)
	}
	o.Weights = make([]float32, k) // as if there were none
	zero, _ := quantize(t, o, w, k)
	if !slices.Equal(zero.Planes, plain.Planes) || !slices.Equal(zero.Alphas, plain.Alphas) {
		t.Error("columns that all count nothing do not count alike")
	}
}

// TestDegenerate: groups of equal weights have no error but that of the stored type, and
// ties go to the lower level.
func TestDegenerate(t *testing.T) {
	for _, offset := range []bool{false, true} {
		for _, v := range []float32{0, 1, -0.5, 1e-30} {
			o := Options{Bits: 3, Group: 32, ScaleType: weight.F32, Offset: offset, Rounds: DefaultRounds}
			w := slices.Repeat([]float32{v}, 32)
			m, errs := quantize(t, o, w, 32)
			if errs[0].Squared != 0 {
				t.Errorf("offset %v: weights of %v have the error %v", offset, v, errs[0].Squared)
			}
			var f bcq.Factors
			m.ReadFactors(&f, 0, 0)
			if offset && (f.Z != v || f.Alpha != [bcq.MaxBits]float32{}) {
				t.Errorf("weights of %v have the factors %v and the offset %v", v, f.Alpha, f.Z)
			}
			if !offset && f.Alpha != [bcq.MaxBits]float32{float32(math.Abs(float64(v)))} {
				t.Errorf("weights of %v have the factors %v", v, f.Alpha)
			}
		}
	}
	var l bcq.Levels
	l.Set([]float32{2, 1}, 0)
	for w, want := range map[float64]float32{-9: -3, -2: -3, -1.99: -1, 0: -1, 0.01: 1, 2: 1, 2.01: 3} {
		if got := l.Value[l.Nearest(w)]; got != want {
			t.Errorf("%v is rounded to %v, want %v", w, got, want)
		}
	}
	l.Set([]float32{1, 1}, 0) // -2, 0 by either code, 2
	if !slices.Equal(l.Value, []float32{-2, 0, 0, 2}) || !slices.Equal(l.Code, []uint8{0, 1, 1, 3}) {
		t.Errorf("levels are %v with the codes %v", l.Value, l.Code)
	}
}

func TestBadWeights(t *testing.T) {
	o := Options{Bits: 3, Group: 32, ScaleType: weight.F16, Offset: true, Rounds: 2}
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		w := normal(1, 3*64)
		w[64+40] = float32(v)
		var bad *rounding.NotFiniteError
		err := q.Rows(empty(o, 3, 64).Parts(), make([]rounding.RowError, 3), w)
		if !errors.As(err, &bad) || bad.Row != 1 || bad.Col != 40 {
			t.Errorf("%v: got error %v", v, err)
		}
	}
	w := normal(1, 64)
	w[40] = 1e6
	if err := q.Rows(empty(o, 1, 64).Parts(), make([]rounding.RowError, 1), w); err == nil || !strings.Contains(err.Error(), "a factor of group 1 does not fit f16") {
		t.Errorf("factors beyond float16: got error %v", err)
	}
	for _, change := range []func(o *Options){
		func(o *Options) { o.Bits = 0 }, func(o *Options) { o.Bits = 9 }, func(o *Options) { o.Group = 0 },
		func(o *Options) { o.ScaleType = weight.E4M4 }, func(o *Options) { o.Rounds = -1 },
		func(o *Options) { o.Weights = []float32{1, -1} },
	} {
		bad := o
		change(&bad)
		if _, err := NewQuantizer(bad); err == nil {
			t.Errorf("%+v makes a quantizer", bad)
		}
	}
}

func TestKind(t *testing.T) {
	spec := weight.Spec{Kind: bcq.Name, Bits: 3, Group: 32, Method: bcq.Name, ScaleType: weight.F16}
	m, _ := quantize(t, Options{Bits: 3, Group: 32, ScaleType: weight.F16, Offset: true}, normal(1, 2*70), 70)
	tests := []struct {
		name   string
		change func(s *weight.Spec, data [][]byte)
		want   string
	}{
		{"sound", func(*weight.Spec, [][]byte) {}, ""},
		{"without offsets", func(_ *weight.Spec, data [][]byte) { data[bcq.OffsetsPart] = nil }, ""},
		{"nine bits", func(s *weight.Spec, _ [][]byte) { s.Bits = 9 }, "bits is 9: want 1 to 8"},
		{"bytes for factors", func(s *weight.Spec, _ [][]byte) { s.ScaleType = weight.E4M4 }, "scale type is e4m4: want f16, bf16, f32"},
		{"short planes", func(_ *weight.Spec, data [][]byte) { data[bcq.PlanesPart] = data[bcq.PlanesPart][1:] }, "planes take 53 bytes: want 54"},
		{"short alphas", func(_ *weight.Spec, data [][]byte) { data[bcq.AlphasPart] = data[bcq.AlphasPart][2:] }, "alphas take 34 bytes: want 36"},
		{"short offsets", func(_ *weight.Spec, data [][]byte) { data[bcq.OffsetsPart] = nil; data[bcq.OffsetsPart] = []byte{} }, "offsets take 0 bytes: want 12"},
		{"a factor that is no number", func(_ *weight.Spec, data [][]byte) {
			data[bcq.AlphasPart] = slices.Clone(data[bcq.AlphasPart])
			data[bcq.AlphasPart][19] = 0x7e
		}, "factors of row 1, group 0, reach NaN"},
		{"an infinite offset", func(_ *weight.Spec, data [][]byte) {
			data[bcq.OffsetsPart] = slices.Clone(data[bcq.OffsetsPart])
			copy(data[bcq.OffsetsPart][4:], []byte{0, 0xfc})
		}, "factors of row 0, group 2, reach +Inf"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s, data := spec, m.Parts()
			tc.change(&s, data)
			got, err := bcq.Kind{}.Open(s, 2, 70, data)
			if text := fmt.Sprint(err); err == nil && tc.want != "" || err != nil && text != tc.want {
				t.Fatalf("got error %v, want %q", err, tc.want)
			}
			if err == nil && tc.name == "sound" && !bcq.Equal(got, m) {
				t.Error("other weights")
			}
		})
	}
	padded := m.Rows(0, 1, 2).(*bcq.Matrix)
	padded.Planes[9*4-1] |= 0x80
	if err := padded.CheckPadding(); err == nil || err.Error() != "row 1 has bits set after the last of plane 0" {
		t.Errorf("a bit after the last: got error %v", err)
	}
	w := normal(1, 2*70)
	flipped := m.Rows(0, 1, 2).(*bcq.Matrix)
	flipped.Planes[0] ^= 4 // the largest factor of weight 2
	if got := flipped.Farther(0, w[:70]); got != 2 {
		t.Errorf("the weight with another code is %d, want 2", got)
	}
}

// TestFit: rows that others choose the nearest levels for are those that Rows makes.
func TestFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, k := rapid.IntRange(1, 4).Draw(t, "n"), rapid.IntRange(1, 150).Draw(t, "k")
		o := drawOptions(t, k)
		w := normal(rapid.Uint64().Draw(t, "seed"), n*k)
		want, _ := quantize(t, o, w, k)
		q, err := NewQuantizer(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(q.Fit(normal(1, 2*n*k), 2*n), q.Fit(w, n)); err != nil { // of more rows before
			t.Fatal(err)
		}
		levels, group, count := q.Levels()
		groups := weight.GroupsIn(k, group)
		if len(levels) != n*groups*count {
			t.Fatalf("%d levels, want %d", len(levels), n*groups*count)
		}
		got, row := empty(o, n, k), make([]float32, k)
		for r := range n {
			ranks := make([]uint8, k)
			want.Row(row, r)
			for c := range k {
				var v float32
				ranks[c], v = q.Nearest(r, c, w[r*k+c])
				if v != row[c] || levels[(r*groups+c/group)*count+int(ranks[c])] != v {
					t.Fatalf("weight [%d, %d] is rounded to %v, want %v", r, c, v, row[c])
				}
			}
			q.Store(got.Parts(), r, r, ranks)
		}
		for i, part := range got.Parts() {
			if !slices.Equal(part, want.Parts()[i]) {
				t.Errorf("part %d differs", i)
			}
		}
	})
}

// TestShifted: where groups have an offset, weights that are all larger by a number have the error that they have without
// it, also where factors and codes take turns.
func TestShifted(t *testing.T) {
	const group = 64
	w := normal(11, 64*group)
	shifted := make([]float32, len(w))
	for i, v := range w {
		shifted[i] = v + 8
	}
	for bits := 2; bits <= 4; bits++ {
		q, err := NewQuantizer(Options{Bits: bits, Group: group, ScaleType: weight.F32, Offset: true, Rounds: DefaultRounds})
		if err != nil {
			t.Fatal(err)
		}
		alternated := func(w []float32) (squared float64) {
			for from := 0; from < len(w); from += group {
				q.load(w[from:from+group], 0)
				q.greedy()
				q.best.copy(&q.now)
				q.alternate()
				squared += q.best.error
			}
			return squared
		}
		if want, got := alternated(w), alternated(shifted); math.Abs(got/want-1) > 1e-3 {
			t.Errorf("%d bits: error %v, shifted %v", bits, want, got)
		}
	}
}

// TestWrongParts: parts in another order, or of another size, are an error.
func TestWrongParts(t *testing.T) {
	o := Options{Bits: 3, Group: 32, ScaleType: weight.F16, Offset: true}
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	p := empty(o, 2, 64).Parts()
	for name, parts := range map[string][][]byte{"none": {}, "one": p[:1], "turned": {p[1], p[0], p[2]}, "no offsets": p[:2], "short": {p[0][1:], p[1], p[2]}} {
		if err := q.Rows(parts, make([]rounding.RowError, 2), normal(1, 128)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
