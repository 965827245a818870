package input

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlaceholder: what stands in the place of a file that was not downloaded is told by what it is. The
// pointer is as https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md has it.
func TestPlaceholder(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
	dir := t.TempDir()
	for _, tc := range []struct {
		name, text string
		kind       Kind
		want       string // in the error; "": none
	}{
		{"pointer", pointer, Tokenizer, "is a git-lfs pointer, not the file: run git lfs pull in " + dir},
		{"pointer as text", pointer, Text, "is a git-lfs pointer"},
		{"page", "\n<!DOCTYPE html>\n<html>", Config, "is a web page, not the file"},
		{"page without a type", "<html lang=en>", Index, "is a web page"},
		{"page as text", "<!doctype html>", Text, ""},
		{"config", `{"version": "https://git-lfs.github.com/spec/"}`, Config, ""},
		{"nothing", "", Config, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, "file")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			data, err := ReadFile(path, tc.kind)
			var p *PlaceholderError
			switch {
			case tc.want == "" && (err != nil || string(data) != tc.text):
				t.Errorf("read %q, %v", data, err)
			case tc.want != "" && (!errors.As(err, &p) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got error %v: want %q in it", err, tc.want)
			}
		})
	}
}
