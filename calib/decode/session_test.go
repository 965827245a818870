package decode_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cpu"
)

const tiny = "../testdata/lutq-tiny"

func newOps(t testing.TB) *modelcpu.Ops {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return modelcpu.New(e)
}

func open(t testing.TB, dir string) *model.Model {
	t.Helper()
	m, err := model.Open(modeltest.Open(t, dir), newOps(t), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func session(t testing.TB, m *model.Model, o decode.Options) *decode.Session {
	t.Helper()
	s, err := decode.NewSession(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// apart is the distance of two vectors relative to the length of the second.
func apart(got, want []float32) float64 {
	var diff, norm float64
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		diff += d * d
		norm += float64(w) * float64(w)
	}
	return math.Sqrt(diff / norm)
}

// forced has a session read tokens, the first prompt of them as a prompt in a slot, and returns the logits after
// each of the rest.
func forced(t testing.TB, s *decode.Session, slot int, tokens []int, prompt int) [][]float32 {
	t.Helper()
	next, err := s.Prompt(context.Background(), slot, tokens[:prompt])
	if err != nil {
		t.Fatal(err)
	}
	all := [][]float32{slices.Clone(next.Logits())}
	for i := range tokens[prompt:] {
		if next, err = s.Step(context.Background(), []int{slot}, tokens[prompt+i:prompt+i+1]); err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.Clone(next.Logits()))
	}
	return all
}

// TestFamilies: what a tiny model of each family says token by token is what it says of the window.
func TestFamilies(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := open(t, dir)
			want := opstest.Logits(t, m, g.Tokens)
			for _, o := range []struct{ prompt, chunk int }{{len(g.Tokens), 7}, {1, 0}, {len(g.Tokens) / 2, 5}} {
				if g.Stepped != nil && o.prompt < len(g.Tokens) {
					break // what is read by steps is not the window's: TestLengths
				}
				// The other slots hold something else before, behind and beside it.
				s := session(t, m, decode.Options{Slots: 3, Context: len(g.Tokens), Chunk: o.chunk})
				for _, other := range []int{0, 2} {
					if _, err := s.Prompt(context.Background(), other, g.Tokens[3:9]); err != nil {
						t.Fatal(err)
					}
				}
				for i, got := range forced(t, s, 1, g.Tokens, o.prompt) {
					at := (o.prompt - 1 + i) * m.Vocab()
					if e := apart(got, want[at:at+m.Vocab()]); !(e <= 1e-5) {
						t.Fatalf("prompt of %d in chunks of %d: logits at %d are %.2g from the window's", o.prompt, o.chunk, o.prompt-1+i, e)
					}
				}
			}
		})
	}
}

// TestLengths: a text goes on as transformers' generate has it, also where frequencies depend on its length, however many
// tokens are asked for, whether it is prompted in chunks, or grows beside others.
func TestLengths(t *testing.T) {
	ctx := context.Background()
	for _, g := range archtest.Goldens(t) {
		if g.Written == nil {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := open(t, dir)
			write := func(what string, written []archtest.Written, tokens, chunk int, temperature float64) {
				t.Helper()
				most, prompts := 0, make([][]int, len(written))
				for i, w := range written {
					prompts[i] = g.Tokens[:w.Prompt]
					most = max(most, w.Prompt+tokens)
				}
				s := session(t, m, decode.Options{Slots: len(written), Context: most, Chunk: chunk})
				// The most likely of one is taken by steps that a device does not go ahead with.
				o := decode.WriteOptions{MaxTokens: tokens, Sampling: decode.Sampling{Temperature: temperature, TopK: 1}}
				texts, err := decode.Write(ctx, s, prompts, o, func(int, int) bool { return true })
				if err != nil {
					t.Fatal(err)
				}
				for i, w := range written {
					if want := w.Tokens[:min(tokens, len(w.Tokens))]; !slices.Equal(texts[i].Tokens, want) {
						t.Errorf("%s: %d tokens behind %d: got %v, want %v", what, tokens, w.Prompt, texts[i].Tokens, want)
					}
				}
			}
			for i, w := range g.Written {
				for _, tokens := range []int{1, 28, 29, 40} {
					write("alone", g.Written[i:i+1], tokens, 0, 0)
				}
				write("in chunks", g.Written[i:i+1], len(w.Tokens), 5, 1)
			}
			write("together", g.Written, 40, 0, 0)

			// A text that is cut goes on as it did.
			w := g.Written[0]
			s := session(t, m, decode.Options{Context: w.Prompt + len(w.Tokens)})
			text := append(slices.Clone(g.Tokens[:w.Prompt]), w.Tokens...)
			last := forced(t, s, 0, text, w.Prompt)
			s.Cut(0, 0)
			for i, got := range forced(t, s, 0, text, w.Prompt) {
				if !slices.Equal(got, last[i]) {
					t.Fatalf("after a cut, token %d has other logits", w.Prompt+i)
				}
			}
		})
	}
}

