package kerneltest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// ptxVersion is the version of the language that prebuilt PTX claims. Drivers
// refuse what is newer than they are; this one, of CUDA 12.0, has all that the
// kernels use. The compiler writes its own.
const ptxVersion = "8.0"

var (
	versionLine = regexp.MustCompile(`(?m)^\.version [0-9.]+$`)
	targetLine  = regexp.MustCompile(`(?m)^\.target (sm_[0-9]+)$`)
	commentLine = regexp.MustCompile(`(?m)^\s*//.*\n`)

	// The compiler notes which bytes of a wide load are used. That needs PTX 8.3, and
	// is a hint to the assembler.
	bytesHint = regexp.MustCompile(`(?m)^\s*\.pragma "used_bytes_mask [^"]*";\n`)

	directive = regexp.MustCompile(`(?m)^\s*(?:\.pragma "([a-z_]+)|(\.[a-z_]+))`)
)

// versionFor returns ptxVersion, or that of the products by what is kept of two in four columns, in order: 8.5, of CUDA 12.5.
func versionFor(ptx string) string {
	if strings.Contains(ptx, ".sp::ordered_metadata.") {
		return "8.5"
	}
	return ptxVersion
}

// portable claims the version that versionFor has, and drops comments and the hints that are newer.
func portable(ptx string) (string, error) {
	if n := len(versionLine.FindAllString(ptx, -1)); n != 1 {
		return "", fmt.Errorf("PTX with %d lines that give its version: want one", n)
	}
	ptx = versionLine.ReplaceAllString(ptx, ".version "+versionFor(ptx))
	for _, unwanted := range []*regexp.Regexp{commentLine, bytesHint} {
		ptx = unwanted.ReplaceAllString(ptx, "")
	}
	return ptx, checkPTX(ptx)
}

// oldDirectives returns the directives that may begin a line of prebuilt PTX and
// the pragmas, by the chapters "Directives" and "Release notes" of NVIDIA's PTX
// ISA: all of them are in versions up to ptxVersion.
func oldDirectives() []string {
	return []string{
		".version", ".target", ".address_size", // 1.0, 1.0, 2.3
		".visible", ".extern", ".weak", ".entry", ".func", // 1.0; .weak 3.1
		".param", ".reg", ".shared", ".global", ".const", ".local", // 1.0
		".maxntid", ".maxnreg", ".minnctapersm", ".reqntid", // 1.3, 1.3, 2.0, 2.1
		".reqnctapercluster", ".maxclusterrank", ".explicitcluster", // 7.8
		".pragma", "nounroll", // 2.0
	}
}

// checkPTX returns an error unless the PTX claims its version and has only directives and
// pragmas of that version. Instructions take the assembler to check.
func checkPTX(ptx string) error {
	if !slices.Equal(versionLine.FindAllString(ptx, -1), []string{".version " + versionFor(ptx)}) {
		return fmt.Errorf("the PTX is not of version %s", versionFor(ptx))
	}
	old := oldDirectives()
	for _, m := range directive.FindAllStringSubmatch(ptx, -1) {
		if name := cmp.Or(m[1], m[2]); !slices.Contains(old, name) {
			return fmt.Errorf("%q is not known to be part of PTX %s", name, ptxVersion)
		}
	}
	return nil
}

// assembler returns the path of ptxas, which needs no GPU: that in LUTQ_PTXAS, or the
// one of the environment that scripts/venv.sh makes, or one in PATH.
func assembler() (string, error) {
	if path := os.Getenv("LUTQ_PTXAS"); path != "" {
		return exec.LookPath(path)
	}
	for _, path := range environment("bin/ptxas") {
		if path, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("ptxas")
	if err != nil {
		return "", errors.New("no ptxas in LUTQ_PTXAS, the repository's .venv or PATH")
	}
	return path, nil
}

// instruction begins a statement, behind the predicate that it may have.
var instruction = regexp.MustCompile(`(?m)^\s*(?:@!?%p[0-9]+\s+)?([a-z][a-z0-9_.:]*)[\s;]`)

// covering returns names of PTX that together have every instruction that any has, of each target, and something of each
// source: those with the most first, and of others what has more.
func covering(content map[string][]byte) []string {
	traits := make(map[string]map[string]bool)
	for name, ptx := range content {
		target := string(targetLine.Find(ptx))
		source, _, _ := strings.Cut(name, ".")
		traits[name] = map[string]bool{target + " of " + source: true}
		for _, m := range instruction.FindAllSubmatch(ptx, -1) {
			traits[name][target+" "+string(m[1])] = true
		}
	}
	names := slices.SortedFunc(maps.Keys(content), func(a, b string) int {
		return cmp.Or(len(traits[b])-len(traits[a]), strings.Compare(a, b))
	})
	seen := make(map[string]bool)
	return slices.DeleteFunc(names, func(name string) bool {
		before := len(seen)
		maps.Copy(seen, traits[name])
		return len(seen) == before
	})
}

// assemble makes machine code of PTX as drivers do, for the architecture that it is of and for sm_90, where it is loaded
// unless there is newer PTX of the kernel: of all, or of what covers it. The compiler has written it, so that
// it is instructions that an assembler for an older version may not know.
func assemble(t *testing.T, content map[string][]byte, all bool) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	ptxas, err := assembler()
	if err != nil && os.Getenv("LUTQ_PTXAS") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	names := slices.Sorted(maps.Keys(content))
	newer := make(map[string]bool)
	for _, name := range names {
		if kernel, _, ok := strings.Cut(name, ".compute_90."); ok {
			newer[kernel] = true
		}
	}
	if !all {
		names = covering(content)
	}
	dir := t.TempDir()
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, name := range names {
		target := targetLine.FindStringSubmatch(string(content[name]))
		if target == nil {
			t.Errorf("%s: no target", name)
			continue
		}
		archs := []string{target[1]}
		if kernel, _, older := strings.Cut(name, ".compute_80."); older && !newer[kernel] {
			archs = append(archs, "sm_90")
		}
		for _, arch := range archs {
			group.Go(func() error {
				out := filepath.Join(dir, name+"."+arch)
				run := exec.Command(ptxas, "-arch="+arch, "-o", out, "-")
				run.Stdin = bytes.NewReader(content[name])
				if log, err := run.CombinedOutput(); err != nil || len(log) > 0 {
					t.Errorf("%s for %s: %v\n%s", name, arch, err, log)
				}
				_ = os.Remove(out) // or with the folder
				return nil
			})
		}
	}
	_ = group.Wait() // the errors are the test's
}
