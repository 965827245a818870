package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestFirstDifference: texts part at a word, which is told whole.
func TestFirstDifference(t *testing.T) {
	for _, tc := range []struct {
		name, a, b string
		want       string
	}{
		{"none", "the sea", "the sea", "the answers are the same"},
		{"both empty", "", "", "the answers are the same"},
		{"first word", "One two", "Two two", `first difference at the beginning: "One" in A, "Two" in B`},
		{"in a word", "the sea was", "the seal was", `first difference after 7 characters, "the": "sea" in A, "seal" in B`},
		{"between words", "the sea was blue.", "the sea is blue.", `first difference after 8 characters, "the sea": "was" in A, "is" in B`},
		{"one ends", "the sea ", "the sea is", `first difference after 8 characters, "the sea": the end in A, "is" in B`},
		{"one ends with a word", "the sea", "the sea is", `first difference after 7 characters, "the sea": the end in A, "is" in B`},
		{"spaces", "the sea is", "the sea\nis", `first difference after 7 characters, "the sea": " is" in A, "\nis" in B`},
		{"nothing said", "", "Yes.", `first difference at the beginning: the end in A, "Yes." in B`},
		{"within a character", "größe", "gräße", `first difference after 2 characters: "größe" in A, "gräße" in B`},
		{"lines", "a\nb c", "a\nb d", `first difference after 4 characters, "a b": "c" in A, "d" in B`},
		{"long", strings.Repeat("word ", 40) + "x", strings.Repeat("word ", 40) + "y", `first difference after 200 characters, "…word word word word word word": "x" in A, "y" in B`},
		{"no UTF-8", "a\xff", "a\xfe", `first difference after 1 characters: "a\xff" in A, "a\xfe" in B`},
	} {
		if got := firstDifference(tc.a, tc.b).line([2]string{"A", "B"}); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// pieces cuts a text into pieces of n characters.
func pieces(text string, n int) (all []string) {
	runes := []rune(text)
	for len(runes) > n {
		all, runes = append(all, string(runes[:n])), runes[n:]
	}
	return append(all, string(runes))
}

// TestMarking: the first word that differs is in reverse, in whatever pieces it comes.
func TestMarking(t *testing.T) {
	for _, tc := range []struct{ other, text, want string }{
		{"the sea was blue", "the sea is blue", "the sea \x1b[7mis\x1b[0m blue"},
		{"the sea", "the sea", "the sea"},
		{"the sea", "the sea is", "the sea\x1b[7m is\x1b[0m"},
		{"", "Yes, we do.", "\x1b[7mYes,\x1b[0m we do."},
		{"the sea was", "the sea", "the sea"},
	} {
		for n := 1; n < 20; n++ {
			m := marking{other: tc.other}
			got := ""
			for _, p := range pieces(tc.text, n) {
				got += m.add(p)
			}
			if got += m.end(); got != tc.want {
				t.Errorf("%q beside %q in pieces of %d: %q, want %q", tc.text, tc.other, n, got, tc.want)
			}
		}
	}
}

// TestSideBySide: rows are as long as the terminal at most, the same in whatever pieces the texts come, and the first that
// differs is marked.
func TestSideBySide(t *testing.T) {
	const a, b = "The sea was blue, and the sky above it was as well.\n\nSo it is said.", "The sea was blue, and a sail\tstood on it.\nSo it is said. \x1b[31mNothing else was there at all."
	want := strings.Join([]string{
		"first model          │ second",
		"─────────────────────┼─────────────────────",
		"The sea was blue,    │ The sea was blue,",
		"and the sky above it ≠ and a sail    stood",
		"was as well.         │ on it.",
		"                     │ So it is said.",
		`So it is said.       │ \x1b[31mNothing else`,
		"                     │ was there at all.",
	}, "\n") + "\n"
	for n := 1; n < 80; n += 3 {
		var out bytes.Buffer
		s := newSideBySide(&out, 43, false, [2]string{"first model", "second"})
		left, right := pieces(a, n), pieces(b, n)
		for i := range max(len(left), len(right)) {
			for side, all := range [][]string{left, right} {
				if i < len(all) {
					if err := s.add(side, all[i]); err != nil {
						t.Fatal(err)
					}
				}
				if i == len(all)-1 {
					s.end(side)
				}
			}
		}
		if got := out.String(); got != want {
			t.Fatalf("in pieces of %d:\n%s\nwant\n%s", n, got, want)
		}
	}
	var out bytes.Buffer
	s := newSideBySide(&out, 43, true, [2]string{"A", "B"})
	for i, text := range []string{"the sea was", "the sea is"} {
		if err := s.add(i, text); err != nil {
			t.Fatal(err)
		}
		s.end(i)
	}
	if want := "the sea \x1b[7mwas\x1b[0m          ≠ the sea \x1b[7mis\x1b[0m\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("in colour %q, want at its end %q", out.String(), want)
	}
}

// TestPatient: what comes after reading was given up is there for the next.
func TestPatient(t *testing.T) {
	r, w := io.Pipe()
	in := newPipedTurns(r, func() {})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCtrlC)
	for range 3 {
		if _, err := in.next(ctx); !errors.Is(err, errCtrlC) {
			t.Fatalf("given up: %v", err)
		}
	}
	go func() {
		_, _ = io.WriteString(w, "one\r\ntwo\nthree")
		w.Close()
	}()
	for _, want := range []string{"one", "two", "three"} {
		if got, err := in.next(t.Context()); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if got, err := in.next(t.Context()); got != "" || !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v in the end", got, err)
	}
}

// TestInterrupts: Ctrl-C ends what is under way, once, and else the run.
func TestInterrupts(t *testing.T) {
	i := &interrupts{}
	ctx := context.WithValue(t.Context(), interruptsKey{}, i)
	if i.taken() {
		t.Error("taken by nobody")
	}
	c := &conversation{}
	restore := onInterrupt(ctx, c.interrupted)
	turn, done := c.interruptible(ctx, true)
	if !i.taken() || !errors.Is(context.Cause(turn), errCtrlC) || ctx.Err() != nil {
		t.Errorf("the turn ended by %v, the run by %v", context.Cause(turn), ctx.Err())
	}
	if i.taken() {
		t.Error("what does not end takes a second one")
	}
	done()
	_, done = c.interruptible(ctx, true)
	done()
	if i.taken() {
		t.Error("taken behind a turn")
	}
	same, done := c.interruptible(ctx, false)
	if i.taken() || same != ctx {
		t.Error("taken where nobody can go on")
	}
	done()
	_, done = c.interruptible(ctx, true)
	restore()
	if i.taken() {
		t.Error("taken after the session")
	}
	done()
	onInterrupt(t.Context(), c.interrupted)() // where nothing is interrupted
}
