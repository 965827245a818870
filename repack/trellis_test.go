package repack_test

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/repack"
)

// TestTrellis turns tiles of rings back.
func TestTrellis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := conform.RandomTrellis(r, rapid.IntRange(1, 150).Draw(t, "n"), rapid.IntRange(1, 200).Draw(t, "k"), rapid.IntRange(2, 12).Draw(t, "rate"))
		p, err := repack.Trellis(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := p.Matrix()
		if err != nil {
			t.Fatal(err)
		}
		if string(back.Rings) != string(m.Rings) || string(back.Scales) != string(m.Scales) || string(back.Factors) != string(m.Factors) {
			t.Fatal("tiles do not turn back into the matrix")
		}
	})
}

// TestTrellisPlaces sets a byte of one ring, of rows 72 to 79 and columns 112 to 127, and compares with where the layout's description has it: lane
// 4·1 + 3 of the last of four tiles.
func TestTrellisPlaces(t *testing.T) {
	for _, test := range []struct {
		name           string
		rate, at, want int // of the byte in the ring, and in the tile
	}{
		{"first piece", 6, 5, 7*16 + 5},
		{"second piece", 6, 16 + 5, 512 + 7*16 + 5},
		{"last piece of 8 bytes", 7, 48 + 5, 3*512 + 7*8 + 5},
		{"piece of 8 bytes and no other", 3, 16 + 5, 512 + 7*8 + 5},
	} {
		m := conform.RandomTrellis(rand.New(rand.NewPCG(1, 1)), 128, 128, test.rate)
		clear(m.Rings)
		size := m.Code.Layout().Bytes()
		m.Rings[(9*8+7)*size+test.at] = 1
		p, err := repack.Trellis(m)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range p.Rings {
			if want := i == 3*p.TileBytes()+test.want; (b == 1) != want {
				t.Errorf("%s: byte %d is %d", test.name, i, b)
			}
		}
	}
}

// TestTrellisRefused sets what no layout has.
func TestTrellisRefused(t *testing.T) {
	m := conform.RandomTrellis(rand.New(rand.NewPCG(1, 1)), 56, 112, 6)
	for name, change := range map[string]func(p *repack.TrellisTiles){
		"rings of rows":    func(p *repack.TrellisTiles) { p.Rings[28*16] = 1 },
		"rings of columns": func(p *repack.TrellisTiles) { p.Rings[p.TileBytes()+3*16] = 1 },
		"too few rings":    func(p *repack.TrellisTiles) { p.Rings = p.Rings[16:] },
	} {
		p, err := repack.Trellis(m)
		if err != nil {
			t.Fatal(err)
		}
		change(p)
		if _, err := p.Matrix(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := repack.Trellis(m.Rows(3, 2, 5).(*trellis.Matrix)); err == nil {
		t.Error("every other row has tiles")
	}
}
