package outdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

// partsMark is the mark of the parts of "out".
const partsMark = `{"lutq":"parts","version":1,"out":"out","plan":"p"}` + "\n"

// TestPartsFolder: what stands at OUT.parts is gone on with, refused or replaced, on file systems with hard links and
// without.
func TestPartsFolder(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string // below the folder
		want  error
	}{
		{"nothing", nil, nil},
		{"an empty folder", map[string]string{"out.parts/": ""}, nil},
		{"one of the plan", map[string]string{"out.parts/.lutq": partsMark, "out.parts/0001.bin": "x"}, nil},
		{"a mark in the making", map[string]string{"out.parts/.lutq.123": partsMark[:20]}, nil},
		{"a mark that was cut short", map[string]string{"out.parts/.lutq": partsMark[:20]}, nil},
		{"an empty mark", map[string]string{"out.parts/.lutq": ""}, nil},
		{"another plan", map[string]string{"out.parts/.lutq": `{"lutq":"parts","version":1,"out":"out","plan":"q"}` + "\n"}, ErrOtherRun},
		{"another output's", map[string]string{"out.parts/.lutq": `{"lutq":"parts","version":1,"out":"in","plan":"p"}` + "\n"}, ErrForeign},
		{"a work folder", map[string]string{"out.parts/.lutq": `{"lutq":"work","version":1,"out":"out","plan":"p"}` + "\n"}, ErrForeign},
		{"no mark of ours", map[string]string{"out.parts/.lutq": "hello\n"}, ErrForeign},
		{"somebody's files", map[string]string{"out.parts/thesis": "x"}, ErrForeign},
		{"a file", map[string]string{"out.parts": "x"}, ErrForeign},
		{"an output that is there", map[string]string{"out/.lutq": `{"lutq":"output","version":1,"files":["weights"]}` + "\n", "out/weights": "x"}, ErrExists},
	} {
		for _, links := range []bool{true, false} {
			t.Run(fmt.Sprint(tc.name, " ", links), func(t *testing.T) {
				if !links {
					link = func(string, string) error { return syscall.EPERM }
					defer func() { link = os.Link }()
				}
				dir := t.TempDir()
				for name, text := range tc.files {
					if name[len(name)-1] == '/' {
						if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
							t.Fatal(err)
						}
						continue
					}
					write(t, map[string]string{filepath.Join(dir, name): text})
				}
				out := filepath.Join(dir, "out")
				before := tree(t, dir)
				checked := CheckParts(out, Options{})
				if after := tree(t, dir); !cmp.Equal(before, after) {
					t.Errorf("looking has changed %v to %v", before, after)
				}
				p, err := OpenParts(out, Options{Plan: "p"})
				if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
					t.Fatalf("got error %v, want %v", err, tc.want)
				}
				if known := tc.want != ErrOtherRun; known != errors.Is(checked, tc.want) {
					t.Errorf("looking told %v, want %v", checked, tc.want)
				}
				if tc.want != nil {
					if after := tree(t, dir); !cmp.Equal(before, after) {
						t.Errorf("what is refused was changed: %v to %v", before, after)
					}
					return
				}
				if got := tree(t, dir)["out.parts/.lutq"]; got != partsMark {
					t.Errorf("the mark is %q", got)
				}
				if _, err := FindParts(out, Options{Plan: "p"}); err != nil {
					t.Error(err)
				}
				if err := p.Remove(); err != nil {
					t.Fatal(err)
				}
				if left := tree(t, dir); len(left) != 0 {
					t.Errorf("left behind: %v", left)
				}
				if _, err := FindParts(out, Options{Plan: "p"}); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("found after it was removed: %v", err)
				}
			})
		}
	}
}

// TestPartsAtOnce: of processes of two plans that begin at once, those of one go on.
func TestPartsAtOnce(t *testing.T) {
	for range 20 {
		out := filepath.Join(t.TempDir(), "out")
		var group errgroup.Group
		var begun [2]atomic.Int32
		for i := range 8 {
			group.Go(func() error {
				_, err := OpenParts(out, Options{Plan: fmt.Sprint(i % 2)})
				var other *OtherPlanError
				switch {
				case err == nil:
					begun[i%2].Add(1)
				case !errors.As(err, &other) || other.Plan != fmt.Sprint(1-i%2):
					return err
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if a, b := begun[0].Load(), begun[1].Load(); a+b != 4 || a*b != 0 {
			t.Fatalf("%d of one plan have begun, and %d of another", a, b)
		}
	}
}

// TestPut: a file appears whole, who makes the same later replaces it, and what is in the making of a name can be
// removed. Nothing is put where the folder is gone.
func TestPut(t *testing.T) {
	out := filepath.Join(t.TempDir(), "a[b]*", "out")
	p, err := OpenParts(out, Options{Plan: "p"})
	if err != nil {
		t.Fatal(err)
	}
	make := func(name, text string) string {
		t.Helper()
		dir, err := p.Scratch(name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		write(t, map[string]string{file: text})
		return file
	}
	first, second, other := make("0001", "same"), make("0001", "same"), make("0002", "more")
	for _, file := range []string{first, second} {
		if err := p.Put(file, "0001.bin"); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Sweep(func(name string) bool { return name == "0001" }); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{".lutq": partsMark, "0001.bin": "same", filepath.Base(filepath.Dir(other)): "", filepath.Base(filepath.Dir(other)) + "/0002": "more"}
	if d := cmp.Diff(want, tree(t, out+".parts")); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
	if err := p.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := p.Put(other, "0002.bin"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("put where nothing is: %v", err)
	}
	if _, err := p.Scratch("0003"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made a folder where nothing is: %v", err)
	}
}

// TestNoLocks: an output is made on a file system without locks, as object storage is mounted, and without hard links.
func TestNoLocks(t *testing.T) {
	defer func() { flock = syscall.Flock }()
	for _, without := range []error{syscall.ENOSYS, syscall.ENOTSUP, syscall.ENOLCK} {
		flock = func(int, int) error { return without }
		out := filepath.Join(t.TempDir(), "out")
		output(t, out, "one")
		output(t, out, "two")
		if got := tree(t, out)["weights"]; got != "two" {
			t.Errorf("%v: the output holds %q", without, got)
		}
	}
	flock = func(int, int) error { return syscall.EIO }
	if _, err := Create(filepath.Join(t.TempDir(), "out"), Options{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("a lock that failed counts as none: %v", err)
	}
}
