package arch

// qwen2 is Qwen2 and Qwen2.5: queries, keys and values always have a bias.
func qwen2() family {
	return family{
		name: "qwen2", architectures: []string{"Qwen2ForCausalLM"},
		// The others are the text models of what sees and hears.
		modelTypes: []string{"qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2_vl", "qwen2_5_vl"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 22016, layers: 32, heads: 32, vocab: 151936, positions: 32768, kvHeads: 32, eps: 1e-6})
			windows := b.qwenWindows()
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{qkv: true})
				blk.Attn().Rope, blk.Attn().Window = rope, windows[i]
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
			})
		},
	}
}

// qwenWindows returns the windows of Qwen2's and Qwen3's layers: those from max_window_layers on
// slide, where use_sliding_window is set.
func (b *builder) qwenWindows() []int {
	from := b.natural("max_window_layers", 28)
	return b.windows(b.qwenWindow(), func(layer int) bool { return layer >= from })
}

func (b *builder) qwenWindow() int {
	if !b.boolean("use_sliding_window", false) {
		return 0
	}
	return b.slidingOrNull(4096)
}
