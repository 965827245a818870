// Package cuda multiplies by quantized weights on an NVIDIA GPU.
//
// Y = X·Ŵᵀ for X of M rows in float16 or bfloat16 and Ŵ in the tiles of
// [repack.CUDATiles], looked up, multiplied on tensor cores and scaled in one
// kernel: lutgemm.cu for few rows, lutwide.cu for up to 16, of common parts in lut.cuh, and on Hopper
// lutmany.cu for very many, which differs in what is rounded ([Engine.Way]). It is
// compiled for the GPU at hand when it is first needed, by package driver, for a width, group
// size, scale type and activation type; N, K and M are arguments. Sums are float32 and are
// rounded once. Their order depends on N, K and the format, and on whether more than 4 and more
// than 8 rows are multiplied at once; so the result is the same bits on every run and under every
// [Config], and for a row of X whatever up to 3 other rows come with it.
//
// Numbers. The codebook is rounded to the type of X; a product of table value and
// activation is exact in float32, a group's products are summed in float32 and
// multiplied by its scale, which is exact in float32 for every scale type.
package cuda
