package arch

// seedOSS is Seed-OSS: Llama with a bias on queries, keys and values.
func seedOSS() family {
	return family{
		name: "seed_oss", architectures: []string{"SeedOssForCausalLM"}, modelTypes: []string{"seed_oss"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 27648, layers: 64, heads: 80, vocab: 155136, positions: 524288, kvHeads: 8, headDim: 128, eps: 1e-6})
			bias := biases{qkv: b.boolean("attention_bias", true), o: b.boolean("attention_out_bias", false)}
			mlpBias := b.boolean("mlp_bias", false)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, bias)
				blk.Attn().Rope = rope
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, mlpBias, act, b.mlpState(blk))
			})
		},
	}
}
