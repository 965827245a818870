package repack

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// random returns a matrix of random codes, scales and table.
func random(seed uint64, n, k, bits, group int, st weight.ScaleType) *lut.Matrix {
	r := rand.New(rand.NewPCG(seed, 1))
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: group, ScaleType: st}
	codes := make([]uint8, k)
	m.Codes = make([]byte, n*m.RowBytes())
	for i := range n {
		for j := range codes {
			codes[j] = uint8(r.IntN(1 << bits))
		}
		lut.PackCodes(m.Codes[i*m.RowBytes():(i+1)*m.RowBytes()], codes, bits)
	}
	scales := make([]float32, n*m.Groups())
	for i := range scales {
		scales[i] = r.Float32()
	}
	m.Scales = make([]byte, len(scales)*st.Size())
	st.Encode(m.Scales, scales)
	for range 1 << bits {
		m.Codebook = append(m.Codebook, float32(r.NormFloat64()))
	}
	return m
}

func drawMatrix(t *rapid.T) *lut.Matrix {
	k := rapid.IntRange(1, 300).Draw(t, "k")
	return random(
		rapid.Uint64().Draw(t, "seed"),
		rapid.IntRange(1, 50).Draw(t, "n"), k,
		rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits"),
		min(k, rapid.OneOf(rapid.SampledFrom([]int{32, 64, 128, 256, 1 << 20}), rapid.IntRange(1, 300)).Draw(t, "group")),
		rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}).Draw(t, "scale type"))
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMatrix(t)
		p, err := CPU(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		bytewise, err := p.Rearranged(true)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*CPUPanels{p, bytewise} {
			got, err := p.Matrix()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m, got); diff != "" {
				t.Errorf("by bytes %v: matrix after the round trip (-want +got):\n%s", p.ByBytes, diff)
			}
		}
		again, err := bytewise.Rearranged(false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("panels after the round trip (-want +got):\n%s", diff)
		}
	})
}

// TestSpec reads every code and scale where the package documentation says it
// lies.
func TestSpec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMatrix(t)
		p, err := CPU(m)
		if err != nil {
			t.Fatal(err)
		}
		halves, groups := (m.K+31)/32, (m.K+m.Group-1)/m.Group
		word := func(n, h, j int) uint32 {
			return binary.LittleEndian.Uint32(p.Panels[4*(((n/16*halves+h)*m.Bits+j)*16+n%16):])
		}
		codes := make([]uint8, m.K)
		size := m.ScaleType.Size()
		for n := range m.N {
			m.RowCodes(codes, n)
			for k, want := range codes {
				h, i := k/32, k%32
				per := 32 / m.Bits
				var got uint32
				if j := i / per; j < m.Bits {
					got = word(n, h, j) >> (i % per * m.Bits)
				} else { // one of the two columns left over
					for b := range m.Bits {
						bit := (i-30)*m.Bits + b
						got |= word(n, h, bit/2) >> (30 + bit%2) & 1 << b
					}
				}
				if got &= 1<<m.Bits - 1; got != uint32(want) {
					t.Fatalf("code of row %d, column %d: got %d, want %d", n, k, got, want)
				}
			}
			for g := range groups {
				got := p.Scales[((n/16*groups+g)*16+n%16)*size:][:size]
				if want := m.Scales[(n*groups+g)*size:][:size]; !bytes.Equal(got, want) {
					t.Fatalf("scale of row %d, group %d: got %x, want %x", n, g, got, want)
				}
			}
		}
	})
}

// TestSpecByBytes is TestSpec for codes by bytes.
func TestSpecByBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMatrix(t)
		p, err := CPU(m)
		if err != nil {
			t.Fatal(err)
		}
		if p, err = p.Rearranged(true); err != nil {
			t.Fatal(err)
		}
		halves := (m.K + 31) / 32
		codes := make([]uint8, m.K)
		for n := range m.N {
			m.RowCodes(codes, n)
			for k, want := range codes {
				l, i := k%32/4, k%4
				at := func(word, bit, width int) int {
					return int(p.Panels[4*(((n/16*halves+k/32)*m.Bits+word)*16+n%16)+i]) >> bit & (1<<width - 1)
				}
				var got int
				switch {
				case m.Bits == 2:
					got = at(l/4, l%4*2, 2)
				case m.Bits == 3 && l < 6:
					got = at(l/2, l%2*4, 3)
				case m.Bits == 3:
					bit := 3 + 4*(l-6)
					got = at(0, bit, 1) | at(1, bit, 1)<<1 | at(2, bit, 1)<<2
				case m.Bits == 4:
					got = at(l/2, l%2*4, 4)
				default:
					got = at(l/2, l%2*4, 4) | at(4, 7-l, 1)<<4
				}
				if got != int(want) {
					t.Fatalf("code of row %d, column %d: got %d, want %d", n, k, got, want)
				}
			}
		}
	})
}

