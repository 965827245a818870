package repack

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
)

// PlaneBytes is the size of a plane of a half-block.
const PlaneBytes = Lanes * Half / 8

// CPUPlanes is a matrix of binary codes in the CPU layout. The package
// documentation describes Planes and Factors.
type CPUPlanes struct {
	N, K      int
	Bits      int // planes
	Group     int
	ScaleType weight.ScaleType
	Offsets   bool   // there are offsets: the first of the factors
	Planes    []byte // [PanelCount][Halves][Bits][PlaneBytes]
	Factors   []byte // [PanelCount][Groups][Vectors][16] of ScaleType
}

// PanelCount returns the number of 16-row panels.
func (p *CPUPlanes) PanelCount() int { return (p.N + Lanes - 1) / Lanes }

// Halves returns the number of half-blocks in a panel.
func (p *CPUPlanes) Halves() int { return (p.K + Half - 1) / Half }

// Groups returns the groups of a row.
func (p *CPUPlanes) Groups() int { return weight.GroupsIn(p.K, p.Group) }

// Vectors returns the factors of a group of a row.
func (p *CPUPlanes) Vectors() int {
	if p.Offsets {
		return p.Bits + 1
	}
	return p.Bits
}

// PanelBytes returns the size of the planes of a panel.
func (p *CPUPlanes) PanelBytes() int { return p.Halves() * p.Bits * PlaneBytes }

// PanelFactorBytes returns the size of the factors of a panel.
func (p *CPUPlanes) PanelFactorBytes() int {
	return p.Groups() * p.Vectors() * Lanes * p.ScaleType.Size()
}

// Bytes returns the memory that the matrix takes.
func (p *CPUPlanes) Bytes() int64 { return int64(len(p.Planes)) + int64(len(p.Factors)) }

// Validate reports the first disagreement between the fields. It does not
// look at the padding, as [CPUPlanes.Matrix] does.
func (p *CPUPlanes) Validate() error {
	if err := weight.CheckShape(p.N, p.K, p.Bits, p.Group, bcq.MinBits, bcq.MaxBits); err != nil {
		return err
	}
	switch {
	case p.N > math.MaxInt32 || p.K > math.MaxInt32:
		return fmt.Errorf("shape %d×%d is out of range", p.N, p.K)
	case p.ScaleType.Size() == 0:
		return errors.New("unknown type of factors")
	case !isProduct(len(p.Planes), p.PanelCount(), p.PanelBytes()):
		return fmt.Errorf("planes take %d bytes: want %d panels of %d", len(p.Planes), p.PanelCount(), p.PanelBytes())
	case !isProduct(len(p.Factors), p.PanelCount(), p.PanelFactorBytes()):
		return fmt.Errorf("factors take %d bytes: want %d panels of %d", len(p.Factors), p.PanelCount(), p.PanelFactorBytes())
	}
	return nil
}

// PlanePlace returns where a column of a half-block is in a plane: the first byte, which
// is row 0's as the others follow, and the bit.
func PlanePlace(column int) (at, bit int) {
	return column/16*2*Lanes + column/4%2*Lanes, column/8%2*4 + column%4
}

// Planes lays m out in panels, on all processors. Equal matrices give equal bytes.
func Planes(m *bcq.Matrix) (*CPUPlanes, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	p := &CPUPlanes{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType, Offsets: m.Offsets != nil}
	p.Planes = make([]byte, p.PanelCount()*p.PanelBytes())
	p.Factors = make([]byte, p.PanelCount()*p.PanelFactorBytes())
	return p, p.overRows(func(n int) {
		p.overNibbles(m, n, func(ours, theirs *byte, shift, from int) { *ours |= *theirs >> from & 15 << shift })
		p.overFactors(m, n, func(ours, theirs []byte) { copy(ours, theirs) })
	})
}

// Matrix returns the canonical form. It fails where the padding is not 0,
// which [Planes] never leaves.
func (p *CPUPlanes) Matrix() (*bcq.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &bcq.Matrix{N: p.N, K: p.K, Bits: p.Bits, Group: p.Group, ScaleType: p.ScaleType}
	m.Planes = make([]byte, m.N*m.Bits*m.PlaneBytes())
	m.Alphas = make([]byte, m.N*m.Groups()*m.Bits*m.ScaleType.Size())
	if p.Offsets {
		m.Offsets = make([]byte, m.N*m.Groups()*m.ScaleType.Size())
	}
	err := p.overRows(func(n int) {
		p.overNibbles(m, n, func(ours, theirs *byte, shift, from int) { *theirs |= *ours >> shift & 15 << from })
		p.overFactors(m, n, func(ours, theirs []byte) { copy(theirs, ours) })
	})
	if err != nil {
		return nil, err
	}
	// What is left of it is padding.
	again, err := Planes(m)
	if err != nil {
		return nil, err
	}
	if err := m.CheckPadding(); err != nil {
		return nil, err
	}
	if !bytes.Equal(again.Planes, p.Planes) || !bytes.Equal(again.Factors, p.Factors) {
		return nil, errors.New("bits or factors in the padding")
	}
	return m, nil
}

// overRows calls f for every row in parallel, those of a panel one after the other.
func (p *CPUPlanes) overRows(f func(n int)) error {
	return overTiles(p.PanelCount(), func(from, to int) error {
		for n := from * Lanes; n < min(to*Lanes, p.N); n++ {
			f(n)
		}
		return nil
	})
}

// overNibbles calls f for every four columns of each plane of a row, with the bytes that have them and the bits
// where they begin.
func (p *CPUPlanes) overNibbles(m *bcq.Matrix, n int, f func(ours, theirs *byte, shift, from int)) {
	panel := p.Planes[n/Lanes*p.PanelBytes():][:p.PanelBytes()]
	for plane := range p.Bits {
		row := m.Planes[(n*p.Bits+plane)*m.PlaneBytes():][:m.PlaneBytes()]
		for column := 0; column < p.K; column += 4 {
			at, shift := PlanePlace(column % Half)
			f(&panel[(column/Half*p.Bits+plane)*PlaneBytes+at+n%Lanes], &row[column/8], shift, column%8)
		}
	}
}

// overFactors calls f for every factor of a row.
func (p *CPUPlanes) overFactors(m *bcq.Matrix, n int, f func(ours, theirs []byte)) {
	size := p.ScaleType.Size()
	at := n/Lanes*p.PanelFactorBytes() + n%Lanes*size
	next := func(theirs []byte) {
		f(p.Factors[at:at+size], theirs[:size])
		at += Lanes * size
	}
	for g := n * p.Groups(); g < (n+1)*p.Groups(); g++ {
		if p.Offsets {
			next(m.Offsets[g*size:])
		}
		for i := range p.Bits {
			next(m.Alphas[(g*p.Bits+i)*size:])
		}
	}
}
