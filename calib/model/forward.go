package model

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// layer is one decoder block.
type layer struct {
	inputNorm, postNorm Array
	q, k, v, o          linear
	qNorm, kNorm        Array // nil: none
	gate, up, down      linear
}

// linear is y = x·Wᵀ + bias.
type linear struct {
	path string // of the module
	w    Weight
	bias Array // nil: none
}

// to asks for y = l(x), and addTo for y += l(x).
func (l *linear) to(y Array) Product { return Product{Y: y, W: l.w, Bias: l.bias} }

func (l *linear) addTo(y Array) Product { return Product{Y: y, W: l.w, Bias: l.bias, Add: true} }

// activations are those of a window of t tokens. All but h are acts.
type activations struct {
	t        int
	h        Array // floats [t, hidden], the residual stream
	n        Array // [t, hidden]
	q        Array // [t, heads·head_dim]; attention leaves its result there
	k, v     Array // [t, kv_heads·head_dim]
	gate, up Array // [mlpRows, intermediate]
}

// scratch holds activations for windows of tokens and shorter ones.
type scratch struct {
	activations
	tokens int
}

func (s *scratch) free(ops Ops) {
	ops.Free(s.h, s.n, s.q, s.k, s.v, s.gate, s.up)
	*s = scratch{}
}

// start checks a window and returns room for its activations.
func (m *Model) start(tokens []int) (activations, error) {
	t, c := len(tokens), m.config
	if t == 0 {
		return activations{}, errors.New("no tokens")
	}
	for i, id := range tokens {
		if id < 0 || id >= c.VocabSize {
			return activations{}, fmt.Errorf("token %d at position %d is outside the vocabulary of %d", id, i, c.VocabSize)
		}
	}
	hidden, q, kv, mlp := t*c.HiddenSize, t*c.Heads*c.HeadDim, t*c.KVHeads*c.HeadDim, m.mlpRows(t)*c.IntermediateSize
	s := &m.scratch
	if t > s.tokens {
		s.free(m.ops)
		*s = scratch{tokens: t, activations: activations{
			h: m.ops.Floats(hidden), n: m.ops.Acts(hidden),
			q: m.ops.Acts(q), k: m.ops.Acts(kv), v: m.ops.Acts(kv),
			gate: m.ops.Acts(mlp), up: m.ops.Acts(mlp),
		}}
		m.rope.extend(t, m.ops)
	}
	return activations{
		t: t, h: s.h.Slice(0, hidden), n: s.n.Slice(0, hidden),
		q: s.q.Slice(0, q), k: s.k.Slice(0, kv), v: s.v.Slice(0, kv),
		gate: s.gate.Slice(0, mlp), up: s.up.Slice(0, mlp),
	}, m.ops.Err()
}

// ActivationBytes returns about how much memory a window of tokens takes on the
// cpu besides the weights.
func (m *Model) ActivationBytes(tokens int) int64 {
	c := m.config
	row := 2*c.HiddenSize + c.Heads*c.HeadDim + 4*c.KVHeads*c.HeadDim + c.HeadDim // keys and values are packed as well
	return 4 * (int64(tokens)*int64(row) + 2*int64(m.mlpRows(tokens))*int64(c.IntermediateSize))
}

// mlpRows is how many of t tokens pass through the MLP at a time.
func (m *Model) mlpRows(t int) int {
	if rows := m.ops.MLPRows(); rows > 0 {
		return min(rows, t)
	}
	return t
}

// forward takes tokens through all layers. before, unless nil, is called with
// the residual stream in front of each in a.h.
//
// What is not finite stays so, and is looked for at the end: to look after each
// layer would make the host wait for the device.
func (m *Model) forward(ctx context.Context, a activations, tokens []int, before func(layer int)) error {
	m.ops.Embed(a.h, tokens, m.embed)
	for i := range m.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if before != nil {
			before(i)
		}
		m.attend(a, &m.layers[i])
		m.mlp(a, &m.layers[i])
	}
	if m.ops.NotFinite(a.h, a.t, m.config.HiddenSize) >= 0 {
		return m.notFinite(a, tokens)
	}
	return nil
}

