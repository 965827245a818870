package arch

import (
	"fmt"
	"slices"
)

// qwen3Next is Qwen3-Next: three gated delta rules to one attention, whose heads have gates and turn in part; norms of 1+w; experts
// with a shared one.
func qwen3Next() family {
	return family{
		name: "qwen3_next", architectures: []string{"Qwen3NextForCausalLM"}, modelTypes: []string{"qwen3_next"},
		describe: func(b *builder) {
			b.qwenDelta(sizes{hidden: 2048, inter: 5632, layers: 48, heads: 16, vocab: 151936, positions: 32768, kvHeads: 2, headDim: 256, eps: 1e-6}, true, func(act Gating) func(i int, blk *Block) {
				return b.qwenMixtures(act, b.qwenSparse(), mixture{experts: 512, top: 10, normalize: b.boolean("norm_topk_prob", true)})
			})
		},
	}
}

// qwen35 is the text model of Qwen3.5 without experts.
func qwen35() family {
	return family{
		name: "qwen3_5", architectures: []string{"Qwen3_5ForCausalLM"}, modelTypes: []string{"qwen3_5_text", "qwen3_5"},
		describe: func(b *builder) {
			b.qwenDelta(sizes{hidden: 4096, inter: 12288, layers: 32, heads: 16, vocab: 248320, positions: 32768, kvHeads: 4, headDim: 256, eps: 1e-6}, false, func(act Gating) func(i int, blk *Block) {
				return func(_ int, blk *Block) {
					blk.MLP = b.mlp(blk.Path+".mlp", projNames(), b.inter, false, act, b.mlpState(blk))
				}
			})
		},
	}
}

// qwen35MoE is the text model of Qwen3.5 with experts in all layers.
func qwen35MoE() family {
	return family{
		name: "qwen3_5_moe", architectures: []string{"Qwen3_5MoeForCausalLM"}, modelTypes: []string{"qwen3_5_moe_text", "qwen3_5_moe"},
		describe: func(b *builder) {
			if !b.has("intermediate_size") { // which no layer has
				b.values["intermediate_size"] = []byte("1")
			}
			b.qwenDelta(sizes{hidden: 2048, layers: 40, heads: 16, vocab: 248320, positions: 32768, kvHeads: 2, headDim: 256, eps: 1e-6}, false, func(act Gating) func(i int, blk *Block) {
				return b.qwenMixtures(act, func(int) bool { return true }, mixture{experts: 256, top: 8, normalize: true})
			})
		},
	}
}

// qwenDelta describes what they share. channels reads how channels are mixed, after the activation.
func (b *builder) qwenDelta(s sizes, grouped bool, channels func(act Gating) func(i int, blk *Block)) {
	b.offset = 1
	b.read(s)
	bias, d := b.boolean("attention_bias", false), b.deltaNet()
	every := b.size("full_attention_interval", 4)
	types := b.texts("layer_types")
	if types != nil && len(types) != b.layers && b.layers > 0 {
		b.fail("layer_types", fmt.Errorf("%d layers: want %d", len(types), b.layers))
		types = nil
	}
	act, rope := b.activation("hidden_act", "silu"), b.partialRope(1e4, 0.25)
	describe := channels(act)
	b.blocks(func(i int, blk *Block) {
		kind := linearAttention
		if (i+1)%every == 0 {
			kind = fullAttention
		}
		if types != nil {
			kind = types[i]
		}
		if !slices.Contains([]string{fullAttention, linearAttention}, kind) {
			b.fail("layer_types", fmt.Errorf("%.40q is not supported: want %s or %s", kind, fullAttention, linearAttention))
		}
		if kind == linearAttention {
			b.delta(blk, d, grouped)
		} else {
			b.gatedAttention(blk, biases{bias, bias})
			b.qkNorm(blk)
			blk.Attn().Rope = rope
		}
		describe(i, blk)
	})
}

// linearAttention is what layer_types calls gated delta rules.
const linearAttention = "linear_attention"

// qwenMixtures reads experts with a shared one behind a gate, in layers that are sparse. x has the defaults.
func (b *builder) qwenMixtures(act Gating, sparse func(layer int) bool, x mixture) func(i int, blk *Block) {
	x.router, x.names, x.act = "gate", projNames(), act
	x.experts, x.top = b.size("num_experts", x.experts), b.size("num_experts_per_tok", x.top)
	x.inter = b.size("moe_intermediate_size", 512)
	shared := b.size("shared_expert_intermediate_size", 512)
	return func(i int, blk *Block) {
		in, path := b.mlpState(blk), blk.Path+".mlp"
		if !sparse(i) {
			blk.MLP = b.mlp(path, projNames(), b.inter, false, act, in)
			return
		}
		blk.MoE = b.moe(x.at(path), in)
		blk.MoE.Shared = b.mlp(path+".shared_expert", projNames(), shared, false, act, in)
		blk.MoE.SharedGate = b.whole(b.matrix(path+".shared_expert_gate", 1, b.d.Hidden, false, RouterWeight), in, Replicated, "")
	}
}
