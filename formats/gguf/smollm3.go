package gguf

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// smolLM3 is a Llama of which every fourth layer turns nothing.
func smolLM3(biases []string) family {
	return family{
		name: "smollm3", arch: "smollm3", permuted: true, biases: biases,
		refuse: func(d *arch.Decoder) error {
			for i := range d.Blocks {
				if turns := (i+1)%4 != 0; turns != (d.Blocks[i].Attn().Rope != nil) {
					return fmt.Errorf("%s: turns heads, %v: in models of the architecture smollm3 llama.cpp has every fourth layer turn none", d.Blocks[i].Path, !turns)
				}
			}
			return nil
		},
		modelType: "smollm3", class: "SmolLM3ForCausalLM", config: func(c *configReader) {
			c.attentionBias()
			if c.config["pad_token_id"] == nil { // not the class's own, which a smaller vocabulary has not
				c.config["pad_token_id"] = nil
			}
		},
	}
}

// attentionBias reads whether queries, keys and values have biases.
func (c *configReader) attentionBias() { c.config["attention_bias"] = c.has("blk.0.attn_q.bias") }

// seedOSS reads what attentions of Seed-OSS have biases.
func (c *configReader) seedOSS() {
	c.attentionBias()
	c.config["attention_out_bias"] = false
}
