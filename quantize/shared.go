package quantize

import (
	"maps"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/outdir"
)

// Shared is what those have in common who quantize parts of a plan by statistics.
type Shared struct {
	Folder *outdir.Parts
	Plan   string // which names the text and the program as well
	Part   Part
	Begins []Begin // of parts of as many, ascending, but for those that begin with the first block
	First  int     // block of the first layer that this part has left; the number of blocks is the head
	Bytes  int64   // that the model takes
	// Finished reports whether all layers of all parts that are quantized by statistics are there.
	Finished func() bool
}

// Begin is where some part begins.
type Begin struct {
	Block  int  // of its first layer that is quantized by statistics
	Wanted bool // it is not finished
}

// Shared returns what other processes have part in, nil where one quantizes all.
func (v *Visitor) Shared() *Shared { return v.run.shared }

// share notes what is shared by a part that makes some items, where they are layers of blocks.
func (r *run) share(folder *outdir.Parts, digest string, part Part, lots []lot, done func(lot int) bool, items []int) {
	blocks := r.plan.blocks()
	s := &Shared{Folder: folder, Plan: digest, Part: part, Bytes: r.plan.Totals().BytesIn, First: -1}
	s.Finished = func() bool {
		for l := range lots {
			if lots[l].calibrated && !done(l) {
				return false
			}
		}
		return true
	}
	for _, i := range items {
		if b, ok := blocks[i]; ok && (s.First < 0 || b < s.First) {
			s.First = b
		}
	}
	begins := make(map[int]*Begin) // by part
	for l, of := range partsOf(lots, part.N) {
		if !lots[l].calibrated {
			continue
		}
		for _, at := range lots[l].pieces {
			b, ok := blocks[at.item]
			if !ok {
				continue
			}
			if begins[of] == nil {
				begins[of] = &Begin{Block: b}
			}
			begins[of].Block = min(begins[of].Block, b)
			begins[of].Wanted = begins[of].Wanted || !done(l)
		}
	}
	at := make(map[int]int) // in s.Begins, by block
	for _, of := range slices.Sorted(maps.Keys(begins)) {
		b := begins[of]
		if i, ok := at[b.Block]; ok {
			s.Begins[i].Wanted = s.Begins[i].Wanted || b.Wanted
		} else if b.Block > 0 {
			at[b.Block] = len(s.Begins)
			s.Begins = append(s.Begins, *b)
		}
	}
	slices.SortFunc(s.Begins, func(a, b Begin) int { return a.Block - b.Block })
	if s.First >= 0 && len(s.Begins) > 0 {
		r.shared = s
	}
}

// blocks returns the first block that layers are of, by item; the number of blocks for the head.
func (p *Plan) blocks() map[int]int {
	d := p.names.model
	if d == nil {
		return nil
	}
	first := make(map[*arch.Stored]int)
	note := func(s *arch.Stored, block int) {
		if _, ok := first[s]; !ok {
			first[s] = block
		}
	}
	for i := range d.Blocks {
		for _, l := range d.Blocks[i].Linears() {
			note(l.Stored, i)
		}
	}
	note(d.Head.Stored, len(d.Blocks))
	blocks := make(map[int]int)
	for i := range p.Items {
		if s := p.names.stored[p.Items[i].Tensor.Name]; s != nil {
			if b, ok := first[s]; ok {
				blocks[i] = b
			}
		}
	}
	return blocks
}
