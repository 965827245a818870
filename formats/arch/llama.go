package arch

// llama is Llama 2 and 3, TinyLlama, SmolLM2 and what else has their layers.
func llama() family {
	return family{
		name: "llama", architectures: []string{"LlamaForCausalLM"}, modelTypes: []string{"llama"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 11008, layers: 32, heads: 32, vocab: 32000, positions: 2048, eps: 1e-6})
			bias := b.boolean("attention_bias", false)
			mlpBias := b.boolean("mlp_bias", false)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				blk.Attn().Rope = rope
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, mlpBias, act, b.mlpState(blk))
			})
		},
	}
}
