// Package ct reads and writes the formats of compressed-tensors, which llm-compressor and vLLM use.
//
// config.json says under quantization_config which groups of layers there are, by their
// names, and how the weights of each are stored. A layer P of N rows and K columns is
//
//	pack-quantized
//	P.weight_packed      I32 [N, words]  each row codes of b bits, from the lowest of the first word on
//	P.weight_scale       F16, BF16 or F32 [N, K/g], or [N, 1] for one a row
//	P.weight_shape       I64 [2]: N and K
//	P.weight_zero_point  I32 [words, K/g], the same down each column; there where codes are asymmetric
//	P.weight_g_idx       I32 [K], the group of each column; there where columns were reordered
//
//	int-quantized
//	P.weight             I8 [N, K]
//	P.weight_scale       as above
//	P.weight_zero_point  I8 of the scale's shape; may be left out
//
//	nvfp4-pack-quantized
//	P.weight_packed        U8 [N, K/2]  codes of E2M1, the lower four bits first
//	P.weight_scale         F8_E4M3 [N, K/16]
//	P.weight_global_scale  F32 [1], which scales are divided by
//
//	mxfp4-pack-quantized
//	P.weight_packed  as above
//	P.weight_scale   U8 [N, K/32], powers of two: 2^(s−127)
//
// Codes of 3, 5, 6 or 7 bits are a stream of ⌈K·b/32⌉ words in new releases, and up to 0.17
// lie ⌊32/b⌋ in a word, whose highest bits are zero then. Integers are stored with 2^(b−1) added; a weight is (code − zero)·scale, with a zero
// point of 2^(b−1) where none is stored. The source of all this is the package
// compressed_tensors, versions 0.17 to 0.20.
package ct
