package arch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
)

// without leaves a key out of a test's config.
const without = "\x00"

// config returns a small Llama config with some values replaced; each change is
// "key: JSON value", or a key and [without].
func config(changes map[string]string) []byte {
	values := map[string]string{
		"architectures": `["LlamaForCausalLM"]`, "model_type": `"llama"`,
		"hidden_size": "64", "intermediate_size": "172", "num_hidden_layers": "3",
		"num_attention_heads": "8", "num_key_value_heads": "4", "vocab_size": "512",
	}
	maps.Copy(values, changes)
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if values[k] != without {
			parts = append(parts, fmt.Sprintf("%q: %s", k, values[k]))
		}
	}
	return []byte("{" + strings.Join(parts, ",\n") + "}")
}

// changes builds what [config] takes: pairs of key and value.
func changes(pairs ...string) map[string]string {
	m := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// of names an architecture and its type.
func of(architecture, modelType string, more ...string) map[string]string {
	return changes(append([]string{"architectures", fmt.Sprintf("[%q]", architecture), "model_type", fmt.Sprintf("%q", modelType)}, more...)...)
}

func describe(t *testing.T, text []byte, tensors ...string) *arch.Decoder {
	t.Helper()
	d, err := arch.Describe(text, func(name string) bool { return slices.Contains(tensors, name) })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// layer prints a layer of a description: its name, shape, where it lies and its bias.
func layer(l *arch.Linear) string {
	s := fmt.Sprintf("%s %dx%d", l.Name, l.N, l.K)
	if !l.Whole() {
		s += fmt.Sprintf(" = %s%v[%d] rows %d by %d", l.Stored.Tensor, l.Stored.Shape(), l.Expert, l.Row, l.Step)
	}
	if l.Stored.Bias != "" {
		s += " + " + l.Stored.Bias
	}
	return s
}

func TestLayers(t *testing.T) {
	const p = "model.layers.0."
	llama := []string{
		p + "self_attn.q_proj 64x64", p + "self_attn.k_proj 32x64", p + "self_attn.v_proj 32x64", p + "self_attn.o_proj 64x64",
		p + "mlp.gate_proj 172x64", p + "mlp.up_proj 172x64", p + "mlp.down_proj 64x172",
	}
	biased := func(from, to int) []string {
		ls := slices.Clone(llama)
		for i := from; i < to; i++ {
			ls[i] += " + " + strings.Fields(ls[i])[0] + ".bias"
		}
		return ls
	}
	for _, tc := range []struct {
		name    string
		changes map[string]string
		has     []string
		want    []string
	}{
		{"llama", nil, nil, llama},
		{"llama with biases", changes("attention_bias", "true", "mlp_bias", "true"), nil, biased(0, 7)},
		{"qwen2", of("Qwen2ForCausalLM", "qwen2"), nil, biased(0, 3)},
		{"wide heads", changes("head_dim", "16"), nil, []string{
			p + "self_attn.q_proj 128x64", p + "self_attn.k_proj 64x64", p + "self_attn.v_proj 64x64", p + "self_attn.o_proj 64x128",
			p + "mlp.gate_proj 172x64", p + "mlp.up_proj 172x64", p + "mlp.down_proj 64x172",
		}},
		{"phi3", of("Phi3ForCausalLM", "phi3"), nil, []string{
			p + "self_attn.qkv_proj.q 64x64 = " + p + "self_attn.qkv_proj.weight[128 64][0] rows 0 by 1",
			p + "self_attn.qkv_proj.k 32x64 = " + p + "self_attn.qkv_proj.weight[128 64][0] rows 64 by 1",
			p + "self_attn.qkv_proj.v 32x64 = " + p + "self_attn.qkv_proj.weight[128 64][0] rows 96 by 1",
			p + "self_attn.o_proj 64x64",
			p + "mlp.gate_up_proj.gate 172x64 = " + p + "mlp.gate_up_proj.weight[344 64][0] rows 0 by 1",
			p + "mlp.gate_up_proj.up 172x64 = " + p + "mlp.gate_up_proj.weight[344 64][0] rows 172 by 1",
			p + "mlp.down_proj 64x172",
		}},
		{"mixtral", of("MixtralForCausalLM", "mixtral", "num_local_experts", "2"), nil, append(
			llama[:4:4],
			p+"block_sparse_moe.experts.0.w1 172x64", p+"block_sparse_moe.experts.0.w3 172x64", p+"block_sparse_moe.experts.0.w2 64x172",
			p+"block_sparse_moe.experts.1.w1 172x64", p+"block_sparse_moe.experts.1.w3 172x64", p+"block_sparse_moe.experts.1.w2 64x172",
		)},
		{
			"mixtral in stacks", of("MixtralForCausalLM", "mixtral", "num_local_experts", "1", "num_experts_per_tok", "1"),
			[]string{p + "mlp.gate.weight", p + "mlp.experts.gate_up_proj", p + "mlp.experts.down_proj"},
			append(
				llama[:4:4],
				p+"mlp.experts.gate_up_proj.0.gate 172x64 = "+p+"mlp.experts.gate_up_proj[1 344 64][0] rows 0 by 1",
				p+"mlp.experts.gate_up_proj.0.up 172x64 = "+p+"mlp.experts.gate_up_proj[1 344 64][0] rows 172 by 1",
				p+"mlp.experts.down_proj.0.down 64x172 = "+p+"mlp.experts.down_proj[1 64 172][0] rows 0 by 1",
			),
		},
		{"qwen2_moe", of("Qwen2MoeForCausalLM", "qwen2_moe", "num_experts", "1", "num_experts_per_tok", "1", "moe_intermediate_size", "16", "shared_expert_intermediate_size", "24"), nil, append(
			biased(0, 3)[:4:4],
			p+"mlp.experts.0.gate_proj 16x64", p+"mlp.experts.0.up_proj 16x64", p+"mlp.experts.0.down_proj 64x16",
			p+"mlp.shared_expert.gate_proj 24x64", p+"mlp.shared_expert.up_proj 24x64", p+"mlp.shared_expert.down_proj 64x24",
		)},
		{"gpt-oss", of("GptOssForCausalLM", "gpt_oss", "num_local_experts", "1", "num_experts_per_tok", "1", "head_dim", "8"), nil, append(
			biased(0, 4)[:4:4],
			p+"mlp.experts.gate_up_proj.0.gate 172x64 = "+p+"mlp.experts.gate_up_proj[1 64 344][0] rows 0 by 2 + "+p+"mlp.experts.gate_up_proj_bias",
			p+"mlp.experts.gate_up_proj.0.up 172x64 = "+p+"mlp.experts.gate_up_proj[1 64 344][0] rows 1 by 2 + "+p+"mlp.experts.gate_up_proj_bias",
			p+"mlp.experts.down_proj.0.down 64x172 = "+p+"mlp.experts.down_proj[1 172 64][0] rows 0 by 1 + "+p+"mlp.experts.down_proj_bias",
		)},
		{
			"gpt-oss in MXFP4", of("GptOssForCausalLM", "gpt_oss", "num_local_experts", "1", "num_experts_per_tok", "1", "head_dim", "8", "attention_bias", "false"),
			[]string{p + "mlp.experts.gate_up_proj_blocks"},
			append(
				llama[:4:4],
				p+"mlp.experts.gate_up_proj.0.gate 172x64 = "+p+"mlp.experts.gate_up_proj[1 344 64][0] rows 0 by 2 + "+p+"mlp.experts.gate_up_proj_bias",
				p+"mlp.experts.gate_up_proj.0.up 172x64 = "+p+"mlp.experts.gate_up_proj[1 344 64][0] rows 1 by 2 + "+p+"mlp.experts.gate_up_proj_bias",
				p+"mlp.experts.down_proj.0.down 64x172 = "+p+"mlp.experts.down_proj[1 64 172][0] rows 0 by 1 + "+p+"mlp.experts.down_proj_bias",
			),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := describe(t, config(tc.changes), tc.has...)
			var got []string
			for _, l := range d.Blocks[0].Linears() {
				got = append(got, layer(l))
				if d.Role(l.Stored.Tensor) != arch.LinearWeight {
					t.Errorf("%s is a %v", l.Stored.Tensor, d.Role(l.Stored.Tensor))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("layers (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoles(t *testing.T) {
	const p = "model.layers.2."
	d := describe(t, config(of("Qwen2MoeForCausalLM", "qwen2_moe")))
	for tensor, want := range map[string]arch.Role{
		"model.embed_tokens.weight":             arch.EmbeddingWeight,
		"lm_head.weight":                        arch.HeadWeight,
		"model.norm.weight":                     arch.NormWeight,
		p + "input_layernorm.weight":            arch.NormWeight,
		p + "self_attn.q_proj.weight":           arch.LinearWeight,
		p + "self_attn.q_proj.bias":             arch.BiasVector,
		p + "self_attn.o_proj.bias":             arch.Other,
		p + "mlp.gate.weight":                   arch.RouterWeight,
		p + "mlp.shared_expert_gate.weight":     arch.RouterWeight,
		p + "mlp.experts.59.down_proj.weight":   arch.LinearWeight,
		p + "mlp.experts.60.down_proj.weight":   arch.Other,
		p + "mlp.shared_expert.up_proj.weight":  arch.LinearWeight,
		"model.layers.3.input_layernorm.weight": arch.Other,
		"visual.patch_embed.proj.weight":        arch.Other,
	} {
		if got := d.Role(tensor); got != want {
			t.Errorf("%s is a %v: want %v", tensor, got, want)
		}
	}
}

// TestStates: layers that read the same state share it, and a factor on a state
// goes where the state comes from.
func TestStates(t *testing.T) {
	b := &describe(t, config(nil)).Blocks[0]
	if b.Attn().Q.Reads != b.Attn().V.Reads || b.Attn().Q.Reads == b.Attn().O.Reads || b.MLP.Gate.Reads != b.MLP.Up.Reads {
		t.Error("the states that layers share are others than those they read")
	}
	if got := b.Attn().K.Reads.Absorb; !slices.Equal(got, []string{"model.layers.0.input_layernorm.weight"}) {
		t.Errorf("the input of k is absorbed by %q", got)
	}
	// 8 heads of 8 over 4: heads 2j and 2j+1 read the values of head j.
	for i, want := range map[int]int{0: 0, 7: 7, 8: 0, 15: 7, 16: 8, 63: 31} {
		if got := b.Attn().O.Reads.Source(i); got != want {
			t.Errorf("component %d of the input of o comes from row %d of v: want %d", i, got, want)
		}
	}
	phi := &describe(t, config(of("Phi3ForCausalLM", "phi3"))).Blocks[0]
	if got := phi.Attn().O.Reads.Source(8); got != 96 {
		t.Errorf("component 8 of the input of o comes from row %d of qkv: want 96", got)
	}
	if got := phi.MLP.Down.Reads.Source(3); got != 175 {
		t.Errorf("component 3 of the input of down comes from row %d of gate_up: want 175", got)
	}
}

func TestWindows(t *testing.T) {
	for _, tc := range []struct {
		name    string
		changes map[string]string
		want    []int
	}{
		{"llama has none", changes("sliding_window", "16"), []int{0, 0, 0}},
		{"mistral by default", of("MistralForCausalLM", "mistral"), []int{4096, 4096, 4096}},
		{"mistral off", of("MistralForCausalLM", "mistral", "sliding_window", "null"), []int{0, 0, 0}},
		{"mixtral by default", of("MixtralForCausalLM", "mixtral"), []int{0, 0, 0}},
		{"qwen2 off", of("Qwen2ForCausalLM", "qwen2", "sliding_window", "16"), []int{0, 0, 0}},
		{"qwen2 from a layer on", of("Qwen2ForCausalLM", "qwen2", "sliding_window", "16", "use_sliding_window", "true", "max_window_layers", "2"), []int{0, 0, 16}},
		{"qwen3 by types", of("Qwen3ForCausalLM", "qwen3", "sliding_window", "16", "use_sliding_window", "true", "layer_types", `["sliding_attention","full_attention","sliding_attention"]`), []int{16, 0, 16}},
		{"qwen2_moe", of("Qwen2MoeForCausalLM", "qwen2_moe", "sliding_window", "16", "use_sliding_window", "true"), []int{16, 0, 16}},
		{"qwen3_moe", of("Qwen3MoeForCausalLM", "qwen3_moe", "sliding_window", "16", "use_sliding_window", "true", "max_window_layers", "2"), []int{16, 16, 16}},
		{"gemma2", of("Gemma2ForCausalLM", "gemma2", "sliding_window", "16"), []int{16, 0, 16}},
		{"gemma3", of("Gemma3ForCausalLM", "gemma3_text", "sliding_window", "16", "sliding_window_pattern", "3"), []int{16, 16, 0}},
		{"gpt-oss", of("GptOssForCausalLM", "gpt_oss"), []int{128, 0, 128}},
		{"phi3 off", of("Phi3ForCausalLM", "phi3"), []int{0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []int
			for _, b := range describe(t, config(tc.changes)).Blocks {
				got = append(got, b.Attn().Window)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("windows %v: want %v", got, tc.want)
			}
		})
	}
}

func TestRope(t *testing.T) {
	const llama3 = `"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192`
	wantLlama3 := &arch.Rope{Type: "llama3", Dim: 8, Theta: 5e5, Factor: 8, Original: 8192, LowFreq: 1, HighFreq: 4, Amplitude: 1}
	longFactors := `"long_factor":[1,2,3],"short_factor":[1,1,1]`
	for _, tc := range []struct {
		name    string
		changes map[string]string
		want    *arch.Rope
	}{
		{"plain", nil, &arch.Rope{Type: "default", Dim: 8, Theta: 1e4, Factor: 1, Amplitude: 1}},
		{"nulls", changes("rope_scaling", "null", "rope_parameters", "null"), &arch.Rope{Type: "default", Dim: 8, Theta: 1e4, Factor: 1, Amplitude: 1}},
		{"empty", changes("rope_scaling", "{}"), &arch.Rope{Type: "default", Dim: 8, Theta: 1e4, Factor: 1, Amplitude: 1}},
		{"of version 4", changes("rope_theta", "500000", "rope_scaling", "{"+llama3+"}"), wantLlama3},
		{"of version 5", changes("rope_parameters", `{"rope_theta":500000.0,`+llama3+"}"), wantLlama3},
		{"of both", changes("rope_theta", "500000", "rope_scaling", "{"+llama3+"}", "rope_parameters", `{"rope_theta":500000.0,`+llama3+"}"), wantLlama3},
		{"rope_type wins over type", changes("rope_scaling", `{"type":"default","rope_type":"linear","factor":2}`), &arch.Rope{Type: "linear", Dim: 8, Theta: 1e4, Factor: 2, Amplitude: 1}},
		{"dynamic", changes("rope_scaling", `{"type":"dynamic","factor":4}`), &arch.Rope{Type: "dynamic", Dim: 8, Theta: 1e4, Factor: 4, Original: 2048, Amplitude: 1}},
		{"yarn", changes("rope_scaling", `{"type":"yarn","factor":4,"original_max_position_embeddings":512}`), &arch.Rope{
			Type: "yarn", Dim: 8, Theta: 1e4, Factor: 4, Original: 512, BetaFast: 32, BetaSlow: 1, Truncate: true, Amplitude: 0.1*math.Log(4) + 1,
		}},
		// As transformers 5.24 reads it: modeling_rope_utils.py, and modeling_llama.py, whose default turns whole heads.
		{"partial where heads turn as a whole", changes("partial_rotary_factor", "0.75"), &arch.Rope{Type: "default", Dim: 8, Theta: 1e4, Factor: 1, Amplitude: 1}},
		{"partial", of("Phi3ForCausalLM", "phi3", "partial_rotary_factor", "0.75"), &arch.Rope{Type: "default", Dim: 6, Theta: 1e4, Factor: 1, Amplitude: 1}},
		{"theta twice", changes("rope_theta", "6", "rope_parameters", `{"rope_theta":5}`), &arch.Rope{Type: "default", Dim: 8, Theta: 5, Factor: 1, Amplitude: 1}},
		{"rope twice", changes("rope_theta", "6", "rope_scaling", `{"type":"linear","factor":2}`, "rope_parameters", `{"rope_type":"linear","factor":4,"rope_theta":5}`), &arch.Rope{
			Type: "linear", Dim: 8, Theta: 6, Factor: 2, Amplitude: 1,
		}},
		{"nothing beside parameters", changes("rope_scaling", "{}", "rope_parameters", `{"rope_type":"linear","factor":4}`), &arch.Rope{Type: "linear", Dim: 8, Theta: 1e4, Factor: 4, Amplitude: 1}},
		{"llama3 without an original length", changes("rope_scaling", `{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}`), &arch.Rope{
			Type: "llama3", Dim: 8, Theta: 1e4, Factor: 8, Original: 2048, LowFreq: 1, HighFreq: 4, Amplitude: 1,
		}},
		{"yarn with zeros", changes("rope_scaling", `{"type":"yarn","factor":4,"original_max_position_embeddings":512,"mscale":1,"mscale_all_dim":0,"beta_fast":0,"beta_slow":0}`), &arch.Rope{
			Type: "yarn", Dim: 8, Theta: 1e4, Factor: 4, Original: 512, BetaFast: 32, BetaSlow: 1, Truncate: true, Amplitude: 0.1*math.Log(4) + 1,
		}},
		{"mrope in text", of("Qwen2VLForConditionalGeneration", "qwen2_vl", "rope_scaling", `{"type":"mrope","mrope_section":[1,1,2]}`), &arch.Rope{Type: "default", Dim: 8, Theta: 1e4, Factor: 1, Amplitude: 1}},
		{"what Phi-3 called yarn", of("Phi3ForCausalLM", "phi3", "hidden_size", "48", "rope_scaling", `{"type":"yarn",`+longFactors+`}`), &arch.Rope{
			Type: "longrope", Dim: 6, Theta: 1e4, Factor: 1, Original: 4096, Long: []float64{1, 2, 3}, Short: []float64{1, 1, 1}, Amplitude: 1,
		}},
		{"phi3", of("Phi3ForCausalLM", "phi3", "max_position_embeddings", "16384", "partial_rotary_factor", "0.75", "rope_scaling", `{"type":"su",`+longFactors+`}`), &arch.Rope{
			Type: "longrope", Dim: 6, Theta: 1e4, Factor: 4, Original: 4096, Long: []float64{1, 2, 3}, Short: []float64{1, 1, 1},
			Amplitude: math.Sqrt(1 + math.Log(4)/math.Log(4096)),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, describe(t, config(tc.changes)).Blocks[0].Attn().Rope); diff != "" {
				t.Errorf("rope (-want +got):\n%s", diff)
			}
		})
	}
	gemma := describe(t, config(of("Gemma3ForCausalLM", "gemma3_text", "num_hidden_layers", "6", "rope_scaling", `{"rope_type":"linear","factor":8}`)))
	local, global := gemma.Blocks[0].Attn().Rope, gemma.Blocks[5].Attn().Rope
	if local.Theta != 1e4 || local.Type != "default" || global.Theta != 1e6 || global.Factor != 8 {
		t.Errorf("gemma3 turns by %+v and %+v", local, global)
	}
}

// TestFamily: a family is found by the type, as transformers does, and by the architecture where there is none that is known.
func TestFamily(t *testing.T) {
	for _, tc := range []struct {
		name    string
		changes map[string]string
		want    string
	}{
		{"both", nil, "llama"},
		{"no architecture", changes("architectures", without), "llama"},
		{"null", changes("architectures", "null"), "llama"},
		{"none of a list", changes("architectures", "[]"), "llama"},
		{"another first", changes("architectures", `["FooForCausalLM","LlamaForCausalLM"]`), "llama"},
		{"without a head", changes("architectures", `["LlamaModel"]`), "llama"},
		{"of another family", changes("architectures", `["MistralForCausalLM"]`), "llama"},
		{"no type", changes("model_type", without, "architectures", `["MistralForCausalLM"]`), "mistral"},
		{"unknown type", changes("model_type", `"foo"`, "architectures", `["Qwen3ForCausalLM"]`), "qwen3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := describe(t, config(tc.changes)).Family; got != tc.want {
				t.Errorf("family %s: want %s", got, tc.want)
			}
		})
	}
	// One without a head has its modules at the top.
	d := describe(t, config(changes("architectures", `["LlamaModel"]`, "tie_word_embeddings", "true")), "embed_tokens.weight")
	if got := d.Blocks[1].MLP.Down.Stored.Tensor; got != "layers.1.mlp.down_proj.weight" {
		t.Errorf("down_proj is in %s", got)
	}
}

// TestNestedConfigs: where the description of a language model is, and what it leaves out is as the config classes of
// transformers 5.24 have it.
func TestNestedConfigs(t *testing.T) {
	const sizes = `"hidden_size":64,"intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":32`
	llama := "llama 32 of 4096/11008, 32/32x128, vocab 32000, tied false"
	small := "1 of 64/128, 2/2x32, vocab 32, tied false"
	for _, tc := range []struct{ name, config, tensor, want, down string }{
		{"nothing left", `{"model_type":"llava","text_config":{}}`, "", llama, ""},
		{"LLaVA 1.5", `{"model_type":"llava","architectures":["LlavaForConditionalGeneration"],"text_config":{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":32064,"max_position_embeddings":4096}}`, "", "llama 32 of 4096/11008, 32/32x128, vocab 32064, tied false", ""},
		{"mistral", `{"model_type":"mistral3","text_config":{}}`, "", "mistral 32 of 4096/14336, 32/8x128, vocab 32000, tied true", ""},
		{"qwen2", `{"model_type":"internvl","text_config":{}}`, "", "qwen2 32 of 4096/22016, 32/32x128, vocab 151936, tied true", ""},
		{"qwen3", `{"model_type":"foo","text_config":{"model_type":"qwen3"}}`, "", "qwen3 32 of 4096/22016, 32/32x128, vocab 151936, tied false", ""},
		{"gemma2", `{"model_type":"paligemma","text_config":{"model_type":"gemma2"}}`, "", "gemma2 26 of 2304/9216, 8/4x256, vocab 256000, tied true", ""},
		{"gemma3", `{"model_type":"gemma3","text_config":{"hidden_size":2560}}`, "", "gemma3 26 of 2560/9216, 8/4x256, vocab 262208, tied true", ""},
		{"phi3", `{"model_type":"foo","text_config":{"model_type":"phi3"}}`, "", "phi3 32 of 3072/8192, 32/32x96, vocab 32064, tied false", ""},
		{"tied outside", `{"model_type":"llava","tie_word_embeddings":true,"text_config":{` + sizes + `,"tie_word_embeddings":false}}`, "", "llama 1 of 64/128, 2/2x32, vocab 32, tied true", ""},
		{"tied inside", `{"model_type":"llava","tie_word_embeddings":false,"text_config":{` + sizes + `,"tie_word_embeddings":true}}`, "", "llama 1 of 64/128, 2/2x32, vocab 32, tied true", ""},
		{"not tied", `{"model_type":"internvl","tie_word_embeddings":false,"text_config":{` + sizes + `,"num_key_value_heads":2}}`, "", "qwen2 1 of 64/128, 2/2x32, vocab 32, tied false", ""},
		{"InternVL", `{"architectures":["InternVLChatModel"],"model_type":"internvl_chat","llm_config":{"architectures":["Qwen2ForCausalLM"],` + sizes + `,"num_key_value_heads":2}}`, "language_model.model.", "qwen2 " + small, "language_model.model."},
		{"DeepSeek's key", `{"model_type":"bar","language_config":{"model_type":"llama",` + sizes + `}}`, "language_model.model.", "llama " + small, "language_model.model."},
		{"twice", `{"model_type":"qwen2_5_omni","thinker_config":{"model_type":"qwen2_5_omni_thinker","text_config":{"model_type":"qwen2_5_omni_text",` + sizes + `,"num_key_value_heads":2}}}`, "thinker.model.", "qwen2 " + small, "thinker.model."},
		{"Idefics", `{"model_type":"idefics3","text_config":{"model_type":"llama",` + sizes + `}}`, "model.text_model.", "llama " + small, "model.text_model."},
		{"flat", `{"architectures":["Qwen2VLForConditionalGeneration"],"model_type":"qwen2_vl",` + sizes + `,"num_key_value_heads":2}`, "model.", "qwen2 " + small, "model."},
		{"flat, renamed", `{"architectures":["Qwen2VLForConditionalGeneration"],"model_type":"qwen2_vl",` + sizes + `,"num_key_value_heads":2}`, "model.language_model.", "qwen2 " + small, "model.language_model."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := describe(t, []byte(tc.config), tc.tensor+"embed_tokens.weight")
			b := d.Blocks[0]
			inter := b.MLP.Down.K
			got := fmt.Sprintf("%s %d of %d/%d, %d/%dx%d, vocab %d, tied %v", d.Family, len(d.Blocks), d.Hidden, inter, b.Attn().Heads, b.Attn().KVHeads, b.Attn().Dim, d.Vocab, d.Tied)
			if got != tc.want {
				t.Errorf("got %s\nwant %s", got, tc.want)
			}
			if down := b.MLP.Down.Stored.Tensor; tc.down != "" && down != tc.down+"layers.0.mlp.down_proj.weight" {
				t.Errorf("down_proj is in %s", down)
			}
			for name, want := range map[string]bool{
				"vision_tower.layers.0.fc1.weight": true, "model.visual.blocks.0.attn.qkv.weight": true, "mlp1.0.bias": true,
				d.Embed + ".weight": false, d.Norm.Tensor: false, b.Attn().Q.Stored.Tensor: false, b.MLP.Up.Stored.Path + ".extra": false,
			} {
				if d.Outside(name) != want {
					t.Errorf("%s is outside the language model: %v, want %v", name, !want, want)
				}
			}
		})
	}
}

// TestNested: the text model of a model with several modes, under each of the names it has.
func TestNested(t *testing.T) {
	text := `{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3","eos_token_id":[1,106],"tie_word_embeddings":true,` +
		`"text_config":{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32}}`
	for _, root := range []string{"language_model.model.", "model.language_model."} {
		d := describe(t, []byte(text), root+"embed_tokens.weight")
		if got := d.Blocks[0].Attn().Q.Stored.Tensor; got != root+"layers.0.self_attn.q_proj.weight" {
			t.Errorf("q is in %s", got)
		}
		if !slices.Equal(d.EOS, []int{1, 106}) || d.Family != "gemma3" || !d.Tied {
			t.Errorf("got %+v", d)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct{ name, key, value, want string }{
		{"hidden_size missing", "hidden_size", without, "hidden_size: missing"},
		{"hidden_size null", "hidden_size", "null", "hidden_size: missing"},
		{"hidden_size zero", "hidden_size", "0", "hidden_size: 0 is outside 1 to 2147483647"},
		{"hidden_size negative", "hidden_size", "-64", "hidden_size: -64 is outside"},
		{"hidden_size fractional", "hidden_size", "64.5", `hidden_size: "64.5" is not an integer`},
		{"hidden_size huge", "hidden_size", "1e300", "hidden_size: 1e300 is outside"},
		{"hidden_size overflows", "hidden_size", "1e999", "is not an integer"},
		{"hidden_size a string", "hidden_size", `"64"`, `hidden_size: "\"64\"" is not an integer`},
		{"heads do not divide", "hidden_size", "65", "hidden_size: 65 is not a multiple of 8 num_attention_heads"},
		{"kv heads do not divide", "num_key_value_heads", "3", "num_attention_heads: 8 is not a multiple of 3"},
		{"kv heads zero", "num_key_value_heads", "0", "num_key_value_heads: 0 is outside"},
		{"intermediate_size missing", "intermediate_size", without, "intermediate_size: missing"},
		{"layers missing", "num_hidden_layers", without, "num_hidden_layers: missing"},
		{"layers without number", "num_hidden_layers", "2000000000", "num_hidden_layers: 2000000000: want at most"},
		{"heads missing", "num_attention_heads", without, "num_attention_heads: missing"},
		{"heads zero", "num_attention_heads", "0", "num_attention_heads: 0 is outside"},
		{"vocabulary missing", "vocab_size", without, "vocab_size: missing"},
		{"head_dim zero", "head_dim", "0", "head_dim: 0 is outside"},
		{"head_dim odd", "head_dim", "7", "head_dim: 7 of the 7 elements"},
		{"head_dim huge", "head_dim", "2147483646", "head_dim: 2147483646: want at most 65536"},
		{"turns by nothing", "rope_scaling", `{"type":"linear","factor":1e300,"rope_theta":1e300}`, "rope_scaling: it would turn by 0"},
		{"positions negative", "max_position_embeddings", "-1", "max_position_embeddings: -1 is outside"},
		{"eps zero", "rms_norm_eps", "0", `rms_norm_eps: "0" is not a positive number`},
		{"theta negative", "rope_theta", "-1", `rope_theta: "-1" is not a positive number`},
		{"tied a number", "tie_word_embeddings", "1", `tie_word_embeddings: "1" is not true or false`},
		{"act a list", "hidden_act", "[]", "hidden_act: want a string"},
		{"act unknown", "hidden_act", `"tanhexp"`, `hidden_act: "tanhexp" is not supported`},
		{"eos a string", "eos_token_id", `"</s>"`, "eos_token_id:"},
		{"bos a list", "bos_token_id", `[1]`, "bos_token_id:"},
		{"architectures a string", "architectures", `"LlamaForCausalLM"`, "architectures: want a list of strings"},
		{"quantization a string", "quantization_config", `"gptq"`, "quantization_config: want a JSON object"},
		{"rope a list", "rope_scaling", "[]", "rope_scaling: want a JSON object"},
		{"rope key twice", "rope_scaling", `{"type":"linear","type":"linear","factor":2}`, `rope_scaling: key "type" appears twice`},
		{"rope type unknown", "rope_scaling", `{"type":"axial"}`, `rope_type: "axial" is not supported`},
		{"mrope of a model that only reads", "rope_scaling", `{"type":"mrope"}`, `rope_type: mrope is for models of several modes`},
		{"linear and partial", "rope_scaling", `{"type":"linear","factor":2,"partial_rotary_factor":0.5}`, "partial_rotary_factor: 0.5: heads of this family turn as a whole"},
		{"theta a string", "rope_theta", `"10000.0"`, `rope_theta: "\"10000.0\"" is not a positive number`},
		{"tied a string", "tie_word_embeddings", `"true"`, `is not true or false`},
		{"linear without factor", "rope_scaling", `{"type":"linear"}`, "rope_scaling: factor: missing"},
		{"linear with factor zero", "rope_scaling", `{"type":"linear","factor":0}`, `rope_scaling: factor: "0" is not a positive number`},
		{"llama3 without factor", "rope_parameters", `{"rope_type":"llama3","low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}`, "rope_parameters: factor: missing"},
		{"longrope with other lengths", "rope_scaling", `{"type":"longrope","long_factor":[1],"short_factor":[1,1,1,1]}`, "long_factor: 1 numbers: want 4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := arch.Describe(config(changes(tc.key, tc.value)), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v: want %q in it", err, tc.want)
			}
		})
	}
	for _, tc := range []struct {
		name    string
		changes map[string]string
		want    string
	}{
		{"partial above one", of("Phi3ForCausalLM", "phi3", "partial_rotary_factor", "1.5"), "partial_rotary_factor: 1.5 is above 1"},
		{"partial and odd", of("Phi3ForCausalLM", "phi3", "partial_rotary_factor", "0.4"), "head_dim: 3 of the 8 elements"},
		{"layer types", of("Qwen3ForCausalLM", "qwen3", "layer_types", `["full_attention"]`), "layer_types: 1 layers: want 3"},
		{"layer type unknown", of("Qwen3ForCausalLM", "qwen3", "layer_types", `["full_attention","linear_attention","full_attention"]`), `"linear_attention" is not supported`},
		{"more experts than there are", of("MixtralForCausalLM", "mixtral", "num_local_experts", "2", "num_experts_per_tok", "3"), "3 of 2 experts"},
		{"experts without number", of("Qwen3MoeForCausalLM", "qwen3_moe", "num_experts", "2000000000"), "num_experts: 2000000000"},
		{"looks ahead", of("Gemma3ForCausalLM", "gemma3_text", "use_bidirectional_attention", "true"), "use_bidirectional_attention"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := arch.Describe(config(tc.changes), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v: want %q in it", err, tc.want)
			}
		})
	}
	for text, want := range map[string]string{
		"":                                "invalid JSON",
		"{":                               "invalid JSON",
		"[]":                              "want a JSON object",
		"\ufeff{}":                        "begins with a byte order mark",
		"{} {}":                           "more follows",
		"\xff":                            "invalid UTF-8",
		`{"vocab_size":1,"vocab_size":2}`: `key "vocab_size" appears twice`,
		`{"rope_theta": NaN}`:             "invalid JSON",
	} {
		if _, err := arch.Describe([]byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v: want %q in it", text, err, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	for _, tc := range []struct {
		name    string
		changes map[string]string
		want    string
	}{
		{"architecture", changes("architectures", `["FooForCausalLM"]`, "model_type", `"foo"`), `architecture "FooForCausalLM" is not one that is known`},
		{"none", changes("architectures", without, "model_type", without), "names no architecture"},
		{"strange sizes of a strange architecture", changes("architectures", `["FooForCausalLM"]`, "model_type", `"foo"`, "hidden_size", "[]"), `architecture "FooForCausalLM"`},
		{"nested", changes("architectures", `["BarForConditionalGeneration"]`, "text_config", `{"model_type":"bar"}`), `architecture "BarForConditionalGeneration"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := arch.Describe(config(tc.changes), nil)
			var unknown *arch.UnknownError
			if !errors.As(err, &unknown) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v: want %q in it", err, tc.want)
			}
		})
	}
}

// TestDefaults: what the configurations of transformers 5.24 have where a config within another says no more than which model it is.
func TestDefaults(t *testing.T) {
	for _, tc := range []struct{ architecture, modelType, want string }{
		{"LlamaForCausalLM", "llama", "32 of 4096/11008, 32/32x128, vocab 32000, window 0, tied false, eps 1e-06"},
		{"MistralForCausalLM", "mistral", "32 of 4096/14336, 32/8x128, vocab 32000, window 4096, tied false, eps 1e-06"},
		{"MixtralForCausalLM", "mixtral", "32 of 4096/2 of 8 of 14336, 32/8x128, vocab 32000, window 0, tied false, eps 1e-05"},
		{"Qwen2ForCausalLM", "qwen2", "32 of 4096/22016, 32/32x128, vocab 151936, window 0, tied false, eps 1e-06"},
		{"Qwen3ForCausalLM", "qwen3", "32 of 4096/22016, 32/32x128, vocab 151936, window 0, tied false, eps 1e-06"},
		{"Qwen2MoeForCausalLM", "qwen2_moe", "24 of 2048/4 of 60 of 1408, 16/16x128, vocab 151936, window 0, tied false, eps 1e-06"},
		{"Qwen3MoeForCausalLM", "qwen3_moe", "24 of 2048/8 of 128 of 768, 32/4x64, vocab 151936, window 0, tied false, eps 1e-06"},
		{"Gemma2ForCausalLM", "gemma2", "26 of 2304/9216, 8/4x256, vocab 256000, window 4096, tied true, eps 1e-06"},
		{"Gemma3ForCausalLM", "gemma3_text", "26 of 2304/9216, 8/4x256, vocab 262208, window 4096, tied true, eps 1e-06"},
		{"Phi3ForCausalLM", "phi3", "32 of 3072/8192, 32/32x96, vocab 32064, window 0, tied false, eps 1e-05"},
		{"GptOssForCausalLM", "gpt_oss", "36 of 2880/4 of 128 of 2880, 64/8x64, vocab 201088, window 128, tied false, eps 1e-05"},
	} {
		t.Run(tc.modelType, func(t *testing.T) {
			d := describe(t, fmt.Appendf(nil, `{"model_type": "llava", "text_config": {"architectures": [%q], "model_type": %q}}`, tc.architecture, tc.modelType))
			b := d.Blocks[0]
			var inter string
			if b.MoE == nil {
				inter = fmt.Sprint(b.MLP.Gate.N)
			} else {
				inter = fmt.Sprintf("%d of %d of %d", b.MoE.Top, len(b.MoE.Experts), b.MoE.Experts[0].Gate.N)
			}
			got := fmt.Sprintf("%d of %d/%s, %d/%dx%d, vocab %d, window %d, tied %v, eps %v", len(d.Blocks), d.Hidden, inter,
				b.Attn().Heads, b.Attn().KVHeads, b.Attn().Dim, d.Vocab, b.Attn().Window, d.Tied, b.AttnNorm.Eps)
			if got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
			// GemmaRMSNorm multiplies by 1+w, the others by w.
			offset := float32(0)
			if strings.HasPrefix(tc.modelType, "gemma") {
				offset = 1
			}
			if d.Norm.Offset != offset || b.AttnNorm.Offset != offset || b.MLPNorm.Offset != offset {
				t.Errorf("norms of %v, %v and %v + w: want %v", d.Norm.Offset, b.AttnNorm.Offset, b.MLPNorm.Offset, offset)
			}
		})
	}
}

// TestPublished reads configs as they were published.
func TestPublished(t *testing.T) {
	const dir = "../../../shared/configs"
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no published configs: %v", err)
	}
	for file, want := range map[string]string{
		"llama-2-7b.json":     "llama 32 of 4096/11008, 32/32x128, vocab 32000, rope default 10000, window 0, tied false",
		"llama3_1_8b.json":    "llama 32 of 4096/14336, 32/8x128, vocab 128256, rope llama3 500000, window 0, tied false",
		"llama3_1_70b.json":   "llama 80 of 8192/28672, 64/8x128, vocab 128256, rope llama3 500000, window 0, tied false",
		"smollm2_135m.json":   "llama 30 of 576/1536, 9/3x64, vocab 49152, rope default 100000, window 0, tied true",
		"mistral_7b_v03.json": "mistral 32 of 4096/14336, 32/8x128, vocab 32768, rope default 1e+06, window 0, tied false",
		"qwen2.5_3b.json":     "qwen2 36 of 2048/11008, 16/2x128, vocab 151936, rope default 1e+06, window 0, tied true",
		"qwen3_0.6b.json":     "qwen3 28 of 1024/3072, 16/8x128, vocab 151936, rope default 1e+06, window 0, tied true",
		"gemma2_9b.json":      "gemma2 42 of 3584/14336, 16/8x256, vocab 256000, rope default 10000, window 4096, tied true",
		"gemma3_1b_it.json":   "gemma3 26 of 1152/6912, 4/1x256, vocab 262144, rope default 10000, window 512, tied true",
		"phi-4.json":          "phi3 32 of 3072/8192, 24/8x128, vocab 200064, rope longrope 10000, window 262144, tied true",
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		d := describe(t, text)
		b := d.Blocks[0]
		got := fmt.Sprintf("%s %d of %d/%d, %d/%dx%d, vocab %d, rope %s %v, window %d, tied %v", d.Family, len(d.Blocks), d.Hidden, b.MLP.Gate.N,
			b.Attn().Heads, b.Attn().KVHeads, b.Attn().Dim, d.Vocab, b.Attn().Rope.Type, b.Attn().Rope.Theta, b.Attn().Window, d.Tied)
		if got != want {
			t.Errorf("%s: %s\nwant %s", file, got, want)
		}
	}
}

// FuzzDescribe: of a model that is described, every size can be computed with.
func FuzzDescribe(f *testing.F) {
	f.Add(config(nil), true)
	for _, a := range [][2]string{
		{"Qwen3ForCausalLM", "qwen3"},
		{"Qwen2ForCausalLM", "qwen2"},
		{"MixtralForCausalLM", "mixtral"},
		{"Gemma3ForCausalLM", "gemma3_text"},
		{"Phi3ForCausalLM", "phi3"},
		{"GptOssForCausalLM", "gpt_oss"},
		{"Qwen2MoeForCausalLM", "qwen2_moe"},
		{"DeepseekV3ForCausalLM", "deepseek_v3"},
		{"DeepseekV32ForCausalLM", "deepseek_v32"},
		{"GlmMoeDsaForCausalLM", "glm_moe_dsa"},
	} {
		f.Add(config(of(a[0], a[1], "num_experts", "2", "num_local_experts", "2", "num_experts_per_tok", "1")), false)
	}
	f.Add(config(changes("rope_scaling", `{"rope_type":"yarn","factor":8}`)), false)
	f.Add(config(changes("rope_parameters", `{"full_attention":{"full_attention":{}}}`, "eos_token_id", "[1]")), false)
	f.Add([]byte(`{"text_config":{"model_type":"gemma3_text"}}`), true)
	f.Fuzz(func(t *testing.T, text []byte, has bool) {
		d, err := arch.Describe(text, func(string) bool { return has })
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("error %q has several lines", err)
			}
			return
		}
		sound(t, d)
	})
}

// sound checks that the sizes of a description can be computed with.
func sound(t *testing.T, d *arch.Decoder) {
	t.Helper()
	const most = math.MaxInt32 // of a size, so that the product of two fits
	finite := func(what string, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
			t.Fatalf("%s is %v", what, v)
		}
	}
	for what, n := range map[string]int{"vocabulary": d.Vocab, "width": d.Hidden, "context": d.MaxPositions} {
		if n <= 0 || n > most {
			t.Fatalf("%s of %d", what, n)
		}
	}
	finite("scale of the embedding", d.EmbedScale)
	for l := range d.Linears() {
		if l.N <= 0 || l.N > most || l.K <= 0 || l.K > most || l.Row < 0 || l.Row+(l.N-1)*l.Step >= l.Stored.N || l.Expert >= l.Stored.Matrices() || l.K != l.Stored.K {
			t.Fatalf("layer %+v of %+v", l, l.Stored)
		}
		if l.Stored.N > 2*most || l.Reads.Width != l.K {
			t.Fatalf("layer %+v of %+v reads %+v", l, l.Stored, l.Reads)
		}
		if d.Role(l.Stored.Tensor) == arch.Other {
			t.Fatalf("%s has no role", l.Stored.Tensor)
		}
	}
	var last *arch.Rope
	for i := range d.Blocks {
		blk := &d.Blocks[i]
		if m := blk.MoE; m != nil && (m.Top <= 0 || m.Top > len(m.Experts) || m.Router.N != len(m.Experts)) {
			t.Fatalf("%d of %d experts", m.Top, len(m.Experts))
		}
		for _, l := range blk.Gates() {
			if l.N <= 0 || l.N > most || l.K != l.Stored.K || l.Reads.Width != l.K || d.Role(l.Stored.Tensor) != arch.RouterWeight {
				t.Fatalf("gate %+v of %+v reads %+v", l, l.Stored, l.Reads)
			}
		}
		if n := blk.Mixer.Kept(10); n < 0 || n > 40*most {
			t.Fatalf("%d numbers are kept of 10 tokens", n)
		}
		if l, ok := blk.Mixer.(*arch.Latent); ok {
			if l.Top() < 0 || l.Top() > most || l.Index != nil && (l.Index.Q.N != l.Index.Heads*l.Index.Dim || l.Index.Rope.Dim > l.Index.Dim || l.Chosen != nil) {
				t.Fatalf("attention %+v, which is chosen by %+v", l, l.Index)
			}
			finite("scale of scores", l.Scale)
		}
		a := blk.Attn()
		if a == nil { // of whose sizes those of layers are made
			continue
		}
		if a.Heads <= 0 || a.KVHeads <= 0 || a.Heads%a.KVHeads != 0 || a.Dim <= 0 || a.Heads*a.Dim > most || a.Rope.Dim <= 0 || a.Rope.Dim%2 != 0 || a.Rope.Dim > a.Dim || a.Window < 0 {
			t.Fatalf("attention %+v", a)
		}
		if a.O.K != a.Heads*a.Dim || a.Q.N != a.O.K || a.K.N != a.KVHeads*a.Dim || a.V.N != a.K.N {
			t.Fatalf("attention %+v of other layers", a)
		}
		finite("scale of scores", a.Scale)
		finite("epsilon", blk.AttnNorm.Eps)
		if a.Rope != last {
			last = a.Rope
			f := last.Frequencies(10)
			if len(f) != last.Dim/2 {
				t.Fatalf("frequencies of %+v", last)
			}
			for _, v := range f {
				finite("frequency", v)
			}
			finite("amplitude", last.Amplitude)
		}
	}
}

// damages are the ways to spoil a value of a config.json.
func damages() []func(value any) any {
	return []func(value any) any{
		func(any) any { return nil },
		func(v any) any { return fmt.Sprint(v) },          // a string for a number
		func(v any) any { return map[string]any{"a": v} }, // one deeper
		func(v any) any { return []any{v} },
		func(any) any { return map[string]any{} },
		func(any) any { return []any{} },
		func(any) any { return 0 },
		func(any) any { return -1 },
		func(any) any { return 1 },
		func(any) any { return 7 },
		func(any) any { return 1.5 },
		func(any) any { return math.MaxInt32 },
		func(any) any { return int64(math.MaxInt64) },
		func(any) any { return 1e300 },
		func(any) any { return 1e-320 },
		func(any) any { return true },
		func(any) any { return "" },
	}
}

// paths lists the keys of a JSON object and of those in it, each as the keys that lead to it, sorted.
func paths(object map[string]any) [][]string {
	var all [][]string
	for _, key := range slices.Sorted(maps.Keys(object)) {
		all = append(all, []string{key})
		if inner, ok := object[key].(map[string]any); ok && key != "vision_config" { // which nobody reads
			for _, p := range paths(inner) {
				all = append(all, append([]string{key}, p...))
			}
		}
	}
	return all
}

// spoil returns the text of a config in which what a path leads to is left out, where do is nil, or replaced.
func spoil(t testing.TB, config []byte, path []string, do func(any) any) []byte {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(config, &object); err != nil {
		t.Fatal(err)
	}
	at := object
	for _, key := range path[:len(path)-1] {
		at = at[key].(map[string]any)
	}
	key := path[len(path)-1]
	if do == nil {
		delete(at, key)
	} else {
		at[key] = do(at[key])
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// spoiled describes what a spoiled config says, if anything.
func spoiled(t *testing.T, text []byte, has func(string) bool) {
	t.Helper()
	d, err := arch.Describe(text, has)
	if err == nil {
		sound(t, d)
		return
	}
	if msg := err.Error(); strings.ContainsRune(msg, '\n') || len(msg) > 500 {
		t.Fatalf("error %q is no line", msg)
	}
}

// ofFamilies returns a config of each family, alone and in models of several modes.
func ofFamilies(t testing.TB) map[string][]byte {
	t.Helper()
	of := make(map[string][]byte)
	for _, g := range archtest.Goldens(t) {
		switch g.Name {
		case "llama-yarn", "llama-llama3-bare", "mistral", "mixtral", "qwen2-sliding", "qwen2-moe", "qwen3", "qwen3-moe-mixed", "gemma2", "gemma3", "gemma3-nested",
			"phi3-long", "gpt-oss", "llava", "qwen2-vl", "qwen3-vl", "deepseek-v2", "deepseek-v3", "deepseek-v32", "glm-moe-dsa":
			of[g.Name] = g.Config
		}
	}
	if len(of) != 20 {
		t.Fatalf("configs of %v", slices.Sorted(maps.Keys(of)))
	}
	return of
}

// TestSpoiled spoils each value of a config of each family in each way.
func TestSpoiled(t *testing.T) {
	for name, config := range ofFamilies(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var object map[string]any
			if err := json.Unmarshal(config, &object); err != nil {
				t.Fatal(err)
			}
			for _, path := range paths(object) {
				spoiled(t, spoil(t, config, path, nil), nil)
				for _, do := range damages() {
					spoiled(t, spoil(t, config, path, do), nil)
				}
			}
		})
	}
}

// FuzzConfig spoils two values of a config of a family: what can still be described can be computed with.
func FuzzConfig(f *testing.F) {
	configs := ofFamilies(f)
	names := slices.Sorted(maps.Keys(configs))
	for i := range names {
		f.Add(uint8(i), uint16(i*7), uint8(i), uint16(i*3), `"x"`, i%2 == 0)
		f.Add(uint8(i), uint16(i*5), uint8(200), uint16(i), `[1e300, {"rope_type": null}]`, false)
	}
	f.Fuzz(func(t *testing.T, family uint8, first uint16, way uint8, second uint16, value string, has bool) {
		text := configs[names[int(family)%len(names)]]
		set := func(any) any { return json.RawMessage(value) }
		if !json.Valid([]byte(value)) {
			set = func(any) any { return value }
		}
		ways := append(damages(), nil)
		for i, do := range []func(any) any{ways[int(way)%len(ways)], set} {
			var object map[string]any
			if err := json.Unmarshal(text, &object); err != nil {
				t.Fatal(err)
			}
			all := paths(object)
			text = spoil(t, text, all[int([]uint16{first, second}[i])%len(all)], do)
		}
		spoiled(t, text, func(string) bool { return has })
	})
}

func TestByName(t *testing.T) {
	for tensor, want := range map[string]arch.Role{
		"model.layers.3.self_attn.q_proj.weight":                arch.LinearWeight,
		"transformer.h.0.mlp.c_fc.weight":                       arch.LinearWeight,
		"gpt_neox.layers.1.attention.dense.weight":              arch.LinearWeight,
		"model.layers.3.input_layernorm.weight":                 arch.NormWeight,
		"model.layers.3.self_attn.q_norm.weight":                arch.NormWeight,
		"model.layers.3.mlp.gate.weight":                        arch.RouterWeight,
		"model.layers.3.mlp.gate_proj.weight":                   arch.LinearWeight,
		"model.layers.3.self_attn.q_proj.bias":                  arch.Other,
		"model.embed_tokens.weight":                             arch.EmbeddingWeight,
		"transformer.wte.weight":                                arch.EmbeddingWeight,
		"transformer.wpe.weight":                                arch.EmbeddingWeight,
		"lm_head.weight":                                        arch.HeadWeight,
		"vision.proj.weight":                                    arch.Other,
		"vision_tower.encoder.layers.0.self_attn.q_proj.weight": arch.Other,
		"visual.blocks.0.attn.qkv.weight":                       arch.Other,
		"model.vision_model.encoder.layers.0.mlp.fc1.weight":    arch.Other,
		"audio_tower.layers.3.fc1.weight":                       arch.Other,
		"vision_tower.layers.0.norm1.weight":                    arch.NormWeight,
	} {
		if got := arch.ByName(tensor); got != want {
			t.Errorf("%s is a %v: want %v", tensor, got, want)
		}
	}
	for layer, want := range map[string]string{
		"a.0.self_attn.k_proj": "a.0.self_attn.qkv", "a.0.mlp.up_proj": "a.0.mlp.gate_up", "a.0.mlp.down_proj": "", "up": "",
	} {
		if got := arch.FuseByName(layer); got != want {
			t.Errorf("%s is fused in %q: want %q", layer, got, want)
		}
	}
}

// TestPartsByName: names of parts that no description covers.
func TestPartsByName(t *testing.T) {
	for name, want := range map[string]struct{ further, linear bool }{
		"mtp.layers.0.self_attn.q_proj.weight":                           {true, true},
		"mtp.fc.weight":                                                  {true, true},
		"model.mtp_layers.0.mlp.up_proj.weight":                          {true, true},
		"mtp.layers.0.mlp.gate.weight":                                   {true, false},
		"mtp.norm.weight":                                                {true, false},
		"mtp.embed_tokens.weight":                                        {true, false},
		"model.layers.61.shared_head.head.weight":                        {false, false},
		"model.nextn_predict.0.eh_proj.weight":                           {true, true},
		"model.layers.0.self_attn.q_proj.weight":                         {false, true},
		"vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight":   {false, true},
		"model.embed_vision.embedding_projection.weight":                 {false, true},
		"visual.merger.mlp.2.weight":                                     {false, true},
		"multi_modal_projector.linear_1.weight":                          {false, true},
		"multi_modal_projector.linear_1.bias":                            {false, false},
		"visual.patch_embed.proj.weight":                                 {false, false},
		"vision_model.embeddings.position_embedding.weight":              {false, false},
		"audio_tower.subsample_conv_projection.input_proj_linear.weight": {false, false},
		"audio_tower.layers.0.lconv1d.linear_start.linear.weight":        {false, true},
		"vision_model.encoder.layers.0.layer_norm1.weight":               {false, false},
		"vision_model.pre_layrnorm.weight":                               {false, false},
		"vision_tower.blocks.0.ln_1.weight":                              {false, false},
		"vision_tower.blocks.0.mlp.router.weight":                        {false, false},
	} {
		if got := arch.FurtherByName(name); got != want.further {
			t.Errorf("%s predicts further tokens: %v", name, got)
		}
		if got := arch.LinearByName(name); got != want.linear {
			t.Errorf("%s is linear: %v", name, got)
		}
	}
}
