package tasks

import (
	"context"
	"fmt"
	"slices"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
)

// Agreement is how many texts two models go on with alike.
type Agreement struct {
	Tokens   int        `json:"tokens"` // behind the prompt
	Share    float64    `json:"share"`  // of texts that are the same up to there
	Interval [2]float64 `json:"interval"`
}

// Prompts cuts n prompts of so many tokens out of a text, as far apart as they can be. before stands before each.
func Prompts(text, before []int, n, tokens int) ([][]int, error) {
	if len(text) < n*tokens {
		return nil, fmt.Errorf("a text of %d tokens has not %d prompts of %d", len(text), n, tokens)
	}
	prompts := make([][]int, n)
	for i := range prompts {
		at := i * (len(text) / n)
		prompts[i] = slices.Concat(before, text[at:at+tokens])
	}
	return prompts, nil
}

// ended stands for the end of a text that a model ended itself.
const ended = -1

// together is how many texts are written beside each other.
const together = 32

// Continue goes on with prompts by the most likely tokens, so many at most. A text that the model ends with one of ends has a
// mark behind its last token.
func Continue(ctx context.Context, m *model.Model, prompts [][]int, tokens int, ends []int, progress func(done int)) ([][]int, error) {
	longest := 0
	for _, p := range prompts {
		longest = max(longest, len(p))
	}
	var all [][]int
	for some := range slices.Chunk(prompts, together) {
		texts, err := continueSome(ctx, m, some, longest+tokens, decode.WriteOptions{MaxTokens: tokens, EOS: ends})
		if err != nil {
			return nil, err
		}
		for _, t := range texts {
			if t.End == decode.EndEOS {
				t.Tokens = append(t.Tokens, ended)
			}
			all = append(all, t.Tokens)
		}
		progress(len(all))
	}
	return all, nil
}

func continueSome(ctx context.Context, m *model.Model, prompts [][]int, positions int, o decode.WriteOptions) ([]decode.Text, error) {
	s, err := decode.NewSession(m, decode.Options{Slots: len(prompts), Context: positions})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return decode.Write(ctx, s, prompts, o, func(int, int) bool { return true })
}

// Agree returns how many of the texts of two models are the same up to some tokens. A text that both end at the same place is the
// same from there on. Intervals are Wilson's, of 95 %.
func Agree(a, b [][]int, after ...int) []Agreement {
	var all []Agreement
	for _, n := range after {
		same := 0
		for i := range a {
			x, y := a[i][:min(n, len(a[i]))], b[i][:min(n, len(b[i]))]
			if slices.Equal(x, y) {
				same++
			}
		}
		share := float64(same) / float64(len(a))
		low, high := Wilson(share, float64(len(a)))
		all = append(all, Agreement{n, share, [2]float64{low, high}})
	}
	return all
}
