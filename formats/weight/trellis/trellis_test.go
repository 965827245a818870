package trellis_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
)

func code(t rapid.TB, codebook string, rate int) *trellis.Code {
	t.Helper()
	c, err := trellis.NewCode(codebook, rate)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRates: which widths there are, and that nothing else is one.
func TestRates(t *testing.T) {
	for codebook, want := range map[string]string{
		trellis.Pairs: "[2 3 4 5 6 7 8 9 10 11 12]", trellis.Mul1: "[2 3 4 5 6 7 8 10 12 14 16]",
		trellis.MCG: "[2 4 6 8 10 12 14 16]", trellis.Inst3: "[2 4 6 8 10 12 14 16]", "nf": "[]",
	} {
		if got := fmt.Sprint(trellistest.Rates(codebook)); got != want {
			t.Errorf("%s has the rates %s: want %s", codebook, got, want)
		}
	}
}

// TestPack: what steps add comes back from a ring, and a window is that of the last bits as the package's comment spells them.
func TestPack(t *testing.T) {
	for _, codebook := range trellis.Codebooks() {
		for _, rate := range trellistest.Rates(codebook) {
			t.Run(fmt.Sprint(codebook, rate), rapid.MakeCheck(func(t *rapid.T) {
				l := code(t, codebook, rate).Layout()
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				symbols, got := make([]uint16, l.Steps()), make([]uint16, l.Steps())
				var ends []int // of steps in the string
				var text []byte
				for i := range symbols {
					n := l.Bits(i)
					symbols[i] = uint16(rng.IntN(1 << n))
					digits := fmt.Appendf(nil, "%0*b", n, symbols[i])
					if codebook == trellis.Pairs {
						slices.Reverse(digits) // the lowest bit comes first
					}
					text = append(text, digits...)
					ends = append(ends, len(text))
				}
				ring := bytes.Repeat([]byte{0xA5}, l.Bytes())
				l.Pack(ring, symbols)
				if l.Symbols(got, ring); !slices.Equal(got, symbols) {
					t.Fatalf("packed %v, unpacked %v", symbols, got)
				}
				if len(text) != 8*len(ring) || len(symbols)*l.Together != l.Rows*l.Cols {
					t.Fatalf("%d steps with %d bits in %d bytes", len(symbols), len(text), len(ring))
				}
				text = append(text, text...)
				windows := trellis.Windows(l, ring)
				for i := range symbols {
					var want uint16
					for b := range trellis.Window {
						if codebook == trellis.Pairs { // from the step's first bit on
							want |= uint16(text[ends[i]-rate+b]-'0') << b
							continue
						}
						want |= uint16(text[len(text)/2+ends[i]-1-b]-'0') << b // up to the step's last
					}
					if got := l.Window(ring, i); got != want || windows[i] != want {
						t.Fatalf("the window of step %d is %04x, among all %04x: want %04x", i, got, windows[i], want)
					}
				}
			}))
		}
	}
}

// TestAt: steps are all weights of a ring, each once.
func TestAt(t *testing.T) {
	for _, codebook := range trellis.Codebooks() {
		l := code(t, codebook, 6).Layout()
		seen := make(map[[2]int]int)
		for i := range l.Steps() {
			row, col := l.At(i)
			for j := range l.Together {
				seen[[2]int{row, col + j}]++
			}
		}
		for row := range l.Rows {
			for col := range l.Cols {
				if seen[[2]int{row, col}] != 1 {
					t.Errorf("%s: weight %d, %d is in %d steps", codebook, row, col, seen[[2]int{row, col}])
				}
			}
		}
	}
}

// TestHadamard holds the butterflies against the matrix: H[i,j] is −1 where i and j have an odd number of bits in common.
func TestHadamard(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for n := 1; n <= 256; n *= 2 {
		v, v64, want := make([]float32, n), make([]float64, n), make([]float64, n)
		for j := range v {
			v[j] = float32(rng.IntN(2001) - 1000) // whose sums are exact
			v64[j] = float64(v[j])
			for i := range want {
				want[i] += float64(v[j]) * float64(1-2*(bits.OnesCount(uint(i&j))%2))
			}
		}
		trellis.Hadamard(v)
		trellis.Hadamard(v64)
		for i := range want {
			if float64(v[i]) != want[i] || v64[i] != want[i] {
				t.Fatalf("%d numbers: number %d is %v, %v in float64: want %v", n, i, v[i], v64[i], want[i])
			}
		}
	}
}

// TestBlocks: blocks come in order, as large as they can be.
func TestBlocks(t *testing.T) {
	for _, tc := range []struct {
		k    int
		want string
	}{
		{1, "1"}, {3, "2 1"}, {128, "128"}, {130, "128 2"}, {200, "128 64 8"}, {384, "128 128 128"}, {127, "64 32 16 8 4 2 1"}, {288, "128 128 32"},
	} {
		var sizes []string
		at := 0
		trellis.Blocks(tc.k, func(from, to int) {
			if from != at {
				t.Errorf("%d columns: a block from %d on behind one to %d", tc.k, from, at)
			}
			at = to
			sizes = append(sizes, fmt.Sprint(to-from))
		})
		if got := strings.Join(sizes, " "); got != tc.want || at != tc.k {
			t.Errorf("%d columns: blocks of %s to %d: want %s", tc.k, got, at, tc.want)
		}
	}
	for size := 1; size <= 128; size *= 2 {
		if even := float64(trellis.Even(size)); math.Abs(even*even*float64(size)-128) > 1e-4 || size == 128 && even != 1 {
			t.Errorf("the factor of %d columns is %v", size, even)
		}
	}
}

// TestSign: signs are even, and none follows from the last.
func TestSign(t *testing.T) {
	const n = 1 << 14
	var sum, next float64
	text := ""
	for k := range n {
		s := trellis.Sign(k)
		if s != 1 && s != -1 {
			t.Fatalf("the sign of column %d is %v", k, s)
		}
		sum, next = sum+float64(s), next+float64(s*trellis.Sign(k+1))
		if k < 32 {
			text += map[float32]string{-1: "-", 1: "+"}[s]
		}
	}
	if limit := 4 * math.Sqrt(n); math.Abs(sum) > limit || math.Abs(next) > limit {
		t.Errorf("signs add up to %v, times their next ones to %v", sum, next)
	}
	// By the formula, in Python.
	if want := "-+---++++++---+--++++++--+-++---"; text != want {
		t.Errorf("the first signs are %s: want %s", text, want)
	}
}

// layers draws a random layer of odd shape.
func layers(t *rapid.T) *trellis.Matrix {
	codebook := rapid.SampledFrom(trellis.Codebooks()).Draw(t, "codebook")
	rate := rapid.SampledFrom(trellistest.Rates(codebook)).Draw(t, "rate")
	n := rapid.SampledFrom([]int{1, 7, 9, 40, 131}).Draw(t, "rows")
	k := rapid.SampledFrom([]int{1, 3, 16, 130, 176, 200, 384}).Draw(t, "columns")
	s := trellistest.Spec(codebook, rate, rapid.SampledFrom(trellis.Kind{}.ScaleTypes()).Draw(t, "scales"))
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	m, err := trellistest.Matrix(rng, s, n, k, rapid.Bool().Draw(t, "factors"), rapid.Bool().Draw(t, "table"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// rings returns r[n,j] of the package's comment, [rows with padding, columns with padding].
func rings(m *trellis.Matrix) (r []float64, cols int) {
	l := m.Code.Layout()
	cols = m.Columns()
	rows := (m.N + l.Band - 1) / l.Band * l.Band
	r = make([]float64, rows*cols)
	for i := range rows / l.Rows {
		for c := range cols / l.Cols {
			ring := m.Rings[(i*(cols/l.Cols)+c)*l.Bytes():][:l.Bytes()]
			for step := range l.Steps() {
				row, col := l.At(step)
				for j := range l.Together {
					h := uint16(m.Code.Pair(l.Window(ring, step)) >> (16 * j))
					r[(i*l.Rows+row)*cols+c*l.Cols+col+j] = float64(num.F16ToF32(h))
				}
			}
		}
	}
	return r, cols
}

func h(i, j int) float64 { return float64(1 - 2*(bits.OnesCount(uint(i&j))%2)) }

// TestRow holds rows against the formulas of the package's comment in float64.
func TestRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := layers(t)
		r, cols := rings(m)
		pairs := m.Code.Codebook == trellis.Pairs
		scales, factors := m.RowScales(), m.ColumnFactors()
		mixed := cols
		if pairs {
			mixed = m.K
		}
		got := make([]float32, m.K)
		for _, n := range []int{0, m.N / 2, m.N - 1} {
			// Down the columns first, which EXL3's are mixed by too.
			across := slices.Clone(r[n*cols : (n+1)*cols])
			if !pairs {
				clear(across)
				for i := range trellis.Block {
					for j := range across {
						across[j] += h(i, n%trellis.Block) * r[(n/trellis.Block*trellis.Block+i)*cols+j] / trellis.Block
					}
				}
			}
			m.Row(got, n)
			trellis.Blocks(mixed, func(from, to int) {
				even := math.Sqrt(float64(trellis.Block) / float64(to-from))
				for k := from; k < min(to, m.K); k++ {
					var sum, size float64
					for j := from; j < to; j++ {
						sum += h(j-from, k-from) * across[j]
						size += math.Abs(across[j])
					}
					by := even * float64(scales[n]) * float64(factors[k])
					if want := sum * by; math.Abs(float64(got[k])-want) > 1e-5*math.Abs(size*by) {
						t.Fatalf("weight [%d, %d] is %v: want %v", n, k, got[k], want)
					}
				}
			})
		}
	})
}

// TestRotate: the product by what rings hold of a rotated x is that by the weights.
func TestRotate(t *testing.T) {
	for _, k := range []int{1, 3, 130, 176, 200, 384} {
		for _, n := range []int{1, 7, 9} {
			rng := rand.New(rand.NewPCG(uint64(k), uint64(n)))
			m, err := trellistest.Matrix(rng, trellistest.Spec(trellis.Pairs, 5, weight.F32), n, k, n == 7, true)
			if err != nil {
				t.Fatal(err)
			}
			r, cols := rings(m)
			const batch = 3
			x, rotated := make([]float32, batch*k), make([]float32, batch*k)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			trellis.Rotate(rotated, x, m.ColumnFactors())
			w, scales := weight.Dequantize(m), m.RowScales()
			for b := range batch {
				for n := range n {
					var want, got, size float64
					for i := range k {
						term := float64(x[b*k+i]) * float64(w[n*k+i])
						want, size = want+term, size+math.Abs(term)
						got += float64(rotated[b*k+i]) * r[n*cols+i]
					}
					got *= float64(scales[n]) * math.Sqrt(trellis.Block)
					if math.Abs(got-want) > 1e-5*size {
						t.Errorf("%d×%d: product %d, %d is %v by rings, %v by weights", m.N, k, b, n, got, want)
					}
				}
			}
		}
	}
}

// TestRows: rows that are read together, and those of views and of views of views, are those of the whole, bit for bit.
func TestRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := layers(t)
		all, row := weight.Dequantize(m), make([]float32, m.K)
		scales := m.RowScales()
		check := func(of weight.Matrix, at func(i int) int) {
			if err := of.Validate(); err != nil {
				t.Fatal(err)
			}
			n, k := of.Shape()
			several := make([]float32, n*k)
			of.(weight.Several).RowsTo(several, 0, n)
			viewed, err := trellis.Of(of)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				want := all[at(i)*k : (at(i)+1)*k]
				if of.Row(row, i); !slices.Equal(row, want) {
					t.Fatalf("row %d is %v: want %v", i, row, want)
				}
				if !slices.Equal(several[i*k:(i+1)*k], want) {
					t.Fatalf("row %d of several is %v: want %v", i, several[i*k:(i+1)*k], want)
				}
				if got := viewed.RowScales()[i]; got != scales[at(i)] {
					t.Fatalf("the scale of row %d is %v: want %v", i, got, scales[at(i)])
				}
			}
			if !viewed.Whole() {
				return
			}
			// It can be stored by itself.
			back, err := trellis.Kind{}.Open(viewed.Spec(), n, k, of.Parts())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(weight.Dequantize(back), several) {
				t.Fatal("what is stored of a part has other rows")
			}
		}
		check(m, func(i int) int { return i })
		view := func(of weight.Matrix) (v weight.Matrix, first, step int) {
			n, _ := of.Shape()
			first = rapid.IntRange(0, n-1).Draw(t, "first")
			if rapid.Bool().Draw(t, "aligned") {
				first -= first % m.Code.Layout().Band
			}
			step = rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "step")
			count := rapid.IntRange(1, (n-first+step-1)/step).Draw(t, "count")
			return of.Rows(first, step, count), first, step
		}
		v, first, step := view(m)
		check(v, func(i int) int { return first + i*step })
		vv, f2, s2 := view(v)
		check(vv, func(i int) int { return first + (f2+i*s2)*step })
	})
}

