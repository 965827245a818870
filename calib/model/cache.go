package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// Cache keeps what attention needs of texts, so that they can go on: the keys and values of every
// layer, for some texts side by side, each in a slot.
//
// Where the frequencies of a rotary embedding depend on the length of a text (types dynamic and longrope), tokens turn by
// those of the text that ends with the [Part] they came in, as in transformers: keys that are kept stay as they were turned,
// and what follows does not depend on how long the text will become.
type Cache struct {
	m         *Model
	positions int
	lengths   []int // of the text in each slot
	layers    []kept
	places    places                // of the rows of a step
	logits    Array                 // floats, of the last one
	some      Array                 // of a part of a divided head, likewise
	recorded  map[int]*recordedStep // by the number of texts
	tables    map[*rope]*rope       // of all positions, where steps are recorded
	parts     []*Cache              // of all parts of a divided model, on the first; else nil
}

// places are where the rows of a step stand, with what their rotary embeddings need.
type places struct {
	rows  floats
	turns map[*rope]*turn
	order []*rope // of turns
}

// floats are written to the first elements of an array.
type floats struct {
	host []float32
	dev  Array
}

// turn is what a step needs of a rotary embedding.
type turn struct {
	freqs    []float64 // of windows of a stage
	stage    int
	cos, sin floats // [rows, half]
}

// frequencies returns those of a window of so many tokens, which are worked out again where they differ from the last.
func (t *turn) frequencies(r *rope, tokens int) []float64 {
	if stage := r.stageOf(tokens); t.freqs == nil || stage != t.stage {
		t.freqs, t.stage = r.frequencies(tokens), stage
	}
	return t.freqs
}

// Arranger is implemented by [Ops] that multiply faster by weights that are laid out for it.
type Arranger interface {
	// Arrange may change how a weight lies in memory and, within a bound of its own, what products give.
	Arrange(w Weight)
}

// Ranker is implemented by [Ops] of a device that is far from the host, which then need not have all logits.
type Ranker interface {
	// Rank returns what stands first in rows of logits, floats [rows, cols], or nil once something has failed.
	Rank(logits Array, rows, cols int, temperature float64) []Ranked
	// Weigh returns what the parts of such rows weigh, or nil.
	Weigh(logits Array, rows, cols int, temperature float64) []Weighed
}

// Ranked is what stands first in a row of logits.
type Ranked struct {
	Values []float32 // the largest, in descending order; how many is the device's choice
	Tokens []int     // which they are, of equals the first first
	// Sum is Σ exp((x − Values[0])/temperature) over all of the row, in float64 but for rounding. It is not finite where
	// a logit is not.
	Sum float64
}

// Weighed is how the likelihood of a row of logits lies over parts of it, Part logits each but for the last.
type Weighed struct {
	Part int
	Tops []float32 // the largest of each
	Sums []float64 // Σ exp((x − top)/temperature) of each, in float64 but for rounding; not finite where a logit is not a number or +∞
}

// Part are tokens that follow the text in a slot.
type Part struct {
	Slot   int
	Tokens []int
	// Whole is how many tokens the text has when all of what is read at once has come, of which this is a part; 0 is for all.
	Whole int
}

// ErrFull is in the error of a text that is longer than a cache has positions.
var ErrFull = errors.New("the cache is full")

// NewCache allocates a cache for texts of at most so many tokens, and has the model's weights arranged
// for steps of few of them.
func (m *Model) NewCache(slots, positions int) (*Cache, error) {
	parts := m.all()
	all := make([]*Cache, len(parts))
	err := together(len(parts), func(i int) (err error) {
		all[i], err = parts[i].newCache(slots, positions)
		return err
	})
	if err != nil {
		for _, c := range all {
			if c != nil {
				c.Close()
			}
		}
		return nil, err
	}
	if len(all) > 1 {
		all[0].parts = all
	}
	return all[0], nil
}

