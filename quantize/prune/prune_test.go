package prune

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

func normal(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

func options(t testing.TB, name string, bits, group int, st weight.ScaleType) Options {
	t.Helper()
	cb, err := lut.NewCodebook(name, bits, group)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Format: lut.Format{Codebook: cb, Group: group, Scale: weight.MSE, ScaleType: st}}
}

// empty returns room for the parts of n rows of k columns.
func empty(t testing.TB, o Options, n, k int) (weight.Spec, [][]byte) {
	t.Helper()
	s := weight.Spec{Kind: lut24.Name, Bits: o.Codebook.Bits(), Group: o.Group, ScaleType: o.ScaleType}
	of, err := lut24.Kind{}.Parts(s, n, k)
	if err != nil {
		t.Fatal(err)
	}
	var parts [][]byte
	for _, p := range of {
		size := map[string]int{"F32": 4, "F16": 2, "BF16": 2, "U8": 1}[p.DType]
		for _, d := range p.Shape {
			size *= d
		}
		parts = append(parts, make([]byte, size))
	}
	return s, parts
}

// quantized returns n rows of w as they are stored.
func quantized(t testing.TB, o Options, w []float32, n int) (*lut24.Matrix, []rounding.RowError) {
	t.Helper()
	k := len(w) / n
	s, parts := empty(t, o, n, k)
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]rounding.RowError, n)
	if err := q.Rows(parts, errs, w); err != nil {
		t.Fatal(err)
	}
	q.Shared(parts)
	return open(t, s, n, k, parts), errs
}

func open(t testing.TB, s weight.Spec, n, k int, parts [][]byte) *lut24.Matrix {
	t.Helper()
	mat, err := lut24.Kind{}.Open(s, n, k, parts)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := mat.(*lut24.Matrix)
	if !ok {
		t.Fatalf("a %T", mat)
	}
	return m
}

