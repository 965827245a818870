package mix_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/quantize/mix"
)

// sets draws sets of choices. Small numbers make equals likely.
func sets(t *rapid.T, most int) [][]mix.Choice {
	choice := rapid.Custom(func(t *rapid.T) mix.Choice {
		return mix.Choice{Bytes: rapid.Int64Range(0, 40).Draw(t, "bytes"), Loss: float64(rapid.IntRange(0, 40).Draw(t, "loss")) / 8}
	})
	return rapid.SliceOfN(rapid.SliceOfN(choice, 1, 5), 0, most).Draw(t, "sets")
}

// TestBruteForce: the answer has the least loss of all that fit, and of those the fewest bytes; where nothing fits, the error says
// what would.
func TestBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := sets(t, 6)
		budget := rapid.Int64Range(0, 200).Draw(t, "budget")
		best, least := mix.Choice{Loss: math.Inf(1)}, int64(math.MaxInt64)
		at := make([]int, len(all))
		var walk func(i int)
		walk = func(i int) {
			if i < len(all) {
				for at[i] = range all[i] {
					walk(i + 1)
				}
				return
			}
			c := mix.Total(all, at)
			least = min(least, c.Bytes)
			if c.Bytes <= budget && (c.Loss < best.Loss || c.Loss == best.Loss && c.Bytes < best.Bytes) {
				best = c
			}
		}
		walk(0)
		got, err := mix.Allocate(all, budget)
		if least > budget {
			var short *mix.BudgetError
			if !errors.As(err, &short) || short.Least != least || short.Budget != budget {
				t.Fatalf("error %v, want that the least is %d", err, least)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if c := mix.Total(all, got); c != best {
			t.Errorf("%v has %+v, want %+v", got, c, best)
		}
	})
}

// TestLaws: for many sets with losses as layers have them, the answer is within the budget, loses no more than any choice that all
// sets share and that fits, loses no more with more bytes, and is the same again.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 120).Draw(t, "sets")
		all := make([][]mix.Choice, n)
		var uniform [4]mix.Choice
		for i := range all {
			weights := rapid.SampledFrom([]int64{4096, 16384, 49152, 98304}).Draw(t, "weights")
			loss := math.Exp(rapid.Float64Range(-9, -3).Draw(t, "ln loss"))
			for bits := range 4 {
				c := mix.Choice{Bytes: weights * int64(bits+2) / 8, Loss: loss * math.Pow(3.8, float64(-bits))}
				all[i] = append(all[i], c)
				uniform[bits].Bytes += c.Bytes
				uniform[bits].Loss += c.Loss
			}
		}
		budget := rapid.Int64Range(uniform[0].Bytes, uniform[3].Bytes+10).Draw(t, "budget")
		at, err := mix.Allocate(all, budget)
		if err != nil {
			t.Fatal(err)
		}
		got := mix.Total(all, at)
		if got.Bytes > budget {
			t.Fatalf("%d bytes of %d", got.Bytes, budget)
		}
		for _, u := range uniform {
			if u.Bytes <= budget && got.Loss > u.Loss*(1+1e-9) {
				t.Errorf("a loss of %v, where all alike lose %v", got.Loss, u.Loss)
			}
		}
		more, err := mix.Allocate(all, budget+rapid.Int64Range(1, 1000).Draw(t, "more"))
		if err != nil {
			t.Fatal(err)
		}
		if c := mix.Total(all, more); c.Loss > got.Loss*(1+1e-9) {
			t.Errorf("a loss of %v with more bytes than %v takes", c.Loss, got.Loss)
		}
		if again, _ := mix.Allocate(all, budget); !slices.Equal(again, at) {
			t.Errorf("%v, then %v", at, again)
		}
	})
}

// TestBad: sets without choices and losses that are no numbers are refused.
func TestBad(t *testing.T) {
	for name, set := range map[string][]mix.Choice{
		"none": {}, "not a number": {{Bytes: 1, Loss: math.NaN()}}, "a gain": {{Bytes: 1, Loss: -1}}, "no bytes": {{Bytes: -1}},
	} {
		if _, err := mix.Allocate([][]mix.Choice{{{Bytes: 1}}, set}, 10); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
