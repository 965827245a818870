package gguf

import (
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// deepseek is DeepSeek-V2-Lite or V3, which Kimi K2 is too, or GLM-4.7-Flash: latent attention.
func deepseek(name, kind, modelType, class string) family {
	return family{
		name: name, arch: "deepseek2", adjacent: true, weighs: true, refuse: refuseLatent, more: latentPairs,
		kind: kind, modelType: modelType, class: class, config: (*configReader).latent,
	}
}

// latentOf returns the first latent attention of a model, or nil.
func latentOf(d *arch.Decoder) *arch.Latent {
	for i := range d.Blocks {
		if a, ok := d.Blocks[i].Mixer.(*arch.Latent); ok {
			return a
		}
	}
	return nil
}

// refuseLatent refuses what llama.cpp computes otherwise, or takes for another model.
func refuseLatent(d *arch.Decoder) error {
	if err := firstDense(d); err != nil {
		return err
	}
	a := latentOf(d)
	switch {
	case !a.Rope.Adjacent:
		return errors.New("pairs of neighbours turn, false: in models of the architecture deepseek2 llama.cpp does otherwise")
	case mixture(d).Shared == nil:
		return errors.New("no expert is shared: llama.cpp wants one in models of the architecture deepseek2")
	case a.Q == nil && (len(d.Blocks) == 26 || len(d.Blocks) == 27):
		return fmt.Errorf("queries of %d layers have a rank: llama.cpp takes that for DeepSeek-V2-Lite, whose have none", len(d.Blocks))
	}
	return family{arch: "deepseek2"}.checkRope(a.Rope)
}

// latentPairs describes latent attention, as the attention of many heads over one key that is a latent and what turns.
func latentPairs(d *arch.Decoder) []KV {
	a, rank := latentOf(d), 0
	if a.Q == nil {
		rank = a.QDown.N
	}
	return append(groupedExperts(d), []KV{
		{"attention.head_count", uint32(a.Heads)},
		{"attention.head_count_kv", uint32(1)},
		{"attention.q_lora_rank", uint32(rank)},
		{"attention.kv_lora_rank", uint32(a.Rank)},
		{"attention.key_length", uint32(a.Width())},
		{"attention.value_length", uint32(a.Rank)},
		{"attention.key_length_mla", uint32(a.Dim())},
		{"attention.value_length_mla", uint32(a.ValueDim)},
	}...)
}

// latentYarn are the pairs by which llama.cpp multiplies what turns by the amplitude A of a rotary embedding that YaRN stretches by
// a factor s, and scores by (A·(1 + 0.1·l·ln s))²/√dim: A, and 0.1·l.
func latentYarn(a *arch.Latent) []KV {
	log := 0.1 * math.Log(a.Rope.Factor)
	if log == 0 {
		return nil
	}
	l := (math.Sqrt(a.Scale*math.Sqrt(float64(a.Dim())))/a.Rope.Amplitude - 1) / log
	if math.Abs(l) < 1e-9 {
		l = 1e-9 // at 0 it would take A for a factor of the amplitude that the paper has
	}
	kvs := []KV{{"yarn_log_multiplier", float32(0.1 * l)}}
	if !near(a.Rope.Amplitude, 1) {
		kvs = append(kvs, KV{"attn_factor", float32(a.Rope.Amplitude)})
	}
	return kvs
}

// latent adds the tensors of latent attention. What makes keys and values of a latent is two stacks of a matrix for each head. That of keys
// is turned, since llama.cpp multiplies queries by it.
func (l *layout) latent(p string, a *arch.Latent) {
	if a.Q != nil {
		l.linears(p+"attn_q", a.Q)
	} else {
		l.norm(p+"attn_q_a_norm", a.QNorm, a.QUp.K)
		l.linears(p+"attn_q_a", a.QDown)
		l.linears(p+"attn_q_b", a.QUp)
	}
	l.norm(p+"attn_kv_a_norm", &a.KVNorm, a.Rank)
	l.linears(p+"attn_kv_a_mqa", a.Down)
	var keys, values []int
	for h := range a.Heads {
		at := h * (a.KeyDim + a.ValueDim)
		keys, values = append(keys, consecutive(at, a.KeyDim)...), append(values, consecutive(at+a.KeyDim, a.ValueDim)...)
	}
	up := []*arch.Linear{a.Up}
	l.add(Tensor{Name: p + "attn_k_b.weight", Shape: []int{a.Heads, a.Rank, a.KeyDim}, Layers: up, Order: keys, Turned: true})
	l.add(Tensor{Name: p + "attn_v_b.weight", Shape: []int{a.Heads, a.ValueDim, a.Rank}, Layers: up, Order: values})
	l.linears(p+"attn_output", a.O)
}

// latent reads the pairs of DeepSeek's models.
func (c *configReader) latent() {
	n := make(map[string]int64)
	for _, key := range []string{"attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count"} {
		v, ok := c.file.Meta.Int(c.arch + "." + key)
		if n[key] = v; !ok && key != "attention.q_lora_rank" {
			c.fail(fmt.Errorf("no %s.%s: files without it keep keys and values, not latents, and are not read", c.arch, key))
			return
		}
	}
	c.config["q_lora_rank"] = nil
	if rank := n["attention.q_lora_rank"]; rank > 0 {
		c.config["q_lora_rank"] = rank
	}
	c.config["kv_lora_rank"], c.config["v_head_dim"] = n["attention.kv_lora_rank"], n["attention.value_length_mla"]
	c.config["qk_rope_head_dim"] = n["rope.dimension_count"]
	c.config["qk_nope_head_dim"] = n["attention.key_length_mla"] - n["rope.dimension_count"]
	c.config["num_key_value_heads"] = c.config["num_attention_heads"]
	delete(c.config, "head_dim")
	delete(c.config, "partial_rotary_factor")
	c.groupedExperts()
	scaling, ok := c.config["rope_scaling"].(map[string]any)
	if !ok || scaling["rope_type"] != "yarn" {
		return
	}
	factor, _ := c.float("rope.scaling.factor")
	log := 0.1 * math.Log(factor)
	if !(log > 0) {
		return
	}
	amplitude, ok := c.float("rope.scaling.attn_factor")
	if !ok {
		amplitude = 1
	}
	scores := amplitude
	if l, ok := c.float("rope.scaling.yarn_log_multiplier"); ok && l != 0 {
		scores *= 1 + 10*l*log
	} else {
		amplitude *= 1 + log
		scores = amplitude
	}
	scaling["attention_factor"], scaling["mscale_all_dim"] = amplitude, max((scores-1)/log, 0)
	if math.Abs(scores-1) < 1e-7 {
		scaling["mscale_all_dim"] = 0
	}
}
