package added

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// words is a vocabulary.
type words map[string]int

func (w words) Len() int { return len(w) }

func (w words) ID(token string) (id int, ok bool) {
	id, ok = w[token]
	return id, ok
}

// golden is the folder of what scripts/added_tokens.py has asked transformers for, of the version that the file names.
const golden = "../../calib/tokenizer/testdata"

// TestTokens holds the added tokens against those that transformers has.
func TestTokens(t *testing.T) {
	var file struct {
		Suites []struct {
			Tokenizer string
			Cases     []struct {
				Name               string
				Odd                []int // ids of which the reference does not know whether they are special
				Listed, Tokens     []Token
				Config, Map, Added json.RawMessage
				BOS                *string
			}
		}
	}
	readJSON(t, filepath.Join(golden, "added.json"), &file)
	for _, s := range file.Suites {
		var base struct {
			Added []Token `json:"added_tokens"`
			Model struct{ Vocab words }
		}
		readJSON(t, filepath.Join(golden, s.Tokenizer), &base)
		for _, c := range s.Cases {
			t.Run(filepath.Dir(s.Tokenizer)+"/"+c.Name, func(t *testing.T) {
				b, err := parse(c.Config, c.Map, c.Added)
				if err != nil {
					t.Fatal(err)
				}
				got := Tokens(base.Model.Vocab, slices.Concat(base.Added, c.Listed), b)
				if len(got) != len(c.Tokens) {
					t.Fatalf("got %v\nwant %v", got, c.Tokens)
				}
				for i, want := range c.Tokens {
					if slices.Contains(c.Odd, want.ID) {
						want.Special = got[i].Special
					}
					if got[i] != want {
						t.Errorf("got %+v, want %+v", got[i], want)
					}
				}
				bos, ok := b.Token("bos_token")
				if ok != (c.BOS != nil) || ok && bos != *c.BOS {
					t.Errorf("bos_token %q, %t", bos, ok)
				}
			})
		}
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

// TestTokensAlone: without files beside it, a tokenizer.json's own tokens are added, those of a gap too.
func TestTokensAlone(t *testing.T) {
	got := Tokens(words{"a": 0, "b": 7}, []Token{{ID: 9, Content: "<x>"}, {ID: 3, Content: "a", Special: true}, {Content: ""}, {ID: 1, Content: "<y>"}}, nil)
	want := []Token{{ID: 0, Content: "a", Special: true}, {ID: 2, Content: "<x>"}, {ID: 3, Content: "<y>"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestRepeatedFields: of a field that comes twice the last counts, as in Python.
func TestRepeatedFields(t *testing.T) {
	b, err := Read(files(map[string]string{ConfigFile: `{"bos_token":"a","bos_token":"b","pad_token":"c"}`}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"bos_token": "b", "pad_token": "c", "eos_token": ""} {
		if got, ok := b.Token(name); got != want || ok != (want != "") {
			t.Errorf("%s is %q, %t: want %q", name, got, ok, want)
		}
	}
}

// files reads from a map.
func files(m map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if text, ok := m[name]; ok {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"a list", ConfigFile, `[]`, "tokenizer_config.json: not a JSON object"},
		{"broken", MapFile, `{"a":`, "special_tokens_map.json: not a JSON object"},
		{"a text", AddedFile, `"x"`, "added_tokens.json: not a JSON object"},
		{"decoder is a list", ConfigFile, `{"added_tokens_decoder":[]}`, "added_tokens_decoder: not a JSON object"},
		{"decoder by name", ConfigFile, `{"added_tokens_decoder":{"x":{"content":"a"}}}`, `"x" is not an id`},
		{"decoder of texts", ConfigFile, `{"added_tokens_decoder":{"7":"a"}}`, "id 7: not an object"},
		{"decoder without content", ConfigFile, `{"added_tokens_decoder":{"7":{"special":true}}}`, "id 7: not an object"},
		{"extra is a number", ConfigFile, `{"extra_special_tokens":3}`, "extra_special_tokens is neither"},
		{"extra of numbers", ConfigFile, `{"additional_special_tokens":["a",3]}`, "entry 1 of additional_special_tokens is not a token"},
		{"extra of a map", MapFile, `{"additional_special_tokens":[null]}`, "special_tokens_map.json: entry 0"},
		{"an id is a text", AddedFile, `{"a":"1"}`, `the id of token "a" is not an integer`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(files(map[string]string{c.file: c.text}))
			var of *Error
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &of) || of.File != c.file {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	broken := errors.New("disk")
	if _, err := Read(func(string) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// FuzzRead: no file makes reading panic, and the tokens that come of it have ids of their own.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"bos_token":"<s>","extra_special_tokens":["a",{"content":"b","lstrip":true}],"image_token":"<s>"}`), []byte(`{"pad_token":null,"eos_token":{"content":"x"}}`), []byte(`{"y":3}`))
	f.Add([]byte(`{"added_tokens_decoder":{"7":{"content":"a"},"-1":{"content":""}},"additional_special_tokens":[]}`), []byte(`{}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, config, special, tokens []byte) {
		b, err := Read(files(map[string]string{ConfigFile: string(config), MapFile: string(special), AddedFile: string(tokens)}))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		seen := make(map[string]bool)
		for i, token := range Tokens(words{"a": 0, "b": 1}, []Token{{Content: "c"}}, b) {
			if seen[token.Content] || token.ID < 0 || i > 0 && token.ID == 0 {
				t.Errorf("token %+v", token)
			}
			seen[token.Content] = true
		}
	})
}
