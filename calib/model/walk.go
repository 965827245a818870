package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// WalkOptions say how to [Walk].
type WalkOptions struct {
	Windows [][]int    // of tokens
	Beside  []StatsOps // further devices, among which windows are divided
	// Original runs the windows through the original model as well, which [Stats].D takes.
	Original bool
	// Together is how many tokens of windows that follow each other pass through a mixture of experts at a time, so that each expert
	// has many; no less than a window. 0 is one window. Sums over tokens are then taken in another order.
	Together int
	// StatsBytes bounds the statistics of experts that exist at a time, where one has no more; experts of a stack come together all
	// the same. 0 is 8 GiB.
	StatsBytes int64
	// Apart says that the visitor's Weight has no layer, so that the model stays as it is: some passes are spared then.
	Apart bool
	// From is the block that the walk begins with, before which States has what the windows are; 0 begins with their tokens.
	From int
	// To is how many blocks it goes through at least, whatever the visitor wants.
	To int
	// States, unless nil, is given what windows are between blocks, where the original model is not run beside the quantized one.
	States States
	// Progress is told of the work done, of all that there is; may be nil.
	Progress func(done, all int)
}

// States are what windows are between blocks: each is [StateSize] numbers, which a walk that begins there goes on from to the
// same bits. Windows are counted as [WalkOptions] has them. Its methods are called by several devices at once.
type States interface {
	// Keeps reports whether what windows are before a block is wanted.
	Keeps(block int) bool
	// Save takes one of them, which is overwritten when it returns. Load fills it.
	Save(block, window int, state []float32) error
	Load(block, window int, state []float32) error
}

// Visitor quantizes layers as a walk comes by. Layers are named by the path that they are stored under.
type Visitor interface {
	// Wants reports whether a layer is to be quantized by statistics.
	Wants(path string) bool
	// Quantize quantizes layers by statistics of what they read: several, none of which reads what another makes. The
	// statistics are gone when it returns.
	Quantize(ctx context.Context, all []rounding.Readers) error
	// Weight returns a layer as it is quantized, or nil where it stays as it is.
	Weight(path string) (weight.Matrix, error)
}

// Walk takes windows of text through a decoder, one block at a time, and lets v quantize the
// layers of a block in order: what reads the attention's input, its result, the MLP's
// input, and what is gated. What comes after goes on from the quantized layers. An expert has statistics of the
// tokens that are routed to it in the quantized model, and of others where these are too few.
//
// Besides the states of the windows there is one block of the model on the device: the
// original one if o.Original is set, and as much of it as is quantized. The walk
// ends with the last layer that v wants, or with the last block of o.To.
//
// Several devices, whose arithmetic is the same, have some of the windows each, and statistics are added up between passes, in an
// order that does not depend on their number up to [sumParts]: v is shown the same to the bit. Not so experts that tokens
// are routed to, of which each device adds up its own tokens, so that sums are rounded otherwise.
func Walk(ctx context.Context, src Source, ops StatsOps, v Visitor, o WalkOptions) error {
	c := newCrew(src, append([]StatsOps{ops}, o.Beside...), v, o)
	if err := c.walk(ctx, src); err != nil {
		return err
	}
	return src.Wait()
}

// goes is one walker's way.
func (w *walker) goes(ctx context.Context, src Source) error {
	ahead := newAhead(src, w.originals(w.blocks))
	defer ahead.wait()
	w.full = loader{src: src, take: ahead.take, ops: w.ops, own: &w.block}
	w.quantized = w.full
	w.quantized.take = w.take
	defer w.close()
	return w.walk(ctx)
}

// walker is a walk on one device. Its model has no blocks of its own.
type walker struct {
	*Model
	*crew
	rank   int
	texts  [][]int      // its windows
	offset int          // of the first, in all windows
	ends   map[int]bool // how many of its windows there are up to the end of a part of all
	stats  StatsOps
	ropeOf map[*arch.Rope]*rope

	streams []*stream // of the quantized model, and of the original one if that is run

	// Of the block at hand:
	full, quantized loader
	block           owned
	slots           map[*arch.Linear]*linear // of the quantized block

	windows []span // each by itself
	spans   []span // of windows that pass through experts together
	within  []int  // the span that a window is in

	at     int                                   // the span at hand, of those that a pass goes through
	routes []routes                              // of every span, where there are experts
	chose  []*routing                            // likewise, of the quantized model
	taken  map[*arch.Stored]func() (rows, error) // layers that are read ahead
	routed []int                                 // tokens of each expert, in all windows of all devices
	passed int                                   // windows, by all passes so far
	rest   map[*arch.Linear]bool                 // of the last block, what the walk does not end before; nil: it goes through
}

