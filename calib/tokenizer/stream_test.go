package tokenizer

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/racetest"
)

// streamed gathers what a stream in parts of about part bytes yields.
func streamed(tok *Tokenizer, text string, part int) (ids []int, parts int, err error) {
	for some, err := range tok.stream(iotest.HalfReader(strings.NewReader(text)), part, 1<<30) {
		if err != nil {
			return nil, parts, err
		}
		ids = append(ids, some...)
		parts++
	}
	return ids, parts, nil
}

// checkStream compares the ids of a text's parts with those of the whole.
func checkStream(t interface{ Fatalf(string, ...any) }, tok *Tokenizer, text string, part int) (parts int) {
	want, wantErr := tok.Encode(text, false)
	got, parts, err := streamed(tok, text, part)
	if (err == nil) != (wantErr == nil) || err == nil && !slices.Equal(got, want) {
		t.Fatalf("%q in parts of %d bytes: got %q (error %v), want %q (error %v)",
			text, part, spellings(tok, got), err, spellings(tok, want), wantErr)
	}
	return parts
}

// texts draws texts of which many places look as if they could be cut: pieces of
// the answers' texts, added tokens, and what stands around cuts.
func texts(cases []vector, tok *Tokenizer) *rapid.Generator[string] {
	fragments := []string{
		" ", "  ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "a", "b c", "x\ny", "é", "e\u0301", "\u0301", "中", "中\n文", "'s", "'", "'\ns",
		"I'll go", "1", "12345", "5\n6", ".", "...", ".\n", "/", "\n/", "<", ">", "▁", "▁▁", "a ▁b", "\u0130", "ſ", "\u1100\u1161", "\n\u1161", "😀", "\xff",
		"ab cd ef", "Hello world", "A B", "the quick brown fox", "one\ntwo\nthree", "x y\nz", "\u00a0", "\u2028",
	}
	for content := range tok.added {
		fragments = append(fragments, content, content+" ", " "+content, "\n"+content, content+"\n", content+"a")
	}
	slices.Sort(fragments)
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		for range rapid.IntRange(1, 40).Draw(t, "fragments") {
			if c := rapid.SampledFrom(cases).Draw(t, "case").Text; c != "" && rapid.Bool().Draw(t, "of a case") {
				from := rapid.IntRange(0, len(c)-1).Draw(t, "from")
				b.WriteString(c[from:min(len(c), from+rapid.IntRange(1, 30).Draw(t, "length"))])
				continue
			}
			b.WriteString(rapid.SampledFrom(fragments).Draw(t, "fragment"))
		}
		return b.String()
	})
}

// published are the suites of tokenizers whose long texts must be cut.
var published = []string{
	"llama3", "qwen", "gpt2", "sp", "gemma", "lutq-tiny", "o200k", "tekken", "deepseek", "qwen35", "cl100k", "kimi", "command-r", "phi4",
}

// TestStream holds the parts of random texts against the whole, for every
// tokenizer that there are answers of the reference library for.
func TestStream(t *testing.T) {
	racetest.Skip(t)
	paths, err := filepath.Glob("testdata/*.vectors.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors (error %v)", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var v vectorFile
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		for _, s := range v.Suites {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".vectors.json")+" "+s.Name, func(t *testing.T) {
				tok := loadChanged(t, filepath.Join("testdata", s.Tokenizer), s.Changes)
				cases := slices.DeleteFunc(slices.Clone(s.Cases), func(c vector) bool { return c.File != "" })
				if len(cases) == 0 {
					t.Fatal("no cases")
				}
				text := texts(cases, tok)
				if tok.cuts == nil {
					if slices.Contains(published, s.Name) {
						t.Error("no cuts are known")
					}
					checkStream(t, tok, text.Example(1), 8)
					return
				}
				cut := 0
				rapid.Check(t, func(t *rapid.T) {
					cut += checkStream(t, tok, text.Draw(t, "text"), rapid.IntRange(6, 30).Draw(t, "part")) - 1
				})
				if cut == 0 {
					t.Error("no text was cut")
				}
			})
		}
	}
}

// TestStreamRefuses: of steps that look further than a cut allows, nothing is
// assumed.
func TestStreamRefuses(t *testing.T) {
	const words = `{"type":"Split","pattern":{"Regex":"\\p{N}+"},"behavior":"Isolated","invert":false}`
	sp, err := os.ReadFile(spFile)
	if err != nil {
		t.Fatal(err)
	}
	level, err := os.ReadFile(filepath.Join(byteLevelFile, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		file    []byte
		changes map[string]string
		cuts    bool
	}{
		{"as published", sp, nil, true},
		{"bytes as published", level, nil, true},
		{"bytes without words", level, map[string]string{"pre_tokenizer": `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`}, false},
		{"trimmed", sp, map[string]string{"normalizer": `{"type":"Strip","strip_left":true,"strip_right":true}`}, false},
		{"long replacement", sp, map[string]string{"normalizer": `{"type":"Replace","pattern":{"String":"a b"},"content":"c"}`}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changes := make(map[string]json.RawMessage)
			for k, v := range tc.changes {
				changes[k] = json.RawMessage(v)
			}
			tok, err := parse(changeFile(t, tc.file, changes), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.cuts != nil; got != tc.cuts {
				t.Errorf("cuts: %t, want %t", got, tc.cuts)
			}
			checkStream(t, tok, "some text a b, and more text to cut where one may\nor not", 8)
		})
	}
	var c cutter
	if c.addSplitter(json.RawMessage(words)) {
		t.Error("a pattern that is not known is taken")
	}
}

// TestStreamAddedTokens: no cut goes through an added token, or comes between
// one and the white space that it swallows.
func TestStreamAddedTokens(t *testing.T) {
	data, err := os.ReadFile(spFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, content, options string }{
		{"with a blank", "go on", ""},
		{"that swallows to the right", "go", `,"rstrip":true`},
		{"that swallows to the left", " on", `,"lstrip":true`},
		{"of a newline", "\n", ""},
		{"over a newline", "g\no", ""},
		{"that is a word", "\n", `,"single_word":true`},
		{"that begins a word", "onx", `,"single_word":true`},
		{"that is a word behind a blank", " on", `,"single_word":true`},
		{"that swallows a newline", "onx", `,"lstrip":true`},
		{"normalized", "go on", `,"normalized":true`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tok, err := parse(changeFile(t, data, map[string]json.RawMessage{
				"added_tokens": json.RawMessage("[" + addedWith(tc.content, tc.options) + "]"),
			}), nil)
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(t *rapid.T) {
				words := rapid.SliceOfN(rapid.SampledFrom([]string{"go", "on", "onx", "go on", " ", "\n", "g\no", "a", "to ", "x\ny"}), 1, 60).Draw(t, "words")
				checkStream(t, tok, strings.Join(words, rapid.SampledFrom([]string{"", " ", "\n"}).Draw(t, "between")), 8)
			})
		})
	}
}

