package export_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/quantize/quantizetest"
)

// tinyWith is the tiny model with other files beside it.
func tinyWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := os.CopyFS(dir, os.DirFS("../../calib/testdata/lutq-tiny")); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tinyConfig is the model's config.json.
func tinyConfig(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../calib/testdata/lutq-tiny/config.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// quantized quantizes a model by a recipe in JSON.
func quantized(t *testing.T, dir, recipe string) string {
	t.Helper()
	return quantizetest.Container(t, dir, quantizetest.Recipe(t, recipe))
}

// TestOpensIn: a container opens in what its layers are for.
func TestOpensIn(t *testing.T) {
	for _, tc := range []struct {
		name, recipe string
		files        map[string]string
		want         card.Opens
	}{
		{"a table of no other program", `{"bits": 3, "codebook": "js"}`, nil, card.Opens{Family: true, VLLM: true}},
		{"NormalFloat", `{"bits": 4, "codebook": "nf"}`, nil, card.Opens{Family: true, VLLM: true, Exports: []string{"bnb"}}},
		{"integers", `{"codebook": "q4", "group": 128, "scale_type": "bf16"}`, nil, card.Opens{Family: true, VLLM: true, Exports: []string{"ct", "mlx"}}},
		{"two kinds of tables", `{"codebook": "q4", "group": 128, "scale_type": "bf16", "tensors": [{"match": "down_proj", "codebook": "nf"}]}`, nil, card.Opens{Family: true, VLLM: true}},
		{"trellis codes", `{"bits": 2, "codebook": "trellis", "tensors": [{"match": "layers\\.[1-3]|[qkv]_proj|mlp", "keep": true}]}`, nil, card.Opens{Family: true, VLLM: true}},
		{"EXL3's", `{"bits": 2, "codebook": "mul1", "tensors": [{"match": "layers\\.[1-3]|[qkv]_proj|mlp", "keep": true}]}`, nil, card.Opens{Family: true, VLLM: true, Exports: []string{"exl3"}}},
		{"binary codes", `{"bits": 2, "method": "bcq"}`, nil, card.Opens{Family: true, VLLM: true}},
		{"fused layers that differ", `{"bits": 3, "codebook": "js", "split_fused": true, "tensors": [{"match": "q_proj", "bits": 4}]}`, nil, card.Opens{Family: true, VLLM: true}},
		{"an embedding", `{"bits": 3, "codebook": "js", "tensors": [{"match": "embed_tokens", "bits": 4}]}`, nil, card.Opens{Family: true, VLLM: true}},
		{"an architecture that vLLM lacks", `{"bits": 3, "codebook": "js"}`, map[string]string{"config.json": strings.Replace(tinyConfig(t), "LlamaFor", "Qwen3_5For", 1)}, card.Opens{Family: true}},
		{"a chat template", `{"bits": 3, "codebook": "js"}`, map[string]string{"chat_template.jinja": "{{ messages }}"}, card.Opens{Family: true, VLLM: true, Chat: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := lutq.Open(quantized(t, tinyWith(t, tc.files), tc.recipe))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			got, err := export.OpensIn(m)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("opens in (-want +got):\n%s", diff)
			}
			// What is said to be held is held.
			for _, name := range got.Exports {
				to, err := export.For(name)
				if err != nil {
					t.Fatal(err)
				}
				p, err := export.New(t.Context(), modeltest.Open(t, m.Checkpoint().Dir()), to)
				if err == nil {
					err = p.Check(export.Options{})
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestExportedCard: what is exported has a card that says what it is now, and names the original.
func TestExportedCard(t *testing.T) {
	dir := quantized(t, tinyWith(t, map[string]string{"README.md": "---\nlicense: mit\n---\n# Tiny\n"}), `{"codebook": "q4", "group": 32}`)
	run := func(t *testing.T, target string) map[string]string {
		to, err := export.For(target)
		if err != nil {
			t.Fatal(err)
		}
		p, err := export.New(t.Context(), modeltest.Open(t, dir), to)
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "out")
		if _, err := p.Run(t.Context(), out, export.Options{}); err != nil {
			t.Fatal(err)
		}
		files := make(map[string]string)
		for _, name := range []string{card.FileName, card.OriginalName} {
			if text, err := os.ReadFile(filepath.Join(out, name)); err == nil {
				files[name] = string(text)
			}
		}
		return files
	}
	for _, tc := range []struct{ target, library, programs string }{
		{"gguf", "", "It opens in llama.cpp."},
		{"gptq", "transformers", "It opens in gptqmodel, vLLM."},
		{"dense", "transformers", ""},
	} {
		t.Run(tc.target, func(t *testing.T) {
			files := run(t, tc.target)
			text := files[card.FileName]
			for _, want := range []string{
				"license: mit\ntags:\n- lutq\n- quantized\n- " + tc.target + "\n---\n", "\n# tiny, quantized by lutq, as " + tc.target + "\n", tc.programs,
				"    lutq quantize MODEL OUT --bits 4 ", "\n    lutq export OUT OTHER --to " + tc.target + "\n",
			} {
				if !strings.Contains(text, want) {
					t.Errorf("the card lacks %q:\n%s", want, text)
				}
			}
			if strings.Contains(text, "library_name: transformers") != (tc.library != "") {
				t.Errorf("library:\n%s", text)
			}
			if strings.Contains(text, "](ORIGINAL_README.md)") != (files[card.OriginalName] != "") {
				t.Errorf("the card names the original's where that is not there, or does not:\n%s", text)
			}
		})
	}
	t.Run("another's card", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(dir, card.FileName), []byte("# Mine\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if text := run(t, "dense")[card.FileName]; text != "# Mine\n" {
			t.Errorf("it is now\n%s", text)
		}
	})
}
