package repack

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// randomSparse returns a matrix of n rows and k columns in groups of which so many columns are kept.
func randomSparse(seed uint64, n, k, bits, group int, st weight.ScaleType) *lut24.Matrix {
	r := rand.New(rand.NewPCG(seed, 24))
	m := &lut24.Matrix{Kept: random(seed, n, k/2, bits, group, st), Pattern: make([]byte, n*lut24.PatternBytes(k))}
	pairs := []uint8{4, 8, 9, 12, 13, 14}
	for row := range n {
		for c := range k / lut24.Chunk {
			lut24.SetNibble(m.RowPattern(row), c, pairs[r.IntN(len(pairs))])
		}
	}
	return m
}

func drawSparse(t *rapid.T) *lut24.Matrix {
	k := 4 * rapid.IntRange(1, 300).Draw(t, "chunks")
	group := rapid.SampledFrom([]int{32, 64, 128, k / 2}).Draw(t, "group")
	if group > k/2 {
		group = k / 2
	}
	return randomSparse(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 40).Draw(t, "n"), k,
		rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits"), group,
		rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.E4M4}).Draw(t, "scale type"))
}

func TestSparseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawSparse(t)
		p, err := SparseCUDA(m)
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

// TestSparseSpec multiplies by what a warp's lanes have of each step as PTX describes mma.sp with ordered metadata, m16n8k32
// ("Register fragments for sparse mma"), and finds the weights in their columns.
func TestSparseSpec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawSparse(t)
		p, err := SparseCUDA(m)
		if err != nil {
			t.Fatal(err)
		}
		n, k := m.Shape()
		whole := *p.Kept // columns in the padding of one order may be inside the other
		whole.K = (whole.K + 31) / 32 * 32
		if p.Kept.RowScale() {
			whole.Group = whole.K
		}
		natural, err := whole.matrix(false) // of which columns lie as in the order of CUDATiles
		if err != nil {
			t.Fatal(err)
		}
		row, codes, kept := make([]uint8, natural.K), make([]uint8, k), make([]uint8, m.Kept.K)
		for r := range n {
			natural.RowCodes(row, r)
			m.Kept.RowCodes(kept, r)
			for i := range codes {
				codes[i] = 0xff
			}
			for step := range (m.Kept.K + 15) / 16 {
				for col := range 32 { // of the step
					chunk := step*8 + col/4
					if chunk >= k/4 {
						continue
					}
					// Selector step%2 takes the words of lanes 2·(step%2) and the next: the first has 16 columns, then the other.
					lane := 4*(r%8) + step%2*2 + col/16
					at := ((r/16*p.Kept.Atoms()+step/8)*32+lane)*16 + step%8/2*4
					word := binary.LittleEndian.Uint32(p.Pattern[at:])
					nibble := word >> (r % 16 / 8 * 16) >> (col % 16 / 4 * 4) & 0xf
					for e, i := range []uint32{nibble & 3, nibble >> 2} {
						if int(i) != col%4 {
							continue
						}
						// Pair t of the step's first eight columns that are kept, or of the others: register 2·⌊pair/4⌋ of lane t.
						pair := col / 4
						t4, i4 := pair%4, step%2*2+pair/4
						codes[step*32+col] = row[step/2*32+8*t4+2*i4+e]
					}
				}
			}
			for c := range k / 4 {
				nibble := lut24.Nibble(m.RowPattern(r), c)
				want := [4]uint8{0xff, 0xff, 0xff, 0xff}
				want[nibble&3], want[nibble>>2] = kept[2*c], kept[2*c+1]
				if got := [4]uint8(codes[4*c:]); got != want {
					t.Fatalf("row %d, chunk %d: got codes %v, want %v", r, c, got, want)
				}
			}
		}
	})
}

