package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// without leaves a key out of a test's config.
const without = "\x00"

// configText returns a small Llama config with some values replaced; each
// change is "key: JSON value", or a key and [without].
func configText(changes map[string]string) []byte {
	values := map[string]string{
		"architectures": `["LlamaForCausalLM"]`, "model_type": `"llama"`,
		"hidden_size": "64", "intermediate_size": "172", "num_hidden_layers": "5",
		"num_attention_heads": "8", "num_key_value_heads": "4", "vocab_size": "512",
	}
	maps.Copy(values, changes)
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if values[k] != without {
			parts = append(parts, fmt.Sprintf("%q: %s", k, values[k]))
		}
	}
	return []byte("{" + strings.Join(parts, ",\n") + "}")
}

func wantConfig(change func(*Config)) *Config {
	c := &Config{
		Architecture: llama, ModelType: "llama",
		HiddenSize: 64, IntermediateSize: 172, Layers: 5, Heads: 8, KVHeads: 4, HeadDim: 8,
		VocabSize: 512, MaxPositions: 2048,
		RMSNormEps: 1e-6, RopeTheta: 10000, Rope: RopeScaling{Type: "default", Factor: 1},
		HiddenAct: "silu",
	}
	change(c)
	return c
}

func TestConfig(t *testing.T) {
	id := func(n int) *int { return &n }
	const llama3 = `"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192`
	wantLlama3 := RopeScaling{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 8192}
	tests := []struct {
		name    string
		changes map[string]string
		want    func(*Config)
	}{
		{"defaults", nil, func(*Config) {}},
		{"nulls", map[string]string{
			"head_dim": "null", "rope_scaling": "null", "rope_parameters": "null", "bos_token_id": "null",
			"eos_token_id": "null", "rms_norm_eps": "null", "torch_dtype": "null", "quantization_config": "null",
			"attention_bias": "null", "hidden_act": "null",
		}, func(*Config) {}},
		{"no kv heads", map[string]string{"num_key_value_heads": without}, func(c *Config) { c.KVHeads = 8 }},
		{"kv heads null", map[string]string{"num_key_value_heads": "null"}, func(c *Config) { c.KVHeads = 8 }},
		{"head_dim", map[string]string{"head_dim": "32"}, func(c *Config) { c.HeadDim = 32 }},
		{"head_dim where heads do not divide", map[string]string{"head_dim": "12", "hidden_size": "65"}, func(c *Config) { c.HeadDim, c.HiddenSize = 12, 65 }},
		{"sizes as floats", map[string]string{"hidden_size": "64.0", "vocab_size": "5.12e2"}, func(*Config) {}},
		{"eos list", map[string]string{"bos_token_id": "1", "eos_token_id": "[2, 7]"}, func(c *Config) { c.BOS, c.EOS = id(1), []int{2, 7} }},
		{"eos number, bos zero", map[string]string{"bos_token_id": "0", "eos_token_id": "2"}, func(c *Config) { c.BOS, c.EOS = id(0), []int{2} }},
		{"torch_dtype", map[string]string{"torch_dtype": `"float16"`}, func(c *Config) { c.DType = "float16" }},
		{"dtype", map[string]string{"dtype": `"bfloat16"`}, func(c *Config) { c.DType = "bfloat16" }},
		{"both dtypes", map[string]string{"dtype": `"bfloat16"`, "torch_dtype": `"float32"`}, func(c *Config) { c.DType = "bfloat16" }},
		{"tied", map[string]string{"tie_word_embeddings": "true"}, func(c *Config) { c.TieEmbeddings = true }},
		{"biases", map[string]string{"attention_bias": "true", "mlp_bias": "true"}, func(c *Config) { c.AttentionBias, c.OutputBias, c.MLPBias = true, true, true }},
		{"rope of version 4", map[string]string{"rope_theta": "500000", "rope_scaling": `{"rope_type":"llama3",` + llama3 + `}`}, func(c *Config) { c.RopeTheta, c.Rope = 500000, wantLlama3 }},
		{"rope of version 5", map[string]string{"rope_parameters": `{"rope_theta":500000.0,"rope_type":"llama3",` + llama3 + `}`}, func(c *Config) { c.RopeTheta, c.Rope = 500000, wantLlama3 }},
		{"rope of both versions", map[string]string{
			"rope_theta": "500000", "rope_scaling": `{"type":"llama3",` + llama3 + `}`,
			"rope_parameters": `{"rope_theta":500000.0,"rope_type":"llama3",` + llama3 + `}`,
		}, func(c *Config) { c.RopeTheta, c.Rope = 500000, wantLlama3 }},
		{"rope_parameters without theta", map[string]string{"rope_theta": "7", "rope_parameters": `{"rope_type":"default"}`}, func(c *Config) { c.RopeTheta = 7 }},
		{"old linear rope", map[string]string{"rope_scaling": `{"type":"linear","factor":2.5}`}, func(c *Config) { c.Rope = RopeScaling{Type: "linear", Factor: 2.5} }},
		{"empty rope_scaling", map[string]string{"rope_scaling": `{}`}, func(*Config) {}},
		{"rope_type wins over type", map[string]string{"rope_scaling": `{"type":"default","rope_type":"linear","factor":2}`}, func(c *Config) { c.Rope = RopeScaling{Type: "linear", Factor: 2} }},
		{"llama has no window", map[string]string{"sliding_window": "4096"}, func(*Config) {}},
		{"all layers with full attention", map[string]string{"layer_types": `["full_attention","full_attention"]`}, func(*Config) {}},
		{"quantization", map[string]string{"quantization_config": `{ "quant_method": "lutq" }`}, func(c *Config) { c.Quantization = json.RawMessage(`{ "quant_method": "lutq" }`) }},
		{"no architectures", map[string]string{"architectures": without}, func(*Config) {}},
		{"empty architectures", map[string]string{"architectures": "[]"}, func(*Config) {}},
		{"mistral", map[string]string{"architectures": `["MistralForCausalLM"]`, "model_type": `"mistral"`, "attention_bias": "true"}, func(c *Config) {
			c.Architecture, c.ModelType, c.MaxPositions, c.SlidingWindow = mistral, "mistral", 131072, 4096
		}},
		{"mistral by its type, window null, defaults", map[string]string{
			"architectures": without, "model_type": `"mistral"`, "sliding_window": "null", "num_key_value_heads": without,
		}, func(c *Config) {
			c.Architecture, c.ModelType, c.MaxPositions, c.KVHeads = mistral, "mistral", 131072, 8
		}},
		{"qwen2", map[string]string{
			"architectures": `["Qwen2ForCausalLM"]`, "model_type": `"qwen2"`, "attention_bias": "false", "sliding_window": "32768", "use_sliding_window": "false",
		}, func(c *Config) {
			c.Architecture, c.ModelType, c.MaxPositions, c.AttentionBias = qwen2, "qwen2", 32768, true
		}},
		{"qwen2 by its type, window above the last layer", map[string]string{
			"architectures": without, "model_type": `"qwen2"`, "sliding_window": "100", "use_sliding_window": "true", "max_window_layers": "5",
		}, func(c *Config) {
			c.Architecture, c.ModelType, c.MaxPositions, c.AttentionBias = qwen2, "qwen2", 32768, true
		}},
		{"qwen3", map[string]string{"architectures": `["Qwen3ForCausalLM"]`, "model_type": `"qwen3"`}, func(c *Config) {
			c.Architecture, c.ModelType, c.MaxPositions, c.QKNorm, c.HeadDim = qwen3, "qwen3", 32768, true, 128
		}},
		{"qwen3 by its type, head_dim null", map[string]string{"architectures": without, "model_type": `"qwen3"`, "head_dim": "null", "attention_bias": "true"}, func(c *Config) {
			c.Architecture, c.ModelType, c.MaxPositions, c.QKNorm = qwen3, "qwen3", 32768, true
			c.AttentionBias, c.OutputBias = true, true
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseConfig(configText(tt.changes))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wantConfig(tt.want), got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			if err := got.Supported(); err != nil {
				t.Errorf("config is not supported: %v", err)
			}
		})
	}
}

