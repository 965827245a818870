package tokenizer

import (
	"encoding/base64"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/racetest"
)

const (
	tekkenDir = "testdata/tekken"
	kimiDir   = "testdata/kimi"
)

// writeKimi writes a folder with a tiktoken.model of the bytes and more tokens.
func writeKimi(t testing.TB, more ...string) string {
	t.Helper()
	var b strings.Builder
	for rank := range 256 + len(more) {
		token := string([]byte{byte(rank)})
		if rank >= 256 {
			token = more[rank-256]
		}
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), rank)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"tiktoken.model": b.String(), "tokenizer_config.json": `{"tokenizer_class": "TikTokenTokenizer"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// mergeByRank is the definition of what tiktoken does with a word, its _educational.py in short.
func mergeByRank(ranks map[string]int, word string) []int {
	if rank, ok := ranks[word]; ok {
		return []int{rank}
	}
	parts := strings.Split(word, "")
	for {
		at, best := -1, math.MaxInt
		for i := 1; i < len(parts); i++ {
			if rank, ok := ranks[parts[i-1]+parts[i]]; ok && rank < best {
				at, best = i, rank
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at-1, at+1, parts[at-1]+parts[at])
	}
	ids := make([]int, len(parts))
	for i, p := range parts {
		ids[i] = ranks[p]
	}
	return ids
}

// TestMergeByRank holds random ranks of tokens of few letters, of which many make the same token in several ways, to the definition.
func TestMergeByRank(t *testing.T) {
	racetest.Skip(t)
	rapid.Check(t, func(rt *rapid.T) {
		more := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab]{2,5}`), 1, 25, rapid.ID[string]).Draw(rt, "tokens")
		ranks := map[string]int{"a": 'a', "b": 'b'}
		for i, token := range more {
			ranks[token] = 256 + i
		}
		tok, err := Load(writeKimi(t, more...))
		if err != nil {
			rt.Fatal(err)
		}
		for range 20 {
			word := rapid.StringMatching(`[ab]{1,60}`).Draw(rt, "word")
			got, err := tok.Encode(word, false)
			if want := mergeByRank(ranks, word); err != nil || !slices.Equal(got, want) {
				rt.Fatalf("%s with %q: %v, %v: want %v", word, more, got, err, want)
			}
		}
	})
}

// TestRanks: what a tokenizer of ranks knows beside its ids, which the vectors have.
func TestRanks(t *testing.T) {
	for _, c := range []struct {
		dir, text, special string
		before             []int
		id                 int // of the special token
		skipped            bool
	}{
		{tekkenDir, "né 日本語🚀[INST]x", "[INST]", []int{1}, 3, true},
		{tekkenDir, "né 日本語🚀[THINK]x", "[THINK]", []int{1}, 5, false},
		{kimiDir, "né 日本語🚀<|im_end|>x", "<|im_end|>", nil, 637, true},
		{kimiDir, "né 日本語🚀<|reserved_token_650|>x", "<|reserved_token_650|>", nil, 650, true},
	} {
		tok := load(t, c.dir)
		if before, behind := tok.Special(); !slices.Equal(before, c.before) || behind != nil {
			t.Errorf("%s: %v before and %v behind", c.dir, before, behind)
		}
		if id, ok := tok.ID(c.special); !ok || id != c.id || tok.special[id] != c.skipped {
			t.Errorf("%s: %s is %d, special %v", c.dir, c.special, id, tok.special[id])
		}
		ids, err := tok.Encode(c.text, false)
		if err != nil || !slices.Contains(ids, c.id) {
			t.Errorf("%s: %v, %v", c.dir, ids, err)
		}
		// A text in parts never ends within a character.
		s := tok.Spell(nil)
		var all strings.Builder
		for _, id := range ids {
			part, err := s.Next(id)
			if err != nil || strings.Contains(part, "\ufffd") {
				t.Errorf("%s: part %q, %v", c.dir, part, err)
			}
			all.WriteString(part)
		}
		rest, err := s.Rest()
		want := c.text
		if c.skipped {
			want = strings.Replace(want, c.special, "", 1)
		}
		if all.WriteString(rest); err != nil || all.String() != want {
			t.Errorf("%s: %q, %v: want %q", c.dir, all.String(), err, want)
		}
	}
}

// TestRanksFolder: a tokenizer.json beside is taken instead, and errors name the file and the line.
func TestRanksFolder(t *testing.T) {
	dir := writeKimi(t)
	path := filepath.Join(dir, "tiktoken.model")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path+": it is no tokenizer without") {
		t.Errorf("alone: %v", err)
	}
	tekken, err := Load(filepath.Join(tekkenDir, "tekken.json"))
	if err != nil || tekken.VocabSize() != 627 {
		t.Errorf("alone: %v", err)
	}
	if err := os.WriteFile(path, []byte("AA== 0\n?\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.HasPrefix(err.Error(), "tokenizer "+path+": line 2: ") {
		t.Errorf("error %v", err)
	}
	data, err := os.ReadFile(filepath.Join(tinyFile, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if tok, err := Load(dir); err != nil || tok.VocabSize() != load(t, tinyFile).VocabSize() {
		t.Errorf("beside a tokenizer.json: %v", err)
	}
}
