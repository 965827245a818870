package kerneltest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// asking is a test that stamps are asked about: it keeps what it is told.
type asking struct {
	testing.TB
	name            string
	failed, skipped string
	cleanup         func()
}

func (t *asking) Helper()                        {}
func (t *asking) Name() string                   { return t.name }
func (t *asking) Cleanup(f func())               { t.cleanup = f }
func (t *asking) Errorf(format string, a ...any) { t.failed = fmt.Sprintf(format, a...) }
func (t *asking) Skipf(format string, a ...any)  { t.skipped = fmt.Sprintf(format, a...) }
func (t *asking) Skipped() bool                  { return t.skipped != "" }

// TestStamps: a test whose kernels are as they were is run in its part, and one of changed kernels fails, whatever part it is in.
func TestStamps(t *testing.T) {
	kernel := driver.Kernel{Source: "void f() {}", Options: driver.CompileOptions{Defines: []string{"N=1"}}}
	otherSource, otherDefines := kernel, kernel
	otherSource.Source += " "
	otherDefines.Options.Defines = []string{"N=2"}
	const name = "TestHost/some"
	hash, err := stamp(Modules(900, kernel))
	if err != nil {
		t.Fatal(err)
	}
	mine := shareOf(name)
	for _, test := range []struct {
		what            string
		modules         []Module
		share           int
		update, all     bool
		failed, skipped bool
	}{
		{"its turn", Modules(900, kernel), mine, false, false, false, false},
		{"another's turn", Modules(900, kernel), (mine + 1) % Shares, false, false, false, true},
		{"another's turn, and all are run", Modules(900, kernel), (mine + 1) % Shares, false, true, false, false},
		{"another source", Modules(900, otherSource), (mine + 1) % Shares, false, false, true, false},
		{"other defines", Modules(900, otherDefines), (mine + 1) % Shares, false, false, true, false},
		{"another architecture", Modules(800, kernel), (mine + 1) % Shares, false, false, true, false},
		{"another source, and all are run", Modules(900, otherSource), mine, false, true, false, false},
		{"a kernel more", Modules(900, kernel, otherSource), mine, false, false, true, false},
		{"another source, to be stamped", Modules(900, otherSource), (mine + 1) % Shares, true, false, false, false},
	} {
		s := &Stamps{update: test.update, all: test.all, share: test.share, kept: map[string]string{name: hash}, seen: make(map[string]string), told: make(map[string]bool)}
		got := &asking{name: name}
		s.Due(got, test.modules...)
		if (got.failed != "") != test.failed || (got.skipped != "") != test.skipped {
			t.Errorf("%s: failed %q, skipped %q", test.what, got.failed, got.skipped)
		}
		if test.failed && !strings.Contains(got.failed, "go test -run '^TestHost$' -update") {
			t.Errorf("%s: told %q", test.what, got.failed)
		}
	}
	seen := make(map[int]bool)
	for i := range 100 {
		seen[shareOf(fmt.Sprintf("%s/%d", name, i))] = true
	}
	if len(seen) != Shares {
		t.Errorf("100 tests lie in %d parts: want %d", len(seen), Shares)
	}
}

// TestStampsTold: a module that the stamp is not of fails the test that has it compiled.
func TestStampsTold(t *testing.T) {
	kernel := driver.Kernel{Source: `extern "C" __global__ void f() {}`}
	other := kernel
	other.Options.Defines = []string{"N=1"}
	s := &Stamps{update: true, hosts: NewHosts(t), kept: map[string]string{}, seen: make(map[string]string), told: make(map[string]bool)}
	for _, test := range []struct {
		kernel driver.Kernel
		arch   int
		failed bool
	}{{kernel, 900, false}, {kernel, 800, true}, {other, 900, true}} {
		got := &asking{TB: t, name: t.Name()}
		s.Due(got, Modules(900, kernel)...)
		s.OnHost(got, test.kernel, test.arch)
		if (got.failed != "") != test.failed {
			t.Errorf("%v for %d: failed %q", test.kernel.Options.Defines, test.arch, got.failed)
		}
	}
}

// TestStampsWritten: what has passed is stamped, and neither what was skipped for want of a compiler nor what is no more.
func TestStampsWritten(t *testing.T) {
	kernel := driver.Kernel{Source: "void f() {}"}
	s := &Stamps{path: filepath.Join(t.TempDir(), "x.stamps"), update: true, kept: map[string]string{"TestX/gone": "0"}, seen: make(map[string]string), told: make(map[string]bool)}
	passed, skipped := &asking{name: "TestX/passed"}, &asking{name: "TestX/skipped"}
	for _, x := range []*asking{passed, skipped} {
		s.Due(x, Modules(900, kernel)...)
	}
	skipped.Skipf("no compiler")
	passed.cleanup()
	skipped.cleanup()
	hash, err := stamp(Modules(900, kernel))
	if err != nil {
		t.Fatal(err)
	}
	for others, want := range map[bool]string{false: hash + " TestX/passed\n", true: "0 TestX/gone\n" + hash + " TestX/passed\n"} {
		if err := s.write(others); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(s.path); err != nil || len(text) != len(want) || !strings.Contains(string(text), hash+" TestX/passed\n") {
			t.Errorf("others %v: wrote %q, %v: want %q", others, text, err, want)
		}
		if kept, err := readStamps(s.path); err != nil || kept["TestX/passed"] != hash {
			t.Errorf("read %v, %v", kept, err)
		}
	}
}

// TestShare: days go through all parts, and LUTQ_SHARE names one.
func TestShare(t *testing.T) {
	seen := make(map[int]bool)
	for day := range Shares {
		n, err := share("", time.Date(2030, 1, 1+day, 12, 0, 0, 0, time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		seen[n] = true
	}
	if len(seen) != Shares {
		t.Errorf("%d days run %d parts", Shares, len(seen))
	}
	if n, err := share("3", time.Time{}); n != 3 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	for _, bad := range []string{"8", "-1", "x"} {
		if _, err := share(bad, time.Time{}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// TestInTurn: two turns take every variant once, and one that is alone is taken in both.
func TestInTurn(t *testing.T) {
	variants := []Variant{{Group: "a"}, {Group: "b"}, {Group: "c"}}
	var seen []string
	for n := range 2 {
		for _, v := range inTurn(variants, n) {
			seen = append(seen, v.Group)
		}
		if len(inTurn(variants[:1], n)) != 1 {
			t.Errorf("turn %d leaves a single variant out", n)
		}
	}
	if slices.Sort(seen); !slices.Equal(seen, []string{"a", "b", "c"}) {
		t.Errorf("two turns take %v", seen)
	}
}
