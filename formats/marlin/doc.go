// Package marlin reads and writes the layout of MARLIN, a kernel for integers of 4 bits.
//
// A layer P of N rows (output features), a multiple of 256, and K columns, a multiple of 128, is
//
//	P.B  I32 [K/16, 2N]   codes in tiles of 16 columns and 64 rows, see place
//	P.s  F16 [K/g, N]     scales in another order of rows, see scalePlaces
//
// and means w[n,k] = (code − 8)·scale, with g of 128 or K. The source is the code of MARLIN
// (IST-DASLab, marlin/__init__.py), and config.json is as AutoGPTQ writes it with
// checkpoint_format "marlin".
package marlin