func TestBadConfigs(t *testing.T) {
	tests := []struct {
		name, key, value string
		want             string
	}{
		{"hidden_size missing", "hidden_size", without, "hidden_size: missing"},
		{"hidden_size null", "hidden_size", "null", "hidden_size: missing"},
		{"hidden_size zero", "hidden_size", "0", "hidden_size: 0 is outside 1 to 2147483647"},
		{"hidden_size negative", "hidden_size", "-64", "hidden_size: -64 is outside"},
		{"hidden_size fractional", "hidden_size", "64.5", `hidden_size: "64.5" is not an integer`},
		{"hidden_size huge", "hidden_size", "1e300", "hidden_size: 1e300 is outside"},
		{"hidden_size overflows", "hidden_size", "1e999", "is not an integer"},
		{"hidden_size a string", "hidden_size", `"64"`, `hidden_size: "\"64\"" is not an integer`},
		{"heads do not divide", "hidden_size", "65", "hidden_size: 65 is not a multiple of 8 num_attention_heads"},
		{"kv heads do not divide", "num_key_value_heads", "3", "num_attention_heads: 8 is not a multiple of 3"},
		{"kv heads zero", "num_key_value_heads", "0", "num_key_value_heads: 0 is outside"},
		{"intermediate_size missing", "intermediate_size", without, "intermediate_size: missing"},
		{"layers missing", "num_hidden_layers", without, "num_hidden_layers: missing"},
		{"heads missing", "num_attention_heads", without, "num_attention_heads: missing"},
		{"heads zero", "num_attention_heads", "0", "num_attention_heads: 0 is outside"},
		{"vocabulary missing", "vocab_size", without, "vocab_size: missing"},
		{"head_dim zero", "head_dim", "0", "head_dim: 0 is outside"},
		{"head_dim huge", "head_dim", "2147483647", "head_dim: 8 heads of 2147483647 are too wide"},
		{"positions negative", "max_position_embeddings", "-1", "max_position_embeddings: -1 is outside"},
		{"eps zero", "rms_norm_eps", "0", `rms_norm_eps: "0" is not a positive number`},
		{"eps a string", "rms_norm_eps", `"1e-5"`, "rms_norm_eps:"},
		{"theta negative", "rope_theta", "-1", `rope_theta: "-1" is not a positive number`},
		{"tied a number", "tie_word_embeddings", "1", `tie_word_embeddings: "1" is not true or false`},
		{"act a list", "hidden_act", "[]", "hidden_act: want a string"},
		{"eos a string", "eos_token_id", `"</s>"`, "eos_token_id:"},
		{"eos negative", "eos_token_id", `[1,-1]`, "eos_token_id: -1 is outside"},
		{"bos a list", "bos_token_id", `[1]`, "bos_token_id:"},
		{"architectures a string", "architectures", `"LlamaForCausalLM"`, "architectures: want a list of strings"},
		{"quantization a string", "quantization_config", `"gptq"`, "quantization_config: want a JSON object"},
		{"layer types a string", "layer_types", `"full_attention"`, "layer_types: want a list of strings"},
		{"rope a list", "rope_scaling", "[]", "rope_scaling: want a JSON object"},
		{"rope key twice", "rope_scaling", `{"type":"linear","type":"linear","factor":2}`, `rope_scaling: key "type" appears twice`},
		{"linear without factor", "rope_scaling", `{"type":"linear"}`, "rope_scaling: factor: missing"},
		{"linear with factor zero", "rope_scaling", `{"type":"linear","factor":0}`, `rope_scaling: factor: "0" is not a positive number`},
		{"llama3 without factor", "rope_parameters", `{"rope_type":"llama3","low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}`, "rope_parameters: factor: missing"},
		{"llama3 without low", "rope_scaling", `{"rope_type":"llama3","factor":8,"high_freq_factor":4,"original_max_position_embeddings":8192}`, "low_freq_factor: missing"},
		{"llama3 without high", "rope_scaling", `{"rope_type":"llama3","factor":8,"low_freq_factor":1,"original_max_position_embeddings":8192}`, "high_freq_factor: missing"},
		{"llama3 without original", "rope_scaling", `{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}`, "original_max_position_embeddings: missing"},
		{"llama3 with equal bounds", "rope_scaling", `{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,"original_max_position_embeddings":8192}`, "high_freq_factor: 4 is not above low_freq_factor 4"},
		{"theta twice", "rope_parameters", `{"rope_theta":5}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changes := map[string]string{tt.key: tt.value}
			want := tt.want
			if tt.name == "theta twice" {
				changes["rope_theta"] = "6"
				want = "rope_theta 5 disagrees with the 6 outside"
			}
			_, err := parseConfig(configText(changes))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got error %v: want %q in it", err, want)
			}
		})
	}
}

func TestBadConfigTexts(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "invalid JSON",
		"{":                               "invalid JSON",
		"[]":                              "want a JSON object",
		"\xff":                            "invalid UTF-8",
		`{"vocab_size":1,"vocab_size":2}`: `key "vocab_size" appears twice`,
		`{"rope_theta": NaN}`:             "invalid JSON",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v: want %q in it", text, err, want)
		}
	}
	both := configText(map[string]string{"rope_scaling": `{"type":"linear","factor":2}`, "rope_parameters": `{"rope_type":"linear","factor":4}`})
	if _, err := parseConfig(both); err == nil || !strings.Contains(err.Error(), "disagrees with rope_scaling") {
		t.Errorf("got error %v: want that the two disagree", err)
	}
}

func TestUnsupported(t *testing.T) {
	tests := []struct {
		name    string
		changes map[string]string
		want    string
	}{
		{"architecture", map[string]string{"architectures": `["FooForCausalLM"]`}, `architecture "FooForCausalLM" is not supported: want LlamaForCausalLM`},
		{"no architecture", map[string]string{"architectures": without, "model_type": without}, "names no architecture"},
		{"strange sizes of a strange architecture", map[string]string{"architectures": `["FooForCausalLM"]`, "hidden_size": "[]", "num_attention_heads": without}, `architecture "FooForCausalLM"`},
		{"nested", map[string]string{"architectures": `["BarForConditionalGeneration"]`, "text_config": `{"hidden_size":1}`}, "nested in text_config"},
		{"yarn", map[string]string{"rope_scaling": `{"type":"yarn","factor":4}`}, `rope type "yarn" is not supported`},
		{"dynamic", map[string]string{"rope_parameters": `{"rope_type":"dynamic","factor":4}`}, `rope type "dynamic" is not supported`},
		{"act", map[string]string{"hidden_act": `"gelu"`}, `hidden_act "gelu" is not supported`},
		{"window", map[string]string{"architectures": `["Qwen2ForCausalLM"]`, "use_sliding_window": "true", "sliding_window": "128", "max_window_layers": "4"}, "sliding window"},
		{"layer types", map[string]string{"layer_types": `["full_attention","sliding_attention"]`}, "sliding window"},
		{"partial rotary", map[string]string{"partial_rotary_factor": "0.5"}, "partial_rotary_factor 0.5"},
		{"partial rotary of version 5", map[string]string{"rope_parameters": `{"partial_rotary_factor":0.75}`}, "partial_rotary_factor 0.75"},
		{"odd head_dim", map[string]string{"head_dim": "7"}, "head_dim 7 is odd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseConfig(configText(tt.changes))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Supported(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v: want %q in it", err, tt.want)
			}
		})
	}
}

// TestPublishedConfigs reads configs as they were published.
func TestPublishedConfigs(t *testing.T) {
	const dir = sharedDir + "/configs"
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no published configs: %v", err)
	}
	id := func(n int) *int { return &n }
	llama31 := RopeScaling{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 8192}
	plain := RopeScaling{Type: "default", Factor: 1}
	tests := map[string]struct {
		want        Config
		unsupported string
	}{
		"llama-2-7b.json": {want: Config{
			Architecture: llama, ModelType: "llama", HiddenSize: 4096, IntermediateSize: 11008, Layers: 32, Heads: 32, KVHeads: 32,
			HeadDim: 128, VocabSize: 32000, MaxPositions: 2048, RMSNormEps: 1e-5, RopeTheta: 1e4, Rope: plain, HiddenAct: "silu",
			BOS: id(1), EOS: []int{2}, DType: "float16",
		}},
		"llama3_1_8b.json": {want: Config{
			Architecture: llama, ModelType: "llama", HiddenSize: 4096, IntermediateSize: 14336, Layers: 32, Heads: 32, KVHeads: 8,
			HeadDim: 128, VocabSize: 128256, MaxPositions: 131072, RMSNormEps: 1e-5, RopeTheta: 5e5, Rope: llama31, HiddenAct: "silu",
			BOS: id(128000), EOS: []int{128001, 128008, 128009}, DType: "bfloat16",
		}},
		"llama3_1_70b.json": {want: Config{
			Architecture: llama, ModelType: "llama", HiddenSize: 8192, IntermediateSize: 28672, Layers: 80, Heads: 64, KVHeads: 8,
			HeadDim: 128, VocabSize: 128256, MaxPositions: 131072, RMSNormEps: 1e-5, RopeTheta: 5e5, Rope: llama31, HiddenAct: "silu",
			BOS: id(128000), EOS: []int{128001, 128008, 128009}, DType: "bfloat16",
		}},
		"smollm2_135m.json": {want: Config{
			Architecture: llama, ModelType: "llama", HiddenSize: 576, IntermediateSize: 1536, Layers: 30, Heads: 9, KVHeads: 3,
			HeadDim: 64, VocabSize: 49152, MaxPositions: 8192, RMSNormEps: 1e-5, RopeTheta: 1e5, Rope: plain, HiddenAct: "silu",
			TieEmbeddings: true, BOS: id(1), EOS: []int{2}, DType: "bfloat16",
		}},
		"mistral_7b_v03.json": {want: Config{
			Architecture: mistral, ModelType: "mistral", HiddenSize: 4096, IntermediateSize: 14336, Layers: 32, Heads: 32, KVHeads: 8,
			HeadDim: 128, VocabSize: 32768, MaxPositions: 32768, RMSNormEps: 1e-5, RopeTheta: 1e6, Rope: plain, HiddenAct: "silu",
			BOS: id(1), EOS: []int{2}, DType: "bfloat16",
		}},
		"qwen2.5_3b.json": {want: Config{
			Architecture: qwen2, ModelType: "qwen2", HiddenSize: 2048, IntermediateSize: 11008, Layers: 36, Heads: 16, KVHeads: 2,
			HeadDim: 128, VocabSize: 151936, MaxPositions: 32768, RMSNormEps: 1e-6, RopeTheta: 1e6, Rope: plain, HiddenAct: "silu",
			TieEmbeddings: true, AttentionBias: true, BOS: id(151643), EOS: []int{151645}, DType: "bfloat16",
		}},
		"qwen3_0.6b.json": {want: Config{
			Architecture: qwen3, ModelType: "qwen3", HiddenSize: 1024, IntermediateSize: 3072, Layers: 28, Heads: 16, KVHeads: 8,
			HeadDim: 128, VocabSize: 151936, MaxPositions: 40960, RMSNormEps: 1e-6, RopeTheta: 1e6, Rope: plain, HiddenAct: "silu",
			TieEmbeddings: true, QKNorm: true, BOS: id(151643), EOS: []int{151645}, DType: "bfloat16",
		}},
		"gemma2_9b.json": {want: Config{
			Architecture: "Gemma2ForCausalLM", ModelType: "gemma2", HiddenSize: 3584, IntermediateSize: 14336, Layers: 42, Heads: 16, KVHeads: 8,
			HeadDim: 256, VocabSize: 256000, MaxPositions: 8192, RMSNormEps: 1e-6, RopeTheta: 1e4, Rope: plain, HiddenAct: "gelu_pytorch_tanh",
			TieEmbeddings: true, SlidingWindow: 4096, BOS: id(2), EOS: []int{1}, DType: "bfloat16",
		}, unsupported: "Gemma2ForCausalLM"},
		"gemma3_1b_it.json": {want: Config{
			Architecture: "Gemma3ForCausalLM", ModelType: "gemma3_text", HiddenSize: 1152, IntermediateSize: 6912, Layers: 26, Heads: 4, KVHeads: 1,
			HeadDim: 256, VocabSize: 262144, MaxPositions: 32768, RMSNormEps: 1e-6, RopeTheta: 1e6, Rope: plain, HiddenAct: "gelu_pytorch_tanh",
			TieEmbeddings: true, QKNorm: true, SlidingWindow: 512, BOS: id(2), EOS: []int{1, 106}, DType: "bfloat16",
		}, unsupported: "Gemma3ForCausalLM"},
		"phi-4.json": {want: Config{
			Architecture: "Phi3ForCausalLM", ModelType: "phi3", HiddenSize: 3072, IntermediateSize: 8192, Layers: 32, Heads: 24, KVHeads: 8,
			HeadDim: 128, VocabSize: 200064, MaxPositions: 131072, RMSNormEps: 1e-5, RopeTheta: 1e4, Rope: RopeScaling{Type: "longrope", Factor: 1}, HiddenAct: "silu",
			TieEmbeddings: true, SlidingWindow: 262144, BOS: id(199999), EOS: []int{199999}, DType: "bfloat16",
		}, unsupported: "Phi3ForCausalLM"},
	}
	paths, err := filepath.Glob(dir + "/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no configs in %s: %v", dir, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			tt, ok := tests[filepath.Base(path)]
			got, err := ReadConfig(path)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				t.Skip("nothing is written down about this config")
			}
			if diff := cmp.Diff(&tt.want, got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			switch err := got.Supported(); {
			case tt.unsupported == "" && err != nil:
				t.Error(err)
			case tt.unsupported != "" && (err == nil || !strings.Contains(err.Error(), tt.unsupported)):
				t.Errorf("got error %v: want %q in it", err, tt.unsupported)
			}
		})
	}
}

func TestReadConfigErrors(t *testing.T) {
	dir := folder(t, map[string]string{"config.json": "{"})
	if _, err := ReadConfig(dir); err == nil || !strings.Contains(err.Error(), "config.json: invalid JSON") {
		t.Errorf("got error %v: want it to name the file", err)
	}
	if _, err := ReadConfig(filepath.Join(dir, "no.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v: want %v", err, fs.ErrNotExist)
	}
}

// FuzzConfig: of a config that is read and supported, every size can be
// computed with.
func FuzzConfig(f *testing.F) {
	f.Add(configText(nil))
	f.Add(configText(map[string]string{"architectures": `["Qwen3ForCausalLM"]`, "head_dim": "null"}))
	f.Add(configText(map[string]string{"architectures": `["Qwen2ForCausalLM"]`, "use_sliding_window": "true"}))
	f.Add(configText(map[string]string{"rope_parameters": `{"full_attention":{"full_attention":{}}}`, "eos_token_id": "[1]"}))
	f.Add(configText(map[string]string{"rope_scaling": `{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}`}))
	f.Add([]byte(`{"text_config":{"quantization_config":{"quant_method":"a\nb"}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if keys, err := readFields(b); err == nil {
			if by := keys.quantizedBy(); strings.ContainsRune(by, '\n') || len(by) > 400 {
				t.Fatalf("quantized by %q", by)
			}
		}
		c, err := parseConfig(b)
		if err == nil {
			err = c.Supported()
		}
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("error %q has several lines", err)
			}
			return
		}
		for _, n := range []int{
			c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.VocabSize, c.MaxPositions, c.Heads * c.HeadDim,
		} {
			if n <= 0 || n > math.MaxInt32 {
				t.Fatalf("size of %d in %+v", n, c)
			}
		}
		if c.Heads%c.KVHeads != 0 || c.HeadDim%2 != 0 {
			t.Fatalf("%d heads of %d over %d", c.Heads, c.HeadDim, c.KVHeads)
		}
		for _, v := range []float64{c.RMSNormEps, c.RopeTheta, c.Rope.Factor} {
			if !(v > 0) || math.IsInf(v, 0) {
				t.Fatalf("value of %v in %+v", v, c)
			}
		}
	})
}
