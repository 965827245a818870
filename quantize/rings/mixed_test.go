package rings

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
)

// mixedLayer quantizes a layer of n rows of k columns, and opens what became of it.
func mixedLayer(t *testing.T, code *trellis.Code, w []float32, n, k int, blocks []float32) (weight.Matrix, []rounding.RowError) {
	t.Helper()
	m, err := NewMixed(MixedOptions{Options: Options{Code: code, ScaleType: weight.F16}, K: k, Blocks: blocks})
	if err != nil {
		t.Fatal(err)
	}
	q := Padded(m, k)
	spec := weight.Spec{Kind: trellis.Name, Bits: code.Rate / 2, Half: code.Rate%2 != 0, Group: weight.RowGroup, Codebook: code.Codebook, ScaleType: weight.F16}
	kind := trellis.Kind{}
	want, err := kind.Parts(spec, n, k)
	if err != nil {
		t.Fatal(err)
	}
	var parts [][]byte
	for _, p := range want {
		size := map[string]int{"U8": 1, "F16": 2}[p.DType]
		for _, d := range p.Shape {
			size *= d
		}
		parts = append(parts, make([]byte, size))
	}
	errs := make([]rounding.RowError, n)
	if err := q.Rows(parts, errs, w); err != nil {
		t.Fatal(err)
	}
	q.Shared(parts)
	mat, err := kind.Open(spec, n, k, parts)
	if err != nil {
		t.Fatal(err)
	}
	return mat, errs
}

// uneven returns rows of normal numbers, some rows and columns larger than others.
func uneven(seed uint64, n, k int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	w := make([]float32, n*k)
	for i := range w {
		w[i] = float32(0.02 * r.NormFloat64() * (1 + float64(i/k%5)) * (1 + 2*float64(i%k/trellis.Block)))
	}
	return w
}

// TestMixed: what is stored errs as little as codes of normal numbers do, whatever the sizes of rows, of blocks of columns and of the
// layer; and errors are those of the weights that the layer has when it is opened.
func TestMixed(t *testing.T) {
	for _, tt := range []struct {
		codebook string
		rate     int
		n, k     int
		most     float64 // of the squared error, as a part of the weights'
	}{
		{trellis.Mul1, 4, 128, 128, 0.072},
		{trellis.Mul1, 7, 128, 256, 0.0095},
		{trellis.Mul1, 8, 40, 200, 0.0055},
		{trellis.MCG, 6, 130, 128, 0.0185},
		{trellis.Inst3, 10, 128, 16, 0.0021},
	} {
		t.Run(fmt.Sprintf("%s %v bits %dx%d", tt.codebook, float64(tt.rate)/2, tt.n, tt.k), func(t *testing.T) {
			code, err := trellis.NewCode(tt.codebook, tt.rate)
			if err != nil {
				t.Fatal(err)
			}
			w := uneven(uint64(tt.n), tt.n, tt.k)
			sizes := NewSizes(tt.k)
			sizes.Rows(w)
			mat, errs := mixedLayer(t, code, w, tt.n, tt.k, sizes.Blocks())
			var squared, energy float64
			row := make([]float32, tt.k)
			for n := range tt.n {
				mat.Row(row, n)
				var e rounding.RowError
				for i, v := range row {
					e.Add(w[n*tt.k+i], v)
				}
				if math.Abs(e.Squared-errs[n].Squared) > 1e-4*e.Squared || e.Energy != errs[n].Energy {
					t.Errorf("row %d errs by %v of %v: told %v of %v", n, e.Squared, e.Energy, errs[n].Squared, errs[n].Energy)
				}
				squared, energy = squared+e.Squared, energy+e.Energy
			}
			if part := squared / energy; part > tt.most || part < tt.most/3 {
				t.Errorf("squared error %v of the weights': want at most %v", part, tt.most)
			}
		})
	}
}

