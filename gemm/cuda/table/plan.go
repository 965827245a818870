package table

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// mostRows is the number that one launch multiplies at most, where lutwide.cu is compiled and has room.
const mostRows = 32

// MaxColumns is the number of input features up to which two tiles lie less than
// 2^32 bytes apart, as the kernels' strides want it.
const MaxColumns = 1 << 27

// What the kernels are built on; lut.cuh has the same numbers.
const (
	rowsOfB   = 8   // rows of X in a tile of the mma
	pairBytes = 128 // of a slot, for a pair of rows of X: 16 bytes for each of eight lanes
)

// Params is the kernels' argument, in C's layout.
type Params struct {
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

	gated        bool // whether there are:
	alpha, limit float32

	experts           bool // whether there are:
	tiles, most       uint32
	codesOf, scalesOf uint64
	chosen, rows      uint64

	ahead []byte // of Ahead in ahead.cuh, if it is told
}

// Bytes returns the memory of the C struct.
func (p *Params) Bytes() []byte {
	b := p.fixed()
	for _, v := range p.codebook {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for len(b)%8 != 0 { // the struct's alignment
		b = append(b, 0)
	}
	return append(b, p.ahead...)
}

// fixed returns the memory in front of the table.
func (p *Params) fixed() []byte {
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
	if p.gated {
		words(math.Float32bits(p.alpha), math.Float32bits(p.limit))
	}
	if p.experts {
		for words(p.tiles, p.most); len(b)%8 != 0; words(0) {
		}
		wide(p.codesOf, p.scalesOf, p.chosen, p.rows)
	}
	return b
}

// set fills in what is known when a product is launched: where operands lie, and the table.
func (p *Params) set(at []driver.Ptr, o cuda.Operands, codebook []uint32) {
	p.codes, p.scales, p.codebook = uint64(at[0]), uint64(at[1]), codebook
	p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
	p.alpha, p.limit = o.Gates.Alpha, o.Gates.Limit
}

// With returns the argument of a product by a matrix whose codes and scales lie at two addresses.
func (p *Params) With(at []driver.Ptr, o cuda.Operands, codebook []uint32) []byte {
	p.set(at, o, codebook)
	return p.Bytes()
}

// ShortenRuns has the tiles of a block taken in several runs, for tests.
func (p *Params) ShortenRuns() { p.run = min(p.run, p.groups) }

// RowParams returns the argument of a kernel that writes count rows of k columns, from first on or those whose numbers lie at index.
func RowParams(at []driver.Ptr, to, index driver.Ptr, units, first, count, k int, codebook []uint32) []byte {
	p := Params{units: uint32(units), tilesEach: uint32(first), n: uint32(count), k: uint32(k)}
	return p.With(at, cuda.Operands{X: index, Y: to}, codebook)
}

// passes returns how often a block goes over X, for its tiles run by run.
func (p *Params) passes() uint32 { return (p.tilesEach + min(p.tilesOver, 1) + p.run - 1) / p.run }

// Limits are those of a GPU that a plan must keep.
type Limits struct {
	SMs    int
	Shared int // bytes of shared memory that a block can have
}

// LimitsOf returns the limits of a GPU.
func LimitsOf(g cuda.GPU) Limits { return Limits{g.SMs, g.SharedPerBlock} }

// Room is what a kernel has of a block's shared memory.
type Room struct {
	fixed               int // bytes whatever there are of tiles
	tile                int // and for each tile of a run
	tiles               int // that a run can have at most
	slotBase, slotPitch int // where slots begin, and from one pair of rows to the next, for a kernel that is told
}

// Plan returns the grid, the shared memory and the arguments that follow from
// them for a product under a configuration.
func (s Shape) Plan(c Config, l Limits) (Params, driver.Launch, error) {
	fail := func(format string, args ...any) (Params, driver.Launch, error) {
		return Params{}, driver.Launch{}, fmt.Errorf(format, args...)
	}
	switch {
	case s.m < 1 || s.m > c.Rows():
		return fail("%d rows of activations in a launch: want 1 to %d", s.m, c.Rows())
	case s.n < 1 || s.k < 1 || s.n > math.MaxInt32 || s.k > MaxColumns:
		return fail("shape %d×%d is out of range", s.n, s.k)
	case s.k%32 != 0:
		return fail("%d input features: the kernel wants a multiple of 32", s.k)
	case !slices.Contains(c.Splits(), s.slices):
		return fail("%d slices of K for the configuration %v", s.slices, c)
	}
	together := s.together()
	tiles := (s.n + repack.TileRows - 1) / repack.TileRows / together
	grid := min(tiles, l.SMs)
	most := (tiles + grid - 1) / grid * together // tiles of a block
	groups := c.Warps() / s.slices
	if groups%together != 0 {
		groups *= together // whose tiles are finished together
	}
	r, err := c.Room(s, most, l)
	if err != nil {
		return fail("%w", err)
	}
	fit := r.tiles - r.tiles%groups
	if fit <= 0 || r.fixed > l.Shared {
		return fail("%d bits, %d rows and %d columns need more shared memory than a block has here", s.Bits, s.m, s.k)
	}
	// Runs of equal length, of whole groups of warps.
	runs := (most + fit - 1) / fit
	run := (most + runs - 1) / runs
	run = (run + groups - 1) / groups * groups
	pairs := uint64(s.pairs())
	p := Params{
		units:  uint32(s.Units()),
		slices: uint32(s.slices), groups: uint32(c.Warps() / s.slices),
		tilesEach: uint32(tiles / grid * together), tilesOver: uint32(tiles % grid),
		run: uint32(run),
		n:   uint32(s.n), k: uint32(s.k), m: uint32(s.m),
		pairs: uint32(pairs), pairsInverse: uint32((1<<32 + pairs - 1) / pairs),
		slotBase: uint32(r.slotBase), slotPitch: uint32(r.slotPitch),
		gated: s.gated,
	}
	launch := driver.Launch{
		Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: uint32(32 * c.Warps())},
		Shared: r.fixed + run*r.tile, Programmatic: true,
	}
	return p, launch, nil
}

// Fitting returns those of some configurations that a shape can be multiplied under, or why none of
// those that split K so can.
func Fitting[C Config](s Shape, some []C, l Limits) (fit []C, why error) {
	for _, c := range some {
		if !slices.Contains(c.Splits(), s.slices) {
			continue
		}
		if _, _, err := s.Plan(c, l); err != nil {
			why = err
			continue
		}
		fit = append(fit, c)
	}
	if len(fit) > 0 {
		why = nil
	}
	return fit, why
}
