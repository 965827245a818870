package gguf

import (
	"errors"
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
//   - Source: a tensor of the model, with Offset added to each element.
//   - Values: what follows from config.json.
type Tensor struct {
	Name  string
	Shape []int // row-major, columns last, which files have first

	Layers []*arch.Linear
	Bias   bool
	// Heads, if not 0, says that rows, or elements of a bias, have been permuted within so many heads: row i of
	// the tensor is the layer's row [Tensor.Row](i).
	Heads int

	Source string
	Offset float32

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

// Row returns which row of the model's layer row i of the tensor is. A head of 2h rows has them in the order
// 0, h, 1, h+1, …, so that the pairs that turn together stand side by side.
func (t *Tensor) Row(i int) int {
	if t.Heads == 0 {
		return i
	}
	dim := t.Rows() / t.Heads
	head, at := i/dim*dim, i%dim
	return head + at%2*dim/2 + at/2
}

// family is how llama.cpp runs a family of models.
type family struct {
	name     string // of package arch
	arch     string // general.architecture
	permuted bool   // the pairs (2i, 2i+1) of a head turn, not (i, i+h)
	act      arch.Activation
	biases   []string // tensors that may have one; others are refused
	window   int      // every window-th layer sees all, those between slide; 0: none slides

	normalize bool // weights of experts sum to 1
	freqs     bool // takes rope_freqs
	longrope  bool // takes rope_factors_long and rope_factors_short
	attnScale bool // takes attention.scale
}

// families lists the families that can be written. A new one is a line here; what no line tells is in [Tensors].
func families() []family {
	attn := []string{"attn_q", "attn_k", "attn_v"}
	llama := slices.Concat(attn, []string{"attn_output", "ffn_gate", "ffn_up", "ffn_down"})
	oss := slices.Concat(attn, []string{"attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"})
	return []family{
		{name: "llama", arch: "llama", permuted: true, act: arch.SiLU, biases: llama, freqs: true, longrope: true, attnScale: true},
		{name: "mistral", arch: "llama", permuted: true, act: arch.SiLU, freqs: true, longrope: true, attnScale: true},
		{name: "mixtral", arch: "llama", permuted: true, act: arch.SiLU, normalize: true, freqs: true, longrope: true, attnScale: true},
		{name: "qwen2", arch: "qwen2", act: arch.SiLU, biases: attn},
		{name: "qwen2_moe", arch: "qwen2moe", act: arch.SiLU, biases: attn},
		{name: "qwen3", arch: "qwen3", act: arch.SiLU},
		{name: "qwen3_moe", arch: "qwen3moe", act: arch.SiLU, normalize: true},
		{name: "gemma2", arch: "gemma2", act: arch.GELUTanh, window: 2},
		{name: "gemma3", arch: "gemma3", act: arch.GELUTanh, window: 6},
		{name: "phi3", arch: "phi3", act: arch.SiLU, longrope: true},
		{name: "gpt_oss", arch: "gpt-oss", act: arch.SwiGLUOAI, biases: oss, window: 2, normalize: true},
	}
}

func familyOf(d *arch.Decoder) (family, error) {
	var names []string
	for _, f := range families() {
		if f.name == d.Family {
			return f, nil
		}
		names = append(names, f.name)
	}
	return family{}, fmt.Errorf("models of the family %s have no GGUF: want one of %v", d.Family, names)
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
	for i := range d.Blocks {
		l.block(fmt.Sprintf("blk.%d.", i), &d.Blocks[i])
	}
	l.norm("output_norm", &d.Norm, d.Hidden)
	if !d.Tied {
		l.linears("output", d.Head)
	}
	l.rope(d.Blocks[0].Attn().Rope)
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
	if n != nil {
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
		n += x.N
	}
	t.Name, t.Shape = name+".weight", []int{n, first.K}
	l.add(t)
	if first.Stored.Bias == "" {
		return
	}
	l.bias(name)
	t.Name, t.Shape, t.Bias, t.Float = name+".bias", []int{n}, true, true
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
		t.Heads = heads
	}
	l.matrix(t)
}

func (l *layout) block(p string, b *arch.Block) {
	a := b.Attn()
	l.norm(p+"attn_norm", &b.AttnNorm, l.hidden)
	if a.Q.Stored == a.K.Stored {
		l.linears(p+"attn_qkv", a.Q, a.K, a.V)
	} else {
		l.rotary(p+"attn_q", a.Q, a.Heads)
		l.rotary(p+"attn_k", a.K, a.KVHeads)
		l.linears(p+"attn_v", a.V)
	}
	l.norm(p+"attn_q_norm", a.QNorm, a.Dim)
	l.norm(p+"attn_k_norm", a.KNorm, a.Dim)
	l.linears(p+"attn_output", a.O)
	if a.Sinks != "" {
		l.add(Tensor{Name: p + "attn_sinks.weight", Shape: []int{a.Heads}, Source: a.Sinks, Float: true})
	}
	mlpNorm := "ffn_norm"
	if l.arch == "gpt-oss" {
		mlpNorm = "post_attention_norm"
	}
	l.norm(p+"post_attention_norm", b.AttnOut, l.hidden)
	l.norm(p+mlpNorm, &b.MLPNorm, l.hidden)
	if b.MLP != nil {
		l.mlp(p, "", b.MLP)
	} else {
		l.moe(p, b.MoE)
	}
	l.norm(p+"post_ffw_norm", b.MLPOut, l.hidden)
}

// mlp adds an MLP. Where gate and up are one matrix, that is called up.
func (l *layout) mlp(p, suffix string, m *arch.MLP) {
	if m.Gate.Stored == m.Up.Stored {
		l.linears(p+"ffn_up"+suffix, m.Gate, m.Up)
	} else {
		l.linears(p+"ffn_gate"+suffix, m.Gate)
		l.linears(p+"ffn_up"+suffix, m.Up)
	}
	l.linears(p+"ffn_down"+suffix, m.Down)
}

func (l *layout) moe(p string, m *arch.MoE) {
	l.matrix(Tensor{Name: p + "ffn_gate_inp", Layers: []*arch.Linear{m.Router}, Float: true})
	l.experts(p+"ffn_gate_exps", m, func(e *arch.MLP) *arch.Linear { return e.Gate })
	l.experts(p+"ffn_up_exps", m, func(e *arch.MLP) *arch.Linear { return e.Up })
	l.experts(p+"ffn_down_exps", m, func(e *arch.MLP) *arch.Linear { return e.Down })
	if m.SharedGate != nil {
		// A matrix of one row, as a vector.
		l.add(Tensor{Name: p + "ffn_gate_inp_shexp.weight", Shape: []int{m.SharedGate.K}, Source: m.SharedGate.Stored.Tensor, Float: true})
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
	case "longrope":
		vector("rope_factors_long", r.Long)
		vector("rope_factors_short", r.Short)
	}
}

// check refuses a model that llama.cpp would compute otherwise.
func (f family) check(d *arch.Decoder) error {
	if len(d.Blocks) == 0 {
		return errors.New("a model without layers")
	}
	for i := range d.Blocks {
		if err := f.checkBlock(d, i); err != nil {
			return fmt.Errorf("%s: %w", d.Blocks[i].Path, err)
		}
	}
	return nil
}

func (f family) checkBlock(d *arch.Decoder, i int) error {
	b, a := &d.Blocks[i], d.Blocks[i].Attn()
	r := a.Rope
	switch {
	case f.permuted && r.Dim != a.Dim:
		return fmt.Errorf("%d of a head's %d elements turn: llama.cpp turns all", r.Dim, a.Dim)
	case r.Type == "llama3" && !f.freqs, r.Type == "longrope" && !f.longrope:
		return fmt.Errorf("rope type %s: llama.cpp has none in models of the architecture %s", r.Type, f.arch)
	case r.Type == "yarn" && !r.Truncate && f.arch != "gpt-oss":
		return errors.New("rope type yarn without truncate: llama.cpp has none")
	case f.arch == "gemma3" && a.Window > 0 && r.Type != "default":
		return fmt.Errorf("rope type %s in layers with a window: llama.cpp has none there", r.Type)
	case a.ScoreCap != 0 && f.arch != "gemma2":
		return fmt.Errorf("scores have a cap: llama.cpp has none in models of the architecture %s", f.arch)
	case f.window > 0 && a.Window != f.windowOf(d, i):
		return fmt.Errorf("window of %d: in models of the architecture %s llama.cpp slides otherwise", a.Window, f.arch)
	case !f.attnScale && !near(a.Scale, f.scale(d)):
		return fmt.Errorf("scores are scaled by %.4g: llama.cpp takes %.4g", a.Scale, f.scale(d))
	}
	for _, m := range b.MLPs() {
		if m.Act.Act != f.act {
			return fmt.Errorf("activation %s: llama.cpp takes %s in models of the architecture %s", m.Act.Act, f.act, f.arch)
		}
	}
	switch sparse := f.arch == "qwen2moe" || f.arch == "qwen3moe"; {
	case sparse && b.MoE == nil:
		return fmt.Errorf("is dense: llama.cpp wants experts in all layers of the architecture %s", f.arch)
	case b.MoE != nil && b.MoE.Normalize != f.normalize:
		return fmt.Errorf("norm_topk_prob is %v: llama.cpp takes %v in models of the architecture %s", b.MoE.Normalize, f.normalize, f.arch)
	}
	return nil
}

// windowOf is the window that llama.cpp gives a layer: that of the first, which slides if any does, or none.
func (f family) windowOf(d *arch.Decoder, i int) int {
	if (i+1)%f.window == 0 {
		return 0
	}
	return d.Blocks[0].Attn().Window
}

// scale is what llama.cpp multiplies scores by. Of Gemma's largest models it is not that of a head.
func (f family) scale(d *arch.Decoder) float64 {
	a := d.Blocks[0].Attn()
	if f.arch == "gemma2" && len(d.Blocks) == 46 || f.arch == "gemma3" && len(d.Blocks) == 62 {
		return 1 / math.Sqrt(float64(d.Hidden/a.Heads))
	}
	return 1 / math.Sqrt(float64(a.Dim))
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }
