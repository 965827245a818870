package arch

// ernie45 is ERNIE 4.5 without experts: Llama whose heads turn by neighbours.
func ernie45() family {
	return family{
		name: "ernie4_5", architectures: []string{"Ernie4_5ForCausalLM"}, modelTypes: []string{"ernie4_5"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 1024, inter: 3072, layers: 18, heads: 16, vocab: 103424, positions: 131072, kvHeads: 2, headDim: 128, eps: 1e-5, tied: true})
			bias := b.boolean("use_bias", false)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 5e5)
			rope.Adjacent = true
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				blk.Attn().Rope = rope
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, bias, act, b.mlpState(blk))
			})
		},
	}
}
