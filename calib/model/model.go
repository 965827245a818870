// Package model runs decoder language models on text.
//
// One decoder described by flags covers Llama, Mistral, SmolLM2, Qwen2, Qwen2.5
// and Qwen3: grouped-query attention, biases, normalized queries and keys, free
// head size, tied embeddings, and the rotary types default, linear and llama3.
//
//	h = embed[token]
//	for each layer:
//	    h += O · attention(rope(norm(Q·n)), rope(norm(K·n)), V·n)    n = rmsnorm(h)
//	    h += Down · (silu(Gate·n) ∘ Up·n)                            n = rmsnorm(h)
//	logits = head · rmsnorm(h)
//
// Activations are float32. Weights stay as they are stored: dense tensors in
// their own type, quantized layers packed.
package model

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/gemm/cpu"
)

// Model is a decoder on the CPU. Its methods may not be called concurrently:
// they share scratch memory and the engine.
type Model struct {
	name   string
	config *hf.Config
	engine *cpu.Engine

	embed  rowReader
	layers []layer
	norm   []float32
	head   cpu.Weights
	rope   rope

	s scratch
}

// scratch holds the activations of a window; it grows to the longest one.
type scratch struct {
	h, n      []float32 // [T, hidden]
	q         []float32 // [T, heads·head_dim]; attention leaves its result there
	k, v      []float32 // [T, kv_heads·head_dim]
	gate, up  []float32 // [mlpRows, intermediate]
	add       []float32 // [T, hidden]
	attention attentionScratch
	bad       []bool // one for each token
	tokens    int    // T
}

// Open reads the model in a Hugging Face folder or a lutq container.
func Open(dir string, e *cpu.Engine) (*Model, error) {
	src, done, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	m, err := New(src, e)
	if closeErr := done(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// New reads a model from a source. A tensor that is missing, or that has
// another shape or type than the configuration asks for, is an error that
// names it.
func New(src Source, e *cpu.Engine) (*Model, error) {
	c := src.Config()
	if err := c.Supported(); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name(), err)
	}
	m := &Model{name: src.Name(), config: c, engine: e, rope: newRope(c)}
	l := loader{src: src}
	if err := l.model(m); err != nil {
		return nil, err
	}
	return m, nil
}

// Config returns the configuration that the model was built by.
func (m *Model) Config() *hf.Config { return m.config }

// Vocab returns the number of logits of a token.
func (m *Model) Vocab() int { return m.config.VocabSize }

// mlpRows is the number of tokens that pass through the MLP at a time: enough
// to decode packed weights seldom, few enough for the wide activations to stay
// in cache.
const mlpRows = 512

// Hidden returns the states [len(tokens), hidden] after the final norm, for
// one window of tokens from position 0 with causal attention. They stay valid
// until the next call. It returns the context's error when that ends between
// two layers, and fails when a state leaves the range of float32.
func (m *Model) Hidden(ctx context.Context, tokens []int) ([]float32, error) {
	if len(tokens) == 0 {
		return nil, errors.New("no tokens")
	}
	c := m.config
	for i, id := range tokens {
		if id < 0 || id >= c.VocabSize {
			return nil, fmt.Errorf("token %d at position %d is outside the vocabulary of %d", id, i, c.VocabSize)
		}
	}
	t, hidden := len(tokens), c.HiddenSize
	m.reserve(t)
	h, n := m.s.h[:t*hidden], m.s.n[:t*hidden]
	for i, id := range tokens {
		m.embed(h[i*hidden:(i+1)*hidden], id)
	}
	for i := range m.layers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d := &m.layers[i]
		m.normalize(n, h, d.inputNorm, t)
		m.attend(h, n, d, t)
		m.normalize(n, h, d.postNorm, t)
		m.mlp(h, n, d, t)
		if at := m.firstNotFinite(h, t); at >= 0 {
			return nil, fmt.Errorf("%s: the hidden state of token %d is not finite after layer %d", m.name, at, i)
		}
	}
	m.normalize(n, h, m.norm, t)
	return n, nil
}

// Logits applies the output head to rows states of [Model.Hidden] and writes
// [rows, Vocab].
func (m *Model) Logits(dst, h []float32, rows int) error {
	if len(h) != rows*m.config.HiddenSize || len(dst) < rows*m.config.VocabSize {
		return fmt.Errorf("%d rows of logits: got %d states and room for %d", rows, len(h)/m.config.HiddenSize, len(dst)/m.config.VocabSize)
	}
	m.engine.MatMul(dst, h, rows, m.head)
	return nil
}

// reserve makes room for windows of t tokens.
func (m *Model) reserve(t int) {
	if t <= m.s.tokens {
		return
	}
	c := m.config
	rows := min(t, mlpRows)
	m.s = scratch{
		h:         make([]float32, t*c.HiddenSize),
		n:         make([]float32, t*c.HiddenSize),
		add:       make([]float32, t*c.HiddenSize),
		q:         make([]float32, t*c.Heads*c.HeadDim),
		k:         make([]float32, t*c.KVHeads*c.HeadDim),
		v:         make([]float32, t*c.KVHeads*c.HeadDim),
		gate:      make([]float32, rows*c.IntermediateSize),
		up:        make([]float32, rows*c.IntermediateSize),
		attention: newAttentionScratch(c, t, m.engine.Threads()),
		bad:       make([]bool, t),
		tokens:    t,
	}
	m.rope.extend(t)
}

