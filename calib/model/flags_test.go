package model_test

import (
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"pgregory.net/rapid"
)

// llama3Rope has all three kinds of frequencies at head_dim 6 and theta 10000.
func llama3Rope() map[string]any {
	return map[string]any{
		"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
		"original_max_position_embeddings": 300,
	}
}

func flatten(rows [][]float64) []float64 {
	var v []float64
	for _, r := range rows {
		v = append(v, r...)
	}
	return v
}

func randomTokens(seed uint64, n, vocab int) []int {
	rng := rand.New(rand.NewPCG(seed, 1))
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = rng.IntN(vocab)
	}
	return tokens
}

// Every flag of the configuration against the float64 decoder.
func TestAgainstReference(t *testing.T) {
	racetest.Skip(t)
	tests := []struct {
		name   string
		change func(*shape)
	}{
		{"llama", func(*shape) {}},
		{"one head", func(s *shape) { s.heads, s.kvHeads = 1, 1 }},
		{"no grouped queries", func(s *shape) { s.kvHeads = 4 }},
		{"one key-value head", func(s *shape) { s.kvHeads = 1 }},
		{"three queries a key", func(s *shape) { s.heads, s.kvHeads = 9, 3 }},
		{"head_dim is not hidden/heads", func(s *shape) { s.headDim = 10 }},
		{"head_dim 2", func(s *shape) { s.headDim = 2 }},
		{"odd sizes", func(s *shape) { s.hidden, s.inter, s.vocab = 23, 37, 41 }},
		{"wide", func(s *shape) { s.hidden, s.inter, s.headDim, s.vocab = 272, 300, 64, 33 }},
		{"untied", func(s *shape) { s.tied = false }},
		{"tied under lm_head", func(s *shape) { s.sharedNamed = true }},
		{"llama with attention bias", func(s *shape) { s.attentionBias = true }},
		{"llama with MLP bias", func(s *shape) { s.mlpBias = true }},
		{"qwen2", func(s *shape) { s.arch = "Qwen2ForCausalLM" }},
		{"qwen3", func(s *shape) { s.arch, s.headDim = "Qwen3ForCausalLM", 8 }},
		{"qwen3 with attention bias", func(s *shape) { s.arch, s.attentionBias = "Qwen3ForCausalLM", true }},
		{"mistral", func(s *shape) { s.arch = "MistralForCausalLM" }},
		{"mistral with a window", func(s *shape) { s.arch, s.window = "MistralForCausalLM", 20 }},
		{"linear rope", func(s *shape) { s.rope = map[string]any{"type": "linear", "factor": 4.0} }},
		{"llama3 rope", func(s *shape) { s.rope = llama3Rope() }},
		{"other theta", func(s *shape) { s.theta = 500000 }},
		{"f16", func(s *shape) { s.dtype = hf.F16 }},
		{"bf16", func(s *shape) { s.dtype = hf.BF16 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := small()
			tt.change(&s)
			dir := s.build().folder(t)
			// More than two query blocks, the last one short.
			tokens := randomTokens(1, 2*queryRows+9, s.vocab)
			want := flatten(checkpointReference(t, dir).logits(tokens))
			if e := maxError(logits(t, open(t, dir, 2), tokens), want); e > 5e-6 {
				t.Errorf("relative error %.2g, want at most 5e-6", e)
			}
		})
	}
}

// A window that passes through the MLP in two stretches.
func TestLongAgainstReference(t *testing.T) {
	racetest.Skip(t)
	s := small()
	dir := s.build().folder(t)
	tokens := randomTokens(1, model.HostMLPRows+30, s.vocab)
	want := flatten(checkpointReference(t, dir).logits(tokens))
	if e := maxError(logits(t, open(t, dir, 2), tokens), want); e > 5e-6 {
		t.Errorf("relative error %.2g, want at most 5e-6", e)
	}
}

