package model

import (
	"context"
	"fmt"
)

// Recorder are operations of a device that can keep what they are asked for, to do it again at once: where there is a
// token a step, to ask one by one takes the host longer than the device takes to do it.
type Recorder interface {
	Ops
	// Record does what f asks for, and keeps it to be done again, with what the arrays hold then. f may neither
	// allocate, free, write nor read, and is called twice.
	Record(f func()) (Recording, error)
	// EmbedAt is Embed of the tokens in floats [rows], all of the vocabulary.
	EmbedAt(h, tokens Array, w Weight, scale float32)
	// Join returns a weight of the rows of several with the same K, one behind the other, of which they become
	// parts; or nil where it cannot.
	Join(parts ...Weight) (Weight, error)
	// AddNorm adds x, acts [rows, len(w)], to h, floats, and writes RMSNorm of the sum to y, acts. y may be x.
	AddNorm(y, h, x, w Array, rows int, eps float64)
	// TurnKeep is Rope of q and k by the angles of their rows, and Keep of k and v. k may be left as it is.
	TurnKeep(q, keys, values, k, v, cos, sin Array, half int, at Step, c CacheShape)
	// MarkNotFinite writes 1 to dst, floats [rows], for rows that NotFinite looks for, and 0 for others.
	MarkNotFinite(dst, x Array, rows, cols int)
}

// Recording is what a [Recorder] keeps.
type Recording interface {
	// Replay queues it.
	Replay()
	// Close gives its memory back.
	Close()
}

// recordedStep takes texts further by a token each, so many at once.
type recordedStep struct {
	activations
	qkv, both Array  // q, k and v, one behind the other, and gate and up
	sum       Array  // acts [rows, hidden], what is added to h next
	in        floats // what a step begins with: tokens [rows], and places
	tokens    Array
	places    places
	logits    Array // floats [rows, vocabulary]
	out       Array // floats [2, rows]: the marks of MarkNotFinite, and the most likely tokens
	again     Recording
}

// newStep returns a step of n texts that is not recorded yet.
func (c *Cache) newStep(rec Recorder, n int) (*recordedStep, error) {
	m, w := c.m, widthsOf(c.m.desc)
	r := &recordedStep{
		activations: activations{t: n, h: rec.Floats(n * m.desc.Hidden), n: rec.Acts(n * m.desc.Hidden)},
		qkv:         rec.Acts(n * (w.q + 2*w.kv)), both: rec.Acts(2 * n * w.mlp), sum: rec.Acts(n * m.desc.Hidden),
		places: c.newPlaces(), logits: rec.Floats(n * m.Vocab()), out: rec.Floats(2 * n),
	}
	elements := 3 * n
	for rope := range r.places.turns {
		elements += 2 * n * rope.half()
	}
	r.in.dev = rec.Floats(elements)
	r.tokens = r.in.dev.Slice(0, n)
	if m.normsOutputs() {
		r.y = rec.Floats(n * m.desc.Hidden)
	}
	r.q, r.k, r.v = r.qkv.Slice(0, n*w.q), r.qkv.Slice(n*w.q, n*(w.q+w.kv)), r.qkv.Slice(n*(w.q+w.kv), n*(w.q+2*w.kv))
	r.gate, r.up = r.both.Slice(0, n*w.mlp), r.both.Slice(n*w.mlp, 2*n*w.mlp)
	if m.joined {
		return r, nil
	}
	m.joined = true // before anything is recorded, as it moves weights
	return r, m.join(rec)
}

func (r *recordedStep) close(ops Ops) {
	if r.again != nil {
		r.again.Close()
	}
	ops.Free(r.h, r.y, r.n, r.qkv, r.both, r.sum, r.in.dev, r.logits, r.out)
}

// begin tells the device at once what a step begins with.
func (r *recordedStep) begin(rec Recorder, tokens []int, runs []Run) Step {
	r.in.host = r.in.host[:0]
	for _, t := range tokens {
		r.in.host = append(r.in.host, float32(t))
	}
	add := func(f *floats) {
		f.dev = r.in.dev.Slice(len(r.in.host), len(r.in.host)+len(f.host))
		r.in.host = append(r.in.host, f.host...)
	}
	r.places.find(runs)
	add(&r.places.rows)
	for _, rope := range r.places.order {
		add(&r.places.turns[rope].cos)
		add(&r.places.turns[rope].sin)
	}
	rec.Write(r.in.dev, r.in.host)
	return Step{Runs: runs, Rows: r.places.rows.dev}
}

// joined is several linear layers that read the same, as one; w is nil where they are not.
type joined struct {
	w    Weight
	bias Array // or nil
}

