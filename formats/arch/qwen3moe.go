package arch

// qwen3MoE is Qwen3 with experts in some layers.
func qwen3MoE() family {
	return family{
		name: "qwen3_moe", architectures: []string{"Qwen3MoeForCausalLM"}, modelTypes: []string{"qwen3_moe"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 2048, inter: 6144, layers: 24, heads: 32, vocab: 151936, positions: 32768, kvHeads: 4, eps: 1e-6})
			bias, window := b.boolean("attention_bias", false), b.qwenWindow()
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			sparse := b.qwenSparse()
			x := mixture{
				router: "gate", names: projNames(), experts: b.size("num_experts", b.size("num_local_experts", 128)), top: b.size("num_experts_per_tok", 8),
				inter: b.size("moe_intermediate_size", 768), normalize: b.boolean("norm_topk_prob", false), act: act,
			}
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				b.qkNorm(blk)
				blk.Attn().Rope, blk.Attn().Window = rope, window
				in := b.mlpState(blk)
				if !sparse(i) {
					blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, in)
					return
				}
				x := x
				x.path = blk.Path + ".mlp"
				blk.MoE = b.moe(x, in)
			})
		},
	}
}

// qwenSparse tells which layers have experts: every decoder_sparse_step-th that
// mlp_only_layers does not list.
func (b *builder) qwenSparse() func(layer int) bool {
	step := b.size("decoder_sparse_step", 1)
	dense := make(map[int]bool)
	for _, i := range b.naturals("mlp_only_layers") {
		dense[i] = true
	}
	return func(layer int) bool { return !dense[layer] && (layer+1)%step == 0 }
}
