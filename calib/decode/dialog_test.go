package decode_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
)

// turn has a dialog go on with a text, and checks it against a session that has read nothing.
func turn(t *testing.T, m *model.Model, d *decode.Dialog, tokens []int, o decode.WriteOptions, kept int) []int {
	t.Helper()
	w, err := d.Write(context.Background(), tokens, o, func(int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, m, decode.Options{Context: d.Context()})
	fresh, err := decode.Write(context.Background(), s, [][]int{tokens}, o, func(_, _ int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.Tokens, fresh[0].Tokens) || w.End != fresh[0].End {
		t.Errorf("behind %d tokens, %d of them kept: wrote %v (%s), a session of its own %v (%s)", len(tokens), w.Kept, w.Tokens, w.End, fresh[0].Tokens, fresh[0].End)
	}
	if w.Kept != kept {
		t.Errorf("behind %d tokens: %d were kept, want %d", len(tokens), w.Kept, kept)
	}
	return w.Tokens
}

// TestDialog: what was read is kept as far as the next text begins with it, and what is written does not depend on that.
func TestDialog(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := open(t, dir)
			for _, sampling := range []decode.Sampling{{}, {Temperature: 1, Seed: 5}} {
				o := decode.WriteOptions{Sampling: sampling, MaxTokens: 4}
				first := g.Tokens[:8]
				s := session(t, m, decode.Options{Context: 32})
				d := decode.NewDialog(s)
				answer := turn(t, m, d, first, o, 0)
				// The last token that was written has not been read.
				second := slices.Concat(first, answer, g.Tokens[8:10])
				again := turn(t, m, d, second, o, len(first)+3)
				// The template leaves out the end of the first answer, and what follows is the same.
				other := (answer[2] + 1) % m.Vocab()
				third := slices.Concat(first, answer[:2], []int{other}, g.Tokens[10:11], again, g.Tokens[12:13])
				turn(t, m, d, third, o, 10)
				// The same once more, of which the last token is read at least.
				turn(t, m, d, third, o, len(third)-1)
				// Something else.
				turn(t, m, d, []int{(first[0] + 1) % m.Vocab(), 3}, o, 0)
			}
		})
	}
}

// TestDialogEnds: a turn that was interrupted, ended by its reader or refused leaves a dialog that goes on as any other.
func TestDialogEnds(t *testing.T) {
	m := open(t, tiny)
	s := session(t, m, decode.Options{Context: 24})
	d := decode.NewDialog(s)
	prompt := []int{9, 300, 17, 4, 5}
	o := decode.WriteOptions{MaxTokens: 6}

	ctx, cancel := context.WithCancel(context.Background())
	var seen []int
	w, err := d.Write(ctx, prompt, o, func(token int) bool {
		if seen = append(seen, token); len(seen) == 3 {
			cancel()
		}
		return true
	})
	if !errors.Is(err, context.Canceled) || w == nil || w.End != decode.EndInterrupted || !slices.Equal(w.Tokens, seen) || len(seen) != 3 {
		t.Fatalf("interrupted: %v, %v, told of %v", w, err, seen)
	}
	next := slices.Concat(prompt, seen, []int{77})
	turn(t, m, d, next, o, len(prompt)+2)

	if w, err = d.Write(ctx, next[:6], o, func(int) bool { return true }); !errors.Is(err, context.Canceled) || w == nil || len(w.Tokens) != 0 {
		t.Errorf("interrupted before it began: %v, %v", w, err)
	}
	if w, err = d.Write(context.Background(), next, o, func(int) bool { return false }); err != nil || w.End != decode.EndStop || len(w.Tokens) != 1 {
		t.Errorf("ended by its reader: %v, %v", w, err)
	}
	turn(t, m, d, next, o, len(next)-1)

	// A full context ends a text, and one that fills it is refused without a trace.
	long := make([]int, 22)
	for i := range long {
		long[i] = 50 + i
	}
	if got := turn(t, m, d, long, o, 0); len(got) != 3 { // the last of them is not read
		t.Errorf("wrote %d tokens behind 22 of 24, want 3", len(got))
	}
	before := d.Len()
	if _, err := d.Write(context.Background(), append(long, 1, 2), o, nil); !errors.Is(err, model.ErrFull) || d.Len() != before {
		t.Errorf("24 of 24 tokens: %v, %d tokens are left of %d", err, d.Len(), before)
	}
	if _, err := d.Write(context.Background(), nil, o, nil); err == nil {
		t.Error("no tokens: no error")
	}
	turn(t, m, d, long, o, 21)
}

// TestDialogRereads: a text that comes back from beyond the length at which a model reads anew is read again.
func TestDialogRereads(t *testing.T) {
	some := false
	for _, g := range archtest.Goldens(t) {
		dir := t.TempDir()
		g.Write(t, dir)
		m := open(t, dir)
		most := m.Decoder().Reread
		if most == 0 || g.Written == nil {
			continue
		}
		some = true
		long := make([]int, most+3)
		for i := range long {
			long[i] = g.Tokens[i%len(g.Tokens)]
		}
		o := decode.WriteOptions{MaxTokens: 3}
		s := session(t, m, decode.Options{Context: most + 20})
		d := decode.NewDialog(s)
		turn(t, m, d, long, o, 0)
		turn(t, m, d, long[:most-5], o, 0)
		turn(t, m, d, long[:most-4], o, most-5)
		turn(t, m, d, long, o, most-4)
	}
	if !some {
		t.Error("no model reads anew")
	}
}
