package eval

import "github.com/lutq/lutq/calib/model"

// Watcher is told of every scored token while a run goes on. What it takes is not counted to any model.
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

	run *run
}

// Score is what remains of the logits for a token. What compares with the reference is zero without one.
type Score struct {
	NLL, ReferenceNLL, KL float64 // nats
	Same                  bool    // the most likely token is the reference's
}

// Logits reads what the candidate, and the reference where there is one, gave to all tokens in the place of target i.
func (c *Chunk) Logits(i int) (own, reference []float32, err error) {
	row := func(a model.Array) []float32 { return c.run.read(a.Slice(i*c.run.vocab, (i+1)*c.run.vocab)) }
	own = row(c.run.logits)
	if c.run.ref != nil {
		reference = row(c.run.refLogits)
	}
	return own, reference, c.run.o.Ops.Err()
}

// watch tells the watcher of rows of a candidate. ref are those of the reference, nil without one.
func (r *run) watch(candidate, from int, targets []int, rows, ref []rowStat) error {
	if r.o.Watch == nil {
		return nil
	}
	c := &Chunk{Model: candidate, Window: len(r.tallies[candidate].nll.windows) - 1, From: from, Targets: targets, run: r}
	for i, row := range rows {
		s := Score{NLL: row.nll, KL: row.kl, Same: row.same}
		if ref != nil {
			s.ReferenceNLL = ref[i].nll
		}
		c.Scores = append(c.Scores, s)
	}
	return r.o.Watch.Tokens(c)
}
