// Package viterbi chooses the codes of rings of package formats/weight/trellis: those of the least squared error that Viterbi's algorithm
// finds among all strings of bits.
//
// # The trellis
//
// A window of 16 bits is a state. Steps are gone through in the order in which windows are shifted: what comes in at a step is its lowest
// bits, state = (state before << bits | symbol) & 0xFFFF. (Rings of pairs are read from the end, for their windows begin with the
// step's own bits.) The bits of a state that the next one keeps are an edge. M of an edge is the least cost of all
// paths to it, and M of the next step's edges are minima over all 65536 states:
//
//	M'[state & (edges'−1)] = min (cost(state) + M[state >> bits])
//
// M of every step is kept, and the states of the best path are found again from its end, the lowest where some are equal.
//
// # The ring
//
// A path must end in the edge that it began with. A first pass over some steps on both sides of the beginning is free at both ends, and gives
// the edge there; the second pass goes around from that edge to itself.
//
// # Arithmetic
//
// All is in integers of 16 bits, so that every implementation chooses equal codes: values and weights are integers, differences saturate,
// d² is (d·d + 2^14) >> 15, and M is a sum that saturates, less the least M of the step before, which keeps it small.
package viterbi
