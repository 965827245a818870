package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/weight"
)

// ProbeOptions say how to [Probe].
type ProbeOptions struct {
	Windows [][]int // of tokens, two at least in each
	// Sets are layers that are replaced together, by the paths that they are stored under: those of one block, or the token
	// embedding, with which the head goes where it is tied, or the head.
	Sets [][]string
	// Replace returns what stands in the place of a layer.
	Replace func(ctx context.Context, path string) (weight.Matrix, error)
	// Most is how many windows are run at a time, 0 for all: every set takes a state of each. The model is read once for so many.
	Most int
	// Progress is told of the work done, of all that there is; may be nil.
	Progress func(done, all int)
}

// Probe returns what replacing each set alone does to a model: the mean Kullback-Leibler divergence from the original's
// predictions, in nats, over all positions of the windows but the last of each.
//
// The model is taken block by block, as [Walk] does. The windows run through the original, and from the first block that a set is
// part of also through the model that it is replaced in. So there is one block on the device at a time, besides a state of every
// window for every set.
func Probe(ctx context.Context, src Source, ops Ops, o ProbeOptions) ([]float64, error) {
	d := src.Decoder()
	p := &prober{Model: &Model{name: src.Name(), desc: d, ops: ops, lossRows: max(lossBytes/4/d.Vocab, 1)}, o: o, src: src, ropeOf: ropes(d)}
	for _, r := range p.ropeOf {
		p.ropes = append(p.ropes, r)
	}
	defer p.close()
	if err := p.find(); err != nil {
		return nil, err
	}
	positions := 0
	for i, tokens := range o.Windows {
		if err := p.check(tokens); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
		if len(tokens) < 2 {
			return nil, fmt.Errorf("window %d: a divergence needs two tokens at least", i)
		}
		positions += len(tokens) - 1
	}
	if positions == 0 {
		return nil, errors.New("no windows to probe with")
	}
	p.sums = make([]float64, len(o.Sets))
	most := len(o.Windows)
	if o.Most > 0 {
		most = min(o.Most, most)
	}
	p.all = ProbePasses(d, o.Sets) * len(o.Windows)
	for windows := range slices.Chunk(o.Windows, most) {
		if err := p.some(ctx, windows); err != nil {
			return nil, err
		}
	}
	for i, sum := range p.sums {
		if p.sums[i] = sum / float64(positions); math.IsNaN(sum) || math.IsInf(sum, 0) {
			p.sums[i] = math.Inf(1) // which nothing is worth
		}
	}
	return p.sums, src.Wait()
}

// ProbePasses is how many times [Probe] takes a window through a block, or through the head.
func ProbePasses(d *arch.Decoder, sets [][]string) int {
	n := len(d.Blocks) + 1
	of := blocksOf(d)
	for _, set := range sets {
		n++ // the head
		if at, ok := of[set[0]]; ok {
			n += len(d.Blocks) - at
		} else if set[0] == d.Embed || d.Tied {
			n += len(d.Blocks)
		}
	}
	return n
}

// ProbeWork returns the multiplications of [Probe].
func ProbeWork(d *arch.Decoder, o ProbeOptions) (sum float64) {
	heads := float64(len(o.Sets) + 1) // of each position
	blocks := float64(ProbePasses(d, o.Sets)) - heads
	for _, w := range o.Windows {
		linear, attention := work(d, len(w))
		sum += blocks*(linear+attention)/float64(len(d.Blocks)) + heads*float64(len(w))*float64(d.Vocab)*float64(d.Hidden)
	}
	return sum
}

// blocksOf returns the block of each layer by the path that it is stored under.
func blocksOf(d *arch.Decoder) map[string]int {
	of := make(map[string]int)
	for i := range d.Blocks {
		for _, l := range d.Blocks[i].Linears() {
			of[l.Stored.Path] = i
		}
	}
	return of
}

// prober is a probe. Its model has no blocks of its own.
type prober struct {
	*Model
	src    Source
	o      ProbeOptions
	ropeOf map[*arch.Rope]*rope

	ahead *ahead
	full  loader
	block owned // of the original at hand
	other owned // of what stands in its place

	begins []int      // of each set, the block: -1 of the embedding, and the number of blocks of the head
	tied   []bool     // of each set, whether the head is replaced with the embedding
	h      [][]Array  // of the original, then of each set, by window; nil where a set has not begun
	side   [][]beside // likewise
	sums   []float64  // of divergences, by set

	done, all int
}

