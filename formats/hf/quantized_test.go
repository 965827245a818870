package hf

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkpoint writes a folder of zeros and opens it.
func checkpoint(t testing.TB, config string, entries ...Entry) *Checkpoint {
	t.Helper()
	dir := t.TempDir()
	var data [][]byte
	for _, e := range entries {
		n, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, make([]byte, n))
	}
	write(t, dir, entries, data, WriterOptions{})
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, dir)
}

// layer0 is a layer that is not quantized, as every folder below has one.
var layer0 = Entry{Name: "model.layers.0.mlp.up_proj.weight", DType: BF16, Shape: []int{8, 8}}

// layer1 returns tensors of the layer that is.
func layer1(parts ...any) []Entry {
	entries := []Entry{layer0}
	for i := 0; i < len(parts); i += 2 {
		entries = append(entries, Entry{Name: "model.layers.1.mlp.up_proj" + parts[i].(string), DType: DType(parts[i+1].(string)), Shape: []int{8, 8}})
	}
	return entries
}

func TestCheckPlain(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		entries      []Entry
		by           string // "" where the folder is plain
	}{
		{"plain", `{"model_type": "llama", "quantization_config": null}`, nil, ""},
		{"no keys", `{}`, nil, ""},
		{"scale of another thing", `{}`, layer1(".weight", "BF16", ".layer_scale", "BF16"), ""},
		{"position ids", `{}`, layer1(".position_ids", "I64"), ""},

		{"gptq by config", `{"quantization_config": {"quant_method": "gptq", "bits": 4}}`, nil, "GPTQ"},
		{"awq by config", `{"quantization_config": {"quant_method": "AWQ"}}`, nil, "AWQ"},
		{"lutq by config", `{"quantization_config": {"quant_method": "lutq"}}`, nil, "lutq"},
		{"fp8 that is none any more", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`, nil, ""},
		{"fp8", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 1]}}`, layer1(".weight", "F8_E4M3", ".weight_scale_inv", "F32"), ""},
		{"fp8 that is gptq", `{"quantization_config": {"quant_method": "fp8"}}`, layer1(".qweight", "I32", ".qzeros", "I32", ".scales", "F16", ".g_idx", "I32"), "GPTQ"},
		{"integers of compressed-tensors", `{"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized"}}`, nil, "compressed-tensors"},
		{"bitsandbytes of old", `{"quantization_config": {"load_in_8bit": true}}`, nil, "bitsandbytes"},
		{"unknown to us", `{"quantization_config": {"quant_method": "frobnicate"}}`, nil, `"frobnicate"`},
		{"unnamed", `{"quantization_config": {"bits": 4}}`, nil, "a tool that it does not name"},
		{"no object", `{"quantization_config": 4}`, nil, "a tool that it does not name"},
		{"sparseml", `{"compression_config": {}}`, nil, "compressed-tensors"},
		{"mlx by config", `{"quantization": {"group_size": 64, "bits": 4}}`, nil, "MLX"},
		{"text part", `{"text_config": {"quantization_config": {"quant_method": "hqq"}}}`, nil, "HQQ"},

		{"lutq", `{}`, layer1(".codes", "U8", ".scales", "F16", ".codebook", "F32"), "lutq"},
		{"gptq", `{}`, layer1(".qweight", "I32", ".qzeros", "I32", ".scales", "F16", ".g_idx", "I32"), "GPTQ"},
		{"awq", `{}`, layer1(".qweight", "I32", ".qzeros", "I32", ".scales", "F16"), "AWQ"},
		{"gptq without zeros", `{}`, layer1(".qweight", "I32", ".scales", "F16"), "GPTQ"},
		{"compressed-tensors", `{}`, layer1(".weight_packed", "I32", ".weight_scale", "BF16"), "compressed-tensors"},
		{"bitsandbytes 4", `{}`, layer1(".weight", "U8", ".weight.absmax", "F32"), "bitsandbytes (4 bits)"},
		{"bitsandbytes 8", `{}`, layer1(".weight", "I8", ".SCB", "F32"), "bitsandbytes (8 bits)"},
		{"deepseek", `{}`, layer1(".weight", "F8_E4M3", ".weight_scale_inv", "F32"), "FP8 in blocks"},
		{"fp8 that no config tells of", `{}`, layer1(".weight", "F8_E4M3", ".weight_scale", "F32"), "FP8"},
		{"nvfp4", `{}`, layer1(".weight", "U8", ".weight_scale", "F8_E4M3", ".weight_scale_2", "F32"), "NVFP4"},
		{"int8", `{}`, layer1(".weight", "I8", ".weight_scale", "F32"), "int8 with scales"},
		{"gpt-oss", `{}`, layer1("_blocks", "U8", "_scales", "U8"), "MXFP4"},
		{"mlx", `{}`, layer1(".weight", "U32", ".scales", "BF16", ".biases", "BF16"), "MLX"},
		{"torchao", `{}`, layer1("._weight_qdata", "I8", "._weight_scale", "F32"), "torchao"},
		{"quanto", `{}`, layer1(".weight._data", "I8", ".weight._scale", "F32"), "quanto"},
		{"hqq", `{}`, layer1(".W_q", "U8"), "HQQ"},
		{"exl3", `{}`, layer1(".trellis", "I16", ".suh", "F16"), "exl3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.entries == nil {
				tc.entries = []Entry{layer0}
			}
			err := checkpoint(t, tc.config, tc.entries...).CheckPlain()
			var e *QuantizedError
			switch {
			case tc.by == "" && err != nil:
				t.Errorf("a plain folder is refused: %v", err)
			case tc.by != "" && !errors.As(err, &e):
				t.Errorf("got %v, want already quantized by %s", err, tc.by)
			case tc.by != "" && (e.By != tc.by || e.Hint() == ""):
				t.Errorf("got %q (hint %q), want by %s", e, e.Hint(), tc.by)
			}
			if tc.by != "" && tc.entries != nil && len(tc.entries) > 1 && !strings.Contains(err.Error(), "model.layers.1.mlp.up_proj") {
				t.Errorf("%q does not name a tensor", err)
			}
		})
	}
}

