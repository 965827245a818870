// Package awq reads and writes checkpoints of AWQ in the layout that AutoAWQ calls gemm.
//
// A layer P of N rows (output features) and K columns is
//
//	P.qweight  I32 [K, N/8]    codes of 4 bits; the i-th of word j is of row 8j + (0, 2, 4, 6, 1, 3, 5, 7)[i]
//	P.qzeros   I32 [K/g, N/8]  zero points in the same order
//	P.scales   F16 [K/g, N]    BF16 and F32 are read as well
//
// and means w[n,k] = (code − zero)·scale. The source is the code of AutoAWQ 0.2.
package awq
