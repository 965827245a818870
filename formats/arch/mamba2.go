package arch

import (
	"encoding/json"
	"fmt"
)

// Mamba2 is a selective state space (Dao and Gu, https://arxiv.org/abs/2405.21060). In makes a gate z [Heads·Dim]; x [Heads·Dim], B and C
// [Groups·State] each, which pass a causal convolution over Width tokens and then SiLU; and dt [Heads]. Heads that follow each other
// share the b and c of a group. With the state S [Dim, State] of a head and d = softplus(dt + DtBias)
//
//	S ← e^(−d·e^ALog)·S + d·x·bᵀ    y = S·c + D·x
//
// token by token, and Out · Norm(y ∘ SiLU(z)) is what is added, where Norm is of the heads of a group at once.
type Mamba2 struct {
	Heads, Dim, Groups, State int
	Width                     int

	In, Out         *Linear
	Conv            string // tensor [Channels, 1, Width]
	ConvBias        string // [Channels], or ""
	ALog, DtBias, D string // [Heads]
	Norm            Norm   // [Heads·Dim]
}

// Inner is how wide the results of all heads are.
func (m *Mamba2) Inner() int { return m.Heads * m.Dim }

// Channels is how many elements pass the convolution.
func (m *Mamba2) Channels() int { return m.Inner() + 2*m.Groups*m.State }

// Made is how wide what In makes is.
func (m *Mamba2) Made() int { return m.Inner() + m.Channels() + m.Heads }

// Stages implements [Mixer].
func (m *Mamba2) Stages() [][]*Linear { return [][]*Linear{{m.In}, {m.Out}} }

// Gates implements [Mixer]: it has none.
func (m *Mamba2) Gates() []*Linear { return nil }

// Ropes implements [Mixer]: it has none.
func (m *Mamba2) Ropes() []*Rope { return nil }

// Vectors implements [Mixer].
func (m *Mamba2) Vectors() []Vector {
	all := []Vector{
		{Tensor: m.Conv, Shape: []int{m.Channels(), 1, m.Width}},
		{Tensor: m.ALog, Shape: []int{m.Heads}},
		{Tensor: m.DtBias, Shape: []int{m.Heads}},
		{Tensor: m.D, Shape: []int{m.Heads}},
		{Tensor: m.Norm.Tensor, Shape: []int{m.Inner()}, Norm: &m.Norm},
	}
	if m.ConvBias != "" {
		all = append(all, Vector{Tensor: m.ConvBias, Shape: []int{m.Channels()}})
	}
	return all
}

// Kept implements [Mixer]: states in float32, and the last inputs of the convolution.
func (m *Mamba2) Kept(int) int { return 2*m.Inner()*m.State + m.Width*m.Channels() }

// Forgets implements [Mixer].
func (m *Mamba2) Forgets() bool { return true }

// mamba2 reads the sizes of state spaces as Granite's config has them.
func (b *builder) mamba2() Mamba2 {
	m := Mamba2{
		Heads: b.size("mamba_n_heads", 128), Groups: b.size("mamba_n_groups", 1), State: b.size("mamba_d_state", 256),
		Width: b.convolutionWidth("mamba_d_conv", 4),
	}
	inner := int64(b.size("mamba_expand", 2)) * int64(b.d.Hidden)
	m.Dim = int(min(inner/int64(m.Heads), maxSize))
	if inner%int64(m.Heads) != 0 {
		b.fail("mamba_n_heads", fmt.Errorf("%d elements do not make %d heads", inner, m.Heads))
	} else if string(b.values["mamba_d_head"]) != `"auto"` && b.size("mamba_d_head", m.Dim) != m.Dim {
		b.fail("mamba_d_head", fmt.Errorf("%.40s: want %d", b.values["mamba_d_head"], m.Dim))
	}
	return b.bounded(m, "mamba_n_heads", "mamba_d_state")
}

// bounded returns a state space whose sizes fit each other, by the keys that have them; there are no layers where they do not.
func (b *builder) bounded(m Mamba2, heads, state string) Mamba2 {
	b.unlimitedSteps()
	inner := int64(m.Heads) * int64(m.Dim)
	switch {
	case inner < 1 || inner > maxSize/8 || int64(m.Groups)*int64(m.State) > maxSize/8 || inner*int64(m.State) > maxSize || m.State > maxState:
		b.fail(state, fmt.Errorf("%d elements with states of %d are too wide", inner, m.State))
	case m.Heads%m.Groups != 0:
		b.fail(heads, fmt.Errorf("%d is not a multiple of %d groups", m.Heads, m.Groups))
	default:
		return m
	}
	b.layers = 0
	return Mamba2{Heads: 1, Dim: 1, Groups: 1, State: 1, Width: 1}
}

// maxState is the widest state of an element that devices have room for; published models have 128 or 256.
const maxState = 256

// unlimitedSteps refuses bounds of d, which published models do not have.
func (b *builder) unlimitedSteps() {
	const key = "time_step_limit"
	if !b.has(key) {
		return
	}
	var limits []any // what follows 0 is infinite, which JSON has no number for
	err := json.Unmarshal(b.values[key], &limits)
	if err == nil && len(limits) == 2 && limits[0] == 0.0 {
		if _, bounded := limits[1].(float64); !bounded {
			return
		}
	}
	b.fail(key, fmt.Errorf("%.40s is not supported: want none", b.values[key]))
}

// stateSpace describes the state space of a block, a module of some name. eps is its norm's.
func (b *builder) stateSpace(blk *Block, name string, m Mamba2, convBias, bias bool, eps float64) {
	p, inner := blk.Path+"."+name+".", m.Inner()
	m.In = b.whole(b.matrix(p+"in_proj", m.Made(), b.d.Hidden, bias, LinearWeight), b.normed(p+"in", &blk.AttnNorm), SplitRows, "")
	m.Conv, m.ALog, m.DtBias, m.D = p+"conv1d.weight", p+"A_log", p+"dt_bias", p+"D"
	m.Norm = Norm{Tensor: p + "norm.weight", Eps: eps}
	b.d.roles[m.Norm.Tensor], b.d.roles[m.DtBias] = NormWeight, BiasVector
	if convBias {
		m.ConvBias = p + "conv1d.bias"
		b.d.roles[m.ConvBias] = BiasVector
	}
	out := &State{Name: p + "out", Width: inner}
	m.Out = b.whole(b.matrix(p+"out_proj", b.d.Hidden, inner, bias, LinearWeight), out, SplitColumns, "")
	blk.Mixer = &m
}
