package table

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

//go:embed lutwide.cu
var wideSource string

// lutwide is lutwide.cu: for few tiles a block or many rows of X, where a block has room for X beside
// the table.
type lutwide struct{}

// wideVariant is lutwide.cu as it is compiled.
type wideVariant struct {
	rows   int // of X, at most: 8, 16, 24 or 32
	slices int // of K
	warps  int // of a block
	tiles  int // whose sums a warp holds in registers
	depth  int // atoms a warp has registers for: tiles or twice as many
}

// What lutwide.cu is built on; it has the same numbers.
const (
	// Bytes of a unit of a row of X, for each slice of K; of a row of X in a slot; and for the phases
	// of all slices.
	columnsRow  = 2 * repack.UnitCols
	slotRow     = 4*repack.TileRows + 16
	phasesBytes = 128

	// Input features up to which all tiles of a block lie less than 2^32 bytes apart.
	maxWideColumns = 1 << 23
)

func (lutwide) name() string   { return "lutwide" }
func (lutwide) source() string { return wideSource }
func (lutwide) twin() bool     { return false }

// To compile less there is no kernel for float32 scales, and for up to 8 rows none for groups of 256 and
// of a row.
func (lutwide) has(f Format, m int) bool {
	return f.Scale != weight.F32 && m <= mostRows && (m > rowsOfB || 0 < f.Group && f.Group <= 128)
}

// rare reports whether few models have such a format. To compile less it has fewer variants,
// and takes up to 18 % longer for some shapes.
func (f Format) rare() bool {
	return f.Scale.Size() == 1 || f.Group == 256 || f.Group == 0 || f.Scale == weight.BF16 && f.Type == driver.F16
}

func (k lutwide) variants(f Format, m int) []config {
	if !k.has(f, m) {
		return nil
	}
	const few, many = rowsOfB, cuda.MaxRows
	usual := !f.rare()
	// Whether scales leave registers to load all tiles of an atom ahead, of four and of five tiles.
	ahead4 := f.Group != 32
	ahead5 := ahead4 && (f.Group != 64 || f.Bits != 5)
	var all []config
	for _, v := range []struct {
		when bool
		wideVariant
	}{
		{usual, wideVariant{few, 16, 16, 2, 4}},
		{usual && f.Group != 32 && f.Bits != 5, wideVariant{few, 16, 16, 3, 6}}, // which take the registers
		{usual, wideVariant{few, 8, 8, 2, 4}},
		{true, wideVariant{few, 16, 16, 4, 4}},
		{true, wideVariant{few, 8, 8, 4, 8}},
		{f.Bits == 4 && f.Group >= 64, wideVariant{few, 3, 12, 7, 7}}, // as choices splits K in three

		{usual, wideVariant{many, 8, 8, 2, 4}},
		{ahead4, wideVariant{many, 8, 8, 4, 8}},
		{!ahead4, wideVariant{many, 8, 8, 4, 4}},
		{true, wideVariant{many, 8, 8, 7, 7}},
		{usual && ahead5, wideVariant{many, 4, 8, 5, 10}},
		{usual && !ahead5, wideVariant{many, 4, 8, 5, 5}},
		{true, wideVariant{many, 4, 8, 7, 7}},
		{usual && ahead5, wideVariant{many, 2, 8, 5, 10}},
		{usual && !ahead5, wideVariant{many, 2, 8, 5, 5}},
		{true, wideVariant{many, 2, 8, 7, 7}},
	} {
		if v.when && (v.rows == few) == (m <= few) && m <= many {
			all = append(all, v.wideVariant)
		}
	}
	if m > many {
		return f.moreRows(m)
	}
	return all
}

// moreRows returns the variants for m rows of X, more than 16. With more rows the registers suffice for fewer tiles,
// and beside the table of 5 bits there is no room for X of eight slices.
func (f Format) moreRows(m int) []config {
	// The tiles that a warp has registers for, where all of an atom's are loaded ahead and where half of them are.
	four, most := wideVariant{rows: 24, warps: 8, tiles: 4, depth: 8}, wideVariant{rows: 24, warps: 8, tiles: 7, depth: 7}
	if f.Group == 32 {
		four.depth = 4
	}
	if f.Group == 32 && f.Bits >= 4 || f.Group == 64 && f.Bits == 5 {
		most.tiles, most.depth = 5, 5
	}
	up := wideVariant{rows: 32, warps: 8, tiles: 4, depth: 4}
	var all []config
	for _, v := range []wideVariant{four, most, up} {
		for _, v.slices = range []int{8, 4, 2, 1} {
			if m <= v.rows && (v.rows == 32 || v.slices > 1) && (f.Bits < 5 || v.slices < 8) {
				all = append(all, v)
			}
		}
	}
	return all
}

// tried returns the variant that goes over X the least, with no more tiles than that takes.
func (k lutwide) tried(s Shape, l Limits) ([]config, error) {
	all, err := Fitting(s, k.variants(s.Format, s.m), l)
	if len(all) == 0 {
		return nil, err
	}
	passes := func(c config) uint32 {
		p, _, _ := s.Plan(c, l) // it fits
		return p.passes()
	}
	return []config{slices.MinFunc(all, func(a, b config) int { return cmp.Compare(passes(a), passes(b)) })}, nil
}

func (k lutwide) others(s Shape) []config { return k.variants(s.Format, s.m) }

func (lutwide) prebuilt() config { return nil }

// Needs implements [cuda.Way].
func (v wideVariant) Needs(int, int, int) cuda.Needs { return cuda.Needs{} }

func (v wideVariant) kernel() kernel { return lutwide{} }

// Rows implements [cuda.Way].
func (v wideVariant) Rows() int { return v.rows }

// Warps implements [Config].
func (v wideVariant) Warps() int { return v.warps }

// Splits implements [Config].
func (v wideVariant) Splits() []int { return []int{v.slices} }

// String implements [cuda.Way].
func (v wideVariant) String() string {
	name := fmt.Sprintf("t%d d%d k%d w%d", v.tiles, v.depth, v.slices, v.warps)
	if v.rows > cuda.MaxRows {
		name += fmt.Sprintf(" m%d", v.rows)
	}
	return name
}

// Defines implements [Config].
func (v wideVariant) Defines() []string {
	return []string{
		fmt.Sprintf("NT=%d", v.rows/rowsOfB), fmt.Sprintf("DEPTH=%d", v.depth), fmt.Sprintf("WARPS=%d", v.warps),
		fmt.Sprintf("TILES=%d", v.tiles), fmt.Sprintf("SLICES=%d", v.slices),
	}
}

// Room puts slots where the table and X were; those of more than 16 rows, or without a table, may take more.
func (v wideVariant) Room(s Shape, most int, l Limits) (Room, error) {
	if s.k > maxWideColumns {
		return Room{}, fmt.Errorf("%d input features: the configuration %v wants at most %d", s.k, v, maxWideColumns)
	}
	table, _ := s.tableBytes()
	rows, groups := v.slices*v.rows, v.warps/v.slices
	bytes, slot := table+rows*columnsRow, rows*slotRow
	if v.rows <= cuda.MaxRows && table > 0 {
		return Room{fixed: bytes + phasesBytes, tiles: min(v.tiles*groups, bytes/slot)}, nil
	}
	tiles := min(v.tiles*groups, (l.Shared-phasesBytes)/slot)
	bytes = max(bytes, min(tiles, (most+groups-1)/groups*groups)*slot)
	return Room{fixed: bytes + phasesBytes, tiles: tiles, slotBase: bytes}, nil
}
