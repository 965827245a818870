package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// family is how llama.cpp runs a family of models, and what is read of its files. What no field tells is in [Tensors] and
// [Describe].
type family struct {
	name string                     // of package arch
	arch string                     // general.architecture
	when func(d *arch.Decoder) bool // which models of the family it is for; nil: all

	permuted bool            // the pairs (2i, 2i+1) of a head turn, not (i, i+h)
	adjacent bool            // so they do in the model
	act      arch.Activation // SiLU where it is ""
	biases   []string        // tensors that may have one; others are refused
	window   int             // every window-th layer sees all, those between slide; 0: none slides
	pattern  bool            // which layers slide is told for each

	lastNorm string // what the norm before the head is called; "": output_norm
	mlpNorm  string // and that before the MLP; "": ffn_norm
	joined   bool   // gate and up may be one matrix
	head     bool   // the head is never the embedding
	uniform  bool   // attentions between other mixers have one number of heads, and which blocks they are is told otherwise

	sparse    bool // all layers have experts
	normalize bool // weights of experts sum to 1
	weighs    bool // whether they do is told
	varies    bool // heads and widths may differ between layers
	byColumns bool // experts are stacks that the model has by columns
	expertFF  bool // experts are as wide as feed_forward_length says, and no other key does

	freqs     bool // takes rope_freqs
	longrope  bool // takes rope_factors_long and rope_factors_short
	attnScale bool // takes attention.scale

	refuse func(d *arch.Decoder) error // what else llama.cpp would compute otherwise; may be nil
	more   func(d *arch.Decoder) []KV  // pairs besides, whose keys the architecture and a dot come before; may be nil

	// What reads a file, where modelType is not "": config.json's model_type and architecture, and what its pairs are besides.
	modelType, class string
	kind             string // of files: general.architecture, or what tells it from others of that; "": arch
	config           func(c *configReader)
}

