package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// WalkOptions say how to [Walk].
type WalkOptions struct {
	Windows [][]int // of tokens
	// Original runs the windows through the original model as well, which [Stats].D takes.
	Original bool
	// Progress is told of the work done, of all that there is; may be nil.
	Progress func(done, all int)
}

// Visitor quantizes layers as a walk comes by. Layers are named by the path that they are stored under.
type Visitor interface {
	// Wants reports whether a layer is to be quantized by statistics.
	Wants(path string) bool
	// Quantize quantizes layers that read the same, by statistics of that. A stack of experts
	// comes alone, with statistics for each expert, and any other layers with one. They are gone when
	// Quantize returns.
	Quantize(ctx context.Context, paths []string, stats []rounding.Stats) error
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
// ends with the last layer that v wants.
func Walk(ctx context.Context, src Source, ops StatsOps, v Visitor, o WalkOptions) error {
	d := src.Decoder()
	w := &walker{
		Model: &Model{name: src.Name(), desc: d, ops: ops}, stats: ops, visitor: v, o: o, ropeOf: ropes(d),
	}
	for _, r := range w.ropeOf {
		w.ropes = append(w.ropes, r)
	}
	blocks := w.wantedBlocks()
	ahead := newAhead(src, w.originals(blocks))
	defer ahead.wait()
	w.full = loader{src: src, take: ahead.take, ops: ops, own: &w.block}
	w.quantized = w.full
	w.quantized.take = w.take
	defer w.close()
	if err := w.walk(ctx, blocks); err != nil {
		return err
	}
	return src.Wait()
}

// walker is a walk. Its model has no blocks of its own.
type walker struct {
	*Model
	stats   StatsOps
	visitor Visitor
	o       WalkOptions
	ropeOf  map[*arch.Rope]*rope

	streams []*stream // of the quantized model, and of the original one if that is run

	// Of the block at hand:
	full, quantized loader
	block           owned
	slots           map[*arch.Linear]*linear // of the quantized block

	window int      // at hand
	routes []routes // of every window, where there are experts
	routed []int    // tokens of each expert, in all windows

	done, all int
}

// stream is what the windows are in one of the models.
type stream struct {
	layer layer       // the block at hand
	h, q  []Array     // of every window, see [activations]
	side  []beside    // likewise
	room  activations // for the rest
}

// readers are layers that read the same.
type readers struct {
	layers []*arch.Linear
	stats  *Stats // while they are taken
}

// passes is how often the windows pass through a part of a block: once for each stage of its mixer, and thrice for its MLP.
// And what the block is told takes two.
func passes(b *arch.Block) int {
	n := len(b.Mixer.Stages()) + 3
	if b.MoE != nil { // which are chosen first
		n++
	}
	if b.Told != nil {
		n += 2
	}
	return n
}

func (w *walker) walk(ctx context.Context, blocks int) error {
	for i, tokens := range w.o.Windows {
		if err := w.check(tokens); err != nil {
			return fmt.Errorf("window %d: %w", i, err)
		}
	}
	if blocks == 0 {
		return nil
	}
	for i := range blocks {
		w.all += passes(&w.desc.Blocks[i]) * len(w.o.Windows)
	}
	if err := w.embed(); err != nil {
		return err
	}
	for i := range w.desc.Blocks[:blocks] {
		if err := w.through(ctx, i); err != nil {
			return err
		}
	}
	if w.wantsHead() {
		return w.visitHead(ctx)
	}
	return nil
}

// wantedBlocks is how many blocks there are up to the last whose layers want statistics.
func (w *walker) wantedBlocks() int {
	if w.wantsHead() {
		return len(w.desc.Blocks)
	}
	for i := len(w.desc.Blocks); i > 0; i-- {
		if slices.ContainsFunc(w.desc.Blocks[i-1].Linears(), w.wants) {
			return i
		}
	}
	return 0
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

func (w *walker) wants(l *arch.Linear) bool { return w.visitor.Wants(l.Stored.Path) }

func (w *walker) wantsHead() bool { return !w.desc.Tied && w.wants(w.desc.Head) }

// embed embeds the windows.
func (w *walker) embed() error {
	longest := 0
	for _, tokens := range w.o.Windows {
		longest = max(longest, len(tokens))
	}
	w.full.last = make(map[*arch.Stored]rows)
	stored := w.full.embedding(w.desc)
	w.Model.embed = w.full.weight(stored, 0, whole(stored))
	w.tokens = w.full.tokenInputs(w.desc)
	defer w.release()
	if w.full.err != nil {
		return w.full.err
	}
	count := 1
	if w.o.Original {
		count = 2
	}
	width := widthsOf(w.desc).q
	for range count {
		s := &stream{room: w.newActivations(longest)}
		w.streams = append(w.streams, s)
		for _, tokens := range w.o.Windows {
			h := w.ops.Floats(len(tokens) * w.desc.Hidden)
			s.h, s.q = append(s.h, h), append(s.q, w.ops.Acts(len(tokens)*width))
			side := w.newBeside(len(tokens))
			s.side = append(s.side, side)
			a := s.room
			a.h, a.beside = h, side
			w.enter(w.first(a, len(tokens)), tokens)
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
	for _, old := range w.block.weights {
		w.ops.FreeWeight(old)
	}
	w.ops.Free(w.block.arrays...)
	w.block = owned{}
	w.full.last, w.quantized.last, w.routes = nil, nil, nil
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
	}
	w.Close()
}

// through takes the windows through block i.
func (w *walker) through(ctx context.Context, i int) error {
	defer w.release()
	if err := w.load(i); err != nil {
		return err
	}
	b := &w.desc.Blocks[i]
	var mlpIn, mid []*readers
	for _, m := range b.MLPs() {
		mlpIn, mid = append(mlpIn, readersOf(m.Gate, m.Up)), append(mid, readersOf(m.Down))
	}

	stages := b.Mixer.Stages()
	for stage, layers := range stages {
		rs, last := readersOf(layers...), stage == len(stages)-1
		err := w.visit(ctx, last, func(at []activations) { // what the last one reads stays
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
			w.mixed(a, &w.streams[s].layer, first(a.q, a.t*stages[len(stages)-1][0].K))
		}
	}
	if b.MoE != nil {
		err := w.pass(ctx, func(_ int, at []activations) error {
			mix(at)
			w.mlpIn(at[0], &w.streams[0].layer)
			w.choose(at[0])
			return nil
		})
		if err != nil {
			return err
		}
		w.feedStarved(b.MoE)
	}
	err := w.visit(ctx, true, func(at []activations) {
		if b.MoE == nil {
			mix(at)
		}
		for s, a := range at {
			w.mlpIn(a, &w.streams[s].layer)
		}
		w.eachMLP(at, mlpIn, func(m int, in []Array) { w.tap(mlpIn[m], in...) })
	}, mlpIn...)
	if err != nil {
		return err
	}
	err = w.visit(ctx, false, func(at []activations) {
		for s, a := range at {
			w.mlpIn(a, &w.streams[s].layer)
		}
		w.eachMLP(at, mid, func(m int, in []Array) { w.tapGated(mid[m], at, m, in) })
	}, mid...)
	if err != nil {
		return err
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
	return w.pass(ctx, func(window int, at []activations) error {
		for s, a := range at {
			end(a, &w.streams[s].layer)
			if token := w.ops.NotFinite(a.h, a.t, w.desc.Hidden); token >= 0 {
				return fmt.Errorf("%s: the hidden state of token %d of window %d is %w after layer %d", w.name, token, window, ErrNotFinite, i)
			}
		}
		return nil
	})
}

// visitTold ends with the MLP half of the block at hand, and visits the layers of what it is told.
func (w *walker) visitTold(ctx context.Context, t *arch.Told) error {
	gate, proj := readersOf(t.Gate), readersOf(t.Proj)
	err := w.visit(ctx, true, func(at []activations) {
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
	return w.visit(ctx, false, func(at []activations) {
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
	w.all += len(w.o.Windows)
	err := w.pass(ctx, func(_ int, at []activations) error {
		for _, a := range at {
			w.Model.states(a)
		}
		w.tap(head, inStreams(at, states)...)
		return nil
	})
	if err != nil {
		return err
	}
	return w.quantize(ctx, []*readers{head})
}

// pass calls f for every window, with its activations in every stream.
func (w *walker) pass(ctx context.Context, f func(window int, at []activations) error) error {
	for i, tokens := range w.o.Windows {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.window = i
		w.extend(len(tokens))
		at := make([]activations, len(w.streams))
		for s, stream := range w.streams {
			a := stream.room
			a.h, a.q, a.beside = stream.h[i], stream.q[i], stream.side[i]
			at[s] = w.first(a, len(tokens))
		}
		if err := f(i, at); err != nil {
			return err
		}
		w.progress(1)
	}
	return w.ops.Err()
}

func (w *walker) progress(windows int) {
	w.done += windows
	if w.o.Progress != nil {
		w.o.Progress(w.done, w.all)
	}
}

// visit passes the windows through f, which taps what some layers read, has those layers quantized and
// puts them in place. A pass that is not always needed is left out where none of them wants statistics.
func (w *walker) visit(ctx context.Context, always bool, f func(at []activations), rs ...*readers) error {
	for _, r := range rs {
		w.begin(r)
		defer w.forget(r)
	}
	if always || slices.ContainsFunc(rs, counts) {
		err := w.pass(ctx, func(_ int, at []activations) error {
			f(at)
			return nil
		})
		if err != nil {
			return err
		}
	} else {
		w.progress(len(w.o.Windows))
	}
	if err := w.quantize(ctx, rs); err != nil {
		return err
	}
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
	k := r.layers[0].K
	r.stats = &Stats{ops: w.ops, k: k, routed: -1, H: w.ops.Floats(k * k)}
	if w.o.Original {
		r.stats.D = w.ops.Floats(k * k)
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
	rows := x[0].Len() / r.stats.k
	r.stats.tokens += rows
	w.stats.Gram(r.stats.H, x[0], rows)
	if len(x) > 1 {
		w.stats.Cross(r.stats.D, x[1], x[0], rows)
	}
}

// tapGated is tap for what the last layer of MLP m reads, given what its first ones do.
func (w *walker) tapGated(r *readers, at []activations, m int, in []Array) {
	rows, most := in[0].Len()/w.desc.Hidden, w.mlpRows(at[0].t)
	for from := 0; from < rows; from += most {
		to := min(from+most, rows)
		var x []Array
		for s, a := range at {
			x = append(x, w.gated(rowsOf(in[s], rows, from, to), a, w.streams[s].layer.mlps()[m], to-from))
		}
		w.tap(r, x...)
	}
}

// eachMLP calls f for each MLP of the block at hand whose reading has statistics, with what it reads in
// every stream. An expert's are those that the quantized model routes to it.
func (w *walker) eachMLP(at []activations, rs []*readers, f func(m int, in []Array)) {
	moe := w.streams[0].layer.moe
	if !slices.ContainsFunc(rs, counts) {
		return
	}
	if moe == nil {
		f(0, inStreams(at, states))
		return
	}
	hidden, gathered := w.desc.Hidden, make([]Array, len(at))
	for s, a := range at {
		gathered[s] = w.ops.Acts(a.t * hidden)
	}
	defer w.ops.Free(gathered...)
	for e, tokens := range w.routes[w.window].tokens {
		if rs[e].stats == nil {
			continue
		}
		rs[e].stats.routed = w.routed[e]
		if len(tokens) == 0 {
			continue
		}
		var weights []float32
		if probs := w.routes[w.window].probs; probs != nil {
			for _, t := range tokens {
				weights = append(weights, probs[t*len(moe.experts)+e])
			}
		}
		in := make([]Array, len(at))
		for s, a := range at {
			in[s] = gathered[s].Slice(0, len(tokens)*hidden)
			w.ops.Gather(in[s], a.n, tokens, weights)
		}
		f(e, in)
	}
	if shared := len(moe.experts); shared < len(rs) && rs[shared].stats != nil {
		in := make([]Array, len(at))
		for s, a := range at {
			in[s] = w.sharedIn(a, moe, gathered[s])
		}
		f(shared, in)
	}
}

// routes are the tokens of a window that go to each expert, and those that would if twice as many were chosen.
type routes struct {
	tokens, next [][]int
	probs        []float32 // [t, experts], what an expert's input is multiplied by; nil: nothing
}

// choose notes where the tokens of the window at hand go.
func (w *walker) choose(a activations) {
	r := w.chosen(a, w.streams[0].layer.moe)
	of := routes{tokens: r.tokens, next: r.next}
	if d := w.streams[0].layer.moe.desc; d.Routing.OnInput {
		of.probs = make([]float32, len(r.probs))
		for i, p := range r.probs {
			of.probs[i] = float32(d.Routing.Factor() * p)
		}
	}
	w.routes = append(w.routes, of)
}

// feedStarved counts the tokens of experts. Those that have fewer than a layer of theirs has inputs, which say too little of it,
// get the tokens as well that would be theirs if twice as many were chosen; and where these are too few, all. NOTES.md of
// package gptq has what that gains.
func (w *walker) feedStarved(d *arch.MoE) {
	w.routed = make([]int, len(d.Experts))
	wider := make([]int, len(d.Experts))
	for _, r := range w.routes {
		for e, tokens := range r.tokens {
			w.routed[e] += len(tokens)
			wider[e] += len(tokens) + len(r.next[e])
		}
	}
	for e := range d.Experts {
		inputs := max(d.Experts[e].Gate.K, d.Experts[e].Down.K)
		if w.routed[e] >= inputs {
			continue
		}
		for i, r := range w.routes {
			if wider[e] < inputs {
				r.tokens[e] = all(len(w.o.Windows[i]))
				continue
			}
			r.tokens[e] = append(r.tokens[e], r.next[e]...)
			slices.Sort(r.tokens[e])
		}
	}
}

// quantize has the layers of readings quantized, those of one stack together.
func (w *walker) quantize(ctx context.Context, rs []*readers) error {
	for len(rs) > 0 {
		n := 1
		if s := rs[0].layers[0].Stored; s.Experts > 0 {
			n = s.Experts
		}
		var paths []string
		for _, l := range rs[0].layers {
			if w.wants(l) && !slices.Contains(paths, l.Stored.Path) {
				paths = append(paths, l.Stored.Path)
			}
		}
		if len(paths) > 0 {
			var stats []rounding.Stats
			for _, r := range rs[:n] {
				w.stats.Mirror(r.stats.H, r.stats.k)
				stats = append(stats, r.stats.handed())
			}
			if err := w.ops.Err(); err != nil {
				return err
			}
			if err := w.visitor.Quantize(ctx, paths, stats); err != nil {
				return err
			}
		}
		for _, r := range rs[:n] {
			w.forget(r)
		}
		rs = rs[n:]
	}
	return nil
}

// forget gives the memory of statistics back.
func (w *walker) forget(r *readers) {
	if r.stats != nil {
		w.ops.Free(r.stats.H, r.stats.D)
		r.stats = nil
	}
}

// take reads a layer of the quantized model.
func (w *walker) take(s *arch.Stored) (rows, error) {
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
