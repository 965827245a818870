// Package gguf reads and writes GGUF files, from which llama.cpp runs models.
//
// # The file
//
// Numbers are little-endian. A string is its length in 8 bytes and its bytes.
//
//	"GGUF", version 3 (4 bytes), number of tensors (8), number of pairs (8)
//	pairs:    key (string), type (4) and value; an array is the type of its elements (4), their number (8), and they
//	tensors:  name (string), number of dimensions (4), dimensions (8 each), type (4), offset of the data (8)
//	data:     of each tensor, each beginning at a multiple of the alignment
//
// The alignment is general.alignment, or 32; the data of all begin there too, and offsets count
// from that point. Dimensions stand in the order in which they vary: the columns of a matrix first.
// The layout is that of the GGUF specification in the repository of ggml, docs/gguf.md.
//
// # Blocks
//
// A row of a quantized tensor is a row of blocks. With q₀…q₃₁ the codes of 32 weights in order, byte j of
// qs holds qⱼ in its low half and qⱼ₊₁₆ in its high one:
//
//	Q4_0    d (F16), qs         d·(q-8)
//	Q5_0    d (F16), qh, qs     d·(q-16), where bit j of the 4 bytes qh is the fifth of qⱼ
//	Q8_0    d (F16), 32 bytes   d·q, of signed bytes
//	IQ4_NL  d (F16), qs         d·T[q], T as package lut has it under iq4nl
//	MXFP4   e (a byte), qs      2^(e-127)·E[q], E the sixteen numbers of F4E2M1
//
// A container whose table has these values and whose scales are F16, or powers of two, is the same
// weights in another order, bit for bit.
//
// # Names
//
// [Tensors] says for a model which tensors a file has, and which of the model's tensors each is made of. The writer
// reads this in one direction and the reader in the other. Some things differ besides names. Where llama.cpp rotates the
// pairs (2i, 2i+1) of a head, rows of queries and keys stand in that order. Norms of Gemma, whose weights count 1
// more than is stored in the model, are stored here with the 1 added. What a family has of its own is in the file of its name,
// or a line of families.
package gguf