// find finds where sets begin.
func (p *prober) find() error {
	of := blocksOf(p.desc)
	ends := loader{src: p.src, own: &p.block}
	embedding := ends.embedding(p.desc).Path
	if ends.err != nil {
		return ends.err
	}
	for _, set := range p.o.Sets {
		if len(set) == 0 {
			return errors.New("a set of no layers")
		}
		at, ok := of[set[0]]
		end := !ok && len(set) == 1
		switch {
		case end && (set[0] == embedding || p.desc.Tokens != nil && set[0] == p.desc.Tokens.Embed.Path):
			at = -1
		case end && !p.desc.Tied && set[0] == p.desc.Head.Stored.Path:
			at = len(p.desc.Blocks)
		case !ok:
			return fmt.Errorf("%s: no layer %s", p.name, set[0])
		}
		for _, path := range set[1:] {
			if other, ok := of[path]; !ok || other != at {
				return fmt.Errorf("%s: %s is not of the block of %s", p.name, path, set[0])
			}
		}
		p.begins = append(p.begins, at)
		p.tied = append(p.tied, at == -1 && p.desc.Tied && set[0] == embedding)
	}
	return nil
}

// with returns a loader that takes some layers from what stands in their place.
func (p *prober) with(ctx context.Context, paths []string) *loader {
	l := p.full
	l.own, l.last = &p.other, make(map[*arch.Stored]rows)
	l.take = func(s *arch.Stored) (rows, error) {
		if !slices.Contains(paths, s.Path) {
			return stored(p.src, s)
		}
		m, err := p.o.Replace(ctx, s.Path)
		if err != nil {
			return rows{}, err
		}
		n, k := m.Shape()
		return rows{packed: m}, wantShape(p.src, s, n, k)
	}
	return &l
}

// some takes some of the windows through the model.
func (p *prober) some(ctx context.Context, windows [][]int) error {
	p.ahead = newAhead(p.src, p.desc.Stored())
	defer p.ahead.wait()
	p.full = loader{src: p.src, take: p.ahead.take, ops: p.ops, own: &p.block, last: make(map[*arch.Stored]rows)}
	p.h, p.side = make([][]Array, len(p.o.Sets)+1), make([][]beside, len(p.o.Sets)+1)
	defer p.forget()
	if err := p.embed(ctx, windows); err != nil {
		return err
	}
	for i := range p.desc.Blocks {
		if err := p.through(ctx, i, windows); err != nil {
			return err
		}
	}
	return p.compare(ctx, windows)
}

// embed begins with the embedding, and with what stands in its place.
func (p *prober) embed(ctx context.Context, windows [][]int) error {
	defer p.release()
	s := p.full.embedding(p.desc)
	put := func(l *loader, stream int) error {
		p.Model.embed, p.tokens = l.weight(s, 0, whole(s)), l.tokenInputs(p.desc)
		if l.err != nil {
			return l.err
		}
		for _, tokens := range windows {
			h := p.ops.Floats(len(tokens) * p.desc.Hidden)
			p.h[stream] = append(p.h[stream], h)
			a := p.room(len(tokens))
			a.h, a.beside = h, p.newBeside(len(tokens))
			p.side[stream] = append(p.side[stream], a.beside)
			p.enter(a, tokens)
		}
		return p.ops.Err()
	}
	if err := put(&p.full, 0); err != nil {
		return err
	}
	for set, at := range p.begins {
		if at != -1 {
			continue
		}
		if err := put(p.with(ctx, p.o.Sets[set]), set+1); err != nil {
			return err
		}
		p.drop(&p.other)
	}
	return nil
}

// through takes the windows through block i: those of sets that began before, then of those that begin here, and at last the original's.
func (p *prober) through(ctx context.Context, i int, windows [][]int) error {
	defer p.release()
	b := &p.desc.Blocks[i]
	var l layer
	p.full.layer(&l, b, p.desc.Hidden)
	if p.full.err != nil {
		return p.full.err
	}
	l.mixer.bind(p.ropeOf)
	for set, at := range p.begins {
		if at < i {
			if err := p.run(ctx, set+1, &l, windows); err != nil {
				return err
			}
		}
	}
	for set, at := range p.begins {
		if at != i {
			continue
		}
		own := l.clone()
		from := p.with(ctx, p.o.Sets[set])
		slots := own.linears()
		for j, linear := range b.Linears() {
			if slices.Contains(p.o.Sets[set], linear.Stored.Path) {
				*slots[j] = from.linear(linear)
			}
		}
		if from.err != nil {
			return from.err
		}
		for _, h := range p.h[0] {
			c := p.ops.Floats(h.Len())
			p.ops.Copy(c, h)
			p.h[set+1] = append(p.h[set+1], c)
		}
		for w, tokens := range windows {
			side := p.newBeside(len(tokens))
			p.side[set+1] = append(p.side[set+1], side)
			for j, a := range side.arrays {
				p.ops.Copy(a, p.side[0][w].arrays[j])
			}
		}
		if err := p.run(ctx, set+1, &own, windows); err != nil {
			return err
		}
		p.drop(&p.other)
	}
	return p.run(ctx, 0, &l, windows)
}