// TestSparseGolden holds the order of the pattern to the sum of one that an emulation of the instruction was checked with.
func TestSparseGolden(t *testing.T) {
	const n, k = 128, 256
	m := randomSparse(1, n, k, 4, 64, weight.F16)
	clear(m.Pattern)
	for row := range n {
		for c := range k / 4 {
			a := (7*row + 5*c) % 4
			b := (a + 1 + (row+c)%3) % 4
			lut24.SetNibble(m.RowPattern(row), c, uint8(min(a, b)|max(a, b)<<2))
		}
	}
	p, err := SparseCUDA(m)
	if err != nil {
		t.Fatal(err)
	}
	// Without the atom that fills the unit up.
	var words []byte
	for tile := range p.Kept.Tiles() {
		words = append(words, p.Pattern[tile*p.Kept.Atoms()*PatternAtomBytes:][:PatternAtomBytes]...)
	}
	sum := sha256.Sum256(words)
	if got := hex.EncodeToString(sum[:8]); got != "832e548389f425de" {
		t.Errorf("pattern hashes to %s", got)
	}
}

func TestBadSparseTiles(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*SparseTiles)
		want  string
	}{
		{"codes", func(p *SparseTiles) { p.Kept.Codes = p.Kept.Codes[1:] }, "codes take"},
		{"odd", func(p *SparseTiles) { p.Kept.K-- }, "want pairs"},
		{"short pattern", func(p *SparseTiles) { p.Pattern = p.Pattern[1:] }, "pattern takes"},
		{"no pair", func(p *SparseTiles) { p.Pattern[5] = 0x41 }, "byte 5 of the pattern is 0x41"},
		{"padded column", func(p *SparseTiles) { p.Pattern[PatternAtomBytes-1] = 0x48 }, "pattern 0x8 in the padding of row"},
		{"padded row", func(p *SparseTiles) { p.Pattern[2*PatternAtomBytes+30*16] = 0x49 }, "pattern 0x9 in the padding of row 23"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := SparseCUDA(randomSparse(1, 20, 140, 3, 32, weight.F16))
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
	m := randomSparse(1, 4, 64, 4, 32, weight.F16)
	m.Pattern[3] = 0x41
	for name, m := range map[string]*lut24.Matrix{"a pattern": m, "a group of 32": randomSparse(1, 4, 64, 4, 16, weight.F16)} {
		if _, err := SparseCUDA(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzSparseTiles feeds stored bytes to the way back. What it accepts must pack to the same bytes.
func FuzzSparseTiles(f *testing.F) {
	for b := lut.MinBits; b <= lut.MaxBits; b++ {
		f.Add(uint8(5), uint16(40), uint8(b), uint16(32), uint16(0), []byte{}, []byte{0x44, 0x48})
	}
	f.Fuzz(func(t *testing.T, n uint8, k uint16, b uint8, group, at uint16, codes, pattern []byte) {
		kept := &CUDATiles{N: int(n % 20), K: int(k % 520), Bits: int(b % 8), Group: int(group), ScaleType: weight.F16}
		kept.Codebook = make([]float32, 1<<kept.Bits)
		kept.Codes = lay(codes, at, kept.Tiles()*kept.TileBytes())
		if kept.Group > 0 {
			kept.Scales = make([]byte, kept.Tiles()*kept.TileScaleBytes())
		}
		p := &SparseTiles{Kept: kept, Pattern: bytes.Repeat([]byte{0x44}, kept.Tiles()*kept.Atoms()*PatternAtomBytes)}
		copy(p.Pattern[min(int(at), len(p.Pattern)):], pattern)
		m, err := p.Matrix()
		if err != nil {
			return
		}
		again, err := SparseCUDA(m)
		if err != nil {
			t.Fatalf("tiles give a matrix that is not valid: %v", err)
		}
		if !bytes.Equal(again.Kept.Codes, kept.Codes) || !bytes.Equal(again.Pattern, p.Pattern) {
			t.Error("tiles changed in the round trip")
		}
	})
}
