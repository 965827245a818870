// Package model runs decoder language models on text, and learns the scales of
// their quantized layers.
//
// One decoder described by flags covers Llama, Mistral, SmolLM2, Qwen2, Qwen2.5
// and Qwen3: grouped-query attention, biases, normalized queries and keys, free
// head size, tied embeddings, and the rotary types default, linear and llama3.
//
//	h = embed[token]
//	for each block:
//	    h += O · attention(rope(norm(Q·n)), rope(norm(K·n)), V·n)    n = rmsnorm(h)
//	    h += Down · (silu(Gate·n) ∘ Up·n)                            n = rmsnorm(h)
//	logits = head · rmsnorm(h)
//
// It is written once over a small set of operations, [Ops], that a device
// implements. The residual stream h and its gradient are float32, all other
// activations of the device's type. Weights stay as they are stored: dense
// tensors in their own type, quantized layers packed.
package model

import (
	"context"
	"fmt"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
)

// Model is a decoder on a device. Its methods, and those of models on the same
// [Ops], may not be called concurrently: they share scratch memory and the device.
type Model struct {
	name   string
	config *hf.Config
	ops    Ops

	embed  Weight
	layers []layer
	norm   Array
	head   linear // its weight is embed where they are tied
	rope   rope

	own      owned
	scratch  scratch
	losses   lossScratch
	lossRows int // positions whose logits exist at a time
	train    trainScratch
}

// owned is what a model gives back when it is closed.
type owned struct {
	weights []Weight
	arrays  []Array
}

// Open reads the model in a Hugging Face folder or a lutq container, and checks
// the latter by its digests.
func Open(dir string, ops Ops) (*Model, error) { return open(dir, ops, lutq.Open) }

// OpenUnchecked is [Open] without a look at digests.
func OpenUnchecked(dir string, ops Ops) (*Model, error) { return open(dir, ops, lutq.OpenUnchecked) }

func open(dir string, ops Ops, container func(dir string) (*lutq.Model, error)) (*Model, error) {
	src, done, err := openSource(dir, container)
	if err != nil {
		return nil, err
	}
	m, err := New(src, ops)
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
func New(src Source, ops Ops) (*Model, error) {
	c := src.Config()
	if err := c.Supported(); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name(), err)
	}
	m := &Model{name: src.Name(), config: c, ops: ops, rope: newRope(c), lossRows: max(lossBytes/4/c.VocabSize, 1)}
	l := loader{src: src, ops: ops, own: &m.own}
	l.model(m)
	if err := src.Wait(); err != nil {
		l.err = fmt.Errorf("%s: %w", src.Name(), err) // which explains what else is wrong
	}
	if l.err == nil {
		if err := ops.Err(); err != nil {
			l.err = fmt.Errorf("%s: %w", src.Name(), err)
		}
	}
	if l.err != nil {
		m.Close()
		return nil, l.err
	}
	return m, nil
}

// Close gives the model's memory back. Models that [Model.With] made of it go
// with it.
func (m *Model) Close() {
	for _, w := range m.own.weights {
		m.ops.FreeWeight(w)
	}
	m.ops.Free(m.own.arrays...)
	m.own = owned{}
	m.scratch.free(m.ops)
	m.losses.free(m.ops)
	m.train.free(m.ops)
	m.rope.free(m.ops)
}

// Ops returns the operations that the model is computed by.
func (m *Model) Ops() Ops { return m.ops }

// Config returns the configuration that the model was built by.
func (m *Model) Config() *hf.Config { return m.config }

// Vocab returns the number of logits of a token.
func (m *Model) Vocab() int { return m.config.VocabSize }

// Hidden returns the states, acts [len(tokens), hidden], after the final norm, for
// one window of tokens from position 0 with causal attention. They stay valid
// until the next call. It returns the context's error when that ends between
// two layers, and fails when a state leaves the range of float32.
func (m *Model) Hidden(ctx context.Context, tokens []int) (Array, error) {
	a, err := m.start(tokens)
	if err != nil {
		return nil, err
	}
	if err := m.forward(ctx, a, tokens, nil); err != nil {
		return nil, err
	}
	return m.states(a), m.ops.Err()
}

// Logits applies the output head to rows states of [Model.Hidden] and writes
// floats [rows, Vocab].
func (m *Model) Logits(dst, h Array, rows int) error {
	if h.Len() != rows*m.config.HiddenSize || dst.Len() < rows*m.config.VocabSize {
		return fmt.Errorf("%d rows of logits: got %d states and room for %d", rows, h.Len()/m.config.HiddenSize, dst.Len()/m.config.VocabSize)
	}
	m.ops.Linear(h, rows, Product{Y: dst, W: m.head.w})
	return m.ops.Err()
}
