package repack_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/repack"
)

// TestBCQ turns tiles of binary codes back.
func TestBCQ(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits, k := rapid.IntRange(1, 8).Draw(t, "bits"), rapid.IntRange(1, 700).Draw(t, "k")
		group := rapid.SampledFrom([]int{32, 64, 128, 256, k}).Draw(t, "group")
		st := rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32}).Draw(t, "type")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := conform.RandomBCQ(r, rapid.IntRange(1, 40).Draw(t, "n"), k, bits, group, st, rapid.Bool().Draw(t, "offsets"))
		p, err := repack.BCQ(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := p.Matrix()
		if err != nil {
			t.Fatal(err)
		}
		if string(back.Planes) != string(m.Planes) || string(back.Alphas) != string(m.Alphas) || string(back.Offsets) != string(m.Offsets) {
			t.Fatal("tiles do not turn back into the matrix")
		}
	})
}

// TestBCQPlaces sets one bit, of row 13, column 75, and compares with where the layout's description has it: word 1 of lane 21.
func TestBCQPlaces(t *testing.T) {
	m := conform.RandomBCQ(rand.New(rand.NewPCG(1, 1)), 16, 256, 1, 256, weight.F16, false)
	clear(m.Planes)
	m.Planes[13*32+75/8] |= 1 << (75 % 8)
	p, err := repack.BCQ(m)
	if err != nil {
		t.Fatal(err)
	}
	// Column 75 is 64 + 32·0 + 8·1 + 2·1 + 1, and row 13 is 8 + 5.
	const lane, word, at = 5*4 + 1, 1, 16 + 8*1 + 2*1 + 0
	for i, b := range p.Planes {
		want := byte(0)
		if bit := at; i == lane*16+word*4+bit/8 {
			want = 1 << (bit % 8)
		}
		if b != want {
			t.Errorf("byte %d is %#x, want %#x", i, b, want)
		}
	}
}

// TestBCQPadding sets what no layout has.
func TestBCQPadding(t *testing.T) {
	m := conform.RandomBCQ(rand.New(rand.NewPCG(1, 1)), 15, 224, 2, 32, weight.F16, true)
	for name, change := range map[string]func(p *repack.BCQTiles){
		"codes of a row":      func(p *repack.BCQTiles) { p.Planes[31*16+2] |= 1 },
		"codes of a column":   func(p *repack.BCQTiles) { p.Planes[12] |= 2 },
		"factors of a row":    func(p *repack.BCQTiles) { p.Factors[15*2] = 1 },
		"factors of a column": func(p *repack.BCQTiles) { p.Factors[len(p.Factors)-4] = 1 },
		"too few planes":      func(p *repack.BCQTiles) { p.Planes = p.Planes[16:] },
		"too few factors":     func(p *repack.BCQTiles) { p.Factors = p.Factors[2:] },
	} {
		p, err := repack.BCQ(m)
		if err != nil {
			t.Fatal(err)
		}
		change(p)
		if _, err := p.Matrix(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	m.Group = 48
	if _, err := repack.BCQ(m); err == nil {
		t.Error("groups of 48 have a layout")
	}
}

// TestGatherBCQ compares the rows of the layout for tables with the matrix's.
func TestGatherBCQ(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits, k := rapid.IntRange(1, 8).Draw(t, "bits"), rapid.IntRange(1, 700).Draw(t, "k")
		group := rapid.SampledFrom([]int{32, 64, 128, 256, k}).Draw(t, "group")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := conform.RandomBCQ(r, rapid.IntRange(1, 70).Draw(t, "n"), k, bits, group, weight.F16, rapid.Bool().Draw(t, "offsets"))
		p, err := repack.GatherBCQ(m, rapid.Bool().Draw(t, "half"))
		if err != nil {
			t.Fatal(err)
		}
		got, want := make([]float32, k), make([]float32, k)
		for n := range m.N {
			m.Row(want, n)
			p.Row(got, n)
			if !slices.Equal(got, want) {
				t.Fatalf("row %d differs", n)
			}
		}
	})
}