// single hides that rows are read faster together.
type single struct{ weight.Matrix }

// TestReader: rows that are read near each other, in any order, are those of the matrix; and so are they of a kind whose rows are read one
// by one.
func TestReader(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	m, err := trellistest.Matrix(rng, trellistest.Spec(trellis.Pairs, 4, weight.F16), 2*weight.Together+3, 24, true, false)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float32, m.K)
	for _, of := range []weight.Matrix{m, single{m}, m.Rows(1, 2, weight.Together+1), m.Rows(weight.Together, 1, 5)} {
		read := weight.NewReader(of)
		rows, _ := of.Shape()
		for i := range 3 * rows {
			n := i
			if i >= rows {
				n = rng.IntN(rows)
			}
			if of.Row(want, n); !slices.Equal(read.Row(n), want) {
				t.Fatalf("row %d of %d is another one", n, rows)
			}
		}
	}
}

// TestWholeRows: bands are a matrix of their own, which takes no more than its rows do.
func TestWholeRows(t *testing.T) {
	for codebook, band := range map[string]int{trellis.Pairs: 8, trellis.Mul1: 128} {
		m, err := trellistest.Matrix(rand.New(rand.NewPCG(2, 2)), trellistest.Spec(codebook, 4, weight.F16), 3*band+5, 40, true, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			first, step, n int
			whole          bool
			bands          int
		}{
			{0, 1, m.N, true, 4},
			{band, 1, band, true, 1},
			{band, 1, 2*band + 5, true, 3},
			{3 * band, 1, 5, true, 1},
			{band, 1, band + 1, false, 4},
			{1, 1, band, false, 4},
			{0, 2, band, false, 4},
		} {
			v, err := trellis.Of(m.Rows(tc.first, tc.step, tc.n))
			if err != nil {
				t.Fatal(err)
			}
			if v.Whole() != tc.whole || len(v.Rings) != tc.bands*len(m.Rings)/4 {
				t.Errorf("%s: %d rows from %d on, each %d-th: whole %v, rings of %d bytes", codebook, tc.n, tc.first, tc.step, v.Whole(), len(v.Rings))
			}
		}
	}
}

