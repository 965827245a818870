package arch

// glm4MoE is GLM-4.5 to 4.7: experts by sigmoids with a correction, a shared one, and first layers without; heads turn in part.
func glm4MoE() family {
	return family{
		name: "glm4_moe", architectures: []string{"Glm4MoeForCausalLM"}, modelTypes: []string{"glm4_moe"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 10944, layers: 46, heads: 96, vocab: 151552, positions: 131072, kvHeads: 8, eps: 1e-5})
			bias, norms := b.boolean("attention_bias", false), b.boolean("use_qk_norm", false)
			act, rope := b.activation("hidden_act", "silu"), b.partialRope(1e4, 0.5)
			dense, shared := b.natural("first_k_dense_replace", 1), b.size("n_shared_experts", 1)
			x := mixture{
				router: "gate", names: projNames(), experts: b.size("n_routed_experts", 128), top: b.size("num_experts_per_tok", 8),
				inter: b.size("moe_intermediate_size", 1408), normalize: b.boolean("norm_topk_prob", true), act: act,
				routing: b.grouped(), correction: "gate.e_score_correction_bias",
			}
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{qkv: bias})
				blk.Attn().Rope = rope
				if norms {
					b.qkNorm(blk)
				}
				in, path := b.mlpState(blk), blk.Path+".mlp"
				if i < dense {
					blk.MLP = b.mlp(path, projNames(), b.inter, false, act, in)
					return
				}
				blk.MoE = b.moe(x.at(path), in)
				blk.MoE.Shared = b.mlp(path+".shared_experts", projNames(), x.inter*shared, false, act, in)
			})
		},
	}
}

// grouped reads the routing by sigmoids that DeepSeek-V3 has, and others after it.
func (b *builder) grouped() Routing { return b.groupedBy(1, 1, 1) }

// groupedBy is grouped with what a config's class has where a config leaves it out.
func (b *builder) groupedBy(scale float64, groups, top int) Routing {
	r := Routing{Sigmoid: true, Scale: b.positiveFloat("routed_scaling_factor", scale)}
	if groups := b.size("n_group", groups); groups > 1 {
		r.Groups, r.TopGroups = groups, b.size("topk_group", top)
	}
	return r
}
