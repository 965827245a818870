package model

import (
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// attention implements [mixer] by softmax attention. Norms and sinks that it has not are nil.
type attention struct {
	desc         *arch.Attention
	rope         *rope
	queryRope    *rope // rope where queries turn as keys do
	q, k, v, o   linear
	qkv          joined
	qNorm, kNorm Array
	ones         Array // factors of the norm of values; nil: none
	sinks        Array
}

// attention reads an attention but for its linear layers.
func (l *loader) attention(from *arch.Attention) *attention {
	t := &attention{desc: from}
	if from.QNorm != nil {
		q, k := from.Dim, from.Dim
		if from.NormWhole {
			q, k = from.Heads*from.Dim, from.KVHeads*from.Dim
		}
		t.qNorm = l.factors(from.QNorm, q)
		if from.KNorm != nil {
			t.kNorm = l.factors(from.KNorm, k)
		}
	}
	if from.ValueEps > 0 && from.From == nil {
		t.ones = l.factors(&arch.Norm{}, from.Dim)
	}
	if from.Sinks != "" {
		t.sinks = l.vector(from.Sinks, 0, from.Heads)
	}
	return t
}

// factors reads those of a norm, which may have none.
func (l *loader) factors(n *arch.Norm, width int) Array {
	switch {
	case !n.None():
		return l.norm(n, width)
	case l.err != nil:
		return nil
	}
	return l.upload(slices.Repeat([]float32{1}, width))
}

// attentionRoom is what a token takes on the way: what Q makes of gates and queries together, and the gates.
func attentionRoom(d *arch.Attention) tokenRoom {
	if !d.Gated {
		return tokenRoom{}
	}
	return tokenRoom{acts: 3 * d.Heads * d.Dim}
}

func (t *attention) linears() []*linear { return append(t.first(), &t.o) }

// first returns the layers of the first stage.
func (t *attention) first() []*linear {
	ls := []*linear{&t.q}
	if t.desc.K != nil {
		ls = append(ls, &t.k)
	}
	if t.desc.V != nil {
		ls = append(ls, &t.v)
	}
	return ls
}

func (t *attention) clone() mixer {
	c := *t
	return &c
}

func (t *attention) bind(ropes map[*arch.Rope]*rope) {
	t.rope, t.queryRope = ropes[t.desc.Rope], ropes[t.desc.Rope]
	if t.desc.QueryRope != nil {
		t.queryRope = ropes[t.desc.QueryRope]
	}
}

func (t *attention) in() []Weight {
	var ws []Weight
	for _, l := range t.first() {
		ws = append(ws, l.w)
	}
	return ws
}

func (t *attention) reads(m *Model, a activations, x Array, stage int) Array {
	if stage == 0 {
		return x
	}
	a = t.fit(a)
	t.queries(m, a, x, a.q, a.k)
	return t.gated(m, a, func(y Array) { t.see(m, y, a) })
}

func (t *attention) recall(m *Model, a activations, x Array, k kept, at Step, p places) Array {
	a = t.fit(a)
	t.project(m, a, x, a.q, a.k, func(q, k Array) { t.turn(m, q, k, a.t, p.angles(t.queryRope), p.angles(t.rope), false) })
	shape := t.cache(k.slots, k.positions)
	at = t.parts(m, k, at)
	if t.desc.From == nil { // else that has kept them
		m.ops.Keep(k.arrays[0], k.arrays[1], a.k, a.v, at, shape)
	}
	return t.gated(m, a, func(y Array) { m.ops.Recall(y, a.q, k.arrays[0], k.arrays[1], at, shape, t.shape(a.t)) })
}

// see is attention over a window, or over each part of it.
func (t *attention) see(m *Model, y Array, a activations) {
	if !t.inParts(a.t) {
		m.ops.Attention(y, nil, a.q, a.k, a.v, t.shape(a.t))
		return
	}
	t.eachPart(a.t, func(of func(Array) Array, s AttentionShape) {
		m.ops.Attention(of(a.q), nil, of(a.q), of(a.k), of(a.v), s)
	})
}

// eachPart calls f for each part of a window, with what takes its rows.
func (t *attention) eachPart(tokens int, f func(of func(Array) Array, s AttentionShape)) {
	if !t.inParts(tokens) {
		f(func(x Array) Array { return x }, t.shape(tokens))
		return
	}
	for from := 0; from < tokens; from += t.desc.Chunk {
		to := min(from+t.desc.Chunk, tokens)
		f(func(x Array) Array { return rowsOf(x, tokens, from, to) }, t.shape(to-from))
	}
}

// inParts reports whether texts of so many tokens are seen in parts.
func (t *attention) inParts(positions int) bool { return t.desc.Chunk > 0 && positions > t.desc.Chunk }

// parts says where rows of a step stand in a cache that has a slot for each part of a text.
func (t *attention) parts(m *Model, k kept, at Step) Step {
	chunk := t.desc.Chunk
	if !t.inParts(k.positions) {
		return at
	}
	each := (k.positions-1)/chunk + 1
	var s Step
	k.rows.host = k.rows.host[:0]
	for _, r := range at.Runs {
		for from := r.From; from < r.From+r.Rows; {
			to := min((from/chunk+1)*chunk, r.From+r.Rows)
			run := Run{Slot: r.Slot*each + from/chunk, From: from % chunk, Rows: to - from, Whole: r.Whole}
			for i := range run.Rows {
				k.rows.host = append(k.rows.host, float32(run.Slot), float32(run.From+i))
			}
			s.Runs, from = append(s.Runs, run), to
		}
	}
	s.Rows = k.rows.write(m.ops)
	return s
}

func (t *attention) cache(slots, positions int) CacheShape {
	if t.inParts(positions) {
		slots, positions = slots*((positions-1)/t.desc.Chunk+1), t.desc.Chunk
	}
	return CacheShape{Slots: slots, Positions: positions, KVHeads: t.desc.KVHeads, Dim: t.desc.Dim}
}

// keep allocates keys and values, unless they are another's.
func (t *attention) keep(ops Ops, slots, positions int) kept {
	if t.desc.From != nil {
		return kept{}
	}
	n := t.cache(slots, positions).Elements()
	return kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(n), ops.Acts(n)}, rows: &floats{}}
}

