package gguf

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
)

// Tensor is a tensor of a file and what it is made of, which is one of these:
//
//   - Layers: the rows of their weights, or with Bias the elements of their biases, one layer after the other.
//     Where Shape has three dimensions, [experts, N, K], each expert is one.
//   - Source: a tensor of the model, of which [Tensor.To] is written.
//   - Values: what follows from config.json.
type Tensor struct {
	Name  string
	Shape []int // row-major, columns last, which files have first

	Layers []*arch.Linear
	Bias   bool
	// Order, if not nil, says which rows the tensor has of its one layer, which elements of its bias, or which rows of
	// Source: row i is row Order[i]. Those that are not in it have another tensor.
	Order []int
	// Columns, if not nil, says the same of columns, of which the tensor has all.
	Columns []int
	// Turned says that each matrix of a stack has as columns what are rows of the layer: as many of Order as it is wide, in turn.
	Turned bool

	Source string
	Of     []int   // the shape of Source; nil: that of the tensor
	Offset float32 // see [Tensor.To]
	Decay  bool    // see [Tensor.To]

	Values []float32

	// Float says that the tensor is in float32 whatever the others are in: vectors and routers.
	Float bool
}

// Rows returns the number of rows of a matrix or a stack, of a vector its elements.
func (t *Tensor) Rows() int {
	if len(t.Shape) == 1 {
		return t.Shape[0]
	}
	rows := 1
	for _, n := range t.Shape[:len(t.Shape)-1] {
		rows *= n
	}
	return rows
}

// Row returns which row of the model's layer, or of Source, row i of the tensor is.
func (t *Tensor) Row(i int) int {
	if t.Order == nil {
		return i
	}
	return t.Order[i]
}

// Taken returns how many rows of a layer the tensor has.
func (t *Tensor) Taken(l *arch.Linear) int {
	if t.Order == nil {
		return l.N
	}
	return len(t.Order)
}

// To returns what is written of an element of Source: it and Offset, or with Decay −e^x.
func (t *Tensor) To(x float32) float32 {
	if t.Decay {
		return float32(-math.Exp(float64(x)))
	}
	return x + t.Offset
}

// From undoes [Tensor.To].
func (t *Tensor) From(x float32) float32 {
	if t.Decay {
		return float32(math.Log(-float64(x)))
	}
	return x - t.Offset
}

// asStored reports whether the tensor has all that its layer or Source has, as it is.
func (t *Tensor) asStored() bool {
	return t.Order == nil && t.Columns == nil && t.Offset == 0 && !t.Decay
}

// sideBySide is the order of rows in which the pairs of each head that turn together, i and i+h of 2h rows, stand side by side:
// 0, h, 1, h+1, …
func sideBySide(rows, heads int) []int {
	order, dim := make([]int, rows), rows/heads
	for i := range order {
		at := i % dim
		order[i] = i - at + at%2*dim/2 + at/2
	}
	return order
}

// Tensors returns the tensors of a model's file, in the order in which they are written. It fails on a model that
// llama.cpp would compute otherwise.
func Tensors(d *arch.Decoder) ([]Tensor, error) {
	f, err := familyOf(d)
	if err != nil {
		return nil, err
	}
	if err := f.check(d); err != nil {
		return nil, err
	}
	l := &layout{family: f, hidden: d.Hidden}
	l.add(Tensor{Name: "token_embd.weight", Shape: []int{d.Vocab, d.Hidden}, Source: d.Embed + ".weight"})
	if d.Tokens != nil {
		l.tokens(d.Tokens)
	}
	for i := range d.Blocks {
		l.block(fmt.Sprintf("blk.%d.", i), &d.Blocks[i])
	}
	l.norm(cmp.Or(l.lastNorm, "output_norm"), &d.Norm, d.Hidden)
	if !d.Tied {
		l.linears("output", d.Head)
	}
	if r := ropesOf(d).global; r != nil {
		l.rope(r)
	}
	return l.tensors, l.err
}

