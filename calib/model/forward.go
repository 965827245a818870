package model

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// layer is one decoder block. Norms that it has not are nil, and so are its MLP and its mixture where it has neither.
type layer struct {
	block *arch.Block
	mixer mixer

	attnNorm, attnOut Array
	mlpNorm, mlpOut   Array

	mlp *mlp // or
	moe *moe

	told  *told    // nil: none
	scale *float32 // of the residual stream at the end; nil: 1
}

// mlp is down · (act(gate·x) ∘ up·x).
type mlp struct {
	gate, up, down linear
	both           joined // gate and up
	act            arch.Gating
	single         bool // up is the gate as well, and gate is none
}

func newMLP(from *arch.MLP) mlp { return mlp{act: from.Act, single: from.Gate == from.Up} }

// in returns the weights that read what the MLP reads.
func (d *mlp) in() []Weight {
	if d.single {
		return []Weight{d.up.w}
	}
	return []Weight{d.gate.w, d.up.w}
}

// recordIn returns the weights that read the MLP's input in a recorded step.
func (d *mlp) recordIn() []Weight {
	if d.both.w != nil {
		return []Weight{d.both.w}
	}
	return d.in()
}

// linear is y = x·Wᵀ + bias.
type linear struct {
	name string
	w    Weight
	bias Array // nil: none
}

// to asks for y = l(x).
func (l *linear) to(y Array) Product { return Product{Y: y, W: l.w, Bias: l.bias} }

// into asks for y += l(x), or with add unset for y = l(x).
func (l *linear) into(y Array, add bool) Product {
	return Product{Y: y, W: l.w, Bias: l.bias, Add: add}
}

// activations are those of a window of t tokens. All are acts but h, and y where it is said.
type activations struct {
	t        int
	h        Array    // floats [t, hidden], the residual stream
	y        Array    // floats or acts [t, hidden], what is added to it, where that is not added at once; else nil
	n        Array    // [t, hidden]
	q        Array    // [t, widest input of a mixer's last layer]; a mixer leaves its result there
	k, v     Array    // [t, kv_heads·head_dim]
	v0       Array    // values before their norm, where those are kept; else nil
	more     Array    // [t, tokenRoom.acts], of mixers; nil: none needs it
	small    Array    // floats [t, tokenRoom.floats], likewise
	gate, up Array    // [mlpRows, intermediate]
	beside            // of a window on its way through the layers
	routing  *routing // of the experts at hand, where it is known; else nil
	input    Array    // room for what products read next in the device's own order; nil: they read all row by row
}

// made returns where values are made.
func (a *activations) made() Array {
	if a.v0 != nil {
		return a.v0
	}
	return a.v
}

// scratch holds activations for windows of tokens and shorter ones.
type scratch struct {
	activations
	tokens int
}

func (s *scratch) free(ops Ops) {
	ops.Free(s.arrays...)
	s.activations.free(ops)
	*s = scratch{}
}

func (a *activations) free(ops Ops) {
	ops.Free(a.h, a.y, a.n, a.q, a.k, a.v, a.gate, a.up, a.more, a.small, a.input)
}

// normsOutputs reports whether what a layer adds to the residual stream is normalized.
func (m *Model) normsOutputs() bool {
	return slices.ContainsFunc(m.desc.Blocks, func(b arch.Block) bool { return b.AttnOut != nil || b.MLPOut != nil })
}

// addedRoom allocates what layers add to the residual stream of t tokens, nil where they add it at once. What several devices send each other
// is acts, as it is in steps, unless a norm comes next.
func (m *Model) addedRoom(t int) Array {
	switch {
	case m.normsOutputs():
		return m.ops.Floats(t * m.desc.Hidden)
	case m.division != nil:
		return m.ops.Acts(t * m.desc.Hidden)
	}
	return nil
}

// start checks a window and returns room for its activations.
func (m *Model) start(tokens []int) (activations, error) {
	if err := m.check(tokens); err != nil {
		return activations{}, err
	}
	a := m.room(len(tokens))
	m.extend(len(tokens))
	return a, m.ops.Err()
}

