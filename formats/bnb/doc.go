// Package bnb reads and writes what bitsandbytes stores in 4 bits.
//
// A weight P of N rows and K columns is
//
//	P                                        U8 [N·K/2, 1]  codes of all rows one behind the other, the first of two in the higher four bits
//	P.absmax                                 F32 [blocks]   of blocksize codes of all rows each
//	P.quant_map                              F32 [16]       the value of each code
//	P.quant_state.bitsandbytes__nf4 (__fp4)  U8             JSON: quant_type, blocksize, shape, dtype
//
// and means quant_map[code]·absmax. Scales may be quantized too (nested). Then absmax is U8, and
//
//	P.nested_absmax     F32 [blocks/256]
//	P.nested_quant_map  F32 [256]
//
// give the scale: nested_quant_map[absmax]·nested_absmax + nested_offset, where nested_offset stands in the JSON. A
// block may go on in the next row. The source is bitsandbytes 0.50.
package bnb