// layout collects the tensors of a file.
type layout struct {
	family
	hidden  int
	tensors []Tensor
	err     error
}

func (l *layout) add(t Tensor) { l.tensors = append(l.tensors, t) }

func (l *layout) norm(name string, n *arch.Norm, size int) {
	if n != nil && !n.None() {
		l.add(Tensor{Name: name + ".weight", Shape: []int{size}, Source: n.Tensor, Offset: n.Offset, Float: true})
	}
}

// linears adds a matrix of the rows of layers, and the vector of their biases where they have any.
func (l *layout) linears(name string, layers ...*arch.Linear) {
	l.matrix(Tensor{Name: name, Layers: layers})
}

func (l *layout) matrix(t Tensor) {
	name, first := t.Name, t.Layers[0]
	n := 0
	for _, x := range t.Layers {
		n += t.Taken(x)
	}
	t.Name, t.Shape = name+".weight", []int{n, first.K}
	l.add(t)
	if first.Stored.Bias == "" {
		return
	}
	l.bias(name)
	t.Name, t.Shape, t.Columns, t.Bias, t.Float = name+".bias", []int{n}, nil, true, true
	l.add(t)
}

// bias refuses one that llama.cpp has no place for.
func (l *layout) bias(name string) {
	module := name[strings.LastIndexByte(name, '.')+1:]
	if l.err == nil && !slices.Contains(l.biases, module) {
		l.err = fmt.Errorf("%s has a bias: llama.cpp knows none there in models of the architecture %s", name, l.arch)
	}
}

// experts adds the stack of a layer of every expert.
func (l *layout) experts(name string, m *arch.MoE, layer func(*arch.MLP) *arch.Linear) {
	layers := make([]*arch.Linear, len(m.Experts))
	for e := range m.Experts {
		layers[e] = layer(&m.Experts[e])
	}
	x := layers[0]
	l.add(Tensor{Name: name + ".weight", Shape: []int{len(layers), x.N, x.K}, Layers: layers})
	if x.Stored.Bias != "" {
		l.bias(name)
		l.add(Tensor{Name: name + ".bias", Shape: []int{len(layers), x.N}, Layers: layers, Bias: true, Float: true})
	}
}

// rotary adds the matrix of queries or keys.
func (l *layout) rotary(name string, x *arch.Linear, heads int) {
	t := Tensor{Name: name, Layers: []*arch.Linear{x}}
	if l.permuted {
		t.Order = sideBySide(x.N, heads)
	}
	l.matrix(t)
}

// vector adds a tensor that is no matrix. shape is the file's, of that of the model where it is another.
func (l *layout) vector(name, source string, shape []int, of ...int) {
	l.add(Tensor{Name: name, Shape: shape, Source: source, Of: of, Float: true})
}

func (l *layout) block(p string, b *arch.Block) {
	l.norm(p+"attn_norm", &b.AttnNorm, l.hidden)
	switch m := b.Mixer.(type) {
	case *arch.Attention:
		l.attention(p, m)
	case *arch.DeltaNet:
		l.delta(p, m)
	case *arch.Latent:
		l.latent(p, m)
	case *arch.ShortConv:
		l.shortConv(p, m)
	case *arch.Mamba2:
		l.stateSpace(p, m)
	default:
		l.err = cmp.Or(l.err, fmt.Errorf("%s is no attention: not supported in models of the architecture %s", b.Path, l.arch))
	}
	l.norm(p+"post_attention_norm", b.AttnOut, l.hidden)
	mlpNorm := cmp.Or(l.mlpNorm, "ffn_norm")
	if b.MoE != nil && b.MoE.Apart != nil {
		mlpNorm = "pre_ffw_norm_2"
	}
	l.norm(p+mlpNorm, &b.MLPNorm, l.hidden)
	switch {
	case b.MLP != nil:
		l.mlp(p, "", b.MLP)
	case b.MoE != nil && b.MoE.Apart != nil:
		l.apart(p, b.MoE)
	case b.MoE != nil:
		l.moe(p, b.MoE)
	}
	l.norm(p+"post_ffw_norm", b.MLPOut, l.hidden)
	if b.Told != nil {
		l.told(p, b.Told)
	}
	if b.Scale != "" {
		l.vector(p+layerScale, b.Scale, []int{1})
	}
}

