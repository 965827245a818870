package quantize

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/quantize/rounding"
)

// sent are statistics of an expert that so many tokens were sent to.
type sent struct {
	rounding.Stats
	tokens int
}

func (s sent) Routed() int { return s.tokens }

// TestExperts: a result has where tokens went, of stacks and of experts that are layers each, also where a run went on with
// what an earlier one had finished.
func TestExperts(t *testing.T) {
	for _, family := range []string{"mixtral", "qwen3-moe-fused"} {
		t.Run(family, func(t *testing.T) {
			dir := goldenModel(t, family)
			x := newText(t, dir)
			blocks, layers := x.decoder.Blocks, 0
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			change := func(limit int) func(stats []rounding.Stats) []rounding.Stats {
				return func(stats []rounding.Stats) []rounding.Stats {
					layers++
					if layers == limit {
						cancel()
					}
					path := x.visited[len(x.visited)-1]
					for i := range blocks {
						for e, m := range blocks[i].MoE.Experts {
							for _, l := range []string{m.Gate.Stored.Path, m.Up.Stored.Path, m.Down.Stored.Path} {
								if l == path { // 0 and 1 have too few, and in the second block 0 none
									n := []int{5 - 5*i, 20, 70, 100 + i}[e]
									stats[m.Gate.Expert] = sent{stats[m.Gate.Expert], n}
								}
							}
						}
					}
					return stats
				}
			}
			r := Recipe{Calibrate: x}
			r.Default.Method = "gptq"
			p, err := NewPlan(modeltest.Open(t, dir), r)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			x.change = change(len(p.Items) / 3)
			if _, err := p.Run(ctx, out, RunOptions{Threads: 1}); err == nil {
				t.Fatal("a run that was stopped has no error")
			}
			x.change = change(0)
			res, err := p.Run(t.Context(), out, RunOptions{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			if res.Resumed == 0 {
				t.Error("nothing was finished before")
			}
			want := []Experts{
				{Block: "model.layers.0", Top: 2, Tokens: []int{5, 20, 70, 100}, Least: 5, Median: 70, Filled: 2},
				{Block: "model.layers.1", Top: 2, Tokens: []int{0, 20, 70, 101}, Least: 0, Median: 70, Never: .25, Filled: 2},
			}
			if d := cmp.Diff(want, slices.Clone(res.Experts)); d != "" {
				t.Errorf("experts (-want +got):\n%s", d)
			}
		})
	}
}
