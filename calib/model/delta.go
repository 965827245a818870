package model

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// RecurrentOps are the operations of mixers that keep a state of a text, in place of all its tokens. Runs of rows of a [Step] are those
// of a text each; one from position 0 begins with a state of zeros, and where kept or state is nil all runs are from there.
type RecurrentOps interface {
	Ops
	// Convolve writes y[t, c] = Σ_j w[c, j]·x[t−Width+1+j, c] + bias[c], and of that SiLU, of the rows of a step, acts
	// [rows, Channels]. w is floats [Channels, Width], bias floats [Channels] or nil. kept, acts [slots, Width, Channels] in an order of
	// the device's own, has the inputs before a run, and takes its last ones. y may not be x.
	Convolve(y, x, w, bias, kept Array, at Step, s ConvShape)
	// DeltaRule writes the o of arch.DeltaNet, acts [rows, VHeads, VDim], for x, acts [rows, Channels], after the convolution: all
	// queries, keys and values, one behind the other. a and b, floats [rows, VHeads], are what the layers of these names make,
	// aLog and bias floats [VHeads]. state, floats [slots, VHeads, KDim, VDim] in an order of the device's own, is that of texts.
	DeltaRule(o, x, a, b, aLog, bias, state Array, at Step, s DeltaShape)
}

// DeltaStepper is implemented by [Ops] that do all at once that gated delta rules do between two products, of the newest token of each text.
type DeltaStepper interface {
	// DeltaSteps reports whether DeltaStep is for such sizes, and gates of such weights.
	DeltaSteps(s DeltaShape, c ConvShape, gates ...Weight) bool
	// DeltaStep writes GLU of Z and the RMSNorm by Norm and Eps of what DeltaRule makes after Convolve, acts [rows, VHeads, VDim]. y may be what
	// [Preparer] gives.
	DeltaStep(y Array, s DeltaStep, at Step)
}

// DeltaStep is what a [DeltaStepper] reads, and keeps.
type DeltaStep struct {
	Shape            DeltaShape
	Conv             ConvShape
	QKV, Z           Array  // acts, of the first row on
	QKVPitch, ZPitch int    // elements from a row to the next
	X                Array  // acts [rows, hidden], of which B and A make β and α
	B, A             Weight // [VHeads, hidden]
	Grouped          bool   // see arch.DeltaNet: B and A are one, and QKV has Z's too
	Weights          Array  // floats [Channels, Width] of the convolution
	ALog, Bias, Norm Array  // floats [VHeads], [VHeads] and [VDim]
	Eps              float64
	Kept, State      Array // as Convolve and DeltaRule keep them
}

// ConvShape are the sizes of a convolution of each channel by itself.
type ConvShape struct{ Channels, Width int }

// DeltaShape are the sizes of a gated delta rule.
type DeltaShape struct{ KHeads, VHeads, KDim, VDim int }

// deltaNet implements [mixer] by a gated delta rule.
type deltaNet struct {
	desc *arch.DeltaNet
	ops  RecurrentOps

	qkv, z, o, b, a    linear // z and a are none where qkv and b make theirs
	qkvz               joined
	conv, aLog, dtBias Array
	norm               Array
}

// delta reads a gated delta rule but for its layers that are quantized.
func (l *loader) delta(from *arch.DeltaNet) *deltaNet {
	ops, ok := l.ops.(RecurrentOps)
	if !ok {
		l.fail(fmt.Errorf("%s: gated delta rules do not run on %s", l.src.Name(), l.ops.Name()))
		return nil
	}
	t := &deltaNet{desc: from, ops: ops, b: l.linear(from.B)}
	if from.A != nil {
		t.a = l.linear(from.A)
	}
	t.conv, _ = l.convolution(from.Conv, "", from.Channels(), from.Width)
	t.aLog, t.dtBias, t.norm = l.vector(from.ALog, 0, from.VHeads), l.vector(from.DtBias, 0, from.VHeads), l.norm(&from.Norm, from.VDim)
	return t
}

