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
	"github.com/lutq/lutq/formats/weight"
)

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

// TestCheckValues: scales may have any product with the table that is a number, also one that is rounded.
func TestCheckValues(t *testing.T) {
	m := &Matrix{N: 1, K: 4, Bits: 2, Group: 1, ScaleType: weight.F32, Codes: make([]byte, 1), Codebook: []float32{-1.1, -0.3, 0.7, 1.3}, Scales: make([]byte, 16)}
	for _, test := range []struct {
		scale float32
		ok    bool
	}{{0.1, true}, {0.024908174, true}, {-0.3, true}, {1e-40, true}, {0, true}, {2.5e38, true}, {3e38, false}, {float32(math.NaN()), false}, {float32(math.Inf(-1)), false}} {
		weight.F32.Encode(m.Scales, []float32{1, 1, test.scale, 1})
		if err := m.checkValues(); (err == nil) != test.ok {
			t.Errorf("scale %v: got error %v", test.scale, err)
		}
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

// TestColumns holds some columns of a matrix to the same of its rows, and refuses those that part a group.
func TestColumns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(MinBits, MaxBits).Draw(t, "bits")
		group := rapid.IntRange(1, 12).Draw(t, "group")
		m := &Matrix{N: rapid.IntRange(1, 3).Draw(t, "n"), K: group * rapid.IntRange(1, 6).Draw(t, "groups"), Bits: bits, Group: group, ScaleType: weight.F32}
		if rapid.Bool().Draw(t, "a scale a row") {
			m.Group = m.K
		}
		for i := range 1 << bits {
			m.Codebook = append(m.Codebook, float32(i))
		}
		codes := make([]uint8, m.K)
		for range m.N {
			for i := range codes {
				codes[i] = uint8(rapid.IntRange(0, 1<<bits-1).Draw(t, "code"))
			}
			row := make([]byte, m.RowBytes())
			PackCodes(row, codes, bits)
			m.Codes = append(m.Codes, row...)
		}
		scales := make([]float32, m.N*m.Groups())
		for i := range scales {
			scales[i] = float32(i + 1)
		}
		m.Scales = make([]byte, 4*len(scales))
		num.EncodeF32(m.Scales, scales)
		from := rapid.IntRange(0, m.K-1).Draw(t, "from")
		to := rapid.IntRange(from+1, m.K).Draw(t, "to")
		c, err := m.Columns(from, to)
		if parts := m.Group < m.K && (from%m.Group != 0 || to%m.Group != 0 && to != m.K); parts != (err != nil) {
			t.Fatalf("columns %d to %d of groups of %d: error %v", from, to, m.Group, err)
		}
		if err != nil {
			return
		}
		if err := errors.Join(c.Validate(), c.CheckPadding()); err != nil {
			t.Fatal(err)
		}
		want, got := make([]float32, m.K), make([]float32, c.K)
		for i := range m.N {
			m.Row(want, i)
			c.Row(got, i)
			if !slices.Equal(got, want[from:to]) {
				t.Fatalf("row %d is %v, want %v", i, got, want[from:to])
			}
		}
	})
	m := &Matrix{K: 8}
	for _, of := range [][2]int{{-1, 4}, {4, 9}, {4, 4}} {
		if _, err := m.Columns(of[0], of[1]); err == nil {
			t.Errorf("columns %v: no error", of)
		}
	}
}
