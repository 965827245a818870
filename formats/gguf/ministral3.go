package gguf

import (
	"errors"

	"github.com/lutq/lutq/formats/arch"
)

// ministral3 is Ministral 3, whose queries grow with their position.
func ministral3() family {
	return family{
		name: "ministral3", arch: "mistral3", permuted: true, freqs: true, longrope: true,
		refuse: func(d *arch.Decoder) error {
			if a := attention(d); a.QueryRope != nil && (a.Rope.Type != "yarn" || a.QueryRope.Original != a.Rope.Original) {
				return errors.New("queries grow by another context than rope type yarn has: llama.cpp has one for both")
			}
			return nil
		},
		more: func(d *arch.Decoder) []KV {
			if q := attention(d).QueryRope; q != nil {
				return []KV{{"attention.temperature_scale", float32(q.Growth)}}
			}
			return nil
		},
		modelType: "ministral3", class: "Ministral3ForCausalLM", config: func(c *configReader) {
			scaling, ok := c.config["rope_scaling"].(map[string]any)
			if !ok { // by which the class takes none
				scaling = map[string]any{"rope_type": "default"}
				c.config["rope_scaling"] = scaling
			}
			if growth, ok := c.float("attention.temperature_scale"); ok && growth != 0 {
				scaling["llama_4_scaling_beta"] = growth
			}
			if l, ok := c.float("rope.scaling.yarn_log_multiplier"); ok && scaling["rope_type"] == "yarn" && scaling["attention_factor"] == nil {
				scaling["mscale"], scaling["mscale_all_dim"] = 1.0, l
			}
		},
	}
}
