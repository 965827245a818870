package arch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// describeRecurrent describes a small model whose config has more.
func describeRecurrent(modelType, more string) (*Decoder, error) {
	if !strings.Contains(more, "layer_types") && modelType != "nemotron_h" {
		more += `, "layer_types": ["conv", "full_attention", "conv"]`
	}
	return Describe(fmt.Appendf(nil, `{"model_type": %q, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
		"num_key_value_heads": 2, "vocab_size": 64%s}`, modelType, more), nil)
}

// blocks is a config of Nemotron-H with blocks of these kinds.
func blocks(kinds string) string { return fmt.Sprintf(`, "hybrid_override_pattern": %q`, kinds) }

const states = `, "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8`

func TestRecurrentErrors(t *testing.T) {
	for _, test := range []struct{ modelType, config, err string }{
		{"lfm2", `, "layer_types": ["conv"]`, "layer_types: 1 layers: want 3"},
		{"lfm2", `, "layer_types": ["conv", "mamba", "conv"]`, `layer_types: "mamba" is not supported`},
		{"lfm2", `, "conv_L_cache": 9`, "conv_L_cache: 9: want at most 8"},
		{"lfm2", `, "block_ffn_dim_multiplier": 1e300`, "block_ffn_dim_multiplier: 1e+300 of 96 is too wide"},
		{"lfm2", `, "block_multiple_of": 0`, "block_multiple_of"},
		{"lfm2", `, "norm_eps": "x"`, "rms_norm_eps"},
		{"granitemoehybrid", "", `layer_types: "conv" is not supported`},
		{"granitemoehybrid", states + `, "mamba_d_conv": 9`, "mamba_d_conv: 9: want at most 8"},
		{"granitemoehybrid", states + `, "mamba_n_groups": 3`, "mamba_n_heads: 8 is not a multiple of 3"},
		{"granitemoehybrid", strings.ReplaceAll(states, "8", "7") + `, "mamba_expand": 3`, "mamba_n_heads: 192 elements do not make 7 heads"},
		{"granitemoehybrid", states + `, "mamba_d_head": 8`, "mamba_d_head: 8: want 16"},
		{"granitemoehybrid", states + `, "mamba_d_state": 2000000000`, "mamba_d_state: 128 elements with states of 2000000000 are too wide"},
		{"granitemoehybrid", states + `, "time_step_limit": [0.0, 0.1]`, "time_step_limit: [0.0, 0.1] is not supported"},
		{"granitemoehybrid", states + `, "hidden_act": "gelu"`, "hidden_act: want silu"},
		{"nemotron_h", blocks("M*x"), "hybrid_override_pattern: 'x' is not supported"},
		{"nemotron_h", blocks(""), "hybrid_override_pattern: no blocks"},
		{"nemotron_h", `, "layers_block_type": ["mamba", "conv"]`, `layers_block_type: "conv" is not supported`},
		{"nemotron_h", blocks("M") + `, "mamba_num_heads": 9`, "mamba_num_heads: 9 is not a multiple of 8 groups"},
		{"nemotron_h", blocks("M") + `, "ssm_state_size": 300`, "ssm_state_size: 8192 elements with states of 300 are too wide"},
		{"nemotron_h", blocks("M") + `, "conv_kernel": 9`, "conv_kernel: 9: want at most 8"},
		{"nemotron_h", blocks("-") + `, "mlp_hidden_act": "silu"`, `mlp_hidden_act: "silu" is not supported: want relu2`},
		{"nemotron_h", blocks("E") + `, "moe_latent_size": 0`, "moe_latent_size: 0"},
		{"nemotron_h", blocks("E") + `, "num_experts_per_tok": 9`, "num_experts_per_tok: 9 of 8 experts"},
		{"lfm2_moe", `, "num_experts": 3`, "num_experts_per_tok: 4 of 3 experts"},
	} {
		t.Run(test.config, func(t *testing.T) {
			if _, err := describeRecurrent(test.modelType, test.config); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v: want one with %q", err, test.err)
			}
		})
	}
}

// TestRecurrentKept holds which tensors are linear layers, and so quantized: what convolutions and states are made with never is.
func TestRecurrentKept(t *testing.T) {
	for _, test := range []struct{ modelType, config, mixer string }{
		{"lfm2", "", "model.layers.0.conv.in_proj model.layers.0.conv.out_proj"},
		{"granitemoehybrid", states, "model.layers.0.mamba.in_proj model.layers.0.mamba.out_proj"},
		{"nemotron_h", blocks("M*E"), "backbone.layers.0.mixer.in_proj backbone.layers.0.mixer.out_proj"},
		{"lfm2_moe", "", "model.layers.0.conv.in_proj model.layers.0.conv.out_proj"},
	} {
		t.Run(test.modelType, func(t *testing.T) {
			d, err := describeRecurrent(test.modelType, test.config)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, stage := range d.Blocks[0].Mixer.Stages() {
				for _, l := range stage {
					names = append(names, l.Name)
				}
			}
			if got := strings.Join(names, " "); got != test.mixer {
				t.Errorf("got %s, want %s", got, test.mixer)
			}
			for _, tensor := range slices.Sorted(maps.Keys(d.roles)) {
				for _, kept := range []string{"conv1d", "conv.conv", "A_log", "dt_bias", ".D"} {
					if strings.Contains(tensor, kept) && d.roles[tensor] == LinearWeight {
						t.Errorf("%s is a linear layer", tensor)
					}
				}
			}
			if d.Blocks[1].Attn() == nil || !d.Forgets() {
				t.Error("there is no attention between, or its states could be cut back")
			}
		})
	}
}
