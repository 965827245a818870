// Package bench times the kernels of packages cpu and cuda, and checks them against package ref, which multiplies in float64.
// [CPU] and [CUDA] time products, [Survey] many of them quickly, [Selftest] and [SelftestCUDA] check. Each is one loop over kinds of
// weights or families of kernels, and over the ways that each has to multiply. What a kind is and how it is multiplied stands with
// its kernels.
//
// # How a product is timed on the CPU
//
// Weights rotate through a ring: copies of the matrix, together larger than eight times the last cache. So every call finds its
// weights in memory, as a model's forward pass does. A matrix of a few kilobytes stays in the caches all the same. So does a part of
// others, where all rings would take more than a quarter of the memory that is free.
//
// Four things are timed in turns within one run, over rings of that size: the quantized product; plain reading of as many bytes as
// its weights take ([cpu.Engine.ReadOnly]); and the product with the same weights in float32 and in float16. The best turn of each
// counts. A row is marked noisy where turns differ by more than a tenth, or where other processes worked meanwhile.
//
// # How a product is timed on a GPU
//
// Weights rotate through a ring of matrices, together at least four times the level-2 cache, each in memory of its own. A CUDA graph
// holds at least 64 calls, in whole rounds of the ring. There is a graph of the product, one of its read-only twin, and one of cuBLAS
// with dense weights of the type of X. They are replayed in turns. The median replay counts, divided by its calls: gaps between
// launches are part of it.
//
// The read-only twin is a kernel that reads the same bytes of weights in the same order, with the same grid and launch attributes, and
// does nothing else. Of several the fastest counts. It reads the weights once, whatever M is.
//
// More than 16 rows of X can be multiplied in several ways: by a kernel for every 16 rows, by one for all rows, or by cuBLAS, once the
// weights are written as numbers. The row has the fastest.
//
// Errors are relative to the product in float64. On a GPU that has the table rounded to the type of X, as kernels hold it; a row tells
// beside what that rounding changes.
package bench
