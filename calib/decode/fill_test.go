package decode_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decode"
)

// TestFill holds rows against texts that are written one after another, each by itself: rows depend on the seed and on their
// numbers, and not on those beside them.
func TestFill(t *testing.T) {
	m := open(t, tiny)
	const length, room = 70, 40
	ends := make(map[int]bool) // as many tokens as end a text every now and then
	var eos []int
	for id := 3; id < m.Vocab(); id += 40 {
		ends[id], eos = true, append(eos, id)
	}
	sampling := decode.Sampling{Temperature: 1, Seed: 5}
	prompt := func(row, n int) ([]int, int) {
		switch {
		case n == 1:
			return []int{0, 7, row}, 1
		case n == 2 && row == 1:
			return make([]int, room+5), 0 // longer than the session's context
		}
		return []int{0, 20 + row, n}, 0
	}
	row := func(i int) (tokens []int, texts int) {
		s := session(t, m, decode.Options{Context: room})
		sampler := decode.NewSampler(sampling, i)
		for n := 0; len(tokens) < length; n++ {
			s.Cut(0, 0)
			p, hidden := prompt(i, n)
			tokens = append(tokens, p[hidden:]...)
			if len(p) >= room || len(tokens) >= length {
				continue
			}
			next, err := s.Prompt(t.Context(), 0, p)
			for {
				if err != nil {
					t.Fatal(err)
				}
				id, err2 := sampler.Choose(next.Logits())
				if err2 != nil {
					t.Fatal(err2)
				}
				tokens = append(tokens, id)
				if ends[id] || s.Len(0) == room || len(tokens) >= length {
					break
				}
				next, err = s.Step(t.Context(), []int{0}, []int{id})
			}
			texts++
		}
		return tokens[:length], texts
	}
	fill := func(first, rows int) [][]int {
		var told int
		got, err := decode.Fill(t.Context(), session(t, m, decode.Options{Slots: 5, Context: room}), decode.FillOptions{
			Sampling: sampling, First: first, Rows: rows, Length: length, EOS: eos, Prompt: prompt, Progress: func(done int) { told = done },
		})
		if err != nil {
			t.Fatal(err)
		}
		if told != rows*length {
			t.Errorf("told of %d tokens: want %d", told, rows*length)
		}
		return got
	}
	all, most := fill(0, 5), 0
	for i, got := range all {
		want, texts := row(i)
		most = max(most, texts)
		if !slices.Equal(got, want) {
			t.Errorf("row %d is\n%v, want\n%v", i, got, want)
		}
	}
	if most < 3 {
		t.Errorf("rows have %d texts at most: want more, to see some begin", most)
	}
	if part := fill(2, 3); !slices.EqualFunc(part, all[2:], slices.Equal) {
		t.Error("rows are others beside fewer")
	}
}

func TestFillBad(t *testing.T) {
	m := open(t, tiny)
	s := session(t, m, decode.Options{Slots: 2, Context: 8})
	prompt := func(int, int) ([]int, int) { return []int{0}, 0 }
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		o    decode.FillOptions
		want error
	}{
		{"more rows than slots", t.Context(), decode.FillOptions{Rows: 3, Length: 4, Prompt: prompt}, nil},
		{"no tokens", t.Context(), decode.FillOptions{Rows: 2, Prompt: prompt}, nil},
		{"a bad temperature", t.Context(), decode.FillOptions{Rows: 2, Length: 4, Prompt: prompt, Sampling: decode.Sampling{Temperature: -1}}, nil},
		{"interrupted", done, decode.FillOptions{Rows: 2, Length: 4, Prompt: prompt}, context.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := decode.Fill(tc.ctx, s, tc.o)
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}
