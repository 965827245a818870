package arch

import (
	"errors"
	"fmt"
)

// deepseekV3 is DeepSeek-V3 and R1, and Kimi K2, whose layers are the same: latent attention, and experts by sigmoids with a
// correction, of the best groups.
func deepseekV3() family {
	return family{
		name: "deepseek_v3", architectures: []string{"DeepseekV3ForCausalLM"}, modelTypes: []string{"deepseek_v3", "kimi_k2"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 7168, inter: 18432, layers: 61, heads: 128, vocab: 129280, positions: 4096, headDim: 64, eps: 1e-6})
			b.latentExperts(latentSizes{1536, 512, 128, 64, 128}, mixture{
				experts: 256, top: 8, inter: 2048, normalize: true, routing: b.groupedBy(2.5, 8, 4), correction: latentCorrection,
			}, 3, 1, nil)
		},
	}
}

// glm4MoELite is GLM-4.7-Flash.
func glm4MoELite() family {
	return family{
		name: "glm4_moe_lite", architectures: []string{"Glm4MoeLiteForCausalLM"}, modelTypes: []string{"glm4_moe_lite"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 2048, inter: 10240, layers: 47, heads: 20, vocab: 154880, positions: 202752, headDim: 64, eps: 1e-5})
			b.latentExperts(latentSizes{768, 512, 192, 64, 256}, mixture{
				experts: 64, top: 4, inter: 1536, normalize: true, routing: b.groupedBy(1.8, 1, 1), correction: latentCorrection,
			}, 1, 1, nil)
		},
	}
}

// deepseekV2 is DeepSeek-V2-Lite, and the coders of its size: experts by the softmax, whose parts keep their sum. The large ones choose groups by
// their best expert alone, which is not known here.
func deepseekV2() family {
	return family{
		name: "deepseek_v2", architectures: []string{"DeepseekV2ForCausalLM"}, modelTypes: []string{"deepseek_v2"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 11008, layers: 32, heads: 32, vocab: 102400, positions: 2048, headDim: 64, eps: 1e-6})
			if method := b.text("topk_method", "greedy"); method != "greedy" {
				b.fail("topk_method", fmt.Errorf("%.40q is not supported: want greedy", method))
			}
			if b.boolean("norm_topk_prob", false) {
				b.fail("norm_topk_prob", errors.New("true is not supported: transformers has weights as the softmax has them"))
			}
			b.require("num_experts_per_tok")
			b.values["rope_interleave"] = nil // it has no other way
			routing := Routing{Scale: b.positiveFloat("routed_scaling_factor", 1)}
			b.latentExperts(latentSizes{1536, 512, 128, 64, 128}, mixture{experts: 64, top: 1, inter: 1407, routing: routing}, 0, 2, nil)
		},
	}
}

// latentCorrection is where experts' correction is below a mixture.
const latentCorrection = "gate.e_score_correction_bias"

// latentExperts describes blocks of latent attention and, behind the first dense ones, experts. x has what the config's class has where a
// config leaves it out. index is nil where every token is seen.
func (b *builder) latentExperts(s latentSizes, x mixture, dense, shared int, index *indexed) {
	bias, act := b.boolean("attention_bias", false), b.activation("hidden_act", "silu")
	a := b.latent(s)
	dense = b.natural("first_k_dense_replace", dense)
	x.experts, x.top = b.size("n_routed_experts", x.experts), b.size("num_experts_per_tok", x.top)
	x.inter, x.normalize = b.size("moe_intermediate_size", x.inter), b.boolean("norm_topk_prob", x.normalize)
	x.router, x.names, x.act = "gate", projNames(), act
	shared = b.natural("n_shared_experts", shared)
	if int64(shared)*int64(x.inter) > maxSize {
		b.fail("n_shared_experts", fmt.Errorf("%d of %d are too wide", shared, x.inter))
		return
	}
	kinds := b.texts("mlp_layer_types")
	if kinds != nil && len(kinds) != b.layers && b.layers > 0 {
		b.fail("mlp_layer_types", fmt.Errorf("%d layers: want %d", len(kinds), b.layers))
		kinds = nil
	}
	b.blocks(func(i int, blk *Block) {
		b.latentAttention(blk, a, bias)
		if index != nil {
			index.add(b, i, blk)
		}
		in, path := b.mlpState(blk), blk.Path+".mlp"
		if kinds == nil && i < dense || kinds != nil && kinds[i] == "dense" {
			blk.MLP = b.mlp(path, projNames(), b.inter, false, act, in)
			return
		}
		blk.MoE = b.moe(x.at(path), in)
		if shared > 0 {
			blk.MoE.Shared = b.mlp(path+".shared_experts", projNames(), x.inter*shared, false, act, in)
		}
	})
}
