// Package kerneltest checks CUDA kernels on machines without a GPU: that they
// compile, what they take, what they compute, and that the PTX built ahead of time is
// theirs. To compute they are compiled for the host, [OnHost] one at a time and
// [HostGPU] as package driver asks for them.
package kerneltest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Compiler returns a way to NVRTC, which needs no GPU and may lie in the
// environment that scripts/venv.sh makes. Where there is none the test is
// skipped, or fails if it cannot do without or LUTQ_PTXAS names the assembler.
func Compiler(t testing.TB, need bool) *driver.CUDA {
	t.Helper()
	c, err := driver.Open(driver.Options{Path: environment("lib"), NoCache: true})
	if err == nil {
		_, _, err = c.NVRTCVersion()
	}
	if err != nil && (need || os.Getenv("LUTQ_PTXAS") != "") {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	return c
}

// environment returns where a part of CUDA lies in the repository's .venv, if it does.
func environment(name string) []string {
	dir, err := filepath.Abs(".")
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			found, _ := filepath.Glob(filepath.Join(dir, ".venv/lib/python3*/site-packages/nvidia/cu13", name))
			return found
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

// Variant is a kernel with the architecture to compile it for.
type Variant struct {
	Group  string // that it shares a line of the table with
	Kernel driver.Kernel
	Spills int // bytes of spilled registers a thread that it may read
}

// Compile compiles the variants on all processors and logs a table with a line
// for each group and architecture. Errors, warnings and spills are failures. Where
// LUTQ_SHARE names a part, every other variant has its turn.
func Compile(t *testing.T, c *driver.CUDA, variants []Variant) {
	t.Helper()
	if env := os.Getenv(shareEnv); env != "" {
		n, err := share(env, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		variants = inTurn(variants, n)
	}
	compiled := make([]*driver.Compiled, len(variants))
	errs := make([]error, len(variants))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, v := range variants {
		group.Go(func() error {
			compiled[i], errs[i] = c.Compile(v.Kernel.Source, v.Kernel.Name, v.Kernel.Options)
			return nil
		})
	}
	_ = group.Wait() // the errors are in their places

	type line struct{ variants, kernels, registers, spilling, spills, code int }
	lines := make(map[[2]string]*line)
	for i, v := range variants {
		what := fmt.Sprintf("%s for %s, %s", v.Kernel.Name, v.Kernel.Options.Arch, strings.Join(v.Kernel.Options.Defines, " "))
		out := compiled[i]
		if errs[i] != nil {
			t.Errorf("%s: %v", what, errs[i])
			continue
		}
		if out.Log != "" {
			t.Errorf("%s: the compiler says %q", what, out.Log)
		}
		if len(out.Kernels) == 0 {
			t.Errorf("%s: no kernels", what)
		}
		key := [2]string{v.Kernel.Options.Arch, v.Group}
		l := lines[key]
		if l == nil {
			l = new(line)
			lines[key] = l
		}
		l.variants++
		l.code = max(l.code, len(out.Cubin))
		for _, k := range out.Kernels {
			l.kernels++
			l.registers = max(l.registers, k.Registers)
			l.spills = max(l.spills, k.SpillLoads)
			if k.SpillLoads > 0 || k.SpillStores > 0 {
				l.spilling++
			}
			if k.SpillLoads > v.Spills || k.SpillStores > v.Spills {
				t.Errorf("%s: %s spills registers: %d bytes a thread stored, %d loaded", what, k.Name, k.SpillStores, k.SpillLoads)
			}
		}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "arch\tgroup\tvariants\tkernels\tregisters\tspilling\tspill bytes\tlargest code")
	for _, key := range slices.SortedFunc(maps.Keys(lines), func(a, b [2]string) int {
		return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1]))
	}) {
		l := lines[key]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", key[0], key[1], l.variants, l.kernels, l.registers, l.spilling, l.spills, l.code)
	}
	_ = w.Flush()
	major, minor, _ := c.NVRTCVersion()
	t.Logf("%d variants, NVRTC %d.%d\n%s", len(variants), major, minor, table.String())
}

// Prebuilt checks that an archive holds the PTX of just these kernels, for one of
// [driver.PrebuiltArchs] each, and that drivers take it. It needs no compiler for
// that: all of it is named by what it was compiled from. Where there is an
// assembler, it assembles all of them, or those that have every instruction. With write it
// compiles the kernels first, and replaces the archive unless it holds that already.
func Prebuilt(t *testing.T, path string, kernels []driver.Kernel, write, all bool) {
	t.Helper()
	if write {
		if err := build(Compiler(t, true), path, kernels); err != nil {
			t.Fatal(err)
		}
	}
	have, err := readArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	wanted := make(map[string]bool)
	for _, k := range kernels {
		name := driver.PrebuiltName(k)
		ptx := string(have[name])
		if ptx == "" {
			t.Fatalf("%s holds no PTX of today's %s: run go generate", path, name)
		}
		if !strings.Contains(ptx, ".visible .entry") {
			t.Errorf("%s in %s has no kernel", name, path)
		}
		if err := checkPTX(ptx); err != nil {
			t.Errorf("%s in %s: %v", name, path, err)
		}
		wanted[name] = true
	}
	for name := range have {
		if !wanted[name] {
			t.Errorf("%s holds %s, which nothing asks for: run go generate", path, name)
		}
	}
	t.Run("assemble", func(t *testing.T) { assemble(t, have, all || write) })
}

func readArchive(path string) (map[string][]byte, error) {
	archive, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return driver.UnpackPrebuilt(archive)
}

// build compiles kernels and writes the archive, unless it is there with the
// same content.
func build(c *driver.CUDA, path string, kernels []driver.Kernel) error {
	ptx := make([]string, len(kernels))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, k := range kernels {
		group.Go(func() error {
			out, err := c.Compile(k.Source, k.Name, k.Options)
			if err == nil {
				ptx[i], err = portable(string(out.PTX))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	content := make(map[string][]byte, len(kernels))
	for i, k := range kernels {
		content[driver.PrebuiltName(k)] = []byte(ptx[i])
	}
	if old, err := readArchive(path); err == nil && maps.EqualFunc(old, content, bytes.Equal) {
		return nil
	}
	archive, err := driver.PackPrebuilt(content)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

// inTurn returns every other of the variants, the first or the second of each two, and a single one always.
func inTurn(variants []Variant, n int) []Variant {
	if len(variants) < 2 {
		return variants
	}
	var taken []Variant
	for i := n % 2; i < len(variants); i += 2 {
		taken = append(taken, variants[i])
	}
	return taken
}