// shapes draws models with any combination of flags.
func shapes() *rapid.Generator[shape] {
	return rapid.Custom(func(t *rapid.T) shape {
		s := small()
		s.seed = rapid.Uint64().Draw(t, "seed")
		s.arch = rapid.SampledFrom([]string{"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}).Draw(t, "arch")
		s.layers = rapid.IntRange(1, 2).Draw(t, "layers")
		s.hidden = rapid.IntRange(8, 40).Draw(t, "hidden")
		s.inter = rapid.IntRange(1, 60).Draw(t, "inter")
		s.kvHeads = rapid.IntRange(1, 3).Draw(t, "kv heads")
		s.heads = s.kvHeads * rapid.IntRange(1, 4).Draw(t, "heads per kv head")
		s.headDim = 2 * rapid.IntRange(1, 12).Draw(t, "head_dim/2")
		s.vocab = rapid.IntRange(2, 70).Draw(t, "vocab")
		s.tied = rapid.Bool().Draw(t, "tied")
		s.sharedNamed = s.tied && rapid.Bool().Draw(t, "under lm_head")
		s.dtype = rapid.SampledFrom([]hf.DType{hf.F32, hf.F16, hf.BF16}).Draw(t, "dtype")
		s.rope = rapid.SampledFrom([]map[string]any{nil, {"type": "linear", "factor": 2.5}, llama3Rope()}).Draw(t, "rope")
		switch s.arch {
		case "LlamaForCausalLM":
			s.attentionBias = rapid.Bool().Draw(t, "attention bias")
			s.mlpBias = rapid.Bool().Draw(t, "MLP bias")
		case "MistralForCausalLM":
			s.window = rapid.IntRange(0, 30).Draw(t, "window")
		}
		return s
	})
}

// The flags in combinations that nobody thought of. Each model is written to
// disk, so there are only a few.
func TestAnyShapeAgainstReference(t *testing.T) {
	racetest.Skip(t)
	for i := range 20 {
		s := shapes().Example(i)
		dir := s.build().folder(t)
		tokens := randomTokens(s.seed, 1+int(s.seed%70), s.vocab)
		want := flatten(checkpointReference(t, dir).logits(tokens))
		if e := maxError(logits(t, open(t, dir, 2), tokens), want); e > 1e-4 {
			t.Errorf("%+v, %d tokens: relative error %.2g, want at most 1e-4", s, len(tokens), e)
		}
	}
}

// The model of the repository, whose weights are those of a trained one.
func TestTinyAgainstReference(t *testing.T) {
	m := open(t, tiny, 2)
	tokens := randomTokens(1, 24, m.Vocab())
	want := flatten(checkpointReference(t, tiny).logits(tokens))
	if e := maxError(logits(t, m, tokens), want); e > 5e-6 {
		t.Errorf("relative error %.2g, want at most 5e-6", e)
	}
}

// Packed layers, of any tensor that can be packed, against their dequantized
// weights.
func TestQuantizedAgainstReference(t *testing.T) {
	all := func(string) bool { return true }
	for _, tt := range []struct {
		name   string
		bits   int
		group  int
		choose func(string) bool
		change func(*shape)
	}{
		{"2 bits", 2, 8, isProjection, func(*shape) {}},
		{"3 bits, short last group", 3, 16, isProjection, func(*shape) {}},
		{"4 bits", 4, 8, isProjection, func(s *shape) { s.dtype = hf.BF16 }},
		{"5 bits, odd sizes", 5, 16, isProjection, func(s *shape) { s.hidden, s.inter = 23, 37 }},
		{"tied embedding too", 4, 8, all, func(*shape) {}},
		{"tied embedding under lm_head", 4, 8, all, func(s *shape) { s.sharedNamed = true }},
		{"untied head too", 3, 24, all, func(s *shape) { s.tied = false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := small()
			tt.change(&s)
			dir := s.build().folder(t)
			codebook, err := lut.NewCodebook("nf", tt.bits, tt.group)
			if err != nil {
				t.Fatal(err)
			}
			src := quantizeWith(t, openCheckpoint(t, dir), tt.choose, func(w []float32, n, k int) *lut.Matrix {
				return quantizeMatrix(t, w, n, k, lut.Format{
					Codebook: codebook, Group: tt.group, Scale: weight.Absmax, ScaleType: weight.BF16,
				})
			})
			m, err := model.New(src, newOps(t, 2))
			if err != nil {
				t.Fatal(err)
			}
			tokens := randomTokens(1, queryRows+9, s.vocab)
			want := flatten(quantizedReference(t, dir, src).logits(tokens))
			if e := maxError(logits(t, m, tokens), want); e > 5e-6 {
				t.Errorf("relative error %.2g, want at most 5e-6", e)
			}
		})
	}
}