// TestOpen: what opens is what was stored, and nothing else opens.
func TestOpen(t *testing.T) {
	infinite := func(part, at int) func([][]byte) {
		return func(data [][]byte) { binary.LittleEndian.PutUint16(data[part][2*at:], 0x7C00) }
	}
	short := func(part int) func([][]byte) {
		return func(data [][]byte) { data[part] = data[part][:len(data[part])-1] }
	}
	fast, computed := trellistest.Spec(trellis.Pairs, 5, weight.F16), trellistest.Spec(trellis.Mul1, 5, weight.F16)
	tests := []struct {
		name   string
		spec   weight.Spec
		change func(data [][]byte)
		want   string
	}{
		{"sound", fast, func([][]byte) {}, ""},
		{"sound, EXL3", computed, func([][]byte) {}, ""},
		{"no factors", fast, func(data [][]byte) { data[trellis.FactorsPart] = nil }, ""},
		{"no table", fast, func(data [][]byte) { data[trellis.TablePart] = nil }, ""},
		{"no factors, EXL3", computed, func(data [][]byte) { data[trellis.FactorsPart] = nil }, "codebook mul1 without factors of columns"},
		{"a short ring", fast, short(trellis.RingsPart), "rings take 879 bytes: want 880"},
		{"a short ring, EXL3", computed, short(trellis.RingsPart), "rings take 10239 bytes: want 10240"},
		{"a scale less", fast, short(trellis.ScalesPart), "scales take 17 bytes: want 18"},
		{"a scale less, EXL3", computed, short(trellis.ScalesPart), "scales take 255 bytes: want 256"},
		{"a factor less", fast, short(trellis.FactorsPart), "factors take 339 bytes: want 340"},
		{"a factor less, EXL3", computed, short(trellis.FactorsPart), "factors take 511 bytes: want 512"},
		{"half a pair", fast, short(trellis.TablePart), fmt.Sprintf("a table of %d bytes: want %d", 4*trellis.Entries-1, 4*trellis.Entries)},
		{"an infinite scale", fast, infinite(trellis.ScalesPart, 8), "the scale of row 8 is +Inf"},
		{"an infinite scale of padding", computed, infinite(trellis.ScalesPart, 100), "the scale of row 100 is +Inf"},
		{"an infinite factor", fast, infinite(trellis.FactorsPart, 169), "the factor of column 169 is not finite"},
		{"an infinite second", fast, infinite(trellis.TablePart, 7), "pair 3 of the table is not finite"},
		{"an infinite first", fast, infinite(trellis.TablePart, 8), "pair 4 of the table is not finite"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			data, err := trellistest.Parts(rand.New(rand.NewPCG(3, 3)), tc.spec, 9, 170, true, true)
			if err != nil {
				t.Fatal(err)
			}
			tc.change(data)
			m, err := trellis.Kind{}.Open(tc.spec, 9, 170, data)
			if err != nil {
				if err.Error() != tc.want {
					t.Errorf("got error %q: want %q", err, tc.want)
				}
				return
			}
			if tc.want != "" {
				t.Fatalf("it opens: want %q", tc.want)
			}
			var size int
			back := m.Parts()
			for i, part := range data {
				size += len(part)
				if !bytes.Equal(back[i], part) {
					t.Errorf("part %d is not what was stored", i)
				}
			}
			if n, k := m.Shape(); n != 9 || k != 170 || m.Kind() != trellis.Name || m.Bytes() != int64(size) || len(back) != len(data) {
				t.Errorf("%d×%d of kind %s, %d bytes in %d parts: want %d in %d", n, k, m.Kind(), m.Bytes(), len(back), size, len(data))
			}
			if m.CheckPadding() != nil || m.Farther(8, make([]float32, 170)) != -1 {
				t.Error("some bits are padding, or some code is not the nearest")
			}
			if got := m.(*trellis.Matrix).Spec(); got != tc.spec {
				t.Errorf("stored as %+v, read as %+v", tc.spec, got)
			}
		})
	}
}