func TestCheckPlainTransposed(t *testing.T) {
	for modelType, want := range map[string]bool{"gpt2": true, "openai-gpt": true, "imagegpt": true, "gptj": false, "gpt_neox": false} {
		err := checkpoint(t, `{"model_type": "`+modelType+`"}`, layer0).CheckPlain()
		var e *TransposedError
		if errors.As(err, &e) != want {
			t.Errorf("%s: %v", modelType, err)
		}
	}
}

func TestPacked(t *testing.T) {
	for _, tc := range []struct {
		name  string
		dtype DType
		shape []int
		want  bool
	}{
		{"a.weight", "I8", []int{2, 2}, true},
		{"a.weight", "F8_E4M3", []int{2, 2}, true},
		{"a.scale", "F8_E8M0", []int{2}, true},
		{"mlp.experts.up_proj", "U8", []int{2, 2, 2}, true},
		{"a.qweight", "I32", []int{2, 2}, true},
		{"a.weight", "I64", []int{2, 2}, true},
		{"a.weight", BF16, []int{2, 2}, false},
		{"a.weight", "I8", []int{2}, false},
		{"a.weight", "I8", []int{0, 2}, false},
		{"a.position_ids", "I64", []int{1, 2}, false},
		{"h.0.attn.bias", "BOOL", []int{1, 1, 2, 2}, false},
		{"h.0.attn.bias", "U8", []int{1, 1, 2, 2}, false},
		{"a.causal_mask", "U8", []int{2, 2}, false},
	} {
		n, _, err := sizeOf(tc.dtype, tc.shape)
		if err != nil {
			t.Fatal(err)
		}
		x := Tensor{Name: tc.name, DType: tc.dtype, Shape: tc.shape, elements: n}
		if got := x.Packed(); got != tc.want {
			t.Errorf("%s %s %v: %v, want %v", tc.name, tc.dtype, tc.shape, got, tc.want)
		}
	}
}

// TestUnreadable checks that weights in other formats are named, and that what
// is said to convert them fits the format.
func TestUnreadable(t *testing.T) {
	for _, tc := range []struct {
		name, file, hint string
		files            map[string]string
	}{
		{"PyTorch", "pytorch_model.bin", "save_pretrained(o)", map[string]string{"pytorch_model.bin": "weights", "optimizer.pt": "x", "training_args.bin": ""}},
		{"shards", "pytorch_model-00001-of-00002.bin", "python3 -c", map[string]string{
			"pytorch_model-00001-of-00002.bin": "weights", "pytorch_model.bin.index.json": `{"longer": "than the weights"}`,
		}},
		{"GGUF", "model-q4_k_m.gguf", "the model that the file was made from", map[string]string{"model-q4_k_m.gguf": "GGUF"}},
		{"Flax", "flax_model.msgpack", "transformers", map[string]string{"flax_model.msgpack": "x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(folder(t, tc.files))
			var e *UnreadableError
			if !errors.As(err, &e) || e.File != tc.file || !strings.Contains(e.Hint(), tc.hint) {
				t.Errorf("got %v, want one on %s with a hint of %q", err, tc.file, tc.hint)
			}
		})
	}
}

// FuzzQuantizedBy: whatever a config.json holds, what is said of it fits a line.
func FuzzQuantizedBy(f *testing.F) {
	f.Add([]byte(`{"quantization_config":{"quant_method":"gptq"}}`))
	f.Add([]byte(`{"text_config":{"quantization_config":{"quant_method":"a\nb"}}}`))
	f.Add([]byte(`{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var config object
		if json.Unmarshal(text, &config) != nil {
			return
		}
		if by := config.quantizedBy(); strings.ContainsRune(by, '\n') || len(by) > 400 {
			t.Fatalf("quantized by %q", by)
		}
		stored := (&Checkpoint{}).asStored(config)
		if _, _, err := (FP8Scheme{}).Decode(stored); err != nil && strings.ContainsRune(err.Error(), '\n') {
			t.Fatalf("error %q has several lines", err)
		}
	})
}
