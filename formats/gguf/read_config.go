package gguf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/arch"
)

// configReader makes a config.json of a file's pairs, and of what tensors it has. The
// first error is kept.
type configReader struct {
	file   *File
	arch   string
	config map[string]any
	varies bool // numbers may differ between layers
	err    error
}

func (c *configReader) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// ConfigJSON returns the config.json of the model, as transformers reads it.
func (f *File) ConfigJSON() ([]byte, error) {
	name, ok := f.Meta.Text("general.architecture")
	if !ok {
		return nil, errors.New("no general.architecture: not a language model")
	}
	kind := f.kind(name)
	var known []string
	for _, r := range families() {
		if r.modelType == "" {
			continue
		}
		if of := cmp.Or(r.kind, r.arch); of != kind {
			if !slices.Contains(known, of) {
				known = append(known, of)
			}
			continue
		}
		c := &configReader{file: f, arch: name, varies: r.varies, config: map[string]any{"model_type": r.modelType, "architectures": []string{r.class}}}
		c.act(cmp.Or(r.act, arch.SiLU))
		if own, err := f.config(c.dtype()); own != nil || err != nil {
			return own, err
		}
		c.read()
		if r.config != nil {
			r.config(c)
		}
		if c.err != nil {
			return nil, c.err
		}
		return marshal(decimals(c.config))
	}
	return nil, fmt.Errorf("general.architecture %.40q is not one that is known: want one of %s", name, strings.Join(known, ", "))
}

// decimals has whole numbers that are no integers written with a point, without which transformers' classes refuse them.
func decimals(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			v[key] = decimals(x)
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return json.Number(strconv.FormatFloat(v, 'f', 1, 64))
		}
	}
	return v
}

// kind tells models apart that have one architecture in llama.cpp.
func (f *File) kind(name string) string {
	n := func(key string) int64 {
		v, _ := f.Meta.Int(name + "." + key)
		return v
	}
	switch {
	case name == "llama" && n("expert_count") > 0:
		return "mixtral"
	case name == "deepseek2" && slices.ContainsFunc(f.Tensors, func(t *Raw) bool { return strings.HasSuffix(t.Name, ".exp_probs_b.bias") }):
		return "deepseek_v3"
	case name == "deepseek2":
		return "deepseek_v2"
	case name == "olmo2" && n("attention.sliding_window") > 0:
		return "olmo3"
	}
	return name
}

// act notes the activation. It is gpt-oss' own where the config has no name for it.
func (c *configReader) act(a arch.Activation) {
	key, name := "hidden_act", "silu"
	if a == arch.GELUTanh {
		name = "gelu_pytorch_tanh"
	}
	if strings.HasPrefix(c.arch, "gemma") {
		key = "hidden_activation"
	}
	c.config[key] = name
}

// read reads what all architectures have.
func (c *configReader) read() {
	for _, h := range hparams() {
		switch v := c.file.Meta[c.arch+"."+h.key].(type) {
		case nil:
		case bool, string:
			c.fail(fmt.Errorf("%s.%s: want a number", c.arch, h.key))
		default:
			c.config[h.config] = c.number(h.key, v)
		}
	}
	if further := c.further(); further > 0 {
		c.config["num_hidden_layers"] = c.int("num_hidden_layers") - further
	}
	for _, key := range []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps", "max_position_embeddings"} {
		if c.config[key] == nil {
			c.fail(fmt.Errorf("no pair for %s", key))
		}
	}
	// The table of tokens may have rows beyond the vocabulary, and files may name neither.
	embed, ok := c.file.Tensor("token_embd.weight")
	if !ok || len(embed.Shape) != 2 {
		c.fail(errors.New("no matrix token_embd.weight"))
		return
	}
	c.config["vocab_size"] = embed.Shape[0]
	c.config["tie_word_embeddings"] = !c.has("output.weight")
	c.config["dtype"] = c.dtype()
	c.special()
	c.rope()
}

// further returns how many layers there are for tokens behind the next one, which llama.cpp counts among the blocks, at their end.
func (c *configReader) further() int64 {
	n, _ := c.file.Meta.Int(c.arch + ".nextn_predict_layers")
	return max(n, 0)
}

