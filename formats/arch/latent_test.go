package arch

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

const latentConfig = `"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
	"qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "n_group": 1, "moe_intermediate_size": 32`

func describeLatent(t *testing.T, modelType, config string) (*Latent, *Decoder, error) {
	t.Helper()
	all := latentConfig
	for key := range strings.SplitSeq(config, `"`) { // a key may not come twice
		if i := strings.Index(all, `"`+key+`":`); i >= 0 && key != "" {
			rest := all[i:]
			if end := strings.Index(rest, ","); end >= 0 {
				all = all[:i] + rest[end+1:]
			}
		}
	}
	d, err := Describe(fmt.Appendf(nil, `{%s, %s, "model_type": %q}`, all, config, modelType), nil)
	if err != nil {
		return nil, nil, err
	}
	return d.Blocks[0].Mixer.(*Latent), d, nil
}

// TestLatent reads latent attention as the configs of DeepSeek-V3, Kimi K2 and GLM-4.7-Flash have it.
func TestLatent(t *testing.T) {
	yarn := 0.1*math.Log(40) + 1
	for _, test := range []struct {
		name, modelType, config string
		queries                 int // rank of, 0 for none
		scale                   float64
		adjacent                bool
		stages                  int
	}{
		{name: "as the class has it", modelType: "deepseek_v3", config: `"rope_theta": 1e4`, queries: 1536, scale: 1, adjacent: true, stages: 4},
		{name: "without a rank", modelType: "deepseek_v3", config: `"q_lora_rank": null`, scale: 1, adjacent: true, stages: 3},
		{name: "by halves", modelType: "kimi_k2", config: `"q_lora_rank": 40, "rope_interleave": false`, queries: 40, scale: 1, stages: 4},
		{name: "v2", modelType: "deepseek_v2", config: `"q_lora_rank": null, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "rope_interleave": false`, scale: 1, adjacent: true, stages: 3},
		{
			name: "stretched", modelType: "deepseek_v3", adjacent: true, queries: 1536, stages: 4, scale: yarn * yarn,
			config: `"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}`,
		},
		{
			name: "stretched, scores as they are", modelType: "deepseek_v3", adjacent: true, queries: 1536, stages: 4, scale: 1,
			config: `"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}`,
		},
		{name: "glm", modelType: "glm4_moe_lite", config: `"mlp_layer_types": ["sparse", "dense"]`, queries: 768, scale: 1, adjacent: true, stages: 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, d, err := describeLatent(t, test.modelType, test.config)
			if err != nil {
				t.Fatal(err)
			}
			queries := 0
			if a.QDown != nil {
				queries = a.QDown.N
			}
			if queries != test.queries || len(a.Stages()) != test.stages || a.Rope.Adjacent != test.adjacent || a.Rope.Dim != 16 {
				t.Errorf("queries of rank %d in %d stages, pairs beside each other %v, %d turn: want %d, %d, %v, 16", queries, len(a.Stages()), a.Rope.Adjacent, a.Rope.Dim, test.queries, test.stages, test.adjacent)
			}
			if want := test.scale / math.Sqrt(40); math.Abs(a.Scale-want) > 1e-12 {
				t.Errorf("scores are multiplied by %v, want %v", a.Scale, want)
			}
			if sparse := d.Blocks[0].MoE != nil; sparse != (test.name == "glm") {
				t.Errorf("block 0 has experts: %v", sparse)
			}
		})
	}
}

// TestKimi: kimi_k2 is another name for deepseek_v3.
func TestKimi(t *testing.T) {
	_, deepseek, err := describeLatent(t, "deepseek_v3", `"kv_lora_rank": 48`)
	if err != nil {
		t.Fatal(err)
	}
	_, kimi, err := describeLatent(t, "kimi_k2", `"kv_lora_rank": 48`)
	if err != nil {
		t.Fatal(err)
	}
	kimi.ModelType = deepseek.ModelType
	if !reflect.DeepEqual(kimi, deepseek) {
		t.Error("it is described otherwise")
	}
}