// families lists the families. A new one is an entry here.
func families() []family {
	attn := []string{"attn_q", "attn_k", "attn_v"}
	llama := append([]string{"attn_output", "ffn_gate", "ffn_up", "ffn_down"}, attn...)
	oss := append([]string{"attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}, attn...)
	const postNorm = "post_attention_norm"
	return []family{
		{
			name: "llama", arch: "llama", permuted: true, biases: llama, freqs: true, longrope: true, attnScale: true,
			modelType: "llama", class: "LlamaForCausalLM", config: (*configReader).llama,
		},
		{name: "mistral", arch: "llama", permuted: true, freqs: true, longrope: true, attnScale: true},
		{
			name: "mixtral", arch: "llama", permuted: true, normalize: true, expertFF: true, freqs: true, longrope: true, attnScale: true,
			modelType: "mixtral", class: "MixtralForCausalLM", kind: "mixtral", config: (*configReader).mixtral,
		},
		{name: "qwen2", arch: "qwen2", biases: attn, modelType: "qwen2", class: "Qwen2ForCausalLM"},
		{
			name: "qwen2_moe", arch: "qwen2moe", biases: attn, sparse: true,
			modelType: "qwen2_moe", class: "Qwen2MoeForCausalLM", config: (*configReader).experts,
		},
		{name: "qwen3", arch: "qwen3", modelType: "qwen3", class: "Qwen3ForCausalLM"},
		{
			name: "qwen3_moe", arch: "qwen3moe", sparse: true, normalize: true,
			modelType: "qwen3_moe", class: "Qwen3MoeForCausalLM", config: (*configReader).experts,
		},
		{
			name: "gemma2", arch: "gemma2", act: arch.GELUTanh, window: 2,
			modelType: "gemma2", class: "Gemma2ForCausalLM", config: (*configReader).gemma,
		},
		{
			name: "gemma3", arch: "gemma3", act: arch.GELUTanh, window: 6,
			modelType: "gemma3_text", class: "Gemma3ForCausalLM", config: (*configReader).gemma,
		},
		{
			name: "phi3", arch: "phi3", joined: true, longrope: true,
			modelType: "phi3", class: "Phi3ForCausalLM", config: (*configReader).phi,
		},
		{
			name: "gpt_oss", arch: "gpt-oss", byColumns: true, act: arch.SwiGLUOAI, biases: oss, window: 2, mlpNorm: postNorm, normalize: true,
			modelType: "gpt_oss", class: "GptOssForCausalLM", config: (*configReader).gptOSS,
		},
		smolLM3(attn), olmo("olmo2"), olmo("olmo3"), granite(llama), ministral3(),
		{
			name: "seed_oss", arch: "seed_oss", biases: attn, mlpNorm: postNorm,
			modelType: "seed_oss", class: "SeedOssForCausalLM", config: (*configReader).seedOSS,
		},
		{
			name: "ernie4_5", arch: "ernie4_5", adjacent: true,
			modelType: "ernie4_5", class: "Ernie4_5ForCausalLM",
		},
		{
			name: "hunyuan_v1_dense", arch: "hunyuan-dense", biases: attn,
			modelType: "hunyuan_v1_dense", class: "HunYuanDenseV1ForCausalLM", config: (*configReader).attentionBias,
		},
		glm4MoE(attn), miniMaxM2(),
		deepseek("deepseek_v3", "deepseek_v3", "deepseek_v3", "DeepseekV3ForCausalLM"),
		deepseek("deepseek_v2", "deepseek_v2", "deepseek_v2", "DeepseekV2ForCausalLM"),
		deepseek("glm4_moe_lite", "", "", ""),
		lfm2("lfm2", "lfm2", "Lfm2ForCausalLM"), lfm2("lfm2_moe", "lfm2moe", "Lfm2MoeForCausalLM"),
		graniteHybrid(), graniteAttending(llama), llama4(), gemma4(),
		qwenDelta("qwen3_next", "qwen3next", "qwen3_next", "Qwen3NextForCausalLM"),
		qwenDelta("qwen3_5", "qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM"),
		qwenDelta("qwen3_5_moe", "qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
	}
}

// familyOf returns how llama.cpp runs a model.
func familyOf(d *arch.Decoder) (family, error) {
	for _, f := range families() {
		if f.name == d.Family && (f.when == nil || f.when(d)) {
			return f, nil
		}
	}
	return family{}, fmt.Errorf("models of the family %s have no GGUF here; lutq help export tells which have", d.Family)
}

// check refuses a model that llama.cpp would compute otherwise.
func (f family) check(d *arch.Decoder) error {
	if len(d.Blocks) == 0 {
		return errors.New("a model without layers")
	}
	for i := range d.Blocks {
		if err := f.checkBlock(d, i); err != nil {
			return fmt.Errorf("%s: %w", d.Blocks[i].Path, err)
		}
	}
	switch {
	case f.head && d.Tied:
		return fmt.Errorf("the head is the embedding: llama.cpp wants one of its own in models of the architecture %s", f.arch)
	case f.refuse != nil:
		return f.refuse(d)
	}
	return nil
}

func (f family) checkBlock(d *arch.Decoder, i int) error {
	b := &d.Blocks[i]
	if a := b.Attn(); a != nil {
		if err := f.checkAttention(d, i, a); err != nil {
			return err
		}
	}
	for _, m := range b.MLPs() {
		if want := cmp.Or(f.act, arch.SiLU); m.Act.Act != want {
			return fmt.Errorf("activation %s: llama.cpp takes %s in models of the architecture %s", m.Act.Act, want, f.arch)
		}
	}
	switch {
	case f.sparse && b.MoE == nil:
		return fmt.Errorf("is dense: llama.cpp wants experts in all layers of the architecture %s", f.arch)
	case b.MoE != nil && !f.weighs && b.MoE.Normalize != f.normalize:
		return fmt.Errorf("norm_topk_prob is %v: llama.cpp takes %v in models of the architecture %s", b.MoE.Normalize, f.normalize, f.arch)
	}
	return nil
}

func (f family) checkAttention(d *arch.Decoder, i int, a *arch.Attention) error {
	switch {
	case a.ScoreCap != 0 && f.arch != "gemma2":
		return fmt.Errorf("scores have a cap: llama.cpp has none in models of the architecture %s", f.arch)
	case f.window > 0 && a.Window != f.windowOf(d, i):
		return fmt.Errorf("window of %d: in models of the architecture %s llama.cpp slides otherwise", a.Window, f.arch)
	case !f.attnScale && !near(a.Scale, f.scale(d)):
		return fmt.Errorf("scores are scaled by %.4g: llama.cpp takes %.4g", a.Scale, f.scale(d))
	}
	r := a.Rope
	if r == nil {
		return nil
	}
	switch {
	case r.Adjacent != f.adjacent:
		return fmt.Errorf("pairs of neighbours turn, %v: in models of the architecture %s llama.cpp does otherwise", r.Adjacent, f.arch)
	case (f.permuted || f.adjacent) && r.Dim != a.Dim:
		return fmt.Errorf("%d of a head's %d elements turn: llama.cpp turns all", r.Dim, a.Dim)
	case f.arch == "gemma3" && a.Window > 0 && r.Type != "default":
		return fmt.Errorf("rope type %s in layers with a window: llama.cpp has none there", r.Type)
	}
	return f.checkRope(r)
}

func (f family) checkRope(r *arch.Rope) error {
	switch {
	case r.Type == "llama3" && !f.freqs, r.Type == "longrope" && !f.longrope:
		return fmt.Errorf("rope type %s: llama.cpp has none in models of the architecture %s", r.Type, f.arch)
	case r.Type == "yarn" && !r.Truncate && f.arch != "gpt-oss":
		return errors.New("rope type yarn without truncate: llama.cpp has none")
	}
	return nil
}

// windowOf is the window that llama.cpp gives a layer: that of the first, which slides if any does, or none.
func (f family) windowOf(d *arch.Decoder, i int) int {
	if (i+1)%f.window == 0 {
		return 0
	}
	return attention(d).Window
}

// scale is what llama.cpp multiplies scores by. Of Gemma's largest models it is not that of a head.
func (f family) scale(d *arch.Decoder) float64 {
	a := attention(d)
	if f.arch == "gemma4" {
		return 1
	}
	if f.arch == "gemma2" && len(d.Blocks) == 46 || f.arch == "gemma3" && len(d.Blocks) == 62 {
		return 1 / math.Sqrt(float64(d.Hidden/a.Heads))
	}
	return 1 / math.Sqrt(float64(a.Dim))
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }
