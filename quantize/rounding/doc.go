// Package rounding has the interfaces between methods of quantization and those who call them.
//
// A [Quantizer] turns rows of float32 weights into codes and scales as they are stored, and tells each row's error.
// [Stats] are what a layer reads on a text, for methods that look at it.
package rounding
