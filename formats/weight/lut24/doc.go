// Package lut24 stores weights of which every four consecutive columns keep two (2:4 sparsity). The two that are kept
// have codes, scales and a table as in package lut. The others are exactly 0.
//
// # Stored
//
// The kept weights of a row, in the order of their columns, are a row of half as many, in groups of
// half as many columns: with K columns and groups of g,
//
//	codes    as of K/2 columns in groups of g/2
//	pattern  U8 [N, ⌈K/8⌉]: nibble c%2 of byte c/2, the low one first, is i0 | i1<<2 of the columns
//	         4c+i0 and 4c+i1 that chunk c keeps, i0 < i1
//
// Code 2c is that of column 4c+i0 and code 2c+1 that of column 4c+i1. K and g are multiples of 4. A
// chunk always keeps two: one with fewer weights other than 0 keeps zeros in its first free columns,
// with the code nearest to 0.
package lut24
