package model

import (
	"context"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// BackwardOps are the operations of a model's way back, to the gradient of its scales.
type BackwardOps interface {
	Ops

	// RMSNormBack adds (add) or writes the gradient of RMSNorm to dx, of x's type,
	// given dy, floats or acts.
	RMSNormBack(dx, dy, x, w Array, rows int, eps float64, add bool)
	// LinearBack adds or writes dy·W to dx [rows, K], floats or acts. dy [rows, N] is acts.
	LinearBack(dx, dy Array, rows int, w Weight, add bool)
	// AttentionBack writes dq, dk and dv from do, o and the lse of Attention; all of them acts but lse.
	AttentionBack(dq, dk, dv, do, o, lse, q, k, v Array, s AttentionShape)
	// GLUBack writes dg and du. They may be g and u.
	GLUBack(dg, du, dy, g, u Array, act arch.Gating)
	// SoftCapBack multiplies dx, acts, by 1 − (y/c)², with y, floats, what [Ops] SoftCap wrote.
	SoftCapBack(dx, y Array, c float64)
	// SumHeads writes the sum of the heads of rows, elements r·FromRow + h·FromHead to +Width of x over h, to r·ToRow of y, both acts:
	// the gradient of what [Ops] CopyHeads gave all heads.
	SumHeads(y, x Array, s HeadsShape)
	// RowDots writes Σ a[i]·b[i] of each row of a and b, acts or floats, to dst, floats [rows].
	RowDots(dst, a, b Array, rows int)

	// ScaleGrad adds Σ_{k in group} G[n,k]·u[n,k] to ds, floats [N·groups], where G = dyᵀ·x
	// is the gradient of the weight, which is never stored whole. u is the table value v (STE with the code held),
	// or, where lsq is set, v − original/scale for weights inside the table's range, its ends included,
	// and v outside, as where scale is 0.
	// dtable, floats or nil, takes Σ G[n,k]·scale over the weights of each code in addition.
	ScaleGrad(ds, dtable, dy, x Array, rows int, w Weight, lsq bool)
}

// learner is a [mixer] that has gradients.
type learner interface {
	mixer
	// again computes what the last layer reads of a window whose states are b.a.n after their norm, and leaves what back needs.
	again(b *backward) Array
	// back takes dy, acts, the gradient of what the last layer makes, to the scales of all layers, and where more is set writes that of
	// b.a.n to b.dn.
	back(b *backward, dy Array, more bool)
}

// backward takes the gradient of a window through a model.
type backward struct {
	m      *Model
	ops    BackwardOps
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
	q0, k0, v0     Array   // queries, keys and values before their norm; nil: none
	lse            Array   // floats [heads, t] of the most heads
	gate, up       Array   // acts [t, intermediate]
	product, dprod Array   // acts [t, intermediate], of act(gate) and up
	more           Array   // acts [t, trainRoom], of mixers; nil: none needs it
	attnOut        Array   // floats [t, hidden], what the attention adds, before its norm; nil: none has one
	d32            Array   // floats [t, hidden], its gradient; nil likewise
	shared         sharedGrads
	toldScratch
}

func (s *trainScratch) free(ops Ops) {
	ops.Free(s.inputs...)
	ops.Free(s.dh, s.dn, s.dy, s.n, s.o, s.do, s.dq, s.dk, s.dv, s.q0, s.k0, s.v0, s.lse, s.gate, s.up, s.product, s.dprod, s.more, s.attnOut, s.d32)
	s.shared.free(ops)
	s.toldScratch.free(ops)
	*s = trainScratch{}
}

// reserve makes room for windows of t tokens and a way back through some layers.
func (m *Model) reserve(t, layers int) *trainScratch {
	s, ops, w := &m.train, m.ops, widthsOf(m.desc)
	hidden, q, kv, inter := t*m.desc.Hidden, t*w.q, t*w.kv, t*w.mlp
	if t != s.t {
		s.free(ops)
		*s = trainScratch{
			t: t, dh: ops.Floats(hidden), dn: ops.Floats(hidden), dy: ops.Acts(hidden), n: ops.Acts(hidden),
			o: ops.Acts(q), do: ops.Acts(q), dq: ops.Acts(q), dk: ops.Acts(kv), dv: ops.Acts(kv),
			lse:  ops.Floats(w.heads * t),
			gate: ops.Acts(inter), up: ops.Acts(inter), product: ops.Acts(inter), dprod: ops.Acts(inter),
		}
		if n := trainRoom(m.desc); n > 0 {
			s.more = ops.Acts(t * n)
		}
		if slices.ContainsFunc(m.desc.Blocks, func(b arch.Block) bool { return b.Attn() != nil && b.Attn().QNorm != nil }) {
			s.q0, s.k0 = ops.Acts(q), ops.Acts(kv)
		}
		if normsValues(m.desc) {
			s.v0 = ops.Acts(kv)
		}
		s.shared, s.toldScratch = m.newSharedGrads(t), m.newToldScratch(t)
		if m.normsOutputs() {
			s.attnOut, s.d32 = ops.Floats(hidden), ops.Floats(hidden)
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
	b.ops.RMSNormBack(b.dh, b.dn, b.a.h, m.norm, t, m.desc.Norm.Eps, false)
	b.shared.clear(b.ops)
	for i := len(m.layers) - 1; i >= b.lowest; i-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, input := &m.layers[i], b.inputs[i-b.lowest]
		b.again(d, input)
		if d.scale != nil {
			b.ops.Scale(b.dh, *d.scale)
		}
		if d.told != nil {
			b.tell(d)
			m.norms(b.a.n, input, d.attnNorm, t, d.block.AttnNorm.Eps) // once more
		}
		if d.moe != nil {
			b.mixture(d)
		} else {
			b.feed(d)
		}
		b.mixer(d, input, i > b.lowest)
	}
	return nil
}

// again computes what lies within a layer once more, up to the input of its MLP.
func (b *backward) again(d *layer, input Array) {
	m, a, ops := b.m, b.a, b.ops
	m.norms(a.n, input, d.attnNorm, a.t, d.block.AttnNorm.Eps)
	o := d.mixer.(learner).again(b)
	ops.Copy(a.h, input)
	if d.attnOut == nil {
		ops.Linear(o, a.t, d.out().into(a.h, true))
	} else {
		ops.Linear(o, a.t, d.out().to(b.attnOut))
		ops.RMSNorm(b.n, b.attnOut, d.attnOut, a.t, d.block.AttnOut.Eps)
		ops.AddTo(a.h, b.n)
	}
	m.norms(b.n, a.h, d.mlpNorm, a.t, d.block.MLPNorm.Eps)
}

// output returns dh as the gradient of what is added to the residual stream: through the
// norm out of x where there is one.
func (b *backward) output(out, x Array, eps float64) Array {
	if out == nil {
		b.ops.Copy(b.dy, b.dh)
		return b.dy
	}
	b.ops.RMSNormBack(b.d32, b.dh, x, out, b.a.t, eps, false)
	b.ops.Copy(b.dy, b.d32)
	return b.dy
}

// feed takes dh through the MLP half of a layer.
func (b *backward) feed(d *layer) {
	b.hidden(d.mlp, b.n, b.a.t)
	if d.mlpOut != nil {
		size := b.a.t * width(d.mlp.gate.w)
		b.ops.Linear(b.product.Slice(0, size), b.a.t, d.mlp.down.to(b.a.y))
	}
	dy := b.output(d.mlpOut, b.a.y, outEps(d.block.MLPOut))
	b.mlp(d.mlp, b.dn, dy, b.n, b.a.t, false)
	b.normBack(b.a.h, d.mlpNorm, d.block.MLPNorm.Eps)
}

// normBack takes dn through a norm of x and adds it to dh.
func (b *backward) normBack(x, norm Array, eps float64) {
	if norm == nil {
		b.ops.AddTo(b.dh, b.dn)
		return
	}
	b.ops.RMSNormBack(b.dh, b.dn, x, norm, b.a.t, eps, true)
}

// hidden computes what lies within an MLP of rows states n.
func (b *backward) hidden(d *mlp, n Array, rows int) {
	size := rows * width(d.gate.w)
	gate, up := b.gate.Slice(0, size), b.up.Slice(0, size)
	b.ops.Linear(n, rows, d.gate.to(gate), d.up.to(up))
	b.ops.GLU(b.product.Slice(0, size), gate, up, d.act)
}

// mlp takes the gradient dy of an MLP's result, acts, to that of its rows states n, which it adds
// (add) or writes to dn. [backward.hidden] was called for them.
func (b *backward) mlp(d *mlp, dn, dy, n Array, rows int, add bool) {
	ops, size := b.ops, rows*width(d.gate.w)
	gate, up, dprod := b.gate.Slice(0, size), b.up.Slice(0, size), b.dprod.Slice(0, size)
	b.scales(&d.down, dy, b.product.Slice(0, size), rows)
	ops.LinearBack(dprod, dy, rows, d.down.w, false)
	dgate, dup := gate, up
	ops.GLUBack(dgate, dup, dprod, gate, up, d.act)
	b.scales(&d.gate, dgate, n, rows)
	b.scales(&d.up, dup, n, rows)
	ops.LinearBack(dn, dgate, rows, d.gate.w, add)
	ops.LinearBack(dn, dup, rows, d.up.w, true)
}

// mixer takes dh through the mixer's half of a layer, to the layer's input where there is more below.
func (b *backward) mixer(d *layer, input Array, more bool) {
	d.mixer.(learner).back(b, b.output(d.attnOut, b.attnOut, outEps(d.block.AttnOut)), more)
	if more {
		b.normBack(input, d.attnNorm, d.block.AttnNorm.Eps)
	}
}

// scales adds the gradient of a layer's scales where it is wanted.
func (b *backward) scales(l *linear, dy, x Array, rows int) {
	if g, ok := b.grads[l.name]; ok {
		b.ops.ScaleGrad(g.Scales, g.Table, dy, x, rows, l.w, g.LSQ)
	}
}
