package model

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// LatentOps are the operations of latent attention over what is kept.
type LatentOps interface {
	Ops
	// ByHeads writes y[r, h, n] = Σ_k x[r, h, k]·w[h, n, k], each head by a matrix of its own: x, w and y are acts.
	ByHeads(y, x, w Array, s ByHeadsShape)
	// OneOrder reports whether the keys and the values of a cache lie in the same order, so that one array may be both where they are
	// the same.
	OneOrder() bool
}

// LatentKeeper is implemented by [LatentOps] of a device that begins operations late: it does at once what comes between two products.
type LatentKeeper interface {
	// KeepLatents keeps of rows of a step their latents after the norm, and the keys that heads share, turned: down [rows, c.Dim] has both. To
	// queries [rows, Heads, c.Dim] it writes behind Rank elements the last ones of q [rows, Heads, Dim], turned. All are acts but norm
	// [Rank], cos and sin [rows, Half], floats; what is kept is keys and values in one order.
	KeepLatents(queries, kept, q, down, norm, cos, sin Array, at Step, c CacheShape, s LatentShape)
}

// LatentShape are the sizes of what is kept: Rank elements, and 2·Half that turn, as the last ones of Heads of Dim do.
type LatentShape struct {
	Heads, Dim, Rank, Half int
	Adjacent               bool
	Eps                    float64
}

// ByHeadsShape are the sizes of products by heads: w is [Heads, N, K], and rows and heads of the others are as far apart as said.
type ByHeadsShape struct {
	Rows, Heads, N, K int
	ToRow, ToHead     int
	FromRow, FromHead int
}

// Spans returns how many elements they take of y, and of x.
func (s ByHeadsShape) Spans() (to, from int) {
	to, _ = HeadsShape{Rows: s.Rows, Heads: s.Heads, Width: s.N, ToRow: s.ToRow, ToHead: s.ToHead}.Spans()
	_, from = HeadsShape{Rows: s.Rows, Heads: s.Heads, Width: s.K, FromRow: s.FromRow, FromHead: s.FromHead}.Spans()
	return to, from
}

// latent implements [mixer] by latent attention. A window multiplies latents by Up. What is kept of a text are latents: where it goes on,
// scores q·(Up_k·c) are (Up_kᵀ·q)·c, and Up_v is of what latents are mixed to.
type latent struct {
	desc *arch.Latent
	ops  LatentOps
	rope *rope

	q, qDown, qUp, down, up, o linear // q is none where qDown is not, and the other way round
	qNorm, kvNorm              Array

	index  *indexer   // nil: all tokens are seen, or those that another has chosen
	sparse IndexedOps // nil: all are
}

// latent reads a latent attention but for its linear layers.
func (l *loader) latent(from *arch.Latent) *latent {
	ops, ok := l.ops.(LatentOps)
	if !ok {
		l.fail(fmt.Errorf("%s: latent attention does not run on %s", l.src.Name(), l.ops.Name()))
		return nil
	}
	t := &latent{desc: from, ops: ops, kvNorm: l.norm(&from.KVNorm, from.Rank)}
	if from.QNorm != nil {
		t.qNorm = l.norm(from.QNorm, from.QUp.K)
	}
	t.index, t.sparse = l.indexer(from)
	return t
}

func (t *latent) linears() []*linear {
	if t.desc.Q != nil {
		return []*linear{&t.q, &t.down, &t.up, &t.o}
	}
	return []*linear{&t.qDown, &t.down, &t.qUp, &t.up, &t.o}
}

func (t *latent) clone() mixer {
	c := *t
	if t.index != nil {
		own := *t.index
		c.index = &own
	}
	return &c
}

func (t *latent) bind(ropes map[*arch.Rope]*rope) {
	t.rope = ropes[t.desc.Rope]
	if t.index != nil {
		t.index.rope = ropes[t.desc.Index.Rope]
	}
}

func (t *latent) in() []Weight {
	ws := []Weight{t.linears()[0].w, t.down.w}
	if t.index != nil {
		ws = append(ws, t.index.k.w, t.index.weights.w)
	}
	return ws
}

// latentRoom is what a token takes on the way: queries, what Down makes and what is kept, then either keys, values and what Up makes, or
// queries for latents.
func latentRoom(d *arch.Latent) tokenRoom {
	first := d.Heads*d.Dim() + 2*d.Width()
	if d.QDown != nil {
		first += d.QDown.N
	}
	r := indexRoom(d.Index)
	r.acts += first + d.Width() + d.Heads*max(2*d.Dim()+d.KeyDim+d.ValueDim, d.Width())
	return r
}