// TestRows: what is stored has two of four weights, +0 for the others, the error that is told, and codes and
// scales as package rtn finds them for the kept weights alone.
func TestRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(rt, "bits")
		n, k := rapid.IntRange(1, 4).Draw(rt, "n"), lut24.Chunk*rapid.IntRange(1, 40).Draw(rt, "chunks")
		group := min(rapid.SampledFrom([]int{4, 12, 32, 64, 128}).Draw(rt, "group"), k)
		st := rapid.SampledFrom(lut24.Kind{}.ScaleTypes()).Draw(rt, "scale type")
		o := options(t, rapid.SampledFrom([]string{"js", "nf", "kbit"}).Draw(rt, "codebook"), bits, group, st)
		w := normal(rapid.Uint64().Draw(rt, "seed"), n*k)
		for i := range w {
			if rapid.IntRange(0, 3).Draw(rt, "zero") == 0 {
				w[i] = 0
			}
		}
		if rapid.Bool().Draw(rt, "weighted") {
			for i := range k {
				o.Columns = append(o.Columns, float32(i%7))
			}
		}
		m, errs := quantized(t, o, w, n)
		if gn, gk := m.Shape(); gn != n || gk != k || m.Group() != group || m.Kind() != lut24.Name {
			rt.Fatalf("%d×%d in groups of %d", gn, gk, m.Group())
		}
		if err := m.CheckPadding(); err != nil {
			rt.Fatal(err)
		}
		row := make([]float32, k)
		var keptRows []float32
		for r := range n {
			m.Row(row, r)
			of := w[r*k : (r+1)*k]
			var e rounding.RowError
			for c := range k / lut24.Chunk {
				p := lut24.Nibble(m.RowPattern(r), c)
				score := func(i int) float64 {
					at := c*lut24.Chunk + i
					s := float64(of[at]) * float64(of[at])
					if o.Columns != nil {
						s *= float64(o.Columns[at])
					}
					return s
				}
				least := min(score(int(p&3)), score(int(p>>2)))
				keptRows = append(keptRows, of[c*lut24.Chunk+int(p&3)], of[c*lut24.Chunk+int(p>>2)])
				for i := range lut24.Chunk {
					v := row[c*lut24.Chunk+i]
					e.Add(of[c*lut24.Chunk+i], v)
					if i == int(p&3) || i == int(p>>2) {
						continue
					}
					if math.Float32bits(v) != 0 {
						rt.Fatalf("row %d, column %d: %v where nothing is kept", r, c*lut24.Chunk+i, v)
					}
					if score(i) > least {
						rt.Fatalf("row %d, column %d is dropped for a smaller one", r, c*lut24.Chunk+i)
					}
				}
			}
			for i, h := range o.Columns {
				d := float64(of[i]) - float64(row[i])
				e.Output += float64(h) * float64(of[i]) * float64(of[i])
				e.OutputSquared += float64(h) * d * d
			}
			if math.Abs(e.Output-errs[r].Output) > 1e-9*e.Output || math.Abs(e.OutputSquared-errs[r].OutputSquared) > 1e-9*e.Output {
				rt.Fatalf("row %d: puts out %v and is off by %v, want %v and %v", r, errs[r].Output, errs[r].OutputSquared, e.Output, e.OutputSquared)
			}
			// The sums are of float32 squares: a row of zeros whose smallest scale is 2⁻¹²⁷ has errors below those.
			if math.Abs(e.Energy-errs[r].Energy) > 1e-5*e.Energy || math.Abs(e.Squared-errs[r].Squared) > 1e-5*e.Energy+math.SmallestNonzeroFloat32 {
				rt.Fatalf("row %d: error %+v, want %+v", r, errs[r], e)
			}
			if o.Columns == nil && m.Farther(r, of) >= 0 {
				rt.Fatalf("row %d: column %d is not the nearest", r, m.Farther(r, of))
			}
		}
		half := o.Format
		half.Group = group / 2
		want, err := rtn.Quantize(keptRows, n, k/2, half)
		if err != nil {
			rt.Fatal(err)
		}
		for i, part := range m.Kept.Parts() {
			if !slices.Equal(part, want.Parts()[i]) {
				rt.Fatalf("part %d is not that of the kept weights", i)
			}
		}
	})
}

// TestParts: parts make the same matrix again, and rows of it are rows.
func TestParts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, k := rapid.IntRange(1, 5).Draw(rt, "n"), lut24.Chunk*rapid.IntRange(1, 30).Draw(rt, "chunks")
		o := options(t, "js", rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(rt, "bits"), min(32, k), weight.F16)
		m, _ := quantized(t, o, normal(1, n*k), n)
		s, _ := empty(t, o, n, k)
		again := open(t, s, n, k, m.Parts())
		if !slices.Equal(weight.Dequantize(again), weight.Dequantize(m)) || again.Bytes() != m.Bytes() {
			rt.Fatal("parts make another matrix")
		}
		first := rapid.IntRange(0, n-1).Draw(rt, "first")
		step := rapid.IntRange(1, 3).Draw(rt, "step")
		count := rapid.IntRange(1, (n-1-first)/step+1).Draw(rt, "count")
		some := m.Rows(first, step, count)
		if err := some.Validate(); err != nil {
			rt.Fatal(err)
		}
		a, b := make([]float32, k), make([]float32, k)
		for i := range count {
			some.Row(a, i)
			m.Row(b, first+i*step)
			if !slices.Equal(a, b) {
				rt.Fatalf("row %d is not row %d", i, first+i*step)
			}
		}
	})
}

