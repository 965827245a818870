package decodebench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/model"
)

// Options say what [Run] times.
type Options struct {
	Tests []Test
	// Batch are the numbers of texts that are written side by side. Prompts are read and windows evaluated one after
	// another, so that those are timed for one text alone.
	Batch  []int
	Repeat int // repetitions that count; 0 is 3

	Sizes    Sizes
	ActBytes int // of an activation on the device
	// Free returns how many bytes of memory a session may take, 0 where that is not known; may be nil.
	Free func() int64
	// Energy has work done over and over, which returns how many tokens that were, and measures what the device takes for it. It is for
	// what is read and written, not for windows; may be nil.
	Energy func(ctx context.Context, work func() (tokens int, err error)) (Energy, error)
	// Done is called after each result, and Skip for each that there is no room for; either may be nil.
	Done func(Result)
	Skip func(t Test, batch int, reason error)
}

// Energy is what a device takes while it works.
type Energy struct{ JoulesPerToken, Watts float64 }

// Result is what one test took.
type Result struct {
	Test
	Batch   int
	Seconds []float64 // of each repetition, sorted
	Energy  Energy    // zero where it was not measured

	BytesPerToken float64 // that are read of weights, keys and values, at least
}

// median returns the middle one of the repetitions.
func (r *Result) median() float64 { return r.Seconds[len(r.Seconds)/2] }

// TokensPerSecond is that of the median repetition, over all texts.
func (r *Result) TokensPerSecond() float64 {
	return float64(r.Batch*r.tokens()) / max(r.median(), 1e-9)
}

// Spread is how far repetitions are apart, over their median.
func (r *Result) Spread() float64 {
	return (r.Seconds[len(r.Seconds)-1] - r.Seconds[0]) / max(r.median(), 1e-9)
}

// Count returns how many results there are at most.
func (o *Options) Count() int {
	n := 0
	for _, t := range o.Tests {
		n += len(o.batches(t))
	}
	return n
}

func (o *Options) batches(t Test) []int {
	if t.Tokens > 0 {
		return o.Batch
	}
	return []int{1}
}

// Run times tests on a model: random tokens as prompts, of what is written the most likely token each time,
// chosen on the device and read by the host as when text is generated; windows are evaluated against the
// model itself. Before the repetitions that count comes one that does not.
func Run(ctx context.Context, m *model.Model, o Options) ([]Result, error) {
	if o.Repeat <= 0 {
		o.Repeat = 3
	}
	var all []Result
	for _, t := range o.Tests {
		for _, batch := range o.batches(t) {
			if err := o.fits(m, t, batch); err != nil {
				if o.Skip != nil {
					o.Skip(t, batch, err)
				}
				continue
			}
			timed := o.time
			if t.Window > 0 {
				timed = o.timeWindow
			}
			r, err := timed(ctx, m, t, batch)
			if err != nil {
				return all, fmt.Errorf("%v, %d side by side: %w", t, batch, err)
			}
			slices.Sort(r.Seconds)
			r.Test, r.Batch, r.BytesPerToken = t, batch, o.bytesPerToken(m, t, batch)
			all = append(all, r)
			if o.Done != nil {
				o.Done(r)
			}
		}
	}
	return all, nil
}

// fits returns what stands against a test.
func (o *Options) fits(m *model.Model, t Test, batch int) error {
	if most := decode.Longest(m.Decoder()); most > 0 && t.Context() > most {
		return fmt.Errorf("a context of %d tokens is longer than the %d that the model was made for", t.Context(), most)
	}
	if o.Free == nil {
		return nil
	}
	if t.Window > 0 {
		if need, free := m.ActivationBytes(t.Window)+eval.LogitBytes(m.Ops()), o.Free(); free > 0 && need > free {
			return fmt.Errorf("what a window of %d tokens takes is %.3g GB of memory: %.3g GB are left", t.Window, float64(need)/1e9, float64(free)/1e9)
		}
		return nil
	}
	need := m.CacheElements(batch, t.Context())*int64(o.ActBytes) +
		4*int64(decode.Together(m, batch))*int64(m.Vocab()) + m.ActivationBytes(min(t.Context(), decode.DefaultChunk(m)))
	if free := o.Free(); free > 0 && need > free {
		return fmt.Errorf("keys and values of %d tokens and what computes them need %.3g GB of memory: %.3g GB are left", batch*t.Context(), float64(need)/1e9, float64(free)/1e9)
	}
	return nil
}

