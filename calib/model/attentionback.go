package model

import (
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

var _ learner = (*attention)(nil)

// fitBack returns activations of this attention's widths, with room for what is before norms.
func (t *attention) fitBack(b *backward) (a activations, q0, k0 Array) {
	a = t.fit(b.a)
	q0, k0 = a.q, a.k
	if t.qNorm != nil {
		q0, k0 = b.q0.Slice(0, a.q.Len()), b.k0.Slice(0, a.k.Len())
	}
	if t.ones != nil && t.desc.V != nil {
		a.v0 = b.v0.Slice(0, a.v.Len())
	}
	return a, q0, k0
}

// again implements [learner]: what is before norms is kept beside.
func (t *attention) again(b *backward) Array {
	a, q0, k0 := t.fitBack(b)
	t.queries(b.m, a, a.n, q0, k0)
	o, lse := b.o.Slice(0, a.q.Len()), b.lse.Slice(0, a.t*t.desc.Heads)
	t.eachPart(a.t, func(of func(Array) Array, s AttentionShape) {
		b.ops.Attention(of(o), of(lse), of(a.q), of(a.k), of(a.v), s)
	})
	return o
}

// back implements [learner].
func (t *attention) back(b *backward, dy Array, more bool) {
	a, q0, k0 := t.fitBack(b)
	m, ops, d := b.m, b.ops, t.desc
	q, kv := a.q.Len(), a.k.Len()
	o, do, dq, dk, dv := b.o.Slice(0, q), b.do.Slice(0, q), b.dq.Slice(0, q), b.dk.Slice(0, kv), b.dv.Slice(0, kv)
	lse := b.lse.Slice(0, a.t*d.Heads)
	b.scales(&t.o, dy, o, a.t)
	ops.LinearBack(do, dy, a.t, t.o.w, false)
	t.eachPart(a.t, func(of func(Array) Array, s AttentionShape) {
		ops.AttentionBack(of(dq), of(dk), of(dv), of(do), of(o), of(lse), of(a.q), of(a.k), of(a.v), s)
	})
	if sum, ok := b.shared[d.Source()]; ok { // of all that attend to the same
		ops.AddTo(sum.keys, dk)
		ops.AddTo(sum.values, dv)
		ops.Copy(dk, sum.keys)
		ops.Copy(dv, sum.values)
	}
	if !d.NormLast {
		t.rotate(m, dq, dk, a.t, true)
	}
	rowsQ, rowsK := t.normRows(a.t)
	if t.qNorm != nil {
		ops.RMSNormBack(a.q, dq, q0, t.qNorm, rowsQ, d.QNorm.Eps, false)
		dq = a.q
	}
	if t.kNorm != nil {
		ops.RMSNormBack(a.k, dk, k0, t.kNorm, rowsK, d.KNorm.Eps, false)
		dk = a.k
	}
	if d.NormLast {
		t.rotate(m, dq, dk, a.t, true)
	}
	switch {
	case t.ones == nil:
	case d.V == nil: // keys are values
		ops.RMSNormBack(dk, dv, k0, t.ones, a.t*d.KVHeads, d.ValueEps, true)
	default:
		ops.RMSNormBack(a.v, dv, a.v0, t.ones, a.t*d.KVHeads, d.ValueEps, false)
		dv = a.v
	}
	grads := map[*linear]Array{&t.q: dq, &t.k: dk, &t.v: dv}
	for i, l := range t.first() {
		b.scales(l, grads[l], a.n, a.t)
		if more {
			ops.LinearBack(b.dn, grads[l], a.t, l.w, i > 0)
		}
	}
}

// sharedGrads are the sums of the gradients of keys and values that several attentions see, floats.
type sharedGrads map[*arch.Attention]keysValues

// newSharedGrads allocates those of t tokens.
func (m *Model) newSharedGrads(t int) (g sharedGrads) {
	for _, a := range sources(m.desc) {
		if g == nil {
			g = make(sharedGrads)
		}
		n := t * a.KVHeads * a.Dim
		g[a] = keysValues{m.ops.Floats(n), m.ops.Floats(n)}
	}
	return g
}

func (g sharedGrads) free(ops Ops) {
	for _, s := range g {
		ops.Free(s.keys, s.values)
	}
}

func (g sharedGrads) clear(ops Ops) {
	for _, s := range g {
		ops.Zero(s.keys)
		ops.Zero(s.values)
	}
}

// normsValues reports whether a model's attention norms what values are made of.
func normsValues(d *arch.Decoder) bool {
	return slices.ContainsFunc(d.Blocks, func(b arch.Block) bool { return b.Attn() != nil && b.Attn().ValueEps > 0 })
}