// newCache is NewCache of a part.
func (m *Model) newCache(slots, positions int) (*Cache, error) {
	if slots < 1 || positions < 1 {
		return nil, fmt.Errorf("%s: a cache of %d slots of %d tokens", m.name, slots, positions)
	}
	c := &Cache{m: m, positions: positions, lengths: make([]int, slots), recorded: make(map[int]*recordedStep)}
	at := make(map[arch.Mixer]int)
	for i := range m.layers {
		from := m.desc.Blocks[i].Mixer
		c.layers, at[from] = append(c.layers, m.layers[i].mixer.keep(m.ops, slots, positions)), i
		if a := m.desc.Blocks[i].Attn(); a != nil && a.From != nil {
			c.layers[i] = c.layers[at[a.From]]
			c.layers[i].lent = true
		}
		if a, ok := from.(*arch.Latent); ok && a.Chosen != nil {
			c.layers[i].chosen = c.layers[at[a.Chosen]].chosen
		}
	}
	c.places = c.newPlaces()
	if a, ok := m.ops.(Arranger); ok {
		for _, l := range m.linears() {
			a.Arrange(l.w)
		}
		a.Arrange(m.head.w)
	}
	if err := m.ops.Err(); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: a cache of %d tokens: %w", m.name, slots*positions, err)
	}
	return c, nil
}

// CacheElements returns how many numbers, of the device's type of activations, a cache holds.
func (m *Model) CacheElements(slots, positions int) int64 {
	var n int64
	for i := range m.layers {
		n += m.layers[i].mixer.keeps(slots, positions)
	}
	return n
}

// Close gives the cache's memory back.
func (c *Cache) Close() {
	for _, p := range c.parts {
		if p != c {
			p.Close()
		}
	}
	for _, k := range c.layers {
		if k.lent {
			continue
		}
		c.m.ops.Free(k.arrays...)
		if k.chosen != nil { // which others may have freed
			c.m.ops.Free(k.chosen.array)
			k.chosen.array = nil
		}
		if k.rows != nil {
			c.m.ops.Free(k.rows.dev)
		}
	}
	for _, r := range c.recorded {
		r.close(c.m.ops)
	}
	for _, t := range c.tables {
		t.free(c.m.ops)
	}
	c.places.free(c.m.ops)
	c.m.ops.Free(c.logits, c.some)
	c.layers, c.places, c.logits, c.some, c.recorded, c.tables, c.parts = nil, places{}, nil, nil, nil, nil, nil
}

// Slots returns the number of texts that are kept.
func (c *Cache) Slots() int { return len(c.lengths) }

// Positions returns the most tokens that a text may have.
func (c *Cache) Positions() int { return c.positions }

// Len returns how many tokens of a text are kept.
func (c *Cache) Len(slot int) int { return c.lengths[slot] }

// Cut forgets the tokens of a text from the n-th on, or all of them where the model forgets, see arch.Decoder's Forgets.
func (c *Cache) Cut(slot, n int) {
	for _, p := range c.parts {
		if p != c {
			p.Cut(slot, n)
		}
	}
	switch {
	case n >= c.lengths[slot]:
	case c.m.desc.Forgets():
		c.lengths[slot] = 0
	default:
		c.lengths[slot] = n
	}
}

// spoil forgets texts that more was read of than is known.
func (c *Cache) spoil(runs []Run) {
	for _, r := range runs {
		if c.m.desc.Forgets() {
			c.lengths[r.Slot] = 0
		}
	}
}

// Continue takes texts further by some tokens each and returns the states, acts [tokens, hidden], after the
// final norm, part by part. They stay valid until the next call of a method of the model.
// Parts are of different slots. A text that would grow beyond the cache gives an error with [ErrFull] in it;
// after any error the texts are as they were, or empty where the model forgets and some was read.
func (c *Cache) Continue(ctx context.Context, parts ...Part) (Array, error) {
	all := c.all()
	ctx, err := agreed(ctx, len(all))
	if err != nil {
		return nil, err
	}
	var h Array
	err = together(len(all), func(i int) error {
		n, err := all[i].goOn(ctx, parts)
		if i == 0 {
			h = n
		}
		return err
	})
	return h, err
}

