package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/formats/input"
)

// TestLimits: the whole help of a command names the limit of every kind of file
// that its work is known to read, as the table has it.
func TestLimits(t *testing.T) {
	files := []input.Kind{input.Config, input.Index, input.Header}
	text := []input.Kind{input.Tokenizer, input.Text}
	for name, kinds := range map[string][]input.Kind{
		"quantize": slices.Concat(files, text, []input.Kind{input.GGUF, input.Recipe, input.Codebook}),
		"inspect":  slices.Concat(files, []input.Kind{input.GGUF}), "verify": files, "repack": files, "bench": slices.Concat(files, []input.Kind{input.GGUF}),
		"import":   slices.Concat(files, []input.Kind{input.GGUF}),
		"eval-ppl": slices.Concat(files, text, []input.Kind{input.GGUF}), "sweep": slices.Concat(files, text, []input.Kind{input.GGUF}), "report": slices.Concat(files, text, []input.Kind{input.GGUF}), "tokenize": slices.Concat(text, []input.Kind{input.GGUF}), "generate": slices.Concat(files, text, []input.Kind{input.GGUF}),
		"chat":       slices.Concat(files, text, []input.Kind{input.GGUF}),
		"eval-tasks": slices.Concat(files, text, []input.Kind{input.GGUF, input.Recipe}),
	} {
		code, help, stderr := exec("help", name, "--all")
		if code != 0 {
			t.Fatal(stderr)
		}
		flat := strings.Join(strings.Fields(help), " ")
		for _, k := range kinds {
			if want := string(k) + " " + formatBytes(k.Limit()); !strings.Contains(flat, want) {
				t.Errorf("%s: the help does not say %q", name, want)
			}
		}
	}
}

// TestEnvironment finds what the sources read of the environment: the topic and the
// manual must name it.
func TestEnvironment(t *testing.T) {
	read := make(map[string]string) // to a place
	walkSources(t, 0, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err == nil && strings.HasPrefix(name, "LUTQ_") && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
				read[name] = path
			}
			return true
		})
	})
	for _, name := range []string{"LUTQ_ISA", "LUTQ_CUDA_PATH", "LUTQ_PTXAS"} {
		if read[name] == "" {
			t.Errorf("nothing reads %s", name)
		}
	}
	for _, name := range []string{"XDG_CACHE_HOME", "HOME", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "NO_COLOR"} {
		read[name] = "the standard library or a list"
	}
	code, topic, stderr := exec("help", "environment")
	if code != 0 {
		t.Fatal(stderr)
	}
	dir := filepath.Join(t.TempDir(), "man1")
	if code, _, stderr := exec("help", "--man", dir); code != 0 {
		t.Fatal(stderr)
	}
	page, err := os.ReadFile(filepath.Join(dir, "lutq.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		if !strings.Contains(topic, name) {
			t.Errorf("the topic does not name %s, which %s reads", name, read[name])
		}
		if !strings.Contains(string(page), name) {
			t.Errorf("the manual does not name %s, which %s reads", name, read[name])
		}
	}
}

func TestManual(t *testing.T) {
	dir := t.TempDir()
	write := func(want int) (stderr string) {
		t.Helper()
		code, stdout, stderr := exec("help", "--man", dir)
		if code != want || stdout != "" {
			t.Fatalf("exit code %d, want %d\n%s%s", code, want, stdout, stderr)
		}
		return stderr
	}
	write(exitDone)
	pages, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lutq.1", "lutq-quantize.1", "lutq-eval-ppl.1", "lutq-help.1", "lutq-completion.1"} {
		if !slices.Contains(pages, filepath.Join(dir, name)) {
			t.Errorf("there is no %s among %v", name, pages)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "lutq-quantize.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`.TH "LUTQ-QUANTIZE" "1"`, "\nint        equal steps\n", `\fB--codebook\fP`} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}

	// Its own pages are replaced.
	quantize, other := filepath.Join(dir, "lutq-quantize.1"), filepath.Join(dir, "lutq-inspect.1")
	if err := os.WriteFile(quantize, append([]byte(manualMark), "of an older version"...), 0o644); err != nil {
		t.Fatal(err)
	}
	write(exitDone)
	if again, err := os.ReadFile(quantize); err != nil || !bytes.Equal(again, page) {
		t.Errorf("an older page is not replaced (%v):\n%s", err, again)
	}

	// The user's are not, nor is any of the others then.
	for name, place := range map[string]func(path string) error{
		"a page by hand": func(path string) error { return os.WriteFile(path, []byte(strings.Repeat(".TH MINE\n", 9)), 0o644) },
		"a link":         func(path string) error { return os.Symlink(quantize, path) },
		"a folder":       func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range pages {
				if err := os.RemoveAll(p); err != nil {
					t.Fatal(err)
				}
			}
			if err := place(other); err != nil {
				t.Fatal(err)
			}
			before := tree(t, dir)
			if got := write(exitFailed); !strings.Contains(got, "lutq-inspect.1: not a file that lutq wrote") {
				t.Errorf("got %s", got)
			}
			if after := tree(t, dir); !slices.Equal(before, after) {
				t.Errorf("files before:\n%v\nafter:\n%v", before, after)
			}
		})
	}
}

