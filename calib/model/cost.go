package model

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
)

// widths are the most columns of a decoder's activations, and query heads, in any layer.
type widths struct{ q, kv, dim, heads, mlp int }

func widthsOf(d *arch.Decoder) widths {
	var w widths
	for i := range d.Blocks {
		b := &d.Blocks[i]
		if stages := b.Mixer.Stages(); len(stages) > 0 {
			w.q = max(w.q, stages[len(stages)-1][0].K)
		}
		switch a := b.Mixer.(type) {
		case *arch.Attention:
			w.kv, w.dim, w.heads = max(w.kv, a.KVHeads*a.Dim), max(w.dim, a.Dim), max(w.heads, a.Heads)
		case *arch.Latent:
			w.heads = max(w.heads, a.Heads)
		}
		for _, m := range b.MLPs() {
			w.mlp = max(w.mlp, m.Gate.N)
		}
	}
	return w
}

// HostMLPRows is how many tokens pass through an MLP at a time on the processors of the host: enough
// rows to decode packed weights seldom, few enough for the wide activations to stay in cache.
const HostMLPRows = 512

// GradientBytes returns about how many bytes the arrays of [Model.Gradient] take
// on the CPU for windows of t tokens, weights left out. A teacher has activations
// and logits of its own.
func GradientBytes(d *arch.Decoder, t int, teacher bool) int64 {
	w := widthsOf(d)
	hidden, q, kv, inter, vocab := int64(d.Hidden), int64(w.q), int64(w.kv), int64(w.mlp), int64(d.Vocab)
	models := int64(1)
	logits := int64(3) // with their gradient, and that packed for the head's product
	if teacher {
		models, logits = 2, 4
	}
	forward := int64(t)*(2*hidden+q+2*kv+int64(roomOf(d).acts)) + int64(min(t, HostMLPRows))*2*inter
	back := int64(t) * (4*hidden + 3*q + 2*kv + 4*inter + int64(len(d.Blocks))*hidden + int64(w.heads) + int64(trainRoom(d)+2*besideWidth(d)))
	if d.Blocks[0].MoE != nil || d.Blocks[0].AttnOut != nil {
		forward += int64(t) * 2 * hidden
		back += int64(t) * 4 * hidden
	}
	rows := min(int64(t), max(lossBytes/4/vocab, 1))
	return 4 * (models*forward + back + logits*rows*vocab)
}

// LossWork returns the multiplications, each with an addition, that
// [Model.Loss] takes for a window of t tokens, and GradientWork those of
// [Model.Gradient]: forward again, and the two products of a layer's gradient.
func LossWork(d *arch.Decoder, t int, teacher bool) float64 {
	linear, attention := work(d, t)
	head := float64(t) * float64(d.Vocab) * float64(d.Hidden)
	if teacher {
		return 2 * (linear + attention + head)
	}
	return linear + attention + head
}

// GradientWork is described at [LossWork].
func GradientWork(d *arch.Decoder, t int, teacher bool) float64 {
	linear, attention := work(d, t)
	head := float64(t) * float64(d.Vocab) * float64(d.Hidden)
	return LossWork(d, t, teacher) + 3*linear + 3.5*attention + head
}

// work returns the multiplications of a forward pass through the layers.
func work(d *arch.Decoder, t int) (linear, attention float64) {
	size := func(l *arch.Linear) float64 { return float64(l.N) * float64(l.K) }
	for i := range d.Blocks {
		b := &d.Blocks[i]
		var perToken float64
		for _, stage := range b.Mixer.Stages() {
			for _, l := range stage {
				perToken += size(l)
			}
		}
		for _, m := range b.MLPs() {
			for _, l := range m.Linears() {
				perToken += size(l)
			}
		}
		if b.MoE != nil && b.MoE.Into != nil {
			perToken += size(b.MoE.Into) + size(b.MoE.Back)
		}
		if b.MoE != nil { // a token passes some of the experts only
			for i := b.MoE.Top; i < len(b.MoE.Experts); i++ {
				for _, l := range b.MoE.Experts[i].Linears() {
					perToken -= size(l)
				}
			}
		}
		if b.Told != nil {
			perToken += size(b.Told.Gate) + size(b.Told.Proj) + size(d.Tokens.Project)/float64(len(d.Blocks))
		}
		linear += float64(t) * perToken
		// A token sees half of the window on average, for scores and for values.
		switch a := b.Mixer.(type) {
		case *arch.Attention:
			attention += float64(a.Heads) * float64(a.Dim) * float64(t) * float64(t)
		case *arch.Latent:
			attention += float64(a.Heads) * float64(a.Dim()) * float64(t) * float64(t)
		}
	}
	return linear, attention
}

