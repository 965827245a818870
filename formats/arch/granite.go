package arch

// granite is Granite 3: Llama with a factor each on embeddings, scores, what blocks add, and logits.
func granite() family {
	return family{
		name: "granite", architectures: []string{"GraniteForCausalLM"}, modelTypes: []string{"granite"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 11008, layers: 32, heads: 32, vocab: 32000, positions: 2048, eps: 1e-6})
			bias, mlpBias := b.boolean("attention_bias", false), b.boolean("mlp_bias", false)
			b.multiply(b.positiveFloat("embedding_multiplier", 1), b.positiveFloat("residual_multiplier", 1), b.positiveFloat("logits_scaling", 1))
			scale := b.positiveFloat("attention_multiplier", 1)
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				blk.Attn().Rope, blk.Attn().Scale = rope, scale
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, mlpBias, act, b.mlpState(blk))
			})
		},
	}
}

// multiply takes in what embeddings and what blocks add are multiplied by, and what logits are divided by.
func (b *builder) multiply(embedding, residual, logits float64) {
	b.d.EmbedScale, b.d.LogitScale = embedding, 1/logits
	if residual == 1 {
		return
	}
	b.d.Residual = residual
	b.d.EmbedScale /= residual
	b.eps /= residual * residual
	b.d.Norm.Eps = b.eps
}