// run takes a stream through a block.
func (p *prober) run(ctx context.Context, stream int, l *layer, windows [][]int) error {
	for w, tokens := range windows {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.extend(len(tokens))
		a := p.room(len(tokens))
		a.h, a.beside = p.h[stream][w], p.side[stream][w]
		p.queue(func() {
			p.mix(a, l)
			p.feed(a, l)
		})
		p.progress()
	}
	return p.ops.Err()
}

// compare adds up the divergences of all streams from the original.
func (p *prober) compare(ctx context.Context, windows [][]int) error {
	defer p.release()
	p.norm = p.full.lastNorm(p.desc)
	p.full.last = make(map[*arch.Stored]rows)
	head := func(l *loader) (linear, error) {
		if p.desc.Tied {
			s := l.embedding(p.desc)
			return linear{name: s.Path, w: l.weight(s, 0, whole(s))}, l.err
		}
		return l.linear(p.desc.Head), l.err
	}
	original, err := head(&p.full)
	if err != nil {
		return err
	}
	for w, tokens := range windows {
		if row := p.ops.NotFinite(p.h[0][w], len(tokens), p.desc.Hidden); row >= 0 {
			return fmt.Errorf("%s: the hidden state of token %d is %w", p.name, row, ErrNotFinite)
		}
		p.progress()
	}
	heads := make([]linear, len(p.o.Sets))
	for set, at := range p.begins {
		heads[set] = original
		if p.tied[set] || at == len(p.desc.Blocks) {
			if heads[set], err = head(p.with(ctx, p.o.Sets[set])); err != nil {
				return err
			}
		}
	}
	for w, tokens := range windows {
		if err := p.divergences(ctx, w, len(tokens), original, heads); err != nil {
			return err
		}
	}
	return nil
}

// divergences adds up those of all sets over the positions of a window of t tokens but the last.
func (p *prober) divergences(ctx context.Context, w, t int, original linear, heads []linear) error {
	s, vocab, count := &p.losses, p.Vocab(), t-1
	most := min(p.lossRows, count)
	losses := room(p.ops, &s.loss, most, p.ops.Floats)
	logits := room(p.ops, &s.logits, most*vocab, p.ops.Floats)
	want := room(p.ops, &s.teacher, most*vocab, p.ops.Floats)
	a := p.room(t)
	v := make([]float32, most)
	for from := 0; from < count; from += most {
		to := min(from+most, count)
		rows := to - from
		states := func(dst, h Array, head linear) {
			n := a.n.Slice(0, rows*p.desc.Hidden)
			p.ops.RMSNorm(n, rowsOf(h, t, from, to), p.norm, rows, p.desc.Norm.Eps)
			p.head = head
			p.logits(dst.Slice(0, rows*vocab), nil, n, rows)
		}
		states(want, p.h[0][w], original)
		for set, at := range p.begins {
			if err := ctx.Err(); err != nil {
				return err
			}
			h := p.h[0][w]
			if at < len(p.desc.Blocks) {
				h = p.h[set+1][w]
			}
			states(logits, h, heads[set])
			p.ops.Divergence(losses.Slice(0, rows), nil, logits.Slice(0, rows*vocab), want.Slice(0, rows*vocab), rows, vocab, 1)
			p.ops.Read(v[:rows], losses.Slice(0, rows))
			if err := p.ops.Err(); err != nil {
				return err
			}
			for _, x := range v[:rows] {
				p.sums[set] += float64(x)
			}
		}
	}
	for range heads {
		p.progress()
	}
	return nil
}

func (p *prober) progress() {
	p.done++
	if p.o.Progress != nil {
		p.o.Progress(min(p.done, p.all), p.all)
	}
}

// drop gives weights back.
func (p *prober) drop(o *owned) {
	for _, w := range o.weights {
		p.ops.FreeWeight(w)
	}
	p.ops.Free(o.arrays...)
	*o = owned{}
}

// release gives back what was read of a block.
func (p *prober) release() {
	p.drop(&p.block)
	p.drop(&p.other)
	p.full.last = make(map[*arch.Stored]rows)
}

// forget gives back the states of the windows.
func (p *prober) forget() {
	for _, stream := range p.h {
		p.ops.Free(stream...)
	}
	for _, stream := range p.side {
		for _, side := range stream {
			p.ops.Free(side.arrays...)
		}
	}
	p.h, p.side = nil, nil
}

func (p *prober) close() {
	p.drop(&p.block)
	p.drop(&p.other)
	p.norm = nil
	p.Close()
}
