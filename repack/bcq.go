package repack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
)

// BCQTiles is a matrix of binary codes as the CUDA kernels of its kind read it: in tiles of 16 rows, units of 256 columns and
// fragments as [CUDATiles] has them, plane by plane.
//
// Of a plane of a unit each lane of a warp has 16 bytes, a word for each 64 columns. Lane 4·g + t has the bits of rows g, in the
// lower half of a word, and g + 8 in the upper, and of columns 2·t and 2·t + 1 of each eight: bit 8·c + 2·i + h of a half is that of
// column 32·h + 8·i + 2·t + c of the 64. So the even bits are a pattern of mma.sp for 32 columns, but for what each four of it have in
// common, and the odd ones that of the next 32.
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
				for t := range 4 {
					w, two := p.word(tile, plane, row, i, t), uint32(eight)>>(2*t)
					binary.LittleEndian.PutUint32(w, binary.LittleEndian.Uint32(w)|(two&1|two>>1&1<<8)<<shiftOf(row, i))
				}
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
				var eight byte
				for t := range 4 {
					w := binary.LittleEndian.Uint32(p.word(tile, plane, row, i, t)) >> shiftOf(row, i)
					eight |= byte(w&1|w>>8&1<<1) << (2 * t)
				}
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

// word returns the word of a plane that holds columns 8·i + 2·t and the one after it of a row of a tile.
func (p *BCQTiles) word(tile, plane, row, i, t int) []byte {
	unit, in := i/(UnitCols/8), i%(UnitCols/8)
	lane := row%8*4 + t
	at := ((tile*p.Units()+unit)*p.Bits+plane)*planeBytes + lane*16 + in/8*4
	return p.Planes[at : at+4]
}

// shiftOf returns which bit of it the first of the two is; the second is 8 above it.
func shiftOf(row, i int) int { return row/8*16 + i%4*2 + i/4%2 }

// factor returns the factor of a plane, or the offset behind the last, of a group of a row of a tile.
func (p *BCQTiles) factor(tile, row, group, i int) []byte {
	size := p.ScaleType.Size()
	at := (((tile*p.sets()+group)*(p.Bits+1)+i)*8+row%8)*2 + row/8
	return p.Factors[at*size:][:size]
}
