package arch

import (
	"errors"
	"fmt"
	"slices"
)

// llama4 is the text model of Llama 4: layers that turn heads by neighbours, norm them after that and see a part of the text,
// to one that turns none, sees all and has queries that grow with their position; experts, whose inputs a sigmoid multiplies, beside
// a shared one.
func llama4() family {
	return family{
		name: "llama4", architectures: []string{"Llama4ForCausalLM"}, modelTypes: []string{"llama4_text", "llama4"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 5120, inter: 8192, layers: 48, heads: 40, vocab: 202048, positions: 131072, kvHeads: 8, headDim: 128, eps: 1e-5})
			bias, normed := b.boolean("attention_bias", false), b.boolean("use_qk_norm", true)
			every := b.size("no_rope_layer_interval", 4)
			turns := b.layerNumbers("no_rope_layers", func(layer int) int { return min((layer+1)%every, 1) })
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 5e5)
			rope.Adjacent = true
			chunks, sparse, still := b.chunks(turns), b.sparse(), b.still()
			wide := b.size("intermediate_size_mlp", 16384)
			x := mixture{
				router: "router", experts: b.size("num_local_experts", 16), top: b.size("num_experts_per_tok", 1), inter: b.inter, act: act,
				alwaysStacked: true, routing: Routing{Sigmoid: true, OnInput: true},
			}
			if b.err != nil {
				return
			}
			b.blocks(func(i int, blk *Block) {
				b.attention(blk, biases{bias, bias})
				a := blk.Attn()
				a.Chunk = chunks[i]
				if turns[i] != 0 {
					a.Rope = rope
				} else {
					a.QueryRope = still
				}
				if normed && turns[i] != 0 {
					q, k := Norm{Eps: b.eps}, Norm{Eps: b.eps}
					a.QNorm, a.KNorm, a.NormLast = &q, &k, true
				}
				path, in := blk.Path+".feed_forward", b.mlpState(blk)
				if !sparse[i] {
					blk.MLP = b.mlp(path, projNames(), wide, false, act, in)
					return
				}
				x := x.at(path)
				x.transposed = !b.exists(path + ".experts.gate_up_proj_blocks") // by rows in GGUF files
				blk.MoE = b.moe(x, in)
				blk.MoE.Shared = b.mlp(path+".shared_expert", projNames(), b.inter, false, act, in)
			})
		},
	}
}

// chunks reads how many tokens the parts of a text have that layers see, 0 for those that see all.
func (b *builder) chunks(turns []int) []int {
	const key = "attention_chunk_size"
	size := 0
	if !b.isNull(key) {
		size = b.size(key, 8192)
	}
	types, all := b.texts("layer_types"), make([]int, b.layers)
	if types != nil && len(types) != b.layers {
		b.fail("layer_types", fmt.Errorf("%d layers: want %d", len(types), b.layers))
		return all
	}
	for i := range all {
		chunked := turns[i] != 0
		if types != nil {
			if chunked = types[i] == "chunked_attention"; !chunked && types[i] != fullAttention {
				b.fail("layer_types", fmt.Errorf("%.40q is not supported: want %s or chunked_attention", types[i], fullAttention))
			}
			if chunked && size == 0 {
				b.fail(key, errors.New("missing"))
			}
		}
		if chunked {
			all[i] = size
		}
	}
	return all
}

// sparse reads which layers have experts.
func (b *builder) sparse() []bool {
	all, step := make([]bool, b.layers), b.size("interleave_moe_layer_step", 1)
	layers := b.naturals("moe_layers")
	for i := range all {
		all[i] = (i+1)%step == 0
		if b.has("moe_layers") {
			all[i] = slices.Contains(layers, i)
		}
	}
	return all
}

// still is a rotary embedding that turns nothing, and has queries grow; nil where they do not.
func (b *builder) still() *Rope {
	if !b.boolean("attn_temperature_tuning", true) {
		return nil
	}
	return &Rope{
		Type: "proportional", Dim: b.rotated(1), Theta: 1e4, Factor: 1, Amplitude: 1,
		Growth: b.positiveFloat("attn_scale", 0.1), Original: b.size("floor_scale", 8192), Next: true,
	}
}