// number returns the number under a key. Where there is one for each layer they must be the same, or 0.
func (c *configReader) number(key string, v any) any {
	if list, err := c.file.Meta.ints(c.arch + "." + key); err == nil && len(list) > 0 {
		most := slices.Max(list)
		for _, n := range list {
			if n != most && n != 0 && !c.varies { // 0 is for layers that have none
				c.fail(fmt.Errorf("%s.%s differs between layers: %d and %d", c.arch, key, most, n))
			}
		}
		return most
	}
	switch v.(type) {
	case float32, float64:
		f, _ := c.file.Meta.Float(c.arch + "." + key)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			c.fail(fmt.Errorf("%s.%s is %v", c.arch, key, f))
			return nil
		}
		return f
	}
	n, ok := c.file.Meta.Int(c.arch + "." + key)
	if !ok {
		c.fail(fmt.Errorf("%s.%s: want a number", c.arch, key))
	}
	return n
}

// float returns a pair of the architecture.
func (c *configReader) float(key string) (float64, bool) {
	f, ok := c.file.Meta.Float(c.arch + "." + key)
	if ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		c.fail(fmt.Errorf("%s.%s is %v", c.arch, key, f))
		return 0, false
	}
	return f, ok
}

func (c *configReader) has(tensor string) bool {
	_, ok := c.file.Tensor(tensor)
	return ok
}

// dtype is what matrices are read as: see [readAs].
func (c *configReader) dtype() string {
	all := make(map[string]bool)
	for _, t := range c.file.Tensors {
		if len(t.Shape) > 1 {
			all[torchType(t.Type)] = true
		}
	}
	if len(all) == 1 {
		for name := range all {
			return name
		}
	}
	return "float32"
}

func torchType(t Type) string {
	switch readAs(t) {
	case "BF16":
		return "bfloat16"
	case "F16":
		return "float16"
	}
	return "float32"
}

// special reads the ids of special tokens.
func (c *configReader) special() {
	for key, name := range map[string]string{"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"} {
		if id, ok := c.file.tokenID(key); ok {
			c.config[name] = id
		}
	}
	if _, ok := c.file.Meta[ownEnds]; ok { // eos may be none of them
		c.config["eos_token_id"] = c.file.ends()
	}
}

// tokenID returns the id of a special token, which must be in the vocabulary.
func (f *File) tokenID(name string) (int, bool) {
	id, ok := f.Meta.Int("tokenizer.ggml." + name + "_token_id")
	tokens, _ := f.Meta["tokenizer.ggml.tokens"].([]string)
	if !ok || id < 0 || id >= int64(len(tokens)) && tokens != nil || id > math.MaxInt32 {
		return 0, false
	}
	return int(id), true
}

// rope reads the rotary embedding.
func (c *configReader) rope() {
	theta, ok := c.float("rope.freq_base")
	if !ok {
		theta = 1e4
	}
	c.config["rope_theta"] = theta
	heads, hidden := c.int("num_attention_heads"), c.int("hidden_size")
	if c.config["head_dim"] == nil && heads > 0 {
		c.config["head_dim"] = hidden / heads
	}
	dim := c.int("head_dim")
	if turned, ok := c.file.Meta.Int(c.arch + ".rope.dimension_count"); ok && turned != dim && dim > 0 {
		c.config["partial_rotary_factor"] = float64(turned) / float64(dim)
	}
	scaling := make(map[string]any)
	kind, _ := c.file.Meta.Text(c.arch + ".rope.scaling.type")
	factor, ok := c.float("rope.scaling.factor")
	if !ok {
		factor, ok = c.float("rope.scale_linear") // what it was first called
		if ok && kind == "" {
			kind = "linear"
		}
	}
	amplitude, amplified := c.float("rope.scaling.attn_factor")
	copyTo := func(key, from string) {
		if v, ok := c.float(from); ok {
			scaling[key] = v
		}
	}
	if long := c.has("rope_factors_long.weight"); long {
		kind = "longrope"
	}
	switch kind {
	case "", "none":
	case "linear":
		if !ok || factor == 1 {
			kind = ""
			break
		}
		scaling["factor"] = factor
	case "yarn":
		scaling["factor"] = factor
		if n, ok := c.file.Meta.Int(c.arch + ".rope.scaling.original_context_length"); ok {
			scaling["original_max_position_embeddings"] = n
		}
		copyTo("beta_fast", "rope.scaling.yarn_beta_fast")
		copyTo("beta_slow", "rope.scaling.yarn_beta_slow")
		if amplified { // llama.cpp multiplies it by what the paper has
			scaling["attention_factor"] = amplitude * (1 + 0.1*math.Log(factor))
		}
	case "longrope":
		c.longRope(scaling, factor)
		if amplified {
			scaling["attention_factor"] = amplitude
		}
	default:
		c.fail(fmt.Errorf("%s.rope.scaling.type %.40q is not supported", c.arch, kind))
	}
	if c.has("rope_freqs.weight") && kind != "longrope" && c.arch != "gemma4" {
		kind = c.llama3(scaling, kind, theta)
	}
	if kind == "" || kind == "none" {
		return
	}
	scaling["rope_type"] = kind
	c.config["rope_scaling"] = scaling
}

