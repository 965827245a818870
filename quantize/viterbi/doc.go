// Package viterbi chooses the codes of rings of package formats/weight/trellis: those whose values are nearest to the weights by the sum of
// squares, which Viterbi's algorithm looks for among all strings of bits.
//
// # The trellis
//
// A window of 16 bits is a state. Steps are gone through in the order in which windows are shifted: what comes in at a step are its lowest
// bits, state = (state before << bits | symbol) & 0xFFFF. (Rings of pairs are read from their end, for their windows begin with
// the step's own bits.) The bits of a state that the next one keeps are an edge. M of an edge is the least cost of all paths to it, and
// M of the edges after a step are minima over all states:
//
//	M'[state & (edges'−1)] = min (cost(state) + M[state >> bits])
//
// M of every step is kept, and the states of the best path are found again from its end, the lowest where some are equal.
//
// # The ring
//
// A path must end in the edge that it began with. The first pass is free at both ends, and goes around for more than once, over the same
// weights: a path that comes to the edge that it had a ring before has found a ring. Where none does, another pass goes around once
// from the edge in its middle to itself.
//
// # Arithmetic
//
// All is in integers of 16 bits, so that every implementation chooses equal codes: weights and values are integers, differences saturate,
// squares are (d·d + 2^14) >> 15, and M is a sum that saturates, less the least M of the step before, which keeps it small.
package viterbi

//go:generate go run ./internal/asmgen -dir .
