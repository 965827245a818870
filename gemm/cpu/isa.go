package cpu

import (
	"fmt"
	"os"
	"strings"
)

// isa is a set of kernels. Its methods choose the kernel by a switch over
// direct calls, which, unlike a table of function values, lets the compiler
// see that the assembly keeps no pointers.
type isa uint8

const (
	generic isa = iota
	avx2
	avx512
	neon
)

func (s isa) String() string { return [...]string{"generic", "avx2", "avx512", "neon"}[s] }

// ISAs returns the names of the instruction sets that this machine and build
// can run, slowest first. The last is the one that [New] picks.
func ISAs() []string {
	var names []string
	for s := generic; s <= neon; s++ {
		if s.available() {
			names = append(names, s.String())
		}
	}
	return names
}

// pickISA resolves Options.ISA: an empty name means $LUTQ_ISA, and where that
// is empty too the best there is.
func pickISA(name string) (isa, error) {
	if name == "" {
		name = os.Getenv("LUTQ_ISA")
	}
	best := generic
	for s := generic; s <= neon; s++ {
		if s.available() {
			best = s
		}
		if s.String() == name {
			if !s.available() {
				return 0, fmt.Errorf("instruction set %s is not available here: have %s", name, strings.Join(ISAs(), ", "))
			}
			return s, nil
		}
	}
	if name != "" {
		return 0, fmt.Errorf("unknown instruction set %q: want avx512, avx2, neon or generic", name)
	}
	return best, nil
}

// rows is the largest number of rows that the gemm kernel takes.
func (s isa) rows() int { return [...]int{genericRows, 6, 14, 5}[s] }

// panels is the number of panels of 16 columns that the gemm kernel takes.
func (s isa) panels() int { return [...]int{1, 1, 2, 1}[s] }

// fusedPanels is the number of panels that the fused kernel takes for m rows.
func (s isa) fusedPanels(bits, m int) int {
	switch {
	case s == avx512:
		return 4
	case s == avx2 && m == 1 && bits != 5:
		return 2
	}
	return 1
}
