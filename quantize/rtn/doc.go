// Package rtn rounds each weight to the nearest value that a table and a scale can give (round to nearest).
//
// [Quantize] does that to a whole layer. A [Quantizer] does it to some rows at a time, and tells their errors. It sees
// nothing but these rows: a layer can be quantized in pieces of any size, in any order and on any number of threads, to
// the same bytes. The result is a matrix of package formats/weight/lut.
package rtn

//go:generate go run gentables.go