// time returns the seconds of each repetition, and the energy.
func (o *Options) time(ctx context.Context, m *model.Model, t Test, batch int) (r Result, err error) {
	s, err := decode.NewSession(m, decode.Options{Slots: batch, Context: t.Context()})
	if err != nil {
		return r, err
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(1, uint64(batch)))
	random := func(n int) []int {
		tokens := make([]int, n)
		for i := range tokens {
			tokens[i] = rng.IntN(m.Vocab())
		}
		return tokens
	}
	first := make([]int, batch) // token that goes on with each text
	if before := t.before(); before > 0 {
		for slot := range first {
			next, err := s.Prompt(ctx, slot, random(before))
			if err != nil {
				return r, err
			}
			best, err := next.Best()
			if err != nil {
				return r, err
			}
			first[slot] = best[0]
		}
	}
	prompt := random(t.Prompt)
	once := func() (took time.Duration, err error) {
		for slot := range first {
			s.Cut(slot, t.before())
			if err := s.Remind(ctx, slot); err != nil { // which is not what is timed
				return 0, err
			}
		}
		begin := time.Now()
		if t.Prompt > 0 {
			err = read(ctx, s, prompt)
		} else {
			err = write(ctx, s, slices.Clone(first), t.Tokens)
		}
		return time.Since(begin), err
	}
	for i := range o.Repeat + 1 {
		took, err := once()
		if err != nil {
			return r, err
		}
		if i > 0 {
			r.Seconds = append(r.Seconds, took.Seconds())
		}
	}
	if o.Energy != nil {
		r.Energy, err = o.Energy(ctx, func() (int, error) {
			_, err := once()
			return batch * t.tokens(), err
		})
	}
	return r, err
}

// timeWindow returns the seconds of each repetition: of the model alone, not of the reference.
func (o *Options) timeWindow(ctx context.Context, m *model.Model, t Test, _ int) (all Result, err error) {
	rng := rand.New(rand.NewPCG(2, 1))
	w := corpus.Window{Tokens: make([]int, t.Window), ScoreFrom: 1}
	for i := range w.Tokens {
		w.Tokens[i] = rng.IntN(m.Vocab())
	}
	set := &corpus.Set{Context: t.Window, Windows: []corpus.Window{w}}
	for i := range o.Repeat + 1 {
		r, err := eval.Run(ctx, m, []eval.Model{m}, set, eval.Options{Ops: m.Ops()})
		if err != nil {
			return all, err
		}
		if c := r[0].Comparison; c.Top1 != 1 || math.Abs(c.KLMean) > 1e-6 {
			return all, fmt.Errorf("the model differs from itself: KL %.3g, top-1 %v", c.KLMean, c.Top1)
		}
		if i > 0 {
			all.Seconds = append(all.Seconds, float64(t.Window)/r[0].TokensPerSecond)
		}
	}
	return all, nil
}

// read has a session read a prompt, and choose what follows.
func read(ctx context.Context, s *decode.Session, prompt []int) error {
	next, err := s.Prompt(ctx, 0, prompt)
	if err != nil {
		return err
	}
	_, err = next.Best()
	return err
}

// write goes on with the texts of all slots by n tokens each, of which last are the first.
func write(ctx context.Context, s *decode.Session, last []int, n int) error {
	slots := make([]int, len(last))
	for i := range slots {
		slots[i] = i
	}
	if len(slots) <= s.Together() {
		a, err := s.Ahead(ctx, slots, last, n)
		if err != nil {
			return err
		}
		defer a.Close()
		for range n {
			if _, err := a.Next(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	for range n {
		for some := range slices.Chunk(slots, s.Together()) {
			tokens := last[some[0]:][:len(some)]
			next, err := s.Step(ctx, some, tokens)
			if err != nil {
				return err
			}
			best, err := next.Best()
			if err != nil {
				return err
			}
			copy(tokens, best)
		}
	}
	return nil
}
