package repack

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
)

// TestRings: the layout is what the documentation says, bit by bit, and turns back.
func TestRings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.SampledFrom(trellistest.Rates(trellis.Pairs)).Draw(t, "rate")
		scales := rapid.SampledFrom(trellis.Kind{}.ScaleTypes()).Draw(t, "scales")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		m, err := trellistest.Matrix(rng, trellistest.Spec(trellis.Pairs, rate, scales), rapid.IntRange(1, 300).Draw(t, "n"),
			rapid.IntRange(1, 100).Draw(t, "k"), rapid.Bool().Draw(t, "factors"), rapid.Bool().Draw(t, "table"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Rings(m)
		if err != nil {
			t.Fatal(err)
		}
		columns := (m.K + 15) / 16
		size := 8 * rate
		for band := range (m.N + 7) / 8 {
			for c := range columns {
				ring := m.Rings[(band*columns+c)*size:][:size]
				block := p.Panels[(band/16*columns+c)*16*size:][:16*size]
				for bit := range 64 * rate {
					h, j := bit/(32*rate), bit%(32*rate)/16
					at := 4*(16*j+band%16) + 2*h + bit%16/8
					if got, want := block[at]>>(bit%8)&1, ring[bit/8]>>(bit%8)&1; got != want {
						t.Fatalf("band %d, column %d, bit %d: got %d, want %d", band, c, bit, got, want)
					}
				}
			}
		}
		back, err := p.Matrix()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, back, cmp.AllowUnexported(trellis.Matrix{})); d != "" {
			t.Fatal(d)
		}
	})
}

// TestRingsRefused: what cannot be laid out, padding that is not 0 and sizes that do not fit are errors.
func TestRingsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	draw := func(codebook string, n int) *trellis.Matrix {
		m, err := trellistest.Matrix(rng, trellistest.Spec(codebook, 6, weight.F16), n, 40, true, false)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	some, err := trellis.Of(draw(trellis.Pairs, 40).Rows(1, 2, 10))
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*trellis.Matrix{"another codebook": draw(trellis.MCG, 40), "every other row": some} {
		if _, err := Rings(m); err == nil || err.Error() != "panels are for whole matrices of pairs" {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	for name, tc := range map[string]struct {
		change func(p *CPURings)
		want   string
	}{
		"a ring beyond N": {func(p *CPURings) { p.Panels[len(p.Panels)-1] = 1 }, "bits in the padding of row 248"},
		"shape":           {func(p *CPURings) { p.N = 0 }, "shape 0×40 is out of range"},
		"code":            {func(p *CPURings) { p.Code = nil }, "rings without a table of pairs"},
		"table":           {func(p *CPURings) { p.Code = &trellis.Code{Codebook: trellis.Pairs, Rate: 6} }, "a table of 0 pairs: want 256"},
		"panels":          {func(p *CPURings) { p.Panels = p.Panels[1:] }, "panels take 4607 bytes: want 2 panels of 2304"},
		"scales":          {func(p *CPURings) { p.Scales = p.Scales[1:] }, "scales take 259 bytes: want 260"},
		"factors":         {func(p *CPURings) { p.Factors = p.Factors[1:] }, "factors take 79 bytes: want 80"},
		"type":            {func(p *CPURings) { p.ScaleType = 99 }, "unknown scale type"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Rings(draw(trellis.Pairs, 130))
			if err != nil {
				t.Fatal(err)
			}
			tc.change(p)
			if _, err := p.Matrix(); err == nil || err.Error() != tc.want {
				t.Errorf("got error %v, want %s", err, tc.want)
			}
		})
	}
}
