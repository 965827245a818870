package trellis

import "math"

// Block is the number of columns that a Hadamard matrix mixes where there are as many.
const Block = 128

// Hadamard multiplies v, of a power of two elements, by the Hadamard matrix of ±1 in Sylvester's order, in place: butterflies of
// distance 1 first, then 2, 4 and so on, each (a+b, a−b). It is not normed, and symmetric.
func Hadamard[T float32 | float64](v []T) { HadamardRows(v, 1) }

// HadamardRows multiplies rows of so many columns, a power of two of them, by the matrix of [Hadamard] in place: each column of v is mixed.
func HadamardRows[T float32 | float64](v []T, columns int) {
	for h := columns; h < len(v); h *= 2 {
		for i := 0; i < len(v); i += 2 * h {
			lo, hi := v[i:i+h:i+h], v[i+h:i+2*h:i+2*h]
			for j, a := range lo {
				b := hi[j]
				lo[j], hi[j] = a+b, a-b
			}
		}
	}
}

// Blocks calls f with the bounds of the blocks that are mixed of k columns: [Block] each, and of what is left the largest power of two
// after another.
func Blocks(k int, f func(from, to int)) {
	for from, size := 0, Block; from < k; {
		for size > k-from {
			size /= 2
		}
		f(from, from+size)
		from += size
	}
}

// Even is the factor of a block of so many columns by which its sums of ±1 are as large as those of [Block]: √(128/columns).
func Even(columns int) float32 {
	if columns == Block {
		return 1
	}
	return float32(math.Sqrt(float64(Block) / float64(columns)))
}

// Sign is the factor of column k where none is stored: −1 where bit 16 of a product of k+1 is set, so that signs look drawn.
func Sign(k int) float32 {
	x := uint32(k+1) * 0x9E3779B1
	x ^= x >> 15
	x *= 0x85EBCA77
	if x>>16&1 != 0 {
		return -1
	}
	return 1
}

// Rotate writes to dst what rows of x [rows, len(factors)], as many numbers as dst has, become for a product by what rings hold: each
// times its column's factor and 1/√128, and mixed. So x·Ŵᵀ is dst·Rᵀ times √128 times the rows' scales.
func Rotate(dst, x, factors []float32) {
	k := len(factors)
	norm := float32(1 / math.Sqrt(Block))
	for at := 0; at < len(x); at += k {
		row := dst[at : at+k]
		for i, f := range factors {
			row[i] = x[at+i] * f
		}
		Blocks(k, func(from, to int) {
			Hadamard(row[from:to])
			by := norm * Even(to-from)
			for i := from; i < to; i++ {
				row[i] *= by
			}
		})
	}
}
