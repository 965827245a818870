package gguf

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// What llama.cpp has for all models of Llama 4: which layers turn no heads, how many tokens the others see a part of, by which queries
// grow too, and how much they do.
const (
	llama4Step   = 4
	llama4Chunk  = 8192
	llama4Growth = 0.1
)

// llama4 is Llama 4, whose heads turn by neighbours and whose experts are stored by columns.
func llama4() family {
	return family{
		name: "llama4", arch: "llama4", adjacent: true, freqs: true, byColumns: true, refuse: refuseLlama4,
		more: func(d *arch.Decoder) []KV {
			return []KV{{"interleave_moe_layer_step", uint32(sparseStep(d))}}
		},
		modelType: "llama4_text", class: "Llama4ForCausalLM", config: (*configReader).llama4,
	}
}

// sparseStep returns of how many layers the last one has experts.
func sparseStep(d *arch.Decoder) int {
	for i := range d.Blocks {
		if d.Blocks[i].MoE != nil {
			return i + 1
		}
	}
	return len(d.Blocks)
}

func refuseLlama4(d *arch.Decoder) error {
	m := mixture(d)
	if m == nil {
		return errors.New("no layer has experts: llama.cpp wants some")
	}
	normed := len(m.Experts) != 128 // by which llama.cpp knows models whose heads are not
	for i := range d.Blocks {
		b, a := &d.Blocks[i], d.Blocks[i].Attn()
		turns := (i+1)%llama4Step != 0
		switch q := a.QueryRope; {
		case turns != (a.Rope != nil):
			return fmt.Errorf("%s: turns heads, %v: llama.cpp has every fourth layer turn none", b.Path, !turns)
		case turns && a.Chunk != llama4Chunk:
			return fmt.Errorf("%s: sees parts of %d tokens: llama.cpp has parts of %d", b.Path, a.Chunk, llama4Chunk)
		case !turns && (q == nil || q.Original != llama4Chunk || !near(q.Growth, llama4Growth)):
			return fmt.Errorf("%s: queries grow otherwise than by %g for each %d tokens, which llama.cpp takes", b.Path, llama4Growth, llama4Chunk)
		case turns && normed != (a.QNorm != nil):
			return fmt.Errorf("%s: heads are normalized, %v: of %d experts llama.cpp does otherwise", b.Path, !normed, len(m.Experts))
		case ((i+1)%sparseStep(d) == 0) != (b.MoE != nil):
			return fmt.Errorf("%s: experts are not in each %dth layer: llama.cpp wants that", b.Path, sparseStep(d))
		}
	}
	return nil
}

func (c *configReader) llama4() {
	if w, ok := c.file.Meta.Int("llama4.attention.sliding_window"); ok && w == 0 {
		c.fail(errors.New("llama4.attention.sliding_window is 0: models that see all are not supported"))
	}
	experts := c.int(expertsKey)
	c.config["num_local_experts"], c.config["use_qk_norm"] = experts, experts != 128
	c.config["intermediate_size_mlp"], c.config["intermediate_size"] = c.config["intermediate_size"], c.config["moe_intermediate_size"]
	if step, ok := c.file.Meta.Int("llama4.interleave_moe_layer_step"); ok {
		c.config["interleave_moe_layer_step"] = step
	}
	c.config["no_rope_layer_interval"], c.config["attention_chunk_size"], c.config["floor_scale"] = llama4Step, llama4Chunk, llama4Chunk
	c.config["attn_temperature_tuning"], c.config["attn_scale"] = true, llama4Growth
	for _, key := range []string{expertsKey, "moe_intermediate_size", "shared_expert_intermediate_size", "sliding_window"} {
		delete(c.config, key)
	}
}
