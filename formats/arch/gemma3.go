package arch

import "errors"

// gemma3 is the text model of Gemma 3: five layers that slide, with rotary angles of
// their own, to one that does not; queries and keys are normalized.
func gemma3() family {
	return family{
		name: "gemma3", architectures: []string{"Gemma3ForCausalLM"}, modelTypes: []string{"gemma3_text", "gemma3"},
		describe: func(b *builder) {
			b.gemma(sizes{hidden: 2304, inter: 9216, layers: 26, heads: 8, vocab: 262208, bare: true, positions: 131072, kvHeads: 4, headDim: 256, eps: 1e-6, tied: true})
			if b.boolean("use_bidirectional_attention", false) {
				b.fail("use_bidirectional_attention", errors.New("attention that looks ahead is not supported"))
			}
			b.d.LogitCap = b.capacity("final_logit_softcapping", 0)
			pattern := b.size("sliding_window_pattern", b.size("_sliding_window_pattern", 6))
			windows := b.windows(b.slidingOrNull(4096), func(layer int) bool { return (layer+1)%pattern != 0 })
			global := b.rope(fullAttention, 1e6)
			local := b.localRope()
			b.gemmaBlocks(func(i int, blk *Block) {
				b.qkNorm(blk)
				blk.Attn().Rope, blk.Attn().Window = global, windows[i]
				if windows[i] > 0 {
					blk.Attn().Rope = local
				}
			})
		},
	}
}

// localRope is the rotary embedding of sliding layers: never stretched in version 4's spelling,
// as its own object says in version 5's.
func (b *builder) localRope() *Rope {
	if in := b.scaling("rope_parameters", slidingAttention); in != nil && in.has("rope_theta") {
		return b.ropeOf("rope_parameters", in, 1e4)
	}
	return b.plainRope(b.positiveFloat("rope_local_base_freq", 1e4))
}
