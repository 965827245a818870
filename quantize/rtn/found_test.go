package rtn

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// quantizerOf returns a quantizer to a table of 4 bits in groups of 16.
func quantizerOf(t *testing.T, table string, of weight.ScaleType) *Quantizer {
	t.Helper()
	book, err := lut.NewCodebook(table, 4, 16)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewQuantizer(lut.Format{Codebook: book, Group: 16, Scale: weight.MSE, ScaleType: of})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestSearchBytes holds the least magnitudes that are stored as each byte to the encoder.
func TestSearchBytes(t *testing.T) {
	for _, of := range []weight.ScaleType{weight.E4M4, weight.S1E4M3, weight.E8M0} {
		s := quantizerOf(t, "nf", of).Search()
		if !slices.IsSorted(s.Least) || !slices.IsSorted(s.Bytes) || len(s.Least) != len(s.Bytes) || s.Least[0] != 0 {
			t.Fatalf("%v: bytes from %v stand for %v", of, s.Least, s.Bytes)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 20000 {
			v := math.Float32frombits(r.Uint32N(infBits))
			if i < 2*len(s.Least) { // and beside the edges
				v = math.Float32frombits(math.Float32bits(s.Least[i/2]) - uint32(i%2))
				if v-v != 0 {
					continue
				}
			}
			var b [1]byte
			of.Encode(b[:], []float32{v})
			if at := sort.Search(len(s.Least), func(i int) bool { return s.Least[i] > v }) - 1; at != int(b[0]) {
				t.Fatalf("%v: %v is byte %d by the edges, %d by the encoder", of, v, at, b[0])
			}
		}
	}
}

// TestFound: what Fit finds of groups is all that is needed to have the same again, unless it says otherwise.
func TestFound(t *testing.T) {
	for _, table := range []string{"nf", "q4"} {
		for _, of := range []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0} {
			fit, found := quantizerOf(t, table, of), quantizerOf(t, table, of)
			const n, k = 3, 40
			r := rand.New(rand.NewPCG(3, 4))
			w := make([]float32, n*k)
			for i := range w {
				w[i] = float32(r.NormFloat64() * .02)
			}
			var wanted []float32
			var tops []uint32
			for i := range n {
				if err := fit.Fit(w[i*k:(i+1)*k], 1); err != nil {
					t.Fatal(err)
				}
				wanted, tops = append(wanted, fit.wanted[:3]...), append(tops, fit.tops[:3]...)
			}
			if err := fit.Fit(w, n); err != nil {
				t.Fatal(err)
			}
			if !found.Found(wanted, tops, n) {
				t.Fatalf("%s, %v: not all is found", table, of)
			}
			want, _, _ := fit.Levels()
			if got, _, _ := found.Levels(); !slices.Equal(got, want) {
				t.Errorf("%s, %v: levels %v, want %v", table, of, got, want)
			}
			for _, bad := range []struct {
				what string
				do   func(wanted []float32, tops []uint32)
			}{
				{"an infinite weight", func(_ []float32, tops []uint32) { tops[4] = infBits }},
				{"a scale of no type", func(wanted []float32, _ []uint32) { wanted[4] = float32(math.Inf(1)) }},
			} {
				if bad.what == "a scale of no type" && of.Size() == 1 { // which saturates
					continue
				}
				wanted, tops := slices.Clone(wanted), slices.Clone(tops)
				bad.do(wanted, tops)
				if found.Found(wanted, tops, n) {
					t.Errorf("%s, %v: %s is not told", table, of, bad.what)
				}
			}
		}
	}
}
