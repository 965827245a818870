package tokenizer

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/racetest"
)

// shared is the folder of large test data beside the repository. Tests that need it skip where it is absent.
const shared = "../../../shared"

// sharedPath returns the path of a file in the shared folder, or of its unpacked copy where it ends in .xz.
func sharedPath(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(shared, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("large test data is not here: %v", err)
	}
	if filepath.Ext(path) != ".xz" {
		return path
	}
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skipf("cannot unpack: %v", err)
	}
	data, err := exec.Command("xz", "-dc", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestConformance checks llama.cpp's vectors, made with the original tokenizers of Llama 2 and 3.
func TestConformance(t *testing.T) {
	racetest.Skip(t)
	tests := []struct {
		vectors, tokenizer string
	}{
		{"llama-spm", "tokenizers/llama-2/tokenizer.json"},
		{"llama-bpe", "tokenizers/llama-3/tokenizer.json.xz"},
	}
	for _, test := range tests {
		t.Run(test.vectors, func(t *testing.T) {
			tok := load(t, sharedPath(t, test.tokenizer))
			inputs, err := os.ReadFile(filepath.Join(shared, "tokenizers/vectors", test.vectors+".inp"))
			if err != nil {
				t.Fatal(err)
			}
			outputs, err := os.ReadFile(filepath.Join(shared, "tokenizers/vectors", test.vectors+".out"))
			if err != nil {
				t.Fatal(err)
			}
			const mark = "\n__ggml_vocab_test__\n"
			cases := strings.Split(string(inputs), mark)
			lines := bytes.Split(bytes.TrimSuffix(outputs, []byte("\n")), []byte("\n"))
			// The list of cases ends in a mark.
			if cases[len(cases)-1] == "" {
				cases = cases[:len(cases)-1]
			}
			if len(cases) != len(lines) || len(cases) < 40 {
				t.Fatalf("%d texts and %d lists of ids", len(cases), len(lines))
			}
			for i, text := range cases {
				var want []int
				for _, field := range strings.Fields(string(lines[i])) {
					id, err := strconv.Atoi(field)
					if err != nil {
						t.Fatal(err)
					}
					want = append(want, id)
				}
				got, err := tok.Encode(text, false)
				if err != nil {
					t.Errorf("%q: %v", text, err)
				} else if !slices.Equal(got, want) {
					t.Errorf("%q:\n got %v\nwant %v", text, got, want)
				}
			}
		})
	}
}
