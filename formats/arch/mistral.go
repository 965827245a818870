package arch

// mistral is Mistral: Llama with a sliding window, which is 4096 unless it is null.
func mistral() family {
	return family{
		name: "mistral", architectures: []string{"MistralForCausalLM"}, modelTypes: []string{"mistral"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 14336, layers: 32, heads: 32, vocab: 32000, positions: 131072, kvHeads: 8, eps: 1e-6})
			window := b.slidingOrNull(4096)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{})
				blk.Attn().Rope, blk.Attn().Window = rope, window
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
			})
		},
	}
}

// slidingOrNull reads a sliding_window that null turns off.
func (b *builder) slidingOrNull(missing int) int {
	if b.isNull("sliding_window") {
		return 0
	}
	return b.natural("sliding_window", missing) // 0 is what version 5 of transformers may write for none
}
