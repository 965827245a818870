package arch

import (
	"fmt"
	"math"
)

// Latent is multi-head latent attention (DeepSeek-AI, https://arxiv.org/abs/2405.04434, section 2.1). What is kept of a token is one
// latent c of Rank elements and one key of RopeDim that turns, which all heads share:
//
//	[c | r] = Down·n    c ← KVNorm(c)    k = rope(r)    [k_h | v_h] = Up·c of each head
//	q = Q·n, or QUp · QNorm(QDown·n)     [q_h | t_h] of each head    t_h ← rope(t_h)
//	o_h = Σ softmax(Scale · (q_h·k_h + t_h·k)) · v_h
//
// and O·o is what is added. As q_h·k_h is (Up_kᵀ·q_h)·c, texts that go on attend to latents themselves.
type Latent struct {
	Heads                     int
	KeyDim, RopeDim, ValueDim int // of a head: what does not turn, what does, and its values
	Rank                      int
	Q                         *Linear // nil where QDown is not
	QDown, QUp, Down, Up, O   *Linear
	QNorm                     *Norm // nil where QDown is
	KVNorm                    Norm
	Rope                      *Rope
	Scale                     float64
	Index                     *Index  // of the tokens that are seen of many; nil: all, or
	Chosen                    *Latent // those that the attention of a block before has chosen
}

// Top is how many tokens are seen at most, 0 for all.
func (a *Latent) Top() int {
	switch {
	case a.Index != nil:
		return a.Index.Top
	case a.Chosen != nil:
		return a.Chosen.Index.Top
	}
	return 0
}

// Dim is how many elements a head's queries and keys have.
func (a *Latent) Dim() int { return a.KeyDim + a.RopeDim }

// Width is what is kept of a token: its latent, and the key that all heads share.
func (a *Latent) Width() int { return a.Rank + a.RopeDim }

// Stages implements [Mixer].
func (a *Latent) Stages() [][]*Linear {
	if a.Q != nil {
		return [][]*Linear{{a.Q, a.Down}, {a.Up}, {a.O}}
	}
	return [][]*Linear{{a.QDown, a.Down}, {a.QUp}, {a.Up}, {a.O}}
}

// Gates implements [Mixer].
func (a *Latent) Gates() []*Linear {
	if x := a.Index; x != nil {
		return []*Linear{x.Q, x.K, x.Weights}
	}
	return nil
}

// Ropes implements [Mixer].
func (a *Latent) Ropes() []*Rope {
	if a.Index != nil {
		return []*Rope{a.Rope, a.Index.Rope}
	}
	return []*Rope{a.Rope}
}

// Vectors implements [Mixer].
func (a *Latent) Vectors() []Vector {
	all := []Vector{{Tensor: a.KVNorm.Tensor, Shape: []int{a.Rank}, Norm: &a.KVNorm}}
	if a.QNorm != nil {
		all = append(all, Vector{Tensor: a.QNorm.Tensor, Shape: []int{a.QUp.K}, Norm: a.QNorm})
	}
	if x := a.Index; x != nil {
		all = append(all, Vector{Tensor: x.NormWeight, Shape: []int{x.Dim}}, Vector{Tensor: x.NormBias, Shape: []int{x.Dim}})
	}
	return all
}

// Kept implements [Mixer]. Where keys lie in another order than values, on the cpu, it is kept twice.
func (a *Latent) Kept(tokens int) int {
	if a.Index != nil {
		return (a.Width() + a.Index.Dim) * tokens
	}
	return a.Width() * tokens
}

// Forgets implements [Mixer].
func (a *Latent) Forgets() bool { return false }

// latentEps is that of the norms within, which transformers takes from the class and not from the config.
const latentEps = 1e-6

// latentSizes are what the config classes of families have where a config leaves them out. A queries' rank of 0 stands for none.
type latentSizes struct{ queries, rank, key, rope, value int }

