package repack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/quantize/bcq"
	"github.com/lutq/lutq/quantize/weight"
)

// BCQTiles is a matrix of binary codes as the CUDA kernels of its kind read it: in tiles of 16 rows, units of 256 columns and
// fragments as [CUDATiles] has them, plane by plane.
//
// Of a plane of a unit each lane of a warp has 16 bytes, a word for each 64 columns. Register j of the four of each
// of a word's four products is its bits 15-j and 31-j: of row g or, where j is odd, g + 8, with g the lane divided by 4; of column
// 32·i + 8·t + 4·s + 2·r and the one after it, t being the lane modulo 4, i half the product's number in its 128
// columns, s whether that is odd, and r whether j modulo 4 is more than 1.
//
// Factors follow for each unit and each of its groups, or where there is one set a row for each tile: those of the first plane
// to the last and then the offset, of rows 0, 8, 1, 9 and so on.
//
// Rows and columns of the padding have planes and factors of zeros.
type BCQTiles struct {
	N, K      int
	Bits      int
	Group     int // 32, 64, 128, 256 or K
	ScaleType weight.ScaleType

	Planes  []byte // [Tiles, Units, Bits, 32 lanes, 16 bytes]
	Factors []byte // [Tiles, Units·groups of one, Bits + 1, 8, 2] numbers of type ScaleType
}

// planeBytes is what a plane of a unit takes.
const planeBytes = TileRows * UnitCols / 8

// Tiles returns the number of 16-row tiles.
func (p *BCQTiles) Tiles() int { return (p.N + TileRows - 1) / TileRows }

// Units returns the number of 256-column units of a tile.
func (p *BCQTiles) Units() int { return (p.K + UnitCols - 1) / UnitCols }

// RowScale reports whether there is one set of factors a row.
func (p *BCQTiles) RowScale() bool { return p.Group == p.K }

// sets returns how many sets of factors of a row a tile has room for.
func (p *BCQTiles) sets() int {
	if p.RowScale() {
		return 1
	}
	return p.Units() * (UnitCols / p.Group)
}

// TileBytes returns the size of the planes of a tile.
func (p *BCQTiles) TileBytes() int { return p.Units() * p.Bits * planeBytes }

// TileFactorBytes returns the size of the factors of a tile.
func (p *BCQTiles) TileFactorBytes() int {
	return p.sets() * (p.Bits + 1) * TileRows * p.ScaleType.Size()
}

// Validate reports the first disagreement between the fields. It does not look at the padding.
func (p *BCQTiles) Validate() error {
	if err := weight.CheckShape(p.N, p.K, p.Bits, p.Group, bcq.MinBits, bcq.MaxBits); err != nil {
		return err
	}
	if err := checkCUDAGroup(p.Group, p.K); err != nil {
		return err
	}
	switch {
	case p.N > math.MaxInt32 || p.K > math.MaxInt32:
		return fmt.Errorf("shape %d×%d is out of range", p.N, p.K)
	case p.ScaleType.Size() < 2:
		return errors.New("unknown type of factors")
	case !isProduct(len(p.Planes), p.Tiles(), p.TileBytes()):
		return fmt.Errorf("planes take %d bytes: want %d tiles of %d", len(p.Planes), p.Tiles(), p.TileBytes())
	case !isProduct(len(p.Factors), p.Tiles(), p.TileFactorBytes()):
		return fmt.Errorf("factors take %d bytes: want %d tiles of %d", len(p.Factors), p.Tiles(), p.TileFactorBytes())
	}
	return nil
}

