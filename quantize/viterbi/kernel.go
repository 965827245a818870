package viterbi

import (
	"fmt"
	"math"
	"os"
)

// kernels is one implementation of the inner loop. All give the same numbers.
type kernels struct {
	isa string

	// step goes through a step: what is known before it becomes what is known after it.
	step func(e *Encoder, s *step, w *[2]int16, after, before *moment)
}

// portable returns the kernels in Go, which define what the others do.
func portable() kernels { return kernels{"generic", stepGeneric} }

// chooseKernels returns the fastest kernels that the processor can run, or those that the environment variable LUTQ_ISA asks for.
func chooseKernels() (kernels, error) {
	isa := os.Getenv("LUTQ_ISA")
	needs := map[string]string{"avx512": "AVX-512 F, BW and VL", "avx2": "AVX2", "generic": ""}
	for _, k := range available() {
		if isa == "" || isa == k.isa {
			return k, nil
		}
	}
	if needs[isa] == "" {
		return kernels{}, fmt.Errorf("LUTQ_ISA=%s: want avx512, avx2 or generic", isa)
	}
	if !assembled {
		return kernels{}, fmt.Errorf("LUTQ_ISA=%s: this program was built without assembly", isa)
	}
	return kernels{}, fmt.Errorf("LUTQ_ISA=%s: this processor lacks %s", isa, needs[isa])
}

func stepGeneric(e *Encoder, s *step, w *[2]int16, after, before *moment) {
	if s.next < swept {
		edges := states >> s.next
		minima(e, s, w, after.m[:edges], before.m, 0, states)
		after.less(before.least, edges)
		return
	}
	for i := range after.m {
		after.m[i] = math.MaxUint16
	}
	edges := states >> s.next
	for c := range chunks {
		part := after.parts[c<<swept:][:1<<swept]
		minima(e, s, w, part, before.m, c*(states/chunks), states/chunks)
		for i, v := range part {
			after.m[i&(edges-1)] = min(after.m[i&(edges-1)], v)
		}
	}
	after.less(before.least, edges)
}

// minima writes the least costs of n states from one on, by the remainder of the state by so many as dst has.
func minima(e *Encoder, s *step, w *[2]int16, dst, prev []uint16, first, n int) {
	for i := range dst {
		dst[i] = math.MaxUint16
	}
	mask := len(dst) - 1
	for x := first; x < first+n; x++ {
		c := uint16(min(uint32(e.cost(x, w))+uint32(prev[x>>s.bits]), math.MaxUint16))
		if c < dst[x&mask] {
			dst[x&mask] = c
		}
	}
}

// less takes a number that none of the edges' is below off each of them.
func (m *moment) less(by uint16, edges int) {
	m.least = math.MaxUint16
	for i := range m.m[:edges] {
		m.m[i] -= by
		m.least = min(m.least, m.m[i])
	}
}