// span is some windows that follow each other: from, from+1, … to-1. They have so many tokens, which begin at a token of all.
type span struct{ from, to, tokens, first int }

// stream is what the windows are in one of the models.
type stream struct {
	layer layer       // the block at hand
	h     []Array     // of every span, see [activations]
	q     []Array     // of every window
	side  []beside    // likewise
	room  activations // for the rest of a window
	wide  activations // and of a span of several
}

// readers are layers that read the same.
type readers struct {
	layers []*arch.Linear
	stats  *Stats // while they are taken: of the part of the windows at hand
	whole  bool   // parts of the windows are not told apart
	sums   []sums // of parts that are done
}

// sums are those of [Stats].
type sums struct{ h, d Array }

// passes is how often the windows pass through a part of a block: once for each stage of its mixer, twice for its MLP or each group of
// its experts, and once for the end. And what the block is told takes two.
func passes(b *arch.Block, o WalkOptions) int {
	n := len(b.Mixer.Stages()) + 2*len(expertGroups(b, o)) + 1
	if b.MoE != nil { // which are chosen first
		n++
		if b.MoE.Into != nil {
			n += 2
		}
	}
	if b.Told != nil {
		n += 2
	}
	if fedAtOnce(b, o) {
		n--
	}
	return n
}

// fedAtOnce reports whether the windows pass through the MLP of a block but once: what its last layer reads is made on the way.
func fedAtOnce(b *arch.Block, o WalkOptions) bool { return o.Apart && b.MLP != nil && b.Told == nil }

func (w *walker) walk(ctx context.Context) error {
	for i, tokens := range w.texts {
		if err := w.check(tokens); err != nil {
			return fmt.Errorf("window %d: %w", w.offset+i, err)
		}
	}
	if w.blocks == 0 {
		return nil
	}
	w.allocate()
	begin := w.embed
	if w.o.From > 0 {
		begin = w.loadStates
	}
	if err := begin(); err != nil {
		return err
	}
	for i := w.o.From; i < w.blocks; i++ {
		if err := w.through(ctx, i); errors.Is(err, errOver) {
			w.progress(passes(&w.desc.Blocks[i], w.o)*len(w.texts) - w.passed)
			return nil
		} else if err != nil {
			return err
		}
		if err := w.saveStates(i + 1); err != nil {
			return err
		}
	}
	if w.wantsHead(w.desc) {
		return w.visitHead(ctx)
	}
	return nil
}

// originals returns what is read of the first blocks, in order, where the original model is run.
func (w *walker) originals(blocks int) []*arch.Stored {
	if !w.o.Original {
		return nil
	}
	all, end := w.desc.Stored(), w.desc.Head.Stored
	if blocks < len(w.desc.Blocks) {
		end = w.desc.Blocks[blocks].Linears()[0].Stored
	}
	if i := slices.Index(all, end); i >= 0 {
		all = all[:i]
	}
	return all
}

// divide divides the windows into spans, of which none is longer than what goes together, or a window.
func (w *walker) divide() {
	first := 0
	for i, tokens := range w.texts {
		w.windows = append(w.windows, span{i, i + 1, len(tokens), first})
		w.mostRows = max(w.mostRows, len(tokens))
		first += len(tokens)
	}
	w.spans = spansOf(w.texts, w.together)
	for i, of := range w.spans {
		for range of.to - of.from {
			w.within = append(w.within, i)
		}
	}
}

// spansOf divides windows into spans of no more tokens than go together, or of one window.
func spansOf(windows [][]int, together int) (all []span) {
	var of span
	for i, tokens := range windows {
		if i > 0 && of.tokens+len(tokens) <= together {
			of.to, of.tokens = i+1, of.tokens+len(tokens)
			all[len(all)-1] = of
		} else {
			of = span{i, i + 1, len(tokens), of.first + of.tokens}
			all = append(all, of)
		}
	}
	return all
}

