package eval

import (
	"errors"
	"math"
	"testing"
)

// watcher sums up what it is told, and works scores out from the logits that it is given.
type watcher struct {
	t      *testing.T
	scores [][]Score // by candidate
	at     [][2]int  // of the first candidate: window and place
	err    error
}

func (w *watcher) Tokens(c *Chunk) error {
	for i, s := range c.Scores {
		w.scores[c.Model] = append(w.scores[c.Model], s)
		if c.Model == 0 {
			w.at = append(w.at, [2]int{c.Window, c.From + i})
		}
		own, ref, err := c.Logits(i)
		if err != nil {
			return err
		}
		p, q := logProbs(own), logProbs(ref)
		kl, best, refBest := 0., 0, 0
		for v := range p {
			kl += math.Exp(q[v]) * (q[v] - p[v])
			if own[v] > own[best] {
				best = v
			}
			if ref[v] > ref[refBest] {
				refBest = v
			}
		}
		id := c.Targets[i]
		want := Score{-p[id], -q[id], kl, best == refBest}
		if math.Abs(s.NLL-want.NLL) > 1e-5 || math.Abs(s.ReferenceNLL-want.ReferenceNLL) > 1e-5 || math.Abs(s.KL-want.KL) > 1e-5 || s.Same != want.Same {
			w.t.Errorf("candidate %d, window %d, place %d: %+v, want %+v", c.Model, c.Window, c.From+i, s, want)
		}
	}
	return w.err
}

// TestWatch: a watcher is told of every scored token of every candidate, once, and can read its logits.
func TestWatch(t *testing.T) {
	ref := newFake(50, 1, 1)
	set := windows(50, 3, 20, 4)
	w := &watcher{t: t, scores: make([][]Score, 2)}
	results, err := Run(t.Context(), ref, []Model{ref.near(2, 0.3), ref.near(3, 1)}, set, Options{Ops: newOps(t, 1), Watch: w})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		var nll, kl float64
		for _, s := range w.scores[i] {
			nll, kl = nll+s.NLL, kl+s.KL
		}
		n := float64(len(w.scores[i]))
		if len(w.scores[i]) != r.TokensScored || math.Abs(nll/n-r.NLL) > 1e-9 || math.Abs(kl/n-r.KLMean) > 1e-9 {
			t.Errorf("candidate %d: %v tokens, nll %v, KL %v; want %d, %v, %v", i, n, nll/n, kl/n, r.TokensScored, r.NLL, r.KLMean)
		}
	}
	for i, at := range w.at {
		if want := [2]int{i / 16, 4 + i%16}; at != want {
			t.Fatalf("token %d is in window and place %v, want %v", i, at, want)
		}
	}
	w.err = errors.New("enough")
	if _, err := Run(t.Context(), ref, []Model{ref, ref}, set, Options{Ops: newOps(t, 1), Watch: w}); !errors.Is(err, w.err) {
		t.Errorf("the run ends with %v", err)
	}
}
