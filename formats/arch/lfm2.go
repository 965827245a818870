package arch

import (
	"fmt"
	"slices"
)

// lfm2 is LFM2: short convolutions with an attention between some, whose heads have norms, and an MLP in all layers.
func lfm2() family {
	return family{
		name: "lfm2", architectures: []string{"Lfm2ForCausalLM"}, modelTypes: []string{"lfm2"},
		describe: func(b *builder) {
			b.rename("rms_norm_eps", "norm_eps")
			b.rename("tie_word_embeddings", "tie_embedding")
			if b.has("block_ff_dim") {
				b.rename("intermediate_size", "block_ff_dim")
			}
			b.read(sizes{hidden: 2560, inter: 12288, layers: 32, heads: 32, vocab: 65536, positions: 128000, kvHeads: 8, eps: 1e-5, tied: true})
			inter := b.adjusted(b.inter)
			b.shortConvBlocks(func(_ int, blk *Block, path string, names mlpNames) {
				blk.MLP = b.mlp(path, names, inter, false, Gating{Act: SiLU}, b.mlpState(blk))
			})
		},
	}
}

// lfm2MoE is LFM2 with experts behind its first layers, by sigmoids with a correction.
func lfm2MoE() family {
	return family{
		name: "lfm2_moe", architectures: []string{"Lfm2MoeForCausalLM"}, modelTypes: []string{"lfm2_moe"},
		describe: func(b *builder) {
			b.rename("rms_norm_eps", "norm_eps")
			b.rename("tie_word_embeddings", "tie_embedding")
			b.read(sizes{hidden: 2048, inter: 7168, layers: 32, heads: 32, vocab: 65536, positions: 128000, kvHeads: 8, eps: 1e-5, tied: true})
			dense, act := b.natural("num_dense_layers", 2), Gating{Act: SiLU}
			x := mixture{
				router: "gate", experts: b.size("num_experts", 32), top: b.size("num_experts_per_tok", 4),
				inter: b.size("moe_intermediate_size", 1792), normalize: b.boolean("norm_topk_prob", true), act: act,
				routing: Routing{Sigmoid: true, Scale: b.positiveFloat("routed_scaling_factor", 1)},
			}
			if b.boolean("use_expert_bias", true) {
				x.correction = "expert_bias"
			}
			b.shortConvBlocks(func(i int, blk *Block, path string, names mlpNames) {
				in := b.mlpState(blk)
				if i < dense {
					blk.MLP = b.mlp(path, names, b.inter, false, act, in)
					return
				}
				x := x.at(path)
				x.names = names
				blk.MoE = b.moe(x, in)
			})
		},
	}
}

// shortConvBlocks describes the blocks of LFM2 but for what feed does, of which it tells the path and the names of an MLP.
func (b *builder) shortConvBlocks(feed func(i int, blk *Block, path string, names mlpNames)) {
	b.lastNorm("embedding_norm")
	bias, width := b.boolean("conv_bias", false), b.convolutionWidth("conv_L_cache", 3)
	rope, attends := b.rope("", 1e6), b.attending("conv")
	b.blocks(func(i int, blk *Block) {
		b.blockNorms(blk, "operator_norm", "ffn_norm")
		if attends[i] {
			b.attention(blk, biases{})
			b.attentionOut(blk, "out_proj")
			p, a := blk.Path+".self_attn.", blk.Attn()
			q, k := b.norm(p+"q_layernorm"), b.norm(p+"k_layernorm")
			a.Rope, a.QNorm, a.KNorm = rope, &q, &k
		} else {
			b.shortConv(blk, width, bias)
		}
		feed(i, blk, blk.Path+".feed_forward", mlpNames{"w1", "w3", "w2"})
	})
}

// rename takes a value from where the configs of a family have it.
func (b *builder) rename(key, from string) {
	if b.has(from) {
		b.values[key] = b.values[from]
	}
}

// lastNorm says what the norm before the head is called.
func (b *builder) lastNorm(name string) {
	delete(b.d.roles, b.d.Norm.Tensor)
	b.d.Norm = b.norm(b.root + name)
	b.d.Head.Reads.Name, b.d.Head.Reads.Absorb = b.root+name, []string{b.d.Norm.Tensor}
}

// blockNorms says what the norms of a block are called.
func (b *builder) blockNorms(blk *Block, attn, mlp string) {
	delete(b.d.roles, blk.AttnNorm.Tensor)
	delete(b.d.roles, blk.MLPNorm.Tensor)
	blk.AttnNorm, blk.MLPNorm = b.norm(blk.Path+"."+attn), b.norm(blk.Path+"."+mlp)
}

// attentionOut says what the last layer of an attention is called.
func (b *builder) attentionOut(blk *Block, name string) {
	o := blk.Attn().O
	delete(b.d.roles, o.Stored.Tensor)
	blk.Attn().O = b.whole(b.matrix(blk.Path+".self_attn."+name, o.N, o.K, o.Stored.Bias != "", LinearWeight), o.Reads, o.Split, o.Fuse)
}

// adjusted is the width of an MLP that LFM2 makes of what its config says.
func (b *builder) adjusted(inter int) int {
	if !b.boolean("block_auto_adjust_ff_dim", true) {
		return inter
	}
	by, of := b.positiveFloat("block_ffn_dim_multiplier", 1), b.size("block_multiple_of", 256)
	width := by * float64(2*inter/3)
	if !(width < maxSize) {
		b.fail("block_ffn_dim_multiplier", fmt.Errorf("%g of %d is too wide", by, inter))
		return inter
	}
	return max((int(width)+of-1)/of, 1) * of
}

// attending returns which layers attend; others says what layer_types calls the rest.
func (b *builder) attending(others ...string) []bool {
	types, is := b.texts("layer_types"), make([]bool, b.layers)
	if types != nil && len(types) != b.layers && b.layers > 0 {
		b.fail("layer_types", fmt.Errorf("%d layers: want %d", len(types), b.layers))
		types = nil
	}
	if types == nil {
		for i, at := range is {
			is[i] = at || !b.has("full_attn_idxs") || slices.Contains(b.naturals("full_attn_idxs"), i)
		}
		return is
	}
	for i, t := range types[:b.layers] {
		is[i] = t == fullAttention || t == "attention"
		if !is[i] && !slices.Contains(others, t) {
			b.fail("layer_types", fmt.Errorf("%.40q is not supported: want %s or %s", t, fullAttention, others[0]))
		}
	}
	return is
}
