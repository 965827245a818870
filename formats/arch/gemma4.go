package arch

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// gemma4 is the text model of Gemma 4: norms around both halves of a block; sliding layers, and others with wider heads that turn in
// part; scores without a scale, since queries, keys and values are all normalized. Small models tell every block of the token,
// and have their last layers attend to keys and values of layers before; large ones have keys for values in full layers, and some
// have experts beside the MLP.
func gemma4() family {
	return family{
		name: "gemma4", architectures: []string{"Gemma4ForCausalLM"}, modelTypes: []string{"gemma4_text", "gemma4"},
		describe: func(b *builder) {
			b.read(sizes{hidden: 2304, inter: 9216, layers: 30, heads: 8, vocab: 262144, bare: true, positions: 131072, kvHeads: 4, headDim: 256, eps: 1e-6, tied: true})
			b.d.EmbedScale = math.Sqrt(float64(b.d.Hidden))
			if b.text("use_bidirectional_attention", "") == "all" {
				b.fail("use_bidirectional_attention", errors.New("attention that looks ahead is not supported"))
			}
			b.d.LogitCap = b.capacity("final_logit_softcapping", 0)
			g := gemma4Layers{builder: b, equal: b.boolean("attention_k_eq_v", false), bias: b.boolean("attention_bias", false)}
			g.windows = b.windows(b.size("sliding_window", 512), func(layer int) bool { return (layer+1)%6 != 0 })
			if n := len(g.windows); n > 0 {
				g.windows[n-1] = 0 // as transformers has it
			}
			g.heads()
			g.ropes()
			g.shared()
			act := b.activation("hidden_activation", "gelu_pytorch_tanh")
			b.tokenInputs()
			mix := g.mixture(act)
			if b.err != nil {
				return
			}
			b.blocks(func(i int, blk *Block) { g.block(i, blk, act, mix) })
		},
	}
}

// gemma4Layers are what the layers of one model differ in.
type gemma4Layers struct {
	*builder
	equal, bias bool
	windows     []int
	dims, kvs   []int // of the heads of each layer
	sliding     *Rope
	full        *Rope
	first       int // layer that attends to keys and values of one before
	wide        int // that the MLP of those is wider by
}

// heads reads the sizes of heads, which full layers have otherwise: as transformers 5.24 writes them, or as checkpoints were published.
func (g *gemma4Layers) heads() {
	wide, few := g.size("global_head_dim", 512), g.kvHeads
	if g.equal && g.has("num_global_key_value_heads") {
		few = g.size("num_global_key_value_heads", few)
	}
	var each *fields
	if of := g.object("per_layer_config"); of != nil && g.err == nil {
		var err error
		if each, err = readFields(of); err != nil {
			g.fail("per_layer_config", err)
		}
	}
	for i, window := range g.windows {
		dim, kv := g.headDim, g.kvHeads
		switch {
		case each != nil:
			if of := each.object(strconv.Itoa(i)); of != nil && each.err == nil {
				in, err := readFields(of)
				if err != nil {
					g.fail("per_layer_config", err)
					break
				}
				for key := range in.values {
					if !slices.Contains([]string{"head_dim", "num_key_value_heads"}, key) {
						in.fail(key, errors.New("of a single layer is not supported"))
					}
				}
				dim, kv = in.size("head_dim", dim), in.size("num_key_value_heads", kv)
				if in.err != nil {
					g.fail("per_layer_config", in.err)
				}
			}
			if each.err != nil {
				g.fail("per_layer_config", each.err)
			}
		case window == 0:
			dim, kv = wide, few
		}
		if n := g.builder.heads; n%kv != 0 || dim%2 != 0 || dim > maxHeadDim || int64(n)*int64(dim) > maxSize {
			g.fail("num_attention_heads", fmt.Errorf("layer %d: %d heads of %d, and %d keys", i, n, dim, kv))
			dim, kv = 2, n
		}
		g.dims, g.kvs = append(g.dims, dim), append(g.kvs, kv)
	}
}

