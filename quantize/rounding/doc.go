// Package rounding is what a method of quantization and its caller agree on.
//
// A [Quantizer] turns rows of float32 weights into the data of a layer's parts, and tells each
// row's error. A method that looks at what the layer reads gets it as [Stats].
package rounding
