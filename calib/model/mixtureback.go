package model

// expertsWay takes gradients through experts: from those of what they add, floats [t, hidden], to those of states n, floats likewise.
type expertsWay struct {
	*backward
	n, from, to  Array
	x, dy, y, dx Array // [t, hidden]: acts, acts, floats, floats
	dots         Array // floats [t]
}

func (b *backward) newExpertsWay(n, from, to Array) expertsWay {
	size := b.a.t * b.m.desc.Hidden
	return expertsWay{b, n, from, to, b.ops.Acts(size), b.ops.Acts(size), b.ops.Floats(size), b.ops.Floats(size), b.ops.Floats(b.a.t)}
}

func (w *expertsWay) free() { w.ops.Free(w.x, w.dy, w.y, w.dx, w.dots) }

// one takes the gradient through an expert of some tokens, and returns that of its weights: of what it makes, or of what it reads.
func (w *expertsWay) one(e *mlp, tokens []int, weights []float32, onInput bool) []float32 {
	ops, rows := w.ops, len(tokens)
	size := rows * w.m.desc.Hidden
	x, dy, y, dx, dots := w.x.Slice(0, size), w.dy.Slice(0, size), w.y.Slice(0, size), w.dx.Slice(0, size), w.dots.Slice(0, rows)
	before, after := []float32(nil), weights
	if onInput {
		before, after = weights, nil
	}
	ops.Gather(x, w.n, tokens, before)
	w.hidden(e, x, rows)
	if !onInput {
		ops.Linear(w.product.Slice(0, rows*width(e.gate.w)), rows, e.down.to(y))
		ops.Gather(dy, w.from, tokens, nil)
		ops.RowDots(dots, dy, y, rows)
	}
	ops.Gather(dy, w.from, tokens, after)
	w.mlp(e, dx, dy, x, rows, false)
	if onInput {
		ops.Gather(x, w.n, tokens, nil)
		ops.RowDots(dots, x, dx, rows)
	}
	ops.Scatter(w.to, dx, tokens, before)
	v := make([]float32, rows)
	ops.Read(v, dots)
	return v
}

// chosen takes the gradient through the experts that tokens go to, and returns that by the router's logits.
func (w *expertsWay) chosen(d *moe, r *routing) []float32 {
	experts := len(d.experts)
	dweights := make([]float32, w.a.t*experts) // gradient of the weight that a token gives an expert
	for e := range d.experts {
		if len(r.tokens[e]) == 0 {
			continue
		}
		for i, v := range w.one(&d.experts[e], r.tokens[e], r.weights[e], d.desc.Routing.OnInput) {
			if d.apart != nil {
				v *= d.apart.scales[e]
			}
			dweights[r.tokens[e][i]*experts+e] = v
		}
	}
	return r.back(dweights, d)
}

// mixture takes dh through a mixture of experts: through each expert, and through
// the weights that the router gave them.
func (b *backward) mixture(d *layer) {
	if d.moe.apart != nil {
		b.mixtureApart(d)
		return
	}
	r := b.m.route(b.n, b.a.t, d.moe)
	b.ops.Zero(b.dn)
	w := b.newExpertsWay(b.n, b.dh, b.dn)
	defer w.free()
	b.small(&d.moe.router, w.chosen(d.moe, r), true)
	if d.moe.shared != nil {
		dgate := w.one(d.moe.shared, all(b.a.t), r.shared, false)
		if r.shared != nil {
			for i, s := range r.shared {
				dgate[i] *= s * (1 - s)
			}
			b.small(&d.moe.sharedGate, dgate, true)
		}
	}
	b.normBack(b.a.h, d.mlpNorm, d.block.MLPNorm.Eps)
}

