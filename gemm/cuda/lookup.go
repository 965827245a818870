package cuda

import (
	_ "embed"
	"slices"
)

//go:embed lutsym.cuh
var symSource string

// Lookup is how codes become weights. It changes no bit of a result.
type Lookup int

// Lookups. Products of a matrix are in the first, or in [Integers] where its table allows that; the others are for comparison.
const (
	Replicated Lookup = iota // a table with a copy for each lane of a warp
	Integers                 // arithmetic, where the table is the integers that codes of 4 bits are
)

func (l Lookup) String() string {
	if l == Integers {
		return "integers"
	}
	return "replicated"
}

// defines returns the definitions of a lookup, and source what follows lut.cuh.
func (l Lookup) defines() []string {
	if l == Replicated {
		return nil
	}
	return []string{"DECODE=1"}
}

func (l Lookup) source() string {
	if l == Replicated {
		return ""
	}
	return symSource
}

// lookupFor returns how codes of a table, which is rounded, become weights.
func (e *Engine) lookupFor(f Format, codebook []uint32) Lookup {
	integers := make([]uint32, len(codebook))
	for i := range integers {
		integers[i] = uint32(f.convert(float32(i - len(integers)/2)))
	}
	if f.Bits == 4 && e.noCompiler == nil && slices.Equal(codebook, integers) {
		return Integers
	}
	return Replicated
}

// tableBytes is the shared memory that the table of a lookup spans, and gaps whether the second half of each
// of its 256-byte rows is free.
func (s shape) tableBytes() (size int, gaps bool) {
	if s.lookup == Integers {
		return 0, false
	}
	return s.Format.tableBytes()
}

// Lookup returns how the codes of the matrix become weights.
func (w *Matrix) Lookup() Lookup { return w.lookup }

// With returns the matrix with another lookup. It has the memory in common with w, which is closed instead of it.
func (w *Matrix) With(l Lookup) *Matrix {
	other := *w
	other.lookup, other.part = l, true
	return &other
}
