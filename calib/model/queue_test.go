package model_test

import (
	"context"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// queuing counts products that are asked for within Queue and outside of it.
type queuing struct {
	model.Ops
	within        bool
	asked, queued int
}

func (q *queuing) Queue(f func()) {
	q.within = true
	f()
	q.within = false
}

func (q *queuing) Linear(x model.Array, rows int, to ...model.Product) {
	q.asked++
	if q.within {
		q.queued++
	}
	q.Ops.Linear(x, rows, to...)
}

// TestQueue has all layers of a window, and of a text that goes on, asked for at once.
func TestQueue(t *testing.T) {
	s := small()
	dir := s.build().folder(t)
	tokens := randomTokens(1, 20, s.vocab)
	plain := open(t, dir, 1)
	ops := &queuing{Ops: plain.Ops()}
	m, err := model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	read := func(h model.Array, err error) []float32 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		v := make([]float32, h.Len())
		ops.Read(v, h)
		return v
	}
	want := read(plain.Hidden(context.Background(), tokens))
	got := read(m.Hidden(context.Background(), tokens))
	window := ops.asked
	c, err := m.NewCache(1, len(tokens))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read(c.Continue(context.Background(), model.Part{Tokens: tokens}))
	if !slices.Equal(got, want) {
		t.Error("other states than without a queue")
	}
	if window == 0 || ops.asked != 2*window || ops.queued != ops.asked {
		t.Errorf("%d products of a window, %d with those of a text, of which %d were queued together", window, ops.asked, ops.queued)
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Hidden(canceled, tokens); err == nil {
		t.Error("an interrupted window: no error")
	}
	c.Cut(0, 0)
	if _, err := c.Continue(canceled, model.Part{Tokens: tokens}); err == nil || c.Len(0) != 0 {
		t.Errorf("an interrupted text: error %v, and %d tokens", err, c.Len(0))
	}
}
