package arch

import "slices"

// Mixer is what mixes the states of the tokens of a text: the first half of a block. It is an [Attention], a
// [Latent] attention, a [DeltaNet], a [ShortConv] or a [Mamba2], or [Nothing].
type Mixer interface {
	// Stages returns its linear layers in the order in which they are computed: those of a stage read the same. The last stage
	// has one, whose result is added to the residual stream. Without any the mixer adds nothing.
	Stages() [][]*Linear
	// Gates returns its small layers, which read what the first stage does and are never quantized.
	Gates() []*Linear
	// Vectors returns its tensors that no layer has, such as norms, with their shapes.
	Vectors() []Vector
	// Ropes returns the rotary embeddings that it turns by, nil for one that does not turn.
	Ropes() []*Rope
	// Kept returns how many numbers a text of so many tokens is kept as, so that it can go on.
	Kept(tokens int) int
	// Forgets reports whether what is kept of a text cannot be taken back to a shorter one.
	Forgets() bool
}

// Nothing is the mixer of blocks that have none: nothing is read, kept and added.
type Nothing struct{}

func (Nothing) Stages() [][]*Linear { return nil }
func (Nothing) Gates() []*Linear    { return nil }
func (Nothing) Vectors() []Vector   { return nil }
func (Nothing) Ropes() []*Rope      { return nil }
func (Nothing) Kept(int) int        { return 0 }
func (Nothing) Forgets() bool       { return false }

// Vector is a small tensor.
type Vector struct {
	Tensor string
	Shape  []int
	Norm   *Norm // that it is of, or nil
}

// Attn returns the attention that a block mixes tokens by, or nil.
func (b *Block) Attn() *Attention {
	a, _ := b.Mixer.(*Attention)
	return a
}

// Attention is causal attention of Heads queries over KVHeads keys and values of Dim elements:
//
//	O · attention(rope(QNorm(Q·n)), rope(KNorm(K·n)), V·n)
type Attention struct {
	Heads, KVHeads, Dim int
	Q, K, V, O          *Linear
	Gated               bool    // Q makes of each head Dim elements more, whose sigmoids its mixture is multiplied by
	QNorm, KNorm        *Norm   // of each head, without factors where Tensor is ""; nil: none
	NormWhole           bool    // they are of all heads at once
	NormLast            bool    // they come after the heads are turned, not before
	Rope                *Rope   // nil: positions do not count
	ValueEps            float64 // of a norm of each head's values, without factors; 0: none
	// From is the attention of a block before, whose keys and values it attends to; K and V are nil then. Where V alone is nil,
	// values are what K gives.
	From      *Attention
	QueryRope *Rope   // of queries, where they turn otherwise than keys; nil: as they do
	Chunk     int     // positions of a part of the text, of which a token sees its own up to itself; 0: all is one
	Window    int     // positions that a token sees, itself among them; 0: all before it
	Scale     float64 // of the scores
	ScoreCap  float64 // c in c·tanh(score/c); 0: none
	Sinks     string  // tensor [Heads] of logits that take part in each softmax, without a value; or ""
}

// Stages implements [Mixer].
func (a *Attention) Stages() [][]*Linear {
	return [][]*Linear{slices.DeleteFunc([]*Linear{a.Q, a.K, a.V}, func(l *Linear) bool { return l == nil }), {a.O}}
}

// Source returns the attention whose keys and values it attends to.
func (a *Attention) Source() *Attention {
	if a.From != nil {
		return a.From
	}
	return a
}

// Gates implements [Mixer].
func (a *Attention) Gates() []*Linear { return nil }

// Ropes implements [Mixer].
func (a *Attention) Ropes() []*Rope {
	if a.QueryRope != nil {
		return []*Rope{a.Rope, a.QueryRope}
	}
	return []*Rope{a.Rope}
}

// Vectors implements [Mixer].
func (a *Attention) Vectors() []Vector {
	var all []Vector
	add := func(n *Norm, heads int) {
		if n != nil && !n.None() {
			all = append(all, Vector{n.Tensor, []int{a.normed(heads)}, n})
		}
	}
	add(a.QNorm, a.Heads)
	add(a.KNorm, a.KVHeads)
	if a.Sinks != "" {
		all = append(all, Vector{a.Sinks, []int{a.Heads}, nil})
	}
	return all
}

// normed returns how many elements a norm of so many heads has.
func (a *Attention) normed(heads int) int {
	if a.NormWhole {
		return heads * a.Dim
	}
	return a.Dim
}

// Forgets implements [Mixer].
func (a *Attention) Forgets() bool { return false }

// Kept implements [Mixer]: keys and values of what is seen.
func (a *Attention) Kept(tokens int) int {
	if a.From != nil {
		return 0
	}
	if a.Chunk > 0 {
		tokens = min(tokens, a.Chunk)
	}
	if a.Window > 0 {
		tokens = min(tokens, a.Window)
	}
	return 2 * a.KVHeads * a.Dim * tokens
}
