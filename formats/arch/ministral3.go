package arch

// ministral3 is Ministral 3: Mistral whose queries grow with their position.
func ministral3() family {
	return family{
		name: "ministral3", architectures: []string{"Ministral3ForCausalLM"}, modelTypes: []string{"ministral3"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 14336, layers: 34, heads: 32, vocab: 131072, positions: 262144, kvHeads: 8, headDim: 128, eps: 1e-5})
			window := b.slidingOrNull(0)
			if !b.has("rope_parameters") && !b.has("rope_scaling") { // what transformers takes then
				b.values["rope_parameters"] = []byte(`{"type": "yarn", "rope_theta": 1e6, "factor": 16, "original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}`)
			}
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e6)
			queries := b.growing(rope)
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{})
				blk.Attn().Rope, blk.Attn().QueryRope, blk.Attn().Window = rope, queries, window
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
			})
		},
	}
}

// growing is a rotary embedding of queries that grow with their position, nil where they do not.
func (b *builder) growing(r *Rope) *Rope {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		in := b.scaling(key, "")
		if in == nil || !in.has("llama_4_scaling_beta") {
			continue
		}
		q := *r
		q.Growth = in.positiveFloat("llama_4_scaling_beta", 0)
		q.Original = in.size("original_max_position_embeddings", required)
		if in.err != nil {
			b.fail(key, in.err)
		}
		return &q
	}
	return nil
}