// TestOpenNoKind: what has no parts does not open either.
func TestOpenNoKind(t *testing.T) {
	for _, s := range []weight.Spec{
		trellistest.Spec("nf", 4, weight.F16), trellistest.Spec(trellis.MCG, 5, weight.F16), trellistest.Spec(trellis.Pairs, 4, weight.E8M0),
		trellistest.Spec(trellis.Pairs, 18, weight.F16),
	} {
		if m, err := (trellis.Kind{}).Open(s, 1, 1, make([][]byte, 4)); err == nil {
			t.Errorf("%+v opens as %+v", s, m)
		}
	}
}

// TestLargeWeights: a scale that opens gives finite weights, whatever the table and the factors.
func TestLargeWeights(t *testing.T) {
	s := trellistest.Spec(trellis.Pairs, 4, weight.F32)
	data, err := trellistest.Parts(rand.New(rand.NewPCG(4, 4)), s, 1, 128, true, true)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data[trellis.FactorsPart] {
		data[trellis.FactorsPart][i] = []byte{0xFF, 0x7B}[i%2] // 65504
	}
	for i := range data[trellis.TablePart] {
		data[trellis.TablePart][i] = []byte{0xFF, 0x7B}[i%2]
	}
	for exp := 0; exp < 128; exp++ {
		s.ScaleType.Encode(data[trellis.ScalesPart], []float32{float32(math.Ldexp(1, exp))})
		m, err := trellis.Kind{}.Open(s, 1, 128, data)
		if err != nil {
			if exp < 60 {
				t.Errorf("a scale of 2^%d: %v", exp, err)
			}
			continue
		}
		row := make([]float32, 128)
		m.Row(row, 0)
		for _, v := range row {
			if v-v != 0 {
				t.Fatalf("a scale of 2^%d gives %v", exp, v)
			}
		}
	}
}

