// Package bcq stores a weight as a sum of factors with signs (binary codes).
//
// A [Matrix] holds q bits of each weight in q planes. Every group of columns of a row has a factor α for each plane,
// and an offset z:
//
//	ŵ[n,k] = z + Σᵢ ±αᵢ, + where bit k of plane i is set
//
// So a group has 2^q levels of its own. (With a lookup table all groups have the same levels, but for a scale.) That
// takes 16·(q+1) bits a group instead of 16. Package quantize/planes finds α, z and the bits.
package bcq
