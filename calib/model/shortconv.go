package model

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// ShortConvOps are the operations of short convolutions.
type ShortConvOps interface {
	Ops
	// ShortConv writes the c ∘ conv(b ∘ x) of arch.ShortConv, acts [rows, Channels], for what In makes of the rows of a step: made, acts
	// [rows, 3·Channels], has b, c and x. w is floats [Channels, Width], bias floats [Channels] or nil. kept, acts [slots, Width, Channels] in
	// an order of the device's own, or nil, is as [RecurrentOps] has it.
	ShortConv(y, made, w, bias, kept Array, at Step, s ConvShape)
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
		l.fail(fmt.Errorf("%s: short convolutions do not run on %s", l.src.Name(), l.ops.Name()))
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

// shortConvRoom is what a token takes on the way: what In makes.
func shortConvRoom(c *arch.ShortConv) tokenRoom { return tokenRoom{acts: 3 * c.Channels} }

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
	made := a.more.Slice(0, rows*3*wide)
	m.ops.Linear(x, rows, t.made.to(made))
	y := m.input(a, a.q.Slice(0, rows*wide), rows, t.out.w)
	t.ops.ShortConv(y, made, t.conv, t.bias, inputs, at, ConvShape{Channels: wide, Width: t.desc.Width})
	return y
}

// keep allocates the last inputs of convolutions.
func (t *shortConv) keep(ops Ops, slots, positions int) kept {
	return kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(int(t.keeps(slots, positions)))}}
}

func (t *shortConv) keeps(slots, _ int) int64 { return int64(slots) * int64(t.desc.Kept(1)) }