// TestParts refuses layers that there are not.
func TestParts(t *testing.T) {
	sound := trellistest.Spec(trellis.Pairs, 4, weight.F16)
	tests := []struct {
		name   string
		n, k   int
		change func(s *weight.Spec)
		want   string
	}{
		{"sound", 1, 1, func(*weight.Spec) {}, ""},
		{"no codebook is the first", 1, 1, func(s *weight.Spec) { s.Codebook = "" }, ""},
		{"a group", 1, 1, func(s *weight.Spec) { s.Group = 64 }, ""}, // which defaults may have given
		{"no rows", 0, 1, func(*weight.Spec) {}, "shape 0×1 has no elements"},
		{"no columns", 1, 0, func(*weight.Spec) {}, "shape 1×0 has no elements"},
		{"another kind's codebook", 1, 1, func(s *weight.Spec) { s.Codebook = "nf" }, `unknown trellis codebook "nf"`},
		{"half a bit", 1, 1, func(s *weight.Spec) { s.Bits, s.Half = 0, true }, "bits is 0: want 1 to 8"},
		{"too many bits", 1, 1, func(s *weight.Spec) { s.Bits, s.Half = 6, true }, "6.5 bits a weight: codebook trellis has 1 to 6"},
		{"halves of mcg", 1, 1, func(s *weight.Spec) { s.Half, s.Codebook = true, trellis.MCG }, "2.5 bits a weight: codebook mcg has none"},
		{"halves of many bits", 1, 1, func(s *weight.Spec) { s.Bits, s.Half, s.Codebook = 4, true, trellis.Mul1 }, "4.5 bits a weight: codebook mul1 has none"},
		{"bytes for scales", 1, 1, func(s *weight.Spec) { s.ScaleType = weight.E4M4 }, "scale type is e4m4: want f16, bf16, f32"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := sound
			tc.change(&s)
			_, err := trellis.Kind{}.Parts(s, tc.n, tc.k)
			if got := fmt.Sprint(err); got != tc.want && (err != nil || tc.want != "") {
				t.Errorf("got error %q: want %q", got, tc.want)
			}
		})
	}
	parts, err := trellis.Kind{}.Parts(trellistest.Spec(trellis.Mul1, 3, weight.BF16), 300, 129)
	if err != nil {
		t.Fatal(err)
	}
	want := "[{.rings U8 [3 8 16 48] true 128 false} {.scales BF16 [3 128] true 128 false} {.factors F16 [256] false 0 false}]"
	if got := fmt.Sprint(parts); got != want {
		t.Errorf("EXL3's parts are %s: want %s", got, want)
	}
	if parts, err = (trellis.Kind{}).Parts(trellistest.Spec(trellis.Pairs, 3, weight.F32), 300, 129); err != nil {
		t.Fatal(err)
	}
	want = "[{.rings U8 [38 1 9 24] true 8 false} {.scales F32 [300] true 0 false} {.factors F16 [129] false 0 true} {.pairs F16 [" + fmt.Sprint(trellis.Entries) + " 2] false 0 true}]"
	if got := fmt.Sprint(parts); got != want {
		t.Errorf("parts are %s: want %s", got, want)
	}
}

// TestValues: the table of all windows has what windows stand for.
func TestValues(t *testing.T) {
	for _, codebook := range trellis.Codebooks() {
		c := code(t, codebook, 4)
		values := c.Values()
		if len(values) != c.Layout().Together {
			t.Fatalf("%s: values of %d weights", codebook, len(values))
		}
		for x := range 1 << trellis.Window {
			pair := c.Pair(uint16(x))
			for i := range values {
				if want := num.F16ToF32(uint16(pair >> (16 * i))); math.Float32bits(values[i][x]) != math.Float32bits(want) {
					t.Fatalf("%s: value %d of window %d is %v: want %v", codebook, i, x, values[i][x], want)
				}
			}
		}
	}
}
