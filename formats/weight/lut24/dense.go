package lut24

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight/lut"
)

// zeroCode returns the code that stands for 0, -1 where there is none.
func zeroCode(table []float32) int { return slices.Index(table, 0) }

// LUT returns a matrix of the kind lut that stands for the same weights. Its table has to have a 0,
// which is −0 in groups of a negative scale.
func (m *Matrix) LUT() (*lut.Matrix, error) {
	zero := zeroCode(m.Kept.Codebook)
	if zero < 0 {
		return nil, fmt.Errorf("its table has no 0, which half of the weights of kind %s are", Name)
	}
	n, k := m.Shape()
	l := *m.Kept
	l.K, l.Group = k, m.Group()
	l.Codes = make([]byte, n*l.RowBytes())
	kept, codes := make([]uint8, m.Kept.K), make([]uint8, k)
	for r := range n {
		m.Kept.RowCodes(kept, r)
		for i := range codes {
			codes[i] = uint8(zero)
		}
		pattern := m.RowPattern(r)
		for c := range k / Chunk {
			p := Nibble(pattern, c)
			codes[Chunk*c+int(p&3)], codes[Chunk*c+int(p>>2)] = kept[Kept*c], kept[Kept*c+1]
		}
		lut.PackCodes(l.Codes[r*l.RowBytes():(r+1)*l.RowBytes()], codes, l.Bits)
	}
	return &l, nil
}

// FromLUT returns a matrix that stands for the same weights as one of the kind lut, of which no chunk has more
// than two other than 0. One with fewer keeps zeros in its first free columns.
func FromLUT(l *lut.Matrix) (*Matrix, error) {
	if err := CheckColumns(l.K, l.Group); err != nil {
		return nil, err
	}
	half := *l
	half.K, half.Group = l.K/Chunk*Kept, l.Group/Chunk*Kept
	half.Codes = make([]byte, l.N*half.RowBytes())
	size := PatternBytes(l.K)
	m := &Matrix{Kept: &half, Pattern: make([]byte, l.N*size)}
	codes, kept, row := make([]uint8, l.K), make([]uint8, half.K), make([]float32, l.K)
	for r := range l.N {
		l.RowCodes(codes, r)
		l.Row(row, r)
		pattern := m.Pattern[r*size : (r+1)*size]
		for c := range l.K / Chunk {
			var score [Chunk]float64
			others := 0
			for i, v := range row[Chunk*c:][:Chunk] {
				if v != 0 {
					score[i] = 1
					others++
				}
			}
			if others > Kept {
				return nil, fmt.Errorf("row %d has %d weights other than 0 in columns %d to %d: want %d at most", r, others, Chunk*c, Chunk*c+Chunk-1, Kept)
			}
			SetNibble(pattern, c, Choose(score))
		}
		Gather(kept, codes, pattern)
		lut.PackCodes(half.Codes[r*half.RowBytes():(r+1)*half.RowBytes()], kept, half.Bits)
	}
	return m, nil
}
