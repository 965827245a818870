package model

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/lut"
)

// loader reads the parts of a model and remembers the first error.
type loader struct {
	src Source
	ops Ops
	own *owned
	err error
}

func (l *loader) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// model fills in the weights.
func (l *loader) model(m *Model) {
	c := m.config
	l.embeddings(m)
	m.norm = l.vector("model.norm.weight", c.HiddenSize)
	m.layers = make([]layer, c.Layers)
	for i := range m.layers {
		l.layer(&m.layers[i], c, fmt.Sprintf("model.layers.%d.", i))
	}
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
	c := m.config
	name := embedTokens
	if c.TieEmbeddings && !l.has(embedTokens) && l.has(lmHead) {
		name = lmHead
	}
	m.embed = l.matrix(name, c.VocabSize, c.HiddenSize)
	m.head = linear{path: name, w: m.embed}
	if !c.TieEmbeddings {
		m.head = linear{path: lmHead, w: l.matrix(lmHead, c.VocabSize, c.HiddenSize)}
	}
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

func (l *loader) linear(path string, n, k int, bias bool) linear {
	lin := linear{path: path, w: l.matrix(path, n, k)}
	if bias {
		lin.bias = l.vector(path+".bias", n)
	} else {
		l.refuse(path + ".bias")
	}
	return lin
}

// matrix reads an [n, k] matrix in the form in which it is stored.
func (l *loader) matrix(path string, n, k int) Weight {
	if l.err != nil {
		return nil
	}
	q, err := l.src.Quantized(path)
	if err != nil {
		l.fail(fmt.Errorf("%s: %w", l.src.Name(), err))
		return nil
	}
	if q != nil {
		return l.packed(path, q, n, k)
	}
	t, data := l.read(path+".weight", n, k)
	if l.err != nil {
		return nil
	}
	w, err := l.ops.Dense(n, k, t.DType, data)
	if err != nil {
		l.fail(fmt.Errorf("%s: %s in %s: %w", l.src.Name(), t.Name, t.Shard, err))
		return nil
	}
	l.own.weights = append(l.own.weights, w)
	return w
}

func (l *loader) packed(path string, q *lut.Matrix, n, k int) Weight {
	if q.N != n || q.K != k {
		l.fail(fmt.Errorf("%s: quantized %s has shape [%d, %d]: want [%d, %d]", l.src.Name(), path, q.N, q.K, n, k))
		return nil
	}
	w, err := l.ops.Packed(q)
	if err != nil {
		l.fail(fmt.Errorf("%s: %s: %w", l.src.Name(), path, err))
		return nil
	}
	l.own.weights = append(l.own.weights, w)
	return w
}

// vector reads n numbers as floats.
func (l *loader) vector(name string, n int) Array {
	t, data := l.read(name, n)
	if l.err != nil {
		return nil
	}
	v := make([]float32, n)
	switch t.DType {
	case hf.F32:
		num.DecodeF32(v, data)
	case hf.F16:
		num.DecodeF16(v, data)
	case hf.BF16:
		num.DecodeBF16(v, data)
	}
	a := l.ops.Floats(n)
	l.ops.Write(a, v)
	l.own.arrays = append(l.own.arrays, a)
	return a
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
	data, err := l.src.Read(t)
	if err != nil {
		return fail(err)
	}
	if i := t.DType.FirstNotFinite(data); i >= 0 {
		return fail(fmt.Errorf("element %d is NaN or infinite", i))
	}
	return t, data
}
