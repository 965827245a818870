package repack

import (
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Rows and columns of a tile of [TrellisTiles].
const (
	TrellisRows = 64
	TrellisCols = 64
)

// lanes are those of a warp.
const lanes = 32

// TrellisTiles is a matrix of windows on rings of bits, of codebook [trellis.Pairs], as the CUDA kernels of its kind read it: in tiles of 64
// rows by 64 columns, of which each lane of a warp has a ring. Lane 4·g + q has that of rows 8·g to 8·g + 7 and columns 16·q to 16·q + 15.
//
// The tiles of 64 rows follow each other, and then those of the next 64. In a tile a ring is cut into pieces of 16 bytes; the first pieces of all lanes
// come first, one behind the other, then the second ones, and so on. Where a ring is no multiple of 16 its last piece has 8 bytes.
// So a warp reads all lanes' pieces from side by side, and nothing is filled up.
//
// Rings of the padding, which are whole, are zeros. Scales, factors and the table are as the matrix has them.
type TrellisTiles struct {
	N, K      int
	Code      *trellis.Code
	Own       bool // the table is the layer's own
	ScaleType weight.ScaleType

	Rings   []byte // [Bands, Columns, pieces, 32 lanes, 16 or 8 bytes]
	Scales  []byte // [N] numbers of type ScaleType
	Factors []byte // [K] float16, or nil
}

// Bands returns the number of times 64 rows.
func (p *TrellisTiles) Bands() int { return (p.N + TrellisRows - 1) / TrellisRows }

// Columns returns the number of times 64 columns.
func (p *TrellisTiles) Columns() int { return (p.K + TrellisCols - 1) / TrellisCols }

// TileBytes returns the size of a tile.
func (p *TrellisTiles) TileBytes() int { return lanes * p.ringBytes() }

func (p *TrellisTiles) ringBytes() int { return p.Code.Layout().Bytes() }

// Validate reports the first disagreement between the fields. It does not look at the padding.
func (p *TrellisTiles) Validate() error {
	switch {
	case p.N <= 0 || p.K <= 0 || p.N > math.MaxInt32 || p.K > math.MaxInt32:
		return fmt.Errorf("shape %d×%d is out of range", p.N, p.K)
	case p.Code.Codebook != trellis.Pairs:
		return fmt.Errorf("rings of codebook %s have no tiles: want %s", p.Code.Codebook, trellis.Pairs)
	case !isProduct(len(p.Rings), p.Bands()*p.Columns(), p.TileBytes()):
		return fmt.Errorf("rings take %d bytes: want %d tiles of %d", len(p.Rings), p.Bands()*p.Columns(), p.TileBytes())
	}
	return nil
}

// Trellis lays m out in tiles, on all processors. It fails for EXL3's codebooks, and for some rows of a matrix that are no matrix of
// their own.
func Trellis(m *trellis.Matrix) (*TrellisTiles, error) {
	switch {
	case m.Code.Codebook != trellis.Pairs:
		return nil, fmt.Errorf("rings of codebook %s have no tiles: want %s", m.Code.Codebook, trellis.Pairs)
	case !m.Whole():
		return nil, errors.New("some rows of rings have no tiles of their own")
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	p := &TrellisTiles{N: m.N, K: m.K, Code: m.Code, Own: m.Own, ScaleType: m.ScaleType, Scales: m.Scales, Factors: m.Factors}
	p.Rings = make([]byte, p.Bands()*p.Columns()*p.TileBytes())
	return p, overTiles(p.Bands(), func(from, to int) error {
		for band := from; band < to; band++ {
			p.eachRing(band, func(pieces [][]byte, at int) {
				if at < 0 {
					return
				}
				ring := m.Rings[at:]
				for _, piece := range pieces {
					ring = ring[copy(piece, ring):]
				}
			})
		}
		return nil
	})
}

// Matrix returns the canonical form. It fails where the padding is not 0, which [Trellis] never leaves.
func (p *TrellisTiles) Matrix() (*trellis.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &trellis.Matrix{N: p.N, K: p.K, Code: p.Code, Own: p.Own, ScaleType: p.ScaleType, Scales: p.Scales, Factors: p.Factors}
	rows, columns := p.rings()
	m.Rings = make([]byte, rows*columns*p.ringBytes())
	err := overTiles(p.Bands(), func(from, to int) error {
		for band := from; band < to; band++ {
			clean := true
			p.eachRing(band, func(pieces [][]byte, at int) {
				for _, piece := range pieces {
					if at < 0 {
						clean = clean && zeros(piece)
						continue
					}
					at += copy(m.Rings[at:], piece)
				}
			})
			if !clean {
				return fmt.Errorf("rings in the padding of rows %d to %d", band*TrellisRows, (band+1)*TrellisRows-1)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, m.Validate()
}

// rings returns how many rings the matrix has down its rows and across its columns.
func (p *TrellisTiles) rings() (rows, columns int) {
	return (p.N + trellis.RingRows - 1) / trellis.RingRows, (p.K + trellis.RingCols - 1) / trellis.RingCols
}

// eachRing calls f with the pieces of each ring of a band of 64 rows, and where it is in the canonical form, or -1 for one of the padding.
func (p *TrellisTiles) eachRing(band int, f func(pieces [][]byte, at int)) {
	const piece, down, across = 16, TrellisRows / trellis.RingRows, TrellisCols / trellis.RingCols
	rows, columns := p.rings()
	size, tile := p.ringBytes(), p.TileBytes()
	pieces := make([][]byte, 0, (size+piece-1)/piece)
	for c := range p.Columns() {
		data := p.Rings[(band*p.Columns()+c)*tile:][:tile]
		for lane := range lanes {
			pieces = pieces[:0]
			for from := 0; from < size; from += piece {
				n := min(piece, size-from)
				pieces = append(pieces, data[from*lanes+lane*n:][:n])
			}
			at, row, column := -1, band*down+lane/across, c*across+lane%across
			if row < rows && column < columns {
				at = (row*columns + column) * size
			}
			f(pieces, at)
		}
	}
}
