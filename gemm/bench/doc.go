// Package bench measures and checks the multiplication kernels beside it: ref,
// the float64 reference, cpu and cuda.
//
// # How a product is timed on the CPU
//
// Weights rotate through a ring of copies larger than eight times the last
// cache, so that every call finds them in memory, as a model's forward pass
// does; those of a matrix of a few kilobytes stay in the caches, and a part of the others does where all
// rings would take more than a quarter of the memory that is free. Four things are timed over rings of that size, in turns within one run:
// the quantized product, the plain reading of as many bytes as its weights take
// ([cpu.Engine.ReadOnly]), and the products with the same weights in float32
// and in float16. The best turn of each counts; a row is marked noisy where turns
// differ by more than a tenth, or other processes worked meanwhile.
//
// # How a product is timed on a GPU
//
// Weights rotate through a ring of matrices, each with memory of its own, of at
// least four times the level-2 cache together. At least 64 calls, in whole
// rounds of the ring, are captured in a CUDA graph; graphs of the product, of
// its read-only twin and of cuBLAS with dense weights of the type of X are
// replayed in turns, and the median replay counts, divided by its calls, with
// the gaps between launches in it. The twin is the fastest of the kernels that
// read the weights as the product does under one of its configurations, with
// the same grid and launch attributes, and do nothing else; it reads them once,
// whatever M is.
//
// With more than 16 rows of X the product is done in the faster of two ways: by a kernel for
// every 16 rows, or by writing the weights as numbers first, for cuBLAS.
//
// Errors are relative to the float64 product with the table rounded to the type
// of X, which is what kernels hold; what that rounding changes is told beside.
package bench
