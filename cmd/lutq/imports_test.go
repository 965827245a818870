package main

import (
	"go/ast"
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

// walkSources calls visit with the path, relative to the repository, of every
// file of the program itself.
func walkSources(t *testing.T, mode parser.Mode, visit func(path string, file *ast.File)) {
	t.Helper()
	root := filepath.Join("..", "..")
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
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, mode|parser.ParseComments)
		if err != nil {
			return err
		}
		if len(file.Comments) > 0 && file.Comments[0].List[0].Text == "//go:build ignore" {
			return nil
		}
		visit(filepath.ToSlash(rel), file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// TestInputs: files are opened for reading by package input alone, which never
// waits for a pipe and knows how large they may be.
func TestInputs(t *testing.T) {
	forbidden := map[string]bool{
		"os.ReadFile": true, "os.Open": true, "os.OpenFile": true, "os.OpenInRoot": true, "os.DirFS": true,
		"io.ReadAll": true, "ioutil.ReadAll": true, "ioutil.ReadFile": true,
	}
	allowed := map[string]string{
		"formats/outdir/mark.go os.Open":                 "a file just written, or a folder, to make it durable",
		"formats/hf/disk_unix.go os.Open":                "a folder, to make its names durable",
		"formats/hf/writer.go os.OpenFile":               "creates a file that must not be there",
		"gemm/cuda/driver/prebuilt.go io.ReadAll":        "part of the program",
		"gemm/cuda/kerneltest/kerneltest.go os.ReadFile": "part of the program",
		"gemm/cuda/kerneltest/host.go os.ReadFile":       "what a compiler has just written",
		"gemm/cuda/kerneltest/stamp.go os.ReadFile":      "part of the repository",
		"calib/learn/state.go io.ReadAll":                "of a header whose length is checked",
	}
	seen := make(map[string]bool)
	walkSources(t, 0, func(path string, file *ast.File) {
		if within(path, "formats/input") || strings.Contains(path, "/internal/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if from, ok := call.X.(*ast.Ident); ok && forbidden[from.Name+"."+call.Sel.Name] {
				what := path + " " + from.Name + "." + call.Sel.Name
				seen[what] = true
				if allowed[what] == "" {
					t.Errorf("%s: want package input to open and read files", what)
				}
			}
			return true
		})
	})
	for what := range allowed {
		if !seen[what] {
			t.Errorf("%s is allowed and not there", what)
		}
	}
}

