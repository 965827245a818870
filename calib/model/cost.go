package model

import "github.com/lutq/lutq/formats/arch"

// widths are the most columns of a decoder's activations in any layer.
type widths struct{ q, kv, mlp int }

func widthsOf(d *arch.Decoder) widths {
	var w widths
	for i := range d.Blocks {
		b := &d.Blocks[i]
		w.q, w.kv = max(w.q, b.Attn.Q.N), max(w.kv, b.Attn.K.N)
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
	forward := int64(t)*(2*hidden+q+2*kv) + int64(min(t, HostMLPRows))*2*inter
	back := int64(t) * (4*hidden + 3*q + 2*kv + 4*inter + int64(len(d.Blocks))*hidden + int64(d.Blocks[0].Attn.Heads))
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
		a := &b.Attn
		perToken := size(a.Q) + size(a.K) + size(a.V) + size(a.O)
		for _, m := range b.MLPs() {
			perToken += size(m.Gate) + size(m.Up) + size(m.Down)
		}
		if b.MoE != nil { // a token passes some of the experts only
			for i := b.MoE.Top; i < len(b.MoE.Experts); i++ {
				m := &b.MoE.Experts[i]
				perToken -= size(m.Gate) + size(m.Up) + size(m.Down)
			}
		}
		linear += float64(t) * perToken
		// A token sees half of the window on average, for scores and for values.
		attention += float64(a.Q.N) * float64(t) * float64(t)
	}
	return linear, attention
}
