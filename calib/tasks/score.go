package tasks

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/model"
)

// Likelihood is what a model says of a continuation.
type Likelihood struct {
	Sum    float64 // Σ ln p of its tokens
	Greedy bool    // each is the most likely one
}

// Answers are what a model says of a task's requests, item by item.
type Answers struct {
	Likelihoods [][]Likelihood
	Tokens      int // that the model read, those that requests share once
	Elapsed     time.Duration
}

// Bounds of what a model is given at once.
const (
	cpuRows, deviceRows     = 512, 4096     // tokens
	mostTexts               = 64            // beside each other
	cpuKept, deviceKept     = 64e6, 512e6   // numbers in the cache
	cpuLogits, deviceLogits = 8 << 20, 64e6 // numbers
)

// Score has a model read what items ask. Items take turns in the slots of a cache, several beside each other. What the next
// text of a slot begins with like the last one, such as the context of several choices or the same examples, is not read
// again, unless the model forgets or turns tokens by the length of their text.
func Score(ctx context.Context, m *model.Model, items [][]Read, progress func(done int)) (*Answers, error) {
	return ScoreOn(ctx, []*model.Model{m}, items, progress)
}

// ScoreOn is [Score] for a model that several devices have, among which items are divided: each has some that follow each other. A GPU's
// numbers may be rounded otherwise then, as other texts stand beside each other.
func ScoreOn(ctx context.Context, on []*model.Model, items [][]Read, progress func(done int)) (*Answers, error) {
	begin := time.Now()
	n := max(min(len(on), len(items)), 1)
	parts, done := make([]*Answers, n), make([]int, n)
	var mu sync.Mutex
	group, inner := errgroup.WithContext(ctx)
	for i, m := range on[:n] {
		from, to := i*len(items)/n, (i+1)*len(items)/n
		s := &scorer{m: m, items: items[from:to], first: from, answers: &Answers{Likelihoods: make([][]Likelihood, to-from)}}
		if progress != nil {
			s.progress = func(some int) {
				mu.Lock()
				defer mu.Unlock()
				done[i] = some
				all := 0
				for _, d := range done {
					all += d
				}
				progress(all)
			}
		}
		parts[i] = s.answers
		group.Go(func() error {
			err := s.all(inner)
			if err != nil && n > 1 {
				err = model.On(m.Ops(), err)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	a := &Answers{Elapsed: time.Since(begin)}
	for _, p := range parts {
		a.Likelihoods, a.Tokens = append(a.Likelihoods, p.Likelihoods...), a.Tokens+p.Tokens
	}
	return a, nil
}

// all scores all of its items.
func (s *scorer) all(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	defer s.close()
	return s.run(ctx)
}

type scorer struct {
	m        *model.Model
	items    [][]Read
	first    int // of all items
	answers  *Answers
	progress func(done int)

	cache  *model.Cache
	shares bool
	slots  []slot
	next   int // item that no slot has yet
	done   int // items

	budget      int // tokens read at once
	rows        int // of logits at once
	states      model.Array
	logits, out model.Array
	host        []float32
}

// slot is a text of the cache.
type slot struct {
	item  int    // −1: none
	texts []text // of the item, that are still to be read
	kept  []int  // tokens that the cache has
	begun bool   // they are the beginning of the first text
}

// text is what is read for one request or for several that differ in the last token, which is not read.
type text struct {
	tokens []int
	asks   []ask
}

// ask are the scored tokens of a request.
type ask struct {
	request int
	tokens  []int // scored at the end of the text
}

// textsOf returns what is read for an item.
func textsOf(reads []Read) []text {
	var all []text
	for i, r := range reads {
		last := len(r.Tokens) - 1
		a := ask{request: i, tokens: r.Tokens[len(r.Tokens)-r.Scored:]}
		at := slices.IndexFunc(all, func(t text) bool { return slices.Equal(t.tokens, r.Tokens[:last]) })
		if at < 0 {
			at = len(all)
			all = append(all, text{tokens: r.Tokens[:last]})
		}
		all[at].asks = append(all[at].asks, a)
	}
	return all
}

// first returns the first row of a text whose state is scored.
func (t *text) first() int {
	most := 0
	for _, a := range t.asks {
		most = max(most, len(a.tokens))
	}
	return len(t.tokens) - most
}

func (s *scorer) open() error {
	d, ops := s.m.Decoder(), s.m.Ops()
	kept, logits := int64(cpuKept), cpuLogits
	s.budget = cpuRows
	if ops.Name() != "cpu" {
		kept, logits, s.budget = deviceKept, deviceLogits, deviceRows
	}
	s.shares = !d.Forgets() && d.Reread == 0
	longest := 1
	for i, reads := range s.items {
		s.answers.Likelihoods[i] = make([]Likelihood, len(reads))
		for j, r := range reads {
			s.answers.Likelihoods[i][j].Greedy = true
			longest = max(longest, len(r.Tokens))
			if last := r.Tokens[len(r.Tokens)-1]; last >= s.m.Vocab() {
				return fmt.Errorf("item %d: token %d is none of the model's %d", s.first+i+1, last, s.m.Vocab())
			}
		}
	}
	n := min(mostTexts, len(s.items))
	for n > 1 && s.m.CacheElements(n, longest) > kept {
		n--
	}
	var err error
	if s.cache, err = s.m.NewCache(max(n, 1), longest); err != nil {
		return err
	}
	s.slots = make([]slot, s.cache.Slots())
	for i := range s.slots {
		s.slots[i].item = -1
	}
	s.rows = min(max(logits/s.m.Vocab(), 1), s.budget)
	s.states, s.logits, s.out = ops.Acts(s.rows*d.Hidden), ops.Floats(s.rows*s.m.Vocab()), ops.Floats(s.rows)
	s.host = make([]float32, s.rows)
	if err := ops.Err(); err != nil {
		s.close()
		return err
	}
	return nil
}

func (s *scorer) close() {
	s.m.Ops().Free(s.states, s.logits, s.out)
	s.cache.Close()
}

// row is a state that is scored by a token.
type row struct{ at, token, item, request int }

// run reads all texts.
func (s *scorer) run(ctx context.Context) error {
	for {
		var parts []model.Part
		var scored []row
		left, at := s.budget, 0
		for i := range s.slots {
			if left == 0 || !s.fill(i) {
				continue
			}
			c := &s.slots[i]
			t, from := &c.texts[0], len(c.kept)
			to := min(from+left, len(t.tokens))
			parts = append(parts, model.Part{Slot: i, Tokens: t.tokens[from:to], Whole: len(t.tokens)})
			for _, a := range t.asks {
				for j, token := range a.tokens {
					if p := len(t.tokens) - len(a.tokens) + j; p >= from && p < to {
						scored = append(scored, row{at + p - from, token, c.item, a.request})
					}
				}
			}
			left -= to - from
			at += to - from
			c.kept = t.tokens[:to]
			if to == len(t.tokens) {
				c.texts, c.begun = c.texts[1:], false
			}
		}
		if len(parts) == 0 {
			return nil
		}
		s.answers.Tokens += at
		h, err := s.cache.Continue(ctx, parts...)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(scored, s.rows) {
			if err := s.score(h, some); err != nil {
				return err
			}
		}
		s.tell()
	}
}

// fill has a slot go on with a text, and reports whether there is one.
func (s *scorer) fill(i int) bool {
	c := &s.slots[i]
	for len(c.texts) == 0 {
		if c.item >= 0 {
			c.item = -1
			s.done++
		}
		if s.next == len(s.items) {
			return false
		}
		c.item, c.texts = s.next, textsOf(s.items[s.next])
		s.next++
	}
	t := &c.texts[0]
	if c.begun {
		return true
	}
	same := 0
	if s.shares {
		for same < min(len(c.kept), t.first()) && c.kept[same] == t.tokens[same] {
			same++
		}
	}
	s.cache.Cut(i, same)
	c.kept, c.begun = t.tokens[:same], true
	return true
}

// tell tells of progress.
func (s *scorer) tell() {
	if s.progress != nil {
		s.progress(s.done)
	}
}

// score scores states by tokens.
func (s *scorer) score(h model.Array, some []row) error {
	ops, d, vocab := s.m.Ops(), s.m.Decoder(), s.m.Vocab()
	at, tokens := make([]int, len(some)), make([]int, len(some))
	for i, r := range some {
		at[i], tokens[i] = r.at, r.token
	}
	states, logits := s.states.Slice(0, len(some)*d.Hidden), s.logits.Slice(0, len(some)*vocab)
	out, host := s.out.Slice(0, len(some)), s.host[:len(some)]
	ops.Gather(states, h, at, nil)
	if err := s.m.Logits(logits, states, len(some)); err != nil {
		return err
	}
	ops.CrossEntropy(out, nil, logits, tokens, vocab, 1)
	ops.Read(host, out)
	for i, r := range some {
		l := &s.answers.Likelihoods[r.item][r.request]
		if l.Sum -= float64(host[i]); l.Sum != l.Sum || l.Sum < -1e30 {
			return fmt.Errorf("item %d: logits are %w", s.first+r.item+1, model.ErrNotFinite)
		}
	}
	ops.ArgMax(out, logits, len(some), vocab)
	ops.Read(host, out)
	for i, r := range some {
		if int(host[i]) != r.token {
			s.answers.Likelihoods[r.item][r.request].Greedy = false
		}
	}
	return ops.Err()
}
