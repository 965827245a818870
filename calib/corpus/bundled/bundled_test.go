package bundled

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/calib/corpus/bundled/internal/pieces"
)

func read(t *testing.T) []pieces.Piece {
	t.Helper()
	all, err := pieces.Read(os.DirFS("pieces"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPackedIsPieces(t *testing.T) {
	want, err := pieces.Lines(read(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pieces.Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("pieces.jsonl.gz is not what the folder pieces has: run go generate")
	}
	if len(packed) > 700_000 {
		t.Errorf("packed %d bytes: want at most 700000", len(packed))
	}
	if len(want) < 1_500_000 || len(want) > 2_500_000 {
		t.Errorf("%d bytes of text: want 1.5 to 2.5 million", len(want))
	}
}

// TestPieces checks that each piece is a text of a known kind.
func TestPieces(t *testing.T) {
	bytesOf := map[Kind]int{}
	languages := map[string]bool{}
	for _, p := range read(t) {
		k := Kind(p.Kind())
		if !slices.Contains(Kinds(), k) {
			t.Errorf("%s: unknown kind", p.Path)
		}
		if (k == Chat) != (p.Text == "") || (k == Chat) != (len(p.Chats) > 0) {
			t.Errorf("%s: want chats if a chat, else text", p.Path)
		}
		for _, d := range split(p, DefaultSize) {
			bytesOf[k] += len(d.Text)
			if strings.ContainsAny(d.Text, "\r\x00\ufffd\ufeff") || !utf8.ValidString(d.Text) {
				t.Errorf("%s: has a character that no text should have", p.Path)
			}
		}
		for i, c := range p.Chats {
			turns := c
			if len(c) > 0 && c[0].Role == "system" {
				turns = c[1:]
			}
			for j, m := range turns {
				if want := []string{"user", "assistant"}[j%2]; m.Role != want || strings.TrimSpace(m.Content) == "" {
					t.Errorf("%s: chat %d, message %d of %q: want one of %s", p.Path, i, j, m.Role, want)
				}
			}
			if len(turns) == 0 || len(turns)%2 != 0 {
				t.Errorf("%s: chat %d has %d turns: want it to end with an answer", p.Path, i, len(turns))
			}
		}
		if k == Prose {
			languages[p.Language()] = true
		}
	}
	for _, k := range Kinds() {
		t.Logf("%s: %d bytes", k, bytesOf[k])
		if bytesOf[k] < 30_000 {
			t.Errorf("%d bytes of %s: want at least 30000", bytesOf[k], k)
		}
	}
	for _, l := range []string{"en", "de", "fr", "es", "it", "pt", "ru", "zh", "ja", "ar", "hi"} {
		if !languages[l] {
			t.Errorf("no prose in %s", l)
		}
	}
}

// TestSources checks that SOURCES.md states source and licence of every piece, and of nothing else.
func TestSources(t *testing.T) {
	doc, err := os.ReadFile("SOURCES.md")
	if err != nil {
		t.Fatal(err)
	}
	free := []string{"public domain", "CC0-1.0", "Unlicense"}
	var stated []string
	for _, m := range regexp.MustCompile(`(?m)^\| (\S+/\S+/\S+) \| (.+) \| (.+) \| (.+) \|$`).FindAllStringSubmatch(string(doc), -1) {
		stated = append(stated, m[1])
		if !slices.Contains(free, m[4]) {
			t.Errorf("%s: licence %q: want one of %q", m[1], m[4], free)
		}
	}
	var paths []string
	for _, p := range read(t) {
		paths = append(paths, p.Path)
	}
	slices.Sort(stated)
	if d := cmp.Diff(paths, stated); d != "" {
		t.Errorf("pieces, and those that SOURCES.md states (-have +stated):\n%s", d)
	}
}

// TestDocuments checks that documents hold the whole text, and are no longer than asked for.
func TestDocuments(t *testing.T) {
	// Where a document ends is white space that none has.
	solid := func(s string) string { return strings.Join(strings.Fields(s), "") }
	for _, size := range []int{0, 300, 8192} {
		docs, err := Documents(size)
		if err != nil {
			t.Fatal(err)
		}
		if size == 0 {
			size = DefaultSize
		}
		text := map[string]*strings.Builder{}
		for _, d := range docs {
			if len(d.Text) > size && d.Kind != Chat {
				t.Errorf("%s: document of %d bytes: want at most %d", d.Piece, len(d.Text), size)
			}
			if strings.TrimSpace(d.Text) == "" || d.Language == "" || (d.Kind == Chat) != (d.Messages != nil) {
				t.Errorf("%s: a document is not whole", d.Piece)
			}
			if text[d.Piece] == nil {
				text[d.Piece] = &strings.Builder{}
			}
			text[d.Piece].WriteString(d.Text)
		}
		for _, p := range read(t) {
			if p.Kind() != "chat" && solid(text[p.Path].String()) != solid(p.Text) {
				t.Errorf("%s: documents of %d bytes are not the piece", p.Path, size)
			}
		}
	}
	if _, err := Documents(10); err == nil {
		t.Error("documents of 10 bytes: want an error")
	}
}

// TestInterleaving checks that the first documents are a mixture: those of about 32 windows of 512 tokens have all kinds in
// fair parts, and several languages.
func TestInterleaving(t *testing.T) {
	for _, size := range []int{1024, DefaultSize, 4096} {
		docs, err := Documents(size)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		of := map[Kind]int{}
		prose, code := map[string]bool{}, map[string]bool{}
		for _, d := range docs {
			of[d.Kind] += len(d.Text)
			switch d.Kind {
			case Prose:
				prose[d.Language] = true
			case Code:
				code[d.Language] = true
			}
			if sum += len(d.Text); sum > 32*512*7/2 {
				break
			}
		}
		for _, k := range Kinds() {
			if part := float64(of[k]) / float64(sum); part < 0.08 || part > 0.40 {
				t.Errorf("documents of %d bytes: %.2f of the beginning is %s: want 0.08 to 0.40", size, part, k)
			}
		}
		if len(prose) < 3 || len(code) < 2 {
			t.Errorf("documents of %d bytes: the beginning has prose in %d languages and code in %d: want 3 and 2", size, len(prose), len(code))
		}
	}
}

func TestOrderIsFixed(t *testing.T) {
	a, err := Documents(0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Documents(DefaultSize)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a, b); d != "" {
		t.Error("two calls have two orders")
	}
}

func TestDigest(t *testing.T) {
	got, err := Digest()
	if err != nil {
		t.Fatal(err)
	}
	// It is what recipes and reports name the text by: a change of the text is a change of results.
	if got != digest {
		t.Errorf("digest %s: want %s", got, digest)
	}
}
