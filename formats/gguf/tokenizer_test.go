package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/ranks"
)

// byteLevelJSON is a tokenizer.json of three bytes with a pre_tokenizer.
func byteLevelJSON(pre string, ignore bool) string {
	return fmt.Sprintf(`{"added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "<think>", "special": false}],
 "pre_tokenizer": %s, "normalizer": {"type": "NFC"},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
 "model": {"type": "BPE", "ignore_merges": %v, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}`, pre, ignore)
}

func splitJSON(regexes ...string) string {
	steps := ""
	for _, r := range regexes {
		steps += fmt.Sprintf(`{"type": "Split", "pattern": {"Regex": %q}, "behavior": "Isolated", "invert": false},`, r)
	}
	return `{"type": "Sequence", "pretokenizers": [` + steps + `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}`
}

func values(kvs []KV) map[string]any {
	m := make(map[string]any)
	for _, kv := range kvs {
		m[kv.Key] = kv.Value
	}
	return m
}

// The patterns are those of the models: Llama 3, Qwen2, GPT-2 and SmolLM, Mistral Nemo, gpt-oss, Kimi.
func TestPreTokenizers(t *testing.T) {
	const (
		llama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		qwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		tekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		gpt4o  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

		plain  = `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}`
		digits = `{"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]}`
	)
	for _, c := range []struct {
		name, pre string
		ignore    bool
		want      string // or a word of the error
	}{
		{"llama 3", splitJSON(llama3), true, "llama-bpe"},
		{"llama 3, merging words", splitJSON(llama3), false, "dbrx"},
		{"qwen2", splitJSON(qwen2), false, "qwen2"},
		{"tekken", splitJSON(tekken), true, "tekken"},
		{"gpt-4o", splitJSON(gpt4o), false, "gpt-4o"},
		{"kimi-k2", splitJSON(ranks.KimiPattern), true, "kimi-k2"},
		{"gpt-2", plain, false, "gpt-2"},
		{"smollm", digits, false, "smollm"},
		{"qwen2 that takes words, which merge to the same", splitJSON(qwen2), true, "qwen2"},
		{"deepseek-v3, with ends of lines as they are", splitJSON(`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+",
			"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), false, "deepseek-v3"},
		{"gpt-4o that takes words, as gpt-oss does", splitJSON(gpt4o), true, "gpt-4o"},
		{"another", splitJSON(llama3 + `|x`), false, `splits by (?i:`},
		{"a space before", `{"type": "ByteLevel", "add_prefix_space": true}`, false, "adds a space"},
		{"none", `null`, false, "no ByteLevel"},
		{"words", `{"type": "Whitespace"}`, false, "Whitespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := newTokenizer([]byte(byteLevelJSON(c.pre, c.ignore)), nil, &arch.Decoder{Vocab: 6})
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v: want %s", err, c.want)
				}
				return
			}
			got := values(tok.kvs)
			if got["tokenizer.ggml.pre"] != c.want || got["tokenizer.ggml.model"] != "gpt2" {
				t.Errorf("%v, %v: want %s", got["tokenizer.ggml.model"], got["tokenizer.ggml.pre"], c.want)
			}
			if want := []string{"a", "b", "ab", "<s>", "<think>", "[PAD5]"}; !slices.Equal(got["tokenizer.ggml.tokens"].([]string), want) {
				t.Errorf("tokens %v: want %v", got["tokenizer.ggml.tokens"], want)
			}
			if want := []int32{1, 1, 1, 3, 4, 5}; !slices.Equal(got["tokenizer.ggml.token_type"].([]int32), want) {
				t.Errorf("types %v: want %v", got["tokenizer.ggml.token_type"], want)
			}
			if got["tokenizer.ggml.add_bos_token"] != true || got["tokenizer.ggml.add_eos_token"] != false {
				t.Error("want a token before and none behind")
			}
		})
	}
	_, err := newTokenizer([]byte(byteLevelJSON(splitJSON(`\w+`), false)), nil, &arch.Decoder{Vocab: 6})
	if split, ok := errors.AsType[*UnknownSplitError](err); !ok || split.Steps[0] != `\w+` {
		t.Errorf("error %v", err)
	}
	// No merge makes the token "ab": who takes words whole has it, who merges has not.
	text := strings.Replace(byteLevelJSON(splitJSON(qwen2), true), `["a", "b"]`, ``, 1)
	if _, err = newTokenizer([]byte(text), nil, &arch.Decoder{Vocab: 6}); err == nil || !strings.Contains(err.Error(), "words that are tokens") {
		t.Errorf("error %v", err)
	}
}

// TestMergeOfSpaces: a merge is written as two tokens with a space between, so neither may have one.
func TestMergeOfSpaces(t *testing.T) {
	const plain = `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}`
	for _, merge := range []string{`["a ", "b"]`, `["a", " b"]`} {
		text := strings.Replace(byteLevelJSON(plain, false), `["a", "b"]`, merge, 1)
		if _, err := newTokenizer([]byte(text), nil, &arch.Decoder{Vocab: 6}); err == nil || !strings.Contains(err.Error(), "a merge has a space in it") {
			t.Errorf("%s: error %v", merge, err)
		}
	}
}

// sentencePieceJSON has the 256 bytes, and "ab" by two merges.
func sentencePieceJSON() string {
	var b strings.Builder
	b.WriteString(`{"added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
 {"id": 2, "content": "▁▁", "special": false}], "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
 {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
 "merges": ["a b", "▁ ab", "▁a b"], "vocab": {"<unk>": 0, "<s>": 1, "▁▁": 2, "▁": 259, "a": 260, "b": 261, "ab": 262, "▁ab": 263, "▁a": 264`)
	for i := range 256 {
		fmt.Fprintf(&b, `, "<0x%02X>": %d`, i, 3+i)
	}
	b.WriteString(`}}}`)
	return b.String()
}

func TestSentencePiece(t *testing.T) {
	tok, err := newTokenizer([]byte(sentencePieceJSON()), nil, &arch.Decoder{Vocab: 265})
	if err != nil {
		t.Fatal(err)
	}
	got := values(tok.kvs)
	scores, types, tokens := got["tokenizer.ggml.scores"].([]float32), got["tokenizer.ggml.token_type"].([]int32), got["tokenizer.ggml.tokens"].([]string)
	if got["tokenizer.ggml.model"] != "llama" || got["tokenizer.ggml.add_space_prefix"] != true || got["tokenizer.ggml.add_bos_token"] != false {
		t.Errorf("%v", tok.kvs)
	}
	// The first merge that makes a token counts.
	if scores[262] != 0 || scores[263] != -1 || scores[264] > -1e5 {
		t.Errorf("scores %v", scores[259:])
	}
	if types[0] != tokenUnknown || types[1] != tokenControl || types[2] != tokenUser || types[3] != tokenByte || types[260] != tokenNormal {
		t.Errorf("types %v", types)
	}
	if tokens[2] != "  " || tokens[263] != "▁ab" {
		t.Errorf("tokens %q, %q", tokens[2], tokens[263])
	}
	for name, change := range map[string][2]string{
		"of which 255":        {`"<0x41>": 68`, `"x": 68`},
		"not replaced":        {`"content": "▁"`, `"content": "_"`},
		"belongs to both":     {`"a": 260`, `"a": 261`},
		"the model has 265":   {`"a": 260`, `"a": 900`},
		"a tokenizer of type": {`"BPE"`, `"Unigram"`},
	} {
		text := strings.Replace(sentencePieceJSON(), change[0], change[1], 1)
		if _, err := newTokenizer([]byte(text), nil, &arch.Decoder{Vocab: 265}); err == nil || !strings.Contains(err.Error(), name) && name != "not replaced" {
			t.Errorf("error %v: want %s", err, name)
		}
	}
}

// A folder's own: the chat template of its file wins, special tokens are found by their text.
func TestTokenizerOfFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json": byteLevelJSON(`{"type": "ByteLevel"}`, false),
		"tokenizer_config.json": `{"bos_token": "<s>", "eos_token": {"content": "ab"}, "pad_token": null,
 "chat_template": [{"name": "default", "template": "A"}, {"name": "tools", "template": "B"}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	d := &arch.Decoder{Vocab: 5, EOS: []int{1}}
	kvs, _, err := describeTokenizer(&foreign.Model{Dir: dir}, d)
	if err != nil {
		t.Fatal(err)
	}
	got := values(kvs)
	for key, want := range map[string]any{
		"tokenizer.ggml.bos_token_id": uint32(3), "tokenizer.ggml.eos_token_id": uint32(2), "tokenizer.ggml.padding_token_id": nil,
		"tokenizer.chat_template": "A", "tokenizer.chat_template.tools": "B",
	} {
		if got[key] != want {
			t.Errorf("%s is %v: want %v", key, got[key], want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("C"), 0o666); err != nil {
		t.Fatal(err)
	}
	if kvs, _, err = describeTokenizer(&foreign.Model{Dir: dir}, d); err != nil || values(kvs)["tokenizer.chat_template"] != "C" {
		t.Errorf("chat template %v, error %v: want C", values(kvs)["tokenizer.chat_template"], err)
	}
}

// TestTokensBeside: tokens that the files beside tokenizer.json alone name are written, with the ids that transformers
// 5.24 gives them, where the model has a row for them.
func TestTokensBeside(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json":          byteLevelJSON(`{"type": "ByteLevel"}`, false),
		"tokenizer_config.json":   `{"extra_special_tokens": ["<|im_start|>"], "pad_token": {"__type": "AddedToken", "content": "<pad>", "lstrip": false}}`,
		"special_tokens_map.json": `{"bos_token": "<s>", "eos_token": "ab"}`,
		"added_tokens.json":       `{"<tool>": 5}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for vocab, want := range map[int][]string{5: {}, 6: {"<tool>"}, 8: {"<tool>", "<pad>", "<|im_start|>"}, 9: {"<tool>", "<pad>", "<|im_start|>", "[PAD8]"}} {
		kvs, _, err := describeTokenizer(&foreign.Model{Dir: dir}, &arch.Decoder{Vocab: vocab})
		if err != nil {
			t.Fatal(err)
		}
		got := values(kvs)
		if tokens := got["tokenizer.ggml.tokens"].([]string)[5:]; !slices.Equal(tokens, want) {
			t.Errorf("%d: tokens %q, want %q", vocab, tokens, want)
		}
		if kinds, want := got["tokenizer.ggml.token_type"].([]int32)[5:], []int32{tokenUser, tokenControl, tokenControl, tokenUnused}; !slices.Equal(kinds, want[:vocab-5]) {
			t.Errorf("%d: types %v", vocab, kinds)
		}
		var pad any
		if vocab > 6 {
			pad = uint32(6)
		}
		for key, want := range map[string]any{"bos": uint32(3), "eos": uint32(2), "padding": pad} {
			if id := got["tokenizer.ggml."+key+"_token_id"]; id != want {
				t.Errorf("%d: %s is %v: want %v", vocab, key, id, want)
			}
		}
	}
}

func FuzzTokenizerKVs(f *testing.F) {
	f.Add([]byte(byteLevelJSON(`{"type": "ByteLevel"}`, false)), []byte(`{"bos_token": "<s>", "chat_template": "x"}`))
	f.Add([]byte(sentencePieceJSON()), []byte(`{"eos_token": {"content": "ab"}, "chat_template": [{"name": "default", "template": "x"}]}`))
	f.Fuzz(func(t *testing.T, text, config []byte) {
		d := &arch.Decoder{Vocab: 300}
		beside, err := added.Read(func(name string) ([]byte, error) {
			if name != added.ConfigFile {
				return nil, fs.ErrNotExist
			}
			return config, nil
		})
		if err != nil {
			return
		}
		tok, err := newTokenizer(text, beside, d)
		if err != nil {
			return
		}
		if n := len(values(tok.kvs)["tokenizer.ggml.tokens"].([]string)); n != d.Vocab {
			t.Errorf("%d tokens: want %d", n, d.Vocab)
		}
		_ = tok.special(config, d)
	})
}