// ropes reads those of both kinds of layers.
func (g *gemma4Layers) ropes() {
	const key = "rope_parameters"
	if !g.has(key) {
		g.values[key] = []byte(`{"` + slidingAttention + `": {"rope_type": "default", "rope_theta": 1e4}, "` +
			fullAttention + `": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}}`)
	}
	of := func(kind string, slides bool, theta float64) (r *Rope) {
		for i, window := range g.windows {
			if window > 0 != slides {
				continue
			}
			if r == nil {
				dim := g.headDim
				g.headDim = g.dims[i]
				r = g.rope(kind, theta)
				g.headDim = dim
			}
			if g.err == nil && r.Dim != g.dims[i] {
				g.fail("per_layer_config", fmt.Errorf("layer %d: heads of %d where others of its kind have %d", i, g.dims[i], r.Dim))
			}
		}
		return r
	}
	g.sliding, g.full = of(slidingAttention, true, 1e4), of(fullAttention, false, 1e6)
}

// shared reads which layers have no keys and values of their own.
func (g *gemma4Layers) shared() {
	n := g.natural("num_kv_shared_layers", 0)
	if n >= max(g.layers, 1) {
		g.fail("num_kv_shared_layers", fmt.Errorf("%d of %d layers: want fewer", n, g.layers))
		n = 0
	}
	g.first, g.wide = g.layers-n, 1
	if g.boolean("use_double_wide_mlp", false) {
		g.wide = 2
	}
	for i := g.first; i < g.layers; i++ {
		if g.source(i) < 0 {
			g.fail("num_kv_shared_layers", fmt.Errorf("%d: no layer before has keys and values for layer %d", n, i))
		}
	}
}

// source returns the layer whose keys and values a layer attends to: the last one of its kind that has any.
func (g *gemma4Layers) source(layer int) int {
	for i := min(layer, g.first-1); i >= 0; i-- {
		if g.windows[i] > 0 == (g.windows[layer] > 0) {
			return i
		}
	}
	return -1
}

// mixture reads the experts, nil where there are none.
func (g *gemma4Layers) mixture(act Gating) *mixture {
	if !g.boolean("enable_moe_block", false) {
		return nil
	}
	return &mixture{
		router: "router.proj", experts: g.size("num_experts", required), top: g.size("top_k_experts", required),
		inter: g.size("moe_intermediate_size", required), normalize: true, act: act, alwaysStacked: true,
	}
}

func (g *gemma4Layers) block(i int, blk *Block, act Gating, mix *mixture) {
	attnOut, mlpOut := blk.MLPNorm, g.norm(blk.Path+".post_feedforward_layernorm")
	blk.AttnOut, blk.MLPOut = &attnOut, &mlpOut
	blk.MLPNorm = g.norm(blk.Path + ".pre_feedforward_layernorm")
	blk.Mixer = g.attend(i, blk)
	inter := g.inter
	if i >= g.first {
		inter *= g.wide
	}
	mlp := g.mlp(blk.Path+".mlp", projNames(), inter, false, act, g.mlpState(blk))
	if mix == nil {
		blk.MLP = mlp
	} else {
		shared := blk.MLPNorm
		blk.MLPNorm = g.norm(blk.Path + ".pre_feedforward_layernorm_2")
		blk.MoE = g.moe(mix.at(blk.Path), g.normed(blk.Path+".experts.in", &blk.MLPNorm))
		blk.MoE.Shared = mlp
		router := blk.Path + ".router"
		blk.MoE.Apart = &Apart{
			Router: Norm{Tensor: router + ".scale", Eps: g.eps}, Scale: 1 / math.Sqrt(float64(g.d.Hidden)),
			Shared: shared, SharedOut: g.norm(blk.Path + ".post_feedforward_layernorm_1"),
			ExpertsOut: g.norm(blk.Path + ".post_feedforward_layernorm_2"), ExpertScale: router + ".per_expert_scale",
		}
		blk.MoE.Router.Reads = &State{Name: router + ".in", Width: g.d.Hidden}
		g.d.roles[router+".scale"], g.d.roles[blk.MoE.Apart.ExpertScale] = NormWeight, BiasVector
	}
	if g.d.Tokens != nil {
		blk.Told = g.told(blk, act)
		blk.Told.At = i
	}
	if scale := blk.Path + ".layer_scalar"; g.hasTensor == nil || g.exists(scale) {
		blk.Scale = scale
		g.d.roles[scale] = BiasVector
	}
}

