package arch

import (
	"errors"
	"fmt"
)

// Index chooses which tokens a latent attention sees where there are more than Top (DeepSeek-AI, DeepSeek-V3.2,
// https://arxiv.org/abs/2512.02556, section 2.1): those before a token, and itself, of the largest
//
//	Σ_h w_h · max(0, q_h·k)    q_h = rope(Q · QNorm(QDown·n)) of each head    k = rope(KNorm(K·n))    w = Weights·n
//
// where KNorm is a layer norm and rope turns the first RopeDim elements. Its layers are never quantized: runtimes keep them as
// they are in checkpoints of 4 bits (vLLM's of GLM-5 fuses them as unquantized), they are a five-hundredth of a model, and what they err
// by is not a sum that errors cancel in, but a token that is not seen.
type Index struct {
	Heads, Dim, Top int
	Q, K, Weights   *Linear
	NormWeight      string // tensors [Dim]
	NormBias        string
	NormEps         float64
	Rope            *Rope // the same angles as the attention's, pairs as this has them
}

// indexSizes are what a config class has where a config leaves them out.
type indexSizes struct{ heads, dim, top int }

// indexed gives blocks their indexers.
type indexed struct {
	sizes    indexSizes
	adjacent bool   // pairs that turn are neighbours
	layers   []bool // that choose by themselves; nil: all

	index *Index  // what all have, once it is read
	last  *Latent // that has chosen
}

// add describes the indexer of block i, whose attention is there.
func (x *indexed) add(b *builder, i int, blk *Block) {
	a := blk.Mixer.(*Latent)
	if x.layers != nil && !x.layers[i] {
		a.Chosen = x.last
		return
	}
	if x.index == nil {
		index := b.indexer(x.sizes, a, x.adjacent)
		x.index = &index
	}
	if b.err == nil {
		b.index(blk, *x.index)
		x.last = a
	}
}

// indexer reads sizes and the way to turn.
func (b *builder) indexer(s indexSizes, of *Latent, adjacent bool) Index {
	x := Index{Heads: b.size("index_n_heads", s.heads), Dim: b.size("index_head_dim", s.dim), Top: b.size("index_topk", s.top), NormEps: 1e-6}
	switch {
	case x.Dim < of.RopeDim || x.Dim > maxHeadDim || int64(x.Heads)*int64(x.Dim) > maxSize/4:
		b.fail("index_head_dim", fmt.Errorf("%d heads of %d, of which %d turn", x.Heads, x.Dim, of.RopeDim))
	case x.Top > maxSize/4:
		b.fail("index_topk", fmt.Errorf("%d is too many", x.Top))
	case of.QDown == nil:
		b.fail("q_lora_rank", errors.New("missing: the indexer reads what queries are made of"))
	}
	if b.err != nil {
		return x
	}
	turn := *of.Rope
	turn.Adjacent = adjacent
	x.Rope = &turn
	return x
}

// index describes the indexer of a block's attention.
func (b *builder) index(blk *Block, x Index) {
	a, p := blk.Mixer.(*Latent), blk.Path+".self_attn.indexer."
	gate := func(name string, n, k int, reads *State) *Linear {
		return b.whole(b.matrix(p+name, n, k, false, RouterWeight), reads, Replicated, "")
	}
	x.Q = gate("wq_b", x.Heads*x.Dim, a.QUp.K, a.QUp.Reads)
	x.K, x.Weights = gate("wk", x.Dim, b.d.Hidden, a.Down.Reads), gate("weights_proj", x.Heads, b.d.Hidden, a.Down.Reads)
	x.NormWeight, x.NormBias = p+"k_norm.weight", p+"k_norm.bias"
	b.d.roles[x.NormWeight], b.d.roles[x.NormBias] = NormWeight, BiasVector
	a.Index = &x
}

// indexing says which layers choose by themselves; others see what the last one that did has chosen.
func (b *builder) indexing() []bool {
	all := make([]bool, b.layers)
	const key = "indexer_types"
	types := b.texts(key)
	pattern := b.text("index_topk_pattern", "")
	every, offset := max(b.natural("index_topk_freq", 1), 1), b.natural("index_skip_topk_offset", 2)
	if types == nil && pattern != "" {
		for _, c := range pattern {
			types = append(types, map[rune]string{'F': "full", 'S': "shared"}[c])
		}
	}
	if types != nil && len(types) != b.layers && b.layers > 0 {
		b.fail(key, fmt.Errorf("%d layers: want %d", len(types), b.layers))
		return all
	}
	for i := range all {
		all[i] = max(i-offset+1, 0)%every == 0
		if types != nil {
			all[i] = types[i] == "full"
			if !all[i] && types[i] != "shared" {
				b.fail(key, fmt.Errorf("%.40q is not supported: want full or shared", types[i]))
			}
		}
	}
	if len(all) > 0 && !all[0] {
		b.fail(key, errors.New("the first layer has none before it to choose"))
	}
	return all
}

// deepseekV32 is DeepSeek-V3.2: DeepSeek-V3 with an indexer, whose pairs are halves of what turns.
func deepseekV32() family {
	return family{
		name: "deepseek_v32", architectures: []string{"DeepseekV32ForCausalLM"}, modelTypes: []string{"deepseek_v32"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 7168, inter: 18432, layers: 61, heads: 128, vocab: 129280, positions: 163840, headDim: 64, eps: 1e-6})
			b.values["rope_interleave"] = nil // it has no other way
			x := &indexed{sizes: indexSizes{64, 128, 2048}}
			b.latentExperts(latentSizes{1536, 512, 128, 64, 128}, mixture{
				experts: 256, top: 8, inter: 2048, normalize: true, routing: b.groupedBy(2.5, 8, 4), correction: latentCorrection,
			}, 3, 1, x)
		},
	}
}

// glmMoeDSA is GLM-5: the same with neighbours for pairs, and layers that share what others have chosen.
func glmMoeDSA() family {
	return family{
		name: "glm_moe_dsa", architectures: []string{"GlmMoeDsaForCausalLM"}, modelTypes: []string{"glm_moe_dsa"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 6144, inter: 12288, layers: 78, heads: 64, vocab: 154880, positions: 202752, headDim: 64, eps: 1e-5})
			b.values["rope_interleave"] = nil
			x := &indexed{sizes: indexSizes{32, 128, 2048}, adjacent: true, layers: b.indexing()}
			b.latentExperts(latentSizes{2048, 512, 192, 64, 256}, mixture{
				experts: 256, top: 8, inter: 2048, normalize: true, routing: b.groupedBy(2.5, 1, 1), correction: latentCorrection,
			}, 3, 1, x)
		},
	}
}
