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
	needs := map[string]string{"avx512": "AVX-512 F, BW and VL", "avx2": "AVX2", "neon": "NEON", "generic": ""}
	for _, k := range available() {
		if isa == "" || isa == k.isa {
			return k, nil
		}
	}
	if needs[isa] == "" {
		return kernels{}, fmt.Errorf("LUTQ_ISA=%s: want avx512, avx2, neon or generic", isa)
	}
	if !assembled {
		return kernels{}, fmt.Errorf("LUTQ_ISA=%s: this program was built without assembly", isa)
	}
	return kernels{}, fmt.Errorf("LUTQ_ISA=%s: this processor lacks %s", isa, needs[isa])
}

func stepGeneric(e *Encoder, s *step, w *[2]int16, after, before *moment) {
	if s.next < swept {
		e.minima(s, w, after.m, before.m, 0, states)
	} else {
		fill(after.m)
		for c := range chunks {
			part := after.parts[c<<swept:][:1<<swept]
			e.minima(s, w, part, before.m, c*(states/chunks), states/chunks)
			for i, v := range part {
				m := &after.m[i&(len(after.m)-1)]
				*m = min(*m, v)
			}
		}
	}
	after.least = math.MaxUint16
	for i := range after.m {
		after.m[i] -= before.least
		after.least = min(after.least, after.m[i])
	}
}

// minima writes the least costs of n states from one on, by the remainder of the state by so many as dst has, a multiple of run.
func (e *Encoder) minima(s *step, w *[2]int16, dst, prev []uint16, first, n int) {
	fill(dst)
	a, b := w[0], w[1]
	for x := first; x < first+n; x += run {
		values, least := e.ints[e.at(x):], (*[run]uint16)(dst[x&(len(dst)-1):])
		one := (*[run]int16)(values)
		if e.layout.Together == 1 {
			for i, v := range one {
				c := square(a, v, e.doublings) + uint32(prev[(x+i)>>s.bits])
				least[i] = uint16(min(c, uint32(least[i])))
			}
			continue
		}
		two := (*[run]int16)(values[run:])
		for i, v := range one {
			c := square(a, v, e.doublings) + square(b, two[i], e.doublings) + uint32(prev[(x+i)>>s.bits])
			least[i] = uint16(min(c, uint32(least[i])))
		}
	}
}

// fill writes the largest cost.
func fill(m []uint16) {
	for i := range m {
		m[i] = math.MaxUint16
	}
}
