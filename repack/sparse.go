package repack

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// SparseTiles is a matrix of kind lut24 in the layout of the CUDA kernels for mma.sp: the kept weights as a
// matrix of K/2 columns in tiles, and where they are.
//
// # Kept
//
// They are [CUDATiles] of the kept weights, in groups of half as many columns, but that columns are in their own
// order: with lane l = 4·g + t the columns of pair r of step s are
//
//	128·atom + 16·s + 8·⌊r/2⌋ + 2·t + e
//
// so that a pair is what a chunk of four columns keeps, as the instruction wants it. An atom is 256 columns of
// the matrix.
//
// # Pattern
//
// Pattern is [tiles][atoms][32 (lane)][4] 32-bit words, little-endian. Word j of an atom is about its columns 64·j to
// 64·j + 63, which are steps 2j (metadata of lanes t = 0, 1) and 2j + 1 (t = 2, 3): lane l has row g in bits 0 to 15
// and row g + 8 in bits 16 to 31, and in bits 4·c of each the nibble i0 | i1<<2 of chunk
//
//	64·atom + 16·j + 8·⌊t/2⌋ + 4·(t%2) + c
//
// Padding keeps the first two of each chunk, 4, for the instruction knows no other than ordered pairs.
type SparseTiles struct {
	Kept    *CUDATiles
	Pattern []byte
}

// PatternAtomBytes is the size of the pattern of an atom.
const PatternAtomBytes = 16 * warp

// padded is a nibble of padding.
const padded = 0x4

// SparseCUDA lays m out in tiles, on all processors. It fails where the groups of what is kept have no layout: groups
// are of 64 columns at least.
func SparseCUDA(m *lut24.Matrix) (*SparseTiles, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := checkCUDAGroup(m.Kept.Group, m.Kept.K); err != nil {
		return nil, fmt.Errorf("groups of %d columns, of which half are kept: %w", m.Group(), err)
	}
	kept, err := tilesOf(m.Kept, true)
	if err != nil {
		return nil, err
	}
	p := &SparseTiles{Kept: kept, Pattern: make([]byte, kept.Tiles()*kept.Atoms()*PatternAtomBytes)}
	n, k := m.Shape()
	return p, overTiles(kept.Tiles(), func(from, to int) error {
		for i := from * TileRows; i < to*TileRows; i++ {
			var row []byte
			if i < n {
				row = m.RowPattern(i)
			}
			for c := range kept.Atoms() * chunks {
				nibble := uint8(padded)
				if i < n && c < k/lut24.Chunk {
					if nibble = lut24.Nibble(row, c); !lut24.IsPair(nibble) {
						return fmt.Errorf("pattern of row %d, chunk %d, is %#x: want i0 | i1<<2 with i0 < i1", i, c, nibble)
					}
				}
				at, shift := p.nibble(i, c)
				p.Pattern[at] |= nibble << shift
			}
		}
		return nil
	})
}

// chunks is the number of chunks of an atom.
const chunks = AtomCols / lut24.Kept

// nibble returns the byte of the pattern that has a row's nibble of a chunk, and the first of its bits.
func (p *SparseTiles) nibble(row, chunk int) (at, shift int) {
	in := chunk % chunks
	lane := row%8*4 + in%16/4
	at = ((row/TileRows*p.Kept.Atoms()+chunk/chunks)*warp+lane)*16 + in/16*4
	return at + row%TileRows/8*2 + in%4/2, in % 2 * 4
}

// Shape returns N and K, the columns that are not kept among them.
func (p *SparseTiles) Shape() (n, k int) { return p.Kept.N, p.Kept.K / lut24.Kept * lut24.Chunk }

// Bytes returns the memory that the matrix takes.
func (p *SparseTiles) Bytes() int64 { return p.Kept.Bytes() + int64(len(p.Pattern)) }

// Validate reports the first disagreement between the fields, and the first word of the pattern that keeps no two columns.
func (p *SparseTiles) Validate() error {
	if err := p.Kept.Validate(); err != nil {
		return err
	}
	if p.Kept.K%lut24.Kept != 0 {
		return fmt.Errorf("%d columns are kept: want pairs", p.Kept.K)
	}
	if !isProduct(len(p.Pattern), p.Kept.Tiles(), p.Kept.Atoms()*PatternAtomBytes) {
		return fmt.Errorf("pattern takes %d bytes: want %d tiles of %d", len(p.Pattern), p.Kept.Tiles(), p.Kept.Atoms()*PatternAtomBytes)
	}
	for i, b := range p.Pattern {
		if !lut24.IsPair(b&0xf) || !lut24.IsPair(b>>4) {
			return fmt.Errorf("byte %d of the pattern is %#x: want nibbles i0 | i1<<2 with i0 < i1", i, b)
		}
	}
	return nil
}

// Matrix returns the canonical form. It fails where padding is not as [SparseCUDA] leaves it.
func (p *SparseTiles) Matrix() (*lut24.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	kept, err := p.Kept.matrix(true)
	if err != nil {
		return nil, err
	}
	n, k := p.Shape()
	size := lut24.PatternBytes(k)
	m := &lut24.Matrix{Kept: kept, Pattern: make([]byte, n*size)}
	for i := range p.Kept.Tiles() * TileRows {
		for c := range p.Kept.Atoms() * chunks {
			at, shift := p.nibble(i, c)
			nibble := p.Pattern[at] >> shift & 0xf
			switch {
			case i < n && c < k/lut24.Chunk:
				lut24.SetNibble(m.Pattern[i*size:], c, nibble)
			case nibble != padded:
				return nil, fmt.Errorf("pattern %#x in the padding of row %d", nibble, i)
			}
		}
	}
	return m, nil
}

// turnPairs turns each sixteen pairs of codes of a row, as four times four: with pair 4·t + i where 4·i + t was, columns lie
// where those of their own order would be read in the order of [CUDATiles], and the other way around.
func turnPairs(row []byte, bits int) {
	const group = 32
	for at := 0; at+4*bits <= len(row); at += group / 8 * bits {
		var in [4*lut.MaxBits + slack]byte
		copy(in[:], row[at:][:4*bits])
		var out [4*lut.MaxBits + slack]byte
		for i := range 4 {
			for t := range 4 {
				setField(out[:], (4*t+i)*2*bits, field(in[:], (4*i+t)*2*bits, 2*bits))
			}
		}
		copy(row[at:], out[:4*bits])
	}
}
