// Package weight says what a stored weight is, whatever its kind.
//
// A [Spec] is how a layer is stored, a [Kind] which tensors hold it and how they
// turn into a [Matrix], and a [Quantizer] writes them from float32 weights. Each
// kind lies in a package of its own (quantize/lut, for one); package
// formats/lutq lists them.
package weight
