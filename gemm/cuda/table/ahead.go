package table

import (
	_ "embed"
	"encoding/binary"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

//go:embed ahead.cuh
var aheadSource string

// asking is how a kernel brings what is read later into the level-2 cache: a value that can be compared.
type asking struct {
	by     int // AHEAD in ahead.cuh
	within int // tiles
}

// How, in ahead.cuh.
const (
	byLines = 1
	byBulks = 2
)

func (a asking) defines() []string {
	return []string{fmt.Sprintf("AHEAD=%d", a.by), fmt.Sprintf("WITHIN=%d", a.within)}
}

// The reads that a kernel is told of: of the product behind it, and its own.
const nextReads, ownReads = 4, 2

// readsBytes returns the memory of some Reads in ahead.cuh, of which there is room for so many.
func readsBytes(all []cuda.Reads, room int) []byte {
	var b []byte
	for i := range room {
		var r cuda.Reads
		if i < len(all) {
			r = all[i]
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(r.At))
		for _, v := range []int{r.Blocks, r.Each, r.Over, r.From, r.To, r.Bytes, r.Pitch, 0} {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
	}
	return b
}

// spared returns how many of some multiprocessors a product has blocks for, where up to spare of them shall have none: as few as no
// block has more tiles for.
func (s Shape) spared(sms, spare int) int {
	tiles := (s.n + repack.TileRows - 1) / repack.TileRows / s.together()
	if spare == 0 || tiles < 1 {
		return sms
	}
	most := (tiles + sms - 1) / sms
	return max(sms-spare, (tiles+most-1)/most)
}

// limits returns those of a GPU for a product that is one of several, if it is.
func (s Shape) limits(g cuda.GPU, step *cuda.Step) Limits {
	l := LimitsOf(g)
	if step != nil {
		l.SMs = s.spared(l.SMs, step.Spare)
	}
	return l
}

// reading is the order in which the blocks of a product read codes: of some tiles a part of K each, then of these the next part.
type reading struct {
	Shape
	each, over int // tiles of a block, with gates of these alone; the first so many have one more
	blocks     int
	turns      bool // whether tiles of gates and of what they are multiplied by take turns

	tile, part int // bytes of codes
	tiles      int // that parts are read of, with gates of these alone
}

func (s Shape) reading(c config, p Params, blocks int) reading {
	r := reading{Shape: s, each: int(p.tilesEach) / s.together(), over: int(p.tilesOver), blocks: blocks, turns: c.kernel() == lutwide{}}
	unit := repack.UnitCols * repack.TileRows / 8 * s.Bits
	r.tile = s.Units() * unit
	r.part = min(s.slices*unit, r.tile)
	r.tiles = r.each + min(r.over, 1)
	if r.part < r.tile || s.gated { // or else a run goes on where the one before ends
		r.tiles = min(r.tiles, max(int(p.run)/s.together(), 1))
	}
	return r
}

// first returns of how many tiles, and how much of each, are the first bytes that all blocks read.
func (r reading) first(bytes int) (tiles, each int) {
	all := r.tiles * r.together()
	parts := (bytes + r.blocks*r.part - 1) / (r.blocks * r.part)
	return min(parts, all), min((parts+all-1)/all*r.part, r.tile)
}

// of returns the reads of so many tiles, from one on, of a matrix whose parts are at some addresses.
func (r reading) of(at []driver.Ptr, from, tiles, each int) (codes, scales []cuda.Reads) {
	units := r.Units()
	pitch := r.scaleBytes(units)
	add := func(first, from, to int) {
		if from >= to {
			return
		}
		some := cuda.Reads{Blocks: r.blocks, Each: r.each, Over: r.over, From: from, To: to}
		some.At, some.Bytes, some.Pitch = at[0]+driver.Ptr(first*r.tile), each, r.tile
		codes = append(codes, some)
		if r.Group != 0 {
			some.At, some.Bytes, some.Pitch = at[1]+driver.Ptr(first*pitch), pitch/units*(each/(r.tile/units)), pitch
			scales = append(scales, some)
		}
	}
	ups := r.n / (2 * repack.TileRows)
	switch {
	case !r.gated:
		add(0, from, tiles)
	case r.turns:
		add(0, (from+1)/2, (tiles+1)/2)
		add(ups, from/2, tiles/2)
	default:
		add(0, min(from, r.tiles), min(tiles, r.tiles))
		add(ups, max(from-r.tiles, 0), max(tiles-r.tiles, 0))
	}
	return codes, scales
}

// Reads implements [cuda.Reader].
func (t *Tiles) Reads(g cuda.GPU, at []driver.Ptr, by cuda.Way, o cuda.Operands, bytes int) []cuda.Reads {
	c, ok := by.(config)
	if !ok {
		return nil
	}
	s := t.fewShape(g, c, o)
	p, l, err := s.Plan(c, s.limits(g, o.Step))
	if err != nil {
		return nil
	}
	r := s.reading(c, p, int(l.Grid.X))
	tiles, each := r.first(bytes)
	codes, scales := r.of(at, 0, tiles, each)
	return append(codes, scales...)
}

// asks returns how a product that is one of several brings what is read later into the cache, and what its kernel is told, if it does.
func (r reading) asks(g cuda.GPU, at []driver.Ptr, c config, step *cuda.Step) (asking, []byte) {
	if step == nil || !step.Asks() || g.NoCompiler != nil {
		return asking{}, nil
	}
	how, from := asking{by: byLines}, 0
	if g.Hopper() && !step.Lines {
		how.by = byBulks
	}
	if c.kernel() == (lutgemm{}) {
		how.within = (step.Within + r.blocks*r.part - 1) / (r.blocks * r.part)
		from = 1 // which is loaded at once
	}
	tiles, each := r.first(step.Own)
	if step.Told {
		brought, _ := r.first(step.Next)
		from = max(from, brought)
	}
	if each > r.part { // which begin with what from counts
		from = 0
	}
	own, _ := r.of(at, from, tiles, each)
	return how, append(readsBytes(step.Reads, nextReads), readsBytes(own, ownReads)...)
}