func (t *attention) keeps(slots, positions int) int64 {
	if t.desc.From != nil {
		return 0
	}
	return 2 * int64(t.cache(slots, positions).Elements())
}

// fit returns activations of this attention's widths.
func (t *attention) fit(a activations) activations {
	q, kv := a.t*t.desc.Heads*t.desc.Dim, a.t*t.desc.KVHeads*t.desc.Dim
	if s, ok := a.shared[t.desc.Source()]; ok {
		a.k, a.v = s.keys, s.values
	}
	a.q, a.k, a.v = a.q.Slice(0, q), a.k.Slice(0, kv), a.v.Slice(0, kv)
	return a
}

// queries computes queries, keys and values of a window's x. q0 and k0 take queries and
// keys as they are before their norm; they are a.q and a.k where that is not to be kept.
func (t *attention) queries(m *Model, a activations, x, q0, k0 Array) {
	t.project(m, a, x, q0, k0, func(q, k Array) { t.rotate(m, q, k, a.t, false) })
}

// gated returns what mix writes, in place of a.q, behind its gates where there are any.
func (t *attention) gated(m *Model, a activations, mix func(y Array)) Array {
	if !t.desc.Gated && t.inParts(a.t) { // which are written one by one
		mix(a.q)
		return a.q
	}
	y := m.input(a, a.q, a.t, t.o.w)
	if !t.desc.Gated {
		mix(y)
		return y
	}
	mix(a.q)
	m.ops.GLU(y, t.gates(a), a.q, arch.Gating{Act: arch.Sigmoid})
	return y
}

// gates is the room of gates.
func (t *attention) gates(a activations) Array { return a.more.Slice(2*a.q.Len(), 3*a.q.Len()) }

// project is queries with a way to turn them.
func (t *attention) project(m *Model, a activations, x, q0, k0 Array, turn func(q, k Array)) {
	if t.desc.Gated {
		both, d := a.more.Slice(0, 2*a.q.Len()), t.desc.Dim
		m.ops.Linear(x, a.t, t.products(both, k0, a.made())...)
		s := HeadsShape{Rows: a.t, Heads: t.desc.Heads, Width: d, ToRow: t.desc.Heads * d, ToHead: d, FromRow: 2 * t.desc.Heads * d, FromHead: 2 * d}
		m.ops.CopyHeads(q0, both, s)
		m.ops.CopyHeads(t.gates(a), both.Slice(d, both.Len()), s)
	} else {
		m.ops.Linear(x, a.t, t.products(q0, k0, a.made())...)
	}
	t.finish(m, a, q0, k0, turn)
}

