package gguf

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/racetest"
)

// file is an open file of nothing but pairs.
func pairsFile(kvs []KV) *File {
	f := &File{Meta: make(Metadata)}
	for _, kv := range kvs {
		f.Meta[kv.Key] = kv.Value
	}
	return f
}

func load(t *testing.T, text []byte) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Parse("made", text)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// strange returns texts of words, spaces, digits, other scripts and special tokens.
func strange(n int, special []string) []string {
	parts := slices.Concat([]string{
		" ", "  ", "\n", "\n\n", "\t", "the", "The", " and", "'s", "'LL", "1", "12345", "3.14", "é", "ß", "日本語", "かな", "한국", "שלום", "مرحبا",
		"😀", "👩‍👩‍👧", "\u00a0", "\u200b", "...", "!?", "<|", "▁", "▁▁", "Ġ", "<0x0A>", "http://a.b/c?d=e", "x_y", "A", "Zażółć", "\r\n", "ﬁ", "\u0301", "½", "٣",
	}, special)
	r := rand.New(rand.NewPCG(9, 20))
	texts := make([]string, n)
	for i := range texts {
		for range 1 + r.IntN(12) {
			texts[i] += parts[r.IntN(len(parts))]
		}
	}
	return texts
}

// TestTokenizerJSON takes tokenizers to the pairs of a file and back: the same ids for every text.
func TestTokenizerJSON(t *testing.T) {
	racetest.Skip(t)
	for _, path := range []string{
		"../../calib/testdata/lutq-tiny/tokenizer.json",
		"../../../shared/models/lutq-11m/tokenizer.json",
		"../../../shared/tokenizers/llama-2/tokenizer.json",
	} {
		t.Run(path, func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Skip("needs the shared tokenizers")
			}
			var added struct {
				Tokens []struct {
					Content    string
					Normalized bool
				} `json:"added_tokens"`
			}
			if err := json.Unmarshal(text, &added); err != nil {
				t.Fatal(err)
			}
			var special []string
			for _, a := range added.Tokens {
				if !a.Normalized { // of Llama 2's they are found behind a space only, in transformers alone
					special = append(special, a.Content)
				}
			}
			want := load(t, text)
			tok, err := newTokenizer(text, nil, &arch.Decoder{Vocab: want.VocabSize()})
			if err != nil {
				t.Fatal(err)
			}
			kvs := tok.kvs
			before, _ := want.Special()
			if len(before) == 1 {
				kvs = append(kvs, KV{"tokenizer.ggml.bos_token_id", uint32(before[0])})
			}
			for name, pairs := range map[string][]KV{
				"as written": kvs,
				// As others write SentencePiece: by scores alone.
				"without merges": slices.DeleteFunc(slices.Clone(kvs), func(kv KV) bool {
					return kv.Key == "tokenizer.ggml.merges" && kvs[0].Value == "llama"
				}),
			} {
				made, err := pairsFile(pairs).TokenizerJSON()
				if err != nil {
					t.Fatal(err)
				}
				got := load(t, made)
				if s, _ := got.Special(); !slices.Equal(s, before) {
					t.Errorf("%s: %v before a text: want %v", name, s, before)
				}
				for _, text := range strange(3000, special) {
					a, errA := got.Encode(text, true)
					b, errB := want.Encode(text, true)
					if errA != nil || errB != nil || !slices.Equal(a, b) {
						t.Fatalf("%s: %q is %v, %v: want %v, %v", name, text, a, errA, b, errB)
					}
					x, errA := got.Decode(a)
					y, errB := want.Decode(b)
					if errA != nil || errB != nil || x != y {
						t.Fatalf("%s: %v is decoded as %q, %v: want %q, %v", name, a, x, errA, y, errB)
					}
				}
			}
		})
	}
}

// TestRanks takes files of ranks to the pairs of a file and back: the ids are those of mistral-common and tiktoken.
func TestRanks(t *testing.T) {
	racetest.Skip(t)
	const dir = "../../calib/tokenizer/testdata"
	for name, want := range map[string]map[string]any{
		"tekken": {preKey: "tekken", "tokenizer.ggml.add_bos_token": true, "tokenizer.ggml.bos_token_id": uint32(1), "tokenizer.ggml.eos_token_id": uint32(2)},
		"kimi":   {preKey: "kimi-k2", "tokenizer.ggml.add_bos_token": false, "tokenizer.ggml.bos_token_id": uint32(635), "tokenizer.ggml.eos_token_id": uint32(636)},
	} {
		t.Run(name, func(t *testing.T) {
			kvs, lacks, err := describeTokenizer(&foreign.Model{Dir: filepath.Join(dir, name)}, &arch.Decoder{Vocab: 1000, EOS: []int{2}})
			if err != nil {
				t.Fatal(err)
			}
			got := values(kvs)
			for key, value := range want {
				if got[key] != value {
					t.Errorf("%s is %v: want %v", key, got[key], value)
				}
			}
			if len(lacks) == 0 || !strings.Contains(lacks[0].what, "combining marks") || name == "tekken" && len(lacks) > 1 {
				t.Errorf("lacks %v", lacks)
			}
			text, err := pairsFile(kvs).TokenizerJSON()
			if err != nil {
				t.Fatal(err)
			}
			tok := load(t, text)
			data, err := os.ReadFile(filepath.Join(dir, name+".vectors.json"))
			if err != nil {
				t.Fatal(err)
			}
			var vectors struct {
				Suites []struct {
					Cases []struct {
						Text string
						IDs  []int
					}
				}
			}
			if err := json.Unmarshal(data, &vectors); err != nil || len(vectors.Suites[0].Cases) < 150 {
				t.Fatalf("%d cases, %v", len(vectors.Suites[0].Cases), err)
			}
			for _, c := range vectors.Suites[0].Cases {
				if ids, err := tok.Encode(c.Text, false); err != nil || !slices.Equal(ids, c.IDs) {
					t.Errorf("%q is %v, %v: want %v", c.Text, ids, err, c.IDs)
				}
			}
		})
	}
}

