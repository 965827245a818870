package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/lutq/lutq/formats/input"
)

// Architectures that [Config.Supported] accepts.
const (
	llama   = "LlamaForCausalLM"
	mistral = "MistralForCausalLM"
	qwen2   = "Qwen2ForCausalLM"
	qwen3   = "Qwen3ForCausalLM"
)

// Config is what a config.json says about a decoder. Keys that it leaves out
// have the defaults of the transformers library for the family.
type Config struct {
	Architecture string // the first of "architectures", or what model_type implies
	ModelType    string

	HiddenSize       int
	IntermediateSize int
	Layers           int
	Heads            int
	KVHeads          int // divides Heads
	HeadDim          int // need not be HiddenSize / Heads
	VocabSize        int
	MaxPositions     int

	RMSNormEps float64
	RopeTheta  float64
	Rope       RopeScaling

	TieEmbeddings bool // input embedding and output head are one matrix
	AttentionBias bool // the q, k and v projections have a bias
	OutputBias    bool // the o projection has one
	MLPBias       bool
	QKNorm        bool // q and k heads are normalized before rotation
	HiddenAct     string

	// SlidingWindow is the number of positions that attention looks back, 0
	// for all. Below that context length it makes no difference.
	SlidingWindow int

	BOS   *int // nil where there is none
	EOS   []int
	DType string // as transformers spells it, such as "bfloat16"; may be empty

	// Quantization is the quantization_config as it stands, nil where there is
	// none.
	Quantization json.RawMessage

	partialRotary float64 // share of a head that is rotated
	mixedLayers   bool    // layers differ in their kind of attention
	nested        bool    // the decoder is described in text_config
}

// RopeScaling says how rotary frequencies are changed for long contexts.
type RopeScaling struct {
	// Type is default, linear, llama3, or one that [Config.Supported] refuses.
	Type string

	Factor float64 // 1 for type default

	// Type llama3 only: wavelengths above OriginalMaxPositions/LowFreqFactor
	// are stretched by Factor, those below
	// OriginalMaxPositions/HighFreqFactor not, those between in part.
	LowFreqFactor, HighFreqFactor float64
	OriginalMaxPositions          int
}

