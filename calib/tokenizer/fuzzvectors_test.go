package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// vectors is what scripts/tokenizer_fuzz.py writes: the reference library's answers.
type vectors struct {
	Library   string `json:"library"`
	Tokenizer string `json:"tokenizer"` // relative to the vectors' folder, or absolute
	VocabSize int    `json:"vocab_size"`
	Cases     []struct {
		Text    string `json:"text"`
		File    string `json:"file"` // holds the text
		IDs     []int  `json:"ids"`
		Special []int  `json:"special"` // with the post-processor's tokens
		Decoded string `json:"decoded"` // of IDs
	} `json:"cases"`
}

// checkVectors compares a tokenizer with the answers in a vectors file.
func checkVectors(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Cases) == 0 {
		t.Fatal("no cases")
	}
	if !filepath.IsAbs(v.Tokenizer) {
		v.Tokenizer = filepath.Join(filepath.Dir(path), v.Tokenizer)
	}
	tok, err := Load(v.Tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.VocabSize(); got != v.VocabSize {
		t.Errorf("vocabulary size: got %d, want %d", got, v.VocabSize)
	}
	bad := 0
	for _, c := range v.Cases {
		if c.File != "" {
			text, err := os.ReadFile(c.File)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tok.Encode(string(text), false); err != nil || !slices.Equal(got, c.IDs) {
				t.Errorf("%s: ids differ (%d, want %d; error %v)", c.File, len(got), len(c.IDs), err)
			}
			continue
		}
		ids, err := tok.Encode(c.Text, false)
		if err != nil {
			t.Fatalf("%q: %v", c.Text, err)
		}
		special, err := tok.Encode(c.Text, true)
		if err != nil {
			t.Fatalf("%q: %v", c.Text, err)
		}
		decoded, err := tok.Decode(c.IDs)
		if err != nil {
			t.Fatalf("%v: %v", c.IDs, err)
		}
		if slices.Equal(ids, c.IDs) && slices.Equal(special, c.Special) && decoded == c.Decoded {
			continue
		}
		if bad++; bad > 3 {
			continue
		}
		switch {
		case !slices.Equal(ids, c.IDs):
			t.Errorf("%q:\n got %q\nwant %q", c.Text, spellings(tok, ids), spellings(tok, c.IDs))
		case !slices.Equal(special, c.Special):
			t.Errorf("%q with special tokens:\n got %v\nwant %v", c.Text, special, c.Special)
		default:
			t.Errorf("decoding %q:\n got %q\nwant %q", spellings(tok, c.IDs), decoded, c.Decoded)
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d strings differ from %s", bad, len(v.Cases), v.Library)
	}
}

func spellings(tok *Tokenizer, ids []int) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i], _ = tok.Token(id)
	}
	return out
}

// TestFuzzVectors compares with the reference library on vectors that scripts/tokenizer_fuzz.py wrote into $LUTQ_TOKENIZER_VECTORS.
func TestFuzzVectors(t *testing.T) {
	dir := os.Getenv("LUTQ_TOKENIZER_VECTORS")
	if dir == "" {
		t.Skip("LUTQ_TOKENIZER_VECTORS does not name a folder written by scripts/tokenizer_fuzz.py")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.vectors.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors in %s (error %v)", dir, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".vectors.json"), func(t *testing.T) { checkVectors(t, path) })
	}
}