// TestSplits holds every name of a pre-tokenizer to one that the tokenizer knows.
func TestSplits(t *testing.T) {
	for _, name := range []string{"", "default", "llama-bpe", "llama3", "dbrx", "smaug-bpe", "qwen2", "stablelm2", "deepseek-r1-qwen", "qwen35", "tekken", "gpt-4o", "llama4", "kimi-k2", "deepseek-v3", "gpt-2", "phi-2", "smollm", "starcoder", "refact", "command-r"} {
		f := pairsFile([]KV{
			{"tokenizer.ggml.model", "gpt2"},
			{"tokenizer.ggml.pre", name},
			{"tokenizer.ggml.tokens", []string{"a", "b", "1", "ab", "11", "<s>", "[PAD6]"}},
			{"tokenizer.ggml.token_type", []int32{1, 1, 1, 1, 1, 3, 5}},
			{"tokenizer.ggml.merges", []string{"a b", "1 1"}},
		})
		text, err := f.TokenizerJSON()
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		want := []int{3, 4, 2, 0, 5} // the merge within a number is one of digits that stay together
		switch name {
		case "llama-bpe", "llama3", "dbrx", "smaug-bpe", "gpt-4o", "llama4", "kimi-k2", "deepseek-v3", "gpt-2", "phi-2", "", "default":
		default:
			want = []int{3, 2, 2, 2, 0, 5}
		}
		if got, err := load(t, text).Encode("ab111a<s>", false); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v: want %v", name, got, err, want)
		}
	}
}

func TestTokenizerBad(t *testing.T) {
	good := []KV{
		{"tokenizer.ggml.model", "gpt2"},
		{"tokenizer.ggml.pre", "gpt-2"},
		{"tokenizer.ggml.tokens", []string{"a", "b", "ab"}},
		{"tokenizer.ggml.merges", []string{"a b"}},
	}
	tests := []struct {
		key   string
		value any
		want  string
	}{
		{"model", "bert", `tokenizer.ggml.model "bert" is not supported`},
		{"model", "none", "has no tokenizer"},
		{"pre", "viking", `tokenizer.ggml.pre "viking" is not one that is known`},
		{"tokens", []int32{1}, "want an array of strings"},
		{"tokens", []string{}, "no tokenizer.ggml.tokens"},
		{"tokens", []string{"a", "b", "a"}, `0 and 2 are both "a"`},
		{"tokens", []string{"a", "b", "\xff"}, "token 2 is not valid UTF-8"},
		{"token_type", []int32{1}, "1 types of 3 tokens"},
		{"merges", []string{"ab"}, "want two tokens"},
		{"merges", []string{"a c"}, `"c" is no token`},
		{"merges", nil, "no tokenizer.ggml.merges"},
		{"model", "llama", ""}, // has merges, so no scores are needed
	}
	for _, tt := range tests {
		key := "tokenizer.ggml." + tt.key
		f := pairsFile(good)
		if f.Meta[key] = tt.value; tt.value == nil {
			delete(f.Meta, key)
		}
		_, err := f.TokenizerJSON()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s %v: error %v, want %q", tt.key, tt.value, err, tt.want)
		}
	}
	f := pairsFile(good)
	f.Meta["tokenizer.ggml.model"] = "llama"
	delete(f.Meta, "tokenizer.ggml.merges")
	if _, err := f.TokenizerJSON(); err == nil || !strings.Contains(err.Error(), "tokenizer.ggml.scores") {
		t.Errorf("without scores: %v", err)
	}
}