// reads computes as much as a stage needs.
func (t *latent) reads(m *Model, a activations, x Array, stage int) Array {
	if stage == 0 {
		return x
	}
	room := taker{a.more}
	r := t.rows(&room, a.t, false)
	t.first(m, r, x, a.t, angles{t.rope.cos, t.rope.sin}, stage)
	switch last := t.lastStage(); {
	case stage == last-2: // QUp's
		return r.low
	case stage == last-1: // Up's
		return r.latents
	}
	var key Array
	if t.index != nil && a.t > t.desc.Top() {
		key = t.index.key(m, &room, x, a.t, angles{t.index.rope.cos, t.index.rope.sin})
	}
	return t.window(m, a, &room, r, x, key)
}

// latentRows are rows on their way to an attention. What is as it was before its norm lies where that is where it need not be kept.
type latentRows struct {
	low0, low         Array // [rows, queries' rank], before and after their norm; empty: none
	q                 Array // [rows, heads, dim]
	down              Array // [rows, width]
	latents0, latents Array // [rows, rank]
	keys              Array // [rows, rope dim], which heads share
}

// rows takes room for them.
func (t *latent) rows(room *taker, rows int, kept bool) (r latentRows) {
	d := t.desc
	r.q, r.down, r.latents, r.keys = room.take(rows*d.Heads*d.Dim()), room.take(rows*d.Width()), room.take(rows*d.Rank), room.take(rows*d.RopeDim)
	r.latents0 = r.latents
	if kept {
		r.latents0 = room.take(rows * d.Rank)
	}
	if d.QDown == nil {
		return r
	}
	r.low = room.take(rows * d.QDown.N)
	r.low0 = r.low
	if kept {
		r.low0 = room.take(rows * d.QDown.N)
	}
	return r
}

// window attends to the keys and values of a text from its beginning, which Up makes. x and key are for an indexer, and not read where all
// tokens are seen.
func (t *latent) window(m *Model, a activations, room *taker, r latentRows, x, key Array) Array {
	d, rows := t.desc, a.t
	wide := rows * d.Heads * d.Dim()
	k, v := room.take(wide), room.take(wide)
	t.spread(m, k, v, room.take(rows*width(t.up.w)), r, rows)
	if top := d.Top(); top > 0 && rows > top {
		at, chosen := Step{Runs: []Run{{Rows: rows}}}, a.chosen.Slice(0, rows*top)
		if t.index != nil {
			t.index.choose(m, a, room, chosen, x, r.low, key, angles{t.index.rope.cos, t.index.rope.sin}, at, rows)
		}
		t.sparse.RecallChosen(r.q, r.q, k, v, chosen, at, rows, t.shape(rows))
	} else {
		m.ops.Attention(r.q, nil, r.q, k, v, t.shape(rows))
	}
	y := a.q.Slice(0, rows*d.Heads*d.ValueDim)
	t.values(m, y, r.q, rows)
	return y
}

// shape is that of an attention to what Up makes.
func (t *latent) shape(rows int) AttentionShape {
	d := t.desc
	return AttentionShape{T: rows, Heads: d.Heads, KVHeads: d.Heads, Dim: d.Dim(), Scale: float32(d.Scale)}
}

// spread makes keys and values of latents. Values are as wide as keys for the attention: what stands before them in a row is mixed too,
// and nobody reads that.
func (t *latent) spread(m *Model, k, v, made Array, r latentRows, rows int) {
	d := t.desc
	dim, both := d.Dim(), d.KeyDim+d.ValueDim
	heads := func(width, fromRow, fromHead int) HeadsShape {
		return HeadsShape{Rows: rows, Heads: d.Heads, Width: width, ToRow: d.Heads * dim, ToHead: dim, FromRow: fromRow, FromHead: fromHead}
	}
	m.ops.Linear(r.latents, rows, t.up.to(made))
	m.ops.CopyHeads(k, made, heads(d.KeyDim, d.Heads*both, both))
	m.ops.CopyHeads(k.Slice(d.KeyDim, k.Len()), r.keys, heads(d.RopeDim, d.RopeDim, 0))
	before := dim - d.ValueDim
	m.ops.CopyHeads(v, made.Slice(d.KeyDim-before, made.Len()), heads(dim, d.Heads*both, both))
}

// values takes them from what such an attention has mixed.
func (t *latent) values(m *Model, y, mixed Array, rows int) {
	d := t.desc
	m.ops.CopyHeads(y, mixed.Slice(d.Dim()-d.ValueDim, mixed.Len()), HeadsShape{
		Rows: rows, Heads: d.Heads, Width: d.ValueDim, ToRow: d.Heads * d.ValueDim, ToHead: d.ValueDim, FromRow: d.Heads * d.Dim(), FromHead: d.Dim(),
	})
}

