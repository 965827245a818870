package arch

// gptOSS is gpt-oss: stacks of experts with biases, whose gate and up take turns, sinks in the
// attention, and every other layer slides.
func gptOSS() family {
	return family{
		name: "gpt_oss", architectures: []string{"GptOssForCausalLM"}, modelTypes: []string{"gpt_oss"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 2880, inter: 2880, layers: 36, heads: 64, vocab: 201088, bare: true, positions: 131072, kvHeads: 8, headDim: 64, eps: 1e-5})
			bias := b.boolean("attention_bias", true)
			windows := b.windows(b.slidingOrNull(128), func(layer int) bool { return layer%2 == 0 })
			act := Gating{SwiGLUOAI, b.positiveFloat("swiglu_alpha", 1.702), b.positiveFloat("swiglu_limit", 7)}
			if !b.has("rope_parameters") && !b.has("rope_scaling") { // what transformers takes then
				b.values["rope_parameters"] = []byte(`{"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096}`)
			}
			rope := b.rope("", 150000)
			experts := b.size("num_local_experts", b.size("num_experts", 128))
			top := b.size("num_experts_per_tok", b.size("experts_per_token", 4))
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				blk.Attn().Rope, blk.Attn().Window = rope, windows[i]
				blk.Attn().Sinks = blk.Path + ".self_attn.sinks"
				b.d.roles[blk.Attn().Sinks] = SinkVector
				path := blk.Path + ".mlp"
				blk.MoE = b.moe(mixture{
					path: path, router: "router", experts: experts, top: top, inter: b.inter,
					normalize: true, act: act, routerBias: true, bias: true,
					// As published, in MXFP4, a matrix is stored by rows; in 16 bits by columns.
					alwaysStacked: true, interleaved: true, transposed: !b.exists(path + ".experts.gate_up_proj_blocks"),
				}, b.mlpState(blk))
			})
		},
	}
}