// goOn is Continue of a part.
func (c *Cache) goOn(ctx context.Context, parts []Part) (Array, error) {
	m := c.m
	tokens, runs, err := c.runs(parts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := m.check(tokens); err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	a := m.room(len(tokens))
	at := c.places.set(m.ops, runs)
	m.queue(func() {
		m.enter(a, tokens)
		for i := range m.layers {
			if err = ctx.Err(); err != nil {
				return
			}
			c.layer(a, i, at, c.places)
		}
	})
	if err != nil {
		c.spoil(runs)
		return nil, err
	}
	row := m.ops.NotFinite(a.h, a.t, m.desc.Hidden)
	if err := m.ops.Err(); err != nil {
		c.spoil(runs)
		return nil, err
	}
	if row >= 0 {
		c.spoil(runs)
		return nil, fmt.Errorf("%s: the hidden state of token %d is %w", m.name, position(runs, row), ErrNotFinite)
	}
	for _, r := range runs {
		c.lengths[r.Slot] = r.From + r.Rows
	}
	return m.states(a), m.ops.Err()
}

// layer takes the states of a step through a layer.
func (c *Cache) layer(a activations, i int, at Step, p places) {
	c.mix(a, i, at, p)
	c.m.feed(a, &c.m.layers[i])
}

// mix is [Model.mix] of a step.
func (c *Cache) mix(a activations, i int, at Step, p places) {
	if m, d := c.m, &c.m.layers[i]; d.mixes() {
		m.mixed(a, d, d.mixer.recall(m, a, m.mixerIn(a, d), c.layers[i], at, p))
	}
}

// runs returns the tokens of all parts, and where they stand.
func (c *Cache) runs(parts []Part) (tokens []int, runs []Run, err error) {
	seen := make([]bool, len(c.lengths))
	for _, p := range parts {
		if p.Slot < 0 || p.Slot >= len(seen) || seen[p.Slot] {
			return nil, nil, fmt.Errorf("slot %d is not one of %d, or named twice", p.Slot, len(seen))
		}
		seen[p.Slot] = true
		from := c.lengths[p.Slot]
		if n := from + len(p.Tokens); n > c.positions {
			return nil, nil, fmt.Errorf("a text of %d tokens: %w at %d", n, ErrFull, c.positions)
		}
		if len(p.Tokens) > 0 {
			runs = append(runs, Run{Slot: p.Slot, From: from, Rows: len(p.Tokens), Whole: max(p.Whole, from+len(p.Tokens))})
			tokens = append(tokens, p.Tokens...)
		}
	}
	return tokens, runs, nil
}

// position returns where a row of a step stands in its text.
func position(runs []Run, row int) int {
	for _, r := range runs {
		if row < r.Rows {
			return r.From + row
		}
		row -= r.Rows
	}
	return -1
}

// newPlaces returns places that are nowhere yet.
func (c *Cache) newPlaces() places {
	p := places{turns: make(map[*rope]*turn)}
	for _, r := range c.m.ropes {
		p.turns[r] = &turn{}
		p.order = append(p.order, r)
	}
	return p
}

// angles returns those of the rows of a step.
func (p *places) angles(r *rope) angles { return angles{p.turns[r].cos.dev, p.turns[r].sin.dev} }

func (p *places) free(ops Ops) {
	ops.Free(p.rows.dev)
	for _, t := range p.turns {
		ops.Free(t.cos.dev, t.sin.dev)
	}
}

// set tells the device where the rows of a step stand.
func (p *places) set(ops Ops, runs []Run) Step {
	p.find(runs)
	for _, t := range p.turns {
		t.cos.write(ops)
		t.sin.write(ops)
	}
	return Step{Runs: runs, Rows: p.rows.write(ops)}
}

// find finds where the rows of a step stand.
func (p *places) find(runs []Run) {
	p.rows.host = p.rows.host[:0]
	for _, t := range p.turns {
		t.cos.host, t.sin.host = t.cos.host[:0], t.sin.host[:0]
	}
	for _, r := range runs {
		for pos := r.From; pos < r.From+r.Rows; pos++ {
			p.rows.host = append(p.rows.host, float32(r.Slot), float32(pos))
			for rope, t := range p.turns {
				freqs := t.frequencies(rope, r.Whole)
				t.cos.host, t.sin.host = rope.angles(t.cos.host, t.sin.host, freqs, pos)
			}
		}
	}
}

// write returns the elements written, of an array that is made longer if need be.
func (f *floats) write(ops Ops) Array {
	if f.dev == nil || f.dev.Len() < len(f.host) {
		ops.Free(f.dev)
		f.dev = ops.Floats(len(f.host))
	}
	first := f.dev.Slice(0, len(f.host))
	ops.Write(first, f.host)
	return first
}