// TestStreamNewlines cuts behind newlines where words go on: what a step puts
// before the first one is put nowhere else.
func TestStreamNewlines(t *testing.T) {
	const model = `{"type":"BPE","vocab":{"a":0,"b":1,"\n":2,"▁":3,"ab":4,"▁a":5,".":6,"\n\n":7},"merges":[["a","b"],["▁","a"],["\n","\n"]]}`
	for _, tc := range []struct {
		name, steps string
		cut         bool
	}{
		{"first", `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`, true},
		{"never", `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}`, true},
		{"always", `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false}`, false},
		{"prepend", `"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tok, err := parse([]byte(`{`+tc.steps+`,"model":`+model+`}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			if parts := checkStream(t, tok, strings.Repeat(".\nab.\na", 20), 16); (parts > 1) != tc.cut {
				t.Errorf("%d parts", parts)
			}
			rapid.Check(t, func(t *rapid.T) {
				text := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "\n", " ", ".", ".\na", "ab"}), 1, 60).Draw(t, "text")
				checkStream(t, tok, strings.Join(text, ""), 8)
			})
		})
	}
}

// addedWith is an added token of id 5000 with options that begin with a comma.
func addedWith(content, options string) string {
	token := map[string]any{
		"id": 5000, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false,
	}
	if options != "" {
		more := make(map[string]any)
		if err := json.Unmarshal([]byte("{"+options[1:]+"}"), &more); err != nil {
			panic(err)
		}
		maps.Copy(token, more)
	}
	data, err := json.Marshal(token)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// repeated gives a text over and over, n bytes in all.
type repeated struct {
	text string
	n    int
	read int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.read == r.n {
		return 0, io.EOF
	}
	p = p[:min(len(p), r.n-r.read)]
	for i := range p {
		p[i] = r.text[(r.read+i)%len(r.text)]
	}
	r.read += len(p)
	return len(p), nil
}

// TestStreamMemory: of a long text no more is read than is asked for, and no
// more is held than a part.
func TestStreamMemory(t *testing.T) {
	for _, path := range []string{tinyFile, spFile} {
		t.Run(path, func(t *testing.T) {
			tok := load(t, path)
			r := &repeated{text: "all work and no play makes a dull text.\n", n: 1 << 40}
			n := 0
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for ids, err := range tok.Stream(r) {
				if err != nil {
					t.Fatal(err)
				}
				if n += len(ids); n > 4096 {
					break
				}
			}
			runtime.ReadMemStats(&after)
			if r.read > 2*partBytes {
				t.Errorf("%d bytes read", r.read)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
				t.Errorf("%d bytes allocated", got)
			}
			for _, err := range tok.stream(&repeated{text: "a", n: 1 << 40}, 1<<10, 1<<16) {
				if err == nil || !strings.Contains(err.Error(), "65536 bytes without a place where it can be cut") {
					t.Errorf("a text of one letter: error %v", err)
				}
			}
		})
	}
}

// TestStreamFails passes a reader's error on.
func TestStreamFails(t *testing.T) {
	failed := errors.New("failed")
	tok := load(t, tinyFile)
	for _, err := range tok.Stream(io.MultiReader(strings.NewReader("some text"), iotest.ErrReader(failed))) {
		if !errors.Is(err, failed) {
			t.Errorf("error %v", err)
		}
	}
}

func FuzzStream(f *testing.F) {
	tiny, sp := load(f, tinyFile), load(f, spFile)
	f.Add("some text\nand more of it, as long as it is", uint8(8))
	f.Fuzz(func(t *testing.T, text string, part uint8) {
		for _, tok := range []*Tokenizer{tiny, sp} {
			checkStream(t, tok, text, max(8, int(part)))
		}
	})
}

// TestEndsWords: DeepSeek's files have a carriage return and a newline in a pattern where others have escapes.
func TestEndsWords(t *testing.T) {
	if raw := strings.NewReplacer(`\r`, "\r", `\n`, "\n").Replace(deepseekPattern); raw == deepseekPattern || !endsWords(raw) || endsWords(raw+"|x") {
		t.Errorf("%q", raw)
	}
}