// TestStore: rows that are fitted, rounded and stored one by one are those of Rows, and a chunk may be chosen
// anew between.
func TestStore(t *testing.T) {
	const n, k = 3, 72
	o := options(t, "js", 3, 24, weight.F16)
	w := normal(2, n*k)
	m, _ := quantized(t, o, w, n)
	s, parts := empty(t, o, n, k)
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Fit(w, n); err != nil {
		t.Fatal(err)
	}
	store := func() *lut24.Matrix {
		stored := make([]float32, n*k)
		for r := range n {
			codes := make([]uint8, k)
			for c := range codes {
				codes[c], stored[r*k+c] = q.Nearest(r, c, w[r*k+c])
			}
			q.Store(parts, n-1-r, r, codes)
		}
		q.Shared(parts)
		back := open(t, s, n, k, parts)
		row := make([]float32, k)
		for r := range n {
			back.Row(row, n-1-r)
			if !slices.Equal(row, stored[r*k:(r+1)*k]) {
				t.Fatalf("row %d is not what codes were said to stand for", r)
			}
		}
		return back
	}
	if want := m.Rows(n-1, -1, n); !slices.Equal(weight.Dequantize(store()), weight.Dequantize(want)) {
		t.Error("rows differ from those that Rows writes")
	}
	q.Keep(1, 8, []float32{1, 1, 1, -1}, []float64{0, 1, 2, 1.5})
	if p := lut24.Nibble(store().RowPattern(1), 2); p != 2|3<<2 {
		t.Errorf("chunk 2 keeps %#x", p)
	}
}

// TestError holds the error of normal weights against the integral: two of four weights dropped by size
// take 0.132 of the squares.
func TestError(t *testing.T) {
	const n, k = 256, 1024
	w := normal(3, n*k)
	var of rounding.RowError
	_, errs := quantized(t, options(t, "js", 5, 128, weight.F32), w, n)
	for _, e := range errs {
		of.Energy += e.Energy
		of.Squared += e.Squared
	}
	m, _ := quantized(t, options(t, "js", 5, 128, weight.F32), w, n)
	var dropped float64
	row := make([]float32, k)
	for r := range n {
		m.Row(row, r)
		for i, v := range row {
			if v == 0 {
				dropped += float64(w[r*k+i]) * float64(w[r*k+i])
			}
		}
	}
	if got := dropped / of.Energy; math.Abs(got-0.132) > 0.002 {
		t.Errorf("dropped %.4f of the squares, want .132", got)
	}
	if got := of.Squared / of.Energy; got < dropped/of.Energy || got > 0.137 {
		t.Errorf("error %.4f", got)
	}
}

