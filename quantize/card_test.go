package quantize

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
)

// copyOf copies a model's folder and adds files.
func copyOf(t *testing.T, dir, name string, more map[string]string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for name, text := range more {
		writeFile(t, filepath.Join(to, name), text)
	}
	return to
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// problems verifies a container.
func problems(t *testing.T, dir string) []string {
	t.Helper()
	report, err := openContainer(t, dir).Verify(t.Context(), lutq.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return report.Problems
}

const tinyCard = `---
base_model: org/tiny
base_model_relation: quantized
library_name: transformers
license: mit
tags:
- lutq
- quantized
---

# tiny, quantized by lutq

[org/tiny](https://huggingface.co/org/tiny) with weights of 3 to 4 bits, made by [lutq](https://github.com/lutq/lutq): 1.39 MB, 8.480 bits a weight over all 1311872 parameters, 3.456 over the linear layers.

## What is in it

| part | weights | stored in | bits a weight | size |
|---|--:|---|--:|--:|
| 24 linear layers | 589824 | 3 bits, table ` + "`nf`" + `, groups of 64, rtn | 3.260 | 240 kB |
| 4 linear layers | 196608 | 4 bits, trellis codes, rtn | 4.042 | 99.3 kB |
| embedding | 524288 | BF16 | 16.000 | 1.05 MB |
| the rest | 1152 | BF16 | 16.000 | 2.30 kB |
| all | 1311872 | | 8.480 | 1.39 MB |

## How to open it

[lutq](https://github.com/lutq/lutq):

    lutq generate FOLDER --prompt 'Once upon a time'

transformers 5 or newer, with the code that lies in the folder; layers stay packed:

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained("FOLDER")

vLLM, with the plugin from a clone of lutq:

    pip install ./formats/lutq
    vllm serve FOLDER

## How it was made

    lutq quantize org/tiny@0123456789012345678901234567890123456789 OUT --bits 3 --group 64 --codebook nf --method rtn --scale mse --scale-type f16 --tensor 'down_proj=4::trellis'

The same command makes the same bytes of the same model. ` + "`lutq verify FOLDER`" + ` checks every tensor and file but this one. The SHA-256 of what was quantized is ` + "`SUM`" + `.

The card of the original: [ORIGINAL_README.md](ORIGINAL_README.md).

<!-- lutq {"name":"tiny","repo":"org/tiny","commit":"0123456789012345678901234567890123456789"} -->
`

// TestCard: a container has a card of its own beside the original's, which may be edited or left out, and the rest may not.
func TestCard(t *testing.T) {
	const original = "---\nlicense: mit\nbase_model: org/parent\n---\n# The tiny one\n"
	dir := copyOf(t, tiny, "folder", map[string]string{"README.md": original})
	p := plan(t, dir, `{"bits": 3, "codebook": "nf", "tensors": [{"match": "down_proj", "bits": 4, "codebook": "trellis"}]}`)
	p.Repo, p.Commit = "org/tiny", "0123456789012345678901234567890123456789"
	out := filepath.Join(t.TempDir(), "out")
	res, err := p.Run(t.Context(), out, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(out, card.FileName)
	written := readFile(t, path)
	if diff := cmp.Diff(tinyCard, strings.ReplaceAll(written, res.SHA256, "SUM")); diff != "" {
		t.Errorf("card (-want +got):\n%s", diff)
	}
	if got := readFile(t, filepath.Join(out, card.OriginalName)); got != original {
		t.Errorf("the original's card is now %q", got)
	}
	if found := problems(t, out); len(found) > 0 {
		t.Errorf("problems: %v", found)
	}

	t.Run("measured", func(t *testing.T) {
		out := copyOf(t, out, "out", nil)
		m := card.Measured{Text: "a`|b.txt", Protocol: "raw", Windows: 2, Context: 512, PPL: 71.6573, ReferencePPL: 57.5381, KL: .22481, KLCI: &[2]float64{.2212, .2263}, Top1: .6435}
		for range 2 {
			if err := Measured(out, m); err != nil {
				t.Fatal(err)
			}
		}
		got := readFile(t, filepath.Join(out, card.FileName))
		before, rest, _ := strings.Cut(got, "## How close it is to the original\n\n")
		part, after, ok := strings.Cut(rest, "## What is in it")
		if before+"## What is in it"+after != written || !ok {
			t.Errorf("something else changed too:\n%s", cmp.Diff(written, got))
		}
		const want = "On `a'|b.txt`, 2 windows of 512 tokens (protocol raw). KL is the divergence of predictions from the original's, in nats; intervals are of 95 %.\n\n" +
			"| | original | this model |\n|---|--:|--:|\n| perplexity | 57.54 | 71.66 |\n| KL, mean over tokens | | 0.225 (0.221 to 0.226) |\n| same most likely token | | 64.3 % |\n\n"
		if diff := cmp.Diff(want, part); diff != "" {
			t.Errorf("what was measured (-want +got):\n%s", diff)
		}
		if found := problems(t, out); len(found) > 0 {
			t.Errorf("problems: %v", found)
		}
		// A card of someone's own stays.
		writeFile(t, filepath.Join(out, card.FileName), "# Mine\n")
		if err := Measured(out, m); err != nil || readFile(t, filepath.Join(out, card.FileName)) != "# Mine\n" {
			t.Errorf("another's card was written over (%v)", err)
		}
	})
	for _, tc := range []struct {
		name, file, text string // "": deleted
		want             []string
	}{
		{"edited", card.FileName, written + "More.\n", nil},
		{"left out", card.FileName, "", nil},
		{"the original's edited", card.OriginalName, "x", []string{"ORIGINAL_README.md differs from what was written"}},
		{"the original's left out", card.OriginalName, "", []string{"ORIGINAL_README.md is missing"}},
		{"another file", "README.txt", "x", []string{"README.txt is no part of what was written"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := copyOf(t, out, "out", map[string]string{tc.file: tc.text})
			if tc.text == "" {
				if err := os.Remove(filepath.Join(out, tc.file)); err != nil {
					t.Fatal(err)
				}
			}
			if found := problems(t, out); !slices.Equal(found, tc.want) {
				t.Errorf("problems: %q, want %q", found, tc.want)
			}
		})
	}
	t.Run("digest of an older lutq", func(t *testing.T) {
		out := copyOf(t, out, "out", nil)
		config := filepath.Join(out, "config.json")
		m := openContainer(t, out)
		c := *m.Config()
		text, err := (&lutq.Config{}).AddTo([]byte(`{"model_type": "llama"}`))
		if err != nil || len(text) == 0 {
			t.Fatal(err)
		}
		c.Digests.Files[card.FileName] = lutq.Sum{1}
		if text, err = c.AddTo([]byte(`{"model_type": "llama"}`)); err != nil {
			t.Fatal(err)
		}
		writeFile(t, config, string(text))
		if found := problems(t, out); !slices.Equal(found, []string{"README.md differs from what was written"}) {
			t.Errorf("problems: %q", found)
		}
	})
}

// TestCardNames: a model is called what is known of it, and no side file is lost.
func TestCardNames(t *testing.T) {
	racetest.Skip(t)
	run := func(t *testing.T, dir, repo string) (out, text string) {
		t.Helper()
		p := plan(t, dir, `{}`)
		p.Repo = repo
		out = filepath.Join(t.TempDir(), "out")
		if _, err := p.Run(t.Context(), out, RunOptions{}); err != nil {
			t.Fatal(err)
		}
		return out, readFile(t, filepath.Join(out, card.FileName))
	}
	t.Run("a folder", func(t *testing.T) {
		_, text := run(t, copyOf(t, tiny, "my model", nil), "")
		if !strings.HasPrefix(text, "---\n# To be published it should name its original:\n# base_model: OWNER/NAME\n# base_model_relation: quantized\nlibrary_name: transformers\ntags:\n- lutq\n- quantized\n- 4-bit\n---\n\n# my model, quantized by lutq\n\n`my model` with weights of 4 bits") {
			t.Errorf("card:\n%s", text)
		}
		if strings.Contains(text, "ORIGINAL") || strings.Contains(text, os.TempDir()) {
			t.Errorf("the card names what is not there:\n%s", text)
		}
	})
	t.Run("a quantized model", func(t *testing.T) {
		_, text := run(t, copyOf(t, tiny, "m", map[string]string{"README.md": "---\nbase_model: org/tiny\nbase_model_relation: quantized\n---\n"}), "org/tiny-gptq")
		if strings.Count(text, "base_model:") != 1 || !strings.Contains(text, "\nbase_model: org/tiny\n") || !strings.Contains(text, "lutq quantize org/tiny-gptq OUT") {
			t.Errorf("card:\n%s", text)
		}
	})
	t.Run("two cards", func(t *testing.T) {
		out, text := run(t, copyOf(t, tiny, "m", map[string]string{"README.md": "a", "ORIGINAL_README.md": "b"}), "")
		if readFile(t, filepath.Join(out, "ORIGINAL_README.md")) != "b" || readFile(t, filepath.Join(out, "ORIGINAL_ORIGINAL_README.md")) != "a" {
			t.Error("a card of the original is lost")
		}
		if !strings.Contains(text, "](ORIGINAL_README.md)") {
			t.Errorf("card:\n%s", text)
		}
	})
	t.Run("a card of lutq", func(t *testing.T) {
		text, err := card.OfExport(card.Origin{Name: "tiny", Repo: "org/tiny"}, card.Export{Target: "dense"})
		if err != nil {
			t.Fatal(err)
		}
		out, got := run(t, copyOf(t, tiny, "m", map[string]string{"README.md": string(text), "ORIGINAL_README.md": "b"}), "me/tiny-dense")
		if !strings.Contains(got, "\n# tiny, quantized by lutq\n") || !strings.Contains(got, "\nbase_model: org/tiny\n") {
			t.Errorf("card:\n%s", got)
		}
		if all := files(t, out); all["ORIGINAL_README.md"] != "b" || all["ORIGINAL_ORIGINAL_README.md"] != "" {
			t.Error("lutq's own card is kept as that of the original, or the original's is not")
		}
	})
}

// TestCardConverted: a container of another kind has a card of its own.
func TestCardConverted(t *testing.T) {
	dir := copyOf(t, tiny, "small", map[string]string{"README.md": "---\nlicense: mit\n---\n"})
	from := filepath.Join(t.TempDir(), "from")
	if _, err := plan(t, dir, `{"codebook": "q4"}`).Run(t.Context(), from, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, card, want string }{
		{"lutq's", "", "license: mit\ntags:\n- lutq\n- quantized\n- 4-bit\n---\n\n# small, quantized by lutq\n"},
		{"another's", "# Mine\n", "# Mine\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := copyOf(t, from, "from", nil)
			if tc.card != "" {
				writeFile(t, filepath.Join(dir, card.FileName), tc.card)
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, err := Convert(t.Context(), openContainer(t, dir), "bcq", out, ConvertOptions{}); err != nil {
				t.Fatal(err)
			}
			text := readFile(t, filepath.Join(out, card.FileName))
			if !strings.Contains(text, tc.want) || strings.Contains(text, "4 binary codes") != (tc.card == "") {
				t.Errorf("card:\n%s", text)
			}
			writeFile(t, filepath.Join(out, card.FileName), text+"More.\n")
			if found := problems(t, out); len(found) > 0 {
				t.Errorf("problems: %v", found)
			}
		})
	}
}