func TestExactBits(t *testing.T) {
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		p, err := CPU(random(1, 64, 256, bits, 64, weight.F16))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(p.Panels), 64*256*bits/8; got != want {
			t.Errorf("%d bits: codes take %d bytes: want %d", bits, got, want)
		}
		if got, want := len(p.Scales), 64*4*2; got != want {
			t.Errorf("%d bits: scales take %d bytes: want %d", bits, got, want)
		}
	}
}

func TestBadPanels(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*CPUPanels)
		want  string
	}{
		{"no rows", func(p *CPUPanels) { p.N = 0 }, "out of range"},
		{"huge", func(p *CPUPanels) { p.K = 1 << 62 }, "out of range"},
		{"width", func(p *CPUPanels) { p.Bits = 6 }, "6 bits a code"},
		{"group", func(p *CPUPanels) { p.Group = 71 }, "group of 71"},
		{"scale type", func(p *CPUPanels) { p.ScaleType = 0 }, "scale type"},
		{"short panels", func(p *CPUPanels) { p.Panels = p.Panels[1:] }, "panels take"},
		{"short scales", func(p *CPUPanels) { p.Scales = p.Scales[1:] }, "scales take"},
		{"codebook", func(p *CPUPanels) { p.Codebook = p.Codebook[1:] }, "codebook of 7"},
		{"padded column", func(p *CPUPanels) { p.Panels[p.PanelBytes()-1] = 0xff }, "padding of row 15"},
		{"padded row", func(p *CPUPanels) { p.Panels[p.PanelBytes()+4*15] = 1 }, "padding of row 31"},
		{"padded scale", func(p *CPUPanels) { p.Scales[len(p.Scales)-1] = 1 }, "scale in the padding of row 31"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := CPU(random(1, 20, 70, 3, 32, weight.F16))
			if err != nil {
				t.Fatal(err)
			}
			test.spoil(p)
			_, err = p.Matrix()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v: want one with %q", err, test.want)
			}
		})
	}
	if _, err := CPU(&lut.Matrix{N: 1, K: 1, Bits: 4, Group: 2}); err == nil {
		t.Error("no error for a matrix that is not valid")
	}
}

// FuzzPanels feeds stored bytes to the way back, laid over zeros as [lay] does.
// What it accepts must pack to the same bytes.
func FuzzPanels(f *testing.F) {
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		f.Add(uint8(5), uint8(40), uint8(bits), uint8(32), uint8(weight.F16), uint16(0), []byte{}, []byte{0, 60})
		f.Add(uint8(16), uint8(64), uint8(bits), uint8(64), uint8(weight.E4M4), uint16(99), []byte("codes"), []byte("s"))
	}
	f.Fuzz(func(t *testing.T, n, k, bits, group, st uint8, at uint16, panels, scales []byte) {
		p := &CPUPanels{N: int(n % 40), K: int(k), Bits: int(bits % 8), Group: int(group), ScaleType: weight.ScaleType(st)}
		p.Codebook = make([]float32, 1<<p.Bits)
		p.Panels = lay(panels, at, p.PanelCount()*p.PanelBytes())
		if p.Group > 0 {
			p.Scales = lay(scales, at, p.PanelCount()*p.PanelScaleBytes())
		}
		m, err := p.Matrix()
		if err != nil {
			return
		}
		again, err := CPU(m)
		if err != nil {
			t.Fatalf("panels give a matrix that is not valid: %v", err)
		}
		if !bytes.Equal(again.Panels, p.Panels) || !bytes.Equal(again.Scales, p.Scales) {
			t.Error("panels changed in the round trip")
		}
	})
}

// lay returns size zeros with the first bytes of data over them, from any
// place and around the end. Fuzzing takes minutes to shorten an input of
// thousands of bytes, as many as the smallest tile has.
func lay(data []byte, at uint16, size int) []byte {
	b := make([]byte, size)
	for i, c := range data[:min(len(data), size, 64)] {
		b[(int(at)+i)%size] = c
	}
	return b
}
