// Package weight says what a stored weight is, whatever its kind.
//
// A [Spec] is how a layer is stored, a [Kind] which tensors hold it and how they
// turn into a [Matrix]. Each kind lies in a package of its own (formats/weight/lut, for one);
// package formats/lutq lists them. What turns weights into such tensors lies in quantize.
package weight
