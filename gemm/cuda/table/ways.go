package table

import (
	"math"
	"slices"

	"github.com/lutq/lutq/gemm/cuda"
)

// mostPacked are the rows of X above which a kernel for every 32 is never the fastest.
const mostPacked = 256

// Tried is how many variants of lutmany.cu are tried at most, and tunedWithin what they are taken to take at most in terms of the
// fastest: guesses are within 15 % of what was measured.
const (
	Tried       = 3
	tunedWithin = 1.3
)

// Ways implements [cuda.Tiles]. Those in E4M3 and those
// in 16 bits are never both among them: what results are rounded to does not hang on what was found to be faster.
func (t *Tiles) Ways(g cuda.GPU, m int) []cuda.Way {
	if all := t.fp8Ways(g, m); len(all) > 0 {
		return all
	}
	return t.halfWays(g, m)
}

// halfWays returns those that multiply in 16 bits.
func (t *Tiles) halfWays(g cuda.GPU, m int) []cuda.Way {
	if t.format.Bits < 5 && t.AtOnce(g, m) == m {
		return []cuda.Way{cuda.InTurns} // in one launch, for which others take half as long again at least
	}
	var all []cuda.Way
	if g.Hopper() {
		for _, v := range t.format.manyVariants() {
			if v.shared(t.format) <= g.SharedPerBlock {
				all = append(all, v)
			}
		}
		all = cuda.Shortlist(all, func(a cuda.Way) float64 { return a.(Many).cost(t.n, t.k, m) }, Tried, tunedWithin)
		all = t.withLookups(g, all)
	}
	many := len(all) > 0
	all = append(all, cuda.AsNumbers)
	if m <= mostPacked {
		all = append(all, cuda.InTurns)
	}
	first := slices.Index(all, cuda.Way(cuda.AsNumbers))
	switch {
	case many && t.format.manyRows(t.n, t.k).holds(m):
		first = 0
	case m <= PackedRows(t.n, t.k):
		first = slices.Index(all, cuda.Way(cuda.InTurns))
	}
	all[0], all[first] = all[first], all[0]
	if pairsTried {
		all = append(all, t.pairWays(g, m)...)
	}
	if spreadsTried {
		all = append(all, t.spreadWays(g, m)...)
	}
	return all
}

// withLookups returns ways of lutmany.cu with the lookups that a matrix may be multiplied by, each behind the table's.
func (t *Tiles) withLookups(g cuda.GPU, ways []cuda.Way) []cuda.Way {
	if !t.hasIntegers(g) || t.lookup != chosen && t.lookup != Integers {
		return ways
	}
	var all []cuda.Way
	for _, by := range ways {
		if t.lookup == chosen {
			all = append(all, by)
		}
		all = append(all, by.(Many).with(Integers))
	}
	return all
}

// manyRows returns the rows of X for which lutmany.cu is the fastest where nothing was measured, as an H200 has it over the layers of
// known models at 4 bits, with X prepared. Smaller matrices have too few fields, and at 5 bits the table leaves room for little X.
func (f Format) manyRows(n, k int) span {
	switch weights := n * k; {
	case f.Bits == 5 && weights >= 64<<20:
		return span{32, 512}
	case f.Bits == 5 && weights >= 32<<20:
		return span{48, 512}
	case f.Bits == 5 && weights >= 16<<20:
		return span{80, 512}
	case f.Bits == 5 || weights < 5<<20:
	case n < 2048:
		return span{320, 0}
	case weights >= 32<<20:
		return span{32, 0}
	case weights >= 7<<20:
		return span{48, 0}
	default:
		return span{80, 0}
	}
	return span{math.MaxInt, 0}
}

// PackedRows returns up to how many rows of X a kernel for every 16 is faster than unpacking, where nothing was measured: as
// an H200 has it to within a tenth, but for 5 bits, which it unpacks from fewer on. NOTES.md has the times.
func PackedRows(n, k int) int {
	switch weights := n * k; {
	case weights >= 32<<20:
		return 128
	case n < 2048:
	case weights >= 8<<20:
		return 80
	case weights >= 3<<20:
		return 64
	}
	return 48
}