// attend describes the attention of layer i. Nothing can absorb factors on values, which are normalized.
func (g *gemma4Layers) attend(i int, blk *Block) *Attention {
	p := blk.Path + ".self_attn."
	heads, kv, dim := g.builder.heads, g.kvs[i], g.dims[i]
	in := g.normed(p+"in", &blk.AttnNorm)
	layer := func(name string, heads int) *Linear {
		return g.whole(g.matrix(p+name, heads*dim, g.d.Hidden, g.bias, LinearWeight), in, SplitRows, p+"qkv")
	}
	qNorm := g.norm(p + "q_norm")
	a := &Attention{
		Heads: heads, KVHeads: kv, Dim: dim, Scale: 1, Q: layer("q_proj", heads), QNorm: &qNorm, ValueEps: g.eps,
		Window: g.windows[i], Rope: g.full,
		O: g.whole(g.matrix(p+"o_proj", g.d.Hidden, heads*dim, g.bias, LinearWeight), &State{Name: p + "out", Width: heads * dim}, SplitColumns, ""),
	}
	if a.Window > 0 {
		a.Rope = g.sliding
	}
	if i >= g.first {
		from := g.source(i)
		a.From = g.d.Blocks[from].Attn()
		if g.kvs[from] != kv {
			g.fail("per_layer_config", fmt.Errorf("layer %d: %d keys where those that it attends to are %d", i, kv, g.kvs[from]))
		}
		return a
	}
	kNorm := g.norm(p + "k_norm")
	a.K, a.KNorm = layer("k_proj", kv), &kNorm
	if !g.equal || a.Window > 0 {
		a.V = layer("v_proj", kv)
	}
	return a
}

// tokenInputs reads what blocks are told of tokens.
func (b *builder) tokenInputs() {
	const key = "hidden_size_per_layer_input"
	width := b.natural(key, 256)
	if width == 0 || b.isNull(key) {
		return
	}
	vocab := b.size("vocab_size_per_layer_input", 262144)
	if vocab < b.d.Vocab {
		b.fail("vocab_size_per_layer_input", fmt.Errorf("%d tokens of %d", vocab, b.d.Vocab))
	}
	if int64(width)*int64(b.layers) > maxSize {
		b.fail(key, fmt.Errorf("%d in each of %d layers are too many", width, b.layers))
		return
	}
	all := b.layers * width
	embed := b.matrix(b.root+"embed_tokens_per_layer", vocab, all, false, EmbeddingWeight)
	project := b.matrix(b.root+"per_layer_model_projection", all, b.d.Hidden, false, RouterWeight)
	t := &TokenInputs{
		Width: width, Embed: embed, Norm: b.norm(b.root + "per_layer_projection_norm"),
		Project: b.whole(project, &State{Name: b.root + "embedded", Width: b.d.Hidden}, Replicated, ""),
	}
	t.Norm.Eps *= float64(b.d.Hidden) // of what is divided by the root of that first
	b.d.Tokens = t
}

// told describes what a block makes of what it is told.
func (b *builder) told(blk *Block, act Gating) *Told {
	in, mid := &State{Name: blk.Path + ".told", Width: b.d.Hidden}, &State{Name: blk.Path + ".told.mid", Width: b.d.Tokens.Width}
	return &Told{
		Gate: b.whole(b.matrix(blk.Path+".per_layer_input_gate", b.d.Tokens.Width, b.d.Hidden, false, LinearWeight), in, Replicated, ""),
		Proj: b.whole(b.matrix(blk.Path+".per_layer_projection", b.d.Hidden, b.d.Tokens.Width, false, LinearWeight), mid, Replicated, ""),
		Act:  act, Out: b.norm(blk.Path + ".post_per_layer_input_norm"),
	}
}