// first computes queries, latents and the keys that heads share, by the angles of rows. Of a stage before the last it leaves out what
// that does not need.
func (t *latent) first(m *Model, r latentRows, x Array, rows int, by angles, stage int) {
	d := t.desc
	t.project(m, r, x, rows, stage)
	if d.Q == nil && stage == t.lastStage()-2 {
		return
	}
	one := HeadsShape{Rows: rows, Heads: 1, Width: d.Rank, ToRow: d.Rank, FromRow: d.Width()}
	m.ops.CopyHeads(r.latents0, r.down, one)
	m.ops.RMSNorm(r.latents, r.latents0, t.kvNorm, rows, d.KVNorm.Eps)
	one.Width, one.ToRow = d.RopeDim, d.RopeDim
	m.ops.CopyHeads(r.keys, r.down.Slice(d.Rank, r.down.Len()), one)
	t.turn(m, r.q, r.keys, rows, by, false)
}

// project computes products of the first stages.
func (t *latent) project(m *Model, r latentRows, x Array, rows, stage int) {
	if t.desc.Q != nil {
		m.ops.Linear(x, rows, t.q.to(r.q), t.down.to(r.down))
		return
	}
	m.ops.Linear(x, rows, t.qDown.to(r.low0), t.down.to(r.down))
	m.ops.RMSNorm(r.low, r.low0, t.qNorm, rows, t.desc.QNorm.Eps)
	if stage > t.lastStage()-2 {
		m.ops.Linear(r.low, rows, t.qUp.to(r.q))
	}
}

// turn turns queries and the keys that heads share.
func (t *latent) turn(m *Model, q, keys Array, rows int, by angles, back bool) {
	d := t.desc
	s := RopeShape{Rows: rows, Heads: d.Heads, Dim: d.Dim(), Half: t.rope.half(), Adjacent: d.Rope.Adjacent}
	m.ops.Rope(q.Slice(d.KeyDim, q.Len()), s, by.cos, by.sin, back)
	s.Heads, s.Dim = 1, d.RopeDim
	m.ops.Rope(keys, s, by.cos, by.sin, back)
}

func (t *latent) recall(m *Model, a activations, x Array, k kept, at Step, p places) Array {
	d, rows, room := t.desc, a.t, taker{a.more}
	r, width, wide := t.rows(&room, rows, false), d.Width(), d.Heads*d.Dim()
	whole := len(at.Runs) == 1 && at.Runs[0].From == 0 && rows > 1 && (t.sparse == nil || rows <= d.Top())
	var queries Array
	var recall func(q Array, s AttentionShape)
	if keeper, ok := t.ops.(LatentKeeper); ok && !whole && t.sparse == nil && 2*t.rope.half() == d.RopeDim {
		queries = room.take(rows * d.Heads * width)
		t.project(m, r, x, rows, t.lastStage())
		kept, shape, by := k.arrays[0], t.cache(k.slots, k.positions), p.angles(t.rope)
		keeper.KeepLatents(queries, kept, r.q, r.down, t.kvNorm, by.cos, by.sin, at, shape, LatentShape{
			Heads: d.Heads, Dim: d.Dim(), Rank: d.Rank, Half: t.rope.half(), Adjacent: d.Rope.Adjacent, Eps: d.KVNorm.Eps,
		})
		recall = func(q Array, s AttentionShape) { m.ops.Recall(q, q, kept, kept, at, shape, s) }
	} else {
		t.first(m, r, x, rows, p.angles(t.rope), t.lastStage())
		token := room.take(rows * width)
		one := HeadsShape{Rows: rows, Heads: 1, Width: d.Rank, ToRow: width, FromRow: d.Rank}
		m.ops.CopyHeads(token, r.latents, one)
		one.Width, one.FromRow = d.RopeDim, d.RopeDim
		m.ops.CopyHeads(token.Slice(d.Rank, token.Len()), r.keys, one)
		recall = t.keepRows(m, a, &room, r, x, token, k, at, p)
		if whole { // which takes less
			return t.window(m, a, &room, r, nil, nil)
		}
		queries = room.take(rows * d.Heads * width)
		m.ops.CopyHeads(queries.Slice(d.Rank, queries.Len()), r.q.Slice(d.KeyDim, r.q.Len()), HeadsShape{
			Rows: rows, Heads: d.Heads, Width: d.RopeDim, ToRow: d.Heads * width, ToHead: width, FromRow: wide, FromHead: d.Dim(),
		})
	}
	t.ops.ByHeads(queries, r.q, k.arrays[1], ByHeadsShape{
		Rows: rows, Heads: d.Heads, N: d.Rank, K: d.KeyDim, ToRow: d.Heads * width, ToHead: width, FromRow: wide, FromHead: d.Dim(),
	})
	recall(queries, AttentionShape{T: rows, Heads: d.Heads, KVHeads: 1, Dim: width, Scale: float32(d.Scale)})
	y := a.q.Slice(0, rows*d.Heads*d.ValueDim)
	t.ops.ByHeads(y, queries, k.arrays[2], ByHeadsShape{
		Rows: rows, Heads: d.Heads, N: d.ValueDim, K: d.Rank, ToRow: d.Heads * d.ValueDim, ToHead: d.ValueDim, FromRow: d.Heads * width, FromHead: width,
	})
	return y
}

