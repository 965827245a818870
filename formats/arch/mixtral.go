package arch

// mixtral is Mixtral: Mistral with experts, whose weights sum to 1.
func mixtral() family {
	return family{
		name: "mixtral", architectures: []string{"MixtralForCausalLM"}, modelTypes: []string{"mixtral"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 14336, layers: 32, heads: 32, vocab: 32000, positions: 131072, kvHeads: 8, eps: 1e-5})
			window := 0
			if b.has("sliding_window") {
				window = b.size("sliding_window", 0)
			}
			experts, top := b.size("num_local_experts", 8), b.size("num_experts_per_tok", 2)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e6)
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{})
				blk.Attn().Rope, blk.Attn().Window = rope, window
				// Version 5 of transformers has the modules under mlp, and stacks them.
				path := blk.Path + ".block_sparse_moe"
				if b.exists(blk.Path + ".mlp.gate.weight") {
					path = blk.Path + ".mlp"
				}
				names := mlpNames{"w1", "w3", "w2"}
				if b.exists(path + ".experts.0.gate_proj.weight") {
					names = projNames()
				}
				blk.MoE = b.moe(mixture{
					path: path, router: "gate", names: names,
					experts: experts, top: top, inter: b.inter, normalize: true, act: act,
				}, b.mlpState(blk))
			})
		},
	}
}
