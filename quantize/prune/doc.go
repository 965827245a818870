// Package prune keeps two of every four consecutive weights of a row and quantizes them, see package formats/weight/lut24.
//
// A [Quantizer] keeps the two of a chunk with the largest |w|, or |w|·√h where columns count h
// (Wanda: Sun et al., arXiv:2306.11695, with h = Σx²), of equals the first. Package gptq makes
// its choice anew while it feeds errors on (SparseGPT: Frantar and Alistarh, arXiv:2301.00774).
package prune
