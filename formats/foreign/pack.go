package foreign

import (
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Words returns the words of 32 bits that k codes take as a stream.
func Words(k, bits int) int { return (k*bits + 31) / 32 }

// Rows returns the codes of a matrix, of so many bits as the other table has them, as little-endian
// bit streams, each row filled up to whole words of 32 bits. These are the matrix's own where
// nothing differs.
func (m Match) Rows(w *lut.Matrix, bits int) []byte {
	rowBytes := 4 * Words(w.K, bits)
	if m.Straight() && bits == w.Bits && rowBytes == w.RowBytes() {
		return w.Codes
	}
	dst, codes := make([]byte, w.N*rowBytes), make([]uint8, w.K)
	for n := range w.N {
		m.RowCodes(codes, w, n)
		num.PackBits(dst[n*rowBytes:(n+1)*rowBytes], codes, bits)
	}
	return dst
}

// Nibbles returns codes of four bits, two of a row to a byte: the first in the lower bits, or with high in
// the upper ones. K is even.
func (m Match) Nibbles(w *lut.Matrix, high bool) []byte {
	if m.Straight() && w.Bits == 4 {
		return swapped(w.Codes, high)
	}
	dst, codes := make([]byte, w.N*w.K/2), make([]uint8, w.K)
	for n := range w.N {
		m.RowCodes(codes, w, n)
		num.PackBits(dst[n*w.K/2:(n+1)*w.K/2], codes, 4)
	}
	return swapped(dst, high)
}

// swapped returns the bytes, with their halves exchanged if high.
func swapped(src []byte, high bool) []byte {
	if !high {
		return src
	}
	dst := make([]byte, len(src))
	for i, b := range src {
		dst[i] = b<<4 | b>>4
	}
	return dst
}

// tile is how many rows are turned at a time: as many numbers of four bytes as a line of the cache holds.
const tile = 16

// Transpose returns the matrix [rows, cols] of numbers of size bytes as [cols, rows].
func Transpose(src []byte, rows, cols, size int) []byte {
	dst := make([]byte, len(src))
	for from := 0; from < rows; from += tile {
		to := min(from+tile, rows)
		for c := range cols {
			for r := from; r < to; r++ {
				copy(dst[(c*rows+r)*size:][:size], src[(r*cols+c)*size:])
			}
		}
	}
	return dst
}
