package lut

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
)

// Widths of a code, in bits.
const (
	MinBits = 2
	MaxBits = 5
)

// Matrix is a linear layer of N output features and K input features,
// quantized through a lookup table:
//
//	ŵ[n,k] = Codebook[code(n,k)] · scale(n, k/Group)
//
// It is the one value that the rest of the program speaks about weights with.
// Codes and scales are held exactly as the container stores them.
type Matrix struct {
	N, K int // output and input features
	Bits int // of a code, 2 to 5

	// Group is the number of consecutive input features of a row that share a
	// scale; the last group of a row is short where Group does not divide K.
	// Group == K is one scale a row.
	Group int

	// Codes holds N rows of RowBytes bytes. A row is a little-endian bit
	// stream: code k occupies bits [k·Bits, (k+1)·Bits), and what is left of
	// the last byte is zero.
	Codes []byte

	// Scales holds N rows of Groups little-endian numbers of type ScaleType.
	Scales    []byte
	ScaleType weight.ScaleType

	// Codebook holds 2^Bits values in ascending order.
	Codebook []float32
}

// RowBytes returns the number of bytes that a row of k codes takes.
func RowBytes(k, bits int) int { return num.BitsBytes(k, bits) }

// PackCodes writes a row of codes as [num.PackBits] does.
func PackCodes(dst []byte, codes []uint8, bits int) { num.PackBits(dst, codes, bits) }

// UnpackCodes is the inverse of [PackCodes] for len(dst) codes.
func UnpackCodes(dst []uint8, src []byte, bits int) { num.UnpackBits(dst, src, bits) }

// RowBytes returns the number of bytes of a row of codes.
func (m *Matrix) RowBytes() int { return RowBytes(m.K, m.Bits) }

// Groups returns the number of scales of a row.
func (m *Matrix) Groups() int { return weight.GroupsIn(m.K, m.Group) }

// Bytes returns what the matrix takes on disk: codes, scales and codebook.
func (m *Matrix) Bytes() int64 {
	return int64(len(m.Codes)) + int64(len(m.Scales)) + 4*int64(len(m.Codebook))
}

// Validate reports the first disagreement between the matrix's fields.
func (m *Matrix) Validate() error {
	if err := weight.CheckShape(m.N, m.K, m.Bits, m.Group, MinBits, MaxBits); err != nil {
		return err
	}
	switch {
	case len(m.Codes) != m.N*m.RowBytes():
		return fmt.Errorf("codes take %d bytes: want %d", len(m.Codes), m.N*m.RowBytes())
	case m.ScaleType.Size() == 0:
		return errors.New("unknown scale type")
	case len(m.Scales) != m.N*m.Groups()*m.ScaleType.Size():
		return fmt.Errorf("scales take %d bytes: want %d", len(m.Scales), m.N*m.Groups()*m.ScaleType.Size())
	case len(m.Codebook) != 1<<m.Bits:
		return fmt.Errorf("codebook of %d values: want %d", len(m.Codebook), 1<<m.Bits)
	}
	return nil
}

// RowCodes unpacks the K codes of row n into dst.
func (m *Matrix) RowCodes(dst []uint8, n int) {
	rb := m.RowBytes()
	UnpackCodes(dst[:m.K], m.Codes[n*rb:(n+1)*rb], m.Bits)
}

// RowScales decodes the scales of row n into dst, of length Groups.
func (m *Matrix) RowScales(dst []float32, n int) {
	sb := m.Groups() * m.ScaleType.Size()
	m.ScaleType.Decode(dst[:m.Groups()], m.Scales[n*sb:(n+1)*sb])
}

// Row writes the K dequantized weights of row n to dst: one float32 product
// of table value and scale each.
func (m *Matrix) Row(dst []float32, n int) {
	const piece = 256 // codes, which begin with a byte
	var codes [piece]uint8
	var scale [1]float32
	rb, size := m.RowBytes(), m.ScaleType.Size()
	row, scales := m.Codes[n*rb:(n+1)*rb], m.Scales[n*m.Groups()*size:]
	next := 0 // column, of the next group
	for from := 0; from < m.K; from += piece {
		c := codes[:min(piece, m.K-from)]
		UnpackCodes(c, row[from/8*m.Bits:], m.Bits)
		for i, c := range c {
			if from+i == next {
				m.ScaleType.Decode(scale[:], scales[next/m.Group*size:][:size])
				next += m.Group
			}
			dst[from+i] = m.Codebook[c] * scale[0]
		}
	}
}

// Dequantize returns all N·K weights, row by row.
func (m *Matrix) Dequantize() []float32 { return weight.Dequantize(m) }

// Rows implements [weight.Matrix].
func (m *Matrix) Rows(first, step, n int) weight.Matrix {
	r := *m
	r.N = n
	codes, scales := m.RowBytes(), m.Groups()*m.ScaleType.Size()
	r.Codes, r.Scales = make([]byte, n*codes), make([]byte, n*scales)
	for i := range n {
		from := first + i*step
		copy(r.Codes[i*codes:(i+1)*codes], m.Codes[from*codes:])
		copy(r.Scales[i*scales:(i+1)*scales], m.Scales[from*scales:])
	}
	return &r
}

// SetRows is the inverse of [Matrix.Rows]: it writes the rows of part to m. Of a part
// without codes these stay what they are.
func (m *Matrix) SetRows(part *Matrix, first, step int) {
	codes, scales := m.RowBytes(), m.Groups()*m.ScaleType.Size()
	for i := range part.N {
		to := first + i*step
		if part.Codes != nil {
			copy(m.Codes[to*codes:(to+1)*codes], part.Codes[i*codes:])
		}
		copy(m.Scales[to*scales:(to+1)*scales], part.Scales[i*scales:])
	}
}

// Columns returns the matrix of the columns [from, to), which must not part a group.
func (m *Matrix) Columns(from, to int) (*Matrix, error) {
	if from < 0 || to > m.K || from >= to {
		return nil, fmt.Errorf("columns %d to %d of %d", from, to, m.K)
	}
	c := *m
	c.K = to - from
	firstScale, scales := 0, 1 // of a row
	if m.Group < m.K {
		if from%m.Group != 0 || to%m.Group != 0 && to != m.K {
			return nil, fmt.Errorf("columns %d to %d part groups of %d", from, to, m.Group)
		}
		firstScale, scales = from/m.Group, weight.GroupsIn(c.K, m.Group)
	}
	c.Group = min(m.Group, c.K)
	size, rb, own := m.ScaleType.Size(), m.RowBytes(), c.RowBytes()
	c.Codes, c.Scales = make([]byte, c.N*own), make([]byte, c.N*scales*size)
	codes := make([]uint8, m.K)
	for i := range m.N {
		row := m.Codes[i*rb : (i+1)*rb]
		if from%8 == 0 && to%8 == 0 { // whole bytes
			copy(c.Codes[i*own:(i+1)*own], row[from/8*m.Bits:])
		} else {
			UnpackCodes(codes, row, m.Bits)
			PackCodes(c.Codes[i*own:(i+1)*own], codes[from:to], m.Bits)
		}
		copy(c.Scales[i*scales*size:(i+1)*scales*size], m.Scales[(i*m.Groups()+firstScale)*size:])
	}
	return &c, nil
}