// room returns room for the activations of t tokens.
func (m *Model) room(t int) activations {
	if t > m.scratch.tokens {
		m.scratch.free(m.ops)
		m.scratch = scratch{tokens: t, activations: m.newActivations(t)}
		m.scratch.h, m.scratch.q = m.ops.Floats(t*m.desc.Hidden), m.ops.Acts(t*widthsOf(m.desc).q)
		m.scratch.input, m.scratch.beside = m.inputRoom(t), m.newBeside(t)
	}
	return m.first(m.scratch.activations, t)
}

// check refuses windows that are none.
func (m *Model) check(tokens []int) error {
	if len(tokens) == 0 {
		return errors.New("no tokens")
	}
	for i, id := range tokens {
		if id < 0 || id >= m.desc.Vocab {
			return fmt.Errorf("token %d at position %d is outside the vocabulary of %d", id, i, m.desc.Vocab)
		}
	}
	return nil
}

// newActivations returns those of t tokens, without h, q, input and what is beside.
func (m *Model) newActivations(t int) activations {
	w := widthsOf(m.desc)
	a := activations{
		n: m.ops.Acts(t * m.desc.Hidden),
		k: m.ops.Acts(t * w.kv), v: m.ops.Acts(t * w.kv),
		gate: m.ops.Acts(m.mlpRows(t) * w.mlp), up: m.ops.Acts(m.mlpRows(t) * w.mlp),
	}
	a.y = m.addedRoom(t)
	m.mixerRoom(&a, t)
	return a
}

// mixerRoom makes the room that mixers need for t tokens.
func (m *Model) mixerRoom(a *activations, t int) {
	r := roomOf(m.desc)
	if r.acts > 0 {
		a.more = m.ops.Acts(t * r.acts)
	}
	if r.floats > 0 {
		a.small = m.ops.Floats(t * r.floats)
	}
}

// first returns the activations of the first t tokens.
func (m *Model) first(a activations, t int) activations {
	w := widthsOf(m.desc)
	hidden, kv, mlp := t*m.desc.Hidden, t*w.kv, m.mlpRows(t)*w.mlp
	return activations{
		t: t, h: first(a.h, hidden), y: first(a.y, hidden), n: first(a.n, hidden),
		q: first(a.q, t*w.q), k: first(a.k, kv), v: first(a.v, kv),
		gate: first(a.gate, mlp), up: first(a.up, mlp), more: a.more, small: a.small, beside: a.beside.first(m.desc, t), input: a.input,
	}
}

// extend makes the rotary embeddings those of a window of t tokens.
func (m *Model) extend(t int) {
	for _, r := range m.ropes {
		r.extend(t, m.ops)
	}
}

// ActivationBytes returns about how much memory a window of tokens takes on the
// cpu besides the weights.
func (m *Model) ActivationBytes(tokens int) int64 {
	w := widthsOf(m.desc)
	row := 2*m.desc.Hidden + w.q + 4*w.kv + w.dim // keys and values are packed as well
	row += besideWidth(m.desc) + roomOf(m.desc).acts + roomOf(m.desc).floats
	if m.normsOutputs() || m.desc.Blocks[0].MoE != nil {
		row += 2 * m.desc.Hidden
	}
	return 4 * (int64(tokens)*int64(row) + 2*int64(m.mlpRows(tokens))*int64(w.mlp))
}

// mlpRows is how many of t tokens pass through the MLP at a time.
func (m *Model) mlpRows(t int) int {
	for _, most := range []int{m.ops.MLPRows(), m.mostRows} {
		if most > 0 {
			t = min(t, most)
		}
	}
	return t
}

// forward takes tokens through all layers. before, unless nil, is called with
// the residual stream in front of each in a.h.
//
// What is not finite stays so, and is looked for at the end: to look after each
// layer would make the host wait for the device.
func (m *Model) forward(ctx context.Context, a activations, tokens []int, before func(layer int)) error {
	var err error
	m.queue(func() {
		m.enter(a, tokens)
		for i := range m.layers {
			if err = ctx.Err(); err != nil {
				return
			}
			if before != nil {
				before(i)
			}
			m.mix(a, &m.layers[i])
			m.feed(a, &m.layers[i])
		}
	})
	if err != nil {
		return err
	}
	if m.ops.NotFinite(a.h, a.t, m.desc.Hidden) >= 0 {
		return m.notFinite(a, tokens)
	}
	return nil
}

// Queuer is implemented by [Ops] that take every operation to a thread of their own, which costs less for many at once.
type Queuer interface {
	// Queue runs f, which asks for operations, on that thread.
	Queue(f func())
}

