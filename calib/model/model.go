// Package model runs decoder language models on text, forward and backward. While it does, it shows what the layers
// read to whoever quantizes them.
//
// It computes the decoder that package formats/arch describes, whatever its family. It is written once over a small set
// of operations, [Ops]. Packages model/cpu and model/cuda implement them. The residual stream h and its gradient are
// float32; all other activations have the device's type. Weights stay as they are stored: dense tensors in their own
// type, quantized layers packed.
package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
)

// Model is a decoder on a device. Its methods, and those of models on the same
// [Ops], may not be called concurrently: they share scratch memory and the device.
type Model struct {
	name string
	desc *arch.Decoder
	ops  Ops

	embed  Weight
	tokens tokenInputs
	layers []layer
	norm   Array
	head   linear  // its weight is embed where they are tied
	joined bool    // whether layers that read the same are, where they can be
	ropes  []*rope // that layers share

	own      owned
	scratch  scratch
	losses   lossScratch
	lossRows int // positions whose logits exist at a time
	mostRows int // that pass through an MLP at a time where no gradient is wanted; 0: as many as the device takes
	train    trainScratch

	division *division // nil: it is whole
	team     *team     // of the first part of a divided model
	some     Array     // of a part of a divided head: floats [rows, its own logits]
	unread   Array     // floats, logits of a part that another is asked for
}

// owned is what a model gives back when it is closed.
type owned struct {
	weights  []Weight
	arrays   []Array
	mixtures []Mixture
	unpacked []string // kinds of weights that the device has no kernel for
}

// OpenOptions adjust [Open].
type OpenOptions struct {
	// Layouts, if not nil, returns the layers of a container as the device's kernels read
	// them, or nil where it has none.
	Layouts func(m *lutq.Model) (Layouts, error)
	// HeadBits, if not 0, is what the output head is quantized to while it is read, each weight to the nearest value, in
	// groups of [HeadGroup]. The token embedding stays as it is, also where it is the head. A head
	// that is quantized already is an error.
	HeadBits int
}

// Open reads the weights of an open model, which it forgets then.
func Open(from *source.Model, ops Ops, o OpenOptions) (*Model, error) {
	src, done, err := sourceOf(from, o.Layouts)
	if err != nil {
		return nil, err
	}
	m, err := build(src, ops, o.HeadBits)
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
func New(src Source, ops Ops) (*Model, error) { return build(src, ops, 0) }

func build(src Source, ops Ops, headBits int) (*Model, error) {
	return buildPart(src, ops, headBits, nil)
}

// buildPart builds a model, or a part of one.
func buildPart(src Source, ops Ops, headBits int, of *division) (*Model, error) {
	d := src.Decoder()
	m := &Model{name: src.Name(), desc: d, ops: ops, lossRows: max(lossBytes/4/d.Vocab, 1), division: of}
	order := d.Stored()
	if last := len(order) - 1; !d.Tied {
		order = slices.Concat(order[last:], order[:last]) // the head is read with the embedding
	}
	ahead := newAhead(src, order)
	l := loader{src: src, take: ahead.take, ops: ops, own: &m.own, headBits: headBits}
	l.model(m)
	ahead.wait()
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
	if t := m.team; t != nil {
		for _, p := range t.parts[1:] {
			p.Close()
		}
	}
	m.ops.Free(m.some, m.unread)
	for _, x := range m.own.mixtures {
		x.Close()
	}
	for _, w := range m.own.weights {
		m.ops.FreeWeight(w)
	}
	m.ops.Free(m.own.arrays...)
	m.own = owned{}
	m.scratch.free(m.ops)
	m.losses.free(m.ops)
	m.train.free(m.ops)
	for _, r := range m.ropes {
		r.free(m.ops)
	}
}

// Unpacked returns the kinds of the model's weights that the device has no kernel for and
// multiplies dense.
func (m *Model) Unpacked() []string { return m.own.unpacked }

// Ops returns the operations that the model is computed by.
func (m *Model) Ops() Ops { return m.ops }

// Decoder returns the description that the model was built by.
func (m *Model) Decoder() *arch.Decoder {
	if m.team != nil {
		return m.team.desc
	}
	return m.desc
}

// Vocab returns the number of logits of a token.
func (m *Model) Vocab() int { return m.desc.Vocab }

// Hidden returns the states, acts [len(tokens), hidden], after the final norm, for
// one window of tokens from position 0 with causal attention. They stay valid
// until the next call. It returns the context's error when that ends between
// two layers, and fails when a state leaves the range of float32.
func (m *Model) Hidden(ctx context.Context, tokens []int) (Array, error) {
	parts := m.all()
	ctx, err := agreed(ctx, len(parts))
	if err != nil {
		return nil, err
	}
	var h Array
	err = together(len(parts), func(i int) error {
		n, err := parts[i].hidden(ctx, tokens)
		if i == 0 {
			h = n
		}
		return err
	})
	return h, err
}

// hidden is Hidden of a part.
func (m *Model) hidden(ctx context.Context, tokens []int) (Array, error) {
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
	if m.team != nil {
		return fmt.Errorf("%s: logits of a divided model are of the states that it has left", m.name)
	}
	if h.Len() != rows*m.desc.Hidden || dst.Len() < rows*m.desc.Vocab {
		return fmt.Errorf("%d rows of logits: got %d states and room for %d", rows, h.Len()/m.desc.Hidden, dst.Len()/m.desc.Vocab)
	}
	m.logits(dst.Slice(0, rows*m.desc.Vocab), nil, h, rows)
	return m.ops.Err()
}

// logits queues the output head. some has room for what a part of it makes, nil where it is whole.
func (m *Model) logits(dst, some, h Array, rows int) {
	if some == nil {
		m.ops.Linear(h, rows, m.head.to(dst))
	} else {
		some = some.Slice(0, rows*m.division.head(m.desc.Vocab).n)
		m.ops.Linear(h, rows, m.head.to(some))
		m.division.Collect(dst, some, rows)
	}
	if m.desc.LogitCap > 0 {
		m.ops.SoftCap(dst, m.desc.LogitCap)
	}
}