// allocate makes room for the windows.
func (w *walker) allocate() {
	widest := 0
	for _, of := range w.spans {
		if of.to-of.from > 1 {
			widest = max(widest, of.tokens)
		}
	}
	count := 1
	if w.o.Original {
		count = 2
	}
	width := widthsOf(w.desc).q
	for range count {
		s := &stream{room: w.newActivations(w.mostRows)}
		w.streams = append(w.streams, s)
		if widest > 0 && slices.ContainsFunc(w.desc.Blocks, goesTogether) {
			s.wide = activations{n: w.ops.Acts(widest * w.desc.Hidden), gate: s.room.gate, up: s.room.up}
			if s.room.y != nil {
				s.wide.y = w.ops.Floats(widest * w.desc.Hidden)
			}
		}
		for _, of := range w.spans {
			s.h = append(s.h, w.ops.Floats(of.tokens*w.desc.Hidden))
		}
		for _, tokens := range w.texts {
			s.q, s.side = append(s.q, w.ops.Acts(len(tokens)*width)), append(s.side, w.newBeside(len(tokens)))
		}
	}
}

// embed embeds the windows.
func (w *walker) embed() error {
	w.full.last = make(map[*arch.Stored]rows)
	stored := w.full.embedding(w.desc)
	w.Model.embed = w.full.weight(stored, 0, whole(stored))
	w.tokens = w.full.tokenInputs(w.desc)
	defer w.release()
	if w.full.err != nil {
		return w.full.err
	}
	for i, tokens := range w.texts {
		for _, a := range w.activations(w.windows[i]) {
			w.enter(a, tokens)
		}
	}
	return w.ops.Err()
}

// load reads block i: the original one where that is run, and the frame of the quantized one.
func (w *walker) load(i int) error {
	b := &w.desc.Blocks[i]
	var l layer
	if w.o.Original {
		w.full.layer(&l, b, w.desc.Hidden)
	} else {
		w.full.frame(&l, b, w.desc.Hidden)
	}
	if w.full.err != nil {
		return w.full.err
	}
	l.mixer.bind(w.ropeOf)
	for _, s := range w.streams {
		s.layer = l.clone()
	}
	w.slots = make(map[*arch.Linear]*linear)
	for i, slot := range w.streams[0].layer.linears() {
		w.slots[b.Linears()[i]] = slot
	}
	w.quantized.last = make(map[*arch.Stored]rows)
	return nil
}

// release gives back what was read of a block.
func (w *walker) release() {
	for _, take := range w.taken { // that nobody asked for, where something failed
		_, _ = take()
	}
	w.taken = nil
	for _, old := range w.block.weights {
		w.ops.FreeWeight(old)
	}
	w.ops.Free(w.block.arrays...)
	w.block = owned{}
	w.full.last, w.quantized.last, w.routes, w.chose = nil, nil, nil, nil
	for _, s := range w.streams {
		s.layer = layer{}
	}
}

func (w *walker) close() {
	w.release()
	for _, s := range w.streams {
		w.ops.Free(s.h...)
		w.ops.Free(s.q...)
		for _, side := range s.side {
			w.ops.Free(side.arrays...)
		}
		s.room.free(w.ops)
		w.ops.Free(s.wide.n, s.wide.y)
	}
	w.Close()
}

// errOver ends a walk that nothing of the last block is left to do for.
var errOver = errors.New("the walk is over")

// over notes that layers were passed by, and reports whether these were the last of the walk.
func (w *walker) over(rs []*readers) bool {
	if w.rest == nil {
		return false
	}
	for _, r := range rs {
		for _, l := range r.layers {
			delete(w.rest, l)
		}
	}
	return len(w.rest) == 0
}

