// Package lut stores a weight as a code that chooses from a table, times a scale.
//
// A [Matrix] holds a linear layer as codes, a codebook (the table) and a scale for each group of columns of a row:
//
//	ŵ[n,k] = codebook[code(n,k)] · scale[n, k/group]
//
// [NewCodebook] returns the built-in tables. Package quantize/rtn makes a matrix from float32 weights.
package lut