// products asks for the layers of the first stage.
func (t *attention) products(q, k, v Array) []Product {
	ps, to := []Product{}, map[*linear]Array{&t.q: q, &t.k: k, &t.v: v}
	for _, l := range t.first() {
		ps = append(ps, l.to(to[l]))
	}
	return ps
}

// value norms values, or takes keys for them.
func (t *attention) value(m *Model, a activations, k0 Array) {
	v := a.made()
	if t.desc.V == nil {
		v = k0
	}
	switch {
	case t.desc.From != nil:
	case t.ones != nil:
		m.ops.RMSNorm(a.v, v, t.ones, a.t*t.desc.KVHeads, t.desc.ValueEps)
	case t.desc.V == nil:
		m.ops.Copy(a.v, v)
	}
}

// finish norms and turns queries and keys, in the order of the description.
func (t *attention) finish(m *Model, a activations, q0, k0 Array, turn func(q, k Array)) {
	t.value(m, a, k0)
	if t.desc.NormLast {
		turn(q0, k0)
	}
	if t.qNorm != nil {
		q, k := t.normRows(a.t)
		m.ops.RMSNorm(a.q, q0, t.qNorm, q, t.desc.QNorm.Eps)
		if t.kNorm != nil {
			m.ops.RMSNorm(a.k, k0, t.kNorm, k, t.desc.KNorm.Eps)
		}
	}
	if !t.desc.NormLast {
		turn(a.q, a.k)
	}
}

// normRows returns how many rows the norms of queries and keys have for so many tokens.
func (t *attention) normRows(tokens int) (q, k int) {
	if t.desc.NormWhole {
		return tokens, tokens
	}
	return tokens * t.desc.Heads, tokens * t.desc.KVHeads
}

// rotate applies the rotary embedding to queries and keys of a window.
func (t *attention) rotate(m *Model, q, k Array, tokens int, back bool) {
	t.turn(m, q, k, tokens, angles{t.queryRope.cos, t.queryRope.sin}, angles{t.rope.cos, t.rope.sin}, back)
}

// angles are cosines and sines of rows.
type angles struct{ cos, sin Array }

// turn turns queries and keys by given angles of each row.
func (t *attention) turn(m *Model, q, k Array, tokens int, ofQ, ofK angles, back bool) {
	s := RopeShape{Rows: tokens, Heads: t.desc.Heads, Dim: t.desc.Dim, Half: t.queryRope.half(), Adjacent: t.desc.Rope != nil && t.desc.Rope.Adjacent}
	if t.queryRope.desc != nil {
		m.ops.Rope(q, s, ofQ.cos, ofQ.sin, back)
	}
	if t.desc.Rope == nil || t.desc.From != nil {
		return
	}
	s.Heads, s.Half = t.desc.KVHeads, t.rope.half()
	m.ops.Rope(k, s, ofK.cos, ofK.sin, back)
}

// shape returns the sizes of the attention over a window of so many tokens.
func (t *attention) shape(tokens int) AttentionShape {
	d := t.desc
	return AttentionShape{
		T: tokens, Heads: d.Heads, KVHeads: d.KVHeads, Dim: d.Dim, Window: d.Window,
		Scale: float32(d.Scale), Cap: float32(d.ScoreCap), Sinks: t.sinks,
	}
}

// usual reports whether kernels that norm and turn heads on their way to the cache compute it.
func (t *attention) usual() bool {
	return t.desc.Chunk == 0 && !t.desc.NormWhole && t.desc.ValueEps == 0 && t.desc.From == nil && t.desc.V != nil && !t.desc.NormLast && t.queryRope == t.rope && (t.desc.Rope == nil || !t.desc.Rope.Adjacent)
}