// TestHelpLength: the first view of a command's help fits a screen of 50 lines, with at most 30 flags. A topic fits three
// screens of 24 lines, and the second view two of 55.
func TestHelpLength(t *testing.T) {
	for _, c := range newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{}).Commands() {
		for _, v := range []struct {
			args  []string
			lines int
		}{{nil, 50}, {[]string{"--all"}, 2 * 55}} {
			most := v.lines
			if c.IsAdditionalHelpTopicCommand() {
				most = 3 * 24
			}
			code, stdout, stderr := exec(append([]string{c.Name(), "--help"}, v.args...)...)
			if code != 0 {
				t.Fatal(stderr)
			}
			if n := strings.Count(stdout, "\n"); n > most {
				t.Errorf("%s %v: %d lines, want at most %d", c.Name(), v.args, n, most)
			}
			if n := len(flagLine.FindAllString(stdout, -1)); v.args == nil && n > 30 {
				t.Errorf("%s: %d flags, want at most 30", c.Name(), n)
			}
		}
	}
}

// flagLine is how help lists a flag.
var flagLine = regexp.MustCompile(`(?m)^  (?:-\w, |    )--([a-z0-9-]+)`)

// TestHelpWidth: help fits a terminal, but for example lines that a shell takes.
func TestHelpWidth(t *testing.T) {
	for _, c := range newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{}).Commands() {
		code, stdout, stderr := exec("help", c.Name(), "--all")
		if code != 0 {
			t.Fatal(stderr)
		}
		for line := range strings.Lines(stdout) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth && !strings.HasPrefix(line, "  lutq ") {
				t.Errorf("%s: %d columns: %s", c.Name(), n, line)
			}
		}
	}
}

// TestHelpViews: the second view lists every flag. The first leaves out those that are marked, and says how many. What
// stands under Research is in the topic of that name.
func TestHelpViews(t *testing.T) {
	_, research, _ := exec("help", "research")
	for _, c := range newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{}).Commands() {
		if c.IsAdditionalHelpTopicCommand() {
			continue
		}
		listed := func(args ...string) (flags []string, text string) {
			_, text, _ = exec(append([]string{c.Name(), "--help"}, args...)...)
			for _, m := range flagLine.FindAllStringSubmatch(text, -1) {
				flags = append(flags, m[1])
			}
			return flags, text
		}
		first, text := listed()
		all, _ := listed("--all")
		later := 0
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			left := f.Annotations[flagLater] != nil
			if left {
				later++
			}
			if !slices.Contains(all, f.Name) {
				t.Errorf("%s --help --all does not list --%s", c.Name(), f.Name)
			}
			if slices.Contains(first, f.Name) == left {
				t.Errorf("%s --help lists --%s: %v", c.Name(), f.Name, !left)
			}
			if g := f.Annotations[flagGroup]; len(g) > 0 && g[0] == researchTitle && !slices.Contains(strings.Fields(research), "--"+f.Name) {
				t.Errorf("the topic research does not tell of %s --%s", c.Name(), f.Name)
			}
		})
		if said := strings.Contains(text, fmt.Sprintf("lists %d more flags", later)); said != (later > 0) {
			t.Errorf("%s: %d flags are left out, which the first view says: %v\n%s", c.Name(), later, said, text)
		}
		if c.GroupID == researchTitle && !strings.Contains(research, "lutq "+c.Name()+" ") {
			t.Errorf("the topic research does not tell of %s", c.Name())
		}
	}
}

// TestFlagGroups: the flags of quantize stand in groups, in the order of the source, research apart from the rest.
func TestFlagGroups(t *testing.T) {
	for _, view := range []struct{ args, want []string }{
		{
			[]string{"quantize", "--help"},
			[]string{"\nWhat to store:\n", "--bits BITS", "--codebook NAME", "--recipe FILE", "\nHow:\n", "--method NAME", "--learn ", "\nText (", "--calib FILE", "\nRun:\n", "--dry-run", "--quiet"},
		},
		{
			[]string{"quantize", "--help", "--all"},
			[]string{
				"\nWhat to store:\n", "--split-fused", "\nHow:\n", "--damp SHARE", "\nText (", "--seed N", "\nLearned scales", "--learn-mode NAME",
				"\nResearch:\n", "--learn-control", "\nRun:\n", "--max-shard-size SIZE", "--quiet",
			},
		},
	} {
		_, stdout, _ := exec(view.args...)
		at := 0
		for _, want := range view.want {
			i := strings.Index(stdout[at:], want)
			if i < 0 {
				t.Fatalf("%q does not follow what should come before it:\n%s", want, stdout)
			}
			at += i
		}
	}
}
