package gguf

import (
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// granite is Granite 3: a Llama with factors. So are models of Granite 4 without state spaces.
func granite(biases []string) family {
	return family{
		name: "granite", arch: "granite", permuted: true, biases: biases, freqs: true, longrope: true, attnScale: true, more: graniteScales,
		modelType: "granite", class: "GraniteForCausalLM", config: func(c *configReader) {
			c.llama()
			c.graniteScales()
		},
	}
}

// graniteScales are the pairs of Granite's factors.
func graniteScales(d *arch.Decoder) []KV {
	return []KV{
		{"embedding_scale", float32(d.EmbedScale * residual(d))},
		{"residual_scale", float32(residual(d))},
		{"logit_scale", float32(1 / d.LogitScale)},
	}
}

// graniteScales reads them.
func (c *configReader) graniteScales() {
	for key, name := range map[string]string{"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"} {
		if v, ok := c.float(key); ok && v != 0 {
			c.config[name] = v
		}
	}
	scale, ok := c.float("attention.scale")
	if dim := c.int("head_dim"); (!ok || scale == 0) && dim > 0 {
		scale = 1 / math.Sqrt(float64(dim))
	}
	c.config["attention_multiplier"] = scale
}
