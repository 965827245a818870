// Package gptq reads and writes checkpoints of GPTQ, as AutoGPTQ and GPTQModel write them.
//
// A layer P of N rows (output features) and K columns is
//
//	P.qweight  I32 [K·b/32, N]    each column a stream of codes of b bits, from the lowest of the first word on
//	P.qzeros   I32 [G, N·b/32]    each row the same stream of zero points
//	P.scales   F16 [G, N]         BF16 and F32 are read as well
//	P.g_idx    I32 [K]            the group of each column; k/group_size where it is missing
//
// and means w[n,k] = (code − zero)·scale. Zero points are stored less 1, modulo 2^b, where
// checkpoint_format is "gptq" (or is missing), and as they are in "gptq_v2". The source is the
// code of GPTQModel 7.
package gptq
