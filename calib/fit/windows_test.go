package fit

import (
	"testing"

	"github.com/lutq/lutq/formats/arch"
)

// TestWindows: a window has its part of 64 tokens a column of the widest layer, of which an expert reads its part.
func TestWindows(t *testing.T) {
	attn := &arch.Attention{Q: &arch.Linear{K: 512}, K: &arch.Linear{K: 512}, V: &arch.Linear{K: 512}, O: &arch.Linear{K: 640}}
	mlp := func(wide int) arch.MLP {
		return arch.MLP{Gate: &arch.Linear{K: 512}, Up: &arch.Linear{K: 512}, Down: &arch.Linear{K: wide}}
	}
	dense := func(wide int) *arch.Decoder {
		m := mlp(wide)
		return &arch.Decoder{Blocks: []arch.Block{{Mixer: attn, MLP: &m}}}
	}
	experts := &arch.Decoder{Blocks: []arch.Block{{Mixer: attn, MoE: &arch.MoE{Top: 2, Experts: []arch.MLP{mlp(400), mlp(400), mlp(400), mlp(400), mlp(400)}}}}}
	for _, tc := range []struct {
		name    string
		d       *arch.Decoder
		context int
		want    int
	}{
		{"narrow", dense(600), 2048, 32},
		{"as wide as SmolLM2", dense(1536), 2048, 48},
		{"not even", dense(1537), 2048, 49},
		{"short windows", dense(900), 512, 113},
		{"wide", dense(14336), 2048, 128},
		{"experts", experts, 1024, 80},
	} {
		if got := Windows(tc.d, tc.context); got != tc.want {
			t.Errorf("%s: %d windows, want %d", tc.name, got, tc.want)
		}
	}
}
