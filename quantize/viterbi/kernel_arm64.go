//go:build !noasm

package viterbi

const assembled = true

// available lists the kernels that run here, the fastest first.
func available() []kernels { return []kernels{{"neon", stepNEON}, portable()} }

// The assembly trusts its arguments, so that this checks the lengths. It has the precision of each layout built in.
func stepNEON(e *Encoder, s *step, w *[2]int16, after, before *moment) {
	_, _, _ = after.m[s.after()-1], before.m[s.before()-1], e.ints[states*e.layout.Together-1]
	m, b, v := &after.m[0], &before.m[0], &e.ints[0]
	switch singles := e.layout.Together == 1; {
	case s.next < swept && singles:
		after.least = step1NEON(m, b, v, w, s.bits, s.next, before.least)
		return
	case s.next < swept:
		after.least = step2NEON(m, b, v, w, s.bits, s.next, before.least)
		return
	case singles:
		sweep8Of1NEON((*[chunks << swept]uint16)(after.parts), b, v, w, s.bits)
	case s.bits < 10:
		sweep8Of2NEON((*[chunks << swept]uint16)(after.parts), b, v, w, s.bits)
	default:
		sweep10Of2NEON((*[chunks << swept]uint16)(after.parts), b, v, w, s.bits)
	}
	after.least = foldNEON(m, (*[chunks << swept]uint16)(after.parts), s.after(), before.least)
}

// Steps write the minima of all edges after a step, less a number, and return the least.

//go:noescape
func step1NEON(dst, before *uint16, values *int16, w *[2]int16, in, out int, less uint16) uint16

//go:noescape
func step2NEON(dst, before *uint16, values *int16, w *[2]int16, in, out int, less uint16) uint16

// Sweeps write the minima of chunks of all states, which a fold takes together. One is for steps of so many bits or more.

//go:noescape
func sweep8Of1NEON(dst *[chunks << swept]uint16, before *uint16, values *int16, w *[2]int16, in int)

//go:noescape
func sweep8Of2NEON(dst *[chunks << swept]uint16, before *uint16, values *int16, w *[2]int16, in int)

//go:noescape
func sweep10Of2NEON(dst *[chunks << swept]uint16, before *uint16, values *int16, w *[2]int16, in int)

//go:noescape
func foldNEON(dst *uint16, parts *[chunks << swept]uint16, edges int, less uint16) uint16
