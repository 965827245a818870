package source

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGGUF: of files in a folder, the one that is a model.
func TestGGUF(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		files      []string
		several    []string
	}{
		{"one", "a.gguf", []string{"a.gguf", "README.md"}, nil},
		{"of another case", "a.GGUF", []string{"a.GGUF"}, nil},
		{"in parts", "a-00001-of-00002.gguf", []string{"a-00001-of-00002.gguf", "a-00002-of-00002.gguf"}, nil},
		{"hidden", "a.gguf", []string{"a.gguf", ".b.gguf"}, nil},
		{"several", "", []string{"b.gguf", "a.gguf"}, []string{"a.gguf", "b.gguf"}},
		{"beside safetensors", "", []string{"a.gguf", "model.safetensors"}, nil},
		{"none", "", []string{"config.json"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range tc.files {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := ggufIn(dir)
			if s, ok := errors.AsType[*SeveralError](err); ok != (tc.several != nil) || ok && !slices.Equal(s.Files, tc.several) || err != nil && !ok {
				t.Fatalf("error %v: want one of %q", err, tc.several)
			}
			if strings.TrimPrefix(got, dir+string(filepath.Separator)) != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