// through takes the windows through block i. What comes behind the last layer of a walk is left out.
func (w *walker) through(ctx context.Context, i int) error {
	defer w.release()
	w.passed = 0
	if i == w.blocks-1 {
		w.rest = maps.Clone(w.lasts)
	}
	if err := w.load(i); err != nil {
		return err
	}
	b := &w.desc.Blocks[i]
	stages := b.Mixer.Stages()
	for stage, layers := range stages {
		rs, last := readersOf(layers...), stage == len(stages)-1
		err := w.visit(ctx, w.windows, last, func(at []activations) { // what the last one reads stays
			x := make([]Array, len(at))
			for s, a := range at {
				l := &w.streams[s].layer
				x[s] = l.mixer.reads(w.Model, a, w.mixerIn(a, l), stage)
			}
			w.tap(rs, x...)
		}, rs)
		if err != nil {
			return err
		}
	}
	mix := func(at []activations) {
		for s, a := range at {
			if l := &w.streams[s].layer; l.mixes() {
				w.mixed(a, l, first(a.q, a.t*stages[len(stages)-1][0].K))
			}
		}
	}
	spans := w.windows
	if goesTogether(*b) {
		spans = w.spans
	}
	if b.MoE != nil {
		err := w.pass(ctx, spans, func(at []activations) error {
			for i := spans[w.at].from; i < spans[w.at].to; i++ {
				mix(w.activations(w.windows[i]))
			}
			w.mlpIn(at[0], &w.streams[0].layer)
			w.choose(at[0])
			return nil
		})
		if err != nil {
			return err
		}
		if err := w.feedStarved(b.MoE, spans); err != nil {
			return err
		}
	}
	if err := w.visitMLPs(ctx, b, spans, mix); err != nil {
		return err
	}
	finite := func(a activations) error {
		token := w.ops.NotFinite(a.h, a.t, w.desc.Hidden)
		if token < 0 {
			return nil
		}
		window := spans[w.at].from
		for ; token >= w.windows[window].tokens; window++ {
			token -= w.windows[window].tokens
		}
		return fmt.Errorf("%s: the hidden state of token %d of window %d is %w after layer %d", w.name, token, w.offset+window, ErrNotFinite, i)
	}
	if fedAtOnce(b, w.o) {
		return w.visitFed(ctx, b, finite)
	}
	end := func(a activations, d *layer) { w.feed(a, d) }
	if b.Told != nil {
		if err := w.visitTold(ctx, b.Told); err != nil {
			return err
		}
		end = func(a activations, d *layer) {
			w.tell(a, d, w.toldMid(a, d, w.toldIn(a)))
			w.leave(a, d)
		}
	}
	return w.pass(ctx, spans, func(at []activations) error {
		if len(b.MLPs()) == 0 {
			mix(at)
		}
		for s, a := range at {
			if s == 0 && b.MoE != nil {
				a.routing = w.chose[w.at]
			}
			end(a, &w.streams[s].layer)
			if err := finite(a); err != nil {
				return err
			}
		}
		return nil
	})
}

// goesTogether reports whether several windows may pass through the MLP half of a block at a time.
func goesTogether(b arch.Block) bool { return b.MoE != nil && b.Told == nil }

// visitMLPs visits the layers of a block's MLPs. mix is what the windows of a block without experts still need before.
func (w *walker) visitMLPs(ctx context.Context, b *arch.Block, spans []span, mix func(at []activations)) error {
	var mlpIn, mid []*readers
	for _, m := range b.MLPs() {
		mlpIn, mid = append(mlpIn, readersOf(m.In()...)), append(mid, readersOf(m.Down))
	}
	if b.MoE != nil && b.MoE.Into != nil {
		into := readersOf(b.MoE.Into)
		err := w.visit(ctx, spans, false, func(at []activations) { w.tap(into, w.mlpsIn(at)...) }, into)
		if err != nil {
			return err
		}
	}
	if b.MoE != nil {
		for i := range b.MoE.Experts {
			mlpIn[i].whole, mid[i].whole = true, true
		}
	}
	for _, g := range expertGroups(b, w.o) {
		err := w.visit(ctx, spans, b.MoE == nil, func(at []activations) {
			if b.MoE == nil {
				mix(at)
			}
			w.mlpsIn(at)
			w.eachMLP(at, mlpIn, g, func(m int, in []Array) { w.tap(mlpIn[m], in...) })
		}, mlpIn[g.from:g.to]...)
		if err != nil {
			return err
		}
		if fedAtOnce(b, w.o) {
			return nil
		}
		err = w.visit(ctx, spans, false, func(at []activations) {
			w.mlpsIn(at)
			w.eachMLP(at, mid, g, func(m int, in []Array) { w.tapGated(mid[m], at, m, in) })
		}, mid[g.from:g.to]...)
		if err != nil {
			return err
		}
	}
	if b.MoE == nil || b.MoE.Back == nil {
		return nil
	}
	back := readersOf(b.MoE.Back)
	return w.visit(ctx, spans, false, func(at []activations) {
		w.mlpsIn(at)
		x := make([]Array, len(at))
		for s, a := range at {
			moe, r := w.streams[s].layer.moe, w.chose[w.at]
			if s > 0 {
				r = w.chosen(a, moe)
			}
			x[s] = w.latentSum(a, moe, r)
		}
		w.tap(back, x...)
		w.ops.Free(x...)
	}, back)
}

