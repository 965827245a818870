// Package gptq rounds the weights of a layer column by column. Each column makes up for the errors of the columns
// before it, on the inputs that the layer reads (Frantar et al., arXiv:2210.17323). It works with any lookup table.
//
// # Columns
//
// With H = Σ x̂·x̂ᵀ over those inputs, the squared error of a layer's output is
// tr((W−Ŵ)·H·(W−Ŵ)ᵀ). Columns come in the order of falling H[k,k]. H in that
// order, with its diagonal raised, is R·Rᵀ with R upper triangular, and
// A[j,k] = R[j,k]/R[k,k]. Then, for one k after the other,
//
//	v[n,k] = w[n,k] + Σ_{j<k} (w[n,j] − ŵ[n,j])·A[j,k]
//	ŵ[n,k] = the weight nearest to v[n,k] that a code of group k/g stands for
//
// and the error is Σ_k R[k,k]²·(v[n,k] − ŵ[n,k])², row by row (the LDLQ form of
// Chee et al., arXiv:2307.13304). It gives the codes of the original, which
// inverts H, with one factorization. Scales are those of round-to-nearest,
// found and rounded to their stored type beforehand, so that the order of columns
// does not show in what is stored.
//
// # Scales
//
// With [Options.Group] the columns of a group come one after the other, groups in the order of their falling sums of H[k,k]. When
// a group comes, its columns are tried with its scale times each of some factors, and the scale with which they lose least on the
// values v that they have by then is kept.
//
// # Blocks
//
// Weights whose codes are chosen together, such as rings, are rounded by blocks of columns. With R[B,B] the part of R that a block has on
// the diagonal,
//
//	v[n,B] = w[n,B] + Σ_{b<B} (w[n,b] − ŵ[n,b])·R[b,B]·R[B,B]⁻¹
//
// is exact, and the error is Σ_B |(v[n,B] − ŵ[n,B])·R[B,B]|²: no errors are carried within a block. Rows then get the scale with which
// their codes lose least, s = ŵHwᵀ/ŵHŵᵀ. What rounding to nearest would lose is not tried, for it takes as long again: it is said to be
// what the same errors v − ŵ would lose if they did not depend on each other.
//
// # Retargeting
//
// The blocks before a layer are quantized, so that it reads x̂ in place of x. The
// weights that come nearest to W·x on it are W* = W + W·D·H⁻¹ with
// D = Σ (x − x̂)·x̂ᵀ. Columns are rounded to W + α·W·D·H⁻¹, with H's diagonal raised
// as well.
//
// # Numerics
//
// H is factored and solved in float64. Weights, errors and sums over columns are
// float32, multiplied by package gemm/cpu in an order that does not depend on
// how rows are divided or on the number of threads.
package gptq