// join implements [recorded].
func (t *attention) join(m *Model, rec Recorder) error {
	if len(t.first()) < 3 {
		return nil
	}
	return m.joinTo(rec, &t.qkv, &t.q, &t.k, &t.v)
}

// recordIn implements [recorded].
func (t *attention) recordIn(rec Recorder, rows int) []Weight {
	if t.joins(rec, rows) {
		return []Weight{t.qkv.w}
	}
	return t.in()
}

// attends reports whether a device has all of a step's attention at once, in which gates have no bias.
func (t *attention) attends(rec Recorder, rows int) bool {
	return t.usual() && (!t.desc.Gated || t.q.bias == nil) && rec.Attends(t.shape(rows))
}

// joins reports whether queries, keys and values of a step are one product.
func (t *attention) joins(rec Recorder, rows int) bool {
	return t.qkv.w != nil && (t.attends(rec, rows) || rows == 1 && !t.apart())
}

// apart reports whether it has what only the operations of one thing each have.
func (t *attention) apart() bool {
	d := t.desc
	return d.Gated || d.Chunk > 0 || d.QueryRope != nil && d.Rope == nil || d.ValueEps > 0 || d.From != nil || d.V == nil
}

// record implements [recorded].
func (t *attention) record(m *Model, rec Recorder, r *recordedStep, x Array, k kept, at Step) Array {
	rows := r.t
	attends, joined := t.attends(rec, rows), t.joins(rec, rows)
	if !attends && t.apart() {
		return t.recall(m, r.activations, x, k, at, r.places)
	}
	keys, values, shape := k.arrays[0], k.arrays[1], t.cache(k.slots, k.positions)
	s, turn := t.shape(rows), r.places.angles(t.rope)
	wide, narrow := width(t.q.w), width(t.k.w)
	all := r.first.Slice(0, rows*(wide+2*narrow))
	q, keysNow, valuesNow := all.Slice(0, rows*wide), all.Slice(rows*wide, rows*(wide+narrow)), all.Slice(rows*(wide+narrow), all.Len())
	h := StepHeads{Q: q, K: keysNow, V: valuesNow, QPitch: wide, KVPitch: narrow}
	switch {
	case joined && attends:
		h.Q, h.K, h.V = all, all.Slice(wide, all.Len()), all.Slice(wide+narrow, all.Len())
		h.QPitch, h.KVPitch = wide+2*narrow, wide+2*narrow
		rec.Linear(x, rows, Product{Y: all, W: t.qkv.w})
	case joined:
		rec.Linear(x, rows, Product{Y: all, W: t.qkv.w, Bias: t.qkv.bias})
	case attends:
		rec.Linear(x, rows, Product{Y: q, W: t.q.w}, Product{Y: keysNow, W: t.k.w}, Product{Y: valuesNow, W: t.v.w})
	default:
		rec.Linear(x, rows, t.q.to(q), t.k.to(keysNow), t.v.to(valuesNow))
	}
	if attends {
		h.QBias, h.KBias, h.VBias, h.QNorm, h.KNorm, h.Gated = t.q.bias, t.k.bias, t.v.bias, t.qNorm, t.kNorm, t.desc.Gated
		h.Cos, h.Sin, h.Half = turn.cos, turn.sin, t.rope.half()
		if t.qNorm != nil {
			h.QEps, h.KEps = t.desc.QNorm.Eps, t.desc.KNorm.Eps
		}
		y := m.input(r.activations, r.mixed.Slice(0, rows*s.Heads*s.Dim), rows, t.o.w)
		rec.Attend(y, keys, values, h, at, shape, s, r.arrived.Slice(0, rows*s.Heads))
		return y
	}
	a := r.activations
	a.q, a.k, a.v = q, keysNow, valuesNow
	if t.usual() {
		t.finish(m, a, a.q, a.k, func(_, _ Array) {})
		rec.TurnKeep(a.q, keys, values, a.k, a.v, turn.cos, turn.sin, t.rope.half(), at, shape)
	} else {
		t.finish(m, a, a.q, a.k, func(q, k Array) { t.turn(m, q, k, rows, r.places.angles(t.queryRope), turn, false) })
		rec.Keep(keys, values, a.k, a.v, at, shape)
	}
	rec.Recall(a.q, a.q, keys, values, at, shape, s)
	return a.q
}