// visitFed visits the last layer of a block's MLP, and adds what that makes as it goes.
func (w *walker) visitFed(ctx context.Context, b *arch.Block, finite func(a activations) error) error {
	r, down := readersOf(b.MLP.Down), b.MLP.Down
	w.begin(r)
	defer w.forget(r)
	if *w.slots[down] = w.quantized.linear(down); w.quantized.err != nil {
		return w.quantized.err
	}
	err := w.pass(ctx, w.windows, func(at []activations) error {
		a, d := at[0], &w.streams[0].layer
		x := w.mlpIn(a, d)
		w.residual(a, d.mlpOut, outEps(b.MLPOut), func(y Array, add bool) { w.mlpTapped(r, y, x, a, d.mlp, add) })
		w.leave(a, d)
		if err := finite(a); err != nil {
			return err
		}
		w.part(w.windows, r)
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.quantize(ctx, []*readers{r}); err != nil {
		return err
	}
	if w.over([]*readers{r}) {
		return errOver
	}
	return w.ops.Err()
}

// mlpTapped is [Model.mlp] which shows what the last layer reads, row by row, on the way.
func (w *walker) mlpTapped(r *readers, y, n Array, a activations, d *mlp, add bool) {
	wide, inter, most := width(d.down.w), width(d.up.w), w.mlpRows(a.t)
	for from := 0; from < a.t; from += most {
		to := min(from+most, a.t)
		mid, up := a.gate.Slice(0, (to-from)*inter), a.up.Slice(0, (to-from)*inter)
		w.gates(d, mid, mid, up, n.Slice(from*wide, to*wide), to-from)
		w.tap(r, mid)
		w.ops.Linear(mid, to-from, d.down.into(y.Slice(from*wide, to*wide), add))
	}
}

// mlpsIn is [Model.mlpIn] of every stream.
func (w *walker) mlpsIn(at []activations) (all []Array) {
	for s, a := range at {
		all = append(all, w.mlpIn(a, &w.streams[s].layer))
	}
	return all
}

// group is some of a block's MLPs.
type group struct{ from, to int }

// statsBytes is [WalkOptions.StatsBytes] where nothing is said.
const statsBytes = 8 << 30

// expertGroups divides the MLPs of a block into those whose statistics are taken at a time. Experts of a stack are in one group.
func expertGroups(b *arch.Block, o WalkOptions) []group {
	all, most, sums := b.MLPs(), cmp.Or(o.StatsBytes, statsBytes), int64(1)
	if o.Original {
		sums = 2
	}
	var groups []group
	var bytes int64
	for i, m := range all {
		own := 4 * sums * int64(max(square(m.Gate.K), square(m.Down.K)))
		stacked := i > 0 && (m.Gate.Stored == all[i-1].Gate.Stored || m.Down.Stored == all[i-1].Down.Stored)
		if len(groups) == 0 || !stacked && bytes+own > most {
			groups, bytes = append(groups, group{i, i}), 0
		}
		groups[len(groups)-1].to, bytes = i+1, bytes+own
	}
	return groups
}

// visitTold ends with the MLP half of the block at hand, and visits the layers of what it is told.
func (w *walker) visitTold(ctx context.Context, t *arch.Told) error {
	gate, proj := readersOf(t.Gate), readersOf(t.Proj)
	err := w.visit(ctx, w.windows, true, func(at []activations) {
		x := make([]Array, len(at))
		for s, a := range at {
			w.fed(a, &w.streams[s].layer)
			x[s] = w.toldIn(a)
		}
		w.tap(gate, x...)
	}, gate)
	if err != nil {
		return err
	}
	return w.visit(ctx, w.windows, false, func(at []activations) {
		x := make([]Array, len(at))
		for s, a := range at {
			x[s] = w.toldMid(a, &w.streams[s].layer, w.toldIn(a))
		}
		w.tap(proj, x...)
	}, proj)
}

// visitHead takes the statistics of the final states.
func (w *walker) visitHead(ctx context.Context) error {
	defer w.release()
	w.full.last = make(map[*arch.Stored]rows)
	if w.norm = w.full.lastNorm(w.desc); w.full.err != nil {
		return w.full.err
	}
	head := readersOf(w.desc.Head)
	w.begin(head)
	defer w.forget(head)
	err := w.pass(ctx, w.windows, func(at []activations) error {
		for _, a := range at {
			w.Model.states(a)
		}
		w.tap(head, inStreams(at, states)...)
		w.part(w.windows, head)
		return nil
	})
	if err != nil {
		return err
	}
	return w.quantize(ctx, []*readers{head})
}

// came notes that windows passed.
func (w *walker) came(windows int) {
	w.passed += windows
	w.progress(windows)
}

// pass calls f for every span, which is the one at hand, with its activations in every stream.
func (w *walker) pass(ctx context.Context, spans []span, f func(at []activations) error) error {
	for i, of := range spans {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		w.at = i
		w.queue(func() {
			if of.to-of.from == 1 {
				w.extend(of.tokens)
			}
			err = f(w.activations(of))
		})
		if err != nil {
			return err
		}
		w.came(of.to - of.from)
	}
	return w.ops.Err()
}

// activations returns those of a window, or of some that go together, in every stream.
func (w *walker) activations(of span) []activations {
	at := make([]activations, len(w.streams))
	in := w.within[of.from]
	from := (of.first - w.spans[in].first) * w.desc.Hidden
	for s, stream := range w.streams {
		a := stream.wide
		if of.to-of.from == 1 {
			a = stream.room
			a.q, a.beside = stream.q[of.from], stream.side[of.from]
		}
		a.h = stream.h[in].Slice(from, from+of.tokens*w.desc.Hidden)
		at[s] = w.first(a, of.tokens)
	}
	return at
}

// visit passes the windows through f, which taps what some layers read, has those layers quantized and
// puts them in place. A pass that is not always needed is left out where none of them wants statistics.
func (w *walker) visit(ctx context.Context, spans []span, always bool, f func(at []activations), rs ...*readers) error {
	for _, r := range rs {
		w.begin(r)
		defer w.forget(r)
	}
	if always || slices.ContainsFunc(rs, counts) {
		err := w.pass(ctx, spans, func(at []activations) error {
			f(at)
			w.part(spans, rs...)
			return nil
		})
		if err != nil {
			return err
		}
	} else {
		w.came(len(w.texts))
	}
	if err := w.quantize(ctx, rs); err != nil {
		return err
	}
	if w.over(rs) {
		return errOver
	}
	w.takeAhead(rs)
	for _, r := range rs {
		for _, l := range r.layers {
			if *w.slots[l] = w.quantized.linear(l); w.quantized.err != nil {
				return w.quantized.err
			}
		}
	}
	return w.ops.Err()
}

func readersOf(ls ...*arch.Linear) *readers { return &readers{layers: ls} }

// counts reports whether readers have statistics.
func counts(r *readers) bool { return r.stats != nil }

// begin makes room for statistics where a layer wants them.
func (w *walker) begin(r *readers) {
	if !slices.ContainsFunc(r.layers, w.wants) {
		return
	}
	r.stats = &Stats{ops: w.ops, k: r.layers[0].K, routed: -1}
}

// part ends a part of the windows where the span at hand is its last: what was added up of it is set aside.
func (w *walker) part(spans []span, rs ...*readers) {
	if !w.ends[spans[w.at].to] {
		return
	}
	for _, r := range rs {
		if r.stats == nil || r.whole || r.stats.H == nil {
			continue
		}
		own := sums{r.stats.H, r.stats.D}
		if w.offset > 0 || len(r.sums) == 0 { // parts before them are of other devices
			r.sums = append(r.sums, own)
			r.stats.H, r.stats.D = nil, nil
			continue
		}
		add(w.ops, r.sums[0], own)
		for _, a := range []Array{own.h, own.d} {
			if a != nil {
				w.ops.Zero(a)
			}
		}
	}
}

// add adds sums to others on the same device.
func add(ops Ops, to, more sums) {
	ops.AddTo(to.h, more.h)
	if more.d != nil {
		ops.AddTo(to.d, more.d)
	}
}

// states are what most layers read of activations.
func states(a activations) Array { return a.n }

// inStreams returns what is read in every stream.
func inStreams(at []activations, read func(activations) Array) []Array {
	var xs []Array
	for _, a := range at {
		xs = append(xs, read(a))
	}
	return xs
}

// tap adds states of the streams to the statistics of what reads them.
func (w *walker) tap(r *readers, x ...Array) {
	if r.stats == nil {
		return
	}
	k := r.stats.k
	rows := x[0].Len() / k
	r.stats.tokens += rows
	if r.stats.H == nil {
		r.stats.H = w.ops.Floats(k * k)
		if w.o.Original {
			r.stats.D = w.ops.Floats(k * k)
		}
	}
	w.stats.Gram(r.stats.H, x[0], rows)
	if len(x) > 1 {
		w.stats.Cross(r.stats.D, x[1], x[0], rows)
	}
}

// tapGated is tap for what the last layer of MLP m reads, given what its first ones do.
func (w *walker) tapGated(r *readers, at []activations, m int, in []Array) {
	_, k := w.streams[0].layer.mlps()[m].up.w.Shape()
	rows, most := in[0].Len()/k, w.mlpRows(at[0].t)
	for from := 0; from < rows; from += most {
		to := min(from+most, rows)
		var x []Array
		for s, a := range at {
			x = append(x, w.gated(rowsOf(in[s], rows, from, to), a, w.streams[s].layer.mlps()[m], to-from))
		}
		w.tap(r, x...)
	}
}

// eachMLP calls f for each MLP of a group of the block at hand whose reading has statistics, with what it reads in
// every stream. An expert's are those that the quantized model routes to it.
func (w *walker) eachMLP(at []activations, rs []*readers, g group, f func(m int, in []Array)) {
	moe := w.streams[0].layer.moe
	if !slices.ContainsFunc(rs[g.from:g.to], counts) {
		return
	}
	if moe == nil {
		f(0, inStreams(at, states))
		return
	}
	wide, from, gathered := w.desc.Hidden, inStreams(at, states), make([]Array, len(at))
	if moe.desc.Into != nil && g.from < len(moe.experts) {
		wide = moe.desc.Into.N
		for s, a := range at {
			from[s] = w.latents(a, w.streams[s].layer.moe)
		}
		defer w.ops.Free(from...)
	}
	for s, a := range at {
		gathered[s] = w.ops.Acts(a.t * max(wide, w.desc.Hidden))
	}
	defer w.ops.Free(gathered...)
	given := w.routes[w.at]
	for e := g.from; e < min(g.to, len(moe.experts)); e++ {
		tokens := given.tokens[e]
		if rs[e].stats == nil {
			continue
		}
		rs[e].stats.routed = w.routed[e]
		if len(tokens) == 0 {
			continue
		}
		var weights []float32
		if given.probs != nil {
			for _, t := range tokens {
				weights = append(weights, given.probs[t*len(moe.experts)+e])
			}
		}
		in := make([]Array, len(at))
		for s := range at {
			in[s] = gathered[s].Slice(0, len(tokens)*wide)
			w.ops.Gather(in[s], from[s], tokens, weights)
		}
		f(e, in)
	}
	if shared := len(moe.experts); shared < g.to && rs[shared].stats != nil {
		in := make([]Array, len(at))
		for s, a := range at {
			in[s] = w.sharedIn(a, moe, gathered[s])
		}
		f(shared, in)
	}
}

// routes are the tokens of a span that go to each expert, and those that would if twice as many were chosen.
type routes struct {
	tokens, next [][]int
	probs        []float32 // [t, experts], what an expert's input is multiplied by; nil: nothing
}

// choose notes where the tokens of the span at hand go.
func (w *walker) choose(a activations) {
	r := w.chosen(a, w.streams[0].layer.moe)
	of := routes{tokens: slices.Clone(r.tokens), next: r.next} // which others are added to
	if d := w.streams[0].layer.moe.desc; d.Routing.OnInput {
		of.probs = make([]float32, len(r.probs))
		for i, p := range r.probs {
			of.probs[i] = float32(d.Routing.Factor() * p)
		}
	}
	r.probs, r.chosen, r.next = nil, nil, nil
	w.routes, w.chose = append(w.routes, of), append(w.chose, r)
}

// feedStarved counts the tokens of experts. Those that have fewer than a layer of theirs has inputs, which say too little of it,
// get the tokens as well that would be theirs if twice as many were chosen; and where these are too few, all. NOTES.md of
// package gptq has what that gains.
func (w *walker) feedStarved(d *arch.MoE, spans []span) error {
	n := len(d.Experts)
	counts := make([]int, 2*n)
	for _, r := range w.routes {
		for e, tokens := range r.tokens {
			counts[e] += len(tokens)
			counts[n+e] += len(tokens) + len(r.next[e])
		}
	}
	if err := w.count(w, counts); err != nil {
		return err
	}
	wider := counts[n:]
	w.routed = counts[:n]
	for e := range d.Experts {
		inputs := max(d.Experts[e].Gate.K, d.Experts[e].Down.K)
		if w.routed[e] >= inputs {
			continue
		}
		for i, r := range w.routes {
			if wider[e] < inputs {
				r.tokens[e] = all(spans[i].tokens)
				continue
			}
			r.tokens[e] = slices.Concat(r.tokens[e], r.next[e])
			slices.Sort(r.tokens[e])
		}
	}
	return nil
}

// quantize has the layers of readings quantized, those of one stack together.
func (w *walker) quantize(ctx context.Context, rs []*readers) error {
	if !slices.ContainsFunc(rs, counts) {
		return nil
	}
	for _, r := range rs {
		if r.stats == nil || r.stats.H == nil {
			continue
		}
		if own := (sums{r.stats.H, r.stats.D}); r.whole {
			r.sums = append(r.sums, own)
		} else { // room for a part that did not come
			w.ops.Free(own.h, own.d)
		}
		r.stats.H, r.stats.D = nil, nil
	}
	if err := w.ops.Err(); err != nil {
		return err
	}
	if err := w.crew.quantize(ctx, w, rs); err != nil {
		return err
	}
	for _, r := range rs {
		w.forget(r)
	}
	return nil
}

// forget gives the memory of statistics back.
func (w *walker) forget(r *readers) {
	for _, s := range r.sums {
		w.ops.Free(s.h, s.d)
	}
	r.sums = nil
	if r.stats != nil {
		w.ops.Free(r.stats.H, r.stats.D)
		r.stats = nil
	}
}

// takeMost is how many layers of a block are read beside each other.
const takeMost = 4

// takeAhead reads the layers of readings beside each other, where they are few.
func (w *walker) takeAhead(rs []*readers) {
	var all []*arch.Stored
	for _, r := range rs {
		for _, l := range r.layers {
			if _, had := w.quantized.last[l.Stored]; !had && !slices.Contains(all, l.Stored) {
				all = append(all, l.Stored)
			}
		}
	}
	if len(all) > takeMost {
		return
	}
	w.taken = make(map[*arch.Stored]func() (rows, error))
	for _, s := range all {
		take := sync.OnceValues(func() (rows, error) { return w.read(s) })
		go take()
		w.taken[s] = take
	}
}

// take takes a layer of the quantized model.
func (w *walker) take(s *arch.Stored) (rows, error) {
	if take, ok := w.taken[s]; ok {
		delete(w.taken, s)
		return take()
	}
	return w.read(s)
}

// read reads a layer of the quantized model.
func (w *walker) read(s *arch.Stored) (rows, error) {
	m, err := w.visitor.Weight(s.Path)
	switch {
	case err != nil:
		return rows{}, err
	case m == nil:
		return stored(w.full.src, s)
	}
	n, k := m.Shape()
	return rows{packed: m}, wantShape(w.full.src, s, n, k)
}
