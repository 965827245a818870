package arch

import "fmt"

// graniteHybrid is Granite 4: state spaces with an attention between some, an MLP in all layers and experts beside it in most models, and
// Granite 3's factors.
func graniteHybrid() family {
	return family{
		name: "granitemoehybrid", architectures: []string{"GraniteMoeHybridForCausalLM"}, modelTypes: []string{"granitemoehybrid"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 4096, inter: 11008, layers: 32, heads: 32, vocab: 32000, positions: 2048, eps: 1e-6})
			bias, eps := b.boolean("attention_bias", false), b.eps
			b.multiply(b.positiveFloat("embedding_multiplier", 1), b.positiveFloat("residual_multiplier", 1), b.positiveFloat("logits_scaling", 1))
			scale, act := b.positiveFloat("attention_multiplier", 1), b.activation("hidden_act", "silu")
			if act.Act != SiLU {
				b.fail("hidden_act", fmt.Errorf("want silu, which state spaces have"))
			}
			var rope *Rope
			if b.text("position_embedding_type", "") == "rope" {
				rope = b.rope("", 1e4)
			}
			m, convBias, projBias := b.mamba2(), b.boolean("mamba_conv_bias", true), b.boolean("mamba_proj_bias", false)
			shared := b.size("shared_intermediate_size", 1024)
			x := mixture{
				router: "router.layer", experts: b.natural("num_local_experts", 8), top: b.size("num_experts_per_tok", 2),
				inter: b.inter, normalize: true, act: act, alwaysStacked: true, stacks: [2]string{"input_linear.weight", "output_linear.weight"},
			}
			attends := b.attending("linear_attention", "mamba")
			b.blocks(func(i int, blk *Block) {
				if attends[i] {
					b.attention(blk, biases{bias, bias})
					blk.Attn().Rope, blk.Attn().Scale = rope, scale
				} else {
					b.stateSpace(blk, "mamba", m, convBias, projBias, eps)
				}
				in, p := b.mlpState(blk), blk.Path+".shared_mlp."
				mlp := b.joinedMLP(p+"input_linear", p+"output_linear", p+"mid", shared, act, in)
				if x.experts == 0 {
					blk.MLP = mlp
					return
				}
				x := x.at(blk.Path + ".block_sparse_moe")
				if b.exists(x.path + ".experts.gate_up_proj") { // as version 5 of transformers has it
					x.router, x.stacks = "router", [2]string{}
				}
				blk.MoE = b.moe(x, in)
				blk.MoE.Shared = mlp
			})
		},
	}
}
