package gguf

import (
	"cmp"
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
	attn := func(of func(a *arch.Attention) any) func(d *arch.Decoder) any {
		return func(d *arch.Decoder) any {
			if a := attention(d); a != nil {
				return of(a)
			}
			return nil
		}
	}
	moe := func(of func(m *arch.MoE) int) func(d *arch.Decoder) any {
		return func(d *arch.Decoder) any {
			if m := mixture(d); m != nil {
				return positive(of(m))
			}
			return nil
		}
	}
	return []hparam{
		{"context_length", "max_position_embeddings", func(d *arch.Decoder) any { return uint32(d.MaxPositions) }},
		{"embedding_length", "hidden_size", func(d *arch.Decoder) any { return uint32(d.Hidden) }},
		{"block_count", "num_hidden_layers", func(d *arch.Decoder) any { return uint32(len(d.Blocks)) }},
		{"feed_forward_length", "intermediate_size", feedForwards},
		{"attention.head_count", "num_attention_heads", attn(func(a *arch.Attention) any { return uint32(a.Heads) })},
		{"attention.head_count_kv", "num_key_value_heads", keyHeads},
		{"attention.key_length", "head_dim", headDim},
		{"attention.value_length", "head_dim", headDim},
		{"attention.layer_norm_rms_epsilon", "rms_norm_eps", func(d *arch.Decoder) any { return float32(d.Norm.Eps * residual(d) * residual(d)) }},
		{"attention.sliding_window", "sliding_window", func(d *arch.Decoder) any { return slidingWindow(d) }},
		{"attn_logit_softcapping", "attn_logit_softcapping", attn(func(a *arch.Attention) any { return capped(a.ScoreCap) })},
		{"final_logit_softcapping", "final_logit_softcapping", func(d *arch.Decoder) any { return capped(d.LogitCap) }},
		{"vocab_size", "vocab_size", func(d *arch.Decoder) any { return uint32(d.Vocab) }},
		{"expert_count", expertsKey, moe(func(m *arch.MoE) int { return len(m.Experts) })},
		{"expert_used_count", "num_experts_per_tok", moe(func(m *arch.MoE) int { return m.Top })},
		{"expert_feed_forward_length", "moe_intermediate_size", func(d *arch.Decoder) any {
			if f, err := familyOf(d); err != nil || f.expertFF {
				return nil
			}
			if m := mixture(d); m != nil {
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

// attention returns the first attention of a model, nil where none of its mixers is one.
func attention(d *arch.Decoder) *arch.Attention {
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a != nil {
			return a
		}
	}
	return nil
}

// mixture returns the first one of a model, or nil.
func mixture(d *arch.Decoder) *arch.MoE {
	for i := range d.Blocks {
		if m := d.Blocks[i].MoE; m != nil {
			return m
		}
	}
	return nil
}

// headDim is how wide a head is, of the layers that see all where others differ.
func headDim(d *arch.Decoder) any {
	var dim any
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a != nil && (dim == nil || a.Window == 0) {
			dim = uint32(a.Dim)
		}
	}
	return dim
}

// residual is what is multiplied by what blocks add.
func residual(d *arch.Decoder) float64 { return cmp.Or(d.Residual, 1) }

// keyHeads is how many heads of keys the attentions have, for each block where those differ: 0 where there is none.
func keyHeads(d *arch.Decoder) any {
	each, same := make([]uint32, len(d.Blocks)), true
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a != nil {
			each[i] = uint32(a.KVHeads)
		}
		same = same && each[i] == each[0]
	}
	switch f, err := familyOf(d); {
	case attention(d) == nil || err != nil:
		return nil
	case same || f.uniform:
		return uint32(attention(d).KVHeads)
	}
	return each
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

// feedForwards is the width of the MLPs, for each block where those differ.
func feedForwards(d *arch.Decoder) any {
	f, err := familyOf(d)
	if err != nil || !f.varies {
		return uint32(feedForward(d))
	}
	each, same := make([]uint32, len(d.Blocks)), true
	for i := range d.Blocks {
		m := d.Blocks[i].MLP
		if m == nil {
			m = d.Blocks[i].MoE.Shared
		}
		each[i] = uint32(m.Gate.N)
		same = same && each[i] == each[0]
	}
	if same {
		return each[0]
	}
	return each
}

// feedForward is the width of an MLP. Of Qwen's mixtures it is that of layers without experts; where
// there are none, of as many experts as a token takes.
func feedForward(d *arch.Decoder) int {
	for i := range d.Blocks {
		if m := d.Blocks[i].MLP; m != nil {
			return m.Gate.N
		}
	}
	m := mixture(d)
	if d.Family == "qwen2_moe" || d.Family == "qwen3_moe" {
		return m.Experts[0].Gate.N * m.Top
	}
	return m.Experts[0].Gate.N
}

// slidingWindow is the window of the layers that have one. Phi's models are told from others by its being
// there: 0 is for none.
func slidingWindow(d *arch.Decoder) any {
	for i := range d.Blocks {
		if a := d.Blocks[i].Attn(); a != nil && a.Window > 0 {
			return uint32(a.Window)
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
	add := func(key string, value any) { kvs = append(kvs, KV{f.arch + "." + key, value}) }
	if f.attnScale && !near(attention(d).Scale, f.scale(d)) {
		add("attention.scale", float32(attention(d).Scale))
	}
	if f.pattern && slidingWindow(d) != nil {
		slides := make([]bool, len(d.Blocks))
		for i := range d.Blocks {
			slides[i] = d.Blocks[i].Attn().Window > 0
		}
		add("attention.sliding_window_pattern", slides)
	}
	if f.more != nil {
		for _, kv := range f.more(d) {
			add(kv.Key, kv.Value)
		}
	}
	return append(kvs, ropeKVs(f.arch, d)...), nil
}

// ropes are the rotary embeddings of a model: of the layers that see all, or else of those that do not, and of those where others
// do. Each may be nil.
type ropes struct{ global, local *arch.Rope }

func ropesOf(d *arch.Decoder) (r ropes) {
	for i := range d.Blocks {
		all := d.Blocks[i].Mixer.Ropes()
		switch a := d.Blocks[i].Attn(); {
		case len(all) == 0 || all[0] == nil:
		case a != nil && (a.Window > 0 || a.Chunk > 0):
			r.local = all[0]
		default:
			r.global = all[0]
		}
	}
	if r.global == nil {
		r.global = r.local
	}
	return r
}

// ropeKVs describes the rotary embedding: that of the layers that see all, where others have their own.
func ropeKVs(name string, d *arch.Decoder) []KV {
	r := ropesOf(d)
	global, local := r.global, r.local
	var kvs []KV
	add := func(key string, value any) { kvs = append(kvs, KV{name + ".rope." + key, value}) }
	if global == nil { // then nothing turns
		add("dimension_count", uint32(attention(d).Dim))
		return kvs
	}
	add("dimension_count", uint32(global.Dim))
	add("freq_base", float32(global.Theta))
	if local != nil && (local.Theta != global.Theta || d.Family == "gemma3" || d.Family == "gemma4") { // which has one of its own otherwise
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
		if a := latentOf(d); a != nil {
			for _, kv := range latentYarn(a) {
				add("scaling."+kv.Key, kv.Value)
			}
			break
		}
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