// int returns an integer of the config, 0 where it is none.
func (c *configReader) int(key string) int64 {
	switch v := c.config[key].(type) {
	case int64:
		return v
	case int:
		return int64(v)
	}
	return 0
}

// vector reads a tensor of the rotary embedding.
func (c *configReader) vector(name string) []float64 {
	t, ok := c.file.Tensor(name)
	if !ok {
		c.fail(fmt.Errorf("no tensor %s", name))
		return nil
	}
	if t.elements > 1<<16 {
		c.fail(t.wrap(fmt.Errorf("shape %v: want one dimension of a head's pairs", t.Shape)))
		return nil
	}
	v := make([]float32, t.elements)
	if err := t.ReadFloat32(v, 0); err != nil {
		c.fail(err)
	}
	out := make([]float64, len(v))
	for i, x := range v {
		if !(x > 0) || math.IsInf(float64(x), 0) {
			c.fail(t.wrap(fmt.Errorf("element %d is %v: want a divisor", i, x)))
			return nil
		}
		out[i] = shortest(x)
	}
	return out
}

// longRope reads the divisors of Phi's rotary embedding.
func (c *configReader) longRope(scaling map[string]any, factor float64) {
	original, ok := c.file.Meta.Int(c.arch + ".rope.scaling.original_context_length")
	if !ok || original < 1 {
		c.fail(fmt.Errorf("no %s.rope.scaling.original_context_length", c.arch))
		return
	}
	c.config["original_max_position_embeddings"] = original
	if factor > 0 && factor != 1 {
		scaling["factor"] = factor
	}
	scaling["long_factor"], scaling["short_factor"] = c.vector("rope_factors_long.weight"), c.vector("rope_factors_short.weight")
}

// llama3 finds out what the divisors of the frequencies were made of. They are those of
// Llama 3.1 and after it, but for the factor that long wavelengths are stretched by and the
// context that lengths are measured by, which a divisor between 1 and the factor tells.
func (c *configReader) llama3(scaling map[string]any, kind string, theta float64) string {
	divisors := c.vector("rope_freqs.weight")
	if c.err != nil || len(divisors) == 0 {
		return kind
	}
	plain := true
	for _, d := range divisors {
		plain = plain && d == 1
	}
	if plain {
		return kind
	}
	if kind != "" && kind != "none" {
		c.fail(fmt.Errorf("rope_freqs.weight beside rope.scaling.type %s is not supported", kind))
		return kind
	}
	r := arch.Rope{Type: "llama3", Dim: 2 * len(divisors), Theta: theta, Factor: divisors[len(divisors)-1], Original: 8192, LowFreq: 1, HighFreq: 4}
	for i, d := range divisors {
		if d > 1 && d < r.Factor {
			s := (1/d - 1/r.Factor) / (1 - 1/r.Factor)
			wavelength := 2 * math.Pi * math.Pow(theta, 2*float64(i)/float64(r.Dim))
			r.Original = int(min(math.Round(wavelength*(r.LowFreq+s*(r.HighFreq-r.LowFreq))), math.MaxInt32))
			break
		}
	}
	// Files may have them rounded to 16 bits, and frequencies were computed in 32.
	for i, f := range r.Frequencies(1) {
		if want := math.Pow(theta, -2*float64(i)/float64(r.Dim)) / f; math.Abs(divisors[i]/want-1) > 2e-3 {
			c.fail(fmt.Errorf("rope_freqs.weight: element %d is %v where Llama 3 has %v: not supported", i, divisors[i], want))
			return kind
		}
	}
	scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"] = r.Factor, r.LowFreq, r.HighFreq
	scaling["original_max_position_embeddings"] = r.Original
	return r.Type
}