func TestLatentErrors(t *testing.T) {
	for _, test := range []struct{ config, err string }{
		{`"topk_method": "group_limited_greedy"`, `topk_method: "group_limited_greedy" is not supported`},
		{`"norm_topk_prob": true, "first_k_dense_replace": 0`, "norm_topk_prob: true is not supported"},
		{`"qk_rope_head_dim": 15`, "qk_rope_head_dim: 15: want pairs"},
		{`"v_head_dim": 48`, "v_head_dim: heads of 24 + 16 and values of 48"},
		{`"v_head_dim": 8`, "v_head_dim: heads of 24 + 16 and values of 8"},
		{`"qk_nope_head_dim": 100000`, "v_head_dim: heads of 100000 + 16"},
		{`"kv_lora_rank": 2000000000`, "kv_lora_rank: 4 heads of 40 over a rank of 2000000000 are too wide"},
		{`"q_lora_rank": 2000000000`, "kv_lora_rank"},
		{`"q_lora_rank": 0`, "q_lora_rank: 0 is outside"},
		{`"n_group": 3, "first_k_dense_replace": 0`, "n_group: 8 of 8 experts from 4 of 3 groups"},
		{`"n_shared_experts": 2000000000`, "n_shared_experts: 2000000000 of 32 are too wide"},
		{`"mlp_layer_types": ["dense"]`, "mlp_layer_types: 1 layers: want 2"},
		{`"rope_scaling": {"type": "yarn", "factor": -1}`, "rope_scaling: factor"},
		{`"rope_scaling": {"type": "yarn", "factor": 4, "mscale_all_dim": 1e300, "original_max_position_embeddings": 32}`, "rope_scaling: mscale_all_dim: 1e+300 is too large"},
	} {
		t.Run(test.config, func(t *testing.T) {
			modelType := "deepseek_v3"
			if strings.Contains(test.err, "not supported") {
				modelType = "deepseek_v2"
			}
			if _, _, err := describeLatent(t, modelType, test.config); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v: want one with %q", err, test.err)
			}
		})
	}
}

// TestIndex reads which layers choose what is seen, and how.
func TestIndex(t *testing.T) {
	for _, test := range []struct {
		name, modelType, config string
		top                     int
		chooses                 [4]bool // of layers
		err                     string
	}{
		{name: "DeepSeek-V3.2", modelType: "deepseek_v32", config: `"rope_theta": 1e4`, top: 2048, chooses: [4]bool{true, true, true, true}},
		{name: "GLM-5", modelType: "glm_moe_dsa", config: `"index_topk": 12`, top: 12, chooses: [4]bool{true, true, true, true}},
		{name: "GLM-5.2", modelType: "glm_moe_dsa", config: `"index_topk_freq": 3, "index_skip_topk_offset": 1`, top: 2048, chooses: [4]bool{true, false, false, true}},
		{name: "a pattern", modelType: "glm_moe_dsa", config: `"index_topk_pattern": "FSFS"`, top: 2048, chooses: [4]bool{true, false, true, false}},
		{name: "types", modelType: "glm_moe_dsa", config: `"indexer_types": ["full", "shared", "shared", "full"]`, top: 2048, chooses: [4]bool{true, false, false, true}},
		{name: "too few types", modelType: "glm_moe_dsa", config: `"indexer_types": ["full"]`, err: "indexer_types: 1 layers: want 4"},
		{name: "another type", modelType: "glm_moe_dsa", config: `"indexer_types": ["full", "none", "full", "full"]`, err: `indexer_types: "none" is not supported`},
		{name: "nobody before", modelType: "glm_moe_dsa", config: `"index_topk_pattern": "SFFF"`, err: "indexer_types: the first layer"},
		{name: "narrow heads", modelType: "deepseek_v32", config: `"index_head_dim": 8`, err: "index_head_dim: 64 heads of 8, of which 16 turn"},
		{name: "many", modelType: "deepseek_v32", config: `"index_topk": 2000000000`, err: "index_topk: 2000000000 is too many"},
		{name: "no rank", modelType: "deepseek_v32", config: `"q_lora_rank": null`, err: "q_lora_rank: missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, d, err := describeLatent(t, test.modelType, test.config+`, "num_hidden_layers": 4`)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v: want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.Top() != test.top || a.Index.Rope.Adjacent != (test.modelType == "glm_moe_dsa") || !a.Rope.Adjacent {
				t.Errorf("%d are seen, pairs beside each other %v and %v", a.Top(), a.Index.Rope.Adjacent, a.Rope.Adjacent)
			}
			var last *Latent
			for i := range d.Blocks {
				a := d.Blocks[i].Mixer.(*Latent)
				if (a.Index != nil) != test.chooses[i] || a.Index == nil && a.Chosen != last || a.Top() != test.top {
					t.Errorf("layer %d chooses: %v", i, a.Index != nil)
				}
				if a.Index != nil {
					last = a
				}
			}
		})
	}
}
