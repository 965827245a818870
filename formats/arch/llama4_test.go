package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestLlama4 reads which layers see a part of the text, turn heads and have experts.
func TestLlama4(t *testing.T) {
	const sizes = `"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "num_local_experts": 4`
	for _, test := range []struct {
		name, config string
		chunks       []int
		turning      []bool
		experts      []bool
		err          string
	}{
		{
			name: "defaults", config: `"model_type": "llama4_text"`,
			chunks: []int{8192, 8192, 8192, 0}, turning: []bool{true, true, true, false}, experts: []bool{true, true, true, true},
		},
		{
			name: "lists", config: `"model_type": "llama4_text", "no_rope_layers": [0, 1, 1, 1], "moe_layers": [2], "attention_chunk_size": 16,
				"layer_types": ["full_attention", "chunked_attention", "full_attention", "chunked_attention"]`,
			chunks: []int{0, 16, 0, 16}, turning: []bool{false, true, true, true}, experts: []bool{false, false, true, false},
		},
		{
			name: "no parts, every other one with experts", config: `"model_type": "llama4_text", "attention_chunk_size": null, "interleave_moe_layer_step": 2`,
			chunks: []int{0, 0, 0, 0}, turning: []bool{true, true, true, false}, experts: []bool{false, true, false, true},
		},
		{name: "parts of no size", config: `"model_type": "llama4_text", "attention_chunk_size": null, "layer_types": ["full_attention", "full_attention", "full_attention", "chunked_attention"]`, err: "attention_chunk_size: missing"},
		{name: "sliding", config: `"model_type": "llama4_text", "layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"]`, err: `layer_types: "sliding_attention" is not supported`},
		{name: "few types", config: `"model_type": "llama4_text", "layer_types": ["full_attention"]`, err: "layer_types: 1 layers: want 4"},
		{name: "too many of few", config: `"model_type": "llama4_text", "num_experts_per_tok": 5`, err: "num_experts_per_tok: 5 of 4 experts"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := Describe(fmt.Appendf(nil, `{%s, %s}`, sizes, test.config), nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v: want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var chunks []int
			var turning, experts []bool
			for i := range d.Blocks {
				b := &d.Blocks[i]
				a := b.Attn()
				chunks, turning, experts = append(chunks, a.Chunk), append(turning, a.Rope != nil), append(experts, b.MoE != nil)
				if (a.QueryRope != nil) == (a.Rope != nil) {
					t.Errorf("layer %d: queries grow where heads turn, or nowhere", i)
				}
			}
			if !slices.Equal(chunks, test.chunks) || !slices.Equal(turning, test.turning) || !slices.Equal(experts, test.experts) {
				t.Errorf("parts %v, turning %v, experts %v: want %v, %v, %v", chunks, turning, experts, test.chunks, test.turning, test.experts)
			}
		})
	}
	nested := fmt.Sprintf(`{"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "vision_config": {}, "text_config": {"model_type": "llama4_text", %s}}`, sizes)
	d, err := Describe([]byte(nested), func(tensor string) bool { return tensor == "language_model.model.embed_tokens.weight" })
	if err != nil || d.Family != "llama4" || d.Embed != "language_model.model.embed_tokens" || !d.Outside("vision_model.layers.0.mlp.fc1.weight") {
		t.Errorf("in its wrapper: %+v, %v", d, err)
	}
}
