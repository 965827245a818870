package arch

import "fmt"

// DeltaNet is a gated delta rule behind a convolution (Yang, Kautz and Hatamizadeh, https://arxiv.org/abs/2412.06464). Of
// what QKV makes, which passes a causal convolution over Width tokens and then SiLU, each value head has a query and a key of
// KDim elements, which it shares with those beside it, both of length 1, and a value v of VDim elements. With the state S [KDim, VDim] of a head
//
//	S ← e^g·S    S ← S + k·β·(v − Sᵀ·k)ᵀ    o = Sᵀ·q/√KDim    g = −e^ALog·softplus(A·n + DtBias)    β = sigmoid(B·n)
//
// token by token, and O · (Norm(o) ∘ SiLU(Z·n)) is what is added.
type DeltaNet struct {
	KHeads, VHeads, KDim, VDim int
	Width                      int

	QKV, Z *Linear
	B, A   *Linear // [VHeads]
	// Grouped says that QKV makes Z's as well, and B A's: of each key head its query, key, values and their gates, and the β of
	// these values before their A. Z and A are nil.
	Grouped bool

	Conv         string // tensor [Channels, 1, Width]
	ALog, DtBias string // [VHeads]
	Norm         Norm   // of a head's o
	O            *Linear
}

// Channels is how many elements pass the convolution.
func (d *DeltaNet) Channels() int { return 2*d.KHeads*d.KDim + d.VHeads*d.VDim }

// Stages implements [Mixer].
func (d *DeltaNet) Stages() [][]*Linear {
	in := []*Linear{d.QKV}
	if d.Z != nil {
		in = append(in, d.Z)
	}
	return [][]*Linear{in, {d.O}}
}

// Gates implements [Mixer].
func (d *DeltaNet) Gates() []*Linear {
	if d.A == nil {
		return []*Linear{d.B}
	}
	return []*Linear{d.B, d.A}
}

// Ropes implements [Mixer]: it has none.
func (d *DeltaNet) Ropes() []*Rope { return nil }

// Vectors implements [Mixer].
func (d *DeltaNet) Vectors() []Vector {
	return []Vector{
		{Tensor: d.Conv, Shape: []int{d.Channels(), 1, d.Width}},
		{Tensor: d.ALog, Shape: []int{d.VHeads}},
		{Tensor: d.DtBias, Shape: []int{d.VHeads}},
		{Tensor: d.Norm.Tensor, Shape: []int{d.VDim}, Norm: &d.Norm},
	}
}

// Kept implements [Mixer]: states in float32, and the last inputs of the convolution.
func (d *DeltaNet) Kept(int) int { return 2*d.VHeads*d.KDim*d.VDim + d.Width*d.Channels() }

// Forgets implements [Mixer].
func (d *DeltaNet) Forgets() bool { return true }

// maxConvolution bounds the tokens that a convolution sees; published models have 4.
const maxConvolution = 8

// maxDelta bounds the heads of a gated delta rule; published models have 128.
const maxDelta = 256

// deltaNet reads the sizes of gated delta rules.
func (b *builder) deltaNet() DeltaNet {
	d := DeltaNet{
		KHeads: b.size("linear_num_key_heads", 16), VHeads: b.size("linear_num_value_heads", 32),
		KDim: b.size("linear_key_head_dim", 128), VDim: b.size("linear_value_head_dim", 128), Width: b.size("linear_conv_kernel_dim", 4),
	}
	wide := func(heads, dim int) bool { return dim > maxHeadDim || int64(heads)*int64(dim) > maxSize/8 }
	switch {
	case d.VHeads%d.KHeads != 0:
		b.fail("linear_num_value_heads", fmt.Errorf("%d is not a multiple of %d linear_num_key_heads", d.VHeads, d.KHeads))
	case wide(d.KHeads, d.KDim) || wide(d.VHeads, d.VDim):
		b.fail("linear_key_head_dim", fmt.Errorf("%d heads of %d and %d of %d are too wide", d.KHeads, d.KDim, d.VHeads, d.VDim))
	case max(d.KDim, d.VDim) > maxDelta:
		b.fail("linear_key_head_dim", fmt.Errorf("heads of %d and %d: want at most %d", d.KDim, d.VDim, maxDelta))
	case d.Width > maxConvolution:
		b.fail("linear_conv_kernel_dim", fmt.Errorf("%d: want at most %d", d.Width, maxConvolution))
	default:
		return d
	}
	b.layers = 0
	return DeltaNet{KHeads: 1, VHeads: 1, KDim: 2, VDim: 2, Width: 1}
}

// delta describes the gated delta rule of a block. grouped is whether projections are joined by key heads.
func (b *builder) delta(blk *Block, d DeltaNet, grouped bool) {
	p := blk.Path + ".linear_attn."
	in, values := b.normed(p+"in", &blk.AttnNorm), d.VHeads*d.VDim
	linear := func(name string, n int, role Role, split Axis, fuse string) *Linear {
		return b.whole(b.matrix(p+name, n, b.d.Hidden, false, role), in, split, fuse)
	}
	d.Grouped = grouped
	if grouped {
		d.QKV = linear("in_proj_qkvz", d.Channels()+values, LinearWeight, SplitRows, "")
		d.B = linear("in_proj_ba", 2*d.VHeads, RouterWeight, Replicated, "")
	} else {
		d.QKV, d.Z = linear("in_proj_qkv", d.Channels(), LinearWeight, SplitRows, p+"in_proj"), linear("in_proj_z", values, LinearWeight, SplitRows, p+"in_proj")
		d.B, d.A = linear("in_proj_b", d.VHeads, RouterWeight, Replicated, ""), linear("in_proj_a", d.VHeads, RouterWeight, Replicated, "")
	}
	d.Conv, d.ALog, d.DtBias = p+"conv1d.weight", p+"A_log", p+"dt_bias"
	d.Norm = Norm{Tensor: p + "norm.weight", Eps: b.eps}
	b.d.roles[d.Norm.Tensor], b.d.roles[d.DtBias] = NormWeight, BiasVector
	d.O = b.whole(b.matrix(p+"out_proj", b.d.Hidden, values, false, LinearWeight), &State{Name: p + "out", Width: values}, SplitColumns, "")
	blk.Mixer = &d
}
