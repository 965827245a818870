// Package lut quantizes weights through lookup tables.
//
// A [Matrix] holds a linear layer as codes, a codebook and group scales. A
// [Quantizer] makes the codes and scales of some rows from float32 weights; it
// sees nothing but those rows, so that a layer can be quantized in pieces of
// any size, in any order and on any number of threads, to the same bytes.
package lut

//go:generate go run gentables.go
