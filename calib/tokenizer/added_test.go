package tokenizer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// besideCase is a case of testdata/added.json, which scripts/added_tokens.py writes: the answers of transformers
// and tokenizers, of the versions that the file names, where files beside tokenizer.json tell of added tokens.
type besideCase struct {
	Name               string
	Listed             []json.RawMessage // behind the added_tokens of tokenizer.json
	Model              string            // model_type of config.json
	Config, Map, Added json.RawMessage   // the files beside it, or nil
	Size               int
	Texts              []struct {
		Text         string
		IDs, Special []int
	}
	Decoded struct {
		IDs  []int
		Text string
	}
}

// write writes the files of a case, whose tokenizer.json is changed from another, into a folder.
func (c *besideCase) write(t *testing.T, dir string, base []byte) {
	t.Helper()
	var file map[string]json.RawMessage
	var listed []json.RawMessage
	if err := json.Unmarshal(base, &file); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(file["added_tokens"], &listed); err != nil {
		t.Fatal(err)
	}
	var err error
	if file["added_tokens"], err = json.Marshal(append(listed, c.Listed...)); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"tokenizer.json": data, "tokenizer_config.json": c.Config, "special_tokens_map.json": c.Map, "added_tokens.json": c.Added,
	} {
		if data == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBeside compares with transformers on folders whose special tokens are in files beside tokenizer.json, or listed
// there in odd ways.
func TestBeside(t *testing.T) {
	data, err := os.ReadFile("testdata/added.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Suites []struct {
			Tokenizer string
			Cases     []*besideCase
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, s := range file.Suites {
		base, err := os.ReadFile(filepath.Join("testdata", s.Tokenizer))
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Cases) < 40 {
			t.Fatalf("%s: %d cases", s.Tokenizer, len(s.Cases))
		}
		for _, c := range s.Cases {
			t.Run(filepath.Dir(s.Tokenizer)+"/"+c.Name, func(t *testing.T) {
				dir := t.TempDir()
				c.write(t, dir, base)
				tok := load(t, dir)
				if tok.VocabSize() != c.Size {
					t.Errorf("%d ids, want %d", tok.VocabSize(), c.Size)
				}
				for _, text := range c.Texts {
					for special, want := range map[bool][]int{false: text.IDs, true: text.Special} {
						if got, err := tok.Encode(text.Text, special); err != nil || !slices.Equal(got, want) {
							t.Errorf("%q: got %v (error %v), want %v", text.Text, got, err, want)
						}
					}
				}
				if got := spelled(t, tok, c.Decoded.IDs); got != c.Decoded.Text {
					t.Errorf("%v spell %q, want %q", c.Decoded.IDs, got, c.Decoded.Text)
				}
			})
		}
	}
}

// spelled is the text of ids as they come.
func spelled(t *testing.T, tok *Tokenizer, ids []int) string {
	t.Helper()
	s, all := tok.Spell(nil), ""
	for _, id := range ids {
		piece, err := s.Next(id)
		if err != nil {
			t.Fatal(err)
		}
		all += piece
	}
	rest, err := s.Rest()
	if err != nil {
		t.Fatal(err)
	}
	return all + rest
}

// TestOtherFormat: only a folder without a tokenizer.json is one whose tokenizer is in other files.
func TestOtherFormat(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"vocab.json", "model/merges.txt", "model/tokenizer.model", "odd/tokenizer.model", "odd/tokenizer.json/x", "half/vocab.json"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string][]string{
		"model": {"tokenizer.model"}, "odd": nil, "half": nil, "model/tokenizer.json": nil, "tokenizer.json": nil, "nowhere": nil,
	} {
		_, err := Load(path)
		var other *OtherFormatError
		if err == nil || errors.As(err, &other) != (want != nil) || other != nil && !slices.Equal(other.Files, want) {
			t.Errorf("%s: %v", path, err)
		}
		if (path != "odd") != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
