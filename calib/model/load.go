package model

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cpu"
)

// linear is y = x·Wᵀ + bias.
type linear struct {
	w    cpu.Weights
	bias []float32 // nil: none
}

// layer is one decoder block.
type layer struct {
	inputNorm, postNorm []float32
	q, k, v, o          linear
	qNorm, kNorm        []float32 // nil: none
	gate, up, down      linear
}

// Module paths below a decoder block that name linear layers.
const (
	qProj    = "self_attn.q_proj"
	kProj    = "self_attn.k_proj"
	vProj    = "self_attn.v_proj"
	oProj    = "self_attn.o_proj"
	gateProj = "mlp.gate_proj"
	upProj   = "mlp.up_proj"
	downProj = "mlp.down_proj"
)

// loader reads the parts of a model and remembers the first error.
type loader struct {
	src Source
	err error
}

func (l *loader) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// model fills in the weights.
func (l *loader) model(m *Model) error {
	c := m.config
	l.embeddings(m)
	m.norm = l.vector("model.norm.weight", c.HiddenSize)
	m.layers = make([]layer, c.Layers)
	for i := range m.layers {
		l.layer(&m.layers[i], c, fmt.Sprintf("model.layers.%d.", i))
	}
	return l.err
}

func (l *loader) layer(d *layer, c *hf.Config, prefix string) {
	qWidth, kvWidth := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	d.inputNorm = l.vector(prefix+"input_layernorm.weight", c.HiddenSize)
	d.postNorm = l.vector(prefix+"post_attention_layernorm.weight", c.HiddenSize)
	d.q = l.linear(prefix+qProj, qWidth, c.HiddenSize, c.AttentionBias)
	d.k = l.linear(prefix+kProj, kvWidth, c.HiddenSize, c.AttentionBias)
	d.v = l.linear(prefix+vProj, kvWidth, c.HiddenSize, c.AttentionBias)
	d.o = l.linear(prefix+oProj, c.HiddenSize, qWidth, c.OutputBias)
	if c.QKNorm {
		d.qNorm = l.vector(prefix+"self_attn.q_norm.weight", c.HeadDim)
		d.kNorm = l.vector(prefix+"self_attn.k_norm.weight", c.HeadDim)
	} else {
		l.refuse(prefix+"self_attn.q_norm.weight", prefix+"self_attn.k_norm.weight")
	}
	d.gate = l.linear(prefix+gateProj, c.IntermediateSize, c.HiddenSize, c.MLPBias)
	d.up = l.linear(prefix+upProj, c.IntermediateSize, c.HiddenSize, c.MLPBias)
	d.down = l.linear(prefix+downProj, c.HiddenSize, c.IntermediateSize, c.MLPBias)
}

// embeddings reads the token embedding and the output head. Where they are
// tied, the one matrix may lie under either name.
func (l *loader) embeddings(m *Model) {
	const in, out = "model.embed_tokens", "lm_head"
	c := m.config
	name := in
	if c.TieEmbeddings && !l.has(in) && l.has(out) {
		name = out
	}
	w, row := l.matrix(name, c.VocabSize, c.HiddenSize)
	m.embed = row
	if !c.TieEmbeddings {
		w, _ = l.matrix(out, c.VocabSize, c.HiddenSize)
	}
	m.head = w
}

// has reports whether a matrix is there, dense or quantized.
func (l *loader) has(layer string) bool {
	if _, ok := l.src.Tensor(layer + ".weight"); ok {
		return true
	}
	q, err := l.src.Quantized(layer)
	if err != nil {
		l.fail(err)
	}
	return q != nil
}

// refuse fails on tensors that a model with these flags would not use: left
// out in silence they would change what it computes.
func (l *loader) refuse(names ...string) {
	for _, name := range names {
		if t, ok := l.src.Tensor(name); ok {
			l.fail(fmt.Errorf("%s: %s in %s has no place in a model of this config", l.src.Name(), name, t.Shard))
		}
	}
}

func (l *loader) linear(name string, n, k int, bias bool) linear {
	var lin linear
	lin.w, _ = l.matrix(name, n, k)
	if bias {
		lin.bias = l.vector(name+".bias", n)
	} else {
		l.refuse(name + ".bias")
	}
	return lin
}

// rowReader decodes row i of a matrix to dst.
type rowReader func(dst []float32, i int)

// matrix reads an [n, k] matrix in the form in which it is stored.
func (l *loader) matrix(name string, n, k int) (cpu.Weights, rowReader) {
	if l.err != nil {
		return nil, nil
	}
	q, err := l.src.Quantized(name)
	if err != nil {
		l.fail(fmt.Errorf("%s: %w", l.src.Name(), err))
		return nil, nil
	}
	if q != nil {
		if q.N != n || q.K != k {
			l.fail(fmt.Errorf("%s: quantized %s has shape [%d, %d]: want [%d, %d]", l.src.Name(), name, q.N, q.K, n, k))
			return nil, nil
		}
		w, err := newLUT(q)
		if err != nil {
			l.fail(fmt.Errorf("%s: %s: %w", l.src.Name(), name, err))
			return nil, nil
		}
		return w, lutRows(q)
	}
	t, data := l.read(name+".weight", n, k)
	if l.err != nil {
		return nil, nil
	}
	w, err := cpu.NewDense(n, k, string(t.DType), data)
	if err != nil {
		l.fail(fmt.Errorf("%s: %s in %s: %w", l.src.Name(), t.Name, t.Shard, err))
		return nil, nil
	}
	return w, denseRows(t.DType, data, k)
}

// vector reads n numbers as float32.
func (l *loader) vector(name string, n int) []float32 {
	t, data := l.read(name, n)
	if l.err != nil {
		return nil
	}
	v := make([]float32, n)
	decode(t.DType, v, data)
	return v
}

// read returns the bytes of a tensor of the given shape, all of them finite
// numbers of a type that the kernels multiply by.
func (l *loader) read(name string, shape ...int) (*hf.Tensor, []byte) {
	if l.err != nil {
		return nil, nil
	}
	t, ok := l.src.Tensor(name)
	if !ok {
		l.fail(fmt.Errorf("%s: no tensor %s", l.src.Name(), name))
		return nil, nil
	}
	fail := func(err error) (*hf.Tensor, []byte) {
		l.fail(fmt.Errorf("%s: %s in %s: %w", l.src.Name(), name, t.Shard, err))
		return nil, nil
	}
	switch t.DType {
	case hf.F32, hf.F16, hf.BF16:
	default:
		return fail(fmt.Errorf("type %s: want F32, F16 or BF16", t.DType))
	}
	if !slices.Equal(t.Shape, shape) {
		return fail(fmt.Errorf("shape %v: want %v", t.Shape, shape))
	}
	data := make([]byte, t.Bytes())
	if len(data) > 0 {
		if _, err := t.ReadAt(data, 0); err != nil {
			return fail(err)
		}
	}
	if i := t.DType.FirstNotFinite(data); i >= 0 {
		return fail(fmt.Errorf("element %d is NaN or infinite", i))
	}
	return t, data
}

func decode(t hf.DType, dst []float32, src []byte) {
	switch t {
	case hf.F32:
		num.DecodeF32(dst, src)
	case hf.F16:
		num.DecodeF16(dst, src)
	case hf.BF16:
		num.DecodeBF16(dst, src)
	}
}

func denseRows(t hf.DType, data []byte, k int) rowReader {
	width := k * t.Bits() / 8
	return func(dst []float32, i int) { decode(t, dst, data[i*width:(i+1)*width]) }
}