func (t *deltaNet) linears() []*linear {
	if t.desc.Grouped {
		return []*linear{&t.qkv, &t.o}
	}
	return []*linear{&t.qkv, &t.z, &t.o}
}

func (t *deltaNet) clone() mixer {
	c := *t
	return &c
}

func (t *deltaNet) bind(map[*arch.Rope]*rope) {}

func (t *deltaNet) in() []Weight {
	if t.desc.Grouped {
		return []Weight{t.qkv.w, t.b.w}
	}
	return []Weight{t.qkv.w, t.z.w, t.b.w, t.a.w}
}

// deltaRoom is what a token takes on the way: what QKV makes, in its order and all of a kind together, and what that is after the
// convolution; the gates; and a and b, in their layers' order and apart.
func deltaRoom(d *arch.DeltaNet) tokenRoom {
	return tokenRoom{acts: 2*d.Channels() + 2*d.VHeads*d.VDim, floats: 4 * d.VHeads}
}

func (t *deltaNet) reads(m *Model, a activations, x Array, stage int) Array {
	if stage == 0 {
		return x
	}
	return t.mix(m, a, x, nil, nil, Step{Runs: []Run{{Rows: a.t}}})
}

func (t *deltaNet) recall(m *Model, a activations, x Array, k kept, at Step, _ places) Array {
	return t.mix(m, a, x, k.arrays[0], k.arrays[1], at)
}

// mix computes the gated and normalized results of all heads, in a.q.
func (t *deltaNet) mix(m *Model, a activations, x, inputs, state Array, at Step) Array {
	d, rows := t.desc, a.t
	keys, values := d.KHeads*d.KDim, d.VHeads*d.VDim
	channels := 2*keys + values
	acts, floats := taker{a.more}, taker{a.small}
	mixed, gates := acts.take(rows*channels), acts.take(rows*values)
	alpha, beta := floats.take(rows*d.VHeads), floats.take(rows*d.VHeads)
	var passed Array
	if d.Grouped {
		all, both := acts.take(rows*(channels+values)), floats.take(rows*2*d.VHeads)
		m.ops.Linear(x, rows, t.qkv.to(all), t.b.to(both))
		t.part(m, mixed, gates, all, rows)
		each := d.VHeads / d.KHeads // values of a key
		two := HeadsShape{Rows: rows, Heads: d.KHeads, Width: each, ToRow: d.VHeads, ToHead: each, FromRow: 2 * d.VHeads, FromHead: 2 * each}
		m.ops.CopyHeads(beta, both, two)
		m.ops.CopyHeads(alpha, both.Slice(each, both.Len()), two)
		passed = all.Slice(0, rows*channels) // which nobody reads any more
	} else {
		m.ops.Linear(x, rows, t.qkv.to(mixed), t.z.to(gates), t.b.to(beta), t.a.to(alpha))
		passed = acts.take(rows * channels)
	}
	t.ops.Convolve(passed, mixed, t.conv, nil, inputs, at, t.convolution())
	o := a.q.Slice(0, rows*values)
	t.ops.DeltaRule(o, passed, alpha, beta, t.aLog, t.dtBias, state, at, t.shape())
	m.ops.RMSNorm(o, o, t.norm, rows*d.VHeads, d.Norm.Eps)
	y := m.input(a, o, rows, t.o.w)
	m.ops.GLU(y, gates, o, arch.Gating{Act: arch.SiLU})
	return y
}

// steps reports whether what the newest tokens of texts leave is one operation of a device.
func (t *deltaNet) steps() (DeltaStepper, bool) {
	s, ok := t.ops.(DeltaStepper)
	return s, ok && s.DeltaSteps(t.shape(), t.convolution(), t.gates()...)
}

// gates returns the weights of β and α, which may be one.
func (t *deltaNet) gates() []Weight {
	if t.desc.Grouped {
		return []Weight{t.b.w, t.b.w}
	}
	return []Weight{t.b.w, t.a.w}
}

func (t *deltaNet) shape() DeltaShape {
	return DeltaShape{t.desc.KHeads, t.desc.VHeads, t.desc.KDim, t.desc.VDim}
}

