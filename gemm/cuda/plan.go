package cuda

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// MaxRows is the number of rows of X that one launch multiplies.
const MaxRows = 16

// maxColumns is the number of input features up to which two tiles lie less than
// 2^32 bytes apart, as the kernel's strides want it.
const maxColumns = 1 << 27

// maxWideColumns is the same for lutwide.cu and all tiles of a block.
const maxWideColumns = 1 << 23

// What the kernels are built on; lut.cuh and lutwide.cu have the same numbers.
const (
	rowsOfB   = 8   // rows of X in a tile of the mma
	pairBytes = 128 // of a slot, for a pair of rows of X: 16 bytes for each of eight lanes
	// Bytes that lutwide.cu has for a unit of a row of X, for each slice of K; for a row of X in a
	// slot; and for the phases of its slices.
	columnsRow  = 2 * repack.UnitCols
	slotRow     = 4*repack.TileRows + 16
	phasesBytes = 128
)

// Config is one of the ways to compile and launch a kernel: lutgemm.cu, or where Tiles is
// not 0 lutwide.cu. No choice changes a bit of the result, but for that of Slices.
type Config struct {
	AtomsPerStep int `json:"atoms_per_step"`   // atoms of a unit that a warp of lutgemm.cu multiplies in one step: 1 or 2
	Depth        int `json:"depth"`            // atoms a warp has registers for, a multiple of AtomsPerStep, or of Tiles
	Tiles        int `json:"tiles,omitempty"`  // whose sums a warp holds in registers
	Slices       int `json:"slices,omitempty"` // of K: what a kernel with Tiles is compiled for; in lutgemm.cu 0 is the product's own
	Warps        int `json:"warps,omitempty"`  // of a block of a kernel with Tiles
	Rows         int `json:"rows"`             // of X that the kernel is compiled for: 8 or 16
}

// warps returns those of a block.
func (c Config) warps() int {
	if c.Tiles != 0 {
		return c.Warps
	}
	return 16
}

func (c Config) String() string {
	if c.Tiles != 0 {
		return fmt.Sprintf("t%d d%d k%d w%d", c.Tiles, c.Depth, c.Slices, c.Warps)
	}
	if c.Slices != 0 {
		return fmt.Sprintf("a%d d%d k%d", c.AtomsPerStep, c.Depth, c.Slices)
	}
	return fmt.Sprintf("a%d d%d", c.AtomsPerStep, c.Depth)
}

// Format is what a kernel is compiled for.
type Format struct {
	Bits  int
	Group int           // 32, 64, 128, 256, or 0 for one scale a row
	Scale lut.ScaleType // E4M4 and S1E4M3 with groups of 32 alone
	Type  driver.DType  // of X, Y, the bias and the table: F16 or BF16
}

// heldScale returns the type that scales have in a GPU's memory. Those of a byte become float16,
// which has all their values, where groups are so large that it takes 3 % more memory at most: so
// there are fewer kernels, of which the usual ones have more variants.
func heldScale(group int, st lut.ScaleType) lut.ScaleType {
	if group != 32 && st.Size() == 1 {
		return lut.F16
	}
	return st
}

// FormatOf returns the format of a matrix multiplied by activations of a type.
func FormatOf(t *repack.CUDATiles, dtype driver.DType) (Format, error) {
	f := Format{Bits: t.Bits, Group: t.Group, Type: dtype}
	if t.RowScale() {
		f.Group = 0
	}
	f.Scale = heldScale(f.Group, t.ScaleType)
	if dtype != driver.F16 && dtype != driver.BF16 {
		return Format{}, fmt.Errorf("activations of type %v: want f16 or bf16", dtype)
	}
	return f, nil
}

// scales returns the scales of a matrix in the type of the format.
func (f Format) scales(t *repack.CUDATiles) []byte {
	if f.Scale == t.ScaleType {
		return t.Scales
	}
	values := make([]float32, len(t.Scales)/t.ScaleType.Size())
	t.ScaleType.Decode(values, t.Scales)
	scales := make([]byte, len(values)*f.Scale.Size())
	f.Scale.Encode(scales, values)
	return scales
}

// defines returns the compiler's definitions.
func (f Format) defines(c Config) []string {
	bf16 := 0
	if f.Type == driver.BF16 {
		bf16 = 1
	}
	all := []string{
		fmt.Sprintf("BITS=%d", f.Bits), fmt.Sprintf("GROUP=%d", f.Group), fmt.Sprintf("SCALE=%d", f.Scale),
		fmt.Sprintf("BF16=%d", bf16), fmt.Sprintf("NT=%d", c.Rows/rowsOfB), fmt.Sprintf("DEPTH=%d", c.Depth), fmt.Sprintf("WARPS=%d", c.warps()),
	}
	if c.Tiles != 0 {
		return append(all, fmt.Sprintf("TILES=%d", c.Tiles), fmt.Sprintf("SLICES=%d", c.Slices))
	}
	return append(all, fmt.Sprintf("KA=%d", c.AtomsPerStep))
}

