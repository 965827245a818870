package model

import "context"

// backward takes the gradient of a window through a model.
type backward struct {
	m      *Model
	ops    Gradients
	grads  map[string]Grad
	a      activations
	lowest int // layer with a gradient
	*trainScratch
}

// trainScratch holds what the way back needs beside [activations]. Those are used
// anew: h for the residual stream between the halves of a layer, n for the
// attention's input.
type trainScratch struct {
	t              int
	inputs         []Array // floats [t, hidden], of the layers from the lowest
	dh, dn         Array   // floats [t, hidden]: gradients of the residual stream and of a norm's result
	dy             Array   // acts [t, hidden]: dh
	n              Array   // acts [t, hidden], the MLP's input
	o, do, dq      Array   // acts [t, heads·head_dim]
	dk, dv         Array   // acts [t, kv_heads·head_dim]
	q0, k0         Array   // queries and keys before their norm; nil: none
	lse            Array   // floats [heads, t]
	gate, up       Array   // acts [t, intermediate]
	product, dprod Array   // acts [t, intermediate], of silu(gate) and up
}

func (s *trainScratch) free(ops Ops) {
	ops.Free(s.inputs...)
	ops.Free(s.dh, s.dn, s.dy, s.n, s.o, s.do, s.dq, s.dk, s.dv, s.q0, s.k0, s.lse, s.gate, s.up, s.product, s.dprod)
	*s = trainScratch{}
}

// reserve makes room for windows of t tokens and a way back through some layers.
func (m *Model) reserve(t, layers int) *trainScratch {
	s, ops, c := &m.train, m.ops, m.config
	hidden, q, kv, inter := t*c.HiddenSize, t*c.Heads*c.HeadDim, t*c.KVHeads*c.HeadDim, t*c.IntermediateSize
	if t != s.t {
		s.free(ops)
		*s = trainScratch{
			t: t, dh: ops.Floats(hidden), dn: ops.Floats(hidden), dy: ops.Acts(hidden), n: ops.Acts(hidden),
			o: ops.Acts(q), do: ops.Acts(q), dq: ops.Acts(q), dk: ops.Acts(kv), dv: ops.Acts(kv),
			lse:  ops.Floats(c.Heads * t),
			gate: ops.Acts(inter), up: ops.Acts(inter), product: ops.Acts(inter), dprod: ops.Acts(inter),
		}
		if c.QKNorm {
			s.q0, s.k0 = ops.Acts(q), ops.Acts(kv)
		}
	}
	for len(s.inputs) < layers {
		s.inputs = append(s.inputs, ops.Floats(hidden))
	}
	return s
}

// keep keeps the input of a layer.
func (b *backward) keep(layer int) {
	if layer >= b.lowest {
		b.ops.Copy(b.inputs[layer-b.lowest], b.a.h)
	}
}

// head takes the gradient of the logits of positions [from, to) to dn, the gradient of the states.
func (b *backward) head(from, to int, dlogits Array) {
	h, rows := &b.m.head, to-from
	b.scales(h, dlogits, rowsOf(b.a.n, b.a.t, from, to), rows)
	if b.lowest < len(b.m.layers) {
		b.ops.LinearBack(rowsOf(b.dn, b.a.t, from, to), dlogits, rows, h.w, false)
	}
}

// layers takes dn through the final norm and the layers.
func (b *backward) layers(ctx context.Context) error {
	m, t := b.m, b.a.t
	if b.lowest == len(m.layers) {
		return nil
	}
	b.ops.Zero(rowsOf(b.dn, t, t-1, t)) // the last token predicts none
	b.norm(b.dh, b.dn, b.a.h, m.norm, t, false)
	for i := len(m.layers) - 1; i >= b.lowest; i-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, input := &m.layers[i], b.inputs[i-b.lowest]
		b.again(d, input)
		b.mlp(d)
		b.attention(d, input, i > b.lowest)
	}
	return nil
}

// again computes what lies within a layer once more.
func (b *backward) again(d *layer, input Array) {
	m, a, ops := b.m, b.a, b.ops
	m.normalize(a.n, input, d.inputNorm, a.t)
	if d.qNorm != nil {
		m.queries(a, d, b.q0, b.k0)
	} else {
		m.queries(a, d, a.q, a.k)
	}
	ops.Attention(b.o, b.lse, a.q, a.k, a.v, m.attention(a.t))
	ops.Copy(a.h, input)
	ops.Linear(b.o, a.t, d.o.addTo(a.h))
	m.normalize(b.n, a.h, d.postNorm, a.t)
	ops.Linear(b.n, a.t, d.gate.to(b.gate), d.up.to(b.up))
	ops.SwiGLU(b.product, b.gate, b.up)
}

// mlp takes dh through the MLP half of a layer.
func (b *backward) mlp(d *layer) {
	a, ops := b.a, b.ops
	dy := b.dy
	ops.Copy(dy, b.dh)
	b.scales(&d.down, dy, b.product, a.t)
	ops.LinearBack(b.dprod, dy, a.t, d.down.w, false)
	dgate, dup := b.gate, b.up
	ops.SwiGLUBack(dgate, dup, b.dprod, b.gate, b.up)
	b.scales(&d.gate, dgate, b.n, a.t)
	b.scales(&d.up, dup, b.n, a.t)
	ops.LinearBack(b.dn, dgate, a.t, d.gate.w, false)
	ops.LinearBack(b.dn, dup, a.t, d.up.w, true)
	b.norm(b.dh, b.dn, a.h, d.postNorm, a.t, true)
}

// attention takes dh through the attention half of a layer, to the layer's
// input where there is more below.
func (b *backward) attention(d *layer, input Array, more bool) {
	m, a, ops := b.m, b.a, b.ops
	dy := b.dy
	ops.Copy(dy, b.dh)
	b.scales(&d.o, dy, b.o, a.t)
	ops.LinearBack(b.do, dy, a.t, d.o.w, false)
	ops.AttentionBack(b.dq, b.dk, b.dv, b.do, b.o, b.lse, a.q, a.k, a.v, m.attention(a.t))
	dq, dk := b.dq, b.dk
	m.rotate(dq, dk, a.t, true)
	if d.qNorm != nil {
		dq, dk = a.q, a.k
		b.norm(dq, b.dq, b.q0, d.qNorm, a.t*m.config.Heads, false)
		b.norm(dk, b.dk, b.k0, d.kNorm, a.t*m.config.KVHeads, false)
	}
	b.scales(&d.q, dq, a.n, a.t)
	b.scales(&d.k, dk, a.n, a.t)
	b.scales(&d.v, b.dv, a.n, a.t)
	if !more {
		return
	}
	ops.LinearBack(b.dn, dq, a.t, d.q.w, false)
	ops.LinearBack(b.dn, dk, a.t, d.k.w, true)
	ops.LinearBack(b.dn, b.dv, a.t, d.v.w, true)
	b.norm(b.dh, b.dn, input, d.inputNorm, a.t, true)
}

// norm adds or writes the gradient of an RMS norm of x to dx.
func (b *backward) norm(dx, dy, x, w Array, rows int, add bool) {
	b.ops.RMSNormBack(dx, dy, x, w, rows, b.m.config.RMSNormEps, add)
}

// scales adds the gradient of a layer's scales where it is wanted.
func (b *backward) scales(l *linear, dy, x Array, rows int) {
	if g, ok := b.grads[l.path]; ok {
		b.ops.ScaleGrad(g.Scales, g.Table, dy, x, rows, l.w, g.LSQ)
	}
}
