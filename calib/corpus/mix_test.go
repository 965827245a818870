package corpus

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// letters is a tokenizer with a token for each byte.
type letters struct{ bos bool }

func (letters) Stream(text io.Reader) iter.Seq2[[]int, error] {
	return func(yield func([]int, error) bool) {
		data, err := io.ReadAll(text)
		ids := make([]int, len(data))
		for i := range ids {
			ids[i] = int(data[i])
		}
		yield(ids, err)
	}
}

// text is a text with a name.
func text(name, s string) Text { return Text{Name: name, Text: strings.NewReader(s)} }

func (l letters) BOS() (int, bool) { return 1, l.bos }

func TestMix(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	both := []Text{text("a", a), text("b", b)}
	train, valid, err := Mix(both, letters{}, MixOptions{Windows: 7, Valid: 3, Context: 8, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	first := func(windows [][]int) (s string) {
		for _, w := range windows {
			if len(w) != 8 {
				t.Errorf("window of %d tokens", len(w))
			}
			s += string(rune(w[0]))
		}
		return s
	}
	if got := first(train); got != "abababa" {
		t.Errorf("the texts take turns as %s", got)
	}
	if got := first(valid); got != "aba" {
		t.Errorf("held out: the texts take turns as %s", got)
	}
}

// TestWindowsDisjoint checks that no window is drawn twice, that the seed
// decides, and that windows in order begin with BOS and the text.
func TestMixDisjoint(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		b.WriteString(strings.Repeat(string(rune('0'+i)), 8))
	}
	draw := func(seed uint64) string {
		train, valid, err := Mix([]Text{text("text", b.String())}, letters{}, MixOptions{Windows: 30, Valid: 10, Context: 8, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, w := range slices.Concat(train, valid) {
			all = append(all, byte(w[0]))
		}
		sorted := slices.Sorted(slices.Values(all))
		if len(slices.Compact(sorted)) != 40 {
			t.Errorf("windows are drawn twice: %q", all)
		}
		return string(all)
	}
	if first, again := draw(1), draw(1); first != again || first == draw(2) {
		t.Error("the seed does not decide what is drawn")
	}
	train, valid, err := Mix([]Text{text("text", b.String())}, letters{bos: true}, MixOptions{Windows: 2, Valid: 1, Context: 9, BOS: BOSWindow, InOrder: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range slices.Concat(train, valid) {
		if w[0] != 1 || w[1] != '0'+i || len(w) != 9 {
			t.Errorf("window %d is %v", i, w)
		}
	}
}

func TestMixBad(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		texts      []Text
		o          MixOptions
	}{
		{"too short", "a has 2 windows of 8 tokens: want 2 to learn on and 1 to hold out", []Text{text("a", strings.Repeat("a", 20))}, MixOptions{Windows: 2, Valid: 1, Context: 8}},
		{"no window", "a: text has 4 tokens", []Text{text("a", "aaaa")}, MixOptions{Windows: 1, Context: 8}},
		{"more texts than windows", "1 windows of 2 texts", []Text{text("a", "aaaa"), text("b", "bbbb")}, MixOptions{Windows: 1, Context: 4}},
		{"negative", "-1 held-out windows", []Text{text("a", "aaaa")}, MixOptions{Windows: 1, Valid: -1, Context: 4}},
		{"no BOS", "neither tokenizer nor configuration names a BOS token", []Text{text("a", "aaaa")}, MixOptions{Windows: 1, Context: 4, BOS: BOSWindow}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := Mix(tc.texts, letters{}, tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestMixMade: a text that is no file gives its first windows in their order whatever the seed, and takes its turn. A file by
// the same name is called by its folder.
func TestMixMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "made")
	if err := os.WriteFile(file, []byte(strings.Repeat("a", 64)), 0o644); err != nil {
		t.Fatal(err)
	}
	made := Text{Name: "made", Windows: func(context, most int, bos BOS) (windows [][]int, sum string, err error) {
		if context != 8 || bos != BOSNone {
			t.Errorf("windows of %d tokens, BOS %s", context, bos)
		}
		for i := range most {
			windows = append(windows, []int{i})
		}
		return windows, "sum", nil
	}}
	m, err := MixFiles([]string{file, "made"}, letters{}, MixOptions{Windows: 4, Valid: 2, Context: 8, Seed: 3, Made: map[string]Text{"made": made}})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Windows) != 4 || m.Windows[1][0] != 0 || m.Windows[3][0] != 1 || m.Valid[1][0] != 2 {
		t.Errorf("mixed as %v and %v", m.Windows, m.Valid)
	}
	if m.Texts[0].Name != "./made" || m.Texts[1] != (File{"made", "sum"}) {
		t.Errorf("the texts are %v", m.Texts)
	}
	made.Windows = func(int, int, BOS) ([][]int, string, error) { return make([][]int, 2), "", nil }
	_, err = MixFiles([]string{"made"}, letters{}, MixOptions{Windows: 3, Context: 8, Made: map[string]Text{"made": made}})
	if err == nil || !strings.Contains(err.Error(), "made has 2 windows of 8 tokens: want 3") {
		t.Errorf("error %v of a text that is too short", err)
	}
}

// TestDocuments: no window goes beyond the end of a document, and short ones are windows of their own length, each of which
// is drawn once.
func TestDocuments(t *testing.T) {
	const lines = `{"text": "aaaaaaaaaabb"}` + "\n\n" + `{"id": 2, "text": "cc"}` + "\r\n" + `{"text": "d"}` + "\n" + `{"text": ""}` + "\n" + `{"text": "eeeeeeeeee"}`
	docs := func(s string) []Text { return []Text{{Name: "docs", Text: strings.NewReader(s), Documents: true}} }
	draw := func(l letters, o MixOptions) string {
		train, valid, err := Mix(docs(lines), l, o)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, w := range slices.Concat(train, valid) {
			all = append(all, string(bytesOf(w)))
		}
		if !o.InOrder {
			slices.Sort(all)
		}
		return strings.Join(all, " ")
	}
	if got, want := draw(letters{}, MixOptions{Windows: 3, Valid: 1, Context: 10, InOrder: true}), "aaaaaaaaaa bb cc eeeeeeeeee"; got != want {
		t.Errorf("windows are %q: want %q", got, want)
	}
	if got, want := draw(letters{}, MixOptions{Windows: 4, Context: 10, Seed: 3}), "aaaaaaaaaa bb cc eeeeeeeeee"; got != want {
		t.Errorf("windows drawn are %q: want %q", got, want)
	}
	if got, want := draw(letters{bos: true}, MixOptions{Windows: 6, Context: 8, BOS: BOSWindow}), "\x01aaaaaaa \x01aaabb \x01cc \x01d \x01eee \x01eeeeeee"; got != want {
		t.Errorf("windows with BOS are %q: want %q", got, want)
	}
	if got, want := draw(letters{bos: true}, MixOptions{Windows: 6, Context: 8, BOS: BOSHalf}), "\x01aaaaaaa \x01d \x01eee aaabb cc eeeeeee"; got != want {
		t.Errorf("windows half of which have BOS are %q: want %q", got, want)
	}
	for _, tc := range []struct{ text, want string }{
		{lines, "docs has 4 windows of up to 10 tokens: want 9"},
		{`{"text": "a"}`, "docs: no text has two tokens"},
		{"", "docs: no text has two tokens"},
		{lines + "\n[1]", `docs: line 7: want a JSON object with a string "text"`},
		{`{"text": 1}`, `docs: line 1: want a JSON object with a string "text"`},
		{`{"txt": "aa"}`, `docs: line 1: want a JSON object with a string "text"`},
		{"plain words", `docs: line 1: want a JSON object with a string "text"`},
		{"{\"text\": \"\xff\"}", "docs: text is not UTF-8 at byte 10"},
	} {
		if _, _, err := Mix(docs(tc.text), letters{}, MixOptions{Windows: 9, Context: 10}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v: want %q", tc.text, err, tc.want)
		}
	}
}

func bytesOf(ids []int) []byte {
	b := make([]byte, len(ids))
	for i, id := range ids {
		b[i] = byte(id)
	}
	return b
}

// FuzzDocuments: what is no JSON lines of texts is refused in a line, and windows are no longer than they may be.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte("{\"text\": \"some words\"}\n{\"text\": \"\"}\n"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := buildDocuments(bytes.NewReader(data), letters{}, Options{Context: 5})
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("error is %q", err)
			}
			return
		}
		for _, w := range s.Windows {
			if len(w.Tokens) < 2 || len(w.Tokens) > 5 {
				t.Fatalf("a window of %d tokens", len(w.Tokens))
			}
		}
	})
}

// TestMixFiles: names without folders, sums of whole files, and BOS where the tokenizer adds it.
func TestMixFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.txt")
	for path, data := range map[string]string{a: strings.Repeat("a", 900), b: strings.Repeat("b", 100)} {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		adds   bool
		bos    BOS
		tokens int
	}{{false, BOSNone, 27}, {true, BOSHalf, 26}} {
		m, err := MixFiles([]string{a, b}, letters{bos: tc.adds}, MixOptions{Windows: 3, Valid: 1, Context: 9, InOrder: true})
		if err != nil {
			t.Fatal(err)
		}
		if m.BOS != tc.bos || len(m.Windows) != 3 || len(m.Valid) != 1 || m.Tokens() != tc.tokens || (m.Windows[0][0] == 1) != tc.adds {
			t.Errorf("got %+v", m)
		}
		sum := sha256.Sum256([]byte(strings.Repeat("a", 900)))
		if want := (File{"a.txt", hex.EncodeToString(sum[:])}); m.Texts[0] != want || m.Texts[1].Name != "b.txt" {
			t.Errorf("texts %+v, want %+v first", m.Texts, want)
		}
	}
}