// Speed returns the multiplications of a device in a second, which it times at a product
// of the model's own width with so many rows, or with more for at least so many multiplications.
func Speed(ops Ops, d *arch.Decoder, rows, least int) (float64, error) {
	wide := d.Head
	for i := len(d.Blocks) - 1; i >= 0; i-- {
		if all := d.Blocks[i].MLPs(); len(all) > 0 {
			wide = all[0].Gate
		}
	}
	n, k := wide.N, wide.K
	if n < 1 || k < 1 || rows < 1 {
		return 0, errors.New("a model without a width")
	}
	const most = 1 << 15
	rows = max(rows, min(least/(n*k), most))
	w, err := ops.Dense(n, k, hf.BF16, make([]byte, 2*n*k))
	if err != nil {
		return 0, err
	}
	x, y := ops.Acts(rows*k), ops.Acts(rows*n)
	defer func() {
		ops.Free(x, y)
		ops.FreeWeight(w)
	}()
	var best time.Duration
	for i := range 8 { // the first may compile a kernel, and others be slowed down by other work
		begin := time.Now()
		ops.Linear(x, rows, Product{Y: y, W: w})
		if err := ops.Err(); err != nil {
			return 0, err
		}
		if took := time.Since(begin); i == 0 || took < best {
			best = took
		}
	}
	return float64(n) * float64(k) * float64(rows) / max(best.Seconds(), 1e-9), nil
}

// WalkWork returns the multiplications of [Walk].
func WalkWork(d *arch.Decoder, o WalkOptions) float64 {
	streams, products := 1., .5 // a Hessian is symmetric
	if o.Original {
		streams, products = 2, 1.5
	}
	var squares float64 // of the inputs of a token
	for i := range d.Blocks {
		b := &d.Blocks[i]
		for _, stage := range b.Mixer.Stages() {
			squares += square(stage[0].K)
		}
		if b.MoE != nil && b.MoE.Into != nil {
			squares += square(b.MoE.Into.K) + square(b.MoE.Back.K)
		}
		for j, m := range b.MLPs() {
			if b.MoE == nil || j < b.MoE.Top || j >= len(b.MoE.Experts) {
				squares += square(m.Gate.K) + square(m.Down.K)
			}
		}
		if b.Told != nil {
			squares += square(b.Told.Gate.K) + square(b.Told.Proj.K)
		}
	}
	// Queries, keys and values are computed twice on the way, gates and what they are
	// multiplied by too, unless the model stays as it is.
	again := 1.8
	if !slices.ContainsFunc(d.Blocks, func(b arch.Block) bool { return !fedAtOnce(&b, o) }) {
		again = 1
	}
	var all float64
	for _, w := range o.Windows {
		linear, attention := work(d, len(w))
		all += streams*(again*linear+attention) + products*float64(len(w))*squares
	}
	return all
}

// WalkLaunches returns about how many operations [Walk] asks a device for.
func WalkLaunches(d *arch.Decoder, o WalkOptions) (n float64) {
	streams := 1.
	if o.Original {
		streams = 2
	}
	tokens, longest := tokensOf(o)
	spans := math.Ceil(float64(tokens) / float64(max(int64(o.Together), longest, 1)))
	for i := range d.Blocks {
		b := &d.Blocks[i]
		passes, mlps := float64(len(b.Mixer.Stages())+3), float64(len(b.MLPs()))
		n += float64(len(o.Windows)) * passes * 5 * streams
		if b.MoE != nil {
			n += spans * mlps * (15*streams + 6) // rows gathered thrice, three products twice, and sums
		}
	}
	return n
}

func square(k int) float64 { return float64(k) * float64(k) }

// WalkMemory returns about how many bytes of the host [Walk] takes on some devices of a kind, what quantizes
// layers by the Hessian included, which on a GPU stays there.
func WalkMemory(src Source, o WalkOptions, device string, devices int) int64 {
	d := src.Decoder()
	w := widthsOf(d)
	streams, sums := int64(1), int64(1)
	if o.Original {
		streams, sums = 2, 2
	}
	var block, stats, largest, read int64 // bytes of weights; sums of a block at once; sums of a layer; what is read of a block at once
	for i := range d.Blocks {
		b := &d.Blocks[i]
		largest = max(largest, mostSquares(b.Linears()))
		all, kept, most := storedIn(src, b)
		block = max(block, all)
		read = max(read, kept+min(all-kept, max(most, int64(readAhead*float64(all)/float64(max(weightsIn(b), 1))))))
		for _, g := range expertGroups(b, o) {
			var of int64
			for _, m := range b.MLPs()[g.from:g.to] {
				of += max(int64(m.Gate.K)*int64(m.Gate.K), int64(m.Down.K)*int64(m.Down.K))
			}
			stats = max(stats, of)
		}
	}
	embedding := 2 * int64(d.Vocab) * int64(d.Hidden)
	if d.Tokens != nil {
		embedding += 2 * int64(d.Tokens.Embed.N) * int64(d.Tokens.Embed.K)
	}
	if device != "cpu" {
		return walkBytes + int64(uncollected*float64(int64(devices)*max(embedding, read))) // each reads for itself
	}
	// What is read of the statistics, H and its factor in float64, the factor's columns, and
	// what weights are shifted by.
	fitted := largest * (4*sums + 8 + 8 + 4*sums)
	tokens, longest := tokensOf(o)
	hidden, q, kv, inter := int64(d.Hidden), int64(w.q), int64(w.kv), int64(w.mlp)
	states := 4 * streams * (tokens*(hidden+q+int64(besideWidth(d))) + longest*(3*hidden+2*q+2*kv) + min(longest, HostMLPRows)*2*inter)
	return walkBytes + int64(uncollected*float64(states+max(embedding, (streams+1)*block+4*sums*(stats+largest)+fitted)))
}

