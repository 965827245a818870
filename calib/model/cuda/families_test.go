package cuda

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestGPUFamilies compares a tiny model of every family with transformers.
func TestGPUFamilies(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) { opstest.Families(t, o, familyBounds(i)) })
}

// TestGPUSteps goes through texts a token at a time, by steps that are recorded where the host takes no part in them.
func TestGPUSteps(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) { opstest.Steps(t, o, familyBounds(i)) })
}

// TestGPUAhead compares texts that the GPU takes further by itself with those that it takes step by step.
func TestGPUAhead(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, _ int) { opstest.Ahead(t, o) })
}

// opened is the tiny checkpoint of a golden file on a GPU, nil where it runs on the CPU only.
func opened(t *testing.T, o *Ops, g archtest.Golden) *model.Model {
	t.Helper()
	dir := t.TempDir()
	g.Write(t, dir)
	m, err := model.Open(modeltest.Open(t, dir), o, model.OpenOptions{})
	if errors.Is(err, model.ErrCPUOnly) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestGPULengths goes on with texts by their most likely tokens as transformers' generate does, also where rotary frequencies depend on how long
// they are: the GPU takes these further by itself until one is read again.
func TestGPULengths(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if types[i].acts != driver.F32 { // in which what is most likely is so by more than rounding
			return
		}
		for _, g := range archtest.Goldens(t) {
			if g.Written == nil {
				continue
			}
			m := opened(t, o, g)
			if m == nil {
				continue
			}
			defer m.Close()
			var prompts [][]int
			tokens := 0 // as many behind each
			for _, w := range g.Written {
				prompts, tokens = append(prompts, g.Tokens[:w.Prompt]), len(w.Tokens)
			}
			s, err := decode.NewSession(m, decode.Options{Slots: len(prompts), Context: len(g.Tokens) + tokens})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			texts, err := decode.Write(context.Background(), s, prompts, decode.WriteOptions{MaxTokens: tokens}, func(int, int) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range g.Written {
				if !slices.Equal(texts[i].Tokens, w.Tokens) {
					t.Errorf("%s: behind %d tokens: got %v, want %v", g.Name, w.Prompt, texts[i].Tokens, w.Tokens)
				}
			}
		}
	})
}

// usual reports whether the i-th type of activations is the one of most models, or all are to be gone through.
func usual(i int) bool {
	return types[i].acts == driver.F16 || *cudatest.Long
}

// TestGPUSoak writes a long text.
func TestGPUSoak(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if usual(i) {
			opstest.Soak(t, o, 10000, familyBounds(i).Logits)
		}
	})
}

// unranked hides that the GPU finds the most likely tokens.
type unranked struct{ model.Recorder }

// TestGPUDraws: what is drawn from the tokens that the GPU finds is what is drawn from all, to the bit.
func TestGPUDraws(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if !usual(i) {
			return
		}
		src := source(t, 4, 64, false)
		for _, sampling := range []decode.Sampling{
			{Temperature: 0.8, TopK: 40},
			{Temperature: 1, TopP: 0.9},
			{Temperature: 1.2, MinP: 0.05},
			{Temperature: 0.7, TopK: 300, TopP: 0.95, MinP: 0.01},
			{Temperature: 5, TopP: 0.999},
			{Temperature: 1},
		} {
			sampling.Seed = 5
			write := func(ops model.Ops) []decode.Text {
				m, err := model.New(src, ops)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				s, err := decode.NewSession(m, decode.Options{Slots: 3, Context: 100})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				texts, err := decode.Write(context.Background(), s, [][]int{window(t, 9), window(t, 20), window(t, 3)},
					decode.WriteOptions{Sampling: sampling, MaxTokens: 60}, func(int, int) bool { return true })
				if err != nil {
					t.Fatal(err)
				}
				return texts
			}
			got, want := write(o), write(unranked{o})
			for j := range want {
				if len(want[j].Tokens) != 60 || !slices.Equal(got[j].Tokens, want[j].Tokens) {
					t.Errorf("%+v, text %d: drew %v, of all logits %v", sampling, j, got[j].Tokens, want[j].Tokens)
				}
			}
		}
	})
}

// familyBounds are those for the i-th type of activations. In 16 bits an expert that is
// nearly as good as one that is chosen may be chosen in its place, which changes more than
// rounding does.
func familyBounds(i int) opstest.FamilyBounds {
	switch types[i].acts {
	case driver.F16:
		return opstest.FamilyBounds{Logits: 2e-2, Loss: 2e-3}
	case driver.BF16:
		// The goldens' routers lead by .02 to .03 of what their scores spread.
		return opstest.FamilyBounds{Logits: 1e-1, Loss: 2e-2, Near: []string{"glm4-moe-lite", "llama4-plain"}}
	}
	return opstest.FamilyBounds{Logits: 1e-4, Loss: 1e-4, Gradients: 2e-4}
}
