package model

import (
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// beside is what a window has beside the residual stream on its way through the layers.
type beside struct {
	told   Array                          // acts [t, blocks·width], see [arch.TokenInputs]; nil: nothing
	shared map[*arch.Attention]keysValues // of attentions that others attend to
	chosen Array                          // floats [t, top], what is seen of windows of more tokens than that; nil: all is
	arrays []Array                        // all that was allocated, in order
}

type keysValues struct{ keys, values Array }

// sources returns the attentions whose keys and values others attend to.
func sources(d *arch.Decoder) []*arch.Attention {
	var all []*arch.Attention
	seen := make(map[*arch.Attention]bool)
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a != nil && a.From != nil && !seen[a.From] {
			seen[a.From] = true
			all = append(all, a.From)
		}
	}
	return all
}

// besideWidth returns how many numbers a token takes of it.
func besideWidth(d *arch.Decoder) (n int) {
	if d.Tokens != nil {
		n = d.Tokens.Embed.K
	}
	for _, a := range sources(d) {
		n += 2 * a.KVHeads * a.Dim
	}
	return n
}

// newBeside allocates it for t tokens.
func (m *Model) newBeside(t int) (b beside) {
	if m.desc.Tokens != nil {
		b.told = m.ops.Acts(t * m.desc.Tokens.Embed.K)
		b.arrays = append(b.arrays, b.told)
	}
	for _, a := range sources(m.desc) {
		if b.shared == nil {
			b.shared = make(map[*arch.Attention]keysValues)
		}
		n := t * a.KVHeads * a.Dim
		s := keysValues{m.ops.Acts(n), m.ops.Acts(n)}
		b.shared[a], b.arrays = s, append(b.arrays, s.keys, s.values)
	}
	if top := topOf(m.desc); top > 0 && t > top {
		b.chosen = m.ops.Floats(t * top)
		b.arrays = append(b.arrays, b.chosen)
	}
	return b
}

// first is that of the first t tokens. Who reads keys and values takes as many as there are tokens.
func (b beside) first(d *arch.Decoder, t int) beside {
	if b.told != nil {
		b.told = b.told.Slice(0, t*d.Tokens.Embed.K)
	}
	return b
}

// tokenInputs are the weights of [arch.TokenInputs].
type tokenInputs struct {
	embed   Weight
	project linear
	norm    Array
}

// tokenInputs reads them, if there are any. The norm has the factor 1/√2 in it.
func (l *loader) tokenInputs(d *arch.Decoder) (t tokenInputs) {
	if d.Tokens == nil || l.err != nil {
		return t
	}
	t.embed, t.project = l.weight(d.Tokens.Embed, 0, whole(d.Tokens.Embed)), l.linear(d.Tokens.Project)
	norm := l.floats(d.Tokens.Norm.Tensor, d.Tokens.Width)
	if l.err != nil {
		return t
	}
	for i := range norm {
		norm[i] = (norm[i] + d.Tokens.Norm.Offset) * math.Sqrt2 / 2
	}
	t.norm = l.upload(norm)
	return t
}

// enter begins with tokens: with the residual stream, and what layers are told of them.
func (m *Model) enter(a activations, tokens []int) {
	m.entered(a, func(h Array, w Weight, scale float64) { m.ops.Embed(h, tokens, w, float32(scale)) })
}

// entered is enter with a way to write rows of an embedding, times scale.
func (m *Model) entered(a activations, embed func(h Array, w Weight, scale float64)) {
	embed(a.h, m.embed, m.desc.EmbedScale)
	t := m.desc.Tokens
	if t == nil {
		return
	}
	m.ops.Copy(a.n, a.h)
	sum := a.small.Slice(0, a.told.Len())
	m.ops.Linear(a.n, a.t, m.tokens.project.to(sum))
	m.ops.RMSNorm(a.told, sum, m.tokens.norm, a.told.Len()/t.Width, t.Norm.Eps)
	embed(sum, m.tokens.embed, math.Sqrt(float64(t.Width)/2))
	m.ops.AddTo(sum, a.told)
	m.ops.Copy(a.told, sum)
}

// told is what a layer makes of what it is told, see [arch.Told].
type told struct {
	gate, proj linear
	out        Array
}

// toldIn returns what its gate reads, the residual stream as it is.
func (m *Model) toldIn(a activations) Array {
	m.ops.Copy(a.n, a.h)
	return a.n
}

// toldMid returns what its last layer reads.
func (m *Model) toldMid(a activations, d *layer, x Array) Array {
	n := a.t * m.desc.Tokens.Width
	gate, u := a.more.Slice(0, n), a.more.Slice(n, 2*n)
	m.ops.Linear(x, a.t, d.told.gate.to(gate))
	m.toldOf(u, a, d)
	m.ops.GLU(gate, gate, u, d.block.Told.Act)
	return gate
}

// toldOf writes what a layer is told of tokens.
func (m *Model) toldOf(u Array, a activations, d *layer) {
	width, all := m.desc.Tokens.Width, m.desc.Tokens.Embed.K
	m.ops.CopyHeads(u, a.told.Slice(d.block.Told.At*width, a.told.Len()), HeadsShape{Rows: a.t, Heads: 1, Width: width, ToRow: width, ToHead: width, FromRow: all, FromHead: all})
}

// tell adds it to the residual stream.
func (m *Model) tell(a activations, d *layer, mid Array) {
	m.residual(a, d.told.out, d.block.Told.Out.Eps, func(y Array, add bool) {
		m.ops.Linear(mid, a.t, d.told.proj.into(y, add))
	})
}
