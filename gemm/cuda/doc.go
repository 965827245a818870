// Package cuda multiplies by quantized weights on an NVIDIA GPU.
//
// Y = X·Ŵᵀ for X of M rows in float16 or bfloat16 and a quantized Ŵ. Kernels read the weights as they are stored, and make numbers of
// them in registers. A family of kernels is made for a kind of weight: package table for codes with a table, sparse for two weights of
// four, bcq for binary codes. Package families lists them.
//
// # The way of a weight
//
// [Family.Pack] lays a matrix out in tiles of package repack. That takes no GPU. It returns the bytes, and [Tiles]: all that is known of
// the matrix without its bytes. [Engine.Upload] copies the bytes to the GPU and returns a [Matrix]. [Engine.MatMul] multiplies by it:
//
//   - The tiles list how M rows of X can be multiplied, by [Tiles.Configs] and [Tiles.Ways]. The best guess comes first.
//   - The engine takes the one that was the fastest when it was measured, in this process or before ([Engine.Tune],
//     [Engine.TuneWays]), or else the first.
//   - The tiles say what that needs ([Way.Needs]): scratch memory, or X in another order, which the engine prepares.
//   - The tiles plan the launch ([Tiles.Launch]): the kernel, the grid, the arguments. The engine compiles the kernel when it is first
//     needed, by package driver, and launches it.
//
// Up to [MaxRows] rows take one launch. More rows are multiplied [InTurns], a launch after the other; by a kernel for many rows, if the
// family has one; or [AsNumbers]: the weights are written as numbers first, and cuBLAS multiplies ([Unpacked]). Where E4M3 is asked for
// ([Engine.RoundToFP8]), cuBLASLt multiplies by weights that are written so ([Folded]). Both read numbers that are kept, if any are ([Matrix.Keep]).
//
// # Another kind of weight
//
// A new kind of weight takes a layout in package repack, a folder beside this file, a line in package families, and random matrices for
// tests in package conform. The folder has the .cu files and two types: one that implements [Family], and one that implements [Tiles], for which [Base] has most methods. The kernel
// may begin with the sources of package ptx. The self-test, the benchmark, the checks that kernels compile, and models then know of it.
//
// # Numbers
//
// Sums are float32 and are rounded once. Their order depends on N, K, the format, and whether there are more than 4, 8 and 16 rows of X;
// never on the GPU or on what was measured to be fast. So a result has the same bits on every run and under every configuration. Ways
// for more than [MaxRows] rows differ in what else they round. A table is rounded to the type of X; its products with X are exact in
// float32, and a group's sum of them is multiplied by its scale, which is exact in float32 for every type of scale.
package cuda
