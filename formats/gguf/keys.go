package gguf

import (
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// hparam is a pair that describes a model: its key, behind the architecture's name and a dot, the key of config.json that
// says the same, and the value, nil where a model has none.
type hparam struct {
	key    string
	config string
	value  func(d *arch.Decoder) any
}

// hparams lists the pairs that describe a model, but for its rotary embedding, which [ropeKVs] describes.
func hparams() []hparam {
	attn := func(d *arch.Decoder) *arch.Attention { return d.Blocks[0].Attn() }
	moe := func(of func(m *arch.MoE) int) func(d *arch.Decoder) any {
		return func(d *arch.Decoder) any {
			if m := d.Blocks[0].MoE; m != nil {
				return positive(of(m))
			}
			return nil
		}
	}
	return []hparam{
		{"context_length", "max_position_embeddings", func(d *arch.Decoder) any { return uint32(d.MaxPositions) }},
		{"embedding_length", "hidden_size", func(d *arch.Decoder) any { return uint32(d.Hidden) }},
		{"block_count", "num_hidden_layers", func(d *arch.Decoder) any { return uint32(len(d.Blocks)) }},
		{"feed_forward_length", "intermediate_size", func(d *arch.Decoder) any { return uint32(feedForward(d)) }},
		{"attention.head_count", "num_attention_heads", func(d *arch.Decoder) any { return uint32(attn(d).Heads) }},
		{"attention.head_count_kv", "num_key_value_heads", func(d *arch.Decoder) any { return uint32(attn(d).KVHeads) }},
		{"attention.key_length", "head_dim", func(d *arch.Decoder) any { return uint32(attn(d).Dim) }},
		{"attention.value_length", "head_dim", func(d *arch.Decoder) any { return uint32(attn(d).Dim) }},
		{"attention.layer_norm_rms_epsilon", "rms_norm_eps", func(d *arch.Decoder) any { return float32(d.Norm.Eps) }},
		{"attention.sliding_window", "sliding_window", func(d *arch.Decoder) any { return slidingWindow(d) }},
		{"attn_logit_softcapping", "attn_logit_softcapping", func(d *arch.Decoder) any { return capped(attn(d).ScoreCap) }},
		{"final_logit_softcapping", "final_logit_softcapping", func(d *arch.Decoder) any { return capped(d.LogitCap) }},
		{"vocab_size", "vocab_size", func(d *arch.Decoder) any { return uint32(d.Vocab) }},
		{"expert_count", expertsKey, moe(func(m *arch.MoE) int { return len(m.Experts) })},
		{"expert_used_count", "num_experts_per_tok", moe(func(m *arch.MoE) int { return m.Top })},
		{"expert_feed_forward_length", "moe_intermediate_size", func(d *arch.Decoder) any {
			if m := d.Blocks[0].MoE; m != nil && d.Family != "mixtral" { // which has feed_forward_length
				return uint32(m.Experts[0].Gate.N)
			}
			return nil
		}},
		{"expert_shared_feed_forward_length", "shared_expert_intermediate_size", moe(func(m *arch.MoE) int {
			if m.Shared == nil {
				return 0
			}
			return m.Shared.Gate.N
		})},
	}
}

// expertsKey is what Qwen calls the number of experts. Mixtral and gpt-oss have num_local_experts.
const expertsKey = "num_experts"

func positive(n int) any {
	if n == 0 {
		return nil
	}
	return uint32(n)
}

func capped(c float64) any {
	if c == 0 {
		return nil
	}
	return float32(c)
}

// feedForward is the width of an MLP. Of Qwen's mixtures it is that of layers without experts; where
// there are none, of as many experts as a token takes.
func feedForward(d *arch.Decoder) int {
	for i := range d.Blocks {
		if m := d.Blocks[i].MLP; m != nil {
			return m.Gate.N
		}
	}
	m := d.Blocks[0].MoE
	if d.Family == "qwen2_moe" || d.Family == "qwen3_moe" {
		return m.Experts[0].Gate.N * m.Top
	}
	return m.Experts[0].Gate.N
}

// slidingWindow is the window of the layers that have one. Phi's models are told from others by its being
// there: 0 is for none.
func slidingWindow(d *arch.Decoder) any {
	for i := range d.Blocks {
		if w := d.Blocks[i].Attn().Window; w > 0 {
			return uint32(w)
		}
	}
	if d.Family == "phi3" {
		return uint32(0)
	}
	return nil
}

// Describe returns the pairs that describe a model to llama.cpp, beginning with its architecture.
func Describe(d *arch.Decoder) ([]KV, error) {
	f, err := familyOf(d)
	if err != nil {
		return nil, err
	}
	kvs := []KV{{"general.architecture", f.arch}}
	for _, h := range hparams() {
		if v := h.value(d); v != nil {
			kvs = append(kvs, KV{f.arch + "." + h.key, v})
		}
	}
	if a := d.Blocks[0].Attn(); f.attnScale && !near(a.Scale, f.scale(d)) {
		kvs = append(kvs, KV{f.arch + ".attention.scale", float32(a.Scale)})
	}
	return append(kvs, ropeKVs(f.arch, d)...), nil
}

// ropeKVs describes the rotary embedding: that of the layers that see all, where others have their own.
func ropeKVs(name string, d *arch.Decoder) []KV {
	var global, local *arch.Rope
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a.Window > 0 {
			local = a.Rope
		} else {
			global = a.Rope
		}
	}
	if global == nil {
		global = local
	}
	var kvs []KV
	add := func(key string, value any) { kvs = append(kvs, KV{name + ".rope." + key, value}) }
	add("dimension_count", uint32(global.Dim))
	add("freq_base", float32(global.Theta))
	if local != nil && (local.Theta != global.Theta || d.Family == "gemma3") { // which has one of its own otherwise
		add("freq_base_swa", float32(local.Theta))
	}
	switch global.Type {
	case "linear":
		add("scaling.type", "linear")
		add("scaling.factor", float32(global.Factor))
	case "yarn":
		add("scaling.type", "yarn")
		add("scaling.factor", float32(global.Factor))
		add("scaling.original_context_length", uint32(global.Original))
		add("scaling.yarn_beta_fast", float32(global.BetaFast))
		add("scaling.yarn_beta_slow", float32(global.BetaSlow))
		// llama.cpp multiplies by the amplitude that the paper has.
		if own := 1 + 0.1*math.Log(global.Factor); !near(global.Amplitude, own) {
			add("scaling.attn_factor", float32(global.Amplitude/own))
		}
	case "longrope":
		add("scaling.type", "longrope") // without a factor, by which frequencies would be divided besides
		add("scaling.original_context_length", uint32(global.Original))
		add("scaling.attn_factor", float32(global.Amplitude))
	}
	// Phi's models are told so even where nothing is stretched.
	if d.Family == "phi3" && global.Type != "yarn" && global.Type != "longrope" {
		add("scaling.original_context_length", uint32(max(global.Original, d.MaxPositions)))
	}
	return kvs
}
