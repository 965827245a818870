// Package rings makes weights of the kind trellis: rows are rotated, scaled and coded ring by ring.
//
// # Rotation
//
// The rows of a layer are divided by the factors of its columns and multiplied by normed Hadamard matrices, in float64, as package
// formats/weight/trellis has them the other way: w′ = w·D⁻¹·B. What such a layer reads is x′ = x·D·B, so that x′·w′ᵀ = x·wᵀ, and
// second moments of x are turned the same way. With factors of ±1, which is what they are unless a layer has its own, squared
// errors of w′ are those of w.
//
// # Scales
//
// Tables are made for values of unit variance. So a row's scale is the root of its mean square, rounded to its stored type before codes are
// chosen. NOTES.md has what else was tried.
//
// # Mixed rows
//
// In EXL3's layouts rows are mixed as well, in bands of 128, after each was divided by its scale: see [Mixed]. Rows that were mixed have no
// scale of their own. What a column of theirs errs is fed into later columns as of other rows, for a product by Hadamard matrices
// from the left changes nothing of that. Rows and columns are padded by zeros, see [Padded].
package rings