// TestTokenizerConfig holds what the smaller files say to the pairs.
func TestTokenizerConfig(t *testing.T) {
	f := pairsFile([]KV{
		{"general.architecture", "llama"},
		{"llama.context_length", uint32(64)},
		{"tokenizer.ggml.tokens", []string{"<s>", "</s>", "<eot>"}},
		{"tokenizer.ggml.bos_token_id", uint32(0)},
		{"tokenizer.ggml.eos_token_id", uint32(1)},
		{"tokenizer.ggml.eot_token_id", uint32(2)},
		{"tokenizer.ggml.padding_token_id", uint32(77)}, // no token
		{"tokenizer.ggml.add_bos_token", true},
		{chatTemplate, "{% if a < b %}"},
	})
	var c map[string]any
	text, err := f.TokenizerConfigJSON()
	if err != nil || json.Unmarshal(text, &c) != nil {
		t.Fatal(err)
	}
	if c["bos_token"] != "<s>" || c["eos_token"] != "</s>" || c["pad_token"] != nil || c["add_bos_token"] != true || c["chat_template"] != "{% if a < b %}" || c["model_max_length"] != 64.0 {
		t.Errorf("tokenizer_config.json %s", text)
	}
	if text, err = f.GenerationConfigJSON(); err != nil || !strings.Contains(strings.Join(strings.Fields(string(text)), ""), `"eos_token_id":[1,2]`) {
		t.Errorf("generation_config.json %s, %v", text, err)
	}
}

// TestSideFiles opens a file with a tokenizer as a model, of which every file can be made.
func TestSideFiles(t *testing.T) {
	c, d := open(t, golden(t, "llama"))
	kvs, err := Describe(d)
	if err != nil {
		t.Fatal(err)
	}
	got := writeModel(t, append(kvs,
		KV{"tokenizer.ggml.model", "gpt2"}, KV{"tokenizer.ggml.pre", "viking"}, KV{"tokenizer.ggml.tokens", []string{"a"}},
	), contents(t, c, d))
	if want := []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}; !slices.Equal(got.SideFiles(), want) {
		t.Errorf("side files %v: want %v", got.SideFiles(), want)
	}
	// A tokenizer that cannot be made is in the way of quantizing, and known before anything is written.
	if err := got.CheckPlain(); err == nil || !strings.Contains(err.Error(), "viking") || !strings.Contains(err.Error(), filepath.Base(got.Dir())) {
		t.Errorf("CheckPlain: %v", err)
	}
}

// FuzzModel makes a model of any header: no panic, and errors of a line.
func FuzzModel(f *testing.F) {
	f.Add(smallFile(3))
	x := newFile(3, 1, 8)
	for _, kv := range []KV{
		{"general.architecture", "llama"},
		{"llama.block_count", uint32(1)},
		{"llama.embedding_length", uint32(8)},
		{"llama.context_length", uint32(8)},
		{"llama.feed_forward_length", uint32(8)},
		{"llama.attention.head_count", uint32(2)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"tokenizer.ggml.model", "llama"},
	} {
		x.putPair(kv)
	}
	f.Add(x.put("token_embd.weight", uint32(2), uint64(8), uint64(2), F32, uint64(0)).pad(alignment).put(make([]byte, 64)).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 {
			return
		}
		h, err := readHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		c := &File{Meta: h.meta, byName: make(map[string]*Raw)}
		for i := range h.tensors { // whose data cannot be read
			x := &h.tensors[i]
			x.buffers = &sync.Pool{New: func() any { return new([chunk]byte) }}
			c.Tensors, c.byName[x.Name] = append(c.Tensors, x), x
		}
		for _, make := range c.SideFiles() {
			if _, err := make(); err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has several lines", err)
			}
		}
		if _, err := c.Model(); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q has several lines", err)
		}
	})
}

// TestOwnPairs: what tokenizer.json has and llama.cpp has not comes back. The ids are those that tokenizers 0.23 gives: NFC makes
// one character of e and an accent, and a token with rstrip takes the spaces behind it along.
func TestOwnPairs(t *testing.T) {
	text := `{"added_tokens": [{"id": 7, "content": "<x>", "special": true, "rstrip": true, "normalized": false},
  {"id": 8, "content": "<y>", "special": true, "normalized": false}],
 "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 "model": {"type": "BPE", "vocab": {"a": 0, "Ã": 1, "©": 2, "Ġ": 3, "e": 4, "Ì": 5, "ģ": 6}, "merges": []}}`
	tok, err := newTokenizer([]byte(text), nil, &arch.Decoder{Vocab: 9})
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, l := range tok.lacks {
		has = append(has, l.what)
	}
	if want := []string{"no normalizer NFC", "no place for lstrip, rstrip and single_word of 1 added tokens"}; !slices.Equal(has, want) {
		t.Errorf("llama.cpp has %q: want %q", has, want)
	}
	made, err := pairsFile(tok.kvs).TokenizerJSON()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string][]int{"e\u0301a": {1, 2, 0}, "<x> a": {7, 0}, "<y> a": {8, 3, 0}} {
		if got, err := load(t, made).Encode(in, false); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %v, %v: want %v", in, got, err, want)
		}
	}
}

func TestNotes(t *testing.T) {
	for _, tt := range []struct {
		model, pre string
		want       int
	}{{"gpt2", "", 1}, {"gpt2", "default", 0}, {"gpt2", "qwen2", 0}, {"llama", "", 0}, {"none", "", 0}} {
		f := pairsFile([]KV{{"tokenizer.ggml.model", tt.model}})
		if tt.pre != "" {
			f.Meta[preKey] = tt.pre
		}
		if got := f.Notes(); len(got) != tt.want {
			t.Errorf("%v: %q", tt, got)
		}
	}
}
