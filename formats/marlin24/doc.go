// Package marlin24 reads and writes the layout of Sparse-MARLIN, a kernel for integers of 4 bits where every four
// columns keep two.
//
// A layer P of N rows (output features), a multiple of 256, and K columns, a multiple of 128, is
//
//	P.B_24    I32 [K/32, 2N]   codes of the K/2 weights of a row that are kept, in tiles of 16 of them and 64 rows
//	P.B_meta  I16 [K/32, 2N]   which columns are kept: a nibble for four, i0 | i1<<2, in another order of rows
//	P.s       F16 [K/g, N]     scales in another order of rows
//
// and means w[n,k] = (code − 8)·scale where a column is kept and else 0, with g of 128 or K. The source is
// the code of vLLM (quantization/utils/marlin_utils_test_24.py, and gptq_marlin_24.py, which asks config.json
// for the checkpoint_format "marlin_24") and of PyTorch (sparse/_semi_structured_conversions.py) for the
// order of P.B_meta.
//
// It is written from weights of the kind lut24. It is read as dense integers of 4 bits, with zeros in the columns that
// are not kept.
package marlin24
