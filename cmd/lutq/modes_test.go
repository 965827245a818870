package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
)

// towerTensors are what a model that sees has beside its language model: a layer like a decoder's, a convolution, and what joins the two.
func towerTensors() []hf.Entry {
	return []hf.Entry{
		{Name: "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", DType: hf.BF16, Shape: []int{64, 64}},
		{Name: "vision_tower.vision_model.embeddings.patch_embedding.weight", DType: hf.F16, Shape: []int{8, 3, 14, 14}},
		{Name: "vision_tower.vision_model.encoder.layers.0.layer_norm1.weight", DType: hf.F32, Shape: []int{64}},
		{Name: "multi_modal_projector.linear_1.weight", DType: hf.BF16, Shape: []int{128, 64}},
		{Name: "image_newline", DType: hf.BF16, Shape: []int{128}},
	}
}

// seeing writes the model of a folder as the language model of one that sees, with config.json as given, where TEXT stands for its own.
func seeing(t *testing.T, from, root, config string) string {
	t.Helper()
	src, err := hf.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dir := t.TempDir()
	entries := towerTensors()
	data := make(map[string][]byte)
	for i, e := range entries {
		n, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		data[e.Name] = bytes.Repeat([]byte{byte(i + 1), 0x3c}, int(n)/2)
	}
	for _, x := range src.Tensors() {
		e := hf.Entry{Name: root + strings.TrimPrefix(x.Name, "model."), DType: x.DType, Shape: x.Shape}
		data[e.Name] = make([]byte, x.Bytes())
		if _, err := x.ReadAt(data[e.Name], 0); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range data {
		if err := w.WriteAt(name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := os.ReadFile(filepath.Join(from, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config.json": strings.ReplaceAll(config, "TEXT", string(own)), "tokenizer.json": string(tok)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// lutqJSON runs a command line that prints JSON, which v takes.
func lutqJSON(t *testing.T, v any, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(append(args, "--json", "--quiet"), nil, &stdout, &stderr); code != exitDone {
		t.Fatalf("%s: exit code %d: %s", strings.Join(args, " "), code, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), v); err != nil {
		t.Fatal(err)
	}
}

// TestModes: of a model that sees, the language model is quantized, evaluated and run as it is on its own, and the rest is kept bit
// for bit.
func TestModes(t *testing.T) {
	const tiny = "../../calib/testdata/lutq-tiny"
	text := filepath.Join(t.TempDir(), "text")
	prose, err := os.ReadFile("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(text, prose[:1500], 0o644); err != nil {
		t.Fatal(err)
	}
	type result struct {
		quantized struct {
			Quantized int    `json:"quantized"`
			SHA256    string `json:"sha256"`
			Kept      []struct {
				Reason  string
				Tensors int
				Names   []string
			}
		}
		ppl struct{ PPL float64 }
		gen struct{ Text string }
	}
	use := func(model string) (r result, out string) {
		out = filepath.Join(t.TempDir(), "out")
		lutqJSON(t, &r.quantized, "quantize", "--preset", "fast", model, out)
		lutqJSON(t, &struct{}{}, "verify", out, "--against", model)
		lutqJSON(t, &r.ppl, "eval-ppl", out, "--text", text, "--ctx", "64", "--windows", "2", "--device", "cpu")
		lutqJSON(t, &r.gen, "generate", out, "--prompt", "The harbour", "--max-tokens", "5", "--temperature", "0", "--device", "cpu")
		return r, out
	}
	want, _ := use(tiny)
	if want.quantized.Quantized != 28 || want.ppl.PPL == 0 || want.gen.Text == "" {
		t.Fatalf("got %+v", want)
	}
	for _, tc := range []struct{ name, root, config string }{
		{"llava", "language_model.model.", `{"architectures":["LlavaForConditionalGeneration"],"model_type":"llava","text_config":TEXT,"vision_config":{}}`},
		{"as version 5 names it", "model.language_model.", `{"architectures":["LlavaForConditionalGeneration"],"model_type":"llava","tie_word_embeddings":true,"text_config":TEXT,"vision_config":{}}`},
		{"internvl", "language_model.model.", `{"architectures":["InternVLChatModel"],"model_type":"internvl_chat","llm_config":TEXT}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			model := seeing(t, tiny, tc.root, tc.config)
			got, out := use(model)
			if got.ppl != want.ppl || got.gen != want.gen || got.quantized.Quantized != want.quantized.Quantized {
				t.Errorf("got perplexity %v, text %q, %d layers: want %v, %q, %d", got.ppl.PPL, got.gen.Text, got.quantized.Quantized, want.ppl.PPL, want.gen.Text, want.quantized.Quantized)
			}
			kept := 0
			for _, k := range got.quantized.Kept {
				if k.Reason == "outside the language model" {
					kept = k.Tensors
				}
			}
			if n := len(towerTensors()); kept != n {
				t.Errorf("%d tensors are kept outside the language model: want %d", kept, n)
			}
			a, err := hf.Open(model)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			b, err := hf.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			for _, e := range towerTensors() {
				x, _ := a.Tensor(e.Name)
				y, ok := b.Tensor(e.Name)
				if !ok || y.DType != e.DType {
					t.Errorf("%s: there %v", e.Name, ok)
					continue
				}
				p, q := make([]byte, x.Bytes()), make([]byte, y.Bytes())
				if _, err := x.ReadAt(p, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := y.ReadAt(q, 0); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(p, q) {
					t.Errorf("%s is changed", e.Name)
				}
			}
		})
	}
}
