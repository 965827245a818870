package corpus

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/input"
)

// byteTokenizer gives every byte its own id.
type byteTokenizer struct {
	bos int // 0: none
	err error
}

func (t byteTokenizer) Stream(text io.Reader) iter.Seq2[[]int, error] {
	return func(yield func([]int, error) bool) {
		if t.err != nil {
			yield(nil, t.err)
			return
		}
		part := make([]byte, 1000)
		for {
			n, err := text.Read(part)
			ids := make([]int, n)
			for i := range ids {
				ids[i] = int(part[i])
			}
			if errors.Is(err, io.EOF) {
				yield(ids, nil)
				return
			}
			if !yield(ids, err) || err != nil {
				return
			}
		}
	}
}

func (t byteTokenizer) BOS() (int, bool) { return t.bos, t.bos != 0 }

func TestBuild(t *testing.T) {
	const text = "abcdefghijk" // 11 tokens
	id := 9
	plain, adds := byteTokenizer{}, byteTokenizer{bos: 1}
	type want struct {
		windows   []string // B stands for BOS
		scoreFrom int
		bos       BOS
		dropped   int
		available int
	}
	tests := []struct {
		name string
		tok  byteTokenizer
		o    Options
		want want
	}{
		{"raw", plain, Options{Context: 4}, want{[]string{"abcd", "efgh"}, 1, BOSNone, 3, 2}},
		{"raw ignores the tokenizer's BOS", adds, Options{Context: 4}, want{[]string{"abcd", "efgh"}, 1, BOSNone, 3, 2}},
		{"raw exact fit", plain, Options{Context: 11}, want{[]string{text}, 1, BOSNone, 0, 1}},
		{"raw limited", plain, Options{Context: 4, MaxWindows: 1}, want{[]string{"abcd"}, 1, BOSNone, 3, 2}},
		{"raw limit above", plain, Options{Context: 4, MaxWindows: 9}, want{[]string{"abcd", "efgh"}, 1, BOSNone, 3, 2}},
		{"raw BOS start", adds, Options{Context: 4, BOS: BOSStart}, want{[]string{"Babc", "defg", "hijk"}, 1, BOSStart, 0, 3}},
		{"raw BOS window", adds, Options{Context: 4, BOS: BOSWindow}, want{[]string{"Babc", "Bdef", "Bghi"}, 1, BOSWindow, 2, 3}},
		{"raw BOS from the configuration", plain, Options{Context: 4, BOS: BOSStart, BOSToken: &id}, want{[]string{"Babc", "defg", "hijk"}, 1, BOSStart, 0, 3}},
		{"gptq without BOS", plain, Options{Protocol: GPTQ, Context: 4}, want{[]string{"abcd", "efgh"}, 1, BOSNone, 3, 2}},
		{"gptq with BOS", adds, Options{Protocol: GPTQ, Context: 4}, want{[]string{"Babc", "defg", "hijk"}, 1, BOSStart, 0, 3}},
		{"gptq BOS none", adds, Options{Protocol: GPTQ, Context: 4, BOS: BOSNone}, want{[]string{"abcd", "efgh"}, 1, BOSNone, 3, 2}},
		{"llama.cpp without BOS", plain, Options{Protocol: LlamaCPP, Context: 4}, want{[]string{"abcd", "efgh"}, 3, BOSNone, 3, 2}},
		{"llama.cpp with BOS", adds, Options{Protocol: LlamaCPP, Context: 4}, want{[]string{"Babc", "Befg", "Bijk"}, 3, BOSWindow, 0, 3}},
		{"llama.cpp BOS start", adds, Options{Protocol: LlamaCPP, Context: 4, BOS: BOSStart}, want{[]string{"Babc", "defg", "hijk"}, 3, BOSStart, 0, 3}},
		{"llama.cpp odd window", plain, Options{Protocol: LlamaCPP, Context: 3}, want{[]string{"abc", "def", "ghi"}, 2, BOSNone, 2, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Build(strings.NewReader(text), tt.tok, tt.o)
			if err != nil {
				t.Fatal(err)
			}
			got := want{bos: s.BOS, dropped: s.Dropped, available: s.Available, scoreFrom: s.Windows[0].ScoreFrom}
			for _, w := range s.Windows {
				var b strings.Builder
				for _, id := range w.Tokens {
					if id < 'a' {
						id = 'B'
					}
					b.WriteByte(byte(id))
				}
				got.windows = append(got.windows, b.String())
			}
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})); d != "" {
				t.Errorf("windows (-want +got):\n%s", d)
			}
			if s.TextTokens != len(text) {
				t.Errorf("text tokens: got %d, want %d", s.TextTokens, len(text))
			}
		})
	}
}

