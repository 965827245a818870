package arch

// qwen2MoE is Qwen1.5 and Qwen2 with experts, one of which every token passes.
func qwen2MoE() family {
	return family{
		name: "qwen2_moe", architectures: []string{"Qwen2MoeForCausalLM"}, modelTypes: []string{"qwen2_moe"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 2048, inter: 5632, layers: 24, heads: 16, vocab: 151936, positions: 32768, kvHeads: 16, eps: 1e-6})
			most := b.natural("max_window_layers", 28)
			windows := b.windows(b.qwenWindow(), func(layer int) bool { return layer%2 == 0 && layer < most })
			bias := b.boolean("qkv_bias", true)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			sparse, shared := b.qwenSparse(), b.size("shared_expert_intermediate_size", 5632)
			x := mixture{
				router: "gate", names: projNames(), experts: b.size("num_experts", 60), top: b.size("num_experts_per_tok", 4),
				inter: b.size("moe_intermediate_size", 1408), normalize: b.boolean("norm_topk_prob", false), act: act,
			}
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{qkv: bias})
				blk.Attn().Rope, blk.Attn().Window = rope, windows[i]
				in := b.mlpState(blk)
				if !sparse(i) {
					blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, in)
					return
				}
				x := x
				x.path = blk.Path + ".mlp"
				blk.MoE = b.moe(x, in)
				blk.MoE.Shared = b.mlp(x.path+".shared_expert", projNames(), shared, false, act, in)
				blk.MoE.SharedGate = b.whole(b.matrix(x.path+".shared_expert_gate", 1, b.d.Hidden, false, RouterWeight), in, Replicated, "")
			})
		},
	}
}
