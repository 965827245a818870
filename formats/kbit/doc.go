// Package kbit reads and writes the two layouts of bitsandbytes' k-bit kernels: bit planes of blocks of
// 32 weights.
//
// A layer P of N rows (output features) and K columns, a multiple of 32, with codes of b bits, 2 to 5, is
//
//	P.kbit_packed    I32  b words a block: bit l of word i is bit i of the code of the block's element l
//	P.kbit_absmax    U8   a scale for each block, in E4M4 of package num, or F32
//	P.kbit_codebook  F32 [2^b]
//
// and means w[n,k] = codebook[code]·absmax. The layout kbit has blocks row by row, and b words of zeros behind
// the last. The layout kbit-tiled, for a multiple of 128 rows and of 64 columns, has tiles of 128 rows and
// 64 columns, those of the first 64 columns first, with the two blocks of a row side by side. The
// source is bitsandbytes' branch of k-bit kernels; how config.json tells shapes is lutq's own:
//
//	"quantization_config": {"quant_method": "kbit", "layout": "kbit", "block_size": 32, "shapes": {"P": [N, K]}}
package kbit
