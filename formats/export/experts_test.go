package export

import (
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
)

// TestExpertWarnings: transformers keeps experts in stacks, and makes none of what these formats hold of a single one.
func TestExpertWarnings(t *testing.T) {
	stored := func(path string) *arch.Linear { return &arch.Linear{Stored: &arch.Stored{Path: path}} }
	m := &foreign.Model{
		Config: []byte("{}"),
		Decoder: &arch.Decoder{Head: stored("lm_head"), Blocks: []arch.Block{
			{Mixer: &arch.Attention{Q: stored("q"), K: stored("k"), V: stored("v"), O: stored("o")}, MoE: &arch.MoE{Experts: []arch.MLP{{Gate: stored("e.gate"), Up: stored("e.up"), Down: stored("e.down")}}}},
		}},
		Layers: []*foreign.Layer{{Name: "e.gate", Tensor: "e.gate.weight", N: 32, K: 64, Bits: 4, Group: 64}},
	}
	for i := range 16 {
		m.Layers[0].Table = append(m.Layers[0].Table, float32(i-8))
	}
	want := []string{"bnb", "gptq", "awq", "nvfp4"}
	var warn []string
	for _, to := range Targets() {
		f, err := to.Format(m)
		if err != nil {
			if to.Name() != "gguf" { // whose families are few
				t.Errorf("%s: %v", to.Name(), err)
			}
			continue
		}
		if w, ok := f.(foreign.Warner); ok && strings.Contains(strings.Join(w.Warnings(), "\n"), "experts") {
			warn = append(warn, to.Name())
		}
	}
	if !slices.Equal(warn, want) {
		t.Errorf("%v warn of experts: want %v", warn, want)
	}
}
