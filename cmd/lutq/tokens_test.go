package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tinyCopy is a copy of the tiny model with another tokenizer.
func tinyCopy(t *testing.T, change func(m victim)) string {
	t.Helper()
	m := victim{t, filepath.Join(t.TempDir(), "other")}
	if err := os.CopyFS(m.dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	change(m)
	return m.dir
}

// TestOneText: models of one table turn the text into the same ids, or the error names both, and where they begin to differ.
// The ids are those of the tokenizers library, 0.23.3: the text begins with the ids 53 and 2461, which spell "THE".
func TestOneText(t *testing.T) {
	const text = "../../calib/testdata/harbour.txt"
	swapped := tinyCopy(t, func(m victim) { // the same text, in a vocabulary with other numbers
		m.replace("tokenizer.json", `"HE": 2461`, `"HE": X`)
		m.replace("tokenizer.json", `: 900,`, `: 2461,`)
		m.replace("tokenizer.json", `: X`, `: 900`)
	})
	beside := tinyCopy(t, func(m victim) { // a special token that tokenizer_config.json alone names
		m.replace("tokenizer_config.json", `"bos_token"`, `"extra_special_tokens": ["town of"], "bos_token"`)
	})
	described := tinyCopy(t, func(m victim) { // differs in nothing that counts
		m.replace("tokenizer_config.json", `"model_max_length": 2048`, `"model_max_length": 4096`)
	})
	without := tinyCopy(t, func(m victim) { m.remove("tokenizer.json") })
	noBOS := tinyCopy(t, func(m victim) { // BOS of the configuration, which is another
		m.write("tokenizer.json", regexp.MustCompile(`(?s)"post_processor": \{.*?\n  \},`).ReplaceAll(m.read("tokenizer.json"), []byte(`"post_processor": null,`)))
		m.replace("config.json", `"bos_token_id": 0`, `"bos_token_id": 1`)
	})
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string // what is said, with A and B for the first model and the second
	}{
		{"against, renumbered", []string{swapped, "--against", tiny}, exitFailed, `A and B turn the text into different ids: token 2 of window 1 is 900 ("HE") in the first and 2461 ("HE") in the second`},
		{"two, renumbered", []string{tiny, swapped}, exitFailed, `A and B turn the text into different ids: token 2 of window 1 is 2461 ("HE") in the first and 900 ("HE") in the second`},
		{"a token beside", []string{tiny, "--against", beside}, exitFailed, `token 3 of window 2 is 1588 (" town") in the first and 222 (" ") in the second`},
		{"other files, equal ids", []string{tiny, described}, exitDone, ""},
		{"the same", []string{tiny, tiny}, exitDone, ""},
		{"no tokenizer", []string{tiny, "--against", without}, exitDone, "B has no tokenizer: it reads the ids of A"},
		{"another BOS", []string{tiny, noBOS, "--bos", "window"}, exitFailed, `token 1 of window 1 is 0 ("<|begin_of_text|>") in the first and 1 ("<|end_of_text|>") in the second`},
		{"another BOS that is not used", []string{tiny, noBOS}, exitDone, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := exec(append([]string{"eval-ppl", "--text", text, "--ctx", "16", "--windows", "2", "--device", "cpu", "-q"}, tc.args...)...)
			models := slices.DeleteFunc(slices.Clone(tc.args), func(arg string) bool { return strings.HasPrefix(arg, "-") || arg == "window" })
			said := strings.NewReplacer(models[0], "A", models[1], "B").Replace(stderr)
			if code != tc.code || !strings.Contains(said, tc.want) || tc.want == "" && stderr != "" {
				t.Errorf("code %d, said %q\nwant %d, %q", code, said, tc.code, tc.want)
			}
		})
	}
}

// forget takes tokens out of a vocabulary, and what merges them.
func forget(m victim, tokens ...string) {
	m.t.Helper()
	var file map[string]any
	if err := json.Unmarshal(m.read("tokenizer.json"), &file); err != nil {
		m.t.Fatal(err)
	}
	model := file["model"].(map[string]any)
	vocab := model["vocab"].(map[string]any)
	before := len(vocab)
	maps.DeleteFunc(vocab, func(token string, _ any) bool { return slices.Contains(tokens, token) })
	if len(vocab) != before-len(tokens) {
		m.t.Fatalf("not all of %q are tokens", tokens)
	}
	model["merges"] = slices.DeleteFunc(model["merges"].([]any), func(merge any) bool {
		var left, right string
		switch merge := merge.(type) {
		case string:
			left, right, _ = strings.Cut(merge, " ")
		case []any:
			left, right = merge[0].(string), merge[1].(string)
		}
		return slices.ContainsFunc([]string{left, right, left + right}, func(s string) bool { return vocab[s] == nil })
	})
	data, err := json.Marshal(file)
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("tokenizer.json", data)
}

// TestGenerateUnknown: a token that the model may choose and its tokenizer does not know is written as nothing, as transformers 5.24
// decodes it, and counts.
func TestGenerateUnknown(t *testing.T) {
	const greedy = ", I was a very good man" // is what transformers writes of the whole vocabulary
	m := tinyCopy(t, func(m victim) { forget(m, "Ġvery") })
	args := []string{"generate", m, "--prompt", "Once upon a time", "--max-tokens", "7", "--device", "cpu", "-q"}
	code, stdout, stderr := exec(args...)
	if want := strings.Replace(greedy, " very", "", 1) + "\n"; code != exitDone || stdout != want || stderr != "" {
		t.Errorf("code %d, wrote %q, want %q\n%s", code, stdout, want, stderr)
	}
	// A stop may lie across it.
	code, stdout, stderr = exec(append(args, "--json", "--stop", "a good")...)
	var got generated
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("wrote %q: %v\n%s", stdout, err, stderr)
	}
	if code != exitDone || got.Text != ", I was " || got.Tokens != 6 || got.Finish != "stop" {
		t.Errorf("code %d, %+v", code, got)
	}
	// Where tokens are drawn the text goes on too.
	code, stdout, stderr = exec(append(args, "--temperature", "2", "--seed", "3")...)
	if code != exitDone || stdout == "" {
		t.Errorf("code %d, wrote %q\n%s", code, stdout, stderr)
	}
}

