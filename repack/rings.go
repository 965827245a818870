package repack

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// RingPanelRows is the number of rows of Ŵ that a panel of rings has: a ring's in each lane.
const RingPanelRows = Lanes * trellis.RingRows

// CPURings is a matrix of rings of pairs in the CPU layout. The package documentation describes Panels.
type CPURings struct {
	N, K      int
	Code      *trellis.Code
	Own       bool // the table is the layer's own
	ScaleType weight.ScaleType
	Panels    []byte // [PanelCount][Columns][2·Rate][16][2] words of 16 bits
	Scales    []byte // [N] of ScaleType
	Factors   []byte // [K] float16, or nil
}

// PanelCount returns the number of panels, of [RingPanelRows] rows.
func (p *CPURings) PanelCount() int { return (p.N + RingPanelRows - 1) / RingPanelRows }

// Columns returns the number of rings side by side.
func (p *CPURings) Columns() int { return (p.K + trellis.RingCols - 1) / trellis.RingCols }

// BlockBytes returns the size of the rings of a panel that have the same columns.
func (p *CPURings) BlockBytes() int { return Lanes * p.ringBytes() }

// PanelBytes returns the size of a panel.
func (p *CPURings) PanelBytes() int { return p.Columns() * p.BlockBytes() }

func (p *CPURings) ringBytes() int { return trellis.RingRows * trellis.RingCols * p.Code.Rate / 16 }

// bands returns how many rings lie below each other.
func (p *CPURings) bands() int { return (p.N + trellis.RingRows - 1) / trellis.RingRows }

// Bytes returns the memory that the matrix takes.
func (p *CPURings) Bytes() int64 {
	sum := int64(len(p.Panels)) + int64(len(p.Scales)) + int64(len(p.Factors))
	if p.Own {
		sum += 4 * int64(len(p.Code.Table))
	}
	return sum
}

// Validate reports the first disagreement between the fields. It does not look at the padding, as [CPURings.Matrix] does.
func (p *CPURings) Validate() error {
	switch {
	case p.N <= 0 || p.K <= 0 || p.N > math.MaxInt32 || p.K > math.MaxInt32:
		return fmt.Errorf("shape %d×%d is out of range", p.N, p.K)
	case p.Code == nil || p.Code.Codebook != trellis.Pairs:
		return errors.New("rings without a table of pairs")
	case len(p.Code.Table) != trellis.Entries:
		return fmt.Errorf("a table of %d pairs: want %d", len(p.Code.Table), trellis.Entries)
	case p.ScaleType.Size() == 0:
		return errors.New("unknown scale type")
	case !isProduct(len(p.Panels), p.PanelCount(), p.PanelBytes()):
		return fmt.Errorf("panels take %d bytes: want %d panels of %d", len(p.Panels), p.PanelCount(), p.PanelBytes())
	case len(p.Scales) != p.N*p.ScaleType.Size():
		return fmt.Errorf("scales take %d bytes: want %d", len(p.Scales), p.N*p.ScaleType.Size())
	case p.Factors != nil && len(p.Factors) != 2*p.K:
		return fmt.Errorf("factors take %d bytes: want %d", len(p.Factors), 2*p.K)
	}
	return nil
}

// Rings lays m out in panels, on all processors. It must be whole, and its codebook one of pairs. Equal matrices give equal bytes.
// What is not of the rings is shared.
func Rings(m *trellis.Matrix) (*CPURings, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.Code.Codebook != trellis.Pairs || !m.Whole() {
		return nil, errors.New("panels are for whole matrices of pairs")
	}
	p := &CPURings{N: m.N, K: m.K, Code: m.Code, Own: m.Own, ScaleType: m.ScaleType, Scales: m.Scales, Factors: m.Factors}
	p.Panels = make([]byte, p.PanelCount()*p.PanelBytes())
	return p, overTiles(p.PanelCount(), func(from, to int) error {
		p.eachRing(from, to, func(band, column int, lane []byte) {
			if band < p.bands() {
				p.spread(lane, m.Rings[(band*p.Columns()+column)*p.ringBytes():])
			}
		})
		return nil
	})
}

// eachRing calls f for the rings of panels, with the bytes of a block from the ring's lane on.
func (p *CPURings) eachRing(from, to int, f func(band, column int, lane []byte)) {
	for panel := from; panel < to; panel++ {
		for c := range p.Columns() {
			block := p.Panels[panel*p.PanelBytes()+c*p.BlockBytes():][:p.BlockBytes()]
			for lane := range Lanes {
				f(panel*Lanes+lane, c, block[4*lane:])
			}
		}
	}
}

// spread writes the words of a ring to a lane.
func (p *CPURings) spread(lane, ring []byte) {
	half := p.ringBytes() / 2
	for j := range 2 * p.Code.Rate {
		copy(lane[4*Lanes*j:][:2], ring[2*j:])
		copy(lane[4*Lanes*j+2:][:2], ring[half+2*j:])
	}
}

// collect is the inverse of spread.
func (p *CPURings) collect(ring, lane []byte) {
	half := p.ringBytes() / 2
	for j := range 2 * p.Code.Rate {
		copy(ring[2*j:], lane[4*Lanes*j:][:2])
		copy(ring[half+2*j:], lane[4*Lanes*j+2:][:2])
	}
}

// Matrix returns the canonical form, which shares what is not of the rings. It fails where the padding is not 0, which [Rings] never
// leaves.
func (p *CPURings) Matrix() (*trellis.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &trellis.Matrix{N: p.N, K: p.K, Code: p.Code, Own: p.Own, ScaleType: p.ScaleType, Scales: p.Scales, Factors: p.Factors}
	m.Rings = make([]byte, p.bands()*p.Columns()*p.ringBytes())
	err := overTiles(p.PanelCount(), func(from, to int) error {
		var err error
		padding := make([]byte, p.ringBytes())
		p.eachRing(from, to, func(band, column int, lane []byte) {
			if band < p.bands() {
				p.collect(m.Rings[(band*p.Columns()+column)*p.ringBytes():][:p.ringBytes()], lane)
				return
			}
			if p.collect(padding, lane); !zeros(padding) && err == nil {
				err = fmt.Errorf("bits in the padding of row %d", band*trellis.RingRows)
			}
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// SameFactors reports whether the columns of two matrices have the same factors: products by both read the same rotated x then.
func (p *CPURings) SameFactors(q *CPURings) bool {
	return p.K == q.K && (p.Factors == nil) == (q.Factors == nil) && slices.Equal(p.Factors, q.Factors)
}
