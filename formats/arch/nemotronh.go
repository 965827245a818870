package arch

import (
	"encoding/json"
	"fmt"
	"slices"
)

// nemotronH is Nemotron-H and Nemotron 3: blocks of one part each, by a pattern: a state space, an attention whose heads do not turn, an MLP of
// squares, or experts of such beside one of all tokens.
func nemotronH() family {
	return family{
		name: "nemotron_h", architectures: []string{"NemotronHForCausalLM"}, modelTypes: []string{"nemotron_h"},
		describe: func(b *builder) {
			kinds := b.blockKinds()
			b.values["num_hidden_layers"] = json.RawMessage(fmt.Sprint(len(kinds)))
			b.rename("rms_norm_eps", "layer_norm_epsilon")
			b.root = "backbone."
			if b.exists("model.embeddings.weight") { // as version 5 of transformers has it
				b.root = "model."
			}
			b.d.root, b.d.Embed = b.root, b.root+"embeddings"
			b.read(sizes{hidden: 4096, inter: 21504, heads: 32, vocab: 131072, positions: 4096, kvHeads: 8, headDim: 128, eps: 1e-5})
			b.lastNorm("norm_f")
			m, eps := b.nemotronStates(), b.eps
			convBias, bias := b.boolean(b.either("mamba_conv_bias", "use_conv_bias"), true), b.boolean("use_bias", false)
			mlpBias, attnBias := b.boolean("mlp_bias", false), b.boolean("attention_bias", false)
			b.only("mlp_hidden_act", "relu2")
			b.only("mamba_hidden_act", "silu")
			var x mixture
			shared := 0
			if slices.Contains(kinds, moeBlock) {
				x = mixture{
					router: "gate", experts: b.size("n_routed_experts", 8), top: b.size("num_experts_per_tok", 2), inter: b.size("moe_intermediate_size", 7688),
					normalize: b.boolean("norm_topk_prob", true), squared: true, routing: b.grouped(), correction: "gate.e_score_correction_bias",
				}
				if b.has("moe_latent_size") {
					x.latent = b.size("moe_latent_size", 0)
				}
				shared = b.size("moe_shared_expert_intermediate_size", 7688)
			}
			b.blocks(func(i int, blk *Block) {
				delete(b.d.roles, blk.AttnNorm.Tensor)
				delete(b.d.roles, blk.MLPNorm.Tensor)
				norm, path := b.norm(blk.Path+".norm"), blk.Path+".mixer"
				blk.AttnNorm, blk.MLPNorm, blk.Mixer = Norm{}, Norm{}, Nothing{}
				switch kinds[i] {
				case statesBlock:
					blk.AttnNorm = norm
					b.stateSpace(blk, "mixer", m, convBias, bias, eps)
				case attentionBlock:
					blk.AttnNorm = norm
					b.anyAttention(blk, "mixer", biases{attnBias, attnBias}, false)
				case mlpBlock:
					blk.MLPNorm = norm
					blk.MLP = b.squaredMLP(path, b.d.Hidden, b.inter, mlpBias, b.mlpState(blk))
				case moeBlock:
					blk.MLPNorm = norm
					in := b.mlpState(blk)
					blk.MoE = b.moe(x.at(path), in)
					blk.MoE.Shared = b.squaredMLP(path+".shared_experts", b.d.Hidden, shared, mlpBias, in)
					if x.latent > 0 {
						b.latents(blk.MoE, path, x.latent, mlpBias, in)
					}
				}
			})
		},
	}
}

// The kinds of blocks, as patterns name them.
const (
	statesBlock    = 'M'
	attentionBlock = '*'
	mlpBlock       = '-'
	moeBlock       = 'E'
)

