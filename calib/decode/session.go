// Package decode writes text with a model: prompts go in, tokens come out, one at a time.
//
// A [Session] keeps the keys and values of some texts side by side, and says what follows each. [Write] goes on with
// texts until they end, and a [Dialog] with one that grows by turns. A [Sampler] chooses the tokens, and a [Printer] makes
// text of them.
package decode

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
)

// Options adjust [NewSession].
type Options struct {
	Slots   int // texts side by side; 0 is 1
	Context int // the most tokens of a text, prompt included
	Chunk   int // tokens of a prompt that go in at a time; 0 is DefaultChunk
}

// DefaultChunk returns how many tokens of a prompt go in at a time: enough to decode packed weights seldom, and on a
// GPU to multiply fast.
func DefaultChunk(m *model.Model) int {
	if _, ok := m.Ops().(model.Recorder); ok {
		return 2048
	}
	return 512
}

// Session is texts that are being written, each in a slot. Its methods may not be called concurrently, nor
// with others of its model.
//
// On the processors of the host the logits of a text do not depend on the texts beside it, to the bit, while at
// most [Bucket] are taken further at once.
type Session struct {
	m     *model.Model
	cache *model.Cache
	chunk int
	texts [][]int // what the cache has of each where texts are read again, and what it is to have where the model forgets

	forgets bool // see arch.Decoder's Forgets

	logits model.Array // floats [vocabulary], of what follows a prompt
	best   model.Array // floats [rows]
	host   []float32
}

// Bucket is the most texts that take a step together on the processors of the host. More of them take it in turns, so
// that products of packed weights have as few rows as those of a text alone. On a GPU all do.
const Bucket = 8

// Together returns how many of some texts of a model take a step together.
func Together(m *model.Model, texts int) int {
	if _, ok := m.Ops().(model.Recorder); ok {
		return texts
	}
	return min(Bucket, texts)
}

// Together returns how many of the texts take a step together.
func (s *Session) Together() int { return Together(s.m, s.Slots()) }

