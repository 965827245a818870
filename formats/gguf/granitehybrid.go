package gguf

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// graniteHybrid is Granite 4, whose attentions have state spaces between them.
func graniteHybrid() family {
	return family{
		name: "granitemoehybrid", arch: "granitehybrid", when: func(d *arch.Decoder) bool { return stateSpaceOf(d) != nil },
		permuted: true, normalize: true, expertFF: true, attnScale: true, refuse: refuseStateSpace,
		more: func(d *arch.Decoder) []KV {
			return append(append(graniteScales(d), stateSpacePairs(d)...), KV{"rope.scaling.finetuned", ropesOf(d).global != nil})
		},
		modelType: "granitemoehybrid", class: "GraniteMoeHybridForCausalLM", config: (*configReader).graniteHybrid,
	}
}

// graniteAttending is Granite 4 without state spaces and experts, which is Granite 3.
func graniteAttending(biases []string) family {
	f := granite(biases)
	f.name, f.modelType = "granitemoehybrid", ""
	f.when = func(d *arch.Decoder) bool { return stateSpaceOf(d) == nil && mixture(d) == nil }
	f.refuse = func(d *arch.Decoder) error {
		if ropesOf(d).global == nil {
			return errors.New("nothing turns: llama.cpp turns heads in models of the architecture granite")
		}
		return nil
	}
	return f
}

// stateSpaceOf returns the first state space of a model, or nil.
func stateSpaceOf(d *arch.Decoder) *arch.Mamba2 {
	for i := range d.Blocks {
		if m, ok := d.Blocks[i].Mixer.(*arch.Mamba2); ok {
			return m
		}
	}
	return nil
}

// refuseStateSpace refuses what llama.cpp has no place for.
func refuseStateSpace(d *arch.Decoder) error {
	switch m := stateSpaceOf(d); {
	case m.Inner() != 2*d.Hidden:
		return fmt.Errorf("state spaces of %d elements: llama.cpp wants twice as many as the model is wide, %d", m.Inner(), 2*d.Hidden)
	case m.ConvBias == "":
		return errors.New("convolutions have no bias: llama.cpp wants one")
	case attention(d) == nil:
		return errors.New("no layer attends: llama.cpp wants some in models of the architecture granitehybrid")
	}
	return nil
}

func stateSpacePairs(d *arch.Decoder) []KV {
	m := stateSpaceOf(d)
	return []KV{
		{"ssm.conv_kernel", uint32(m.Width)},
		{"ssm.state_size", uint32(m.State)},
		{"ssm.group_count", uint32(m.Groups)},
		{"ssm.time_step_rank", uint32(m.Heads)},
		{"ssm.inner_size", uint32(m.Inner())},
	}
}

// stateSpace adds the tensors of a state space.
func (l *layout) stateSpace(p string, m *arch.Mamba2) {
	l.linears(p+"ssm_in", m.In)
	l.vector(p+"ssm_conv1d.weight", m.Conv, []int{m.Channels(), m.Width}, m.Channels(), 1, m.Width)
	if m.ConvBias != "" {
		l.vector(p+"ssm_conv1d.bias", m.ConvBias, []int{m.Channels()})
	}
	l.vector(p+"ssm_dt.bias", m.DtBias, []int{m.Heads})
	l.add(Tensor{Name: p + "ssm_a", Shape: []int{m.Heads, 1}, Source: m.ALog, Of: []int{m.Heads}, Decay: true, Float: true})
	l.vector(p+"ssm_d", m.D, []int{m.Heads, 1}, m.Heads)
	l.vector(p+"ssm_norm.weight", m.Norm.Tensor, []int{m.Groups, m.Inner() / m.Groups}, m.Inner())
	l.linears(p+"ssm_out", m.Out)
}

func (c *configReader) graniteHybrid() {
	c.graniteScales()
	n := c.stateSizes(map[string]string{
		"conv_kernel": "mamba_d_conv", "state_size": "mamba_d_state", "group_count": "mamba_n_groups", "time_step_rank": "mamba_n_heads", "inner_size": "",
	})
	if n == nil {
		return
	}
	if hidden := c.int("hidden_size"); hidden > 0 {
		c.config["mamba_expand"] = n["inner_size"] / hidden
	}
	c.config["mamba_d_head"] = n["inner_size"] / n["time_step_rank"]
	space := c.headless()
	c.kinds("mamba", "attention", space)
	first := 0
	for first < int(min(c.int("num_hidden_layers"), maxLayers)) && !space(first) {
		first++
	}
	c.config["mamba_conv_bias"] = c.has(fmt.Sprintf("blk.%d.ssm_conv1d.bias", first))
	turns, told := c.file.Meta.Bool(c.arch + ".rope.scaling.finetuned")
	if c.config["position_embedding_type"] = "nope"; turns || !told {
		c.config["position_embedding_type"] = "rope"
	}
	c.config["num_local_experts"] = c.config[expertsKey]
	c.config["shared_intermediate_size"] = c.config["shared_expert_intermediate_size"]
	if c.config[expertsKey] == nil {
		c.config["num_local_experts"], c.config["shared_intermediate_size"] = 0, c.config["intermediate_size"]
	}
	delete(c.config, expertsKey)
	delete(c.config, "shared_expert_intermediate_size")
}
