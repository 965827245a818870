package arch

// qwen3 is Qwen3: queries and keys are normalized.
func qwen3() family {
	return family{
		name: "qwen3", architectures: []string{"Qwen3ForCausalLM"}, modelTypes: []string{"qwen3", "qwen3_vl_text"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 22016, layers: 32, heads: 32, vocab: 151936, positions: 32768, kvHeads: 32, headDim: 128, eps: 1e-6})
			bias, windows := b.boolean("attention_bias", false), b.qwenWindows()
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				b.qkNorm(blk)
				blk.Attn().Rope, blk.Attn().Window = rope, windows[i]
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
			})
		},
	}
}
