package model

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// StateSpaceOps are the operations of state spaces.
type StateSpaceOps interface {
	Ops
	// StateSpace writes the y ∘ SiLU(z) of arch.Mamba2, acts [rows, Heads·Dim], for what In makes of the rows of a step, made, acts
	// [rows, 2·Heads·Dim + 2·Groups·State + Heads]. inputs, acts [slots, Width, Channels], has the last inputs of the convolution in an order
	// of the device's own, and state, floats [slots, Heads, Dim, State], the states; either is as [RecurrentOps] has it, or both are nil.
	// room, acts [rows, Channels], may take what passes the convolution, which is Heads·Dim + 2·Groups·State wide.
	StateSpace(y, made, room Array, w StateSpaceWeights, inputs, state Array, at Step, s StateSpaceShape)
	// NormGroups is RMSNorm, of each of so many groups of a row by itself; y may be x. w has factors for the whole row.
	NormGroups(y, x, w Array, rows, groups int, eps float64)
}

// StateSpaceWeights are the small tensors of a state space, floats: Conv [Channels, Width], ConvBias [Channels] or nil, and others [Heads].
type StateSpaceWeights struct{ Conv, ConvBias, ALog, DtBias, D Array }

// StateSpaceShape are the sizes of a state space.
type StateSpaceShape struct{ Heads, Dim, Groups, State, Width int }

// Channels is how many elements pass the convolution, and Made is how wide what In makes is.
func (s StateSpaceShape) Channels() int { return s.Heads*s.Dim + 2*s.Groups*s.State }
func (s StateSpaceShape) Made() int     { return s.Heads*s.Dim + s.Channels() + s.Heads }

// mamba2 implements [mixer] by a state space.
type mamba2 struct {
	desc *arch.Mamba2
	ops  StateSpaceOps

	made, out linear
	weights   StateSpaceWeights
	norm      Array
}

// mamba2 reads a state space but for its linear layers.
func (l *loader) mamba2(from *arch.Mamba2) *mamba2 {
	ops, ok := l.ops.(StateSpaceOps)
	if !ok {
		l.fail(fmt.Errorf("%s: state spaces do not run on %s", l.src.Name(), l.ops.Name()))
		return nil
	}
	t := &mamba2{desc: from, ops: ops}
	w := &t.weights
	w.Conv, w.ConvBias = l.convolution(from.Conv, from.ConvBias, from.Channels(), from.Width)
	w.ALog, w.DtBias, w.D = l.vector(from.ALog, 0, from.Heads), l.vector(from.DtBias, 0, from.Heads), l.vector(from.D, 0, from.Heads)
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

// mamba2Room is what a token takes on the way: what In makes, and what that is after the convolution.
func mamba2Room(d *arch.Mamba2) tokenRoom { return tokenRoom{acts: d.Made() + d.Channels()} }

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
	acts := taker{a.more}
	made, room := acts.take(rows*d.Made()), acts.take(rows*d.Channels())
	m.ops.Linear(x, rows, t.made.to(made))
	o := a.q.Slice(0, rows*d.Inner())
	t.ops.StateSpace(o, made, room, t.weights, inputs, state, at, StateSpaceShape{d.Heads, d.Dim, d.Groups, d.State, d.Width})
	y := m.input(a, o, rows, t.out.w)
	t.ops.NormGroups(y, o, t.norm, rows, d.Groups, d.Norm.Eps)
	return y
}

// keep allocates the last inputs of convolutions, and states.
func (t *mamba2) keep(ops Ops, slots, positions int) kept {
	d := t.desc
	return kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(slots * d.Width * d.Channels()), ops.Floats(slots * d.Inner() * d.State)}}
}

func (t *mamba2) keeps(slots, _ int) int64 { return int64(slots) * int64(t.desc.Kept(1)) }
