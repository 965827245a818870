// Package weight says what a stored weight is, whatever its kind.
//
// A [Spec] says how a layer is stored: bits, group, codebook, scales. A [Kind] says which tensors hold it, and makes a
// [Matrix] of them. A matrix gives its rows as float32, and that defines the weight. There are four kinds:
//
//	lut      codes that choose from a table, times scales
//	bcq      binary codes: sums of factors with signs
//	lut24    lut with two of every four columns, the others 0
//	trellis  windows on rings of bits, which stand for pairs of a table; the weights are those rotated
//
// Each lies in a package of its own. Package formats/lutq lists them. What makes such matrices from float32 weights
// lies in quantize.
package weight
