package arch

import "math"

// gemma2 is Gemma 2: four norms a block, of 1+w; scores and logits capped; every other layer slides.
func gemma2() family {
	return family{
		name: "gemma2", architectures: []string{"Gemma2ForCausalLM"}, modelTypes: []string{"gemma2"},
		describe: func(b *builder) {
			b.gemma(sizes{hidden: 2304, inter: 9216, layers: 26, heads: 8, vocab: 256000, bare: true, positions: 8192, kvHeads: 4, headDim: 256, eps: 1e-6, tied: true})
			scoreCap := b.capacity("attn_logit_softcapping", 50)
			b.d.LogitCap = b.capacity("final_logit_softcapping", 30)
			windows := b.windows(b.slidingOrNull(4096), func(layer int) bool { return layer%2 == 0 })
			rope := b.rope("", 1e4)
			b.gemmaBlocks(func(i int, blk *Block) {
				blk.Attn().Rope, blk.Attn().Window, blk.Attn().ScoreCap = rope, windows[i], scoreCap
			})
		},
	}
}

// capacity reads a cap that null turns off.
func (b *builder) capacity(key string, missing float64) float64 {
	if b.isNull(key) {
		return 0
	}
	return b.positiveFloat(key, missing)
}

// gemma reads what Gemma 2 and 3 share.
func (b *builder) gemma(s sizes) {
	b.offset = 1
	b.read(s)
	b.d.EmbedScale = math.Sqrt(float64(b.d.Hidden))
}

// gemmaBlocks describes the blocks of Gemma 2 and 3.
func (b *builder) gemmaBlocks(more func(i int, blk *Block)) {
	bias := b.boolean("attention_bias", false)
	act := b.activation("hidden_activation", "gelu_pytorch_tanh")
	scale := 1 / math.Sqrt(b.positiveFloat("query_pre_attn_scalar", 256))
	b.blocks(func(i int, blk *Block) {
		// What Llama calls post_attention_layernorm stands before the MLP; here it is what it says.
		attnOut, mlpOut := blk.MLPNorm, b.norm(blk.Path+".post_feedforward_layernorm")
		blk.AttnOut, blk.MLPOut = &attnOut, &mlpOut
		blk.MLPNorm = b.norm(blk.Path + ".pre_feedforward_layernorm")
		b.attention(blk, biases{bias, bias})
		blk.Attn().Scale = scale
		blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
		more(i, blk)
	})
}