// tableBytes is the shared memory that the table spans, and gaps whether the
// second half of each of its 256-byte rows is free.
func (f Format) tableBytes() (size int, gaps bool) {
	if f.Bits == 5 {
		return 1024 * 128, false
	}
	return 256 * 256, f.Bits != 2
}

// convert rounds a table value to the type of X.
func (f Format) convert(v float32) uint16 {
	if f.Type == driver.BF16 {
		return num.F32ToBF16(v)
	}
	return num.F32ToF16(v)
}

// params is the kernel's argument, in C's layout.
type params struct {
	codes, scales        uint64
	units                uint32
	slices, groups       uint32
	tilesEach, tilesOver uint32
	run                  uint32
	n, k                 uint32
	x, y, bias           uint64
	m                    uint32
	pairs, pairsInverse  uint32
	slotBase, slotPitch  uint32
	codebook             []uint32
}

// bytes returns the memory of the C struct.
func (p *params) bytes() []byte {
	b := make([]byte, 0, 256)
	wide := func(all ...uint64) {
		for _, v := range all {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	words := func(all ...uint32) {
		for _, v := range all {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	wide(p.codes, p.scales)
	words(p.units, p.slices, p.groups, p.tilesEach, p.tilesOver, p.run, p.n, p.k)
	wide(p.x, p.y, p.bias)
	words(p.m, p.pairs, p.pairsInverse, p.slotBase, p.slotPitch)
	words(p.codebook...)
	for len(b)%8 != 0 { // the struct's alignment
		b = append(b, 0)
	}
	return b
}

// passes returns how often a block goes over X, for its tiles run by run.
func (p *params) passes() uint32 { return (p.tilesEach + min(p.tilesOver, 1) + p.run - 1) / p.run }

// limits are those of a GPU that a plan must keep.
type limits struct {
	sms         int
	sharedBlock int // bytes of shared memory that a block can have
}

func limitsOf(i driver.DeviceInfo) limits { return limits{i.SMs, i.SharedPerBlock} }

// Rows of Ŵ up to which the blocks of a GPU of 132 multiprocessors have one, two, four and seven
// tiles.
const (
	oneTile    = 132 * repack.TileRows
	twoTiles   = 2 * oneTile
	fourTiles  = 4 * oneTile
	sevenTiles = 7 * oneTile
)

// mayBeWide reports whether there are kernels of lutwide.cu for a format and m rows of X. To
// compile less there are none for float32 scales, and for up to 8 rows none for groups of 256 and
// of a row.
func (f Format) mayBeWide(m int) bool {
	return f.Scale != lut.F32 && (m > rowsOfB || 0 < f.Group && f.Group <= 128)
}

// wideSlices returns into how many slices K of some units is split for lutwide.cu with more than 8
// rows of X: as many as a block has warps, eight, where the tiles of a large GPU's block are no more
// than those whose sums a warp can hold. Where there are more tiles two or four warps have them
// together, as few as hold the sums of all; and four warps also where eight would have one unit
// or two, and four three at most.
func wideSlices(n, units int) int {
	switch {
	case n <= twoTiles || n <= sevenTiles && (units <= 8 || units > 12):
		return 8
	case n <= 2*sevenTiles:
		return 4
	}
	return 2
}

// inThree reports whether up to 8 rows are multiplied in three slices, by twelve warps of
// lutwide.cu: with more than 4 rows, where the slots of lutgemm.cu for so many tiles would take much
// of the cache. At 4 bits that gains 2 %, with others nothing.
func (f Format) inThree(n, m int) bool {
	return f.Bits == 4 && f.Group >= 64 && f.mayBeWide(m) && m > rowsOfB/2 && m <= rowsOfB && n > 3*sevenTiles
}

// fewRowsSlices returns into how many slices K of some units is split for up to 8 rows of X: eight or
// sixteen. A block of lutgemm.cu has as many warps as sixteen, which are loaded most evenly so, and it
// reads X once; of eight slices each has two warps, with tiles of their own. Measured on an H200 over
// the layers of 30 models, µs at 4 bits:
//   - Sixteen are faster as soon as there are nine units, also where some have no columns (M = 1:
//     3072×3072 3.1 for 3.6, 9728×2560 5.35 for 6.3), and with less for blocks of one tile.
//   - With 17 to 24 units the busiest warp has two of sixteen slices, but no more than three of eight
//     (27648×5120 20.0 for 22.5; no gain up to two tiles).
//   - Eight warps of lutwide.cu are the fastest at two tiles with more than 4 rows (3584×3584 at M = 8
//     4.1 for 4.3), from 13 units on to 24.
//   - Where shared memory has no room for sixteen slots of all tiles eight are as fast.
func (f Format) fewRowsSlices(n, units, m int) int {
	const most = 32 << 10
	two := f.mayBeWide(m) && m > rowsOfB/2 && n > oneTile && n <= twoTiles
	var eight bool
	switch {
	case units <= 8:
		eight = n > oneTile
	case units <= 12:
	case units <= 15:
		eight = two
	case units == 16:
		eight = two || n > most
	case units <= 24:
		eight = two || n > twoTiles
	default:
		eight = n > most
	}
	if eight {
		return 8
	}
	return 16
}

// slicesOf returns into how many slices a product's K is split. The order of the sums
// depends on it, so it is a matter of Ŵ and of whether X has more than 4 and more than 8 rows,
// not of the GPU or of the kernel.
func (f Format) slicesOf(n, k, m int) int {
	units := (k + repack.UnitCols - 1) / repack.UnitCols
	switch {
	case f.inThree(n, m):
		return 3
	case m <= rowsOfB:
		return f.fewRowsSlices(n, units, m)
	case f.mayBeWide(m):
		return wideSlices(n, units)
	case units > 15 && n <= 16<<10: // slots for so many rows of X take twice as much
		return 16
	}
	return 8
}

// Slices returns into how many slices K is split for m rows of X, at most 16, by an N×K matrix
// under a configuration. Configurations of as many slices give the same bits.
func (f Format) Slices(c Config, n, k, m int) int {
	if c.Slices != 0 {
		return c.Slices
	}
	return f.slicesOf(n, k, m)
}

// plan fills in the grid, the shared memory and the arguments that follow from
// them for m rows of X.
func (f Format) plan(c Config, n, k, m int, l limits) (params, driver.Launch, error) {
	return f.planSliced(c, n, k, m, f.slicesOf(n, k, m), l)
}

// planSliced is plan with K in a given number of slices.
func (f Format) planSliced(c Config, n, k, m, slices int, l limits) (params, driver.Launch, error) {
	fail := func(format string, args ...any) (params, driver.Launch, error) {
		return params{}, driver.Launch{}, fmt.Errorf(format, args...)
	}
	switch {
	case m < 1 || m > c.Rows:
		return fail("%d rows of activations in a launch: want 1 to %d", m, c.Rows)
	case n < 1 || k < 1 || n > math.MaxInt32 || k > maxColumns:
		return fail("shape %d×%d is out of range", n, k)
	case k%32 != 0:
		return fail("%d input features: the kernel wants a multiple of 32", k)
	case slices > c.warps() || c.Slices != 0 && slices != c.Slices:
		return fail("%d slices of K for the configuration %v", slices, c)
	case c.Tiles != 0 && k > maxWideColumns:
		return fail("%d input features: the configuration %v wants at most %d", k, c, maxWideColumns)
	}
	tiles := (n + repack.TileRows - 1) / repack.TileRows
	groups := c.warps() / slices
	grid := min(tiles, l.sms)
	p := params{
		n: uint32(n), k: uint32(k), m: uint32(m),
		units:  uint32((k + repack.UnitCols - 1) / repack.UnitCols),
		slices: uint32(slices), groups: uint32(groups),
		tilesEach: uint32(tiles / grid), tilesOver: uint32(tiles % grid),
		pairs: uint32((m + 1) / 2),
	}
	p.pairsInverse = uint32((1<<32 + uint64(p.pairs) - 1) / uint64(p.pairs))
	launch := driver.Launch{Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: uint32(32 * c.warps())}, Programmatic: true}

	// Slots of lutgemm.cu lie in the gaps of the table as long as that does not cost another
	// pass over X, behind the table otherwise.
	table, gaps := f.tableBytes()
	perTile := slices * int(p.pairs) * pairBytes
	most := (tiles + grid - 1) / grid // tiles of a block
	behind := (l.sharedBlock - table) / perTile
	inGaps := table / 2 / perTile
	launch.Shared = table
	var fit, extra int // tiles of a run, and the bytes behind the table that each takes
	switch {
	case c.Tiles != 0: // where the table and X were
		rows := slices * c.Rows
		fit = min(c.Tiles*groups, (table+rows*columnsRow)/(rows*slotRow))
		launch.Shared += rows*columnsRow + phasesBytes
	case gaps && (most <= inGaps || inGaps >= behind):
		fit = inGaps
		p.slotBase, p.slotPitch = pairBytes, 2*pairBytes
	default:
		fit, extra = behind, perTile
		p.slotBase, p.slotPitch = uint32(table), pairBytes
	}
	fit -= fit % groups
	if fit <= 0 || launch.Shared > l.sharedBlock {
		return fail("%d bits, %d rows and %d columns need more shared memory than a block has here", f.Bits, m, k)
	}
	// Runs of equal length, of whole groups of warps.
	runs := (most + fit - 1) / fit
	run := (most + runs - 1) / runs
	run = (run + groups - 1) / groups * groups
	p.run = uint32(run)
	launch.Shared += run * extra
	return p, launch, nil
}
