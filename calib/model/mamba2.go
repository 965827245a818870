package model

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// StateSpaceOps are the operations of state spaces.
type StateSpaceOps interface {
	RecurrentOps
	// StateSpace writes the y of arch.Mamba2, acts [rows, Heads, Dim], for x, acts [rows, Heads·Dim + 2·Groups·State], after the
	// convolution: x, B and C, one behind the other. dt is acts [rows, Heads], aLog, bias and d are floats [Heads]. state, floats
	// [slots, Heads, Dim, State], is that of texts, or nil.
	StateSpace(y, x, dt, aLog, bias, d, state Array, at Step, s StateSpaceShape)
	// NormGroups is RMSNorm, of each of so many groups of a row by itself; y may be x. w has factors for the whole row.
	NormGroups(y, x, w Array, rows, groups int, eps float64)
}

// StateSpaceShape are the sizes of a state space.
type StateSpaceShape struct{ Heads, Dim, Groups, State int }

// mamba2 implements [mixer] by a state space.
type mamba2 struct {
	desc *arch.Mamba2
	ops  StateSpaceOps

	made, out       linear
	conv, bias      Array // bias may be nil
	aLog, dtBias, d Array
	norm            Array
}

// mamba2 reads a state space but for its linear layers.
func (l *loader) mamba2(from *arch.Mamba2) *mamba2 {
	ops, ok := l.ops.(StateSpaceOps)
	if !ok {
		l.fail(fmt.Errorf("%s: state spaces %w", l.src.Name(), ErrCPUOnly))
		return nil
	}
	t := &mamba2{desc: from, ops: ops}
	t.conv, t.bias = l.convolution(from.Conv, from.ConvBias, from.Channels(), from.Width)
	t.aLog, t.dtBias, t.d = l.vector(from.ALog, 0, from.Heads), l.vector(from.DtBias, 0, from.Heads), l.vector(from.D, 0, from.Heads)
	t.norm = l.norm(&from.Norm, from.Inner())
	return t
}

func (t *mamba2) linears() []*linear { return []*linear{&t.made, &t.out} }

func (t *mamba2) clone() mixer {
	c := *t
	return &c
}

func (t *mamba2) bind(map[*arch.Rope]*rope) {}

func (t *mamba2) in() []Weight { return []Weight{t.made.w} }

// mamba2Room is what a token takes on the way: what In makes, together and apart, and what that is after the convolution.
func mamba2Room(d *arch.Mamba2) tokenRoom { return tokenRoom{acts: 2*d.Made() + d.Channels()} }

func (t *mamba2) reads(m *Model, a activations, x Array, stage int) Array {
	if stage == 0 {
		return x
	}
	return t.mix(m, a, x, nil, nil, Step{Runs: []Run{{Rows: a.t}}})
}

func (t *mamba2) recall(m *Model, a activations, x Array, k kept, at Step, _ places) Array {
	return t.mix(m, a, x, k.arrays[0], k.arrays[1], at)
}

// mix computes what Out reads, in a.q.
func (t *mamba2) mix(m *Model, a activations, x, inputs, state Array, at Step) Array {
	d, rows := t.desc, a.t
	inner, channels := d.Inner(), d.Channels()
	acts := taker{a.more}
	made := acts.take(rows * d.Made())
	m.ops.Linear(x, rows, t.made.to(made))
	part := func(from, width int) Array {
		y := acts.take(rows * width)
		m.ops.CopyHeads(y, made.Slice(from, made.Len()), HeadsShape{Rows: rows, Heads: 1, Width: width, ToRow: width, FromRow: d.Made()})
		return y
	}
	gates, mixed, dt := part(0, inner), part(inner, channels), part(inner+channels, d.Heads)
	passed := acts.take(rows * channels)
	t.ops.Convolve(passed, mixed, t.conv, t.bias, inputs, at, ConvShape{Channels: channels, Width: d.Width, SiLU: true})
	o := a.q.Slice(0, rows*inner)
	t.ops.StateSpace(o, passed, dt, t.aLog, t.dtBias, t.d, state, at, StateSpaceShape{d.Heads, d.Dim, d.Groups, d.State})
	m.ops.GLU(gates, gates, o, arch.Gating{Act: arch.SiLU})
	y := m.input(a, o, rows, t.out.w)
	t.ops.NormGroups(y, gates, t.norm, rows, d.Groups, d.Norm.Eps)
	return y
}

// keep allocates the last inputs of convolutions, and states.
func (t *mamba2) keep(ops Ops, slots, positions int) kept {
	d := t.desc
	return kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(slots * (d.Width - 1) * d.Channels()), ops.Floats(slots * d.Inner() * d.State)}}
}

func (t *mamba2) keeps(slots, _ int) int64 { return int64(slots) * int64(t.desc.Kept(1)) }