// TestDamage: what is no weight, or has bits where nothing is stored, is found.
func TestDamage(t *testing.T) {
	const n, k = 2, 12
	o := options(t, "js", 3, 12, weight.F16)
	m, _ := quantized(t, o, normal(4, n*k), n)
	s, _ := empty(t, o, n, k)
	for _, tc := range []struct {
		name   string
		change func(parts [][]byte)
		open   string
		pad    string
	}{
		{"sound", func([][]byte) {}, "", ""},
		{"a column twice", func(p [][]byte) { p[lut24.PatternPart][2] = p[lut24.PatternPart][2]&^0xf0 | 0x50 }, "pattern of row 1, chunk 1, is 0x5: want i0 | i1<<2 with i0 < i1", ""},
		{"columns out of order", func(p [][]byte) { p[lut24.PatternPart][0] = p[lut24.PatternPart][0]&0xf0 | 1 }, "pattern of row 0, chunk 0, is 0x1: want", ""},
		{"a nibble beyond the last", func(p [][]byte) { p[lut24.PatternPart][3] |= 0x40 }, "", "row 1 has bits set after the pattern of its last chunk"},
		{"a code beyond the last", func(p [][]byte) { p[lut24.CodesPart][2] |= 0x80 }, "", "row 0 has bits set after its last code"},
		{"no scale", func(p [][]byte) { p[lut24.ScalesPart][1] = 0x7e }, "scale [0, 0] is NaN", ""},
		{"a short pattern", func(p [][]byte) { p[lut24.PatternPart] = p[lut24.PatternPart][:3] }, "pattern takes 3 bytes: want 4", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var parts [][]byte
			for _, p := range m.Parts() {
				parts = append(parts, slices.Clone(p))
			}
			tc.change(parts)
			mat, err := lut24.Kind{}.Open(s, n, k, parts)
			if tc.open != "" {
				if err == nil || !strings.Contains(err.Error(), tc.open) {
					t.Errorf("got error %v, want %q", err, tc.open)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			err = mat.CheckPadding()
			if tc.pad == "" && err != nil || tc.pad != "" && (err == nil || err.Error() != tc.pad) {
				t.Errorf("padding: %v, want %q", err, tc.pad)
			}
		})
	}
	if _, err := (lut24.Kind{}).Parts(s, 1, 10); err == nil || err.Error() != "10 columns: weights of kind lut24 take a multiple of 4" {
		t.Errorf("10 columns: %v", err)
	}
	s.Group = 6
	if _, err := (lut24.Kind{}).Parts(s, 1, 12); err == nil || err.Error() != "groups of 6 columns: weights of kind lut24 take a multiple of 4" {
		t.Errorf("groups of 6: %v", err)
	}
}

// TestFarther finds a code, and a choice, that is not the nearest.
func TestFarther(t *testing.T) {
	w := []float32{1, 0.5, -0.75, 0.1, 0.2, 0.3, -1, 0}
	m, _ := quantized(t, options(t, "js", 4, 8, weight.F32), w, 1)
	if at := m.Farther(0, w); at >= 0 {
		t.Errorf("column %d", at)
	}
	if at := m.Farther(0, []float32{1, 0.8, -0.75, 0.1, 0.2, 0.3, -1, 0}); at != 1 {
		t.Errorf("the first that should be kept is %d", at)
	}
	if at := m.Farther(0, []float32{1, 0.5, -0.75, 0.1, 0.2, 0.3, -0.5, 0}); at != 6 {
		t.Errorf("the first of another code is %d", at)
	}
}

// TestNotFinite names a weight that no code can stand for, kept or not.
func TestNotFinite(t *testing.T) {
	o := options(t, "js", 4, 8, weight.F16)
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
		w := normal(5, 24)
		w[17] = bad
		_, parts := empty(t, o, 3, 8)
		err := q.Rows(parts, make([]rounding.RowError, 3), w)
		var e *rounding.NotFiniteError
		if !errors.As(err, &e) || e.Row != 2 || e.Col != 1 {
			t.Errorf("%v: got %v", bad, err)
		}
		if err := q.Fit(w, 3); !errors.As(err, &e) {
			t.Errorf("%v is fitted: %v", bad, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) { o.Group = 0 }, "group of 0 columns"},
		{func(o *Options) { o.Group = 6 }, "groups of 6 columns: weights of kind lut24 take a multiple of 4"},
		{func(o *Options) { o.Columns = []float32{1, -1} }, "column 1 counts -1 times"},
		{func(o *Options) { o.ScaleType = 0 }, "unknown scale type"},
	} {
		o := options(t, "js", 4, 8, weight.F16)
		tc.change(&o)
		if _, err := NewQuantizer(o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got error %v, want %q", err, tc.want)
		}
	}
	o := options(t, "js", 4, 8, weight.F16)
	o.Columns = make([]float32, 12)
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Fit(normal(1, 8), 1); err == nil || err.Error() != "12 columns count for rows of 8" {
		t.Errorf("got error %v", err)
	}
}

