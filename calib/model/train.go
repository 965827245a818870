package model

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Grad is where the gradient of a linear layer's scales goes. [Model.Gradient] adds to it.
type Grad struct {
	Scales Array // floats [N·groups]
	Table  Array // floats, of the codebook's entries; or nil
	LSQ    bool  // the gradient of learned step size quantization, see [BackwardOps]
}

// Loss returns the mean loss over the positions of a window but the last: of
// predicting the next token, −ln p, or, with a teacher on the same [Ops],
// KL(teacher‖m) over the vocabulary.
func (m *Model) Loss(ctx context.Context, tokens []int, teacher *Model) (float64, error) {
	ref, err := m.teach(ctx, tokens, teacher)
	if err != nil {
		return 0, err
	}
	n, err := m.Hidden(ctx, tokens)
	if err != nil {
		return 0, err
	}
	return m.loss(ctx, n, tokens, teacher, ref, nil)
}

// Gradient returns what [Model.Loss] does and adds its gradient by the scales of
// the layers in grads, by their names. Their weights are trainable ones,
// see [Model.With]; there are none in a tied head. The operations must be [BackwardOps].
//
// Each layer's input is kept, and what lies within the layer computed again on the way
// back. Layers below the lowest in grads are only run forward. After an error the
// gradients hold parts of sums.
func (m *Model) Gradient(ctx context.Context, tokens []int, teacher *Model, grads map[string]Grad) (float64, error) {
	ops, ok := m.ops.(BackwardOps)
	if !ok {
		return 0, fmt.Errorf("%s: no gradients on device %s", m.name, m.ops.Name())
	}
	if err := Learnable(m.desc, len(tokens)); err != nil {
		return 0, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := known(m, grads); err != nil {
		return 0, err
	}
	ref, err := m.teach(ctx, tokens, teacher)
	if err != nil {
		return 0, err
	}
	a, err := m.start(tokens)
	if err != nil {
		return 0, err
	}
	a.input = nil // what is written more than products read
	b := backward{m: m, ops: ops, grads: grads, a: a, lowest: m.lowest(grads)}
	b.trainScratch = m.reserve(a.t, len(m.layers)-b.lowest)
	if err := m.forward(ctx, a, tokens, b.keep); err != nil {
		return 0, err
	}
	loss, err := m.loss(ctx, m.states(a), tokens, teacher, ref, b.head)
	if err != nil {
		return 0, err
	}
	if m.queue(func() { err = b.layers(ctx) }); err != nil {
		return 0, err
	}
	return loss, ops.Err()
}

// lowest returns the first layer with a gradient, or the number of layers.
func (m *Model) lowest(grads map[string]Grad) int {
	for i := range m.layers {
		for _, l := range m.layers[i].linears() {
			if _, ok := grads[l.name]; ok {
				return i
			}
		}
	}
	return len(m.layers)
}

// teach returns the states of the teacher, nil without one.
func (m *Model) teach(ctx context.Context, tokens []int, teacher *Model) (Array, error) {
	if len(tokens) < 2 {
		return nil, errors.New("a loss needs two tokens at least")
	}
	if teacher == nil {
		return nil, nil
	}
	if got, want := teacher.Vocab(), m.Vocab(); got != want {
		return nil, fmt.Errorf("%s: the teacher has a vocabulary of %d tokens: want %d", m.name, got, want)
	}
	ref, err := teacher.Hidden(ctx, tokens)
	if err != nil {
		return nil, fmt.Errorf("teacher: %w", err)
	}
	return ref, nil
}

// lossBytes bounds the logits of one model that exist at a time.
const lossBytes = 128 << 20

// lossScratch holds the logits of a chunk of positions, [rows, vocab], and the losses of all. Those
// that were not needed so far are nil.
type lossScratch struct {
	logits, teacher Array // floats
	dlogits         Array // acts
	loss            Array // floats
}

func (s *lossScratch) free(ops Ops) {
	ops.Free(s.logits, s.teacher, s.dlogits, s.loss)
	*s = lossScratch{}
}

// room returns a where it has n elements, otherwise a new array in its place.
func room(ops Ops, a *Array, n int, alloc func(n int) Array) Array {
	if *a == nil || (*a).Len() < n {
		ops.Free(*a)
		*a = alloc(n)
	}
	return (*a).Slice(0, n)
}

// loss reduces states n, of teacher's ref, to the mean loss. back, unless nil, is
// called with the gradient of that by the logits of positions [from, to).
func (m *Model) loss(ctx context.Context, n Array, tokens []int, teacher *Model, ref Array, back func(from, to int, dlogits Array)) (float64, error) {
	ops, s, vocab, count := m.ops, &m.losses, m.Vocab(), len(tokens)-1
	most := min(m.lossRows, count)
	losses := room(ops, &s.loss, count, ops.Floats)
	logits := room(ops, &s.logits, most*vocab, ops.Floats)
	var want, dlogits Array
	if teacher != nil {
		want = room(ops, &s.teacher, most*vocab, ops.Floats)
	}
	if back != nil {
		dlogits = room(ops, &s.dlogits, most*vocab, ops.Acts)
	}
	for from := 0; from < count; from += most {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		to := min(from+most, count)
		rows := to - from
		loss, scale := losses.Slice(from, to), float32(1/float64(count))
		logits, dlogits := logits.Slice(0, rows*vocab), first(dlogits, rows*vocab)
		m.logits(logits, nil, rowsOf(n, len(tokens), from, to), rows)
		if teacher == nil {
			ops.CrossEntropy(loss, dlogits, logits, tokens[from+1:to+1], vocab, scale)
		} else {
			want := want.Slice(0, rows*vocab)
			teacher.logits(want, nil, rowsOf(ref, len(tokens), from, to), rows)
			ops.Divergence(loss, dlogits, logits, want, rows, vocab, scale)
		}
		if back != nil {
			if m.desc.LogitCap > 0 {
				ops.(BackwardOps).SoftCapBack(dlogits, logits, m.desc.LogitCap)
			}
			back(from, to, dlogits)
		}
	}
	return m.mean(losses)
}

// first returns the first n elements of an array, nil of a nil one.
func first(a Array, n int) Array {
	if a == nil {
		return nil
	}
	return a.Slice(0, n)
}

// rowsOf returns rows [from, to) of an array of so many rows.
func rowsOf(a Array, rows, from, to int) Array {
	width := a.Len() / rows
	return a.Slice(from*width, to*width)
}

// mean returns the mean of losses, an error where one is not finite.
func (m *Model) mean(losses Array) (float64, error) {
	v := make([]float32, losses.Len())
	m.ops.Read(v, losses)
	if err := m.ops.Err(); err != nil {
		return 0, err
	}
	sum := 0.
	for i, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return 0, fmt.Errorf("%s: logits at token %d are not finite", m.name, i)
		}
		sum += float64(x)
	}
	return sum / float64(len(v)), nil
}