// TestImports holds the packages to their places: a folder may import only
// what stands beside it here, and the terminal belongs to cmd.
func TestImports(t *testing.T) {
	type rule struct {
		folder  string
		imports []string // packages; with / at the end, all that lie within as well
	}
	allowed := []rule{ // the first that matches counts
		{"formats/num", nil},
		{"formats/input", nil},
		{"formats/outdir", []string{"formats/input"}},
		{"formats/hf", []string{"formats/input", "formats/num"}},
		{"formats/hub", []string{"formats/hf", "formats/input"}},
		{"formats/parquet", []string{"formats/input"}},
		{"formats/arch/archtest", []string{"formats/hf", "formats/num"}},
		{"formats/arch", []string{"formats/input"}},
		{"formats/weight", []string{"formats/num", "formats/weight/"}},
		{"formats", []string{"formats/"}},
		{"quantize/rounding", []string{"formats/weight", "formats/weight/trellis"}},
		{"quantize/rtn", []string{"formats/num", "formats/weight/", "quantize/rounding"}},
		{"quantize/planes", []string{"formats/weight/", "quantize/rounding"}},
		{"quantize/viterbi", []string{"formats/weight/trellis"}},
		{"quantize/rings", []string{"formats/num", "formats/weight/", "formats/weight", "quantize/rounding", "quantize/viterbi"}},
		{"quantize/prune", []string{"formats/weight/", "quantize/rounding", "quantize/rtn"}},
		{"quantize/gptq", []string{"formats/weight", "quantize/rounding", "gemm/cpu"}},
		{"quantize/awq", []string{"gemm/cpu"}},
		{"quantize/mix", nil},
		{"quantize/preset", []string{"formats/weight", "formats/weight/", "quantize"}},
		{"quantize", []string{"formats/", "quantize/"}},
		{"repack/tiles", []string{"formats/", "repack"}},
		{"repack", []string{"formats/weight/", "formats/num"}},
		{"gemm/ref", []string{"formats/weight/"}},
		{"gemm/conform", []string{"formats/weight/", "formats/num", "gemm/fp8", "gemm/ref", "gemm/cuda/driver"}},
		{"gemm/cpu", []string{"repack", "formats/num", "gemm/cpu/", "gemm/lookup", "formats/weight/"}},
		{"gemm/cuda/driver", []string{"formats/input"}},
		{"gemm/cuda/cudatest", []string{"formats/input", "formats/weight/", "gemm/conform", "gemm/cuda", "gemm/cuda/"}},
		{"gemm/cuda", []string{"repack", "formats/num", "gemm/cuda/", "gemm/fp8", "formats/weight/"}},
		{"gemm/fp8", []string{"formats/num"}},
		{"gemm/lookup", []string{"formats/weight/", "formats/num"}},
		{"gemm/bench", []string{"repack", "formats/num", "formats/input", "formats/weight/", "gemm/conform", "gemm/cpu", "gemm/cuda/", "gemm/fp8", "gemm/lookup", "gemm/ref"}},
		{"gemm/research", []string{"formats/svg", "formats/num", "gemm/bench", "gemm/conform", "gemm/cpu", "gemm/cuda/", "gemm/lookup", "gemm/ref", "gemm/research/"}},
		{"calib/tokenizer", []string{"formats/added", "formats/input", "formats/ranks"}},
		{"calib/corpus/bundled", []string{"calib/chat", "calib/corpus/bundled/"}},
		{"calib/corpus", []string{"formats/input"}},
		{"calib/model/cpu", []string{"calib/model", "formats/", "repack", "gemm/cpu", "gemm/fp8", "gemm/lookup"}},
		{"calib/model/cuda", []string{"calib/model", "formats/", "quantize/rounding", "repack", "gemm/cuda/"}},
		{"calib/model/opstest", []string{"calib/model", "calib/learn", "formats/"}},
		{"calib/model", []string{"formats/", "quantize/rounding", "quantize/rtn"}}, // a decoder knows no device
		{"calib/decode", []string{"calib/model", "calib/tokenizer", "formats/arch"}},
		{"calib/decodebench", []string{"calib/corpus", "calib/decode", "calib/eval", "calib/model", "formats/", "repack"}},
		{"calib/chat", []string{"calib/chat/jinja"}},
		{"calib/tasks", []string{"calib/chat/jinja", "calib/decode", "calib/model", "calib/tokenizer", "formats/input", "formats/parquet"}},
		{"calib/eval", []string{"calib/model", "calib/corpus"}},
		{"calib/report", []string{"calib/corpus", "calib/eval", "formats/hf", "formats/svg", "quantize"}},
		{"calib/relay", []string{"calib/model", "formats/hf", "formats/input"}},
		{"calib/fit", []string{"calib/chat", "calib/corpus", "calib/corpus/bundled", "calib/decode", "calib/learn", "calib/model", "calib/relay", "calib/tokenizer", "formats/", "quantize", "quantize/awq", "quantize/gptq", "quantize/rounding", "quantize/transform"}},
		{"calib/probe", []string{"calib/model", "formats/", "quantize", "quantize/mix", "quantize/rounding"}},
		{"calib/learn", []string{"calib/model", "calib/corpus", "calib/tokenizer", "formats/"}},
		{"cmd", []string{"formats/", "quantize/", "repack/", "gemm/", "calib/"}},
	}
	onlyIn := map[string]string{
		"github.com/spf13/cobra":             "cmd",
		"github.com/schollz/progressbar/v3":  "cmd",
		"golang.org/x/term":                  "cmd",
		"github.com/nlpodyssey/safetensors":  "formats/hf",
		"github.com/ebitengine/purego":       "gemm",
		"gonum.org/v1/gonum/blas/blas32":     "none: it is too slow",
		"golang.org/x/text/unicode/norm":     "calib/tokenizer",
		"github.com/dlclark/regexp2/v2":      "calib/tokenizer",
		"github.com/stretchr/testify/assert": "none",
		"net/http":                           "formats/hub",
	}
	parsers := make(map[string]int) // files that import the safetensors parser
	walkSources(t, parser.ImportsOnly, func(rel string, file *ast.File) {
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
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
			at := slices.IndexFunc(allowed, func(rule rule) bool { return within(rel, rule.folder) })
			if at < 0 {
				t.Errorf("%s lies in no folder that has a rule", rel)
				continue
			}
			rule := allowed[at]
			if within(own, "gemm/research") && !within(rel, "gemm/research") && !strings.HasPrefix(rel, "cmd/lutq/research_") {
				t.Errorf("%s imports %s: only the commands in cmd/lutq/research_*.go have to do with research", rel, own)
			}
			if !slices.ContainsFunc(rule.imports, func(f string) bool {
				inside, ok := strings.CutSuffix(f, "/")
				return own == f || ok && within(own, inside)
			}) {
				t.Errorf("%s imports %s: %s may import only %v", rel, own, rule.folder, rule.imports)
			}
		}
	})
	if len(parsers) != 1 {
		t.Errorf("the safetensors parser is imported by %v: want one file, so that it can be replaced", parsers)
	}
}