// ReadConfig reads a config.json; path may also be the folder. It understands
// the spellings of transformers 4 and 5.
//
// A value that is missing or makes no sense is an error that names its key.
// Of an architecture that [Config.Supported] refuses, ReadConfig takes what it
// can and leaves the rest zero.
func ReadConfig(path string) (*Config, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	text, err := input.ReadFile(path, input.Config)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Supported returns nil for models that the runtime computes as their authors
// meant them, and otherwise an error that says what stands against it.
func (c *Config) Supported() error {
	if err := c.supportedArchitecture(); err != nil {
		return err
	}
	switch c.Rope.Type {
	case "default", "linear", "llama3":
	default:
		return fmt.Errorf("rope type %q is not supported: want default, linear or llama3", c.Rope.Type)
	}
	switch {
	case c.HiddenAct != "silu":
		return fmt.Errorf("hidden_act %q is not supported: want silu", c.HiddenAct)
	case c.mixedLayers, c.SlidingWindow > 0 && c.Architecture != mistral:
		return errors.New("layers with sliding window attention are not supported")
	case c.partialRotary != 1:
		return fmt.Errorf("partial_rotary_factor %v is not supported: want 1", c.partialRotary)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim %d is odd: rotary embedding takes pairs", c.HeadDim)
	}
	return nil
}

func (c *Config) supportedArchitecture() error {
	switch c.Architecture {
	case llama, mistral, qwen2, qwen3:
		return nil
	case "":
		return errors.New("config names no architecture")
	}
	if c.nested {
		return fmt.Errorf("architecture %q is not supported: the language model is nested in text_config", c.Architecture)
	}
	return fmt.Errorf("architecture %q is not supported: want %s, %s, %s or %s",
		c.Architecture, llama, mistral, qwen2, qwen3)
}

func parseConfig(text []byte) (*Config, error) {
	f, err := readFields(text)
	if err != nil {
		return nil, err
	}
	c := &Config{ModelType: f.text("model_type", ""), nested: f.has("text_config")}
	c.Architecture = f.architecture(c.ModelType)
	known := c.supportedArchitecture() == nil
	c.readSizes(f, known)
	c.readAttention(f)
	c.readRope(f)
	c.readTokens(f)

	c.RMSNormEps = f.positiveFloat("rms_norm_eps", 1e-6)
	c.TieEmbeddings = f.boolean("tie_word_embeddings", tiesByDefault(c.ModelType))
	c.HiddenAct = f.text("hidden_act", f.text("hidden_activation", "silu"))
	c.DType = f.text("dtype", f.text("torch_dtype", ""))
	if f.has("quantization_config") {
		c.Quantization = bytes.Clone(f.values["quantization_config"])
		if c.Quantization[0] != '{' {
			f.fail("quantization_config", errors.New("want a JSON object"))
		}
	}
	if f.err != nil && known {
		return nil, f.err
	}
	return c, nil
}

func tiesByDefault(modelType string) bool {
	switch modelType {
	case "gemma", "gemma2", "gemma3", "gemma3_text":
		return true
	}
	return false
}

func (c *Config) readSizes(f *fields, required bool) {
	missing := 0
	if required {
		missing = -1
	}
	c.HiddenSize = f.size("hidden_size", missing)
	c.IntermediateSize = f.size("intermediate_size", missing)
	if c.Layers = f.size("num_hidden_layers", missing); c.Layers > maxLayers {
		f.fail("num_hidden_layers", fmt.Errorf("%d: want at most %d", c.Layers, maxLayers))
	}
	c.Heads = f.size("num_attention_heads", missing)
	c.VocabSize = f.size("vocab_size", missing)

	positions, kvHeads, headDim := 2048, c.Heads, 0
	switch c.Architecture {
	case mistral:
		positions = 131072
		if !f.isNull("num_key_value_heads") {
			kvHeads = 8
		}
	case qwen2:
		positions = 32768
	case qwen3:
		positions = 32768
		if !f.isNull("head_dim") {
			headDim = 128
		}
	}
	c.MaxPositions = f.size("max_position_embeddings", positions)
	c.KVHeads = f.size("num_key_value_heads", kvHeads)
	c.HeadDim = f.size("head_dim", headDim)
	if f.err != nil || !required {
		if c.HeadDim == 0 && c.Heads > 0 {
			c.HeadDim = c.HiddenSize / c.Heads
		}
		return
	}
	if c.Heads%c.KVHeads != 0 {
		f.fail("num_attention_heads", fmt.Errorf("%d is not a multiple of %d num_key_value_heads", c.Heads, c.KVHeads))
	}
	if c.HeadDim == 0 {
		if c.HiddenSize%c.Heads != 0 {
			f.fail("hidden_size", fmt.Errorf("%d is not a multiple of %d num_attention_heads, and there is no head_dim", c.HiddenSize, c.Heads))
		}
		c.HeadDim = c.HiddenSize / c.Heads
	}
	// Bounds every product of two sizes that a model computes.
	if width := int64(c.Heads) * int64(c.HeadDim); width > maxSize {
		f.fail("head_dim", fmt.Errorf("%d heads of %d are too wide", c.Heads, c.HeadDim))
	}
}

func (c *Config) readAttention(f *fields) {
	c.partialRotary = f.positiveFloat("partial_rotary_factor", 1)
	switch c.Architecture {
	case mistral: // has no biases; its window is 4096 unless null
		if !f.isNull("sliding_window") {
			c.SlidingWindow = f.size("sliding_window", 4096)
		}
		return
	case qwen2: // q, k and v always have a bias, o never
		c.AttentionBias = true
	default:
		c.AttentionBias = f.boolean("attention_bias", false)
		c.OutputBias = c.AttentionBias
		c.MLPBias = f.boolean("mlp_bias", false)
		c.QKNorm = c.Architecture == qwen3 || c.ModelType == "gemma3_text"
	}
	switch c.Architecture {
	case llama: // has no window
	case qwen2, qwen3: // the layers from max_window_layers on have one
		if f.boolean("use_sliding_window", false) && f.natural("max_window_layers", 28) < c.Layers {
			c.SlidingWindow = f.size("sliding_window", 4096)
		}
	default:
		c.SlidingWindow = f.natural("sliding_window", 0)
	}
	if f.has("layer_types") {
		var types []string
		if err := json.Unmarshal(f.values["layer_types"], &types); err != nil {
			f.fail("layer_types", errors.New("want a list of strings"))
		}
		c.mixedLayers = slices.ContainsFunc(types, func(t string) bool { return t != "full_attention" })
	}
}

// readRope reads rope_theta beside rope_scaling, as transformers 4 writes
// them, or rope_parameters, which holds both.
func (c *Config) readRope(f *fields) {
	const defaultTheta = 10000
	c.RopeTheta = f.positiveFloat("rope_theta", defaultTheta)
	c.Rope = RopeScaling{Type: "default", Factor: 1}
	old, current := f.has("rope_scaling"), f.has("rope_parameters")
	if old {
		c.Rope, _ = f.rope("rope_scaling", c)
	}
	if !current {
		return
	}
	rope, theta := f.rope("rope_parameters", c)
	if old && rope != c.Rope {
		f.fail("rope_parameters", errors.New("disagrees with rope_scaling"))
	}
	c.Rope = rope
	if theta == 0 {
		return
	}
	if f.has("rope_theta") && theta != c.RopeTheta {
		f.fail("rope_parameters", fmt.Errorf("rope_theta %v disagrees with the %v outside", theta, c.RopeTheta))
	}
	c.RopeTheta = theta
}

// rope reads one of the two objects. theta is 0 where it holds none.
func (f *fields) rope(key string, c *Config) (r RopeScaling, theta float64) {
	in, err := readFields(f.values[key])
	if err != nil {
		f.fail(key, err)
		return r, 0
	}
	// Models whose layers differ have one object for each kind of layer.
	if in.has("full_attention") {
		return in.rope("full_attention", c)
	}
	r.Type = in.text("rope_type", in.text("type", "default"))
	r.Factor = in.positiveFloat("factor", 1)
	theta = in.positiveFloat("rope_theta", 0)
	c.partialRotary = in.positiveFloat("partial_rotary_factor", c.partialRotary)
	switch r.Type {
	case "default":
		r.Factor = 1
	case "linear":
		in.require("factor")
	case "llama3":
		in.require("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
		r.LowFreqFactor = in.positiveFloat("low_freq_factor", 1)
		r.HighFreqFactor = in.positiveFloat("high_freq_factor", 1)
		r.OriginalMaxPositions = in.size("original_max_position_embeddings", 1)
		if in.err == nil && r.HighFreqFactor <= r.LowFreqFactor {
			in.fail("high_freq_factor", fmt.Errorf("%v is not above low_freq_factor %v", r.HighFreqFactor, r.LowFreqFactor))
		}
	}
	if in.err != nil {
		f.fail(key, in.err)
	}
	return r, theta
}

func (c *Config) readTokens(f *fields) {
	if f.has("bos_token_id") {
		id := f.natural("bos_token_id", 0)
		c.BOS = &id
	}
	switch {
	case !f.has("eos_token_id"):
	case f.values["eos_token_id"][0] != '[':
		c.EOS = []int{f.natural("eos_token_id", 0)}
	default:
		var ids []json.RawMessage
		if err := json.Unmarshal(f.values["eos_token_id"], &ids); err != nil {
			f.fail("eos_token_id", err)
		}
		for _, raw := range ids {
			id, err := integer(raw, 0)
			if err != nil {
				f.fail("eos_token_id", err)
			}
			c.EOS = append(c.EOS, id)
		}
	}
}

const (
	// maxSize bounds sizes so that the product of two fits an int64.
	maxSize = math.MaxInt32

	// maxLayers bounds what is in memory for each layer before its weights are
	// looked for.
	maxLayers = 1 << 14
)

// fields is a JSON object of which the first wrong value is remembered, so
// that reading many fields takes one check.
type fields struct {
	values map[string]json.RawMessage
	err    error
}

func readFields(text []byte) (*fields, error) {
	s, err := newScanner(text)
	if err != nil {
		return nil, err
	}
	f := &fields{values: make(map[string]json.RawMessage)}
	return f, s.object(func(key []byte) error {
		k := string(key)
		if _, ok := f.values[k]; ok {
			return fmt.Errorf("key %.40q appears twice", k)
		}
		f.values[k] = s.value()
		return nil
	})
}

func (f *fields) fail(key string, err error) {
	if f.err == nil {
		f.err = fmt.Errorf("%s: %w", key, err)
	}
}

// isNull reports whether the key is there without a value.
func (f *fields) isNull(key string) bool { return string(f.values[key]) == "null" }

// has reports whether the key is there with a value.
func (f *fields) has(key string) bool { return f.values[key] != nil && !f.isNull(key) }

func (f *fields) require(keys ...string) {
	for _, key := range keys {
		if !f.has(key) {
			f.fail(key, errors.New("missing"))
		}
	}
}

// size reads a positive integer. Without the key it returns missing, where -1
// stands for an error.
func (f *fields) size(key string, missing int) int {
	if !f.has(key) {
		if missing >= 0 {
			return missing
		}
		f.require(key)
		return 0
	}
	return f.integer(key, 1)
}

func (f *fields) natural(key string, missing int) int {
	if !f.has(key) {
		return missing
	}
	return f.integer(key, 0)
}

func (f *fields) integer(key string, least int) int {
	n, err := integer(f.values[key], least)
	if err != nil {
		f.fail(key, err)
		return 0
	}
	return n
}

// integer takes 4096 and 4096.0, which Python writes after a division.
func integer(raw json.RawMessage, least int) (int, error) {
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) {
		return 0, fmt.Errorf("%.40q is not an integer", raw)
	}
	if v < float64(least) || v > maxSize {
		return 0, fmt.Errorf("%.40s is outside %d to %d", raw, least, maxSize)
	}
	return int(v), nil
}

func (f *fields) positiveFloat(key string, missing float64) float64 {
	if !f.has(key) {
		return missing
	}
	v, err := strconv.ParseFloat(string(f.values[key]), 64)
	if err != nil || !(v > 0) {
		f.fail(key, fmt.Errorf("%.40q is not a positive number", f.values[key]))
		return missing
	}
	return v
}

func (f *fields) boolean(key string, missing bool) bool {
	if !f.has(key) {
		return missing
	}
	switch string(f.values[key]) {
	case "true":
		return true
	case "false":
		return false
	}
	f.fail(key, fmt.Errorf("%.40q is not true or false", f.values[key]))
	return missing
}

func (f *fields) text(key, missing string) string {
	if !f.has(key) {
		return missing
	}
	var s string
	if err := json.Unmarshal(f.values[key], &s); err != nil {
		f.fail(key, errors.New("want a string"))
		return missing
	}
	return s
}

// architecture returns the first of "architectures", or what transformers'
// AutoModelForCausalLM makes of the model type.
func (f *fields) architecture(modelType string) string {
	if f.has("architectures") {
		var names []string
		if err := json.Unmarshal(f.values["architectures"], &names); err != nil {
			f.fail("architectures", errors.New("want a list of strings"))
		}
		if len(names) > 0 {
			return names[0]
		}
	}
	switch modelType {
	case "llama":
		return llama
	case "mistral":
		return mistral
	case "qwen2":
		return qwen2
	case "qwen3":
		return qwen3
	}
	return ""
}
