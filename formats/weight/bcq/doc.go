// Package bcq stores weights as sums of binary codes.
//
// A [Matrix] holds q bits of each weight in q planes and, for every group of
// columns of a row, a factor α for each plane and an offset z:
//
//	ŵ[n,k] = z + Σᵢ ±αᵢ, + where bit k of plane i is set
//
// A group has 2^q levels of its own, where a lookup table has the same for all groups but
// for a scale: that takes 16·(q+1) bits a group instead of 16. Package quantize/planes
// finds α, z and the bits.
package bcq