func (c *configReader) llama() {
	c.config["attention_bias"] = c.has("blk.0.attn_q.bias")
	c.config["mlp_bias"] = c.has("blk.0.ffn_gate.bias")
}

func (c *configReader) mixtral() {
	c.config["num_local_experts"] = c.config[expertsKey]
	delete(c.config, expertsKey)
	c.config["sliding_window"] = nil
}

// experts reads the mixtures of Qwen, whose files may leave sizes to the tensors.
func (c *configReader) experts() {
	c.config["norm_topk_prob"] = c.arch == "qwen3moe"
	c.config["decoder_sparse_step"] = 1
	for key, name := range map[string]string{"moe_intermediate_size": "ffn_up_exps", "shared_expert_intermediate_size": "ffn_up_shexp"} {
		if t, ok := c.file.Tensor("blk.0." + name + ".weight"); ok && c.config[key] == nil && len(t.Shape) > 1 {
			c.config[key] = t.Shape[len(t.Shape)-2]
		}
	}
	if c.config["intermediate_size"] == nil {
		c.config["intermediate_size"] = c.config["moe_intermediate_size"]
	}
}

// gemma adds what a file of a Gemma leaves to the family. The scores of its largest
// models are not scaled by the size of a head.
func (c *configReader) gemma() {
	c.config["query_pre_attn_scalar"] = c.config["head_dim"]
	layers, heads := c.int("num_hidden_layers"), c.int("num_attention_heads")
	if (c.arch == "gemma2" && layers == 46 || c.arch == "gemma3" && layers == 62) && heads > 0 {
		c.config["query_pre_attn_scalar"] = c.int("hidden_size") / heads
	}
	if c.config["sliding_window"] == nil {
		c.fail(fmt.Errorf("no %s.attention.sliding_window", c.arch))
	}
	if c.arch == "gemma2" {
		return
	}
	c.config["rope_local_base_freq"] = 1e4
	if theta, ok := c.float("rope.freq_base_swa"); ok {
		c.config["rope_local_base_freq"] = theta
	}
	c.layerTypes(6)
}

// layerTypes reads which layers slide: those that a list names, or all but each of a number that is a multiple of what the file says, or
// of pattern.
func (c *configReader) layerTypes(pattern int64) {
	const key = ".attention.sliding_window_pattern"
	layers := c.int("num_hidden_layers")
	slides, listed := c.file.Meta[c.arch+key].([]bool)
	if n, ok := c.file.Meta.Int(c.arch + key); ok && n > 0 {
		pattern = n
	}
	if listed && int64(len(slides)) < layers {
		c.fail(fmt.Errorf("%s%s: %d of %d layers", c.arch, key, len(slides), layers))
		return
	}
	c.kinds("sliding_attention", "full_attention", func(i int) bool { return listed && slides[i] || !listed && (int64(i)+1)%pattern != 0 })
}

// maxLayers bounds what one pair can make a config.json allocate.
const maxLayers = 4096

func (c *configReader) phi() {
	if w := c.int("sliding_window"); w == 0 {
		c.config["sliding_window"] = nil
	}
	if n, ok := c.file.Meta.Int("phi3.rope.scaling.original_context_length"); ok {
		c.config["original_max_position_embeddings"] = n
	}
}

func (c *configReader) gptOSS() {
	c.config["num_local_experts"] = c.config[expertsKey]
	delete(c.config, expertsKey)
	if n := c.config["moe_intermediate_size"]; n != nil {
		c.config["intermediate_size"] = n
		delete(c.config, "moe_intermediate_size")
	}
	c.config["attention_bias"] = true
	c.config["swiglu_limit"] = float64(swigluLimit)
	if scaling, ok := c.config["rope_scaling"].(map[string]any); ok {
		scaling["truncate"] = false
	}
}

// stateSizes returns the sizes of states that a file names, at least 1 each, and sets those of config.json whose names stand beside theirs. It
// returns nil where one is missing.
func (c *configReader) stateSizes(names map[string]string) map[string]int64 {
	n := make(map[string]int64)
	for key, name := range names {
		v, ok := c.file.Meta.Int(c.arch + ".ssm." + key)
		if !ok || v < 1 {
			c.fail(fmt.Errorf("no %s.ssm.%s", c.arch, key))
			return nil
		}
		if n[key] = v; name != "" {
			c.config[name] = v
		}
	}
	return n
}
