package repack

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/conform"
)

// TestPlanes: the layout is what the documentation says, bit by bit, and turns back.
func TestPlanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 300).Draw(t, "k")
		m := conform.RandomBCQ(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), rapid.IntRange(1, 50).Draw(t, "n"), k,
			rapid.IntRange(bcq.MinBits, bcq.MaxBits).Draw(t, "bits"),
			min(k, rapid.OneOf(rapid.SampledFrom([]int{32, 64, 128, 1 << 20}), rapid.IntRange(1, 300)).Draw(t, "group")),
			rapid.SampledFrom(bcq.Kind{}.ScaleTypes()).Draw(t, "factors"), rapid.Bool().Draw(t, "offsets"))
		p, err := Planes(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		size, halves := m.ScaleType.Size(), (k+31)/32
		for n := range m.N {
			for i := range m.Bits {
				for k := range m.K {
					h, v, u, l, c := k/32, k/16%2, k/8%2, k/4%2, k%4
					at := 64*((n/16*halves+h)*m.Bits+i) + 32*v + 16*l + n%16
					want := m.Planes[(n*m.Bits+i)*m.PlaneBytes()+k/8] >> (k % 8) & 1
					if got := p.Planes[at] >> (4*u + c) & 1; got != want {
						t.Fatalf("row %d, plane %d, column %d: got %d, want %d", n, i, k, got, want)
					}
				}
				for g := range m.Groups() {
					alpha := m.Alphas[((n*m.Groups()+g)*m.Bits+i)*size:][:size]
					v := i
					if m.Offsets != nil {
						v++
					}
					if got := p.Factors[(((n/16*m.Groups()+g)*p.Vectors()+v)*16+n%16)*size:][:size]; !bytes.Equal(got, alpha) {
						t.Fatalf("row %d, group %d, factor %d: got %x, want %x", n, g, i, got, alpha)
					}
				}
			}
			for g := range m.Groups() {
				if m.Offsets == nil {
					break
				}
				if got, want := p.Factors[((n/16*m.Groups()+g)*p.Vectors()*16+n%16)*size:][:size], m.Offsets[(n*m.Groups()+g)*size:][:size]; !bytes.Equal(got, want) {
					t.Fatalf("row %d, group %d: offset %x, want %x", n, g, got, want)
				}
			}
		}
		back, err := p.Matrix()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, back); d != "" {
			t.Fatal(d)
		}
	})
}

// TestPlanesRefused: padding that is not 0 and sizes that do not fit are errors.
func TestPlanesRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *CPUPlanes)
		want   string
	}{
		"a column beyond K": {func(p *CPUPlanes) { p.Planes[2*3*PlaneBytes] |= 0x80 }, "row 0 has bits set after the last of plane 0"},
		"a half-block's":    {func(p *CPUPlanes) { p.Planes[2*3*PlaneBytes+32] |= 0x80 }, "bits or factors in the padding"},
		"a row beyond N":    {func(p *CPUPlanes) { p.Planes[len(p.Planes)-3*PlaneBytes+15] |= 1 }, "bits or factors in the padding"},
		"its factor":        {func(p *CPUPlanes) { p.Factors[len(p.Factors)-1] = 1 }, "bits or factors in the padding"},
		"bits":              {func(p *CPUPlanes) { p.Bits = 9 }, "9 bits a code: want 1 to 8"},
		"group":             {func(p *CPUPlanes) { p.Group = 76 }, "group of 76 columns in a row of 75"},
		"planes":            {func(p *CPUPlanes) { p.Planes = p.Planes[1:] }, "planes take 1151 bytes: want 2 panels of 576"},
		"factors":           {func(p *CPUPlanes) { p.Factors = p.Factors[1:] }, "factors take 767 bytes: want 2 panels of 384"},
		"type":              {func(p *CPUPlanes) { p.ScaleType = 99 }, "unknown type of factors"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Planes(conform.RandomBCQ(rand.New(rand.NewPCG(1, 1)), 21, 75, 3, 32, weight.F16, true))
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
