// Package lutgemm reads and writes the layout of LUT-GEMM's kernel: binary codes, a word for 32 columns of a plane.
//
// A layer P of N rows (output features), an even number, and K columns, a multiple of 32, in q planes is
//
//	P.bWeight  I32 [K/32, q, N]   bit k%32 of word [k/32, i, n] is that of plane i: + where it is set
//	P.alpha    F16 [K/g, q, N]    the factor of a plane
//	P.q_bias   F16 [K/g, N]       an offset; missing where no group has one
//
// and means w[n,k] = q_bias ± alpha[0] ± alpha[1] …, with g a multiple of 32 that divides K. The source is the code of
// LUT-GEMM (lutGEMM/src/nQWeight_fp16.cu, and mv_fp16_bias.hpp, which takes rows by twos and factors for 32
// columns). It has no files: names of tensors are those of its arguments, and how config.json
// tells the layout is lutq's own:
//
//	"quantization_config": {"quant_method": "lutgemm"}
package lutgemm
