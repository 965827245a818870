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

// recordedStep takes texts further by a token each, in so many slots.
type recordedStep struct {
	activations
	tokens Array // floats [rows]
	places places
	logits Array // floats [rows, vocabulary]
	bad    Array // floats [rows], see MarkNotFinite
	again  Recording
}

func (r *recordedStep) close(ops Ops) {
	if r.again != nil {
		r.again.Close()
	}
	r.activations.free(ops)
	r.places.free(ops)
	ops.Free(r.tokens, r.logits, r.bad)
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
// floats [texts, vocabulary]. They stay valid until the next call of a method of the model.
func (c *Cache) Step(ctx context.Context, slots, tokens []int) (Array, error) {
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
		return nil, err
	}
	if c.logits == nil || c.logits.Len() < n*m.Vocab() {
		m.ops.Free(c.logits)
		c.logits = m.ops.Floats(n * m.Vocab())
	}
	logits := c.logits.Slice(0, n*m.Vocab())
	return logits, m.Logits(logits, h, n)
}

// stepAgain does a step by what was recorded for one of as many texts.
func (c *Cache) stepAgain(ctx context.Context, rec Recorder, parts []Part) (Array, error) {
	m := c.m
	tokens, runs, err := c.runs(parts)
	if err == nil {
		err = m.check(tokens)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n := len(tokens)
	r := c.recorded[n]
	if r == nil {
		r = &recordedStep{
			activations: m.newActivations(n), tokens: rec.Floats(n), places: c.newPlaces(),
			logits: rec.Floats(n * m.Vocab()), bad: rec.Floats(n),
		}
		r.t, r.h, r.q = n, rec.Floats(n*m.desc.Hidden), rec.Acts(n*widthsOf(m.desc).q)
		c.recorded[n] = r
	}
	ids := make([]float32, n)
	for i, t := range tokens {
		ids[i] = float32(t)
	}
	rec.Write(r.tokens, ids)
	at := r.places.set(rec, runs)
	if r.again != nil {
		r.again.Replay()
	} else if r.again, err = rec.Record(func() { c.record(rec, r, at) }); err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	bad := make([]float32, n)
	rec.Read(bad, r.bad)
	if err := rec.Err(); err != nil {
		return nil, err
	}
	for row, is := range bad {
		if is != 0 {
			return nil, fmt.Errorf("%s: the hidden state of token %d is %w", m.name, position(runs, row), ErrNotFinite)
		}
	}
	for _, run := range runs {
		c.lengths[run.Slot]++
	}
	return r.logits, nil
}

// record asks for a step.
func (c *Cache) record(rec Recorder, r *recordedStep, at Step) {
	m := c.m
	rec.EmbedAt(r.h, r.tokens, m.embed, float32(m.desc.EmbedScale))
	for i := range m.layers {
		c.layer(r.activations, i, at, r.places)
	}
	rec.MarkNotFinite(r.bad, r.h, r.t, m.desc.Hidden)
	m.logits(r.logits, m.states(r.activations), r.t)
}