// TestLong goes over many blocks of keys with a real model.
func TestLong(t *testing.T) {
	m := open(t, tiny)
	tokens := make([]int, 700)
	for i := range tokens {
		tokens[i] = (i*i*31 + 7*i) % m.Vocab()
	}
	want := opstest.Logits(t, m, tokens)
	s := session(t, m, decode.Options{Context: len(tokens), Chunk: 200})
	for i, got := range forced(t, s, 0, tokens, 650) {
		at := (649 + i) * m.Vocab()
		if e := apart(got, want[at:at+m.Vocab()]); !(e <= 1e-5) {
			t.Fatalf("logits at %d are %.2g from the window's", 649+i, e)
		}
	}
}

// TestBatch: what is said of a text does not depend on those beside it, to the bit.
func TestBatch(t *testing.T) {
	m := open(t, tiny)
	prompts := [][]int{{0, 300, 17}, {5}, {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, {2000, 1}, {77, 78}, {3}, {44, 4, 1000}, {8, 80}, {1234, 5, 6}, {11}}
	const length = 20
	o := decode.WriteOptions{MaxTokens: length, Sampling: decode.Sampling{Temperature: 1.5, Seed: 3}}
	for _, greedy := range []bool{false, true} {
		if greedy {
			o.Sampling = decode.Sampling{}
		}
		write := func(slots int, prompts ...[]int) []decode.Text {
			texts, err := decode.Write(context.Background(), session(t, m, decode.Options{Slots: slots, Context: 64}), prompts, o, func(int, int) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			return texts
		}
		all := write(len(prompts), prompts...)
		for i, p := range prompts {
			if i > 0 && !greedy {
				break // others have a sampler of their own
			}
			if one := write(1, p); !slices.Equal(one[0].Tokens, all[i].Tokens) || len(one[0].Tokens) != length {
				t.Errorf("text %d is %v alone and %v among others", i, one[0].Tokens, all[i].Tokens)
			}
		}
		if again := write(len(prompts), prompts...); !slices.EqualFunc(again, all, func(a, b decode.Text) bool { return slices.Equal(a.Tokens, b.Tokens) }) {
			t.Error("the same seed wrote something else")
		}
	}

	alone, among := session(t, m, decode.Options{Context: 64}), session(t, m, decode.Options{Slots: 8, Context: 64})
	for i, p := range prompts[:8] {
		if _, err := among.Prompt(context.Background(), i, p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := alone.Prompt(context.Background(), 0, prompts[2]); err != nil {
		t.Fatal(err)
	}
	next, err := alone.Step(context.Background(), []int{0}, []int{50})
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(next.Logits())
	if next, err = among.Step(context.Background(), []int{7, 6, 5, 4, 3, 2, 1, 0}, []int{50, 50, 50, 50, 50, 50, 50, 50}); err != nil {
		t.Fatal(err)
	}
	if got := next.Logits()[5*m.Vocab() : 6*m.Vocab()]; !slices.Equal(got, want) {
		t.Error("logits are others beside other texts")
	}
}

func TestSessionErrors(t *testing.T) {
	m := open(t, tiny)
	ctx := context.Background()
	if _, err := decode.NewSession(m, decode.Options{Context: 4096}); err == nil || !strings.Contains(err.Error(), "a context of 4096 tokens is longer than the 2048 that the model was made for") {
		t.Errorf("a context beyond the model's: %v", err)
	}
	if _, err := decode.NewSession(m, decode.Options{}); err == nil {
		t.Error("a context of no tokens")
	}
	s := session(t, m, decode.Options{Context: 8, Chunk: 3})
	if _, err := s.Prompt(ctx, 0, nil); err == nil || err.Error() != "the prompt is empty" {
		t.Errorf("an empty prompt: %v", err)
	}
	if _, err := s.Prompt(ctx, 0, make([]int, 9)); err == nil || err.Error() != "a prompt of 9 tokens is longer than the context of 8" {
		t.Errorf("a prompt beyond the context: %v", err)
	}
	if _, err := s.Prompt(ctx, 0, []int{1, 2, 3, 4, m.Vocab()}); err == nil || !strings.Contains(err.Error(), "outside the vocabulary") {
		t.Errorf("a token that is none: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Prompt(done, 0, []int{1, 2, 3, 4}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted prompt: %v", err)
	}
	if n := s.Len(0); n != 0 {
		t.Errorf("%d tokens are left of prompts that failed", n)
	}
	if _, err := s.Prompt(ctx, 0, []int{1, 2, 3, 4, 5, 6, 7, 8}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Step(ctx, []int{0}, []int{1}); !errors.Is(err, model.ErrFull) || strings.Contains(err.Error(), "\n") {
		t.Errorf("a full cache: %v", err)
	}
	s.Cut(0, 7)
	if _, err := s.Step(ctx, []int{0}, []int{1}); err != nil {
		t.Errorf("after a cut: %v", err)
	}
	for _, slots := range [][]int{{1}, {-1}, {0, 0}} {
		if _, err := s.Step(ctx, slots, make([]int, len(slots))); err == nil {
			t.Errorf("slots %v of 1", slots)
		}
	}
}

// TestEnds lets texts end in each of the ways.
func TestEnds(t *testing.T) {
	m := open(t, tiny)
	write := func(ctx context.Context, o decode.WriteOptions, emit func(n int) bool) decode.Text {
		t.Helper()
		n := 0
		texts, err := decode.Write(ctx, session(t, m, decode.Options{Context: 16}), [][]int{{0, 300, 17}}, o, func(int, int) bool { n++; return emit(n) })
		if err != nil && !errors.Is(err, context.Canceled) || (err != nil) != (texts[0].End == decode.EndInterrupted) {
			t.Fatal(err, texts)
		}
		return texts[0]
	}
	always := func(int) bool { return true }
	all := write(context.Background(), decode.WriteOptions{MaxTokens: 100}, always)
	if all.End != decode.EndLength || len(all.Tokens) != 16-3+1 { // the last is not read
		t.Errorf("to the context's end: %+v", all)
	}
	if got := write(context.Background(), decode.WriteOptions{MaxTokens: 5}, always); got.End != decode.EndLength || !slices.Equal(got.Tokens, all.Tokens[:5]) {
		t.Errorf("5 tokens: %+v", got)
	}
	eos := all.Tokens[4]
	if got := write(context.Background(), decode.WriteOptions{MaxTokens: 100, EOS: []int{-1, eos}}, always); got.End != decode.EndEOS || !slices.Equal(got.Tokens, all.Tokens[:slices.Index(all.Tokens, eos)]) {
		t.Errorf("to EOS: %+v", got)
	}
	if got := write(context.Background(), decode.WriteOptions{MaxTokens: 100}, func(n int) bool { return n < 3 }); got.End != decode.EndStop || len(got.Tokens) != 3 {
		t.Errorf("stopped: %+v", got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if got := write(ctx, decode.WriteOptions{MaxTokens: 100}, func(n int) bool {
		if n == 6 {
			cancel()
		}
		return true
	}); got.End != decode.EndInterrupted || !slices.Equal(got.Tokens, all.Tokens[:6]) {
		t.Errorf("interrupted: %+v", got)
	}
}

// TestForgets: texts of a model that cannot take them back are read again where they are cut, and go on as fresh ones.
func TestForgets(t *testing.T) {
	racetest.Skip(t)
	ctx := context.Background()
	for _, g := range archtest.Goldens(t) {
		if g.Name != "qwen3-5" {
			continue
		}
		dir := t.TempDir()
		g.Write(t, dir)
		m := open(t, dir)
		s, fresh := session(t, m, decode.Options{Slots: 2, Context: 30, Chunk: 4}), session(t, m, decode.Options{Context: 30})
		logits := func(next *decode.Next, err error) []float32 {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return slices.Clone(next.Logits())
		}
		logits(s.Prompt(ctx, 1, g.Tokens[:9]))
		logits(s.Step(ctx, []int{1}, g.Tokens[9:10]))
		s.Cut(1, 6)
		if s.Len(1) != 6 {
			t.Fatalf("%d tokens after a cut: want 6", s.Len(1))
		}
		got := logits(s.Prompt(ctx, 1, g.Tokens[20:25]))
		want := logits(fresh.Prompt(ctx, 0, slices.Concat(g.Tokens[:6], g.Tokens[20:25])))
		if e := apart(got, want); e > 1e-5 || s.Len(1) != 11 {
			t.Errorf("a text of %d tokens that was cut is %.2g from a fresh one of 11", s.Len(1), e)
		}
		s.Cut(1, 10)
		a, err := s.Ahead(ctx, []int{1}, g.Tokens[24:25], 3)
		if err != nil {
			t.Fatal(err)
		}
		best, err := a.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.Index(want, slices.Max(want)); best[0] != i {
			t.Errorf("token %d follows a text that was cut: want %d", best[0], i)
		}
		a.Close()
		if s.Len(1) != 11 {
			t.Errorf("%d tokens after a step: want 11", s.Len(1))
		}
		return
	}
	t.Fatal("no golden qwen3-5")
}
