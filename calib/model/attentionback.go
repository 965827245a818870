package model

var _ learner = (*attention)(nil)

// again implements [learner]: queries and keys before their norm are kept beside.
func (t *attention) again(b *backward) Array {
	a := t.fit(b.a)
	q0, k0 := a.q, a.k
	if t.qNorm != nil {
		q0, k0 = b.q0.Slice(0, a.q.Len()), b.k0.Slice(0, a.k.Len())
	}
	t.queries(b.m, a, a.n, q0, k0)
	o := b.o.Slice(0, a.q.Len())
	b.ops.Attention(o, b.lse.Slice(0, a.t*t.desc.Heads), a.q, a.k, a.v, t.shape(a.t))
	return o
}

// back implements [learner].
func (t *attention) back(b *backward, dy Array, more bool) {
	m, a, ops, s := b.m, t.fit(b.a), b.ops, t.shape(b.a.t)
	q, kv := a.q.Len(), a.k.Len()
	o, do, dq, dk, dv := b.o.Slice(0, q), b.do.Slice(0, q), b.dq.Slice(0, q), b.dk.Slice(0, kv), b.dv.Slice(0, kv)
	b.scales(&t.o, dy, o, a.t)
	ops.LinearBack(do, dy, a.t, t.o.w, false)
	ops.AttentionBack(dq, dk, dv, do, o, b.lse.Slice(0, a.t*s.Heads), a.q, a.k, a.v, s)
	if !t.desc.NormLast {
		t.rotate(m, dq, dk, a.t, true)
	}
	if t.qNorm != nil {
		rowsQ, rowsK := t.normRows(a.t)
		ops.RMSNormBack(a.q, dq, b.q0.Slice(0, q), t.qNorm, rowsQ, t.desc.QNorm.Eps, false)
		ops.RMSNormBack(a.k, dk, b.k0.Slice(0, kv), t.kNorm, rowsK, t.desc.KNorm.Eps, false)
		dq, dk = a.q, a.k
	}
	if t.desc.NormLast {
		t.rotate(m, dq, dk, a.t, true)
	}
	b.scales(&t.q, dq, a.n, a.t)
	b.scales(&t.k, dk, a.n, a.t)
	b.scales(&t.v, dv, a.n, a.t)
	if !more {
		return
	}
	ops.LinearBack(b.dn, dq, a.t, t.q.w, false)
	ops.LinearBack(b.dn, dk, a.t, t.k.w, true)
	ops.LinearBack(b.dn, dv, a.t, t.v.w, true)
}
