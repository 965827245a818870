package eval

import "github.com/lutq/lutq/calib/model"

// Watcher is told of every scored token while a run goes on, in the order of windows and by one goroutine at a time. What it takes is not
// counted to any model.
type Watcher interface {
	// Tokens is told of some tokens as one candidate predicts them. The chunk is valid until it returns.
	Tokens(c *Chunk) error
}

// Chunk is some scored tokens of a window, one after the other, as a candidate predicts them.
type Chunk struct {
	Model, Window int   // the candidate and the window, from 0
	From          int   // the place of the first in the window
	Targets       []int // their ids
	Scores        []Score

	on *device
}

// Score is what remains of the logits for a token. What compares with the reference is zero without one.
type Score struct {
	NLL, ReferenceNLL, KL float64 // nats
	Same                  bool    // the most likely token is the reference's
}

// Logits reads what the candidate, and the reference where there is one, gave to all tokens in the place of target i.
func (c *Chunk) Logits(i int) (own, reference []float32, err error) {
	row := func(a model.Array) []float32 { return c.on.read(a.Slice(i*c.on.vocab, (i+1)*c.on.vocab)) }
	own = row(c.on.logits)
	if c.on.Ref != nil {
		reference = row(c.on.refLogits)
	}
	return own, reference, c.on.Ops.Err()
}

// watch tells the watcher of rows of a candidate. ref are those of the reference, nil without one.
func (d *device) watch(candidate, window, from int, targets []int, rows, ref []rowStat) error {
	if d.o.Watch == nil {
		return nil
	}
	c := &Chunk{Model: candidate, Window: window, From: from, Targets: targets, on: d}
	for i, row := range rows {
		s := Score{NLL: row.nll, KL: row.kl, Same: row.same}
		if ref != nil {
			s.ReferenceNLL = ref[i].nll
		}
		c.Scores = append(c.Scores, s)
	}
	return d.o.Watch.Tokens(c)
}
