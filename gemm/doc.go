// Package gemm has no code of its own. The folders in it multiply by quantized weights: Y = X·Ŵᵀ, for activations X of M rows and K
// columns and weights Ŵ of N rows and K columns, which are never written out as a whole.
//
// What multiplies:
//
//	cpu              on the processors, in float32: AVX-512, AVX2 and NEON assembly, and plain Go
//	cuda             on an NVIDIA GPU: an engine, and families of kernels in a folder each
//
// What both build on:
//
//	lookup           tables of sums of activations, which stand in for multiplications by few bits
//	fp8              rounds activations and tables to 8-bit numbers, which GPUs multiply faster
//
// What checks and times them:
//
//	ref              the same products in float64, plainly
//	conform          tests that all kernels must pass, and random matrices for them
//	bench            times products beside reading the same bytes and beside dense weights, and runs these tests as a self-test
//
// Package research has experiments, which none of the others needs.
//
// One weight's way to Y. A layer is stored as a matrix of formats/weight: codes, a table, scales. Package repack orders its bytes as
// a kernel reads them, 16 rows at a time: these are its tiles, or on the processors its panels. They are copied to the GPU, or stay
// where they are. For each product an engine then chooses a kernel by N, K and M: the best guess, or the one that was fastest when it
// was measured here. The kernel reads each tile once. It turns codes into numbers by the table, multiplies these by X, adds them up
// group by group, multiplies each sum by its group's scale, and rounds the result once to the type of Y. The shape alone decides in
// which order sums are added, so that the same product has the same bits each time.
package gemm
