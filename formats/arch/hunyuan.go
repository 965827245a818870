package arch

import "math"

// hunyuan is Hunyuan without experts: Llama whose queries and keys are normalized after they are turned.
func hunyuan() family {
	return family{
		name: "hunyuan_v1_dense", architectures: []string{"HunYuanDenseV1ForCausalLM"}, modelTypes: []string{"hunyuan_v1_dense"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 11008, layers: 32, heads: 32, vocab: 290943, positions: 2048, eps: 1e-5})
			bias := b.boolean("attention_bias", false)
			act, rope := b.activation("hidden_act", "silu"), b.steady(b.rope("", 1e4))
			b.blocks(func(_ int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				q, k := b.norm(blk.Path+".self_attn.query_layernorm"), b.norm(blk.Path+".self_attn.key_layernorm")
				at := blk.Attn()
				at.QNorm, at.KNorm, at.NormLast, at.Rope = &q, &k, true, rope
				blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
			})
		},
	}
}

// steady turns a rotary embedding that is called dynamic and has an alpha into what it is: of one base, whatever the length.
func (b *builder) steady(r *Rope) *Rope {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		in := b.scaling(key, "")
		if r.Type != "dynamic" || in == nil || !in.has("alpha") {
			continue
		}
		alpha := in.positiveFloat("alpha", 1)
		r = &Rope{Type: "default", Dim: r.Dim, Theta: r.Theta * math.Pow(alpha, float64(r.Dim)/float64(r.Dim-2)), Factor: 1, Amplitude: 1}
		if in.err != nil {
			b.fail(key, in.err)
		}
		b.checkFinite(key, r)
	}
	return r
}