// queue runs f, which asks for many operations.
func (m *Model) queue(f func()) {
	if q, ok := m.ops.(Queuer); ok {
		q.Queue(f)
		return
	}
	f()
}

// ErrNotFinite is in the error of a forward pass that overflows the device's type
// of activations, or float32.
var ErrNotFinite = errors.New("not finite")

// notFinite finds the layer after which the residual stream is not finite.
func (m *Model) notFinite(a activations, tokens []int) error {
	m.enter(a, tokens)
	for i := range m.layers {
		m.mix(a, &m.layers[i])
		m.feed(a, &m.layers[i])
		if at := m.ops.NotFinite(a.h, a.t, m.desc.Hidden); at >= 0 {
			return fmt.Errorf("%s: the hidden state of token %d is %w after layer %d", m.name, at, ErrNotFinite, i)
		}
	}
	return fmt.Errorf("%s: a hidden state is %w, but not again", m.name, ErrNotFinite)
}

// states applies the final norm to the residual stream.
func (m *Model) states(a activations) Array {
	m.ops.RMSNorm(a.n, a.h, m.norm, a.t, m.desc.Norm.Eps)
	return a.n
}

// residual adds what product writes to the residual stream, and what it does on the devices of other parts, through norm out where
// there is one. product adds to y, or writes it.
func (m *Model) residual(a activations, out Array, eps float64, product func(y Array, add bool)) {
	if out == nil && m.division == nil {
		product(a.h, true)
		return
	}
	product(a.y, false)
	m.sum(a.y)
	if out == nil {
		m.ops.AddTo(a.h, a.y)
		return
	}
	m.ops.RMSNorm(a.n, a.y, out, a.t, eps)
	m.ops.AddTo(a.h, a.n)
}

// Preparer is implemented by [Ops] of which some products read rows in an order of the device's own, or turned, so that they
// had best be written so.
type Preparer interface {
	// PreparedLen returns how many acts have room for rows of up to k as some products read them, 0 where none reads so many so.
	PreparedLen(rows, k int) int
	// Prepared returns what stands for x, acts [rows, K], where nothing but products by some weights reads it: x, or acts as
	// these read them at room, or both. Linear reads it, and as a whole RMSNorm, NormGroups, AddNorm, GLU, ShortConv, Attention,
	// Recall and Attend write it.
	Prepared(x, room Array, rows int, by ...Weight) Array
}

// inputRoom returns room for what any product reads of t tokens, or nil where that is not the device's.
func (m *Model) inputRoom(t int) Array {
	p, ok := m.ops.(Preparer)
	if !ok {
		return nil
	}
	w := widthsOf(m.desc)
	if n := p.PreparedLen(t, max(m.desc.Hidden, w.q, w.mlp)); n > 0 {
		return m.ops.Acts(n)
	}
	return nil
}

// input returns what is written in place of x [rows, K] where only products by some weights read it.
func (m *Model) input(a activations, x Array, rows int, by ...Weight) Array {
	return m.inputIn(a.input, x, rows, by...)
}

// inputIn is input with room of its own, which may be too small for that.
func (m *Model) inputIn(room, x Array, rows int, by ...Weight) Array {
	p, ok := m.ops.(Preparer)
	if !ok || room == nil || room.Len() < p.PreparedLen(rows, x.Len()/rows) {
		return x
	}
	return p.Prepared(x, room, rows, by...)
}

// mix adds the mixer's half of a layer to the residual stream.
func (m *Model) mix(a activations, d *layer) {
	if d.mixes() {
		m.mixed(a, d, d.mixer.reads(m, a, m.mixerIn(a, d), d.last()))
	}
}

// mixerIn returns what a mixer reads, in a.n.
func (m *Model) mixerIn(a activations, d *layer) Array {
	return m.normFor(a, d.attnNorm, d.block.AttnNorm.Eps, d.mixer.in()...)
}

// mixed adds what becomes of what the last layer of a mixer reads to the residual stream.
func (m *Model) mixed(a activations, d *layer, x Array) {
	m.residual(a, d.attnOut, outEps(d.block.AttnOut), func(y Array, add bool) {
		m.ops.Linear(x, a.t, d.out().into(y, add))
	})
}

