// Package lut stores the weight of a linear layer as codes that are looked up in a table.
//
// A [Matrix] holds a layer as codes, a codebook and group scales. Package quantize/rtn makes
// one from float32 weights.
package lut
