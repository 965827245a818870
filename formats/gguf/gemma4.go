package gguf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/lutq/lutq/formats/arch"
)

// gemma4 is Gemma 4, whose layers that see all have heads of another size, and turn them in part.
func gemma4() family {
	return family{
		name: "gemma4", arch: "gemma4", act: arch.GELUTanh, pattern: true, varies: true, normalize: true, refuse: refuseGemma4, more: gemma4Pairs,
		modelType: "gemma4_text", class: "Gemma4ForCausalLM", config: (*configReader).gemma4,
	}
}

// stillDivisor is what llama.cpp divides the frequencies of pairs by that do not turn.
const stillDivisor = 1e30

// firstShared returns the first layer that attends to keys and values of one before.
func firstShared(d *arch.Decoder) int {
	i := slices.IndexFunc(d.Blocks, func(b arch.Block) bool { return b.Attn().From != nil })
	if i < 0 {
		return len(d.Blocks)
	}
	return i
}

func refuseGemma4(d *arch.Decoder) error {
	first, r := firstShared(d), ropesOf(d)
	if slidingWindow(d) == nil || r.local == r.global {
		return errors.New("all layers see all, or none does: llama.cpp wants some of both")
	}
	if r.local.Type != "default" || r.global.Type != "proportional" {
		return fmt.Errorf("rope types %s and %s: llama.cpp has default and proportional", r.local.Type, r.global.Type)
	}
	for i := range d.Blocks {
		b, a := &d.Blocks[i], d.Blocks[i].Attn()
		slides := a.Window > 0
		from := first - 1
		if slides {
			from--
		}
		switch {
		case i < first != (a.From == nil) || a.From != nil && (from < 0 || a.From != d.Blocks[from].Attn()):
			return fmt.Errorf("%s: attends to the keys and values of another layer than llama.cpp takes", b.Path)
		case a.V == nil && a.From == nil && slides:
			return fmt.Errorf("%s: has no values of its own: llama.cpp has that in layers that see all", b.Path)
		}
	}
	if d.Tokens != nil && d.Tokens.Embed.N != d.Vocab {
		return fmt.Errorf("blocks are told of %d tokens of %d: llama.cpp wants all", d.Tokens.Embed.N, d.Vocab)
	}
	return nil
}

func gemma4Pairs(d *arch.Decoder) []KV {
	r, width, dim := ropesOf(d), 0, 0
	if d.Tokens != nil {
		width = d.Tokens.Width
	}
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a.Window > 0 {
			dim = a.Dim
		}
	}
	return []KV{
		{"attention.shared_kv_layers", uint32(len(d.Blocks) - firstShared(d))},
		{"embedding_length_per_layer_input", uint32(width)},
		{"attention.key_length_swa", uint32(dim)},
		{"attention.value_length_swa", uint32(dim)},
		{"rope.dimension_count_swa", uint32(r.local.Dim)},
	}
}

// tokens adds what blocks are told of tokens.
func (l *layout) tokens(t *arch.TokenInputs) {
	embed, project := t.Embed, t.Project.Stored
	l.add(Tensor{Name: "per_layer_token_embd.weight", Shape: []int{embed.N, embed.K}, Source: embed.Tensor})
	l.add(Tensor{Name: "per_layer_model_proj.weight", Shape: []int{project.N, project.K}, Source: project.Tensor})
	l.norm("per_layer_proj_norm", &t.Norm, t.Width)
}

// apart adds a mixture that has norms of its own parts, and whose shared expert is called an MLP.
func (l *layout) apart(p string, m *arch.MoE) {
	l.norm(p+"ffn_norm", &m.Apart.Shared, l.hidden)
	l.mlp(p, "", m.Shared)
	l.norm(p+"post_ffw_norm_1", &m.Apart.SharedOut, l.hidden)
	l.norm(p+"post_ffw_norm_2", &m.Apart.ExpertsOut, l.hidden)
	l.matrix(Tensor{Name: p + "ffn_gate_inp", Layers: []*arch.Linear{m.Router}, Float: true})
	l.vector(p+"ffn_gate_inp.scale", m.Apart.Router.Tensor, []int{l.hidden})
	var joined []*arch.Linear
	for i := range m.Experts {
		joined = append(joined, m.Experts[i].Gate, m.Experts[i].Up)
	}
	l.add(Tensor{Name: p + "ffn_gate_up_exps.weight", Shape: []int{len(m.Experts), 2 * joined[0].N, joined[0].K}, Layers: joined})
	l.experts(p+"ffn_down_exps", m, func(e *arch.MLP) *arch.Linear { return e.Down })
	l.vector(p+"ffn_down_exps.scale", m.Apart.ExpertScale, []int{len(m.Experts)})
}