// ErrNotFinite is in the error of a forward pass that overflows the device's type
// of activations, or float32.
var ErrNotFinite = errors.New("not finite")

// notFinite finds the layer after which the residual stream is not finite.
func (m *Model) notFinite(a activations, tokens []int) error {
	m.ops.Embed(a.h, tokens, m.embed)
	for i := range m.layers {
		m.attend(a, &m.layers[i])
		m.mlp(a, &m.layers[i])
		if at := m.ops.NotFinite(a.h, a.t, m.config.HiddenSize); at >= 0 {
			return fmt.Errorf("%s: the hidden state of token %d is %w after layer %d", m.name, at, ErrNotFinite, i)
		}
	}
	return fmt.Errorf("%s: a hidden state is %w, but not again", m.name, ErrNotFinite)
}

// states applies the final norm to the residual stream.
func (m *Model) states(a activations) Array {
	m.normalize(a.n, a.h, m.norm, a.t)
	return a.n
}

// normalize writes the RMS norm of rows of x to y.
func (m *Model) normalize(y, x, w Array, rows int) {
	m.ops.RMSNorm(y, x, w, rows, m.config.RMSNormEps)
}

// attend adds the attention half of a layer to the residual stream.
func (m *Model) attend(a activations, d *layer) {
	m.normalize(a.n, a.h, d.inputNorm, a.t)
	m.queries(a, d, a.q, a.k)
	m.ops.Attention(a.q, nil, a.q, a.k, a.v, m.attention(a.t))
	m.ops.Linear(a.q, a.t, d.o.addTo(a.h))
}

// queries computes queries, keys and values of a.n. q0 and k0 take queries and
// keys as they are before their norm; they are a.q and a.k where that is not to be kept.
func (m *Model) queries(a activations, d *layer, q0, k0 Array) {
	m.ops.Linear(a.n, a.t, d.q.to(q0), d.k.to(k0), d.v.to(a.v))
	if d.qNorm != nil {
		m.normalize(a.q, q0, d.qNorm, a.t*m.config.Heads)
		m.normalize(a.k, k0, d.kNorm, a.t*m.config.KVHeads)
	}
	m.rotate(a.q, a.k, a.t, false)
}

// rotate applies the rotary embedding to queries and keys.
func (m *Model) rotate(q, k Array, t int, back bool) {
	m.ops.Rope(q, t, m.config.Heads, m.rope.cos, m.rope.sin, back)
	m.ops.Rope(k, t, m.config.KVHeads, m.rope.cos, m.rope.sin, back)
}

// attention returns the sizes of the attention over a window of t tokens.
func (m *Model) attention(t int) AttentionShape {
	c := m.config
	return AttentionShape{
		T: t, Heads: c.Heads, KVHeads: c.KVHeads, Dim: c.HeadDim, Window: c.SlidingWindow,
		Scale: float32(1 / math.Sqrt(float64(c.HeadDim))),
	}
}

// mlp adds the MLP half of a layer to the residual stream, some rows at a time.
func (m *Model) mlp(a activations, d *layer) {
	hidden, inter := m.config.HiddenSize, m.config.IntermediateSize
	m.normalize(a.n, a.h, d.postNorm, a.t)
	most := m.mlpRows(a.t)
	for from := 0; from < a.t; from += most {
		rows := min(most, a.t-from)
		gate, up := a.gate.Slice(0, rows*inter), a.up.Slice(0, rows*inter)
		m.ops.Linear(a.n.Slice(from*hidden, (from+rows)*hidden), rows, d.gate.to(gate), d.up.to(up))
		m.ops.SwiGLU(gate, gate, up)
		m.ops.Linear(gate, rows, d.down.addTo(a.h.Slice(from*hidden, (from+rows)*hidden)))
	}
}
