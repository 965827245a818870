package ranks

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/added"
)

// lines is a tiktoken.model of the bytes and more tokens.
func lines(more ...string) string {
	var b strings.Builder
	for rank, token := range tokens(more...) {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), rank)
	}
	return b.String()
}

// tokens are the bytes and more.
func tokens(more ...string) []string {
	var all []string
	for b := range byteTokens {
		all = append(all, string([]byte{byte(b)}))
	}
	return append(all, more...)
}

// tekken is a tekken.json of the bytes and more tokens, with a number of special ones and a field of its own.
func tekken(size, special int, field string, more ...string) string {
	var vocab []string
	for rank, token := range tokens(more...) {
		vocab = append(vocab, fmt.Sprintf(`{"rank":%d,"token_bytes":%q,"token_str":null}`, rank, base64.StdEncoding.EncodeToString([]byte(token))))
	}
	return fmt.Sprintf(`{"config":{"pattern":"\\S+|\\s+","default_vocab_size":%d,"default_num_special_tokens":%d,"version":"v3"},%s"vocab":[%s]}`,
		size, special, field, strings.Join(vocab, ","))
}

// beside is what a tokenizer_config.json says.
func beside(t testing.TB, config string) *added.Beside {
	t.Helper()
	b, err := added.Read(func(name string) ([]byte, error) {
		if name != added.ConfigFile {
			return nil, fs.ErrNotExist
		}
		return []byte(config), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// made is what the tests read of a tokenizer.json.
type made struct {
	Added []added.Token `json:"added_tokens"`
	Post  *struct {
		Special map[string]struct{ IDs []int } `json:"special_tokens"`
	} `json:"post_processor"`
	Model struct {
		Vocab  map[string]int
		Merges [][2]string
	}
}

func read(t *testing.T, name, text string, b *added.Beside) made {
	t.Helper()
	data, err := TokenizerJSON(name, []byte(text), b)
	if err != nil {
		t.Fatal(err)
	}
	var m made
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTekken(t *testing.T) {
	// The last token is one too many: it makes no pairs.
	m := read(t, TekkenFile, tekken(24+byteTokens+4, 24, "", "ab", " a", "aba", "ba", "abab"), nil)
	want := [][2]string{{"a", "b"}, {"Ġ", "a"}, {"a", "ba"}, {"ab", "a"}, {"b", "a"}}
	if !slices.Equal(m.Model.Merges, want) {
		t.Errorf("merges %q: want %q", m.Model.Merges, want)
	}
	for token, id := range map[string]int{"<unk>": 0, "<s>": 1, "[TOOL_CONTENT]": 19, "<SPECIAL_20>": 20, "Ā": 24, "a": 24 + 'a', "ab": 280, "ba": 283} {
		if got, ok := m.Model.Vocab[token]; !ok || got != id {
			t.Errorf("%s is %d: want %d", token, got, id)
		}
	}
	if len(m.Model.Vocab) != 284 || len(m.Added) != 24 || !m.Added[3].Special {
		t.Errorf("%d tokens, %v", len(m.Model.Vocab), m.Added)
	}
	if m.Post == nil || !slices.Equal(m.Post.Special["<s>"].IDs, []int{1}) {
		t.Errorf("puts %v before a text", m.Post)
	}
	m = read(t, TekkenFile, tekken(2+byteTokens, 2, `"special_tokens":[{"rank":0,"token_str":"[T]","is_control":false}],`), nil)
	if m.Post != nil || m.Added[0].Special || m.Added[0].Content != "[T]" || m.Added[1].Content != "<SPECIAL_1>" || !m.Added[1].Special {
		t.Errorf("puts %v before a text, special tokens %v", m.Post, m.Added)
	}
}

func TestTiktoken(t *testing.T) {
	b := beside(t, `{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {
 "259": {"content": "[BOS]", "special": true}, "261": {"content": "<|tool|>"}, "9": {"content": "low", "special": true}}}`)
	m := read(t, TiktokenFile, lines("ab", " a", "aba"), b)
	if want := [][2]string{{"a", "b"}, {"Ġ", "a"}, {"ab", "a"}}; !slices.Equal(m.Model.Merges, want) {
		t.Errorf("merges %q: want %q", m.Model.Merges, want)
	}
	if len(m.Model.Vocab) != 259+256 || m.Model.Vocab["[BOS]"] != 259 || m.Model.Vocab["<|reserved_token_514|>"] != 514 || m.Post != nil {
		t.Errorf("%d tokens, [BOS] is %d, %v before a text", len(m.Model.Vocab), m.Model.Vocab["[BOS]"], m.Post)
	}
	if len(m.Added) != 256 || !m.Added[0].Special || m.Added[2].Content != "<|tool|>" || m.Added[2].Special || !m.Added[3].Special {
		t.Errorf("special tokens %v", m.Added[:4])
	}
}

func TestBad(t *testing.T) {
	kimi := beside(t, `{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"256": {"content": "!", "special": true}}}`)
	named := func(more string) string { return `"special_tokens":[` + more + `],` }
	for _, c := range []struct {
		name, file, text string
		beside           *added.Beside
		want             string
	}{
		{"another file", "vocab.txt", "", nil, "vocab.txt is no file of ranks"},
		{"tiktoken alone", TiktokenFile, lines(), nil, "name the folder"},
		{"tiktoken of another class", TiktokenFile, lines(), beside(t, `{"tokenizer_class": "QWenTokenizer"}`), `"QWenTokenizer": want TikTokenTokenizer`},
		{"tiktoken of no class", TiktokenFile, lines(), beside(t, `{"tokenizer_class": 7}`), `is "": want`},
		{"empty", TiktokenFile, "", kimi, "no tokens"},
		{"no base64", TiktokenFile, lines() + "a 256\n", kimi, "line 257: \"a 256\""},
		{"no rank", TiktokenFile, "AA==\n", kimi, "line 1"},
		{"a rank left out", TiktokenFile, lines() + "\nYWI= 257\n", kimi, `line 258: rank "257": want 256`},
		{"a rank that is none", TiktokenFile, "AA== x\n", kimi, "line 1: rank \"x\""},
		{"a byte without token", TiktokenFile, "AA== 0\n", kimi, "the byte 0x01"},
		{"a token twice", TiktokenFile, lines("a"), kimi, `"a" has the ranks 97 and 256`},
		{"an empty token", TiktokenFile, lines() + " 256\n", kimi, "rank 256 is empty"},
		{"a special token that is another", TiktokenFile, lines(), kimi, `"!" has the ids 33 and 256`},
		{"long tokens", TiktokenFile, lines(strings.Repeat("a", 1<<14), strings.Repeat("b", 1<<14)), kimi, "too long"},
		{"no JSON", TekkenFile, "{\n\"config\":\n!", nil, "line 3: not valid JSON"},
		{"another type", TekkenFile, "{\"config\":\n{\"pattern\": 7}}", nil, "line 2: config.pattern must not be a JSON number"},
		{"no config", TekkenFile, "{}", nil, "config has no pattern"},
		{"no sizes", TekkenFile, `{"config":{"pattern":"a"}}`, nil, "lacks default_vocab_size"},
		{"negative", TekkenFile, tekken(-1, -2, ""), nil, "-2 are special"},
		{"too few", TekkenFile, tekken(300, 2, ""), nil, "vocab has 256 tokens: config wants 298"},
		{"too many", TekkenFile, tekken(1<<30, 1<<30, ""), nil, "are special"},
		{"not by rank", TekkenFile, strings.Replace(tekken(256, 0, `"special_tokens":[],`), `"rank":7,`, `"rank":8,`, 1), nil, "entry 7 is not"},
		{"bytes that are none", TekkenFile, strings.Replace(tekken(256, 0, `"special_tokens":[],`), `"AA=="`, `"A"`, 1), nil, "entry 0: token_bytes"},
		{"no room for the usual", TekkenFile, tekken(256+19, 19, ""), nil, "entry 19: config has room for 19"},
		{"special out of place", TekkenFile, tekken(258, 2, named(`{"rank":1,"token_str":"x"}`)), nil, "entry 0 has rank 1"},
		{"special without a text", TekkenFile, tekken(258, 2, named(`{"rank":0}`)), nil, "entry 0 lacks"},
		{"special twice", TekkenFile, tekken(258, 2, named(`{"rank":0,"token_str":"xx"},{"rank":1,"token_str":"xx"}`)), nil, `"xx" has the ids 0 and 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := TokenizerJSON(c.file, []byte(c.text), c.beside)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v: want one line with %q", err, c.want)
			}
		})
	}
}

// TestIn: a tokenizer.json comes before all, and tekken.json before tiktoken.model.
func TestIn(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []struct{ write, want string }{
		{"vocab.json", ""}, {TiktokenFile, TiktokenFile}, {TekkenFile, TekkenFile}, {"tokenizer.json", ""},
	} {
		if err := os.WriteFile(filepath.Join(dir, step.write), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := In(dir); got != step.want {
			t.Errorf("with %s too it is %q: want %q", step.write, got, step.want)
		}
	}
	if SpecialTokens(TekkenFile)["bos_token"] != "<s>" || SpecialTokens(TiktokenFile) != nil || SpecialTokens("") != nil {
		t.Error("other special tokens")
	}
}

// checkMade holds what was made of a file to what must be true of it: an error of one line, or valid JSON without a
// token twice, of which every merge makes a token.
func checkMade(t *testing.T, data []byte, err error) {
	t.Helper()
	if err != nil {
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("error of several lines: %q", err)
		}
		return
	}
	var m made
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	ids := make(map[int]bool)
	for token, id := range m.Model.Vocab {
		if ids[id] {
			t.Errorf("%q has the id %d of another token", token, id)
		}
		ids[id] = true
	}
	for _, pair := range m.Model.Merges {
		if _, ok := m.Model.Vocab[pair[0]+pair[1]]; !ok {
			t.Errorf("%q make no token", pair)
		}
	}
}

// The tokens of bytes, which each file must have, stand outside of what is fuzzed: large inputs are slow to vary.
func FuzzTekken(f *testing.F) {
	const config = `{"pattern":"\\S+|\\s+","default_vocab_size":283,"default_num_special_tokens":24}`
	f.Add([]byte(config), []byte(`null`), []byte(`{"rank":256,"token_bytes":"YWI="},{"rank":257,"token_bytes":"YWJh"},{"rank":258,"token_bytes":"w6k="}`))
	f.Add([]byte(config), []byte(`[{"rank":0,"token_str":"<s>","is_control":false}]`), []byte(`{"rank":256,"token_bytes":"YWI="}`))
	_, bytes, _ := strings.Cut(tekken(256, 0, ""), `"vocab":`)
	f.Fuzz(func(t *testing.T, config, special, more []byte) {
		text := fmt.Sprintf(`{"config":%s,"special_tokens":%s,"vocab":%s,%s]}`, config, special, strings.TrimSuffix(bytes, "]}"), more)
		for _, text := range []string{text, string(more)} {
			data, err := TokenizerJSON(TekkenFile, []byte(text), nil)
			checkMade(t, data, err)
		}
	})
}

func FuzzTiktoken(f *testing.F) {
	f.Add([]byte("YWI= 256\nYWJh 257\r\n\nw6k= 258"), []byte(`{"tokenizer_class":"TikTokenTokenizer","added_tokens_decoder":{"260":{"content":"<x>","special":true}}}`))
	f.Add([]byte("YQ== 256\n"), []byte(`{"tokenizer_class":"TikTokenTokenizer"}`))
	f.Fuzz(func(t *testing.T, text, config []byte) {
		b, err := added.Read(func(name string) ([]byte, error) {
			if name != added.ConfigFile {
				return nil, fs.ErrNotExist
			}
			return config, nil
		})
		if err != nil {
			var of *added.Error
			if !errors.As(err, &of) {
				t.Errorf("error %v", err)
			}
			return
		}
		for _, text := range []string{lines() + string(text), string(text)} {
			data, err := TokenizerJSON(TiktokenFile, []byte(text), b)
			checkMade(t, data, err)
		}
	})
}
