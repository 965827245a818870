package decode

import (
	"context"
	"errors"
	"slices"

	"github.com/lutq/lutq/calib/model"
)

// End is why a text ended.
type End string

// The ends of a text.
const (
	EndEOS         End = "eos"         // the model ended it
	EndStop        End = "stop"        // who reads it wanted no more
	EndLength      End = "length"      // it has as many tokens as asked for, or the context is full
	EndInterrupted End = "interrupted" // the context of the work is done
)

// WriteOptions say how [Write] goes on with texts.
type WriteOptions struct {
	Sampling
	MaxTokens int   // of each text, at least 1
	EOS       []int // tokens that end a text, and are no part of it
	// Prompted is called once when all prompts have been read; may be nil.
	Prompted func()
}

// Text is what was written behind a prompt.
type Text struct {
	Tokens []int // without the one that ended it
	End    End
}

// Write reads the prompts, text i into slot i of the session, which has as many and is new, and goes on with
// all of them side by side until each has ended. emit is called for each token as it comes, and
// ends the text where it returns false.
//
// When ctx is done, what there is is returned, with its error.
func Write(ctx context.Context, s *Session, prompts [][]int, o WriteOptions, emit func(text, token int) (more bool)) ([]Text, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if len(prompts) > s.Slots() || o.MaxTokens < 1 {
		return nil, errors.New("more prompts than slots, or no tokens to write")
	}
	w := &writer{s: s, o: o, emit: emit, texts: make([]Text, len(prompts)), last: make([]int, len(prompts))}
	for i := range prompts {
		w.samplers = append(w.samplers, NewSampler(o.Sampling, i))
		w.texts[i].End = EndInterrupted
	}
	err := w.write(ctx, prompts)
	if err != nil && !errors.Is(err, ctx.Err()) {
		return nil, err
	}
	return w.texts, err
}

// writer is texts on their way.
type writer struct {
	s        *Session
	o        WriteOptions
	emit     func(text, token int) bool
	samplers []*Sampler
	texts    []Text
	last     []int // token of each text, that the model has not read yet
	open     []int // texts that have not ended
}

func (w *writer) write(ctx context.Context, prompts [][]int) error {
	for i, p := range prompts {
		next, err := w.s.Prompt(ctx, i, p)
		if err != nil {
			return err
		}
		// The token is chosen now, as what follows is overwritten, and told of when all prompts are read.
		if err := w.choose(next, []int{i}); err != nil {
			return err
		}
	}
	if w.o.Prompted != nil {
		w.o.Prompted()
	}
	for i := range prompts {
		w.take(i)
	}
	for len(w.open) > 0 {
		if w.o.Greedy() && len(w.open) <= w.s.Together() {
			if err := w.ahead(ctx); err != nil {
				return err
			}
			continue
		}
		open := w.open
		w.open = nil
		for some := range slices.Chunk(open, w.s.Together()) {
			next, err := w.s.Step(ctx, some, w.lasts(some))
			if err != nil {
				return err
			}
			if err := w.choose(next, some); err != nil {
				return err
			}
			for _, i := range some {
				w.take(i)
			}
		}
	}
	return nil
}

// lasts returns the last tokens of some texts.
func (w *writer) lasts(some []int) []int {
	tokens := make([]int, len(some))
	for j, i := range some {
		tokens[j] = w.last[i]
	}
	return tokens
}

// ahead goes on with the open texts by their most likely tokens until one of them ends.
func (w *writer) ahead(ctx context.Context) error {
	some, steps := w.open, w.o.MaxTokens
	for _, i := range some {
		steps = min(steps, w.o.MaxTokens-len(w.texts[i].Tokens))
	}
	a, err := w.s.Ahead(ctx, some, w.lasts(some), steps)
	if err != nil {
		return err
	}
	defer a.Close()
	for len(w.open) == len(some) {
		best, err := a.Next(ctx)
		if err != nil {
			return err
		}
		w.open = nil
		for j, i := range some {
			w.last[i] = best[j]
			w.take(i)
		}
	}
	return nil
}

// choose sets the last tokens of some texts to those that follow.
func (w *writer) choose(next *Next, some []int) error {
	if w.o.Greedy() {
		best, err := next.Best()
		for j, i := range some[:len(best)] {
			w.last[i] = best[j]
		}
		return err
	}
	var ranked []model.Ranked
	var weighed []model.Weighed
	if w.o.limited() {
		ranked = next.Ranked(w.o.Temperature)
	} else {
		weighed = next.Weighed(w.o.Temperature)
	}
	var logits []float32 // of all, when they are needed
	vocab := w.s.m.Vocab()
	for j, i := range some {
		ok := false
		switch {
		case ranked != nil:
			w.last[i], ok = w.samplers[i].ChooseRanked(ranked[j], vocab)
		case weighed != nil:
			w.last[i], ok = w.samplers[i].ChooseWeighed(weighed[j], func(from int) []float32 {
				return next.Some(j, from, min(from+weighed[j].Part, vocab))
			})
		}
		if ok {
			continue
		}
		if logits == nil {
			logits = next.Logits()
		}
		var err error
		if w.last[i], err = w.samplers[i].Choose(logits[j*vocab : (j+1)*vocab]); err != nil {
			return err
		}
	}
	return nil
}

// take adds the last token to a text, and ends it or leaves it open.
func (w *writer) take(i int) {
	t, token := &w.texts[i], w.last[i]
	if slices.Contains(w.o.EOS, token) {
		t.End = EndEOS
		return
	}
	t.Tokens = append(t.Tokens, token)
	switch {
	case !w.emit(i, token):
		t.End = EndStop
	case len(t.Tokens) == w.o.MaxTokens || w.s.Len(i) == w.s.Context():
		t.End = EndLength
	default:
		w.open = append(w.open, i)
	}
}
