package gguf

import (
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// qwenDelta is Qwen3-Next or Qwen3.5, without experts or with, whose attentions have gated delta rules between them.
func qwenDelta(name, arch, modelType, class string) family {
	f := family{
		name: name, arch: arch, mlpNorm: "post_attention_norm", uniform: true, refuse: unevenHeads, more: deltaPairs,
		modelType: modelType, class: class, config: (*configReader).qwenDelta,
	}
	switch arch {
	case "qwen35":
		f.more = mropePairs
	case "qwen35moe":
		f.more = mropePairs
		f.sparse, f.normalize = true, true
	default:
		f.sparse, f.normalize = true, true
	}
	return f
}

// unevenHeads refuses delta rules whose keys and values have heads of two sizes.
func unevenHeads(d *arch.Decoder) error {
	for i := range d.Blocks {
		if m, ok := d.Blocks[i].Mixer.(*arch.DeltaNet); ok && m.KDim != m.VDim {
			return fmt.Errorf("%s: keys of %d and values of %d elements: llama.cpp wants as many", d.Blocks[i].Path, m.KDim, m.VDim)
		}
	}
	return nil
}

// deltaPairs describes delta rules, and which layers have them.
func deltaPairs(d *arch.Decoder) []KV {
	var m *arch.DeltaNet
	recurrent, every := make([]bool, len(d.Blocks)), 0
	for i := range d.Blocks {
		if of, ok := d.Blocks[i].Mixer.(*arch.DeltaNet); ok {
			recurrent[i], m = true, of
		} else if every == 0 {
			every = i + 1
		}
	}
	if m == nil { // of which llama.cpp wants to be told all the same
		m = &arch.DeltaNet{Width: 1}
	}
	return []KV{
		{"ssm.conv_kernel", uint32(m.Width)},
		{"ssm.state_size", uint32(m.KDim)},
		{"ssm.group_count", uint32(m.KHeads)},
		{"ssm.time_step_rank", uint32(m.VHeads)},
		{"ssm.inner_size", uint32(m.VHeads * m.VDim)},
		{"full_attention_interval", uint32(max(every, 1))},
		{"attention.recurrent_layers", recurrent},
	}
}

// mropePairs are those of [deltaPairs], and which pairs of a head turn by time, height and width, which of a text are one.
func mropePairs(d *arch.Decoder) []KV {
	n := int32(1)
	if r := ropesOf(d).global; r != nil {
		n = int32(r.Dim / 2)
	}
	return append(deltaPairs(d), KV{"rope.dimension_sections", []int32{(n + 2) / 3, (n + 1) / 3, n / 3, 0}})
}

// delta adds the tensors of a gated delta rule. Heads of values that share a key follow each other in the model. In Qwen3.5's files the
// first ones of all keys do, then the second ones and so on; in Qwen3-Next's, whose projections are joined by keys, they stay.
func (l *layout) delta(p string, m *arch.DeltaNet) {
	keys, shared := m.KHeads*m.KDim, m.VHeads/m.KHeads
	tiled := func(from, dim int) []int {
		if shared == 1 {
			return consecutive(from, m.VHeads*dim)
		}
		var order []int
		for i := range shared {
			for k := range m.KHeads {
				order = append(order, consecutive(from+(k*shared+i)*dim, dim)...)
			}
		}
		return order
	}
	heads, channels := consecutive(0, m.VHeads), consecutive(0, m.Channels())
	var columns []int
	switch {
	case m.Grouped:
		wide := 2*m.KDim + 2*shared*m.VDim
		of := func(at, n int) (order []int) {
			for k := range m.KHeads {
				order = append(order, consecutive(k*wide+at, n)...)
			}
			return order
		}
		values := shared * m.VDim
		qkv := append(append(of(0, m.KDim), of(m.KDim, m.KDim)...), of(2*m.KDim, values)...)
		l.matrix(Tensor{Name: p + "attn_qkv", Layers: []*arch.Linear{m.QKV}, Order: qkv})
		l.matrix(Tensor{Name: p + "attn_gate", Layers: []*arch.Linear{m.QKV}, Order: of(2*m.KDim+values, values)})
		l.matrix(Tensor{Name: p + "ssm_ba", Layers: []*arch.Linear{m.B}, Float: true})
	default:
		heads, columns = tiled(0, 1), tiled(0, m.VDim)
		channels = append(consecutive(0, 2*keys), tiled(2*keys, m.VDim)...)
		l.matrix(Tensor{Name: p + "attn_qkv", Layers: []*arch.Linear{m.QKV}, Order: channels})
		l.matrix(Tensor{Name: p + "attn_gate", Layers: []*arch.Linear{m.Z}, Order: columns})
		l.matrix(Tensor{Name: p + "ssm_beta", Layers: []*arch.Linear{m.B}, Order: heads, Float: true})
		l.matrix(Tensor{Name: p + "ssm_alpha", Layers: []*arch.Linear{m.A}, Order: heads, Float: true})
	}
	l.add(Tensor{Name: p + "ssm_conv1d.weight", Shape: []int{m.Channels(), m.Width}, Source: m.Conv, Of: []int{m.Channels(), 1, m.Width}, Order: channels, Float: true})
	l.add(Tensor{Name: p + "ssm_dt.bias", Shape: []int{m.VHeads}, Source: m.DtBias, Order: heads, Float: true})
	l.add(Tensor{Name: p + "ssm_a", Shape: []int{m.VHeads}, Source: m.ALog, Decay: true, Order: heads, Float: true})
	l.norm(p+"ssm_norm", &m.Norm, m.VDim)
	if shared == 1 {
		columns = nil
	}
	l.matrix(Tensor{Name: p + "ssm_out", Layers: []*arch.Linear{m.O}, Columns: columns})
}

// consecutive returns n numbers from one on.
func consecutive(from, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = from + i
	}
	return all
}

// qwenDelta reads the pairs of Qwen3-Next and Qwen3.5.
func (c *configReader) qwenDelta() {
	n := c.stateSizes(map[string]string{
		"group_count": "linear_num_key_heads", "time_step_rank": "linear_num_value_heads", "state_size": "linear_key_head_dim",
		"conv_kernel": "linear_conv_kernel_dim", "inner_size": "",
	})
	if n == nil {
		return
	}
	c.config["linear_value_head_dim"] = n["inner_size"] / n["time_step_rank"]
	every, ok := c.file.Meta.Int(c.arch + ".full_attention_interval")
	if !ok || every < 1 {
		every = 4
	}
	recurrent, listed := c.file.Meta[c.arch+".attention.recurrent_layers"].([]bool)
	c.kinds("linear_attention", "full_attention", func(i int) bool {
		if listed {
			return i < len(recurrent) && recurrent[i]
		}
		return (int64(i)+1)%every != 0
	})
	if c.arch != "qwen35" {
		c.experts()
		delete(c.config, "decoder_sparse_step")
		c.config["norm_topk_prob"] = true
	}
}

// kinds notes which layers are of the first kind, and that all others are of the second.
func (c *configReader) kinds(first, second string, is func(layer int) bool) {
	layers := c.int("num_hidden_layers")
	if layers > maxLayers {
		c.fail(fmt.Errorf("%s.block_count %d: want at most %d", c.arch, layers, maxLayers))
		return
	}
	types := make([]string, layers)
	for i := range types {
		if types[i] = second; is(i) {
			types[i] = first
		}
	}
	c.config["layer_types"] = types
}
