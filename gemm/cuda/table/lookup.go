package table

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/cuda"
)

//go:embed lutsym.cuh
var symSource string

//go:embed lutlookup.cuh
var lookupSource string

// Lookup is how codes become weights. It changes no bit of a result.
type Lookup int

// Products are in one of the first two. With the others lutgemm.cu compares them.
const (
	Replicated Lookup = iota // a table with a copy for each lane of a warp
	Integers                 // arithmetic, where the table is the integers that codes of 4 bits are
	Copies1                  // fewer copies of the table
	Copies2
	Copies4
	Copies8
	Copies16
	Shuffle // lanes that have a value each
)

// chosen is one of the first two.
const chosen Lookup = -1

// Lookups returns all by their names, in order.
func Lookups() []string {
	return []string{"replicated", "integers", "copies1", "copies2", "copies4", "copies8", "copies16", "shuffle"}
}

func (l Lookup) String() string {
	if l == chosen {
		return ""
	}
	return Lookups()[l]
}

// ParseLookup returns the lookup of a name.
func ParseLookup(name string) (Lookup, error) {
	if i := slices.Index(Lookups(), name); i >= 0 {
		return Lookup(i), nil
	}
	return 0, fmt.Errorf("lookup %q: want %s", name, strings.Join(Lookups(), ", "))
}

// copies are those of the table, for lookups from Copies1 on.
func (l Lookup) copies() int {
	if l == Shuffle {
		return 0
	}
	return 1 << (l - Copies1)
}

// has reports whether a kernel is compiled for a lookup.
func (l Lookup) has(k kernel) bool { return l <= Integers || k == lutgemm{} }

// defines returns the definitions of a lookup, and source what follows lut.cuh.
func (l Lookup) Defines() []string {
	switch l {
	case Replicated:
		return nil
	case Integers:
		return []string{"DECODE=1"}
	}
	return []string{"DECODE=2", fmt.Sprintf("COPIES=%du", l.copies())}
}

func (l Lookup) source() string {
	switch l {
	case Replicated:
		return ""
	case Integers, chosen:
		return symSource
	}
	return lookupSource
}

// areIntegers reports whether a table, which is rounded, is that of [Integers].
func (f Format) areIntegers(codebook []uint32) bool {
	integers := make([]uint32, len(codebook))
	for i := range integers {
		integers[i] = uint32(f.convert(float32(i - len(integers)/2)))
	}
	return f.Bits == 4 && slices.Equal(codebook, integers)
}

// tableBytes is the shared memory that the table of a lookup spans, and gaps whether the second half of each
// of its 256-byte rows is free.
func (s Shape) tableBytes() (size int, gaps bool) {
	switch s.lookup {
	case Replicated, chosen:
		return s.Format.tableBytes()
	case Integers:
		return 0, false
	}
	size, _ = s.Format.tableBytes()
	if s.Bits == 3 || s.Bits == 4 {
		size /= 2 // without the gaps
	}
	return size / 32 * s.lookup.copies(), false
}

// hasIntegers reports whether weights may be looked up by Integers.
func (t *Tiles) hasIntegers(g cuda.GPU) bool { return t.integers && g.NoCompiler == nil }

// lookupIn returns the lookup of a product of m rows under a configuration. NOTES.md has the times.
func (t *Tiles) lookupIn(g cuda.GPU, c config, m int) Lookup {
	switch {
	case t.lookup != chosen:
		return t.lookup
	case t.hasIntegers(g) && c.kernel() == lutwide{} && m <= rowsOfB:
		return Integers
	}
	return Replicated
}

// With returns a matrix of the family with a lookup instead of what is chosen for a product. It has the memory in common with w, which
// is closed instead of it.
func With(g cuda.GPU, w *cuda.Matrix, l Lookup) (*cuda.Matrix, error) {
	t, ok := w.Tiles.(*Tiles)
	switch {
	case !ok:
		return nil, errors.New("no matrix of a table")
	case l == Integers && !t.hasIntegers(g):
		return nil, errors.New("the table is not the integers of 4 bits, or there is no compiler")
	}
	other := *t
	other.lookup = l
	return w.As(&other), nil
}
