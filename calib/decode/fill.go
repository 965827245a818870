package decode

import (
	"context"
	"fmt"
	"slices"
)

// FillOptions say what [Fill] writes.
type FillOptions struct {
	Sampling
	First  int   // number of the first row, of all that there are: it decides with the seed what is drawn
	Rows   int   // at most the session's slots
	Length int   // tokens of a row
	EOS    []int // tokens that end a text, and are part of it
	// Prompt returns the tokens, one at least, that the n-th text of a row begins with, and how many of them are no part of the row.
	Prompt func(row, n int) (tokens []int, hidden int)
	// Progress, unless nil, is told how many tokens were written.
	Progress func(done int)
}

// Fill fills rows with texts side by side, text i of them in slot i of the session, whose texts are lost. Where the model ends a
// text, or the session's context does, the next one begins from an empty context. The last text of a row ends with the row.
func Fill(ctx context.Context, s *Session, o FillOptions) ([][]int, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Rows > s.Slots() || o.Length < 1 {
		return nil, fmt.Errorf("%d rows of %d tokens in %d slots", o.Rows, o.Length, s.Slots())
	}
	f := &filler{
		writer: writer{s: s, o: WriteOptions{Sampling: o.Sampling}, last: make([]int, o.Rows)},
		o:      o, rows: make([][]int, o.Rows), texts: make([]int, o.Rows),
	}
	for i := range o.Rows {
		f.samplers = append(f.samplers, NewSampler(o.Sampling, o.First+i))
	}
	for i := range o.Rows {
		if err := f.begin(ctx, i); err != nil {
			return nil, err
		}
	}
	for len(f.open) > 0 {
		open := f.open
		f.open = nil
		for some := range slices.Chunk(open, s.Together()) {
			next, err := s.Step(ctx, some, f.lasts(some))
			if err != nil {
				return nil, err
			}
			if err := f.choose(next, some); err != nil {
				return nil, err
			}
			for _, i := range some {
				if err := f.take(ctx, i); err != nil {
					return nil, err
				}
			}
		}
		if o.Progress != nil {
			o.Progress(f.done)
		}
	}
	return f.rows, nil
}

// filler is rows on their way. Of its writer it takes what chooses tokens.
type filler struct {
	writer
	o     FillOptions
	rows  [][]int
	texts []int // that each row has
	done  int   // tokens of all rows
}

// add adds tokens to a row, and reports whether it has room for more.
func (f *filler) add(i int, tokens ...int) bool {
	tokens = tokens[:min(len(tokens), f.o.Length-len(f.rows[i]))]
	f.rows[i] = append(f.rows[i], tokens...)
	f.done += len(tokens)
	return len(f.rows[i]) < f.o.Length
}

// begin begins the next text of a row.
func (f *filler) begin(ctx context.Context, i int) error {
	for {
		prompt, hidden := f.o.Prompt(f.o.First+i, f.texts[i])
		f.texts[i]++
		if !f.add(i, prompt[hidden:]...) {
			return nil
		}
		if len(prompt) >= f.s.Context() { // which leaves no room for what follows
			continue
		}
		f.s.Cut(i, 0)
		next, err := f.s.Prompt(ctx, i, prompt)
		if err != nil {
			return err
		}
		if err := f.choose(next, []int{i}); err != nil {
			return err
		}
		more := f.add(i, f.last[i])
		switch {
		case !more:
			return nil
		case !f.ended(i):
			f.open = append(f.open, i)
			return nil
		}
	}
}

// ended reports whether the last token of a text ends it.
func (f *filler) ended(i int) bool {
	return slices.Contains(f.o.EOS, f.last[i]) || f.s.Len(i) == f.s.Context()
}

// take adds the last token to a row, and leaves it open, begins the next text or is done with it.
func (f *filler) take(ctx context.Context, i int) error {
	switch {
	case !f.add(i, f.last[i]):
		return nil
	case f.ended(i):
		return f.begin(ctx, i)
	}
	f.open = append(f.open, i)
	return nil
}
