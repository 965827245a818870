package table

import (
	"fmt"
	"sync"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/repack"
)

// Shape is that of what one launch multiplies: m rows of X by an N×K matrix of a format.
type Shape struct {
	Format
	n, k, m int
	slices  int  // that K is split into: the order of the sums depends on it
	gated   bool // whether the first half of Ŵ makes gates of the second
	lookup  Lookup
}

// shapeOf returns a shape with K split as choices has it.
func shapeOf(f Format, n, k, m int) Shape {
	s := Shape{Format: f, n: n, k: k, m: m}
	s.slices = s.choice().slices
	return s
}

// NewShape returns a shape with K split into so many slices.
func NewShape(f Format, n, k, m, slices int) Shape {
	return Shape{Format: f, n: n, k: k, m: m, slices: slices}
}

// Slices returns into how many slices K is split, and Units how many units of 256 columns it has.
func (s Shape) Slices() int { return s.slices }

// Under returns the shape with K split as a configuration does.
func (s Shape) Under(c Config) Shape {
	if splits := c.Splits(); len(splits) == 1 {
		s.slices = splits[0]
	}
	return s
}

func (s Shape) Units() int { return (s.k + repack.UnitCols - 1) / repack.UnitCols }
func (s Shape) pairs() int { return (s.m + 1) / 2 }

// span holds what is more than over and at most to, which is no bound if it is 0; the zero span holds all.
type span struct{ over, to int }

func (s span) holds(v int) bool { return s == span{} || v > s.over && (s.to == 0 || v <= s.to) }

// choice is a row of [choices].
type choice struct {
	// The products that it is for, but for formats and rows of X that first is not compiled for.
	m, n, units, group span
	bits               int // or 0 for all

	slices int    // of K
	first  kernel // the best guess; the others in the order of kernels are tried behind it,
	not    kernel // without this one, which is slower there
}

func (c *choice) isFor(s Shape) bool {
	return c.m.holds(s.m) && c.n.holds(s.n) && c.units.holds(s.Units()) &&
		c.group.holds(s.Group) && (c.bits == 0 || c.bits == s.Bits) && c.first.has(s.Format, s.m)
}

// Rows of Ŵ up to which the blocks of a GPU of 132 multiprocessors have one, two, four and seven
// tiles.
const (
	OneTile    = 132 * repack.TileRows
	TwoTiles   = 2 * OneTile
	fourTiles  = 4 * OneTile
	sevenTiles = 7 * OneTile
)