func (t *deltaNet) convolution() ConvShape {
	return ConvShape{Channels: t.desc.Channels(), Width: t.desc.Width}
}

// record implements [recorded].
func (t *deltaNet) record(m *Model, _ Recorder, r *recordedStep, x Array, k kept, at Step) Array {
	ops, ok := t.steps()
	if !ok {
		return t.recall(m, r.activations, x, k, at, r.places)
	}
	rows, d := r.t, t.desc
	channels, values := d.Channels(), d.VHeads*d.VDim
	gates := t.gates()
	s := DeltaStep{
		Shape: t.shape(), Conv: t.convolution(), X: x, B: gates[0], A: gates[1], Grouped: d.Grouped, Weights: t.conv, ALog: t.aLog, Bias: t.dtBias,
		Norm: t.norm, Eps: d.Norm.Eps, Kept: k.arrays[0], State: k.arrays[1], QKVPitch: channels + values, ZPitch: channels + values,
	}
	s.QKV = r.first.Slice(0, rows*s.QKVPitch)
	switch {
	case d.Grouped:
		m.ops.Linear(x, rows, t.qkv.to(s.QKV))
		s.Z = s.QKV.Slice(2*d.KDim+values/d.KHeads, s.QKV.Len())
	case t.qkvz.w != nil:
		m.ops.Linear(x, rows, Product{Y: s.QKV, W: t.qkvz.w, Bias: t.qkvz.bias})
		s.Z = s.QKV.Slice(channels, s.QKV.Len())
	default:
		s.QKV, s.Z, s.QKVPitch, s.ZPitch = r.first.Slice(0, rows*channels), r.first.Slice(rows*channels, rows*(channels+values)), channels, values
		m.ops.Linear(x, rows, t.qkv.to(s.QKV), t.z.to(s.Z))
	}
	y := m.input(r.activations, r.mixed.Slice(0, rows*values), rows, t.o.w)
	ops.DeltaStep(y, s, at)
	return y
}

// recordIn implements [recorded].
func (t *deltaNet) recordIn(Recorder, int) []Weight {
	if t.qkvz.w != nil {
		return append([]Weight{t.qkvz.w}, t.gates()...)
	}
	return t.in()
}

// join implements [recorded].
func (t *deltaNet) join(m *Model, rec Recorder) error {
	if t.desc.Grouped {
		return nil
	}
	return m.joinTo(rec, &t.qkvz, &t.qkv, &t.z)
}

// part puts what stands by key heads one kind behind the other.
func (t *deltaNet) part(m *Model, mixed, gates, all Array, rows int) {
	d := t.desc
	values := d.VHeads * d.VDim
	each, channels := values/d.KHeads, d.Channels()
	s := HeadsShape{Rows: rows, Heads: d.KHeads, Width: d.KDim, ToRow: channels, ToHead: d.KDim, FromRow: channels + values, FromHead: 2*d.KDim + 2*each}
	m.ops.CopyHeads(mixed, all, s)
	m.ops.CopyHeads(mixed.Slice(d.KHeads*d.KDim, mixed.Len()), all.Slice(d.KDim, all.Len()), s)
	s.Width, s.ToHead = each, each
	m.ops.CopyHeads(mixed.Slice(2*d.KHeads*d.KDim, mixed.Len()), all.Slice(2*d.KDim, all.Len()), s)
	s.ToRow = values
	m.ops.CopyHeads(gates, all.Slice(2*d.KDim+each, all.Len()), s)
}

// keep allocates the last inputs of convolutions, and states.
func (t *deltaNet) keep(ops Ops, slots, positions int) kept {
	d := t.desc
	return kept{slots: slots, positions: positions, arrays: []Array{ops.Acts(slots * d.Width * d.Channels()), ops.Floats(slots * d.VHeads * d.KDim * d.VDim)}}
}

func (t *deltaNet) keeps(slots, _ int) int64 { return int64(slots) * int64(t.desc.Kept(1)) }