// BCQ lays m out in tiles, on all processors. It fails where the group of m has no layout.
func BCQ(m *bcq.Matrix) (*BCQTiles, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := checkCUDAGroup(m.Group, m.K); err != nil {
		return nil, err
	}
	p := &BCQTiles{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	p.Planes = make([]byte, p.Tiles()*p.TileBytes())
	p.Factors = make([]byte, p.Tiles()*p.TileFactorBytes())
	return p, overTiles(p.Tiles(), func(from, to int) error {
		for tile := from; tile < to; tile++ {
			p.pack(tile, m)
		}
		return nil
	})
}

func (p *BCQTiles) pack(tile int, m *bcq.Matrix) {
	width, groups, size := m.PlaneBytes(), m.Groups(), p.ScaleType.Size()
	for row := range min(TileRows, m.N-tile*TileRows) {
		n := tile*TileRows + row
		for plane := range p.Bits {
			src := m.Planes[(n*p.Bits+plane)*width:][:width]
			for i, eight := range src {
				if rest := m.K - 8*i; rest < 8 {
					eight &= 1<<rest - 1
				}
				w := p.word(tile, plane, row, i)
				binary.LittleEndian.PutUint32(w, binary.LittleEndian.Uint32(w)|spreadEight(eight)<<shiftOf(row, i))
			}
		}
		for g := range groups {
			for i := range p.Bits {
				copy(p.factor(tile, row, g, i), m.Alphas[((n*groups+g)*p.Bits+i)*size:][:size])
			}
			if m.Offsets != nil {
				copy(p.factor(tile, row, g, p.Bits), m.Offsets[(n*groups+g)*size:][:size])
			}
		}
	}
}

// Matrix returns the canonical form, with offsets unless all are 0. It fails where the padding is not 0, which [BCQ] never leaves.
func (p *BCQTiles) Matrix() (*bcq.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &bcq.Matrix{N: p.N, K: p.K, Bits: p.Bits, Group: p.Group, ScaleType: p.ScaleType}
	m.Planes = make([]byte, m.N*m.Bits*m.PlaneBytes())
	m.Alphas = make([]byte, m.N*m.Groups()*m.Bits*p.ScaleType.Size())
	m.Offsets = make([]byte, m.N*m.Groups()*p.ScaleType.Size())
	err := overTiles(p.Tiles(), func(from, to int) error {
		for tile := from; tile < to; tile++ {
			if err := p.unpack(tile, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if zeros(m.Offsets) {
		m.Offsets = nil
	}
	return m, nil
}

func (p *BCQTiles) unpack(tile int, m *bcq.Matrix) error {
	width, groups, size := m.PlaneBytes(), m.Groups(), p.ScaleType.Size()
	for row := range TileRows {
		n := tile*TileRows + row
		for plane := range p.Bits {
			for i := range p.Units() * (UnitCols / 8) {
				eight := gatherEight(binary.LittleEndian.Uint32(p.word(tile, plane, row, i)) >> shiftOf(row, i))
				if n < m.N && i < width {
					m.Planes[(n*p.Bits+plane)*width+i] = eight
				}
				if used := m.K - 8*i; n >= m.N && eight != 0 || used < 8 && eight>>max(used, 0) != 0 {
					return fmt.Errorf("codes in the padding of row %d", n)
				}
			}
		}
		for g := range p.sets() {
			for i := range p.Bits + 1 {
				f := p.factor(tile, row, g, i)
				switch {
				case n >= m.N || g >= groups:
					if !zeros(f) {
						return fmt.Errorf("factor in the padding of row %d", n)
					}
				case i == p.Bits:
					copy(m.Offsets[(n*groups+g)*size:], f)
				default:
					copy(m.Alphas[((n*groups+g)*p.Bits+i)*size:], f)
				}
			}
		}
	}
	return nil
}

// word returns the word of a plane that holds eight columns of a row of a tile, those from 8·i on.
func (p *BCQTiles) word(tile, plane, row, i int) []byte {
	unit, in := i/(UnitCols/8), i%(UnitCols/8)
	lane := row%8*4 + in%4
	at := ((tile*p.Units()+unit)*p.Bits+plane)*planeBytes + lane*16 + in/8*4
	return p.Planes[at : at+4]
}

// shiftOf returns by how many bits these lie above where spreadEight has them.
func shiftOf(row, i int) int { return 8 - i%8/4*8 + 1 - row/8 }

// spreadEight returns the bits of eight columns as they lie in a word for row 8 and the last products: columns 0
// and 1 at bits 6 and 22, the next two at 4 and 20, then 2 and 18, then 0 and 16.
func spreadEight(b byte) uint32 {
	var w uint32
	for pair := range 4 {
		two := uint32(b) >> (2 * pair) & 3
		w |= (two&1 | two>>1<<16) << (6 - 2*pair)
	}
	return w
}

// gatherEight is the inverse of spreadEight, whatever the other bits are.
func gatherEight(w uint32) byte {
	var b uint32
	for pair := range 4 {
		two := w >> (6 - 2*pair)
		b |= (two&1 | two>>16&1<<1) << (2 * pair)
	}
	return byte(b)
}

// factor returns the factor of a plane, or the offset behind the last, of a group of a row of a tile.
func (p *BCQTiles) factor(tile, row, group, i int) []byte {
	size := p.ScaleType.Size()
	at := (((tile*p.sets()+group)*(p.Bits+1)+i)*8+row%8)*2 + row/8
	return p.Factors[at*size:][:size]
}
