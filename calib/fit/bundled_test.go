package fit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/corpus/bundled"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// textOf returns the bundled text of lutq-tiny with another chat template, none where that is "".
func textOf(t *testing.T, template string) *bundledText {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../testdata/lutq-tiny")); err != nil {
		t.Fatal(err)
	}
	if template != "" {
		if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := modeltest.Open(t, dir)
	tok, err := tokenizer.Read(m)
	if err != nil {
		t.Fatal(err)
	}
	return &bundledText{m: m, tok: tok, warn: func(s string) { t.Log(s) }}
}

// TestChats: chats are as the template has them, without the system's message where it takes none, and plain where it
// fails or there is none. A date is always the same.
func TestChats(t *testing.T) {
	docs, err := bundled.Documents(0)
	if err != nil {
		t.Fatal(err)
	}
	with := func(system bool) *bundled.Document {
		i := slices.IndexFunc(docs, func(d bundled.Document) bool { return d.Messages != nil && (d.Messages[0].Role == "system") == system })
		if i < 0 {
			t.Fatal("there is no such chat")
		}
		return &docs[i]
	}
	const turns = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
	for _, tc := range []struct {
		name, template     string
		system             bool
		begins, isNotThere string
	}{
		{"whole", turns, true, "[system|", "Assistant: "},
		{"no system", "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + turns, true, "[user|", "system"},
		{"raises", "{{ raise_exception('never') }}", false, "User: ", "[user|"},
		{"none", "", false, "User: ", "[user|"},
		{"no template", "{% if %}", false, "User: ", "[user|"},
		{"date", "{{ strftime_now('%Y-%m-%d') }} " + turns, false, "2025-01-01 [user|", "User: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := textOf(t, tc.template)
			ids, err := b.tokens(with(tc.system), b.template())
			if err != nil {
				t.Fatal(err)
			}
			text, err := b.tok.Decode(ids)
			if err != nil || !strings.HasPrefix(text, tc.begins) || strings.Contains(text, tc.isNotThere) {
				t.Errorf("%q, error %v: want it to begin with %q and to be without %q", text[:min(80, len(text))], err, tc.begins, tc.isNotThere)
			}
		})
	}
}

// TestBundled: the text is enough for what is fitted to where nothing else is said, and its windows are full.
func TestBundled(t *testing.T) {
	b := textOf(t, "")
	bos, _ := b.tok.BOS()
	for _, tc := range []struct {
		size, most int
		bos        corpus.BOS
	}{{2048, 128 + 16, corpus.BOSWindow}, {64, 40, corpus.BOSNone}} {
		windows, _, err := b.windows(tc.size, tc.most, tc.bos)
		if err != nil || len(windows) != tc.most {
			t.Fatalf("%d windows, error %v: want %d", len(windows), err, tc.most)
		}
		for _, w := range windows {
			if len(w) != tc.size || (tc.bos == corpus.BOSWindow) != (w[0] == bos) {
				t.Fatalf("a window of %d tokens that begins with %d", len(w), w[0])
			}
		}
	}
}
