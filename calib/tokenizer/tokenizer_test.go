package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/racetest"
)

const (
	tinyFile      = "../testdata/lutq-tiny"
	spFile        = "testdata/sp/tokenizer.json"
	byteLevelFile = "testdata/bytelevel"
)

func load(t testing.TB, path string) *Tokenizer {
	t.Helper()
	tok, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestTokens(t *testing.T) {
	tok := load(t, tinyFile)
	if got, want := tok.VocabSize(), 4096; got != want {
		t.Errorf("vocabulary size: got %d, want %d", got, want)
	}
	for id := range tok.VocabSize() {
		token, ok := tok.Token(id)
		if !ok {
			t.Fatalf("id %d has no token", id)
		}
		if got, ok := tok.ID(token); !ok || got != id {
			t.Fatalf("token %q of id %d has id %d, %t", token, id, got, ok)
		}
	}
	for _, id := range []int{-1, tok.VocabSize(), 1 << 40, -1 << 40} {
		if token, ok := tok.Token(id); ok {
			t.Errorf("id %d has token %q", id, token)
		}
		if text, err := tok.Decode([]int{66, id}); err != nil || text != "a" {
			t.Errorf("decoding id %d: got %q, %v, want no text", id, text, err)
		}
	}
	if id, ok := tok.ID("not a token"); ok {
		t.Errorf("a string that is no token has id %d", id)
	}
	if id, ok := tok.BOS(); !ok || id != 0 {
		t.Errorf("BOS: got %d, %t, want 0", id, ok)
	}
}

// TestIDGap: the vocabulary may have gaps. An added token takes the id that is the number of its tokens, as in the
// reference, which may be that of one of them.
func TestIDGap(t *testing.T) {
	tok, err := parse([]byte(`{"added_tokens":[`+listed(9, "<x>", "")+`],"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":3,"d":7},"merges":[]}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.VocabSize(), 8; got != want {
		t.Errorf("vocabulary size: got %d, want %d", got, want)
	}
	if token, ok := tok.Token(5); ok {
		t.Errorf("id 5 in the gap has token %q", token)
	}
	if id, ok := tok.ID("<x>"); !ok || id != 4 {
		t.Errorf("added token: got id %d, %t, want 4", id, ok)
	}
	if got, err := tok.Decode([]int{0, 5, 4, -1, 8, 1}); err != nil || got != "a <x> b" {
		t.Errorf("got %q, %v: ids without a token have no text", got, err)
	}
}

func TestInvalidUTF8(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"lone continuation", "a\x80b", "a\ufffdb"},
		{"two of them", "\x80\xbf", "\ufffd\ufffd"},
		{"cut short", "a\xe2\x82", "a\ufffd"},
		{"cut short and on", "\xe2\x82a", "\ufffda"},
		{"cut four", "\xf0\x9f\x98", "\ufffd"},
		{"cut four after two", "\xf0\x9fx", "\ufffdx"},
		{"overlong", "\xc0\xaf", "\ufffd\ufffd"},
		{"overlong three", "\xe0\x80\xaf", "\ufffd\ufffd\ufffd"},
		{"surrogate", "\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		{"beyond Unicode", "\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
		{"bad lead", "\xff\xfe", "\ufffd\ufffd"},
		{"lead before good", "\xf0\xe2\x82\xac", "\ufffd€"},
		{"kept", "€\ufffd", "€\ufffd"},
		{"unicode table 3-8", "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd"},
	}
	tok := load(t, tinyFile)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := validUTF8(test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			got, err := tok.Encode(test.text, false)
			if err != nil {
				t.Fatal(err)
			}
			want, err := tok.Encode(test.want, false)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("ids: got %v, want %v", got, want)
			}
		})
	}
}

// TestLongMarks checks that no row of combining marks is too long to be normalized exactly.
func TestLongMarks(t *testing.T) {
	row := func(n int) string { return strings.Repeat("\u0301\u0323", n) }
	sorted := func(n int) string { return strings.Repeat("\u0323", n) + strings.Repeat("\u0301", n) }
	tests := []struct {
		name, text string
		form       norm.Form
		want       string
	}{
		{"decomposed", "a" + row(40), norm.NFD, "a" + sorted(40)},
		{"composed", "a" + row(40), norm.NFC, "\u1ea1" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40)},
		{
			"among others", "e\u0301 a" + row(40) + " \u1112\u1161\u11ab", norm.NFC,
			"é \u1ea1" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40) + " 한",
		},
		{"without base", row(40), norm.NFC, sorted(40)},
		{"compatibility", "\ufb01" + row(40), norm.NFKC, "f\u1ecb" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := (unicodeForm{test.form}).normalize(test.text); got != test.want {
				t.Errorf("got %+q, want %+q", got, test.want)
			}
		})
	}
}

// TestFormsAgree checks the exact normalization against x/text where that is exact.
func TestFormsAgree(t *testing.T) {
	chars := []rune("aeoω가각\u1100\u1161\u11a8が<क①ﬁẛ\u0300\u0301\u0323\u0327\u0345\u0344\u05b0\u093c\u3099\u0338")
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.SampledFrom(chars), 0, 12).Draw(t, "text"))
		for _, form := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
			if got, want := (unicodeForm{form}).normalizeExactly(text), form.String(text); got != want {
				t.Fatalf("form %d of %+q: got %+q, want %+q", form, text, got, want)
			}
		}
	})
}

// randomWord draws a string of few different characters, so that merges are many.
func randomWord(t *rapid.T, longest int) string {
	chars := []rune("aaabeehiinorstt  ▁▁.=12\néü日本x🚀")
	return string(rapid.SliceOfN(rapid.SampledFrom(chars), 0, longest).Draw(t, "word"))
}

// slowMerge is the definition of BPE: join the leftmost pair of lowest rank until there is none.
func slowMerge(m *bpe, symbols []int32) []int32 {
	for {
		best, at := uint32(noRank), 0
		for i := 1; i < len(symbols); i++ {
			if rank := m.rank(symbols[i-1], symbols[i]); rank < best {
				best, at = rank, i-1
			}
		}
		if best == noRank {
			return symbols
		}
		symbols = slices.Concat(symbols[:at], []int32{m.merged[best]}, symbols[at+2:])
	}
}

func TestMergesAgree(t *testing.T) {
	for _, path := range []string{spFile, byteLevelFile} {
		m := load(t, path).model
		rapid.Check(t, func(t *rapid.T) {
			word := randomWord(t, 150)
			s := new(state)
			m.initial(word, s)
			want := slowMerge(m, slices.Clone(s.symbols))
			if got := m.mergeFew(slices.Clone(s.symbols), s); !slices.Equal(got, want) {
				t.Fatalf("%q by scanning: got %v, want %v", word, got, want)
			}
			if got := m.mergeMany(slices.Clone(s.symbols), s); !slices.Equal(got, want) {
				t.Fatalf("%q by heap: got %v, want %v", word, got, want)
			}
			if got := m.tokens(word, s); !slices.Equal(got, want) {
				t.Fatalf("%q cut at joints: got %v, want %v", word, got, want)
			}
		})
	}
}

// TestJoints checks that words are cut and that a vocabulary with opaque merges is left whole.
func TestJoints(t *testing.T) {
	m := load(t, spFile).model
	if m.joints == nil {
		t.Fatal("no joints")
	}
	for _, test := range []struct {
		left, right string
		want        bool
	}{{"▁", "t", true}, {"t", "h", true}, {"x", "▁", false}, {"e", "▁", true}, {"日", "本", true}, {"本", "日", false}} {
		if _, got := m.joints[pairOf(m.id(test.left), m.id(test.right))]; got != test.want {
			t.Errorf("%s and %s: got %t, want %t", test.left, test.right, got, test.want)
		}
	}
	vocab := map[string]int32{"<0x41>": 0, "a": 1, "<0x41>a": 2}
	opaque, err := newBPE(vocab, [][2]string{{"<0x41>", "a"}}, bpeOptions{byteFallback: true})
	if err != nil {
		t.Fatal(err)
	}
	if opaque.joints != nil {
		t.Errorf("joints of a merge that begins with a byte token: got %v, want none", opaque.joints)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, path := range []string{tinyFile, spFile, byteLevelFile} {
		tok := load(t, path)
		rapid.Check(t, func(t *rapid.T) {
			text := randomWord(t, 60) + rapid.String().Draw(t, "text")
			if path == spFile { // its decoder takes ▁ for a space, and it puts a space behind <s>
				text = strings.NewReplacer("▁", "_", "<", "(").Replace(text)
			}
			ids, err := tok.Encode(text, false)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tok.Decode(ids); err != nil || got != text {
				t.Fatalf("got %q (error %v), want %q", got, err, text)
			}
		})
	}
}

// TestScannersProgress checks that every scanner cuts between characters and takes at least one.
func TestScannersProgress(t *testing.T) {
	for _, pattern := range []string{gpt2Pattern, llama3Pattern, qwen2Pattern} {
		scan := scannerFor(pattern)
		rapid.Check(t, func(t *rapid.T) {
			text := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune(" \t\r\n\u0085'sSſtTrRevmlLdaé12½_.\u0301")), rapid.Rune())).Draw(t, "text")
			for i := 0; i < len(text); {
				n := scan(text[i:])
				if n <= 0 || i+n > len(text) || !utf8.ValidString(text[i:i+n]) {
					t.Fatalf("%q at %d: word of %d bytes", text, i, n)
				}
				i += n
			}
		})
	}
}

// TestConcurrentEncode is for the race detector, and checks that the words remembered by one call are right for another.
func TestConcurrentEncode(t *testing.T) {
	tok := load(t, tinyFile)
	text := strings.Repeat("The cat sat on the mat, didn't it? 12345\n", 50)
	want, err := tok.Encode(text, true)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if got, err := tok.Encode(text, true); err != nil || !slices.Equal(got, want) {
					t.Errorf("got %d ids (error %v), want %d, not all equal", len(got), err, len(want))
				}
			}
		})
	}
	wg.Wait()
}

// TestCacheIsBounded encodes more different words than the cache holds.
func TestCacheIsBounded(t *testing.T) {
	tok := load(t, byteLevelFile)
	s := tok.states.New().(*state)
	s.reset(0)
	for i := range cachedWords + 10 {
		tok.model.encode(string([]byte{'a' + byte(i%26), 'a' + byte(i/26%26), 'a' + byte(i/676%26), 'a' + byte(i/17576)}), s)
	}
	if len(s.cache) > cachedWords || len(s.cache) < 1 {
		t.Errorf("cache holds %d words, want at most %d", len(s.cache), cachedWords)
	}
}

// TestOneLongWord encodes a megabyte that neither pre-tokenizer nor joints cut: quadratic time would take hours.
func TestOneLongWord(t *testing.T) {
	racetest.Skip(t)
	for _, path := range []string{tinyFile, spFile} {
		tok := load(t, path)
		text := strings.Repeat("the", 1<<20/3)
		ids, err := tok.Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.Decode(ids); err != nil || got != text {
			t.Errorf("%s: %d ids do not decode to the text (error %v)", path, len(ids), err)
		}
	}
}

func TestUnknownToken(t *testing.T) {
	tok, err := parse([]byte(`{"model":`+model(`"unk_token":"<unk>",`)+`}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := tok.Encode("ab", false); err != nil || !slices.Equal(ids, []int{2}) {
		t.Errorf("known characters: got %v (error %v), want [2]", ids, err)
	}
	for range 2 { // the second time the word must not come from the cache
		if ids, err := tok.Encode("aé", false); err == nil {
			t.Errorf("a character that needs the missing unknown token: got %v, want an error", ids)
		}
	}
	if ids, err := tok.Encode("ba", false); err != nil || !slices.Equal(ids, []int{1, 0}) {
		t.Errorf("after an error: got %v (error %v), want [1 0]", ids, err)
	}
}

func TestLoadNamesFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokenizer.json")
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("missing file: got error %v, want one naming %s", err, path)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("corrupt file: got error %v, want one naming %s", err, path)
	}
}

// BenchmarkEncode reports the speed on English text of a megabyte.
func BenchmarkEncode(b *testing.B) {
	text, err := os.ReadFile(filepath.Join(shared, "text/wiki.test.raw"))
	if err != nil {
		b.Skipf("large test data is not here: %v", err)
	}
	for _, path := range []string{"models/lutq-tiny", "models/stories260k", "models/tinystories-656k-bf16", "tokenizers/llama-2", "tokenizers/llama-3/tokenizer.json.xz"} {
		b.Run(strings.Split(path, "/")[1], func(b *testing.B) {
			tok := load(b, sharedPath(b, path))
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tok.Encode(string(text), false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSplit reports the speed of split patterns by themselves: by scanner, and as regular expressions.
func BenchmarkSplit(b *testing.B) {
	text, err := os.ReadFile(filepath.Join(shared, "text/wiki.test.raw"))
	if err != nil {
		b.Skipf("large test data is not here: %v", err)
	}
	for _, test := range []struct{ name, pattern string }{
		{"scanner", llama3Pattern},
		{"regexp", "(?:" + llama3Pattern + ")"},
		{"tekken", tekkenPattern},
		{"o200k", o200kPattern},
		{"digits", `\p{N}{1,3}`},
	} {
		b.Run(test.name, func(b *testing.B) {
			step := `{"type":"Split","pattern":{"Regex":` + strconv.Quote(test.pattern) + `},"behavior":"Isolated","invert":false}`
			steps, err := parseSplitters([]byte(step))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if err := steps[0].split(piece{string(text), true}, deadlineFor(len(text)), func(piece) {}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLoad reports the time to load a file of 9 MB.
func BenchmarkLoad(b *testing.B) {
	data := readShared(b, "tokenizers/llama-3/tokenizer.json.xz")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := parse(data, nil); err != nil {
			b.Fatal(err)
		}
	}
}