// mixtureApart takes dh through one whose parts have norms of their own, see arch.Apart.
func (b *backward) mixtureApart(d *layer) {
	m, ops, t, x, of := b.m, b.ops, b.a.t, d.moe.apart, d.moe.desc.Apart
	a, size := b.a, t*m.desc.Hidden
	a.n = b.n
	experts, shared, dsum, norm, in := ops.Floats(size), ops.Floats(size), ops.Floats(size), ops.Acts(size), ops.Acts(size)
	defer ops.Free(experts, shared, dsum, norm, in)
	r := m.chosen(a, d.moe)
	m.chosenExperts(experts, b.n, a, d.moe, r)
	m.mlp(shared, m.sharedIn(a, d.moe, in), a, d.moe.shared, t, false)
	ops.Zero(a.y)
	ops.RMSNorm(norm, experts, x.expertsOut, t, of.ExpertsOut.Eps)
	ops.AddTo(a.y, norm)
	ops.RMSNorm(norm, shared, x.sharedOut, t, of.SharedOut.Eps)
	ops.AddTo(a.y, norm)
	dy := b.output(d.mlpOut, a.y, outEps(d.block.MLPOut))

	ops.RMSNormBack(dsum, dy, experts, x.expertsOut, t, of.ExpertsOut.Eps, false)
	ops.Zero(b.dn)
	w := b.newExpertsWay(b.n, dsum, b.dn)
	defer w.free()
	dlogits := w.chosen(d.moe, r)
	b.normBack(a.h, d.mlpNorm, d.block.MLPNorm.Eps)
	b.small(&d.moe.router, dlogits, false)
	b.normBack(a.h, x.router, of.Router.Eps)
	ops.RMSNormBack(dsum, dy, shared, x.sharedOut, t, of.SharedOut.Eps, false)
	ops.Copy(norm, dsum)
	b.hidden(d.moe.shared, in, t)
	b.mlp(d.moe.shared, b.dn, norm, in, t, false)
	b.normBack(a.h, x.shared, of.Shared.Eps)
}

// small adds or writes the gradient of a layer's result, which the host has, to that of what it reads, in b.dn.
func (b *backward) small(l *linear, dy []float32, add bool) {
	grad := b.ops.Acts(len(dy))
	defer b.ops.Free(grad)
	b.ops.Write(grad, dy)
	b.ops.LinearBack(b.dn, grad, b.a.t, l.w, add)
}

// back takes the gradient by the weights of experts, [t, experts], to that by the router's logits.
// With p the scores, f the factor of all weights, w[e] = f·p[e]/total over the chosen ones, total their sum or 1, and
// c = Σ dw[e]·p[e]/total, of the softmax
//
//	dlogit[e] = w[e]·(dw[e] − c)                         where weights sum to f
//	dlogit[e] = f·p[e]·(dw[e] of the chosen or 0 − c)    otherwise
//
// and of sigmoids, for chosen ones alone, without c where weights do not sum to f,
//
//	dlogit[e] = w[e]·(1 − p[e])·(dw[e] − c)
func (r *routing) back(dw []float32, d *moe) []float32 {
	experts, top, factor := len(d.experts), d.desc.Top, d.desc.Routing.Factor()
	out := make([]float32, len(dw))
	for t := range len(dw) / experts {
		chosen, p, g := r.chosen[t*top:(t+1)*top], r.probs[t*experts:(t+1)*experts], dw[t*experts:(t+1)*experts]
		total := d.total(p, chosen)
		var mean float64
		for _, e := range chosen {
			mean += float64(g[e]) * p[e] / total
		}
		if !d.desc.Normalize && !d.desc.Routing.Sigmoid {
			for e := range p {
				out[t*experts+e] = float32(factor * p[e] * (float64(g[e]) - mean)) // g is 0 where e is not chosen
			}
			continue
		}
		for _, e := range chosen {
			slope := 1.0
			if d.desc.Routing.Sigmoid {
				slope = 1 - p[e]
				if !d.desc.Normalize {
					mean = 0
				}
			}
			out[t*experts+e] = float32(factor * p[e] / total * slope * (float64(g[e]) - mean))
		}
	}
	return out
}