// TestGenerateJSON: with --json nothing is written but one object.
func TestGenerateJSON(t *testing.T) {
	code, stdout, stderr := exec("generate", tiny, "--prompt", "Once upon a time", "--max-tokens", "5", "--device", "cpu", "--json")
	var got generated
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitDone || got.Text != ", I was a very" || got.Tokens != 5 {
		t.Errorf("code %d, wrote %q: %v\n%s", code, stdout, err, stderr)
	}
}

// TestTextWriter writes pieces as they come, or only in the end, and gives back what failed.
func TestTextWriter(t *testing.T) {
	for _, tc := range []struct {
		name          string
		live, visible bool
		want          string
	}{
		{"in the end", false, false, ""},
		{"as they come", true, false, "a\x1b\n"},
		{"to a terminal", true, true, "a\\x1b\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			w := &textWriter{u: &ui{stdout: &out}, live: tc.live, visible: tc.visible}
			for _, piece := range []string{"a", "", "\x1b\n"} {
				if err := w.add(piece); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != tc.want || w.text.String() != "a\x1b\n" {
				t.Errorf("wrote %q, holds %q", out.String(), w.text.String())
			}
		})
	}
}

// TestOtherTokenizers: a folder whose tokenizer is in other files says how to make a tokenizer.json of it.
func TestOtherTokenizers(t *testing.T) {
	for _, files := range [][]string{{"tokenizer.model"}, {"vocab.json", "merges.txt"}, {"spiece.model"}} {
		dir := tinyCopy(t, func(m victim) {
			m.remove("tokenizer.json")
			for _, name := range files {
				m.write(name, nil)
			}
		})
		for _, args := range [][]string{
			{"tokenize", dir},
			{"generate", dir, "--prompt", "x"},
			{"eval-ppl", dir, "--text", "../../calib/testdata/harbour.txt", "--device", "cpu"},
		} {
			code, _, stderr := exec(args...)
			want := dir + ": no tokenizer.json, and its tokenizer in " + strings.Join(files, " and ") + " is not read\nhint: "
			if code != exitFailed || !strings.Contains(stderr, want) || !strings.Contains(stderr, `.save_pretrained(d)" '`+dir+"'\n") {
				t.Errorf("%v: code %d, said %q", args, code, stderr)
			}
		}
	}
}

// TestRankTokenizers: a model with tekken.json or tiktoken.model in place of a tokenizer.json does what others do. The ids are
// mistral-common's 1.13.1 and tiktoken's 0.14.0.
func TestRankTokenizers(t *testing.T) {
	const (
		testdata = "../../calib/tokenizer/testdata"
		harbour  = "../../calib/testdata/harbour.txt"
	)
	for _, tc := range []struct {
		name  string
		files []string
		ids   string // of "Hello world"
		pre   string
	}{
		{"tekken", []string{"tekken.json"}, "80 109 351 119 40 127 304 116 108", "tekken"},
		{"kimi", []string{"tiktoken.model", "tokenizer_config.json"}, "39 68 343 78 220 86 296 75 67", "kimi-k2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := tinyCopy(t, func(m victim) {
				for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
					m.remove(name)
				}
				for _, name := range tc.files {
					data, err := os.ReadFile(filepath.Join(testdata, tc.name, name))
					if err != nil {
						t.Fatal(err)
					}
					m.write(name, data)
				}
			})
			text := filepath.Join(t.TempDir(), "text")
			if err := os.WriteFile(text, []byte("Hello world"), 0o600); err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			gguf := filepath.Join(t.TempDir(), "model.gguf")
			if code, _, stderr := exec("quantize", dir, out, "--preset", "fast"); code != 0 {
				t.Fatalf("quantize: code %d, said %q", code, stderr)
			}
			for _, name := range tc.files {
				want, err := os.ReadFile(filepath.Join(dir, name))
				got, errOut := os.ReadFile(filepath.Join(out, name))
				if err != nil || errOut != nil || !slices.Equal(got, want) {
					t.Errorf("%s is not what it was: %v", name, errOut)
				}
			}
			if code, _, stderr := exec("export", dir, gguf, "--to", "gguf"); code != 0 {
				t.Fatalf("export: code %d, said %q", code, stderr)
			}
			for _, model := range []string{dir, out, gguf} {
				if code, stdout, stderr := exec("tokenize", model, "--text", text); code != 0 || stdout != tc.ids+"\n" {
					t.Errorf("tokenize %s: code %d, %q, said %q", model, code, stdout, stderr)
				}
			}
			for _, args := range [][]string{
				{"generate", out, "--prompt", "Hello", "--max-tokens", "3", "--device", "cpu"},
				{"eval-ppl", dir, out, "--text", harbour, "--ctx", "64", "--windows", "2", "--device", "cpu"},
			} {
				if code, stdout, stderr := exec(args...); code != 0 || stdout == "" {
					t.Errorf("%v: code %d, %q, said %q", args, code, stdout, stderr)
				}
			}
		})
	}
}
