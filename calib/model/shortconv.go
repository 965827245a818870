package model

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// ErrCPUOnly is the error for models with a mixer that a device has no operations for.
var ErrCPUOnly = errors.New("run on the cpu only")

// ShortConvOps are the operations of short convolutions.
type ShortConvOps interface {
	RecurrentOps
	// Multiply writes y = a∘b, acts. y may be either.
	Multiply(y, a, b Array)
}

// shortConv implements [mixer] by a short convolution.
type shortConv struct {
	desc *arch.ShortConv
	ops  ShortConvOps

	made, out  linear
	conv, bias Array // bias may be nil
}

// shortConv reads a short convolution but for its linear layers.
func (l *loader) shortConv(from *arch.ShortConv) *shortConv {
	ops, ok := l.ops.(ShortConvOps)
	if !ok {
		l.fail(fmt.Errorf("%s: short convolutions %w", l.src.Name(), ErrCPUOnly))
		return nil
	}
	t := &shortConv{desc: from, ops: ops}
	t.conv, t.bias = l.convolution(from.Conv, from.ConvBias, from.Channels, from.Width)
	return t
}

// convolution reads the weights of a convolution and its bias, which may have no name.
func (l *loader) convolution(weights, offsets string, channels, width int) (w, bias Array) {
	if v := l.floats(weights, channels, 1, width); l.err == nil {
		w = l.upload(v)
	}
	if offsets != "" {
		bias = l.vector(offsets, 0, channels)
	}
	return w, bias
}

func (t *shortConv) linears() []*linear { return []*linear{&t.made, &t.out} }

func (t *shortConv) clone() mixer {
	c := *t
	return &c
}

func (t *shortConv) bind(map[*arch.Rope]*rope) {}

func (t *shortConv) in() []Weight { return []Weight{t.made.w} }

// shortConvRoom is what a token takes on the way: what In makes, together and apart.
func shortConvRoom(c *arch.ShortConv) tokenRoom { return tokenRoom{acts: 6 * c.Channels} }

func (t *shortConv) reads(m *Model, a activations, x Array, stage int) Array {
	if stage == 0 {
		return x
	}
	return t.mix(m, a, x, nil, Step{Runs: []Run{{Rows: a.t}}})
}

func (t *shortConv) recall(m *Model, a activations, x Array, k kept, at Step, _ places) Array {
	return t.mix(m, a, x, k.arrays[0], at)
}

// mix computes what Out reads, in a.q.
func (t *shortConv) mix(m *Model, a activations, x, inputs Array, at Step) Array {
	rows, wide := a.t, t.desc.Channels
	acts := taker{a.more}
	made := acts.take(rows * 3 * wide)
	m.ops.Linear(x, rows, t.made.to(made))
	var parts [3]Array
	for i := range parts {
		parts[i] = acts.take(rows * wide)
		m.ops.CopyHeads(parts[i], made.Slice(i*wide, made.Len()), HeadsShape{Rows: rows, Heads: 1, Width: wide, ToRow: wide, FromRow: 3 * wide})
	}
	t.ops.Multiply(parts[0], parts[0], parts[2])
	o := a.q.Slice(0, rows*wide)
	t.ops.Convolve(o, parts[0], t.conv, t.bias, inputs, at, ConvShape{Channels: wide, Width: t.desc.Width})
	y := m.input(a, o, rows, t.out.w)
	t.ops.Multiply(y, o, parts[1])
	return y
}

// keep allocates the last inputs of convolutions.
func (t *shortConv) keep(ops Ops, slots, positions int) kept {
	return kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(int(t.keeps(slots, positions)))}}
}

func (t *shortConv) keeps(slots, _ int) int64 { return int64(slots) * int64(t.desc.Kept(1)) }