func TestDefaultContext(t *testing.T) {
	text := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		p                              Protocol
		context, windows, from, scored int
	}{
		{Raw, 2048, 2, 1, 2 * 2047},
		{GPTQ, 2048, 2, 1, 2 * 2047},
		{LlamaCPP, 512, 9, 257, 9 * 255},
	} {
		s, err := Build(strings.NewReader(text), byteTokenizer{}, Options{Protocol: tt.p})
		if err != nil {
			t.Fatal(err)
		}
		if s.Context != tt.context || len(s.Windows) != tt.windows || s.Windows[0].ScoreFrom != tt.from || s.Targets() != tt.scored {
			t.Errorf("%s: got %d windows of %d, from %d, %d scored; want %+v", tt.p, len(s.Windows), s.Context, s.Windows[0].ScoreFrom, s.Targets(), tt)
		}
		if want := tt.windows * tt.context; s.Tokens() != want {
			t.Errorf("%s: got %d tokens, want %d", tt.p, s.Tokens(), want)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	tests := []struct {
		name, text string
		tok        byteTokenizer
		o          Options
		want       string
	}{
		{"short text", "abc", byteTokenizer{}, Options{Context: 4}, "text has 3 tokens: fewer than one window of 4"},
		{"empty text", "", byteTokenizer{}, Options{}, "text is empty"},
		{"not UTF-8", "ab\xffc", byteTokenizer{}, Options{}, "not UTF-8 at byte 2"},
		{"no BOS token", "abc", byteTokenizer{}, Options{Context: 3, BOS: BOSStart}, "neither tokenizer nor configuration"},
		{"unknown protocol", "abc", byteTokenizer{}, Options{Protocol: "c4"}, `unknown protocol "c4"`},
		{"unknown BOS", "abc", byteTokenizer{}, Options{BOS: "end"}, `unknown BOS placement "end"`},
		{"tiny window", "abc", byteTokenizer{}, Options{Context: 2}, "want at least 3"},
		{"negative limit", "abc", byteTokenizer{}, Options{MaxWindows: -1}, "limit of -1 windows"},
		{"tokenizer fails", "abc", byteTokenizer{err: errors.New("boom")}, Options{}, "tokenize text: boom"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Build(strings.NewReader(tt.text), tt.tok, tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestJoinRows(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"head of WikiText", " \n = A = \n \n B \n", "\n\n = A = \n\n\n\n\n B \n"},
		{"no newline at the end", "a\nb", "a\n\n\nb"},
		{"one blank line", "\n", ""},
		{"Windows line ends", "a\r\n\r\nb\r\n", "a\n\n\n\n\nb\n"},
		{"Python's separators are space", "\x1c\x1f\u00a0\n\u200b\n", "\n\n\u200b\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := joinRows(t, tt.text); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func joinRows(t interface{ Fatal(...any) }, text string) string {
	joined, err := io.ReadAll(JoinRows(iotest.HalfReader(strings.NewReader(text))))
	if err != nil {
		t.Fatal(err)
	}
	return string(joined)
}

// TestJoinRowsWhole compares with the definition, applied to the whole text.
func TestJoinRowsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.SampledFrom([]string{"a", " ", "\n", "\r", "\r\n", "\t", "é", "\u00a0", "\x1c", " = b = "})).Draw(t, "parts")
		text := strings.Join(parts, "")
		var rows []string
		for line := range strings.Lines(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)) {
			if strings.TrimFunc(line, isSpace) == "" {
				line = ""
			}
			rows = append(rows, line)
		}
		if got, want := joinRows(t, text), strings.Join(rows, "\n\n"); got != want {
			t.Fatalf("%q: got %q, want %q", text, got, want)
		}
	})
}

func TestBuildFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"good": " a\r\n\xc3\xa9", "bad": "abc\xff", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := BuildFile(filepath.Join(dir, "good"), byteTokenizer{}, Options{Context: 6})
	if err != nil || !cmp.Equal(s.Windows[0].Tokens, []int{' ', 'a', '\r', '\n', 0xc3, 0xa9}) {
		t.Errorf("got %v, %v", s, err)
	}
	for _, name := range []string{"bad", "empty", "absent"} {
		if _, err := BuildFile(filepath.Join(dir, name), byteTokenizer{}, Options{Context: 3}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
	// A file of 64 GB, of which nothing is read where all of it would have to be.
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, []byte(strings.Repeat("text ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 64<<30); err != nil {
		t.Fatal(err)
	}
	var limit *input.TooLargeError
	if _, err := BuildFile(large, byteTokenizer{}, Options{}); !errors.As(err, &limit) || !strings.Contains(err.Error(), large) {
		t.Errorf("a file of 64 GB: error %v", err)
	}
	s, err = BuildFile(large, byteTokenizer{}, Options{Context: 100, MaxWindows: 2})
	if err != nil || len(s.Windows) != 2 || s.Whole {
		t.Errorf("two windows of 64 GB: %v", err)
	}
}

// endless gives a text for ever.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "some words\n"[(e.read+i)%11]
	}
	e.read += len(p)
	return len(p), nil
}