// WalkDeviceMemory returns about how many bytes of each of some GPUs [Walk] takes with activations in 16 bits, where layers become as large as
// share of what they are in 16 bits, and up to beside are prepared at a time, but no more than some bytes of them.
func WalkDeviceMemory(d *arch.Decoder, o WalkOptions, devices int, share float64, beside, prepared int64) int64 {
	w, room := widthsOf(d), roomOf(d)
	streams := int64(1)
	weights := share // of a weight, in units of 2 bytes
	if o.Original {
		streams, weights = 2, 1+share
	}
	// What some readers of k elements take: their sums, states as large as they, and as much again of four that are being made. Of
	// one that is no expert there are the sums of parts of the windows as well.
	fit := func(n, k int) int64 {
		one := 8 * int64(square(k))
		sums := int64(n)
		switch {
		case n == 1 && devices == 1:
			sums = 2
		case n == 1:
			sums = int64(sumParts/devices) + 2 // of the last, which adds all up
		}
		return sums*4*streams*int64(square(k)) + max(one, min(prepared, min(beside, int64(n))*one)) + min(4, int64(n))*one
	}
	var most int64 // of a block
	for i := range d.Blocks {
		b := &d.Blocks[i]
		var fitted int64
		for _, stage := range b.Mixer.Stages() {
			fitted = max(fitted, fit(1, stage[0].K))
		}
		for _, g := range expertGroups(b, o) {
			in, mid := 0, 0
			for _, m := range b.MLPs()[g.from:g.to] {
				in, mid = max(in, m.Gate.K), max(mid, m.Down.K)
			}
			fitted = max(fitted, fit(g.to-g.from, in), fit(g.to-g.from, mid))
		}
		most = max(most, int64(2*weights*float64(weightsIn(b)))+fitted)
	}
	tokens, longest := tokensOf(o)
	hidden, q, wide := int64(d.Hidden), int64(w.q), int64(0)
	if o.Together > 0 && slices.ContainsFunc(d.Blocks, goesTogether) {
		wide = int64(o.Together) * hidden * (2 + 2 + (2 + 4)) // inputs, those of an expert; what one reads and makes, of a stream
	}
	if devices > 1 {
		tokens = tokens/int64(devices) + longest
	}
	windows := streams * tokens * (4*hidden + 2*(q+int64(besideWidth(d))))
	rooms := streams*longest*(2*hidden+4*int64(w.kv)+4*int64(w.mlp)+2*int64(room.acts)+4*int64(room.floats)) + streams*wide
	return windows + rooms + max(most, 2*int64(d.Vocab)*hidden)
}

// tokensOf returns the tokens of all windows, and of the longest.
func tokensOf(o WalkOptions) (all, longest int64) {
	for _, t := range o.Windows {
		all, longest = all+int64(len(t)), max(longest, int64(len(t)))
	}
	return all, longest
}

// mostSquares returns the elements of the largest sum over what one of some layers reads.
func mostSquares(ls []*arch.Linear) (most int64) {
	for _, l := range ls {
		most = max(most, int64(l.K)*int64(l.K))
	}
	return most
}

// weightsIn is how many weights the layers of a block have.
func weightsIn(b *arch.Block) (n int) {
	for _, l := range b.Linears() {
		n += l.N * l.K
	}
	return n
}

// storedIn returns the bytes that a block's layers are stored in, those of them that are read in parts and so kept until the last,
// and those of the largest matrix or stack.
func storedIn(src Source, b *arch.Block) (all, kept, most int64) {
	seen := make(map[*arch.Stored]bool)
	for _, l := range b.Linears() {
		if seen[l.Stored] {
			continue
		}
		seen[l.Stored] = true
		n := storedBytes(src, l.Stored)
		all, most = all+n, max(most, n)
		if !l.Whole() {
			kept += n
		}
	}
	return all, kept, most
}

// What a walk takes on the host besides: the program with its texts, and what is freed but not
// yet collected.
const (
	walkBytes   = 24 << 20
	uncollected = 1.5
)

// storedBytes returns what a matrix or stack takes in a source.
func storedBytes(src Source, s *arch.Stored) int64 {
	if t, ok := src.Tensor(s.Tensor); ok {
		return t.Bytes()
	}
	return 0
}
