package input_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/input"
)

func kinds() []input.Kind {
	return []input.Kind{
		input.Config, input.Index, input.Header, input.Tokenizer, input.Text, input.Recipe, input.Codebook,
		input.Journal, input.State, input.Kernel, input.Listing, input.System,
	}
}

func TestOpenOnlyRegular(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("pipe"), path("link to pipe")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("file"), path("link to file")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, path, want string }{
		{"file", path("file"), ""},
		{"link to a file", path("link to file"), ""},
		{"pipe", path("pipe"), "is a pipe"},
		{"link to a pipe", path("link to pipe"), "is a pipe"},
		{"folder", dir, "is a folder"},
		{"device", "/dev/zero", "is a device"},
		{"nothing", path("nothing"), "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, flag := range []int{os.O_RDONLY, os.O_RDWR} {
				f, err := input.OpenFile(tc.path, flag, 0)
				if err == nil {
					defer f.Close()
				}
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.path)) {
					t.Errorf("error %v: want %q", err, tc.want)
				}
			}
		})
	}
	f, err := input.OpenFile(path("new"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestReadLimit: what is too large is refused before memory is taken for it.
func TestReadLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds() {
		t.Run(string(kind), func(t *testing.T) {
			if kind.Limit() < 1e6 {
				t.Fatalf("limit of %d bytes", kind.Limit())
			}
			if err := os.Truncate(path, 64<<30); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := input.ReadFile(path, kind)
			runtime.ReadMemStats(&after)
			var large *input.TooLargeError
			if !errors.As(err, &large) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), string(kind)) {
				t.Errorf("error %v", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("%d bytes allocated", n)
			}
		})
	}
	if err := os.Truncate(path, input.Codebook.Limit()); err != nil {
		t.Fatal(err)
	}
	if data, err := input.ReadFile(path, input.Codebook); err != nil || int64(len(data)) != input.Codebook.Limit() {
		t.Errorf("a file of the limit's size: %d bytes, %v", len(data), err)
	}
}

// endless gives zeros for ever, as a file that grows while it is read.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestReadAllEndless(t *testing.T) {
	var large *input.TooLargeError
	if _, err := input.ReadAll(endless{}, input.Codebook, 0); !errors.As(err, &large) {
		t.Errorf("error %v", err)
	}
	want := strings.Repeat("some text ", 1000)
	for _, size := range []int64{-1, 0, 10, int64(len(want)), 1 << 40} {
		got, err := input.ReadAll(strings.NewReader(want), input.Codebook, size)
		if err != nil || string(got) != want {
			t.Errorf("size %d: %d bytes, %v", size, len(got), err)
		}
	}
	failed := errors.New("failed")
	if _, err := input.ReadAll(failing{failed}, input.Text, 0); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestPrintable(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "model.layers.0 ↓ 模型", "model.layers.0 ↓ 模型"},
		{"escape", "a\x1b[31mb", `a\x1b[31mb`},
		{"one byte's escape", "\u009b31m", `\u009b31m`},
		{"bidirectional override", "a\u202egpj.exe", `a\u202egpj.exe`},
		{"isolate", "\u2066x\u2069", `\u2066x\u2069`},
		{"line breaks", "a\nb\r\u2028", `a\nb\r\u2028`},
		{"zero width", "a\u200bb\ufeff", `a\u200bb\ufeff`},
		{"bell, delete, nul", "\a\x7f\x00", `\a\x7f\x00`},
		{"no UTF-8", "a\xffb", `a\xffb`},
		{"replacement character", "a\ufffdb\x1b", `a` + "\ufffd" + `b\x1b`},
		{"quotes and backslashes", `a"b\c`, `a"b\c`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := input.Printable(tc.in); got != tc.want {
				t.Errorf("%q: want %q", got, tc.want)
			}
		})
	}
}

func TestCut(t *testing.T) {
	for _, tc := range []struct {
		in   string
		n    int
		want string
	}{
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "ab…efg"},
		{"äöüäöü", 6, "äöüäöü"},
		{"äöüßäöü", 5, "äö…öü"},
	} {
		if got := input.Cut(tc.in, tc.n); got != tc.want {
			t.Errorf("%d of %q: %q, want %q", tc.n, tc.in, got, tc.want)
		}
	}
	name := input.Name("begin" + strings.Repeat("x", 5_000_000) + "end")
	if !strings.HasPrefix(name, "beginx") || !strings.HasSuffix(name, "xend") || len(name) > 200 {
		t.Errorf("a name of %d bytes: %.200s", len(name), name)
	}
	if got := input.Message("one\ntwo\x1b"); got != `one; two\x1b` {
		t.Errorf("message %q", got)
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"", "plain", "a\x1b[0m", "\u202e", "\xff\xfe", strings.Repeat("ä\n", 900)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, got := range []string{input.Name(s), input.Message(s)} {
			if got != input.Printable(got) || !utf8.ValidString(got) || utf8.RuneCountInString(got) > 1000 {
				t.Errorf("%q becomes %q", s, got)
			}
		}
	})
}

func FuzzReadAll(f *testing.F) {
	f.Add([]byte("text"), int64(4))
	f.Fuzz(func(t *testing.T, data []byte, size int64) {
		got, err := input.ReadAll(bytes.NewReader(data), input.Codebook, size)
		if int64(len(data)) <= input.Codebook.Limit() && (err != nil || !bytes.Equal(got, data)) {
			t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
		}
	})
}
