package gguf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
)

// TestEnds: all tokens that end a text come back, whatever llama.cpp has a place for. Which tokens it knows by name, and its
// exceptions, are those of llama_vocab::impl::load in llama.cpp at 00ad355.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name       string
		tokens     string // by their ids, from 3 on
		eos        int    // of tokenizer_config.json; -1: none
		ends       []int
		want       map[string]uint32 // pairs
		own        bool
		lacks      string // a part of what llama.cpp has not
		otherwise  []int  // what is read without our own pair
		generation string
	}{
		{"one", "x", -1, []int{1}, map[string]uint32{"eos": 1}, false, "", []int{1}, ""},
		{"two", "x", -1, []int{1, 3}, map[string]uint32{"eos": 1, "eot": 3}, false, "", []int{1, 3}, ""},
		{"three", "x y", -1, []int{1, 3, 4}, map[string]uint32{"eos": 1, "eot": 3, "eom": 4}, false, "", []int{1, 3, 4}, ""},
		{"four", "x y z", -1, []int{1, 3, 4, 5}, map[string]uint32{"eos": 1, "eot": 3, "eom": 4}, true, "no place for the ends of texts z", []int{1, 3, 4}, ""},
		{"those of generation_config.json", "x y", -1, []int{1}, map[string]uint32{"eos": 4, "eot": 1}, false, "", []int{1, 4}, `{"eos_token_id": [4, 1]}`},
		{"the tokenizer's own first", "x y", 4, []int{1, 3, 4}, map[string]uint32{"eos": 4, "eot": 1, "eom": 3}, false, "", []int{1, 3, 4}, ""},
		{"known by name", "<|eot_id|> <|eom_id|> x", -1, []int{1, 3, 4, 5}, map[string]uint32{"eos": 1, "eot": 5}, false, "", []int{1, 3, 4, 5}, ""},
		{"known, but none", "<|im_end|> x", -1, []int{1}, map[string]uint32{"eos": 1}, true, "other ends of texts, <|im_end|>", []int{1, 3}, ""},
		{"eos that is none", "x", 3, []int{1}, map[string]uint32{"eos": 3, "eot": 1}, true, "other ends of texts, x", []int{1, 3}, ""},
		{"tools of harmony", "<|end|> <|return|> <|call|>", -1, []int{4, 5}, map[string]uint32{"eos": 4}, false, "", []int{4, 5}, ""},
		{"tools of others", "<|end|> <|flush|> <|calls|>", -1, []int{4, 5}, map[string]uint32{"eos": 4}, false, "", []int{4, 5}, ""},
		{"tools of Gemma 4", "</s> <|tool_response>", -1, []int{4}, map[string]uint32{"eos": 4}, false, "", []int{4}, ""},
		{"none", "x", -1, nil, nil, false, "no model without an end of texts", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tokens := strings.Fields("a b ab " + tt.tokens)
			var added []string
			for i, token := range tokens[3:] {
				added = append(added, `{"id": `+string(rune('3'+i))+`, "content": "`+token+`", "special": true}`)
			}
			settings := `{}`
			if tt.eos >= 0 {
				settings = `{"eos_token": "` + tokens[tt.eos] + `"}`
			}
			dir := t.TempDir()
			for name, text := range map[string]string{
				"tokenizer.json": `{"added_tokens": [` + strings.Join(added, ", ") + `], "pre_tokenizer": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}`,
				"tokenizer_config.json": settings, "generation_config.json": tt.generation,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			kvs, lacks, err := describeTokenizer(&foreign.Model{Dir: dir}, &arch.Decoder{Vocab: len(tokens), EOS: tt.ends})
			if err != nil {
				t.Fatal(err)
			}
			got := values(kvs)
			for _, key := range []string{"eos", "eot", "eom"} {
				want, ok := tt.want[key]
				if id, is := got[idKey(key)].(uint32); is != ok || id != want {
					t.Errorf("%s is %v: want %v", key, got[idKey(key)], tt.want)
				}
			}
			if _, ok := got[ownEnds]; ok != tt.own {
				t.Errorf("%s is %v", ownEnds, got[ownEnds])
			}
			var all []string
			for _, l := range lacks {
				all = append(all, l.what)
			}
			if got := strings.Join(all, "; "); got != tt.lacks {
				t.Errorf("llama.cpp has %q: want %q", got, tt.lacks)
			}
			want := slices.Clone(tt.ends)
			if tt.generation != "" {
				want = append(want, 4)
			}
			if got := slices.Sorted(slices.Values(pairsFile(kvs).ends())); !slices.Equal(got, want) {
				t.Errorf("%v end a text: want %v", got, want)
			}
			kvs = slices.DeleteFunc(kvs, func(kv KV) bool { return kv.Key == ownEnds })
			if got := slices.Sorted(slices.Values(pairsFile(kvs).ends())); !slices.Equal(got, tt.otherwise) {
				t.Errorf("%v end a text as others write it: want %v", got, tt.otherwise)
			}
		})
	}
}