// TestMixedBlocks: without the sizes of blocks of columns, those that differ err more.
func TestMixedBlocks(t *testing.T) {
	code, err := trellis.NewCode(trellis.Mul1, 4)
	if err != nil {
		t.Fatal(err)
	}
	const n, k = 128, 256
	w := uneven(1, n, k)
	sizes := NewSizes(k)
	sizes.Rows(w[:n/2*k])
	sizes.Rows(w[n/2*k:])
	sum := func(blocks []float32) (squared float64) {
		_, errs := mixedLayer(t, code, w, n, k, blocks)
		for _, e := range errs {
			squared += e.Squared
		}
		return squared
	}
	blocks := sizes.Blocks()
	if with, without := sum(blocks), sum(nil); with > 0.9*without {
		t.Errorf("errors %v with the sizes %v, %v without", with, blocks, without)
	}
	if math.Abs(float64(blocks[1]/blocks[0])-3) > 0.2 {
		t.Errorf("sizes %v: want one three times the other", blocks)
	}
}

// TestMixedZeros: rows and blocks of zeros stay zeros, and numbers that are not finite are found.
func TestMixedZeros(t *testing.T) {
	code, err := trellis.NewCode(trellis.Mul1, 6)
	if err != nil {
		t.Fatal(err)
	}
	const n, k = 128, 256
	w := uneven(1, n, k)
	clear(w[5*k : 6*k])
	for r := range n {
		clear(w[r*k : r*k+trellis.Block])
	}
	sizes := NewSizes(k)
	sizes.Rows(w)
	mat, _ := mixedLayer(t, code, w, n, k, sizes.Blocks())
	got := weight.Dequantize(mat)
	for i, v := range got {
		if zero := i/k == 5 || i%k < trellis.Block; zero && v != 0 {
			t.Fatalf("weight %d, %d is %v: want 0", i/k, i%k, v)
		}
	}
	m, err := NewMixed(MixedOptions{Options: Options{Code: code, ScaleType: weight.F16}, K: 200})
	if err != nil {
		t.Fatal(err)
	}
	w[3*200+7] = float32(math.NaN())
	parts := [][]byte{make([]byte, 8*16*96), make([]byte, 256), make([]byte, 512)}
	err = Padded(m, 200).Rows(parts, make([]rounding.RowError, 100), w[:100*200])
	if want := "weight [3, 7] is NaN"; err == nil || err.Error() != want {
		t.Errorf("error %v: want %s", err, want)
	}
}

// stats are statistics of two inputs.
type stats struct{ h []float32 }

func (s stats) K() int                        { return int(math.Sqrt(float64(len(s.h)))) }
func (s stats) Tokens() int                   { return 1 }
func (s stats) Diagonal() ([]float32, error)  { return []float32{s.h[0], s.h[3]}, nil }
func (s stats) Hessian() ([]float32, error)   { return s.h, nil }
func (s stats) Drift() ([]float32, error)     { return nil, nil }
func at(m []float32, k, row, col int) float32 { return m[row*k+col] }

// TestPaddedStats: padding reads zeros.
func TestPaddedStats(t *testing.T) {
	s := PaddedStats(stats{[]float32{1, 2, 2, 5}})
	h, err := s.Hessian()
	if err != nil || s.K() != 128 || len(h) != 128*128 {
		t.Fatal(err, s.K(), len(h))
	}
	var sum float32
	for _, v := range h {
		sum += v
	}
	if at(h, 128, 0, 0) != 1 || at(h, 128, 0, 1) != 2 || at(h, 128, 1, 0) != 2 || at(h, 128, 1, 1) != 5 || sum != 10 {
		t.Errorf("moments %v of sum %v", h[:2], sum)
	}
	d, err := s.Diagonal()
	if err != nil || len(d) != 128 || d[0] != 1 || d[1] != 5 || d[2] != 0 {
		t.Errorf("diagonal %v, %v", d, err)
	}
	if drift, err := s.Drift(); drift != nil || err != nil {
		t.Errorf("drift %v, %v", drift, err)
	}
}
