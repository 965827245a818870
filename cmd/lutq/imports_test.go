package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/lutq/lutq/"

// TestImports holds the packages to their places: a folder may import only
// what stands beside it here, and the terminal belongs to cmd.
func TestImports(t *testing.T) {
	allowed := []struct {
		folder  string // the first match counts
		imports []string
	}{
		{"formats/num", nil},
		{"quantize/lut", []string{"formats/num"}},
		{"formats", []string{"formats", "quantize/lut"}},
		{"quantize", []string{"formats", "quantize"}},
		{"repack", []string{"quantize/lut", "formats/num"}},
		{"gemm", []string{"repack", "formats/num", "quantize/lut", "gemm"}},
		{"calib", []string{"formats", "quantize/lut", "gemm", "repack", "calib"}},
		{"cmd", []string{"formats", "quantize", "repack", "gemm", "calib"}},
	}
	onlyIn := map[string]string{
		"github.com/spf13/cobra":             "cmd",
		"github.com/schollz/progressbar/v3":  "cmd",
		"golang.org/x/term":                  "cmd",
		"github.com/nlpodyssey/safetensors":  "formats/hf",
		"github.com/ebitengine/purego":       "gemm",
		"gonum.org/v1/gonum/blas/blas32":     "none: it is too slow",
		"golang.org/x/text/unicode/norm":     "calib/tokenizer",
		"github.com/stretchr/testify/assert": "none",
	}
	within := func(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }
	root := filepath.Join("..", "..")
	parsers := make(map[string]int) // files that import the safetensors parser
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "testdata" || d.Name() == "scripts") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		if len(file.Comments) > 0 && file.Comments[0].List[0].Text == "//go:build ignore" {
			return nil
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if place, ok := onlyIn[name]; ok && !within(rel, place) {
				t.Errorf("%s imports %s, which belongs to %s", rel, name, place)
			}
			if name == "github.com/nlpodyssey/safetensors" {
				parsers[rel]++
			}
			own, ok := strings.CutPrefix(name, modulePath)
			if !ok {
				continue
			}
			for _, rule := range allowed {
				if !within(rel, rule.folder) {
					continue
				}
				if !slices.ContainsFunc(rule.imports, func(f string) bool { return within(own, f) }) {
					t.Errorf("%s imports %s: %s may import only %v", rel, own, rule.folder, rule.imports)
				}
				break
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(parsers) != 1 {
		t.Errorf("the safetensors parser is imported by %v: want one file, so that it can be replaced", parsers)
	}
}
