package model

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/quantize/rounding"
)

// sumParts is how many parts of the windows statistics are added up of by themselves, and then in order: so many devices at most
// have the sums of one. A device keeps the sums of two parts, one that does not begin has those of all its parts.
const sumParts = 8

// crew are the walkers of some devices, which go through the blocks side by side and meet where they need each other's sums.
type crew struct {
	visitor  Visitor
	o        WalkOptions
	blocks   int                   // up to the last whose layers want statistics
	lasts    map[*arch.Linear]bool // these layers, where nothing comes behind them; else nil
	together int                   // tokens
	walkers  []*walker

	mu        sync.Mutex
	met       sync.Cond
	given     []any // by those who are at the meeting
	here      int   // how many are
	meetings  int   // that are over
	err       error // the first
	done, all int   // passes of windows
}

// newCrew divides the windows among devices: each has some parts of them that follow each other.
func newCrew(src Source, devices []StatsOps, v Visitor, o WalkOptions) *crew {
	d := src.Decoder()
	c := &crew{visitor: v, o: o}
	c.met.L = &c.mu
	c.blocks = c.wantedBlocks(d)
	if c.blocks > o.To && !c.wantsHead(d) {
		c.lasts = make(map[*arch.Linear]bool)
		for _, l := range d.Blocks[c.blocks-1].Linears() {
			if c.wants(l) {
				c.lasts[l] = true
			}
		}
	}
	c.blocks = max(c.blocks, o.To)
	for i := o.From; i < c.blocks; i++ {
		c.all += passes(&d.Blocks[i], o) * len(o.Windows)
	}
	if c.wantsHead(d) {
		c.all += len(o.Windows)
	}
	if slices.ContainsFunc(d.Blocks, goesTogether) {
		c.together = o.Together
	}
	spans := spansOf(o.Windows, c.together)
	n := max(min(len(devices), len(spans)), 1)
	parts := min(max(sumParts, n), len(spans))
	begins := func(part int) int { // the first window of a part
		if part == parts {
			return len(o.Windows)
		}
		return spans[part*len(spans)/parts].from
	}
	for i, ops := range devices[:n] {
		from, to := i*parts/n, (i+1)*parts/n
		w := &walker{
			Model: &Model{name: src.Name(), desc: d, ops: ops}, crew: c, rank: i, stats: ops, ropeOf: ropes(d),
			texts: o.Windows[begins(from):begins(to)], offset: begins(from), ends: make(map[int]bool),
		}
		for p := from; p < to; p++ {
			w.ends[begins(p+1)-w.offset] = true
		}
		for _, r := range w.ropeOf {
			w.ropes = append(w.ropes, r)
		}
		w.divide()
		c.walkers = append(c.walkers, w)
	}
	c.given = make([]any, n)
	return c
}

// wantedBlocks is how many blocks there are up to the last whose layers want statistics.
func (c *crew) wantedBlocks(d *arch.Decoder) int {
	if c.wantsHead(d) {
		return len(d.Blocks)
	}
	for i := len(d.Blocks); i > 0; i-- {
		if slices.ContainsFunc(d.Blocks[i-1].Linears(), c.wants) {
			return i
		}
	}
	return 0
}

func (c *crew) wants(l *arch.Linear) bool { return c.visitor.Wants(l.Stored.Path) }

func (c *crew) wantsHead(d *arch.Decoder) bool { return !d.Tied && c.wants(d.Head) }

// walk has all walkers go.
func (c *crew) walk(ctx context.Context, src Source) error {
	var group errgroup.Group
	for _, w := range c.walkers {
		group.Go(func() error {
			if err := w.goes(ctx, src); err != nil {
				c.fail(w, err)
			}
			return nil
		})
	}
	_ = group.Wait() // the first error is kept
	return c.err
}

// fail keeps the first error, says on which of several devices it came up, and has nobody wait for a meeting.
func (c *crew) fail(w *walker, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = c.on(w, err)
	}
	c.met.Broadcast()
}

// on names the device of an error where there are several.
func (c *crew) on(w *walker, err error) error {
	if len(c.walkers) == 1 || err == nil {
		return err
	}
	return On(w.ops, err)
}