// NewSession returns a session on a model, which outlives it. A context longer than the model was made
// for is an error.
func NewSession(m *model.Model, o Options) (*Session, error) {
	slots, chunk := max(o.Slots, 1), o.Chunk
	if chunk <= 0 {
		chunk = DefaultChunk(m)
	}
	if most := Longest(m.Decoder()); most > 0 && o.Context > most {
		return nil, fmt.Errorf("a context of %d tokens is longer than the %d that the model was made for", o.Context, most)
	}
	cache, err := m.NewCache(slots, o.Context)
	if err != nil {
		return nil, err
	}
	ops := m.Ops()
	s := &Session{m: m, cache: cache, chunk: min(chunk, o.Context), forgets: m.Decoder().Forgets(), texts: make([][]int, slots), logits: ops.Floats(m.Vocab())}
	s.best = ops.Floats(s.Together())
	if err := ops.Err(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Longest returns the most tokens of a text that a model was made for, 0 where nothing limits it.
func Longest(d *arch.Decoder) int {
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a != nil && a.Rope != nil && a.Rope.Type == "dynamic" { // which stretches as far as need be
			return 0
		}
	}
	return d.MaxPositions
}

// Close gives the session's memory back.
func (s *Session) Close() {
	s.cache.Close()
	s.m.Ops().Free(s.logits, s.best)
}

// Slots returns how many texts there are.
func (s *Session) Slots() int { return s.cache.Slots() }

// Len returns how many tokens of a text the session has read.
func (s *Session) Len(slot int) int {
	if s.forgets && slot >= 0 && slot < len(s.texts) {
		return len(s.texts[slot])
	}
	return s.cache.Len(slot)
}

// Context returns the most tokens of a text.
func (s *Session) Context() int { return s.cache.Positions() }

// Cut forgets the tokens of a text from the n-th on. Where the model forgets those before as well they are read again
// when the text goes on.
func (s *Session) Cut(slot, n int) {
	s.cache.Cut(slot, n)
	if s.forgets {
		s.texts[slot] = s.texts[slot][:min(n, len(s.texts[slot]))]
		return
	}
	s.keep(slot, nil)
}

// keep notes tokens that a text was taken further by, and forgets those that the cache has not.
func (s *Session) keep(slot int, tokens []int) {
	if s.forgets {
		s.texts[slot] = append(s.texts[slot], tokens...)
	} else if s.m.Decoder().Reread > 0 {
		s.texts[slot] = append(s.texts[slot], tokens...)[:s.Len(slot)]
	}
}

// errNoTokens is the error of a prompt without tokens: nothing says how to begin.
var errNoTokens = errors.New("the prompt is empty")

// Prompt puts tokens behind the text in a slot, a chunk at a time, and leaves what follows them. Interrupted or
// failed, it leaves the text as it was, or empty where it was to be read again.
func (s *Session) Prompt(ctx context.Context, slot int, tokens []int) (*Next, error) {
	if len(tokens) == 0 {
		return nil, errNoTokens
	}
	whole := s.Len(slot) + len(tokens)
	if whole > s.Context() {
		return nil, fmt.Errorf("a prompt of %d tokens is longer than the context of %d", whole, s.Context())
	}
	if err := s.reread(ctx, slot, len(tokens)); err != nil {
		return nil, err
	}
	last, err := s.read(ctx, slot, tokens, whole)
	if err != nil {
		return nil, err
	}
	if err := s.m.LogitsOf(s.logits, last, 1); err != nil {
		return nil, err
	}
	return &Next{s, s.logits, 1, nil}, nil
}

// read puts tokens behind the text in a slot, which will have whole tokens, a chunk at a time, and returns which of the states that
// the model has left is that of the last one.
func (s *Session) read(ctx context.Context, slot int, tokens []int, whole int) (last int, err error) {
	had := s.Len(slot)
	for from := 0; ; from += s.chunk {
		to := min(from+s.chunk, len(tokens))
		if _, err := s.cache.Continue(ctx, model.Part{Slot: slot, Tokens: tokens[from:to], Whole: whole}); err != nil {
			s.Cut(slot, had)
			return 0, err
		}
		s.keep(slot, tokens[from:to])
		if to == len(tokens) {
			return to - from - 1, nil
		}
	}
}

// reread reads the text in a slot again if it is about to grow, by so many tokens, to a length at which the model does.
func (s *Session) reread(ctx context.Context, slot, more int) error {
	if s.forgets {
		return s.Remind(ctx, slot)
	}
	most := s.m.Decoder().Reread
	if most == 0 || slot < 0 || slot >= s.Slots() { // there is none: the cache says so
		return nil
	}
	had := s.Len(slot)
	if had == 0 || had > most || had+more <= most {
		return nil
	}
	text := slices.Clone(s.texts[slot])
	s.Cut(slot, 0)
	_, err := s.read(ctx, slot, text, had+more)
	return err
}

// Remind reads the text in a slot again if the model has forgotten it, which else is done when the text goes on.
func (s *Session) Remind(ctx context.Context, slot int) error {
	if !s.forgets || slot < 0 || slot >= s.Slots() || s.cache.Len(slot) == len(s.texts[slot]) {
		return nil
	}
	text := slices.Clone(s.texts[slot])
	s.Cut(slot, 0)
	_, err := s.read(ctx, slot, text, len(text))
	return err
}

// Step puts a token behind each of some texts, as many as go together, and leaves what follows them, a row for each.
func (s *Session) Step(ctx context.Context, slots, tokens []int) (*Next, error) {
	if len(slots) != len(tokens) || len(slots) > s.Together() {
		return nil, fmt.Errorf("a step of %d slots and %d tokens", len(slots), len(tokens))
	}
	for _, slot := range slots {
		if err := s.reread(ctx, slot, 1); err != nil {
			return nil, err
		}
	}
	logits, best, err := s.cache.Step(ctx, slots, tokens)
	if err != nil {
		return nil, err
	}
	s.keepEach(slots, tokens)
	return &Next{s, logits, len(slots), best}, nil
}

// keepEach notes a token that was put behind each of some texts.
func (s *Session) keepEach(slots, tokens []int) {
	for i, slot := range slots {
		s.keep(slot, tokens[i:i+1])
	}
}

// Ahead is texts that go on by their most likely tokens. A GPU takes the tokens of a step from the step before, and has the
// next one at hand while the host reads them.
type Ahead struct {
	s             *Session
	dev           *model.Ahead // nil: the host takes part in steps
	slots, tokens []int
	left          int // steps
	straight      int // of these, until a text is to be read again
}

// Ahead goes on with texts, as many as go together, from a token each that is put behind them, by so many steps at most. Of
// the session nothing but Len may be asked for until it is closed.
func (s *Session) Ahead(ctx context.Context, slots, tokens []int, steps int) (*Ahead, error) {
	if len(slots) != len(tokens) || len(slots) > s.Together() || steps < 1 {
		return nil, fmt.Errorf("%d steps of %d slots and %d tokens", steps, len(slots), len(tokens))
	}
	a := &Ahead{s: s, slots: slots, tokens: tokens, left: steps}
	return a, a.begin(ctx)
}

// begin has the device go on, until a text is to be read again.
func (a *Ahead) begin(ctx context.Context) (err error) {
	a.Close()
	a.straight = a.left
	for _, slot := range a.slots {
		if err := a.s.reread(ctx, slot, 1); err != nil {
			return err
		}
		if room := a.s.m.Decoder().Reread - a.s.Len(slot); room > 0 {
			a.straight = min(a.straight, room)
		}
	}
	a.dev, err = a.s.cache.Ahead(ctx, a.slots, a.tokens, a.straight)
	return err
}

// Next takes the texts a step further and returns the token that follows each.
func (a *Ahead) Next(ctx context.Context) (best []int, err error) {
	if a.left == 0 {
		return nil, errors.New("no step is left")
	}
	if a.straight == 0 {
		if err := a.begin(ctx); err != nil {
			return nil, err
		}
	}
	a.left--
	a.straight--
	if a.dev != nil {
		if best, err = a.dev.Next(ctx); err == nil {
			a.s.keepEach(a.slots, a.tokens)
		}
	} else {
		var next *Next
		if next, err = a.s.Step(ctx, a.slots, a.tokens); err == nil {
			best, err = next.Best()
		}
	}
	a.tokens = best
	return best, err
}

// Close ends it. What was not asked for is no part of the texts.
func (a *Ahead) Close() {
	if a.dev != nil {
		a.dev.Close()
		a.dev = nil
	}
}

// Next says what follows texts. It is valid until the session's next step.
type Next struct {
	s      *Session
	logits model.Array // floats [rows, vocabulary]
	rows   int
	best   []int // where they are known
}

// Logits returns the logits of the token that follows, [rows, vocabulary].
func (n *Next) Logits() []float32 {
	vocab := n.s.m.Vocab()
	if need := n.rows * vocab; len(n.s.host) < need {
		n.s.host = make([]float32, need)
	}
	host := n.s.host[:n.rows*vocab]
	n.s.m.Ops().Read(host, n.logits)
	return host
}

// Ranked returns what stands first in each row at a temperature, nil where it takes as long as to return all logits.
func (n *Next) Ranked(temperature float64) []model.Ranked {
	r, ok := n.s.m.Ops().(model.Ranker)
	if !ok {
		return nil
	}
	return r.Rank(n.logits, n.rows, n.s.m.Vocab(), temperature)
}

// Weighed returns what the parts of each row weigh at a temperature, nil where it takes as long as to return all logits.
func (n *Next) Weighed(temperature float64) []model.Weighed {
	r, ok := n.s.m.Ops().(model.Ranker)
	if !ok {
		return nil
	}
	return r.Weigh(n.logits, n.rows, n.s.m.Vocab(), temperature)
}

// Some returns the logits [from, to) of a row.
func (n *Next) Some(row, from, to int) []float32 {
	some, at := make([]float32, to-from), row*n.s.m.Vocab()
	n.s.m.Ops().Read(some, n.logits.Slice(at+from, at+to))
	return some
}

// Best returns the most likely token of each row, the first of equals. They are found on the device.
func (n *Next) Best() ([]int, error) {
	if n.best != nil {
		return n.best, nil
	}
	ops, vocab := n.s.m.Ops(), n.s.m.Vocab()
	best := n.s.best.Slice(0, n.rows)
	ops.ArgMax(best, n.logits, n.rows, vocab)
	host := make([]float32, n.rows)
	ops.Read(host, best)
	tokens := make([]int, n.rows)
	for i, v := range host {
		tokens[i] = int(v)
	}
	return tokens, ops.Err()
}