// layerScale is the tensor of what a block multiplies the residual stream by.
const layerScale = "layer_output_scale.weight"

func (l *layout) attention(p string, a *arch.Attention) {
	if a.K != nil && a.Q.Stored == a.K.Stored {
		l.linears(p+"attn_qkv", a.Q, a.K, a.V)
	} else {
		l.rotary(p+"attn_q", a.Q, a.Heads)
		if a.K != nil {
			l.rotary(p+"attn_k", a.K, a.KVHeads)
		}
		if a.V != nil {
			l.linears(p+"attn_v", a.V)
		}
	}
	q, k := a.Dim, a.Dim
	if a.NormWhole {
		q, k = a.Heads*a.Dim, a.KVHeads*a.Dim
	}
	l.norm(p+"attn_q_norm", a.QNorm, q)
	l.norm(p+"attn_k_norm", a.KNorm, k)
	l.linears(p+"attn_output", a.O)
	if a.Sinks != "" {
		l.vector(p+"attn_sinks.weight", a.Sinks, []int{a.Heads})
	}
}

// mlp adds an MLP. Where gate and up are one matrix in llama.cpp too, that is called up.
func (l *layout) mlp(p, suffix string, m *arch.MLP) {
	if m.Gate.Stored == m.Up.Stored && l.joined {
		l.linears(p+"ffn_up"+suffix, m.Gate, m.Up)
	} else {
		l.linears(p+"ffn_gate"+suffix, m.Gate)
		l.linears(p+"ffn_up"+suffix, m.Up)
	}
	l.linears(p+"ffn_down"+suffix, m.Down)
}

func (l *layout) moe(p string, m *arch.MoE) {
	l.matrix(Tensor{Name: p + "ffn_gate_inp", Layers: []*arch.Linear{m.Router}, Float: true})
	if m.Routing.Correction != "" {
		l.vector(p+"exp_probs_b.bias", m.Routing.Correction, []int{len(m.Experts)})
	}
	l.experts(p+"ffn_gate_exps", m, func(e *arch.MLP) *arch.Linear { return e.Gate })
	l.experts(p+"ffn_up_exps", m, func(e *arch.MLP) *arch.Linear { return e.Up })
	l.experts(p+"ffn_down_exps", m, func(e *arch.MLP) *arch.Linear { return e.Down })
	if m.SharedGate != nil {
		// A matrix of one row, as a vector.
		l.vector(p+"ffn_gate_inp_shexp.weight", m.SharedGate.Stored.Tensor, []int{m.SharedGate.K}, 1, m.SharedGate.K)
	}
	if m.Shared != nil {
		l.mlp(p, "_shexp", m.Shared)
	}
}

// rope adds the divisors of the rotary frequencies, where they are no function that llama.cpp has.
func (l *layout) rope(r *arch.Rope) {
	vector := func(name string, values []float64) {
		t := Tensor{Name: name + ".weight", Shape: []int{len(values)}, Float: true}
		for _, v := range values {
			t.Values = append(t.Values, float32(v))
		}
		l.add(t)
	}
	switch r.Type {
	case "llama3":
		divisors := make([]float64, r.Dim/2)
		for i, f := range r.Frequencies(1) {
			divisors[i] = math.Pow(r.Theta, -2*float64(i)/float64(r.Dim)) / f
		}
		vector("rope_freqs", divisors)
	case "proportional":
		divisors := slices.Repeat([]float64{stillDivisor}, r.Dim/2)
		for i := range r.Turning {
			divisors[i] = 1
		}
		vector("rope_freqs", divisors)
	case "longrope":
		vector("rope_factors_long", r.Long)
		vector("rope_factors_short", r.Short)
	}
}