// choices says into how many slices the K of a product is split and which kernel is tried first: the
// first row that is for it counts. As the slices decide the order of the sums, rows are a matter of Ŵ
// and of whether X has more than 4, 8, 16 and 24 rows, not of the GPU. NOTES.md has the times.
var choices = sync.OnceValue(func() []choice { // each launch asks
	gemm, wide := lutgemm{}, lutwide{}
	few, half, more, many := span{0, rowsOfB}, span{0, rowsOfB / 2}, span{rowsOfB / 2, rowsOfB}, span{rowsOfB, cuda.MaxRows}
	upTo24, over16 := span{cuda.MaxRows, 24}, span{cuda.MaxRows, mostRows}
	of32 := span{31, 32}
	return []choice{
		// There is no room for X of eight slices beside the table of 5 bits.
		{m: over16, bits: 5, n: span{0, 2 * fourTiles}, slices: 4, first: wide},
		{m: over16, bits: 5, n: span{0, 4 * fourTiles}, slices: 2, first: wide},
		// The scales of groups of 32 take registers for sums.
		{m: upTo24, group: of32, n: span{fourTiles, 2 * fourTiles}, slices: 4, first: wide},
		{m: upTo24, group: of32, n: span{fourTiles, 4 * fourTiles}, slices: 2, first: wide},
		// As for up to 16 rows, but with 32 a warp can hold the sums of four tiles, not seven.
		{m: upTo24, n: span{0, TwoTiles}, slices: 8, first: wide},
		{m: upTo24, n: span{0, sevenTiles}, units: span{0, 8}, slices: 8, first: wide},
		{m: upTo24, n: span{0, sevenTiles}, units: span{12, 0}, slices: 8, first: wide},
		{m: upTo24, n: span{0, 2 * sevenTiles}, slices: 4, first: wide},
		{m: upTo24, slices: 2, first: wide},
		{m: over16, n: span{0, TwoTiles}, slices: 8, first: wide},
		{m: over16, n: span{0, fourTiles}, units: span{0, 8}, slices: 8, first: wide},
		{m: over16, n: span{0, fourTiles}, units: span{12, 0}, slices: 8, first: wide},
		{m: over16, n: span{0, 2 * fourTiles}, slices: 4, first: wide},
		{m: over16, n: span{0, 4 * fourTiles}, slices: 2, first: wide},
		{m: over16, slices: 1, first: wide},

		// As many slices as a block has warps, if a warp can hold the sums of all its tiles; else as few
		// warps together as can, and four also where eight had one unit or two and four three at most.
		{m: many, n: span{0, TwoTiles}, slices: 8, first: wide},
		{m: many, n: span{0, sevenTiles}, units: span{0, 8}, slices: 8, first: wide},
		{m: many, n: span{0, sevenTiles}, units: span{12, 0}, slices: 8, first: wide},
		{m: many, n: span{0, 2 * sevenTiles}, slices: 4, first: wide},
		{m: many, slices: 2, first: wide},
		// Without lutwide.cu. Slots for so many rows of X take twice as much as for few.
		{m: many, n: span{0, 16 << 10}, units: span{15, 0}, slices: 16, first: gemm},
		{m: many, slices: 8, first: gemm},

		// With so many tiles the slots of lutgemm.cu would take much of the cache: 2 % at 4 bits, else nothing.
		{m: more, n: span{3 * sevenTiles, 0}, bits: 4, group: span{32, 0}, slices: 3, first: wide},
		{m: more, n: span{0, OneTile}, slices: 16, first: wide},
		{m: more, n: span{0, fourTiles}, units: span{0, 8}, slices: 8, first: wide},
		{m: more, n: span{0, TwoTiles}, units: span{12, 24}, slices: 8, first: wide}, // eight warps are the fastest
		{m: more, n: span{0, TwoTiles}, slices: 16, first: wide},
		{m: more, n: span{0, fourTiles}, units: span{16, 24}, slices: 8, first: wide},
		{m: more, n: span{0, fourTiles}, slices: 16, first: wide},

		// Sixteen slices load the warps of lutgemm.cu most evenly and read X once, from nine units on.
		{m: few, n: span{0, OneTile}, slices: 16, first: gemm},
		{m: few, n: span{0, fourTiles}, units: span{0, 8}, slices: 8, first: gemm},
		{m: few, n: span{0, TwoTiles}, slices: 16, first: gemm},
		{m: half, n: span{0, fourTiles}, units: span{0, 16}, slices: 16, first: gemm},
		{m: half, n: span{0, fourTiles}, units: span{16, 24}, slices: 8, first: wide},
		{m: half, n: span{0, fourTiles}, slices: 16, first: wide},

		{m: few, units: span{0, 8}, slices: 8, first: gemm, not: wide},
		// The busiest warp has two units of sixteen slices, but no more than three of eight.
		{m: few, units: span{16, 24}, slices: 8, first: gemm, not: wide},
		// There is no room for sixteen slots of all tiles.
		{m: few, n: span{32 << 10, 0}, units: span{15, 0}, slices: 8, first: gemm, not: wide},
		{m: few, slices: 16, first: gemm, not: wide},
	}
})

// choice returns the row for a product. The last row of choices takes what no other does, invalid
// products too, which a plan refuses.
func (s Shape) choice() choice {
	all := choices()
	for i := range all {
		if all[i].isFor(s) {
			return all[i]
		}
	}
	return all[len(all)-1]
}

// order returns the kernels to try, the best guess first.
func (s Shape) order() []kernel {
	c := s.choice()
	order := []kernel{c.first}
	for _, k := range kernels() {
		if k != c.first && k != c.not {
			order = append(order, k)
		}
	}
	return order
}

// loads reports whether a kernel can be had: compiled, or built ahead of time.
func loads(k kernel, g cuda.GPU) bool { return g.NoCompiler == nil || k.prebuilt() != nil }

// tried returns the configurations that are worth trying for a product on a GPU,
// the best guess first, or why there is none.
func tried(s Shape, g cuda.GPU) ([]config, error) {
	var all []config
	var why error
	for _, k := range s.order() {
		if !loads(k, g) || !s.lookup.has(k) {
			continue
		}
		some, err := k.tried(s, LimitsOf(g))
		if all = append(all, some...); why == nil {
			why = err
		}
	}
	switch {
	case len(all) > 0 && s.lookup > Integers:
		return all[:1], nil // to compare lookups alone
	case len(all) > 0:
		return all, nil
	case why == nil:
		why = fmt.Errorf("no kernel for %d rows of activations and %s", s.m, s.name())
	}
	return nil, why
}
