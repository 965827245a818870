package cuda

import (
	"context"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestGPUDialog: a turn that ends while the GPU is a step ahead, by who reads it or by an interrupt, leaves a text that goes on as one that
// was read anew, and so does one of which the end is written otherwise.
func TestGPUDialog(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if types[i].acts != driver.F32 { // as in TestGPULengths
			return
		}
		for _, g := range archtest.Goldens(t) {
			m := opened(t, o, g)
			if m == nil {
				continue
			}
			session := func() *decode.Session {
				s, err := decode.NewSession(m, decode.Options{Context: 48})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			options := decode.WriteOptions{MaxTokens: 5}
			s := session()
			d := decode.NewDialog(s)
			turn := func(tokens []int, kept int) []int {
				w, err := d.Write(context.Background(), tokens, options, func(int) bool { return true })
				if err != nil {
					t.Fatalf("%s: %v", g.Name, err)
				}
				fresh := session()
				defer fresh.Close()
				want, err := decode.Write(context.Background(), fresh, [][]int{tokens}, options, func(_, _ int) bool { return true })
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(w.Tokens, want[0].Tokens) || w.Kept != kept {
					t.Errorf("%s: behind %d tokens, %d of them kept and %d to be: wrote %v, a session of its own %v", g.Name, len(tokens), w.Kept, kept, w.Tokens, want[0].Tokens)
				}
				return w.Tokens
			}
			first := g.Tokens[:7]
			answer := turn(first, 0)
			text := slices.Concat(first, answer, g.Tokens[7:9])
			turn(text, len(first)+len(answer)-1)
			turn(slices.Concat(text[:9], []int{(text[9] + 1) % m.Vocab(), g.Tokens[9]}), 9)

			// Ended by its reader, and then interrupted, after two tokens.
			for _, interrupted := range []bool{false, true} {
				ctx, cancel := context.WithCancel(context.Background())
				seen := 0
				w, err := d.Write(ctx, text, options, func(int) bool {
					seen++
					if seen == 2 && interrupted {
						cancel()
					}
					return interrupted || seen < 2
				})
				cancel()
				if (err != nil) != interrupted || w == nil || len(w.Tokens) != 2 {
					t.Fatalf("%s, interrupted %v: %v, %v", g.Name, interrupted, w, err)
				}
				turn(slices.Concat(text, w.Tokens, g.Tokens[:2]), len(text)+1)
			}
			s.Close()
			m.Close()
		}
	})
}