// meet waits for all walkers, each of which gives something. The last to come does what they met for.
func (c *crew) meet(w *walker, gives any, do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.given[w.rank] = gives
	meeting := c.meetings
	if c.here++; c.here == len(c.walkers) {
		c.mu.Unlock()
		err := do()
		c.mu.Lock()
		if c.err == nil {
			c.err = err
		}
		c.here, c.meetings = 0, meeting+1
		c.met.Broadcast()
		return err
	}
	for c.meetings == meeting && c.err == nil {
		c.met.Wait()
	}
	return c.err
}

// count adds up the counts of all walkers, which each gets.
func (c *crew) count(w *walker, counts []int) error {
	return c.meet(w, counts, func() error {
		total := make([]int, len(counts))
		for _, of := range c.given {
			for i, n := range of.([]int) {
				total[i] += n
			}
		}
		for _, of := range c.given {
			copy(of.([]int), total)
		}
		return nil
	})
}

// progress is told of windows that passed.
func (c *crew) progress(windows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += windows
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.all)
	}
}

// quantize has the layers of readings quantized by the sums of all walkers, each of which gives its own.
func (c *crew) quantize(ctx context.Context, w *walker, rs []*readers) error {
	return c.meet(w, rs, func() error {
		var all []rounding.Readers
		for i := 0; i < len(rs); {
			n := 1
			if s := rs[i].layers[0].Stored; s.Experts > 0 {
				n = s.Experts
			}
			var of rounding.Readers
			for _, l := range rs[i].layers {
				if c.wants(l) && !slices.Contains(of.Layers, l.Stored.Path) {
					of.Layers = append(of.Layers, l.Stored.Path)
				}
			}
			if len(of.Layers) > 0 {
				for j := i; j < i+n; j++ {
					of.Stats = append(of.Stats, c.addUp(j))
				}
				all = append(all, of)
			}
			i += n
		}
		if len(all) == 0 {
			return nil
		}
		for _, w := range c.walkers {
			if err := w.ops.Err(); err != nil {
				return c.on(w, err)
			}
		}
		return c.visitor.Quantize(ctx, all)
	})
}

// addUp adds up the sums of a reading of all walkers. Of an expert, of which there are many, a device has them then, and rounds the
// expert's layers; of others all have, and share the rows.
func (c *crew) addUp(reading int) rounding.Stats {
	of := func(w *walker) *readers { return c.given[w.rank].([]*readers)[reading] }
	last := len(c.walkers) - 1 // which has most parts by itself
	owner := c.walkers[last]
	if of(owner).whole {
		owner = c.walkers[reading%len(c.walkers)]
	}
	var total sums
	tokens := 0
	for _, w := range c.walkers {
		r := of(w)
		tokens += r.stats.tokens
		for _, s := range r.sums {
			own := s
			if w != owner {
				own = received(owner.ops, w.ops, s)
				w.ops.Free(s.h, s.d)
			}
			if total.h == nil {
				total = own
				continue
			}
			add(owner.ops, total, own)
			owner.ops.Free(own.h, own.d)
		}
		r.sums = nil
	}
	s := of(owner).stats
	if total.h == nil { // an expert without tokens
		total.h = owner.ops.Floats(s.k * s.k)
		if c.o.Original {
			total.d = owner.ops.Floats(s.k * s.k)
		}
	}
	owner.stats.Mirror(total.h, s.k)
	s.H, s.D, s.tokens = total.h, total.d, tokens
	var others []*Stats
	if _, ok := owner.ops.(FeedbackOps); ok && !of(owner).whole {
		for _, w := range c.walkers {
			if w == owner {
				continue
			}
			own := received(w.ops, owner.ops, total)
			s := of(w).stats
			s.H, s.D, s.tokens = own.h, own.d, tokens
			others = append(others, s)
		}
	}
	return s.handed(others)
}

// received returns sums of another device on a device.
func received(to, from Ops, s sums) sums {
	one := func(src Array) Array {
		if src == nil {
			return nil
		}
		dst := to.Floats(src.Len())
		Send(dst, to, src, from)
		return dst
	}
	return sums{one(s.h), one(s.d)}
}
