package decode

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/calib/model"
)

// Dialog is a conversation in the first slot of a session. Each turn gives it the whole text so far, which a chat template may
// write otherwise than the turn before, as where it leaves out what a model thought. What the session has of it is kept, and
// only what follows is read.
type Dialog struct {
	s    *Session
	text []int // that the session has read
}

// NewDialog returns a dialog in a session whose first slot is empty.
func NewDialog(s *Session) *Dialog { return &Dialog{s: s} }

// Context returns the most tokens of the text.
func (d *Dialog) Context() int { return d.s.Context() }

// Len returns how many tokens of the text have been read.
func (d *Dialog) Len() int { return len(d.text) }

// Written is what a dialog's turn has added to it.
type Written struct {
	Text
	Kept int // tokens of the prompt that had been read before
}

// Write makes tokens the text of the dialog and goes on with it as [Write] does with a prompt. A text that leaves no room for
// a token more is an error with [model.ErrFull] in it, which leaves the dialog as it was.
//
// When ctx is done, what there is is returned, with its error. It belongs to the text like what ends otherwise.
func (d *Dialog) Write(ctx context.Context, tokens []int, o WriteOptions, emit func(token int) (more bool)) (*Written, error) {
	if len(tokens) == 0 {
		return nil, errNoTokens
	}
	if len(tokens) >= d.s.Context() {
		return nil, fmt.Errorf("a text of %d tokens leaves no room in a context of %d: %w", len(tokens), d.s.Context(), model.ErrFull)
	}
	kept := d.kept(tokens)
	d.s.Cut(0, kept)
	texts, err := Write(ctx, d.s, [][]int{tokens[kept:]}, o, func(_, token int) bool { return emit(token) })
	all := slices.Clone(tokens)
	if len(texts) > 0 {
		all = append(all, texts[0].Tokens...)
	}
	d.text = all[:min(d.s.Len(0), len(all))]
	if len(texts) == 0 {
		return nil, err
	}
	if err != nil && !errors.Is(err, ctx.Err()) {
		return nil, err
	}
	return &Written{texts[0], kept}, err
}

// kept returns how many tokens of a text that is to be gone on with need not be read again. The last is read in any case,
// since what follows it is not kept.
func (d *Dialog) kept(tokens []int) int {
	if most := d.s.m.Decoder().Reread; most > 0 && len(d.text) > most && len(tokens) <= most {
		return 0 // what was read as part of a long text stands for no part of a short one
	}
	return min(commonPrefix(d.text, tokens), len(tokens)-1)
}

// commonPrefix returns how many tokens two texts begin with alike.
func commonPrefix(a, b []int) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