// blockKinds reads of what kind each block is: by a list of names, or where there is none by a pattern of a letter each.
func (b *builder) blockKinds() (kinds []rune) {
	key := b.either("layer_types", "layers_block_type")
	names := b.texts(key)
	switch {
	case names != nil:
		of := map[string]rune{
			"linear_attention": statesBlock, "mamba": statesBlock, fullAttention: attentionBlock, "attention": attentionBlock, "mlp": mlpBlock, "moe": moeBlock,
		}
		for _, n := range names {
			if of[n] == 0 {
				b.fail(key, fmt.Errorf("%.40q is not supported: want linear_attention, full_attention, mlp or moe", n))
			}
			kinds = append(kinds, of[n])
		}
	case b.has("hybrid_override_pattern"):
		key = "hybrid_override_pattern"
		kinds = []rune(b.text(key, ""))
		for _, k := range kinds {
			if !slices.Contains([]rune{statesBlock, attentionBlock, mlpBlock, moeBlock}, k) {
				b.fail(key, fmt.Errorf("%.10q is not supported: want M, *, - or E", k))
			}
		}
	default:
		kinds = []rune{statesBlock, moeBlock, attentionBlock, mlpBlock}
	}
	if len(kinds) == 0 {
		b.fail(key, fmt.Errorf("no blocks"))
		kinds = []rune{mlpBlock}
	}
	return kinds
}

// nemotronStates reads the sizes of state spaces as Nemotron-H's config has them.
func (b *builder) nemotronStates() Mamba2 {
	return b.bounded(Mamba2{
		Heads: b.size("mamba_num_heads", 128), Dim: b.size("mamba_head_dim", 64), Groups: b.size(b.either("mamba_n_groups", "n_groups"), 8),
		State: b.size("ssm_state_size", 128), Width: b.convolutionWidth(b.either("mamba_d_conv", "conv_kernel"), 4),
	}, "mamba_num_heads", "ssm_state_size")
}

// only refuses what a config may say but for one value, which it may leave out.
func (b *builder) only(key, want string) {
	if got := b.text(key, want); got != want {
		b.fail(key, fmt.Errorf("%.40q is not supported: want %s", got, want))
	}
}

// either is the first of two keys that a config has, or the second.
func (b *builder) either(key, other string) string {
	if b.has(key) {
		return key
	}
	return other
}

// squaredMLP describes an MLP Down · relu(Up·x)² of a state so wide, which is its own gate.
func (b *builder) squaredMLP(path string, width, inter int, bias bool, in *State) *MLP {
	up := b.whole(b.matrix(path+".up_proj", inter, width, bias, LinearWeight), in, SplitRows, "")
	mid := &State{Name: path + ".mid", Width: inter}
	down := b.whole(b.matrix(path+".down_proj", width, inter, bias, LinearWeight), mid, SplitColumns, "")
	return &MLP{Act: Gating{Act: ReLU}, Gate: up, Up: up, Down: down}
}

// width is how wide what its experts read is.
func (x mixture) width(b *builder) int {
	if x.latent > 0 {
		return x.latent
	}
	return b.d.Hidden
}

// latents describes what is before and behind experts of latents.
func (b *builder) latents(m *MoE, path string, width int, bias bool, in *State) {
	latent, sum := &State{Name: path + ".latent", Width: width}, &State{Name: path + ".sum", Width: width}
	for i := range m.Experts {
		m.Experts[i].Up.Reads = latent
	}
	m.Into = b.whole(b.matrix(path+".fc1_latent_proj", width, b.d.Hidden, bias, LinearWeight), in, Replicated, "")
	m.Back = b.whole(b.matrix(path+".fc2_latent_proj", b.d.Hidden, width, bias, LinearWeight), sum, Replicated, "")
}

// stackedSquares describes experts of squares that are stored as two stacks.
func (b *builder) stackedSquares(m *MoE, path string, x mixture, in *State) {
	stack := func(name string, n, k int) *Stored {
		s := &Stored{Path: path + name, Tensor: path + name, Experts: x.experts, N: n, K: k, Role: LinearWeight}
		b.stored(s)
		return s
	}
	width := x.width(b)
	ups, downs := stack(".up_proj", x.inter, width), stack(".down_proj", width, x.inter)
	for e := range x.experts {
		up := part(ups, "up", e, 0, 1, x.inter, in, SplitRows)
		mid := &State{Name: fmt.Sprintf("%s.%d.mid", path, e), Width: x.inter}
		m.Experts = append(m.Experts, MLP{Act: Gating{Act: ReLU}, Gate: up, Up: up, Down: part(downs, "down", e, 0, 1, width, mid, SplitColumns)})
	}
}