// outEps is that of a norm of what a half of a layer adds.
func outEps(n *arch.Norm) float64 {
	if n == nil {
		return 0
	}
	return n.Eps
}

// feed adds the MLP half of a layer to the residual stream, and what comes after it.
func (m *Model) feed(a activations, d *layer) {
	m.fed(a, d)
	if d.told != nil {
		m.tell(a, d, m.toldMid(a, d, m.toldIn(a)))
	}
	m.leave(a, d)
}

// leave is the end of a layer.
func (m *Model) leave(a activations, d *layer) {
	if d.scale != nil {
		m.ops.Scale(a.h, *d.scale)
	}
}

// fed adds the MLP half of a layer to the residual stream.
func (m *Model) fed(a activations, d *layer) {
	if !d.feeds() {
		return
	}
	x := m.mlpIn(a, d)
	m.residual(a, d.mlpOut, outEps(d.block.MLPOut), func(y Array, add bool) {
		if d.moe == nil {
			m.mlp(y, x, a, d.mlp, a.t, add)
			return
		}
		if !add {
			m.ops.Zero(y)
		}
		m.mixture(y, a, d.moe)
	})
}

// mlpIn returns what the MLP reads, in a.n.
func (m *Model) mlpIn(a activations, d *layer) Array {
	if d.moe != nil { // whose experts read other rows
		m.norms(a.n, a.h, d.mlpNorm, a.t, d.block.MLPNorm.Eps)
		return a.n
	}
	return m.normFor(a, d.mlpNorm, d.block.MLPNorm.Eps, d.mlp.in()...)
}

// Normer is implemented by [Ops] that prepare for a Linear where its input is written.
type Normer interface {
	// NormFor is RMSNorm for a Linear by w, and by others that read the same: until y is written again by
	// a norm it does not change.
	NormFor(w Weight, y, x, norm Array, rows int, eps float64)
}

// normFor returns the norm of the residual stream, in a.n, for products by some weights, in this order.
func (m *Model) normFor(a activations, norm Array, eps float64, by ...Weight) Array {
	if n, ok := m.ops.(Normer); ok && norm != nil {
		n.NormFor(by[0], a.n, a.h, norm, a.t, eps)
		return a.n
	}
	if norm == nil {
		m.ops.Copy(a.n, a.h)
		return a.n
	}
	y := m.input(a, a.n, a.t, by...)
	m.ops.RMSNorm(y, a.h, norm, a.t, eps)
	return y
}

// norms writes a norm of x [rows, hidden], or x where there is none.
func (m *Model) norms(y, x, norm Array, rows int, eps float64) {
	if norm == nil {
		m.ops.Copy(y, x)
		return
	}
	m.ops.RMSNorm(y, x, norm, rows, eps)
}

// mlp adds an MLP of rows states n, which are as wide as what it makes, to y, or writes it, some rows at a time.
func (m *Model) mlp(y, n Array, a activations, d *mlp, rows int, add bool) {
	wide, most := width(d.down.w), m.mlpRows(a.t)
	for from := 0; from < rows; from += most {
		to := min(from+most, rows)
		mid := m.gated(n.Slice(from*wide, to*wide), a, d, to-from)
		m.ops.Linear(mid, to-from, d.down.into(y.Slice(from*wide, to*wide), add))
	}
}

// gated returns what the last layer of an MLP reads, for rows states n, as many as pass
// through at a time.
func (m *Model) gated(n Array, a activations, d *mlp, rows int) Array {
	inter := width(d.up.w)
	gate, up := a.gate.Slice(0, rows*inter), a.up.Slice(0, rows*inter)
	y := m.input(a, gate, rows, d.down.w)
	m.gates(d, y, gate, up, n, rows)
	return y
}

// gates writes act(gate·n) ∘ up·n to y, which may be gate; gate and up are room.
func (m *Model) gates(d *mlp, y, gate, up, n Array, rows int) {
	if d.single {
		m.ops.Linear(n, rows, d.up.to(up))
		m.ops.GLU(y, up, up, d.act)
		return
	}
	m.ops.Linear(n, rows, d.gate.to(gate), d.up.to(up))
	m.ops.GLU(y, gate, up, d.act)
}

// width is the number of features that a weight makes.
func width(w Weight) int {
	n, _ := w.Shape()
	return n
}
