// Package trellis has the kind of weights that are windows on a ring of bits.
//
// # Rings
//
// A ring holds the codes of a block of weights in a string of bits whose end joins its beginning. Each step adds some bits, and the
// value at a step is a function of the last [Window] bits: a window. No state is carried, so every weight can be decoded by
// itself. What chooses the bits looks for the best path through all windows (Viterbi's algorithm), and so gains the
// density of large vectors with a small table. K bits a weight are spelled as a Rate of 2·K, for K may be half a bit.
//
// There are two layouts.
//
//	trellis         rings of [RingRows] × [RingCols] weights; a step is a pair of neighbours in a row, from a table by a hash
//	mul1 mcg 3inst  EXL3's: rings of 16 × 16 weights, a step is a weight, computed from the window
//
// # Rotation
//
// What rings hold is rotated, which makes any weights look Gaussian. Blocks of [Block] columns are multiplied by a Hadamard matrix; the
// columns that 128 does not divide make blocks of smaller powers of two, see [Blocks]. EXL3's layouts are rotated
// along the rows of Ŵ as well. Columns have a factor in front of that: a sign, see [Sign], or a number that is stored. Rows have a scale.
//
//	trellis  ŵ[n,k] = scale[n] · Σⱼ H[j,k] · r[n,j] · factor[k]              H of ±1, not normed; times √(128/b) in a block of b
//	EXL3     ŵ[n,k] = scale[n] · Σᵢⱼ H[i,n] · H[j,k] · r[i,j] / 128 · factor[k]
//
// Everything is float32, in the order of [Hadamard]'s butterflies, then times scale, then times factor.
package trellis
