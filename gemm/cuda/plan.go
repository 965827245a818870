package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// MaxRows is the number of rows of X that one launch multiplies whatever the matrix and the GPU.
const MaxRows = 16

// mostRows is the number that one launch multiplies at most, where lutwide.cu is compiled and has room.
const mostRows = 32

// maxColumns is the number of input features up to which two tiles lie less than
// 2^32 bytes apart, as the kernels' strides want it.
const maxColumns = 1 << 27

// What the kernels are built on; lut.cuh has the same numbers.
const (
	rowsOfB   = 8   // rows of X in a tile of the mma
	pairBytes = 128 // of a slot, for a pair of rows of X: 16 bytes for each of eight lanes
)

// params is the kernels' argument, in C's layout.
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

	gated        bool // whether there are:
	alpha, limit float32

	experts           bool // whether there are:
	tiles, most       uint32
	codesOf, scalesOf uint64
	chosen, rows      uint64
}

// bytes returns the memory of the C struct.
func (p *params) bytes() []byte {
	b := p.fixed()
	for _, v := range p.codebook {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for len(b)%8 != 0 { // the struct's alignment
		b = append(b, 0)
	}
	return b
}

// fixed returns the memory in front of the table.
func (p *params) fixed() []byte {
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

// passes returns how often a block goes over X, for its tiles run by run.
func (p *params) passes() uint32 { return (p.tilesEach + min(p.tilesOver, 1) + p.run - 1) / p.run }

// limits are those of a GPU that a plan must keep.
type limits struct {
	sms         int
	sharedBlock int // bytes of shared memory that a block can have
}

func limitsOf(i driver.DeviceInfo) limits { return limits{i.SMs, i.SharedPerBlock} }

// room is what a kernel has of a block's shared memory.
type room struct {
	fixed               int // bytes whatever there are of tiles
	tile                int // and for each tile of a run
	tiles               int // that a run can have at most
	slotBase, slotPitch int // where slots begin, and from one pair of rows to the next, for a kernel that is told
}

// plan returns the grid, the shared memory and the arguments that follow from
// them for a product under a configuration.
func (s shape) plan(c Config, l limits) (params, driver.Launch, error) {
	fail := func(format string, args ...any) (params, driver.Launch, error) {
		return params{}, driver.Launch{}, fmt.Errorf(format, args...)
	}
	switch {
	case s.m < 1 || s.m > c.rowsOfX():
		return fail("%d rows of activations in a launch: want 1 to %d", s.m, c.rowsOfX())
	case s.n < 1 || s.k < 1 || s.n > math.MaxInt32 || s.k > maxColumns:
		return fail("shape %d×%d is out of range", s.n, s.k)
	case s.k%32 != 0:
		return fail("%d input features: the kernel wants a multiple of 32", s.k)
	case !slices.Contains(c.splits(), s.slices):
		return fail("%d slices of K for the configuration %v", s.slices, c)
	}
	together := s.together()
	tiles := (s.n + repack.TileRows - 1) / repack.TileRows / together
	grid := min(tiles, l.sms)
	most := (tiles + grid - 1) / grid * together // tiles of a block
	groups := c.warpsOfBlock() / s.slices
	if groups%together != 0 {
		groups *= together // whose tiles are finished together
	}
	r, err := c.room(s, most, l)
	if err != nil {
		return fail("%w", err)
	}
	fit := r.tiles - r.tiles%groups
	if fit <= 0 || r.fixed > l.sharedBlock {
		return fail("%d bits, %d rows and %d columns need more shared memory than a block has here", s.Bits, s.m, s.k)
	}
	// Runs of equal length, of whole groups of warps.
	runs := (most + fit - 1) / fit
	run := (most + runs - 1) / runs
	run = (run + groups - 1) / groups * groups
	pairs := uint64(s.pairs())
	p := params{
		units:  uint32(s.units()),
		slices: uint32(s.slices), groups: uint32(c.warpsOfBlock() / s.slices),
		tilesEach: uint32(tiles / grid * together), tilesOver: uint32(tiles % grid),
		run: uint32(run),
		n:   uint32(s.n), k: uint32(s.k), m: uint32(s.m),
		pairs: uint32(pairs), pairsInverse: uint32((1<<32 + pairs - 1) / pairs),
		slotBase: uint32(r.slotBase), slotPitch: uint32(r.slotPitch),
		gated: s.gated,
	}
	launch := driver.Launch{
		Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: uint32(32 * c.warpsOfBlock())},
		Shared: r.fixed + run*r.tile, Programmatic: true,
	}
	return p, launch, nil
}

// fitting returns those of some configurations that a shape can be multiplied under, or why none of
// those that split K so can.
func (s shape) fitting(some []Config, l limits) (fit []Config, why error) {
	for _, c := range some {
		if !slices.Contains(c.splits(), s.slices) {
			continue
		}
		if _, _, err := s.plan(c, l); err != nil {
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
