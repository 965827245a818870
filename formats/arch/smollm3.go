package arch

// smolLM3 is SmolLM3: Llama, of which every fourth layer turns no heads.
func smolLM3() family {
	return family{
		name: "smollm3", architectures: []string{"SmolLM3ForCausalLM"}, modelTypes: []string{"smollm3"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 2048, inter: 11008, layers: 36, heads: 16, vocab: 128256, positions: 32768, kvHeads: 4, eps: 1e-6, tied: true})
			bias, mlpBias := b.boolean("attention_bias", false), b.boolean("mlp_bias", false)
			every := b.size("no_rope_layer_interval", 4)
			turns := b.layerNumbers("no_rope_layers", func(layer int) int { return min((layer+1)%every, 1) })
			windows := make([]int, b.layers)
			if b.boolean("use_sliding_window", false) {
				windows = b.windows(b.slidingOrNull(0), func(layer int) bool { return turns[layer] == 0 })
			}
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 2e6)
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				blk.Attn().Window = windows[i]
				if turns[i] != 0 {
					blk.Attn().Rope = rope
				}
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, mlpBias, act, b.mlpState(blk))
			})
		},
	}
}
