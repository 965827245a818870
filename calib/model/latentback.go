package model

import "github.com/lutq/lutq/formats/arch"

var _ learner = (*latent)(nil)

// latentWay is what the way back needs of a window of latent attention, and gradients on it.
type latentWay struct {
	latentRows
	k, v, o     Array // [t, heads, dim], what is attended to, and what comes of it, with what stands before values
	lse         Array // floats [heads, t]
	do, dq      Array // as o
	dk, dv      Array
	dmade       Array // [t, heads, keys and values], of what Up makes
	dlatents    Array // [t, rank]
	dkeys       Array // [t, rope dim]
	ddown       Array // [t, width]
	dlow, dlow0 Array // [t, queries' rank]
}

// latentTrainRoom is what a token takes of [latentWay], and what Up makes of it.
func latentTrainRoom(d *arch.Latent) int {
	low := 0
	if d.QDown != nil {
		low = d.QDown.N
	}
	rows := d.Heads*d.Dim() + 2*d.Width() + d.Rank + 2*low
	return rows + 7*d.Heads*d.Dim() + 2*d.Heads*(d.KeyDim+d.ValueDim) + 2*d.Width() + 2*low
}

// way hands out the room, to what follows the same each time.
func (t *latent) way(b *backward) (w latentWay, left taker) {
	d, room, low := t.desc, taker{b.more}, 0
	if d.QDown != nil {
		low = d.QDown.N
	}
	w.latentRows = t.rows(&room, b.a.t, true)
	for _, p := range []struct {
		to    *Array
		width int
	}{
		{&w.k, d.Heads * d.Dim()},
		{&w.v, d.Heads * d.Dim()},
		{&w.o, d.Heads * d.Dim()},
		{&w.do, d.Heads * d.Dim()},
		{&w.dq, d.Heads * d.Dim()},
		{&w.dk, d.Heads * d.Dim()},
		{&w.dv, d.Heads * d.Dim()},
		{&w.dmade, d.Heads * (d.KeyDim + d.ValueDim)},
		{&w.dlatents, d.Rank},
		{&w.dkeys, d.RopeDim},
		{&w.ddown, d.Width()},
		{&w.dlow, low},
		{&w.dlow0, low},
	} {
		*p.to = room.take(b.a.t * p.width)
	}
	w.lse = b.lse.Slice(0, b.a.t*d.Heads)
	return w, room
}

// again implements [learner].
func (t *latent) again(b *backward) Array {
	w, room := t.way(b)
	rows := b.a.t
	t.first(b.m, w.latentRows, b.a.n, rows, angles{t.rope.cos, t.rope.sin}, t.lastStage())
	t.spread(b.m, w.k, w.v, room.take(rows*width(t.up.w)), w.latentRows, rows)
	b.ops.Attention(w.o, w.lse, w.q, w.k, w.v, t.shape(rows))
	y := b.o.Slice(0, rows*t.desc.Heads*t.desc.ValueDim)
	t.values(b.m, y, w.o, rows)
	return y
}

// back implements [learner].
func (t *latent) back(b *backward, dy Array, more bool) {
	w, _ := t.way(b)
	d, m, ops, rows := t.desc, b.m, b.ops, b.a.t
	dim, both, before := d.Dim(), d.KeyDim+d.ValueDim, d.Dim()-d.ValueDim
	narrow := rows * d.Heads * d.ValueDim
	y, dvalues := b.o.Slice(0, narrow), b.do.Slice(0, narrow)
	b.scales(&t.o, dy, y, rows)
	ops.LinearBack(dvalues, dy, rows, t.o.w, false)
	heads := func(width, toHead, fromHead int) HeadsShape {
		return HeadsShape{Rows: rows, Heads: d.Heads, Width: width, ToRow: d.Heads * toHead, ToHead: toHead, FromRow: d.Heads * fromHead, FromHead: fromHead}
	}
	ops.Zero(w.do) // of what stands before values
	ops.CopyHeads(w.do.Slice(before, w.do.Len()), dvalues, heads(d.ValueDim, dim, d.ValueDim))
	ops.AttentionBack(w.dq, w.dk, w.dv, w.do, w.o, w.lse, w.q, w.k, w.v, t.shape(rows))

	ops.CopyHeads(w.dmade, w.dk, heads(d.KeyDim, both, dim))
	ops.CopyHeads(w.dmade.Slice(d.KeyDim, w.dmade.Len()), w.dv.Slice(before, w.dv.Len()), heads(d.ValueDim, both, dim))
	ops.SumHeads(w.dkeys, w.dk.Slice(d.KeyDim, w.dk.Len()), HeadsShape{
		Rows: rows, Heads: d.Heads, Width: d.RopeDim, ToRow: d.RopeDim, FromRow: d.Heads * dim, FromHead: dim,
	})
	t.turn(m, w.dq, w.dkeys, rows, angles{t.rope.cos, t.rope.sin}, true)
	b.scales(&t.up, w.dmade, w.latents, rows)
	ops.LinearBack(w.dlatents, w.dmade, rows, t.up.w, false)
	ops.RMSNormBack(w.latents, w.dlatents, w.latents0, t.kvNorm, rows, d.KVNorm.Eps, false)
	one := HeadsShape{Rows: rows, Heads: 1, Width: d.Rank, ToRow: d.Width(), FromRow: d.Rank}
	ops.CopyHeads(w.ddown, w.latents, one)
	one.Width, one.FromRow = d.RopeDim, d.RopeDim
	ops.CopyHeads(w.ddown.Slice(d.Rank, w.ddown.Len()), w.dkeys, one)
	b.scales(&t.down, w.ddown, b.a.n, rows)

	q, dq := &t.q, w.dq
	if d.Q == nil {
		b.scales(&t.qUp, dq, w.low, rows)
		ops.LinearBack(w.dlow, dq, rows, t.qUp.w, false)
		ops.RMSNormBack(w.dlow0, w.dlow, w.low0, t.qNorm, rows, d.QNorm.Eps, false)
		q, dq = &t.qDown, w.dlow0
	}
	b.scales(q, dq, b.a.n, rows)
	if more {
		ops.LinearBack(b.dn, dq, rows, q.w, false)
		ops.LinearBack(b.dn, w.ddown, rows, t.down.w, true)
	}
}
