package arch

// olmo2 is OLMo 2: norms come after attention and MLP, not before, and queries and keys are normalized over all heads.
func olmo2() family {
	return family{
		name: "olmo2", architectures: []string{"Olmo2ForCausalLM"}, modelTypes: []string{"olmo2"},
		describe: func(b *builder) {
			b.olmo(1e4, func() []int { return make([]int, b.layers) })
		},
	}
}

// olmo describes OLMo 2 and 3. windows reads the windows of layers.
func (b *builder) olmo(theta float64, windows func() []int) {
	b.read(sizes{hidden: 4096, inter: 11008, layers: 32, heads: 32, vocab: 50304, positions: 2048, eps: 1e-5})
	bias := b.boolean("attention_bias", false)
	act, of := b.activation("hidden_act", "silu"), windows()
	global := b.rope(fullAttention, theta)
	local := global
	if in := b.scaling("rope_parameters", slidingAttention); in != nil && in.has("rope_theta") {
		local = b.ropeOf("rope_parameters", in, theta)
	} else if global.Type != "default" { // layers that slide are not stretched
		local = b.plainRope(global.Theta)
	}
	b.blocks(func(i int, blk *Block) {
		attnOut, mlpOut := blk.MLPNorm, b.norm(blk.Path+".post_feedforward_layernorm")
		delete(b.d.roles, blk.AttnNorm.Tensor)
		blk.AttnNorm, blk.MLPNorm, blk.AttnOut, blk.MLPOut = Norm{}, Norm{}, &attnOut, &mlpOut
		b.attention(blk, biases{bias, bias})
		b.qkNorm(blk)
		blk.Attn().NormWhole, blk.Attn().Window, blk.Attn().Rope = true, of[i], global
		if of[i] > 0 {
			blk.Attn().Rope = local
		}
		blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
	})
}
