package arch

// miniMaxM2 is MiniMax M2: experts by sigmoids with a correction; queries and keys are normalized over all heads, which turn in part.
func miniMaxM2() family {
	return family{
		name: "minimax_m2", architectures: []string{"MiniMaxM2ForCausalLM"}, modelTypes: []string{"minimax_m2"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 3072, inter: 1536, layers: 62, heads: 48, vocab: 200064, positions: 196608, kvHeads: 8, headDim: 128, eps: 1e-6})
			share := 1.0
			if b.has("rotary_dim") {
				share = float64(b.size("rotary_dim", 0)) / float64(b.headDim)
			}
			act, rope := b.activation("hidden_act", "silu"), b.partialRope(5e6, share)
			x := mixture{
				router: "gate", names: mlpNames{"w1", "w3", "w2"}, experts: b.size("num_local_experts", b.size("num_experts", 256)),
				top: b.size("num_experts_per_tok", 8), inter: b.inter, normalize: true, act: act,
				routing: Routing{Sigmoid: true}, correction: "e_score_correction_bias",
			}
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{})
				b.qkNorm(blk)
				blk.Attn().Rope, blk.Attn().NormWhole = rope, true
				path := blk.Path + ".block_sparse_moe"
				if b.exists(blk.Path + ".mlp.gate.weight") { // as version 5 of transformers has it
					path = blk.Path + ".mlp"
				}
				blk.MoE = b.moe(x.at(path), b.mlpState(blk))
			})
		},
	}
}
