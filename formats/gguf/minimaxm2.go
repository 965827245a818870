package gguf

import "github.com/lutq/lutq/formats/arch"

// miniMaxM2 is MiniMax-M2, all of whose layers have experts.
func miniMaxM2() family {
	return family{
		name: "minimax_m2", arch: "minimax-m2", head: true, sparse: true, normalize: true,
		more:      func(*arch.Decoder) []KV { return []KV{{"expert_gating_func", uint32(gatingSigmoid)}} },
		modelType: "minimax_m2", class: "MiniMaxM2ForCausalLM", config: func(c *configReader) {
			c.config["num_local_experts"] = c.config[expertsKey]
			if n, ok := c.file.Meta.Int("minimax-m2.rope.dimension_count"); ok {
				c.config["rotary_dim"] = n
			}
			delete(c.config, expertsKey)
			delete(c.config, "partial_rotary_factor")
			delete(c.config, "moe_intermediate_size")
		},
	}
}
