package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/ranks"
)

// vectorFile is what scripts/tokenizer_fuzz.py writes: the reference library's answers.
type vectorFile struct {
	Library string
	Suites  []struct {
		Name      string
		Tokenizer string                     // path of a tokenizer.json, relative to the vectors
		Changes   map[string]json.RawMessage // replace fields of it; those of model are replaced one by one
		VocabSize int                        `json:"vocab_size"`
		Prefix    []int                      // what the post-processor puts before
		Suffix    []int                      // and behind a text
		Cases     []vector
	}
}

type vector struct {
	Text    string
	File    string // holds the text, relative to the vectors
	IDs     []int
	Decoded *string // absent: Text
}

// TestVectors compares with the reference library on the vectors in testdata.
func TestVectors(t *testing.T) {
	racetest.Skip(t)
	checkAllVectors(t, "testdata")
}

// TestFuzzVectors compares with the reference library on the vectors that
// scripts/tokenizer_fuzz.py wrote into $LUTQ_TOKENIZER_VECTORS.
func TestFuzzVectors(t *testing.T) {
	dir := os.Getenv("LUTQ_TOKENIZER_VECTORS")
	if dir == "" {
		t.Skip("LUTQ_TOKENIZER_VECTORS does not name a folder written by scripts/tokenizer_fuzz.py")
	}
	checkAllVectors(t, dir)
}

func checkAllVectors(t *testing.T, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.vectors.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors in %s (error %v)", dir, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".vectors.json"), func(t *testing.T) { checkVectors(t, path) })
	}
}

// checkVectors compares with the answers in a vectors file.
func checkVectors(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v vectorFile
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Suites) == 0 {
		t.Fatal("no suites")
	}
	for _, s := range v.Suites {
		t.Run(s.Name, func(t *testing.T) {
			if len(s.Cases) == 0 {
				t.Fatal("no cases")
			}
			dir := filepath.Dir(path)
			tok := loadChanged(t, filepath.Join(dir, s.Tokenizer), s.Changes)
			if got := tok.VocabSize(); got != s.VocabSize {
				t.Errorf("vocabulary size: got %d, want %d", got, s.VocabSize)
			}
			bos, ok := tok.BOS()
			if ok != (len(s.Prefix) > 0) || ok && bos != s.Prefix[0] {
				t.Errorf("BOS: got %d, %t, want the first of %v", bos, ok, s.Prefix)
			}
			bad := 0
			for _, c := range s.Cases {
				if c.File != "" {
					text, err := os.ReadFile(filepath.Join(dir, c.File))
					if err != nil {
						t.Fatal(err)
					}
					c.Text = string(text)
				}
				problem := checkVector(tok, c, s.Prefix, s.Suffix)
				if problem == "" {
					continue
				}
				if bad++; bad <= 3 {
					t.Error(problem)
				}
			}
			if bad > 0 {
				t.Errorf("%d of %d texts differ from %s", bad, len(s.Cases), v.Library)
			}
		})
	}
}

// loadChanged loads a tokenizer.json with changes to it.
func loadChanged(t *testing.T, path string, changes map[string]json.RawMessage) *Tokenizer {
	t.Helper()
	if slices.Contains(ranks.Files(), filepath.Base(path)) {
		return load(t, filepath.Dir(path))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) > 0 {
		data = changeFile(t, data, changes)
	}
	tok, err := parse(data, nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return tok
}

// changeFile replaces fields of a tokenizer.json, and of its model.
func changeFile(t *testing.T, data []byte, changes map[string]json.RawMessage) []byte {
	t.Helper()
	var file, model map[string]json.RawMessage
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(file["model"], &model); err != nil {
		t.Fatal(err)
	}
	maps.Copy(file, changes)
	if changes["model"] != nil {
		if err := json.Unmarshal(changes["model"], &model); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if file["model"], err = json.Marshal(model); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	return data
}

// checkVector says how a tokenizer differs from one answer; it is empty where it does not.
func checkVector(tok *Tokenizer, c vector, prefix, suffix []int) string {
	name := c.File
	if name == "" {
		name = strconv.Quote(c.Text)
	}
	ids, err := tok.Encode(c.Text, false)
	if err != nil {
		return fmt.Sprintf("%s: %v", name, err)
	}
	if !slices.Equal(ids, c.IDs) {
		if c.File != "" {
			return fmt.Sprintf("%s: got %d ids, want %d, not all equal", name, len(ids), len(c.IDs))
		}
		return fmt.Sprintf("%s:\n got %q\nwant %q", name, spellings(tok, ids), spellings(tok, c.IDs))
	}
	special, err := tok.Encode(c.Text, true)
	if want := slices.Concat(prefix, c.IDs, suffix); err != nil || !slices.Equal(special, want) {
		return fmt.Sprintf("%s with special tokens: got %d ids, want %d, not all equal (error %v)", name, len(special), len(want), err)
	}
	if c.File != "" {
		return ""
	}
	want := c.Text
	if c.Decoded != nil {
		want = *c.Decoded
	}
	decoded, err := tok.Decode(c.IDs)
	if err != nil || decoded != want {
		return fmt.Sprintf("decoding %q:\n got %q\nwant %q (error %v)", spellings(tok, c.IDs), decoded, want, err)
	}
	return ""
}

func spellings(tok *Tokenizer, ids []int) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i], _ = tok.Token(id)
	}
	return out
}
