package gguf

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// lfm2 is LFM2, whose attentions have short convolutions between them, without experts or with.
func lfm2(name, arch, class string) family {
	f := family{
		name: name, arch: arch, lastNorm: "token_embd_norm", refuse: refuseShortConv, more: shortConvPairs,
		modelType: name, class: class, config: (*configReader).lfm2,
	}
	if name == "lfm2_moe" {
		f.normalize = true
	}
	return f
}

// refuseShortConv refuses what llama.cpp has no place for.
func refuseShortConv(d *arch.Decoder) error {
	for i := range d.Blocks {
		b := &d.Blocks[i]
		c, _ := b.Mixer.(*arch.ShortConv)
		a := b.Attn()
		switch {
		case c != nil && c.ConvBias != "":
			return fmt.Errorf("%s: the convolution has a bias: llama.cpp knows none there", b.Path)
		case a != nil && a.Heads*a.Dim != d.Hidden:
			return fmt.Errorf("%s: heads are not as wide together as the model: llama.cpp wants that in models of the architecture lfm2", b.Path)
		}
	}
	m := mixture(d)
	switch {
	case m == nil:
		return nil
	case m.Routing.Correction == "" || m.Routing.Factor() != 1:
		return errors.New("weights of experts have a factor, or no correction: llama.cpp wants a correction and no factor in models of the architecture lfm2moe")
	}
	return firstDense(d)
}

func shortConvPairs(d *arch.Decoder) []KV {
	width := 1
	for i := range d.Blocks {
		if c, ok := d.Blocks[i].Mixer.(*arch.ShortConv); ok {
			width = c.Width
		}
	}
	kvs := []KV{{"shortconv.l_cache", uint32(width)}}
	if mixture(d) != nil {
		for _, kv := range groupedExperts(d) {
			if kv.Key == "leading_dense_block_count" || kv.Key == "expert_gating_func" {
				kvs = append(kvs, kv)
			}
		}
	}
	return kvs
}

// shortConv adds the tensors of a short convolution.
func (l *layout) shortConv(p string, c *arch.ShortConv) {
	l.linears(p+"shortconv.in_proj", c.In)
	l.vector(p+"shortconv.conv.weight", c.Conv, []int{c.Channels, c.Width}, c.Channels, 1, c.Width)
	l.linears(p+"shortconv.out_proj", c.Out)
}

func (c *configReader) lfm2() {
	c.config["norm_eps"] = c.config["rms_norm_eps"]
	c.config["block_auto_adjust_ff_dim"] = false
	width, ok := c.file.Meta.Int(c.arch + ".shortconv.l_cache")
	if !ok {
		c.fail(fmt.Errorf("no %s.shortconv.l_cache", c.arch))
	}
	c.config["conv_L_cache"] = width
	c.kinds("conv", "full_attention", c.headless())
	if c.arch == "lfm2moe" {
		if n, ok := c.file.Meta.Int("lfm2moe.leading_dense_block_count"); ok {
			c.config["num_dense_layers"] = n
		}
		c.config["norm_topk_prob"], c.config["use_expert_bias"] = true, true
	}
}

// headless returns which layers have no heads of keys, and so no attention.
func (c *configReader) headless() func(layer int) bool {
	heads := c.perLayer("attention.head_count_kv", int(min(c.int("num_hidden_layers"), maxLayers)))
	if heads == nil {
		return func(int) bool { return false }
	}
	return func(layer int) bool { return heads[layer] == 0 }
}
