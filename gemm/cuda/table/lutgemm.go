package table

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed lutgemm.cu
var gemmSource string

// lutgemm is lutgemm.cu: for every format, up to 16 rows of X, and wherever a block has room for
// its table and the sums of a few tiles.
type lutgemm struct{}

// gemmVariant is lutgemm.cu as it is compiled and launched.
type gemmVariant struct {
	rows   int // of X, at most: 8 or 16
	atoms  int // of a unit that a warp multiplies in one step: 1 or 2
	depth  int // atoms a warp has registers for, a multiple of atoms
	slices int // of K, which is an argument; 0 for the product's own
}

const gemmWarps = 16 // of a block

func (lutgemm) name() string             { return "lutgemm" }
func (lutgemm) source() string           { return ptx.Slots() + gemmSource }
func (lutgemm) twin() bool               { return true }
func (lutgemm) has(_ Format, m int) bool { return m <= cuda.MaxRows }

func (lutgemm) variants(f Format, m int) []config {
	const few, many = rowsOfB, cuda.MaxRows
	if m > many {
		return nil
	}
	// What takes the registers: scales, and with many rows the fragments of X at half a unit.
	manyScales := f.Group == 32 && (f.Scale == weight.F32 || f.Bits == 5 && f.Scale == weight.BF16)
	ahead := f.Group != 32 && f.Scale != weight.F32
	var all []config
	for _, v := range []struct {
		when bool
		gemmVariant
	}{
		{ahead && f.Bits == 4, gemmVariant{rows: few, atoms: 2, depth: 4}}, // which the longer lead of a double buffer helps the most
		{!manyScales, gemmVariant{rows: few, atoms: 2, depth: 2}},
		{ahead && f.Bits != 4, gemmVariant{rows: few, atoms: 2, depth: 4}},
		{manyScales, gemmVariant{rows: few, atoms: 1, depth: 1}},

		{!manyScales, gemmVariant{rows: many, atoms: 1, depth: 2}},
		{manyScales, gemmVariant{rows: many, atoms: 1, depth: 1}},
	} {
		if v.when && (v.rows == few) == (m <= few) {
			all = append(all, v.gemmVariant)
		}
	}
	return all
}

// variantsFor returns the variants that can split K as a product does: those for up to 8 rows know of
// eight and sixteen slices alone.
func (k lutgemm) variantsFor(s Shape) []config {
	all := k.variants(s.Format, s.m)
	if len(all) > 0 && !slices.Contains(all[0].Splits(), s.slices) {
		return k.variants(s.Format, cuda.MaxRows)
	}
	return all
}

func (k lutgemm) tried(s Shape, l Limits) ([]config, error) {
	all := k.variantsFor(s)
	if s.n <= 2*repack.TileRows*l.SMs {
		// A block of one or two tiles has nothing to load far ahead.
		slices.SortStableFunc(all, func(a, b config) int { return cmp.Compare(a.(gemmVariant).depth, b.(gemmVariant).depth) })
	}
	return Fitting(s, all, l)
}

func (k lutgemm) others(s Shape) []config {
	var all []config
	if s.m > cuda.MaxRows {
		return nil
	}
	v := k.variantsFor(s)[0].(gemmVariant)
	for _, n := range v.Splits() {
		if n != s.slices {
			v.slices = n
			all = append(all, v)
		}
	}
	return all
}

// prebuilt returns the variant for any number of rows up to cuda.MaxRows. The others differ in their
// registers alone. It is the one of the least code: another atom to load ahead would take a third more
// of the program.
func (lutgemm) prebuilt() config { return gemmVariant{rows: cuda.MaxRows, atoms: 1, depth: 1} }

// Needs implements [cuda.Way].
func (v gemmVariant) Needs(int, int, int) cuda.Needs { return cuda.Needs{} }

func (v gemmVariant) kernel() kernel { return lutgemm{} }

// Rows implements [cuda.Way].
func (v gemmVariant) Rows() int { return v.rows }

// Warps implements [Config].
func (v gemmVariant) Warps() int { return gemmWarps }

// String implements [cuda.Way].
func (v gemmVariant) String() string {
	if v.slices != 0 {
		return fmt.Sprintf("a%d d%d k%d", v.atoms, v.depth, v.slices)
	}
	return fmt.Sprintf("a%d d%d", v.atoms, v.depth)
}

// Defines implements [Config].
func (v gemmVariant) Defines() []string {
	return []string{
		fmt.Sprintf("NT=%d", v.rows/rowsOfB), fmt.Sprintf("DEPTH=%d", v.depth), fmt.Sprintf("WARPS=%d", gemmWarps), fmt.Sprintf("KA=%d", v.atoms),
	}
}

// Splits implements [Config].
func (v gemmVariant) Splits() []int {
	switch {
	case v.slices != 0:
		return []int{v.slices}
	case v.rows > rowsOfB:
		return []int{2, 3, 4, 8, 16}
	}
	return []int{8, 16}
}

// Room implements [Config].
func (v gemmVariant) Room(s Shape, most int, l Limits) (Room, error) { return SlotRoom(s, most, l) }

// SlotRoom returns what a block has for the slots of slots.cuh: they lie in
// the gaps of the table as long as that does not cost another pass over X, behind the table otherwise.
func SlotRoom(s Shape, most int, l Limits) (Room, error) {
	table, gaps := s.tableBytes()
	tile := s.slices * s.pairs() * pairBytes
	behind, inGaps := (l.Shared-table)/tile, table/2/tile
	if gaps && (most <= inGaps || inGaps >= behind) {
		return Room{fixed: table, tiles: inGaps, slotBase: pairBytes, slotPitch: 2 * pairBytes}, nil
	}
	return Room{fixed: table, tile: tile, tiles: behind, slotBase: table, slotPitch: pairBytes}, nil
}