// TestBuildEndless: windows at the beginning of a text without an end.
func TestBuildEndless(t *testing.T) {
	for _, p := range []Protocol{Raw, GPTQ, LlamaCPP} {
		text := new(endless)
		s, err := Build(text, byteTokenizer{bos: 1}, Options{Protocol: p, MaxWindows: 2})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Windows) != 2 || s.Whole || s.Available < 2 || text.read > 2*countedBytes {
			t.Errorf("%s: %d windows, whole %t, %d available, %d bytes read", p, len(s.Windows), s.Whole, s.Available, text.read)
		}
		whole, err := Build(strings.NewReader(strings.Repeat("some words\n", 1000)), byteTokenizer{bos: 1}, Options{Protocol: p, MaxWindows: 2})
		if err != nil || !whole.Whole || !cmp.Equal(s.Windows, whole.Windows) {
			t.Errorf("%s: the windows of a shorter text differ: %v", p, err)
		}
	}
}

// A window never invents, loses or reorders text: put together without their
// BOS, the windows and the dropped tail are the text.
func TestWindowsCoverText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z]{3,200}`).Draw(t, "text")
		o := Options{
			Protocol: rapid.SampledFrom([]Protocol{Raw, GPTQ}).Draw(t, "protocol"),
			BOS:      rapid.SampledFrom([]BOS{BOSDefault, BOSNone, BOSStart, BOSWindow}).Draw(t, "bos"),
			Context:  rapid.IntRange(3, 40).Draw(t, "ctx"),
		}
		s, err := Build(strings.NewReader(text), byteTokenizer{bos: 1}, o)
		if err != nil {
			if len(text)+1 < o.Context {
				return
			}
			if len(text) < o.Context && s == nil {
				return
			}
			t.Fatal(err)
		}
		var b strings.Builder
		for _, w := range s.Windows {
			if len(w.Tokens) != o.Context {
				t.Fatalf("window of %d tokens, want %d", len(w.Tokens), o.Context)
			}
			for _, id := range w.Tokens {
				if id != 1 {
					b.WriteByte(byte(id))
				}
			}
		}
		if got, want := b.String(), text[:len(text)-s.Dropped]; got != want {
			t.Fatalf("windows hold %q, want %q", got, want)
		}
	})
}

func FuzzBuild(f *testing.F) {
	f.Add("a b\n\n = c = \n", "gptq", "", 4, 0)
	f.Add(" \r\n\x1cx", "raw", "window", 3, 1)
	f.Add("\xff", "llama.cpp", "start", 0, -1)
	f.Fuzz(func(t *testing.T, text, protocol, bos string, ctx, limit int) {
		if ctx > 1<<16 {
			return
		}
		s, err := Build(strings.NewReader(text), byteTokenizer{bos: 7}, Options{Protocol: Protocol(protocol), BOS: BOS(bos), Context: ctx, MaxWindows: limit})
		if err != nil {
			return
		}
		if !utf8.ValidString(text) {
			t.Errorf("accepted text that is not UTF-8")
		}
		for _, w := range s.Windows {
			if len(w.Tokens) != s.Context || w.ScoreFrom < 1 || w.Targets() < 1 {
				t.Fatalf("window of %d tokens scored from %d", len(w.Tokens), w.ScoreFrom)
			}
		}
	})
}

// TestNotFound: the name of a data set is told apart from a path with a mistake in it.
func TestNotFound(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, set := range map[string]bool{"wikitext": true, "c4": true, "Salesforce/wikitext": true, "texts/novel": false, "wiki.txt": false} {
		_, err := Open(path, 1)
		var e *NotFoundError
		if !errors.As(err, &e) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(e.Hint(), "in UTF-8") || strings.Contains(e.Hint(), "wikitext-2-raw-v1") != set {
			t.Errorf("%s: got %v, hint of a data set: want %v", path, err, set)
		}
	}
}

func TestDiffers(t *testing.T) {
	set := func(windows ...[]int) *Set {
		s := new(Set)
		for _, tokens := range windows {
			s.Windows = append(s.Windows, Window{Tokens: tokens, ScoreFrom: 1})
		}
		return s
	}
	for _, tc := range []struct {
		name    string
		a, b    *Set
		at      Place
		differs bool
	}{
		{"equal", set([]int{1, 2}, []int{3, 4}), set([]int{1, 2}, []int{3, 4}), Place{2, 0}, false},
		{"the first", set([]int{1, 2}), set([]int{5, 2}), Place{0, 0}, true},
		{"in the second window", set([]int{1, 2}, []int{3, 4}), set([]int{1, 2}, []int{3, 5}), Place{1, 1}, true},
		{"fewer windows", set([]int{1, 2}, []int{3, 4}), set([]int{1, 2}), Place{1, 0}, true},
		{"more windows", set([]int{1, 2}), set([]int{1, 2}, []int{3, 4}), Place{1, 0}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if at, differs := tc.a.Differs(tc.b); differs != tc.differs || differs && at != tc.at {
				t.Errorf("got %v, %t, want %v, %t", at, differs, tc.at, tc.differs)
			}
		})
	}
}
