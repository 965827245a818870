package gguf

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// glm4MoE is GLM-4.5 to 4.7.
func glm4MoE(biases []string) family {
	return family{
		name: "glm4_moe", arch: "glm4moe", biases: biases, mlpNorm: "post_attention_norm", weighs: true,
		refuse:    func(d *arch.Decoder) error { return firstDense(d) },
		more:      groupedExperts,
		modelType: "glm4_moe", class: "Glm4MoeForCausalLM", config: func(c *configReader) {
			c.attentionBias()
			c.config["use_qk_norm"] = c.has("blk.0.attn_q_norm.weight")
			c.groupedExperts()
		},
	}
}

// The ways to score experts, as expert_gating_func has them.
const (
	gatingSoftmax = 1
	gatingSigmoid = 2
)

// firstDense refuses models whose layers without experts are not the first ones.
func firstDense(d *arch.Decoder) error {
	if mixture(d) == nil {
		return errors.New("no layer has experts: llama.cpp wants some")
	}
	for i := range d.Blocks[1:] {
		if d.Blocks[i].MoE != nil && d.Blocks[i+1].MoE == nil {
			return fmt.Errorf("%s: is dense behind layers with experts: llama.cpp has none such", d.Blocks[i+1].Path)
		}
	}
	return nil
}

// groupedExperts are the pairs of experts as DeepSeek has them, and others after it.
func groupedExperts(d *arch.Decoder) []KV {
	m, dense := mixture(d), 0
	for dense < len(d.Blocks) && d.Blocks[dense].MoE == nil {
		dense++
	}
	shared, gating := 0, gatingSoftmax
	if m.Shared != nil {
		shared = m.Shared.Gate.N / m.Experts[0].Gate.N
	}
	r := &m.Routing
	if r.Sigmoid {
		gating = gatingSigmoid
	}
	kvs := []KV{
		{"leading_dense_block_count", uint32(dense)},
		{"expert_shared_count", uint32(shared)},
		{"expert_gating_func", uint32(gating)},
		{"expert_weights_scale", float32(r.Factor())},
		{"expert_weights_norm", m.Normalize},
	}
	if r.Groups > 0 {
		kvs = append(kvs, KV{"expert_group_count", uint32(r.Groups)}, KV{"expert_group_used_count", uint32(r.TopGroups)})
	}
	return kvs
}

// groupedExperts reads them.
func (c *configReader) groupedExperts() {
	c.config["n_routed_experts"] = c.config[expertsKey]
	delete(c.config, expertsKey)
	delete(c.config, "shared_expert_intermediate_size")
	for key, name := range map[string]string{
		"expert_shared_count": "n_shared_experts",
		"expert_group_count":  "n_group", "expert_group_used_count": "topk_group",
	} {
		if n, ok := c.file.Meta.Int(c.arch + "." + key); ok {
			c.config[name] = n
		}
	}
	dense, layers := 0, int(min(c.int("num_hidden_layers"), maxLayers))
	for dense < layers && !c.has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", dense)) {
		dense++
	}
	c.config["first_k_dense_replace"] = dense
	if scale, ok := c.float("expert_weights_scale"); ok && scale != 0 {
		c.config["routed_scaling_factor"] = scale
	} else {
		c.config["routed_scaling_factor"] = 1.0
	}
	norm, _ := c.file.Meta.Bool(c.arch + ".expert_weights_norm")
	c.config["norm_topk_prob"] = norm
	if c.config["n_group"] == nil {
		c.config["n_group"], c.config["topk_group"] = 1, 1
	}
}
