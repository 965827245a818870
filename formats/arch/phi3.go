package arch

import "math"

// phi3 is Phi-3, Phi-3.5 and Phi-4: one matrix for queries, keys and values, one for gate and up.
func phi3() family {
	return family{
		name: "phi3", architectures: []string{"Phi3ForCausalLM"}, modelTypes: []string{"phi3"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 3072, inter: 8192, layers: 32, heads: 32, vocab: 32064, bare: true, positions: 4096, eps: 1e-5})
			window := 0
			if b.has("sliding_window") {
				window = b.size("sliding_window", 0)
			}
			if !b.has("original_max_position_embeddings") {
				b.values["original_max_position_embeddings"] = []byte("4096")
			}
			b.partial, b.su = true, true
			act, rope := b.activation("hidden_act", "silu"), b.rope("", 1e4)
			if rope.Type == "longrope" || rope.Type == "dynamic" {
				b.d.Reread = b.size("original_max_position_embeddings", 4096)
			}
			b.blocks(func(_ int, blk *Block) {
				b.fusedAttention(blk)
				blk.Attn().Rope, blk.Attn().Window = rope, window
				blk.MLP = b.fusedMLP(blk, act)
			})
		},
	}
}

// fusedAttention describes an attention with one matrix qkv_proj.
func (b *builder) fusedAttention(blk *Block) {
	p := blk.Path + ".self_attn."
	q, kv := b.heads*b.headDim, b.kvHeads*b.headDim
	in := b.normed(p+"in", &blk.AttnNorm)
	s := b.matrix(p+"qkv_proj", q+2*kv, b.d.Hidden, false, LinearWeight)
	out := &State{
		Name: p + "out", Width: q, Absorb: []string{s.Tensor}, From: q + kv,
		Heads: b.heads, KVHeads: b.kvHeads, Dim: b.headDim,
	}
	blk.Mixer = &Attention{
		Heads: b.heads, KVHeads: b.kvHeads, Dim: b.headDim, Scale: 1 / math.Sqrt(float64(b.headDim)),
		Q: part(s, "q", 0, 0, 1, q, in, SplitRows), K: part(s, "k", 0, q, 1, kv, in, SplitRows), V: part(s, "v", 0, q+kv, 1, kv, in, SplitRows),
		O: b.whole(b.matrix(p+"o_proj", b.d.Hidden, q, false, LinearWeight), out, SplitColumns, ""),
	}
}

// fusedMLP describes an MLP with one matrix gate_up_proj.
func (b *builder) fusedMLP(blk *Block, act Gating) *MLP {
	p := blk.Path + ".mlp."
	return b.joinedMLP(p+"gate_up_proj", p+"down_proj", p+"mid", b.inter, act, b.mlpState(blk))
}

// joinedMLP describes an MLP whose gate and up are one matrix, gate first. between names what down reads.
func (b *builder) joinedMLP(gateUp, down, between string, inter int, act Gating, in *State) *MLP {
	s := b.matrix(gateUp, 2*inter, b.d.Hidden, false, LinearWeight)
	mid := &State{Name: between, Width: inter, Absorb: []string{s.Tensor}, From: inter}
	return &MLP{
		Act:  act,
		Gate: part(s, "gate", 0, 0, 1, inter, in, SplitRows),
		Up:   part(s, "up", 0, inter, 1, inter, in, SplitRows),
		Down: b.whole(b.matrix(down, b.d.Hidden, inter, false, LinearWeight), mid, SplitColumns, ""),
	}
}