// join joins the layers that read the same, for a single row.
func (m *Model) join(rec Recorder) error {
	for i := range m.layers {
		d := &m.layers[i]
		if err := m.joinTo(rec, &d.qkv, &d.q, &d.k, &d.v); err != nil {
			return err
		}
		if d.mlp != nil {
			if err := m.joinTo(rec, &d.mlp.both, &d.mlp.gate, &d.mlp.up); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Model) joinTo(rec Recorder, to *joined, parts ...*linear) (err error) {
	var weights []Weight
	n, biased := 0, 0
	for _, l := range parts {
		weights = append(weights, l.w)
		n += width(l.w)
		if l.bias != nil {
			biased++
		}
	}
	if biased > 0 && biased < len(parts) {
		return nil
	}
	if to.w, err = rec.Join(weights...); err != nil || to.w == nil {
		return err
	}
	m.own.weights = append(m.own.weights, to.w)
	if biased == 0 {
		return nil
	}
	to.bias = rec.Floats(n)
	m.own.arrays = append(m.own.arrays, to.bias)
	at := 0
	for _, l := range parts {
		rec.Copy(to.bias.Slice(at, at+l.bias.Len()), l.bias)
		at += l.bias.Len()
	}
	return nil
}

// recorder returns the device as a recorder, if steps of the model can be recorded: the host takes no part in
// them, as it does where experts are chosen.
func (m *Model) recorder() (Recorder, bool) {
	for i := range m.layers {
		if m.layers[i].moe != nil {
			return nil, false
		}
	}
	rec, ok := m.ops.(Recorder)
	return rec, ok
}

// Step takes texts further by a token each, as [Cache.Continue] does, and returns the logits of what follows,
// floats [texts, vocabulary], and where the device has found them the most likely tokens. The logits stay valid until the
// next call of a method of the model.
func (c *Cache) Step(ctx context.Context, slots, tokens []int) (logits Array, best []int, err error) {
	m, n := c.m, len(tokens)
	parts := make([]Part, n)
	for i := range parts {
		parts[i] = Part{Slot: slots[i], Tokens: tokens[i : i+1]}
	}
	if rec, ok := m.recorder(); ok {
		return c.stepAgain(ctx, rec, parts)
	}
	h, err := c.Continue(ctx, parts...)
	if err != nil {
		return nil, nil, err
	}
	if c.logits == nil || c.logits.Len() < n*m.Vocab() {
		m.ops.Free(c.logits)
		c.logits = m.ops.Floats(n * m.Vocab())
	}
	logits = c.logits.Slice(0, n*m.Vocab())
	return logits, nil, m.Logits(logits, h, n)
}

// stepAgain does a step by what was recorded for one of as many texts.
func (c *Cache) stepAgain(ctx context.Context, rec Recorder, parts []Part) (logits Array, best []int, err error) {
	m := c.m
	tokens, runs, err := c.runs(parts)
	if err == nil {
		err = m.check(tokens)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	n := len(tokens)
	r := c.recorded[n]
	if r == nil {
		if r, err = c.newStep(rec, n); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", m.name, err)
		}
		c.recorded[n] = r
	}
	at := r.begin(rec, tokens, runs)
	if r.again != nil {
		r.again.Replay()
	} else if r.again, err = rec.Record(func() { c.record(rec, r, at) }); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.name, err)
	}
	out := make([]float32, 2*n)
	rec.Read(out, r.out)
	if err := rec.Err(); err != nil {
		return nil, nil, err
	}
	for row, bad := range out[:n] {
		if bad != 0 {
			return nil, nil, fmt.Errorf("%s: the hidden state of token %d is %w", m.name, position(runs, row), ErrNotFinite)
		}
		best = append(best, int(out[n+row]))
	}
	for _, run := range runs {
		c.lengths[run.Slot]++
	}
	return r.logits, best, nil
}

// record asks for a step.
func (c *Cache) record(rec Recorder, r *recordedStep, at Step) {
	m := c.m
	rec.EmbedAt(r.h, r.tokens, m.embed, float32(m.desc.EmbedScale))
	if m.normsOutputs() {
		for i := range m.layers {
			c.layer(r.activations, i, at, r.places)
		}
		m.states(r.activations)
	} else {
		m.attentionIn(r.activations, &m.layers[0])
		for i := range m.layers {
			norm, eps := m.norm, m.desc.Norm.Eps
			if i+1 < len(m.layers) {
				norm, eps = m.layers[i+1].attnNorm, m.layers[i+1].block.AttnNorm.Eps
			}
			c.recordLayer(rec, r, i, at, norm, eps)
		}
	}
	rec.MarkNotFinite(r.out.Slice(0, r.t), r.h, r.t, m.desc.Hidden)
	m.logits(r.logits, r.n, r.t)
	rec.ArgMax(r.out.Slice(r.t, 2*r.t), r.logits, r.t, m.Vocab())
}

// recordLayer asks for a layer that adds what it computes as it is: from its norm, in r.n, to the next one, there too.
func (c *Cache) recordLayer(rec Recorder, r *recordedStep, i int, at Step, next Array, eps float64) {
	d, k := &c.m.layers[i], &c.layers[i]
	turn, rows := r.places.turns[d.rope], r.t
	if rows == 1 && d.qkv.w != nil {
		rec.Linear(r.n, rows, Product{Y: r.qkv, W: d.qkv.w, Bias: d.qkv.bias})
	} else {
		rec.Linear(r.n, rows, d.q.to(r.q), d.k.to(r.k), d.v.to(r.v))
	}
	c.m.normHeads(r.activations, d, r.q, r.k)
	rec.TurnKeep(r.q, k.keys, k.values, r.k, r.v, turn.cos.dev, turn.sin.dev, d.rope.half(), at, k.shape)
	rec.Recall(r.q, r.q, k.keys, k.values, at, k.shape, d.attention(rows))
	rec.Linear(r.q, rows, d.o.to(r.sum))
	rec.AddNorm(r.n, r.h, r.sum, d.mlpNorm, rows, d.block.MLPNorm.Eps)
	if rows == 1 && d.mlp.both.w != nil {
		rec.Linear(r.n, rows, Product{Y: r.both, W: d.mlp.both.w, Bias: d.mlp.both.bias})
	} else {
		rec.Linear(r.n, rows, d.mlp.gate.to(r.gate), d.mlp.up.to(r.up))
	}
	rec.GLU(r.gate, r.gate, r.up, d.mlp.act)
	rec.Linear(r.gate, rows, d.mlp.down.to(r.sum))
	rec.AddNorm(r.n, r.h, r.sum, next, rows, eps)
}