// told adds what a block makes of what it is told.
func (l *layout) told(p string, t *arch.Told) {
	l.linears(p+"inp_gate", t.Gate)
	l.linears(p+"proj", t.Proj)
	l.norm(p+"post_norm", &t.Out, l.hidden)
}

func (c *configReader) gemma4() {
	n := func(key string) int64 {
		v, _ := c.file.Meta.Int("gemma4." + key)
		return v
	}
	c.layerTypes(6)
	types, _ := c.config["layer_types"].([]string)
	full, heads := n("attention.key_length"), c.perLayer("attention.head_count_kv", len(types))
	c.config["head_dim"] = n("attention.key_length_swa")
	equal, each := false, make(map[string]any)
	for i, kind := range types {
		if kind == "sliding_attention" {
			if heads != nil {
				c.config["num_key_value_heads"] = heads[i]
			}
			continue
		}
		of := map[string]any{"head_dim": full}
		if heads != nil {
			of["num_key_value_heads"] = heads[i]
		}
		each[strconv.Itoa(i)] = of
		equal = equal || c.has(fmt.Sprintf("blk.%d.attn_k.weight", i)) && !c.has(fmt.Sprintf("blk.%d.attn_v.weight", i))
	}
	c.config["per_layer_config"], c.config["attention_k_eq_v"] = each, equal
	if widths := c.perLayer("feed_forward_length", len(types)); len(widths) > 0 {
		c.config["intermediate_size"] = widths[0]
		c.config["use_double_wide_mlp"] = widths[len(widths)-1] == 2*widths[0]
	}
	c.config["num_kv_shared_layers"] = n("attention.shared_kv_layers")
	c.config["hidden_size_per_layer_input"] = n("embedding_length_per_layer_input")
	if t, ok := c.file.Tensor("per_layer_token_embd.weight"); ok && len(t.Shape) == 2 {
		c.config["vocab_size_per_layer_input"] = t.Shape[0]
	}
	if c.config["final_logit_softcapping"] == nil {
		c.config["final_logit_softcapping"] = nil
	}
	if experts := c.config[expertsKey]; experts != nil {
		c.config["enable_moe_block"], c.config["top_k_experts"] = true, c.config["num_experts_per_tok"]
	}
	for _, key := range []string{"num_experts_per_tok", "shared_expert_intermediate_size", "partial_rotary_factor", "rope_scaling"} {
		delete(c.config, key)
	}
	c.gemma4Ropes(full)
}

// gemma4Ropes reads the rotary embeddings of both kinds of layers.
func (c *configReader) gemma4Ropes(dim int64) {
	turning := 0
	for _, v := range c.vector("rope_freqs.weight") {
		switch {
		case v == 1:
			turning++
		case v < stillDivisor/2:
			c.fail(fmt.Errorf("rope_freqs.weight has a divisor %v: not supported", v))
		}
	}
	local, ok := c.float("rope.freq_base_swa")
	if !ok {
		local = 1e4
	}
	c.config["rope_parameters"] = map[string]any{
		"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": local},
		"full_attention": map[string]any{
			"rope_type": "proportional", "rope_theta": c.config["rope_theta"], "partial_rotary_factor": float64(2*turning) / float64(max(dim, 1)),
		},
	}
	delete(c.config, "rope_theta")
}

// perLayer reads a number for each layer, nil where there is one for all.
func (c *configReader) perLayer(key string, layers int) []int64 {
	all, err := c.file.Meta.ints(c.arch + "." + key)
	if err != nil || all == nil {
		return nil
	}
	if len(all) < layers {
		c.fail(fmt.Errorf("%s.%s: %d of %d layers", c.arch, key, len(all), layers))
		return nil
	}
	return all
}
