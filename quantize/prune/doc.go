// Package prune keeps two of every four consecutive weights of a row, and quantizes these. Package formats/weight/lut24
// has the form.
//
// A [Quantizer] keeps the two with the largest |w|. Where it is told how much each column counts (h), it keeps the two
// with the largest |w|·√h (Wanda: Sun et al., arXiv:2306.11695, with h = Σx²). Of equals the first is kept. Package
// gptq chooses anew for every four columns while it feeds errors on (SparseGPT: Frantar and Alistarh,
// arXiv:2301.00774).
package prune
