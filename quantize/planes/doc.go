// Package planes quantizes weights to sums of binary codes, see package formats/weight/bcq.
//
// A [Quantizer] finds the factors and bits of each group of a row that have the least squared error among
// those that alternating between them reaches.
package planes
