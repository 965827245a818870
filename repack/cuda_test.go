package repack

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

func drawCUDAMatrix(t *rapid.T) *lut.Matrix {
	k := rapid.IntRange(1, 700).Draw(t, "k")
	group := rapid.SampledFrom([]int{32, 64, 128, 256, k}).Draw(t, "group")
	if group > k {
		group = k
	}
	return random(
		rapid.Uint64().Draw(t, "seed"),
		rapid.IntRange(1, 40).Draw(t, "n"), k,
		rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits"), group,
		rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}).Draw(t, "scale type"))
}

func TestCUDARoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawCUDAMatrix(t)
		p, err := CUDA(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Matrix()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got); diff != "" {
			t.Errorf("matrix after the round trip (-want +got):\n%s", diff)
		}
	})
}

// TestCUDASpec looks for every code and scale where the documentation says it
// lies, going from the column to the place, the other way than the packer.
func TestCUDASpec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawCUDAMatrix(t)
		p, err := CUDA(m)
		if err != nil {
			t.Fatal(err)
		}
		b := m.Bits
		units := (m.K + 255) / 256
		codes, size := make([]uint8, m.K), m.ScaleType.Size()
		groups := (m.K + m.Group - 1) / m.Group
		for n := range m.N {
			m.RowCodes(codes, n)
			for k, want := range codes {
				lane := 4*(n%8) + k%32/8
				s := k%128/32*2 + k%8/4
				r := k%4/2*2 + n%16/8
				word := func(j int) uint32 {
					at := 512*(j/4) + 16*lane + 4*(j%4)
					if 2*b-j/4*4 < 4 {
						at = 512*(j/4) + 8*lane + 4*(j%4)
					}
					return binary.LittleEndian.Uint32(p.Codes[((n/16*units*2)+k/128)*256*b+at:])
				}
				h, q := s/4, 4*(s%4)+r
				var pair uint32
				switch b {
				case 2:
					pair = word(2*h+q/8) >> (4 * (q % 8)) & 15
				case 3:
					low := word(2*h+s%4/2) >> (8*r + 4*(s%2))
					high := word(4+h) >> (8*r + []int{4, 6, 2, 0}[s%4])
					pair = low&3 | high&1<<2 | low>>2&3<<3 | high>>1&1<<5
				case 4:
					pair = word(4*h+q/4) >> (8 * (q % 4)) & 255
				case 5:
					if q < 15 {
						pair = bits.RotateLeft32(word(5*h+q/3), -(9+2*(q/3)+10*(q%3))) & 1023
						break
					}
					for j := range 5 {
						pair |= bits.RotateLeft32(word(5*h+j), -(7+2*j)) & 3 << (2 * j)
					}
				}
				if got := pair >> (k % 2 * b) & (1<<b - 1); got != uint32(want) {
					t.Fatalf("code of row %d, column %d: got %d, want %d", n, k, got, want)
				}
			}
			for g := range groups {
				row := []int{8, 2} // of a row of scales: g, then the rows g and g + 8
				at := ((n / 16 * row[0]) + n%8) * row[1]
				switch {
				case m.Group == m.K:
				case m.Group == 256:
					at = ((n/16*units+g)*row[0] + n%8) * row[1]
				default:
					per := 128 / m.Group
					at = (((n/16*units*2+g/per)*row[0]+n%8)*per + g%per) * row[1]
				}
				at += n % 16 / 8
				if got, want := p.Scales[at*size:][:size], m.Scales[(n*groups+g)*size:][:size]; !bytes.Equal(got, want) {
					t.Fatalf("scale of row %d, group %d: got %x, want %x", n, g, got, want)
				}
			}
		}
	})
}

func TestCUDAExactBits(t *testing.T) {
	for b := lut.MinBits; b <= lut.MaxBits; b++ {
		p, err := CUDA(random(1, 64, 512, b, 128, weight.F16))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(p.Codes), 64*512*b/8; got != want {
			t.Errorf("%d bits: codes take %d bytes: want %d", b, got, want)
		}
		if got, want := len(p.Scales), 64*4*2; got != want {
			t.Errorf("%d bits: scales take %d bytes: want %d", b, got, want)
		}
	}
}

func TestBadTiles(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*CUDATiles)
		want  string
	}{
		{"no rows", func(p *CUDATiles) { p.N = 0 }, "out of range"},
		{"huge", func(p *CUDATiles) { p.K = 1 << 62 }, "out of range"},
		{"width", func(p *CUDATiles) { p.Bits = 6 }, "6 bits a code"},
		{"group", func(p *CUDATiles) { p.Group = 96 }, "no CUDA layout for groups of 96"},
		{"group beyond the row", func(p *CUDATiles) { p.Group = 128 }, "group of 128 columns in a row of 70"},
		{"scale type", func(p *CUDATiles) { p.ScaleType = 0 }, "scale type"},
		{"short codes", func(p *CUDATiles) { p.Codes = p.Codes[1:] }, "codes take"},
		{"short scales", func(p *CUDATiles) { p.Scales = p.Scales[1:] }, "scales take"},
		{"codebook", func(p *CUDATiles) { p.Codebook = p.Codebook[1:] }, "codebook of 7"},
		{"padded column", func(p *CUDATiles) { p.Codes[p.TileBytes()-1] = 0xff }, "codes in the padding of row"},
		{"padded row", func(p *CUDATiles) { p.Codes[p.TileBytes()+31*16] = 1 }, "codes in the padding of row 23"},
		{"padded scale", func(p *CUDATiles) { p.Scales[len(p.Scales)-1] = 1 }, "scale in the padding of row 31"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := CUDA(random(1, 20, 70, 3, 32, weight.F16))
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
	for name, m := range map[string]*lut.Matrix{
		"not valid": {N: 1, K: 1, Bits: 4, Group: 2},
		"group":     random(1, 4, 100, 4, 40, weight.F16),
	} {
		if _, err := CUDA(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzTiles feeds stored bytes to the way back, laid over zeros as [lay] does.
// What it accepts must pack to the same bytes.
func FuzzTiles(f *testing.F) {
	for b := lut.MinBits; b <= lut.MaxBits; b++ {
		f.Add(uint8(5), uint16(40), uint8(b), uint16(32), uint8(weight.F16), uint16(0), []byte{}, []byte{0, 60})
		f.Add(uint8(16), uint16(256), uint8(b), uint16(256), uint8(weight.E4M4), uint16(999), []byte("codes"), []byte("s"))
	}
	f.Fuzz(func(t *testing.T, n uint8, k uint16, b uint8, group uint16, st uint8, at uint16, codes, scales []byte) {
		p := &CUDATiles{N: int(n % 20), K: int(k % 520), Bits: int(b % 8), Group: int(group), ScaleType: weight.ScaleType(st)}
		p.Codebook = make([]float32, 1<<p.Bits)
		p.Codes = lay(codes, at, p.Tiles()*p.TileBytes())
		if p.Group > 0 {
			p.Scales = lay(scales, at, p.Tiles()*p.TileScaleBytes())
		}
		m, err := p.Matrix()
		if err != nil {
			return
		}
		again, err := CUDA(m)
		if err != nil {
			t.Fatalf("tiles give a matrix that is not valid: %v", err)
		}
		if !bytes.Equal(again.Codes, p.Codes) || !bytes.Equal(again.Scales, p.Scales) {
			t.Error("tiles changed in the round trip")
		}
	})
}
