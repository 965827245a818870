package fit

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/gemm/cpu"
)

func TestParseSelf(t *testing.T) {
	for _, tc := range []struct {
		text        string
		temperature float64
		ok, bad     bool
	}{
		{"self", 1, true, false},
		{"self:0.5", 0.5, true, false},
		{"./self", 0, false, false},
		{"selfish", 0, false, false},
		{"self:", 0, true, true},
		{"self:0", 0, true, true},
		{"self:NaN", 0, true, true},
		{"self:hot", 0, true, true},
	} {
		temperature, ok, err := ParseSelf(tc.text)
		if temperature != tc.temperature || ok != tc.ok || (err != nil) != tc.bad {
			t.Errorf("%s: temperature %v, %t, error %v", tc.text, temperature, ok, err)
		}
	}
}

// selfOf returns what writes a text by lutq-tiny, with a chat template or none, and how often the device was opened.
func selfOf(t *testing.T, template, keep string) (s *selfText, opened *int) {
	b := textOf(t, template)
	opened = new(int)
	s = &selfText{m: b.m, tok: b.tok, temperature: 1, o: &Options{
		Device: "cpu", Keep: keep, Seed: 3,
		Open: func(int64) ([]model.Ops, func() error, error) {
			*opened++
			e, err := cpu.New(cpu.Options{Threads: 2})
			if err != nil {
				return nil, nil, err
			}
			return []model.Ops{modelcpu.New(e)}, func() error { e.Close(); return nil }, nil
		},
	}}
	return s, opened
}

// TestSelf: a text is written once, and is the same whatever is written after it; the seed, the temperature and the place of
// BOS decide. A file that is damaged is as if it were not there.
func TestSelf(t *testing.T) {
	keep := filepath.Join(t.TempDir(), "kept")
	s, opened := selfOf(t, "", keep)
	write := func(most int, bos corpus.BOS) ([][]int, string) {
		t.Helper()
		windows, sum, err := s.windows(t.Context(), 24, most, bos)
		if err != nil || len(windows) != most {
			t.Fatalf("%d windows, error %v: want %d", len(windows), err, most)
		}
		return windows, sum
	}
	few, sum := write(3, corpus.BOSWindow)
	bos, _ := s.tok.BOS()
	for _, w := range few {
		if len(w) != 24 || w[0] != bos {
			t.Errorf("a window of %d tokens that begins with %d", len(w), w[0])
		}
	}
	if slices.Equal(few[0], few[1]) {
		t.Error("all windows are one")
	}
	if again, same := write(3, corpus.BOSWindow); *opened != 1 || same != sum || !slices.EqualFunc(again, few, slices.Equal) {
		t.Errorf("the model was opened %d times for the same windows", *opened)
	}
	if more, _ := write(10, corpus.BOSWindow); *opened != 2 || !slices.EqualFunc(more[:3], few, slices.Equal) {
		t.Errorf("the first windows are others with more behind them, or were written again: opened %d times", *opened)
	}
	files, err := filepath.Glob(filepath.Join(keep, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("kept are %v, error %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-3] ^= 1
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, _ := write(3, corpus.BOSWindow); *opened != 3 || !slices.EqualFunc(again, few, slices.Equal) {
		t.Error("a damaged file was taken")
	}
	if bare, _ := write(3, corpus.BOSNone); slices.Equal(bare[0], few[0]) || bare[0][0] == bos {
		t.Error("BOS is in a window that none is for")
	}
	s.temperature = 0.1
	if cold, other := write(3, corpus.BOSWindow); other == sum || slices.Equal(cold[0], few[0]) {
		t.Error("the temperature has no part in the text")
	}
	s.temperature, s.o.Seed = 1, 4
	if _, other := write(3, corpus.BOSWindow); other == sum {
		t.Error("the seed has no part in the text")
	}
	s.o.Unwritten, s.o.Seed = true, 5
	had := *opened
	if shapes, sum := write(2, corpus.BOSWindow); *opened != had || sum != "" || len(shapes[0]) != 24 {
		t.Error("a plan needs but the shapes of windows")
	}
}

// TestSelfChats: with a chat template texts begin with chats that are bundled, up to what a user says.
func TestSelfChats(t *testing.T) {
	s, _ := selfOf(t, "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}{% if add_generation_prompt %}[assistant|{% endif %}", t.TempDir())
	p, err := s.prompts(corpus.BOSWindow)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.chats) < 100 {
		t.Errorf("%d chats: want more", len(p.chats))
	}
	for n := range 2 {
		tokens, hidden := p.prompt(4, n)
		text, err := s.tok.Decode(tokens)
		if err != nil || hidden != 0 || !strings.HasSuffix(text, "[assistant|") || !strings.Contains(text, "[user|") {
			t.Errorf("text %d begins with %q, of which %d are hidden, error %v", n, text, hidden, err)
		}
		if bos, _ := s.tok.BOS(); (tokens[0] == bos) != (n == 0) {
			t.Errorf("text %d of a window begins with %d", n, tokens[0])
		}
		if again, _ := p.prompt(4, n); !slices.Equal(again, tokens) {
			t.Error("the same text begins otherwise the second time")
		}
	}
}

// TestSelfTo: the recipe's flags ask for the text again, and the record has its sum.
func TestSelfTo(t *testing.T) {
	s, _ := selfOf(t, "", t.TempDir())
	o := *s.o
	o.Texts, o.Windows, o.Context = []string{"self:0.7", "bundled"}, 4, 32
	text, err := o.read(t.Context(), s.m)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(o.textFlags(text), " "), "--calib self:0.7 --calib bundled --calib-windows 4 --calib-ctx 32 --calib-bos half"; got != want {
		t.Errorf("flags are %s, want %s", got, want)
	}
	for _, f := range text.Texts {
		if len(f.SHA256) != 64 {
			t.Errorf("%s has the sum %q", f.Name, f.SHA256)
		}
	}
	o.Texts = []string{"self:cold"}
	if _, err := o.read(t.Context(), s.m); err == nil {
		t.Error("a text at no temperature was taken")
	}
	stop := errors.New("no device")
	o.Texts, o.Seed = []string{"self"}, 9
	o.Open = func(int64) ([]model.Ops, func() error, error) { return nil, nil, stop }
	if _, err := o.read(t.Context(), s.m); !errors.Is(err, stop) {
		t.Errorf("error %v: want that of the device", err)
	}
}

// FuzzWindows reads files of windows: what is read is of the vocabulary and as long as it should be, and is written as it was.
func FuzzWindows(f *testing.F) {
	keep := &keptWindows{path: filepath.Join(f.TempDir(), "a", "b.tokens"), size: 3, vocab: 10}
	keep.write([][]int{{1, 2, 3}, {4, 5, 9}})
	data, err := os.ReadFile(keep.path)
	if err != nil || len(keep.read(5)) != 2 || len(keep.read(1)) != 1 {
		f.Fatalf("two windows are read as %v, error %v", keep.read(5), err)
	}
	f.Add(data, 3)
	f.Add(data[:len(data)-1], 3)
	f.Add([]byte(keptMagic), 1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		if size < 1 || size > 100 {
			return
		}
		for _, w := range decodeWindows(data, size, 10, 4) {
			if len(w) != size || slices.Max(w) >= 10 {
				t.Errorf("a window %v", w)
			}
		}
	})
}