// FuzzOpen opens layers of any bytes: what opens has two of four weights other than +0 at most, all numbers.
func FuzzOpen(f *testing.F) {
	f.Add(uint8(4), uint8(2), uint8(3), []byte{0x4e, 0x98}, []byte{0, 0x3c}, []byte{1, 2, 3})
	f.Add(uint8(3), uint8(1), uint8(1), []byte{0x04}, []byte{0, 0x7c}, []byte{0xff})
	f.Add(uint8(2), uint8(1), uint8(2), []byte{0x14}, []byte{0}, []byte{})
	f.Fuzz(func(t *testing.T, bits, n, chunks uint8, pattern, scales, codes []byte) {
		b, rows, k := lut.MinBits+int(bits)%4, 1+int(n)%8, lut24.Chunk*(1+int(chunks)%16)
		o := options(t, "js", b, k, weight.F16)
		s, parts := empty(t, o, rows, k)
		num.EncodeF32(parts[lut24.CodebookPart], o.Codebook.Values)
		for i, fill := range map[int][]byte{lut24.PatternPart: pattern, lut24.ScalesPart: scales, lut24.CodesPart: codes} {
			for j := range parts[i] {
				if len(fill) > 0 {
					parts[i][j] = fill[j%len(fill)]
				}
			}
		}
		m, err := lut24.Kind{}.Open(s, rows, k, parts)
		if err != nil {
			return
		}
		row := make([]float32, k)
		for r := range rows {
			m.Row(row, r)
			for c := range k / lut24.Chunk {
				others := 0
				for _, v := range row[c*lut24.Chunk:][:lut24.Chunk] {
					if v-v != 0 {
						t.Fatalf("row %d has %v", r, v)
					}
					if math.Float32bits(v) != 0 {
						others++
					}
				}
				if others > lut24.Kept {
					t.Fatalf("row %d, chunk %d, keeps %d", r, c, others)
				}
			}
			if m.Farther(r, row) >= 0 {
				t.Fatalf("row %d is not the nearest to itself", r)
			}
		}
	})
}

// TestDense: matrices become dense and sparse again with the same weights, where a table has a 0, and where
// no chunk has more than two others.
func TestDense(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, k := rapid.IntRange(1, 4).Draw(rt, "n"), lut24.Chunk*rapid.IntRange(1, 20).Draw(rt, "chunks")
		bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(rt, "bits")
		o := options(t, "q"+string(rune('0'+bits)), bits, min(k, 16), weight.F16)
		m, _ := quantized(t, o, normal(rapid.Uint64().Draw(rt, "seed"), n*k), n)
		l, err := m.LUT()
		if err != nil {
			rt.Fatal(err)
		}
		if err := l.Validate(); err != nil {
			rt.Fatal(err)
		}
		back, err := lut24.FromLUT(l)
		if err != nil {
			rt.Fatal(err)
		}
		if err := back.Validate(); err != nil {
			rt.Fatal(err)
		}
		spec, _ := empty(t, o, n, k)
		open(t, spec, n, k, back.Parts()) // which checks the pattern
		want := weight.Dequantize(m)
		if !slices.Equal(l.Dequantize(), want) || !slices.Equal(weight.Dequantize(back), want) {
			rt.Fatal("other weights")
		}
	})
	m, _ := quantized(t, options(t, "js", 4, 8, weight.F16), normal(1, 16), 2)
	if _, err := m.LUT(); err == nil || err.Error() != "its table has no 0, which half of the weights of kind lut24 are" {
		t.Errorf("a table without 0: %v", err)
	}
	m, _ = quantized(t, options(t, "q4", 4, 8, weight.F16), normal(1, 16), 2)
	l, err := m.LUT()
	if err != nil {
		t.Fatal(err)
	}
	codes := []uint8{0, 1, 8, 8, 8, 0, 1, 2}
	lut.PackCodes(l.Codes[4:], codes, 4)
	if _, err := lut24.FromLUT(l); err == nil || err.Error() != "row 1 has 3 weights other than 0 in columns 4 to 7: want 2 at most" {
		t.Errorf("three in a chunk: %v", err)
	}
}

// TestWrongParts: parts in another order, or of another size, are an error.
func TestWrongParts(t *testing.T) {
	o := options(t, "js", 4, 32, weight.F16)
	q, err := NewQuantizer(o)
	if err != nil {
		t.Fatal(err)
	}
	_, p := empty(t, o, 2, 64)
	for name, parts := range map[string][][]byte{
		"none": {}, "dense": p[:3], "turned": {p[0], p[1], p[3], p[2]}, "long pattern": {p[0], p[1], p[2], make([]byte, 99)}, "short codes": {p[0], p[1], p[2][1:], p[3]},
	} {
		if err := q.Rows(parts, make([]rounding.RowError, 2), normal(1, 128)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
