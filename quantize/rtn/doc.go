// Package rtn quantizes weights by rounding each to the nearest value of a table (round to nearest).
//
// A [Quantizer] makes the codes and scales of some rows from float32 weights, for a matrix of package
// formats/weight/lut. It sees nothing but those rows, so that a layer can be quantized in pieces of
// any size, in any order and on any number of threads, to the same bytes.
package rtn

//go:generate go run gentables.go
