// Package gemm measures and checks the multiplication kernels below it: ref,
// the float64 reference, and cpu.
//
// # How a product is timed
//
// Weights rotate through a pool of copies larger than eight times the last
// cache, so that every call finds them in memory, as a model's forward pass
// does. Three things are timed over pools of that size, in turns within one
// run: the quantized product, the plain reading of as many bytes as its weights
// take ([cpu.Engine.ReadOnly]), and the product with the same weights in
// float32. The best turn of each counts; a row is marked noisy where the
// probe's turns differ so much that the machine was not its own.
package gemm