// latent reads the sizes of latent attention and its rotary embedding.
func (b *builder) latent(s latentSizes) Latent {
	if b.isNull("q_lora_rank") {
		s.queries = 0
	}
	a := Latent{
		Heads: b.heads, Rank: b.size("kv_lora_rank", s.rank), KeyDim: b.size("qk_nope_head_dim", s.key), RopeDim: b.size("qk_rope_head_dim", s.rope),
		ValueDim: b.size("v_head_dim", s.value),
	}
	queries := b.size("q_lora_rank", s.queries)
	dim := int64(a.KeyDim) + int64(a.RopeDim)
	switch {
	case a.RopeDim%2 != 0:
		b.fail("qk_rope_head_dim", fmt.Errorf("%d: want pairs", a.RopeDim))
	case dim > maxHeadDim || int64(a.ValueDim) > dim || a.RopeDim > a.ValueDim:
		b.fail("v_head_dim", fmt.Errorf("heads of %d + %d and values of %d: want at most %d, no more values than that, and no fewer than turn", a.KeyDim, a.RopeDim, a.ValueDim, maxHeadDim))
	case int64(a.Heads)*max(2*dim, int64(a.Rank)+dim) > maxSize/4 || queries > maxSize/4:
		b.fail("kv_lora_rank", fmt.Errorf("%d heads of %d over a rank of %d are too wide", a.Heads, dim, a.Rank))
	}
	if b.err != nil {
		b.layers = 0
		return Latent{Heads: 1, KeyDim: 2, RopeDim: 2, ValueDim: 2, Rank: 2}
	}
	b.headDim = a.RopeDim
	a.Rope = b.rope("", 1e4)
	a.Rope.Adjacent = b.boolean("rope_interleave", true)
	a.Scale = b.yarnScale() / math.Sqrt(float64(dim))
	if queries > 0 {
		a.QDown = &Linear{N: queries}
	}
	return a
}

// yarnScale is what DeepSeek multiplies scores by where a context is stretched: the square of YaRN's factor of what turns, by
// mscale_all_dim, for heads of which only a part turns.
func (b *builder) yarnScale() float64 {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		in := b.scaling(key, "")
		if in == nil || in.text("rope_type", in.text("type", "default")) == "default" {
			continue
		}
		all, factor := in.positiveUnlessZero("mscale_all_dim", 0), in.positiveFloat("factor", 1)
		if all == 0 || factor <= 1 {
			return 1
		}
		m := 0.1*all*math.Log(factor) + 1
		if math.IsInf(m*m, 0) {
			b.fail(key, fmt.Errorf("mscale_all_dim: %g is too large", all))
			return 1
		}
		return m * m
	}
	return 1
}

// latentAttention describes the latent attention of a block.
func (b *builder) latentAttention(blk *Block, a Latent, bias bool) {
	p := blk.Path + ".self_attn."
	in := b.normed(p+"in", &blk.AttnNorm)
	norm := func(name string) Norm {
		n := b.norm(p + name)
		n.Eps = latentEps
		return n
	}
	linear := func(name string, n, k int, bias bool, reads *State, split Axis, fuse string) *Linear {
		return b.whole(b.matrix(p+name, n, k, bias, LinearWeight), reads, split, fuse)
	}
	fuse := ""
	if a.QDown != nil {
		rank := a.QDown.N
		n := norm("q_a_layernorm")
		fuse, a.QNorm = p+"qkv_a", &n
		a.QDown = linear("q_a_proj", rank, b.d.Hidden, bias, in, Replicated, fuse)
		a.QUp = linear("q_b_proj", a.Heads*a.Dim(), rank, false, &State{Name: p + "q_a", Width: rank, Absorb: []string{n.Tensor}, Offset: b.offset}, SplitRows, "")
	} else {
		a.Q = linear("q_proj", a.Heads*a.Dim(), b.d.Hidden, false, in, SplitRows, "")
	}
	a.KVNorm = norm("kv_a_layernorm")
	a.Down = linear("kv_a_proj_with_mqa", a.Width(), b.d.Hidden, bias, in, Replicated, fuse)
	latent := &State{Name: p + "kv_a", Width: a.Rank, Absorb: []string{a.KVNorm.Tensor}, Offset: b.offset}
	a.Up = linear("kv_b_proj", a.Heads*(a.KeyDim+a.ValueDim), a.Rank, false, latent, SplitRows, "")
	out := &State{Name: p + "out", Width: a.Heads * a.ValueDim}
	a.O = linear("o_proj", b.d.Hidden, a.Heads*a.ValueDim, bias, out, SplitColumns, "")
	blk.Mixer = &a
}