// keepRows keeps a token of each row, and returns what attends to what is kept, in place of queries.
func (t *latent) keepRows(m *Model, a activations, room *taker, r latentRows, x, token Array, k kept, at Step, p places) func(q Array, s AttentionShape) {
	keys := k.arrays[0]
	if t.sparse == nil {
		values, shape := k.arrays[len(k.arrays)-1], t.cache(k.slots, k.positions)
		if t.ops.OneOrder() {
			values = keys
		}
		m.ops.Keep(keys, values, token, token, at, shape)
		return func(q Array, s AttentionShape) { m.ops.Recall(q, q, keys, values, at, shape, s) }
	}
	t.sparse.Place(keys, token, at, k.positions, t.desc.Width())
	var indexed Array
	if t.index != nil {
		indexed = k.arrays[len(k.arrays)-1]
		t.sparse.Place(indexed, t.index.key(m, room, x, a.t, p.angles(t.index.rope)), at, k.positions, t.desc.Index.Dim)
	}
	return func(q Array, s AttentionShape) {
		chosen := k.chosen.room(m.ops, a.t*t.desc.Top())
		if t.index != nil {
			t.index.choose(m, a, room, chosen, x, r.low, indexed, p.angles(t.index.rope), at, k.positions)
		}
		t.sparse.RecallChosen(q, q, keys, keys, chosen, at, k.positions, s)
	}
}

func (t *latent) lastStage() int { return len(t.desc.Stages()) - 1 }

// cache is that of one head, whose keys and values are both latents and keys that turn.
func (t *latent) cache(slots, positions int) CacheShape {
	return CacheShape{Slots: slots, Positions: positions, KVHeads: 1, Dim: t.desc.Width()}
}

// keep allocates what is kept of texts, once, or in the orders of keys and of values, and takes Up apart: for each head what makes queries
// for latents of queries for keys, [Rank, KeyDim], and what makes values of latents, [ValueDim, Rank].
func (t *latent) keep(ops Ops, slots, positions int) kept {
	d, n := t.desc, t.cache(slots, positions).Elements()
	if t.sparse != nil {
		n = slots * positions * d.Width()
	}
	both := d.KeyDim + d.ValueDim
	byKeys, values := ops.Acts(d.Heads*d.Rank*d.KeyDim), ops.Acts(d.Heads*d.ValueDim*d.Rank)
	all, unit := ops.Acts(d.Rank*d.Heads*both), ops.Acts(d.Rank*d.Rank)
	defer ops.Free(all, unit)
	identity := make([]float32, d.Rank*d.Rank)
	for i := range d.Rank {
		identity[i*d.Rank+i] = 1
	}
	k := kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(n), byKeys, values}}
	switch {
	case t.index != nil:
		k.arrays, k.chosen = append(k.arrays, ops.Acts(slots*positions*d.Index.Dim)), &lazily{}
	case t.sparse == nil && !t.ops.OneOrder():
		k.arrays = append(k.arrays, ops.Acts(n))
	}
	if ops.Err() != nil {
		return k
	}
	ops.Write(unit, identity)
	ops.Linear(unit, d.Rank, t.up.to(all)) // what Up is, transposed
	ops.CopyHeads(byKeys, all, HeadsShape{
		Rows: d.Rank, Heads: d.Heads, Width: d.KeyDim, ToRow: d.KeyDim, ToHead: d.Rank * d.KeyDim, FromRow: d.Heads * both, FromHead: both,
	})
	for h := range d.Heads {
		ops.CopyHeads(values.Slice(h*d.ValueDim*d.Rank, (h+1)*d.ValueDim*d.Rank), all.Slice(h*both+d.KeyDim, all.Len()), HeadsShape{
			Rows: d.Rank, Heads: d.ValueDim, Width: 1, ToRow: 1, ToHead: d.Rank, FromRow: d.Heads * both, FromHead: 1,
		})
	}
	return k
}

func (t *latent) keeps(slots, positions int) int64 {
	d, n := t.desc, int64(t.cache(slots, positions).Elements())
	switch {
	case t.sparse != nil:
		n = int64(slots) * int64(positions) * int64(d.Kept(1))
	case !t.ops.OneOrder():
		n *= 2
	}
	return n + int64(d.Heads)*int64(d.Rank)*int64(d.KeyDim+d.ValueDim)
}