// rowsPerTask is how many tokens a task of a row-wise operation takes.
const rowsPerTask = 16

// overRows runs f for stretches [from, to) of t rows in parallel.
func (m *Model) overRows(t int, f func(from, to int)) {
	m.engine.Parallel((t+rowsPerTask-1)/rowsPerTask, func(_, i int) {
		f(i*rowsPerTask, min((i+1)*rowsPerTask, t))
	})
}

// normalize writes the RMS norm of t rows of h, weighted by w, to n.
func (m *Model) normalize(n, h, w []float32, t int) {
	width, eps := len(w), m.config.RMSNormEps
	m.overRows(t, func(from, to int) {
		for i := from; i < to; i++ {
			m.engine.RMSNorm(n[i*width:(i+1)*width], h[i*width:(i+1)*width], w, eps)
		}
	})
}

// attend adds the attention block of layer d, which reads n, to h.
func (m *Model) attend(h, n []float32, d *layer, t int) {
	c, s := m.config, &m.s
	qWidth, kvWidth := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	q, k, v := s.q[:t*qWidth], s.k[:t*kvWidth], s.v[:t*kvWidth]
	m.engine.MatMulMany(n, t, cpu.Op{Y: q, W: d.q.w}, cpu.Op{Y: k, W: d.k.w}, cpu.Op{Y: v, W: d.v.w})
	scale := float32(1 / math.Sqrt(float64(c.HeadDim)))
	m.overRows(t, func(from, to int) {
		for i := from; i < to; i++ {
			m.heads(q[i*qWidth:(i+1)*qWidth], d.q.bias, d.qNorm, i, scale)
			m.heads(k[i*kvWidth:(i+1)*kvWidth], d.k.bias, d.kNorm, i, 1)
			m.addBias(v[i*kvWidth:(i+1)*kvWidth], d.v.bias)
		}
	})
	m.attention(q, k, v, t)
	add := s.add[:len(h)]
	m.engine.MatMul(add, q, t, d.o.w)
	m.accumulate(h, add, d.o.bias, t)
}

// heads finishes the queries or keys of the token at position pos: bias, norm
// of each head, rotation, and a scale.
func (m *Model) heads(x, bias, norm []float32, pos int, scale float32) {
	m.addBias(x, bias)
	for dim := m.config.HeadDim; len(x) > 0; x = x[dim:] {
		head := x[:dim]
		if norm != nil {
			m.engine.RMSNorm(head, head, norm, m.config.RMSNormEps)
		}
		m.rope.rotate(head, pos, scale)
	}
}

func (m *Model) addBias(x, bias []float32) {
	if bias != nil {
		m.engine.Add(x, x, bias)
	}
}

// accumulate adds t rows of x, and a bias to each, to h.
func (m *Model) accumulate(h, x, bias []float32, t int) {
	width := m.config.HiddenSize
	m.overRows(t, func(from, to int) {
		for i := from; i < to; i++ {
			row := x[i*width : (i+1)*width]
			m.addBias(row, bias)
			m.engine.Add(h[i*width:(i+1)*width], h[i*width:(i+1)*width], row)
		}
	})
}

// mlp adds the MLP block of layer d, which reads n, to h.
func (m *Model) mlp(h, n []float32, d *layer, t int) {
	hidden, inter := m.config.HiddenSize, m.config.IntermediateSize
	for from := 0; from < t; from += mlpRows {
		rows := min(mlpRows, t-from)
		gate, up := m.s.gate[:rows*inter], m.s.up[:rows*inter]
		x := n[from*hidden : (from+rows)*hidden]
		m.engine.MatMulMany(x, rows, cpu.Op{Y: gate, W: d.gate.w}, cpu.Op{Y: up, W: d.up.w})
		m.overRows(rows, func(from, to int) {
			for i := from; i < to; i++ {
				g, u := gate[i*inter:(i+1)*inter], up[i*inter:(i+1)*inter]
				m.addBias(g, d.gate.bias)
				m.addBias(u, d.up.bias)
				m.engine.SiLUMul(g, g, u)
			}
		})
		add := m.s.add[:rows*hidden]
		m.engine.MatMul(add, gate, rows, d.down.w)
		m.accumulate(h[from*hidden:(from+rows)*hidden], add, d.down.bias, rows)
	}
}

// firstNotFinite returns the first of t rows whose squares do not add up to a
// finite number, which no RMS norm can read, or -1.
func (m *Model) firstNotFinite(h []float32, t int) int {
	width := m.config.HiddenSize
	bad := m.s.bad[:t]
	m.overRows(t, func(from, to int) {
		for i := from; i < to; i++ {
			row := h[i*width : (i+1)*width]
			sum := m.engine.Dot(row, row)
			bad[i] = math.IsNaN(sum) || math.IsInf(sum, 0)
		}
	})
	for i, b := range bad {
		if b {
			return i
		}
	}
	return -1
}
