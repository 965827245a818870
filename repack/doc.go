// Package repack lays quantized matrices out for the kernels that multiply by them, and back.
//
// [CPU] and [CUDA] take a [lut.Matrix], [Planes] and [BCQ] one of binary codes, [SparseCUDA] one that is 2:4 sparse, [Rings] and
// [Trellis] one of pairs by windows on rings. Each layout takes exactly Bits bits a weight apart from padding, and turns back into the same matrix bit for bit.
// Package repack/tiles keeps laid-out layers on disk. Packages gemm/cpu and gemm/cuda multiply by them.
//
// # CPU panels
//
// One layout serves every instruction set and every width. Rows are taken 16
// at a time, a row to a lane; columns 32 at a time. Let
//
//	panels = ⌈N/16⌉      halves = ⌈K/32⌉      groups = ⌈K/Group⌉
//
// The codes of a panel are its half-blocks in order of k. A half-block is 32
// columns of 16 rows, held in Bits vectors of 16 little-endian 32-bit words,
// lane r for row 16·panel + r. Word j of half-block h of panel p for lane r
// begins at byte
//
//	4 · (((p·halves + h)·Bits + j)·16 + r)
//
// With P = ⌊32/Bits⌋ (16, 10, 8, 6 for 2, 3, 4, 5 bits), word j holds the codes
// of columns 32h + jP … 32h + jP + P−1, the first in the lowest bits. At 3 and
// 5 bits the words have two spare bits at the top and two columns are left
// over, 30 and 31: with c30 + c31·2^Bits as a number of 2·Bits bits, its bits
// 2j and 2j+1 are bits 30 and 31 of word j. So a half-block takes exactly
// 32·16·Bits bits.
//
// Kernels that look up bytes have the codes in other places of the same words (CPUPanels.ByBytes), in memory
// only. Column 4l+i of a half-block then has its code in byte i, with l from 0 to 7:
//
//	2 bits   word l/4, from bit 2·(l mod 4) of the byte on
//	3 bits   word l/2, from bit 4·(l mod 2) on, for l < 6; bit j of the last two codes is bit 3, of that with
//	         l = 7 bit 7, of word j
//	4 bits   word l/2, from bit 4·(l mod 2) on
//	5 bits   the lower four bits likewise, the fifth as bit 7−l of word 4
//
// Scales lie apart, [panels][groups][16], in the number format of the matrix,
// little-endian, lane r for row 16·panel + r again. The group of column k is
// k/Group; Group need not be related to 32, so a half-block may hold columns
// of several groups, and the last group may be short.
//
// # CPU panels of binary codes
//
// Binary codes have the same panels and half-blocks, of Bits planes of 64 bytes, for kernels that look up sums of
// four columns by the nibbles of bytes. Column 16v + 8u + 4l + c of a half-block, c from 0 to 3, is bit 4u + c of
// byte 32v + 16l + r of a plane for row 16·panel + r. Plane i of half-block h of panel p begins at byte
//
//	64 · ((p·halves + h)·Bits + i)
//
// Factors lie apart, [panels][groups][Bits][16], with the offset before them if there are offsets.
//
// # CPU panels of rings
//
// Rings of the kind trellis, in its layout of pairs, lie 16 side by side, a ring of 8 rows to a lane: lane r of panel p has
// rows 128·p + 8·r … 128·p + 8·r + 7. A block is the 16 rings of 16 columns, and a panel its blocks in order of k. Of the ring's string
// of bits, steps 0 to 31 are the first half and 32 to 63 the second. Word j of 16 bits of half h of lane r, j from 0 to
// 2·Rate − 1, begins at byte
//
//	4·(16·j + r) + 2·h
//
// of a block. So one shift of vectors of words gives a window of both halves of all rings: those of a row and of columns
// that are 8 apart. Bits a weight are those of the ring. Scales and factors lie as the matrix has them.
//
// # Padding
//
// Rings beyond the last row are 0. In the other layouts, rows beyond N and columns beyond K are
// padding: their codes are 0, and the scales and factors of the rows are 0, so that every weight
// of a padded row is 0. Kernels do not read padded columns.
package repack
