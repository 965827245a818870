package foreign

import (
	"testing"

	"github.com/lutq/lutq/formats/arch"
)

// TestExperts: only packed matrices of experts count, not the shared expert's or the attention's.
func TestExperts(t *testing.T) {
	linear := func(path string) *arch.Linear { return &arch.Linear{Stored: &arch.Stored{Path: path}} }
	mlp := func(path string) arch.MLP {
		return arch.MLP{Gate: linear(path + ".gate"), Up: linear(path + ".up"), Down: linear(path + ".down")}
	}
	one, shared := mlp("0.mlp"), mlp("1.shared")
	m := &Model{Decoder: &arch.Decoder{Blocks: []arch.Block{
		{MLP: &one},
		{MoE: &arch.MoE{Experts: []arch.MLP{mlp("1.experts.0"), mlp("1.experts.1")}, Shared: &shared}},
	}}}
	for _, name := range []string{"0.attn.q", "0.mlp.gate", "1.shared.up", "1.experts.0.gate", "1.experts.0.up", "1.experts.1.down"} {
		m.Layers = append(m.Layers, &Layer{Name: name})
	}
	m.Layers = append(m.Layers, &Layer{Name: "1.experts.1.up", As: Dense})
	if n := m.Experts(); n != 3 {
		t.Errorf("%d layers of experts: want 3", n)
	}
	if n := (&Model{Layers: m.Layers}).Experts(); n != 0 {
		t.Errorf("%d layers of experts of an unknown family: want 0", n)
	}
}
