package outdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"
)

// write writes files, whose folders it makes.
func write(t *testing.T, files map[string]string) {
	t.Helper()
	for path, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// tree returns what lies in a folder: files with their text, links with their
// target, folders with nothing.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var text []byte
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			var target string
			target, err = os.Readlink(path)
			text = []byte("-> " + target)
		case e.Type().IsRegular():
			text, err = os.ReadFile(path)
		}
		all[strings.TrimPrefix(path, dir+"/")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// output makes an output of some text.
func output(t *testing.T, out, text string) {
	t.Helper()
	w := create(t, out, Options{Force: true})
	write(t, map[string]string{w.Dir() + "/weights": text, w.Dir() + "/config": text, w.Scratch("journal"): "x"})
	if err := w.Install(); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, out string, o Options) *Work {
	t.Helper()
	w, err := Create(out, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

const marked = `{"lutq":"output","version":1,"files":["config","weights"]}` + "\n"

func TestInstall(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(t *testing.T, out string)
	}{
		{"nothing before", func(*testing.T, string) {}},
		{"an empty folder before", func(t *testing.T, out string) {
			if err := os.Mkdir(out, 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		{"an output before", func(t *testing.T, out string) { output(t, out, "old") }},
		{"an empty folder in the place of the work folder", func(t *testing.T, out string) {
			if err := os.Mkdir(out+".partial", 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		{"a folder whose mark was not written to the end", func(t *testing.T, out string) {
			write(t, map[string]string{out + ".partial/.lutq": `{"lutq":"wo`})
		}},
	} {
		for _, step := range []struct {
			name string
			swap func(a, b string) error
		}{
			{"in one step", exchange},
			{"in two steps", func(string, string) error { return errors.ErrUnsupported }},
		} {
			t.Run(tc.name+" "+step.name, func(t *testing.T) {
				dir := t.TempDir()
				out := filepath.Join(dir, "above", "it", "out")
				write(t, map[string]string{
					dir + "/above/it/out.replaced/mine": "mine",
					dir + "/above/it/other.partial/too": "mine",
				})
				tc.before(t, out)
				if err := Check(out, Options{Force: true}); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(out + ".partial"); err == nil {
					t.Error("a look left the rest of a run that had not begun")
				}
				w := create(t, out, Options{Force: true})
				w.swap = step.swap
				write(t, map[string]string{w.Dir() + "/weights": "new", w.Dir() + "/config": "new", w.Scratch("journal"): "x"})
				if err := w.Install(); err != nil {
					t.Fatal(err)
				}
				want := map[string]string{
					"out": "", "out/weights": "new", "out/config": "new", "out/.lutq": marked,
					"out.replaced": "", "out.replaced/mine": "mine", "other.partial": "", "other.partial/too": "mine",
				}
				if diff := cmp.Diff(want, tree(t, filepath.Dir(out))); diff != "" {
					t.Errorf("want -, got +:\n%s", diff)
				}
				if err := errors.Join(w.Close(), w.Discard()); err != nil {
					t.Errorf("closing what is installed: %v", err)
				}
			})
		}
	}
}

// TestPlaces gives names of outputs that would cost a user something, in many
// spellings: each is refused, and nothing changes.
func TestPlaces(t *testing.T) {
	for _, tc := range []struct{ name, out, want string }{
		{"the input", "in/model", "is the input"},
		{"a slash after it", "in/model/", "is the input"},
		{"steps in it", "./in/../in//model/.", "is the input"},
		{"absolute", "DIR/in/model", "is the input"},
		{"through a link to its folder", "link/model", "is the input"},
		{"over a link and back", "deep/..", "is the input"},
		{"a link to the input", "shortcut", "is a link"},
		{"a link to the input and a slash", "shortcut/", "is a link"},
		{"a link that leads nowhere", "dangling", "is a link"},
		{"under a link that leads nowhere", "dangling/out", "no such file"},
		{"above the input", "in", "contains the input"},
		{"above it through a link", "up/in", "contains the input"},
		{"in the input", "in/model/out", "lies in the input"},
		{"deep in the input", "in/model/a/b/out", "lies in the input"},
		{"in the input through a link", "shortcut/out", "lies in the input"},
		{"with the text that is read", "texts", "contains the input"},
		{"the text that is read", "texts/text", "is the input"},
		{"with what the input links to", "blobs", "links to"},
		{"what is built in is the input", "cached", "cached.partial: is the input"},
		{"the current folder", ".", "is the current folder"},
		{"the current folder by its name", "DIR", "is the current folder"},
		{"above the current folder", "..", "contains the current folder"},
		{"the root", "/", "contains the current folder"},
		{"nothing", "", "is empty"},
		{"a file", "foreign/notes", "is a file"},
		{"a file and a slash", "foreign/notes/", "not a directory"},
		{"under a file", "foreign/notes/out", "not a directory"},
		{"a step out of nothing", "none/../out", "no such file"},
		{"a foreign folder", "foreign", "lutq did not write it"},
		{"a foreign folder of links", "linked", "lutq did not write it"},
		{"an output with more in it", "mixed", "holds mine, notes, which lutq did not write"},
		{"an output with much in it", "full", "holds 1, 2, 3 and 2 more, which lutq did not write"},
		{"an output whose file became a folder", "grown", "holds config, which lutq did not write"},
		{"a folder of links to an output", "farm", "holds .lutq, weights, which lutq did not write"},
		{"an output under construction", "begun.partial", "lutq did not write it"},
		{"a foreign work folder", "free", "free.partial: is in the way"},
		{"a foreign work folder with a mark of its own", "copied", "copied.partial: is in the way"},
		{"the work folder of another output", "moved", "moved.partial: is in the way"},
		{"a work folder of a later version", "later", "later.partial: is in the way"},
		{"a work folder with half a mark and more", "torn", "torn.partial: is in the way"},
		{"a file for a work folder", "filed", "filed.partial: is in the way"},
		{"a link for a work folder", "tied", "tied.partial: is in the way"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(dir)
			write(t, map[string]string{
				"in/model/weights": "w", "in/model/sub/x": "x", "texts/text": "t", "blobs/1": "b", "cached.partial/weights": "w",
				"foreign/notes": "n", "free.partial/notes": "n", "filed.partial": "f",
				"mixed/.lutq": marked, "mixed/config": "c", "mixed/weights": "w", "mixed/notes": "n", "mixed/mine/x": "x",
				"full/.lutq": marked, "full/weights": "w", "full/1": "x", "full/2": "x", "full/3": "x", "full/4": "x", "full/5": "x",
				"grown/.lutq": marked, "grown/config/notes": "n",
				"begun.partial/.lutq": `{"lutq":"work","version":1,"out":"begun"}` + "\n", "begun.partial/new/weights": "w",
				"copied.partial/.lutq": `{"lutq":"output","version":1,"out":"copied"}` + "\n", "copied.partial/weights": "w",
				"torn.partial/.lutq": `{"lutq":"wo`, "torn.partial/notes": "n",
				"later.partial/.lutq": `{"lutq":"work","version":9,"out":"later"}` + "\n", "later.partial/new/weights": "w",
				"moved.partial/.lutq": `{"lutq":"work","version":1,"out":"other"}` + "\n", "moved.partial/new/weights": "w",
			})
			for link, target := range map[string]string{
				"link": "in", "deep": "in/model/sub", "shortcut": "in/model", "dangling": "none", "up": ".", "in/model/blob": "../../blobs/1",
				"linked/notes": "../foreign/notes", "farm/.lutq": "../full/.lutq", "farm/weights": "../full/weights", "tied.partial": "foreign",
			} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(target, link)); err != nil {
					t.Fatal(err)
				}
			}
			before := tree(t, ".")
			o := Options{Inputs: []string{"in/model", "texts/text", "cached.partial", "missing"}, Force: true}
			out := strings.Replace(tc.out, "DIR", dir, 1)
			_, createErr := Create(out, o)
			for _, err := range []error{createErr, Check(out, o)} {
				if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got error %v, want a line with %q", err, tc.want)
				}
			}
			if diff := cmp.Diff(before, tree(t, ".")); diff != "" {
				t.Errorf("before -, after +:\n%s", diff)
			}
		})
	}
}

// TestPlacesAllowed gives names that look odd and cost nobody anything.
func TestPlacesAllowed(t *testing.T) {
	for _, out := range []string{
		"out/", "in/model2", "in/../out", "a/b/c/out", "../PARENT/out", "link/out", "deep/../../out", "in/model.partial", "-out", "Ünï cödé",
	} {
		t.Run(out, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			write(t, map[string]string{"in/model/weights": "w", "in/model/sub/x": "x"})
			if err := errors.Join(os.Symlink("in", "link"), os.Symlink("in/model/sub", "deep")); err != nil {
				t.Fatal(err)
			}
			out := strings.Replace(out, "PARENT", filepath.Base(dir), 1)
			before := tree(t, ".")
			w := create(t, out, Options{Inputs: []string{"in/model"}})
			if err := w.Discard(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tree(t, ".")); diff != "" {
				t.Errorf("what was discarded left something: before -, after +:\n%s", diff)
			}
			w = create(t, out, Options{Inputs: []string{"in/model"}})
			write(t, map[string]string{w.Dir() + "/weights": "new"})
			if err := w.Install(); err != nil {
				t.Fatal(err)
			}
			// The system finds it under the same name.
			if got, err := os.ReadFile(out + "/weights"); err != nil || string(got) != "new" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestExists checks that an output stays without force, and with it until the
// new one is installed.
func TestExists(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	output(t, out, "old")
	if err := Check(out, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("got error %v, want %v", err, ErrExists)
	}
	if _, err := Create(out, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("got error %v, want %v", err, ErrExists)
	}
	w := create(t, out, Options{Force: true})
	write(t, map[string]string{w.Dir() + "/weights": "new"})
	if diff := cmp.Diff(map[string]string{"weights": "old", "config": "old", ".lutq": marked}, tree(t, out)); diff != "" {
		t.Errorf("before it is installed: want -, got +:\n%s", diff)
	}
	// Files that come while the work is done are not deleted either.
	write(t, map[string]string{out + "/late": "l"})
	if err := w.Install(); !errors.Is(err, ErrForeign) {
		t.Errorf("got error %v, want %v", err, ErrForeign)
	}
	if err := w.Discard(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"out": "", "out/weights": "old", "out/config": "old", "out/.lutq": marked, "out/late": "l"}
	if diff := cmp.Diff(want, tree(t, filepath.Dir(out))); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

// TestLeft: what is left to do with an output stands in its mark until it is settled, and does not change what the
// mark is otherwise good for.
func TestLeft(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if left := Left(out); left != nil {
		t.Errorf("of no output %q is left", left)
	}
	for _, note := range []string{"", "{\"evaluate\": true}\n", strings.Repeat("x", 16e6)} {
		w := create(t, out, Options{Force: true})
		write(t, map[string]string{w.Dir() + "/weights": "w", w.Dir() + "/config": "c"})
		w.Leave([]byte(note))
		if err := w.Install(); err != nil {
			t.Fatal(err)
		}
		want := note
		if len(note) > 1e6 {
			want = "" // for which there is no room
		}
		if left := Left(out); string(left) != want {
			t.Errorf("%d bytes are left, want %q", len(left), want)
		}
		if sound, err := SoundMark(out, []string{"weights", "config"}); !sound || err != nil {
			t.Errorf("with %q the mark is not sound: %v", want, err)
		}
		if err := Check(out, Options{}); !errors.Is(err, ErrExists) {
			t.Errorf("with %q: got error %v, want %v", want, err, ErrExists)
		}
		if err := errors.Join(Settle(out), Settle(out)); err != nil {
			t.Fatal(err)
		}
		if left := Left(out); len(left) > 0 || tree(t, out)[MarkName] != marked {
			t.Errorf("settled, %q is left and the mark is %q", left, tree(t, out)[MarkName])
		}
	}
}

func TestResume(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	o := Options{Plan: "a plan", Resume: true}
	w := create(t, out, o)
	write(t, map[string]string{w.Dir() + "/half": "h", w.Scratch("journal"): "j"})
	if _, err := Create(out, o); !errors.Is(err, ErrBusy) {
		t.Errorf("got error %v, want %v", err, ErrBusy)
	}
	if err := Check(out, o); !errors.Is(err, ErrBusy) {
		t.Errorf("got error %v, want %v", err, ErrBusy)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	kept := tree(t, out+".partial")
	if _, err := Create(out, Options{Plan: "another", Resume: true}); !errors.Is(err, ErrOtherRun) {
		t.Errorf("got error %v, want %v", err, ErrOtherRun)
	}
	if w, err := Create(out, o); err != nil {
		t.Fatal(err)
	} else if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept, tree(t, out+".partial")); diff != "" || kept["new/half"] != "h" || kept["journal"] != "j" {
		t.Errorf("before -, after +:\n%s", diff)
	}
	// The folder around it may be moved, and a run that does not resume begins anew.
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(filepath.Dir(out), moved); err != nil {
		t.Fatal(err)
	}
	w = create(t, filepath.Join(moved, "out"), Options{Plan: "a plan"})
	defer w.Close()
	if got := tree(t, w.work); len(got) != 2 {
		t.Errorf("kept %v", got)
	}
}

// TestKilled builds what a run leaves that is killed at some moment of putting
// its output in place, and runs the next one.
func TestKilled(t *testing.T) {
	both := func(err ...error) error { return errors.Join(err...) }
	for _, tc := range []struct {
		name  string
		old   bool // there was an output before
		until func(w *Work) error
		want  string // the output after it was healed
		kept  bool   // the work goes on
	}{
		{"before it was ready", true, func(w *Work) error { return writeMark(w.Dir(), nil) }, "old", true},
		{"when it was ready", true, func(w *Work) error { return nil }, "old", true},
		{"when it was ready, the first one", false, func(w *Work) error { return nil }, "", true},
		{"when it had its name", false, func(w *Work) error { return os.Rename(w.Dir(), w.out) }, "new", false},
		{"when names were exchanged", true, func(w *Work) error { return exchange(w.Dir(), w.out) }, "new", false},
		{"when the old one was half deleted", true, func(w *Work) error {
			return both(exchange(w.Dir(), w.out), os.Remove(w.Dir()+"/config"))
		}, "new", false},
		{"when the old one was deleted", true, func(w *Work) error { return both(exchange(w.Dir(), w.out), w.empty()) }, "new", false},
		{"when the mark was deleted", true, func(w *Work) error {
			return both(exchange(w.Dir(), w.out), w.empty(), os.Remove(w.lockFile.Name()))
		}, "new", false},
		{"between two names", true, func(w *Work) error { return os.Rename(w.out, w.Scratch(oldName)) }, "old", true},
		{"after two names", true, func(w *Work) error {
			return both(os.Rename(w.out, w.Scratch(oldName)), os.Rename(w.Dir(), w.out))
		}, "new", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "out")
			if tc.old {
				output(t, out, "old")
			}
			w := create(t, out, Options{Force: true, Plan: "p", Resume: true})
			write(t, map[string]string{w.Dir() + "/weights": "new", w.Dir() + "/config": "new", w.Scratch("journal"): "x"})
			if tc.name != "before it was ready" {
				n, err := inode(w.Dir())
				if err := errors.Join(err, writeMark(w.Dir(), nil), w.note(fmt.Appendf(nil, readyFormat, n))); err != nil {
					t.Fatal(err)
				}
			}
			// Its lock goes with the process.
			if err := errors.Join(tc.until(w), w.Close()); err != nil {
				t.Fatal(err)
			}
			// Whoever looks heals it, whatever comes of that.
			if err := Check(out, Options{}); (tc.want != "") != errors.Is(err, ErrExists) {
				t.Errorf("got error %v", err)
			}
			got := tree(t, dir)
			if got["out/weights"] != tc.want || got["out/config"] != tc.want {
				t.Errorf("after it was healed: %v, want the %s output", got, tc.want)
			}
			if _, kept := got["out.partial/new/weights"]; kept != tc.kept || !kept && len(got) != 4 {
				t.Errorf("after it was healed: %v, want what is done to be there: %v", got, tc.kept)
			}
			// The next run ends as if nothing had happened.
			w = create(t, out, Options{Force: true, Plan: "p", Resume: true})
			write(t, map[string]string{w.Dir() + "/weights": "newer", w.Dir() + "/config": "newer"})
			if err := w.Install(); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"out": "", "out/weights": "newer", "out/config": "newer", "out/.lutq": marked}
			if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
				t.Errorf("after the next run: want -, got +:\n%s", diff)
			}
		})
	}
}

// TestDiscardKeepsOld checks that a work which failed between two names does
// not take the old output with it.
func TestDiscardKeepsOld(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	output(t, out, "old")
	before := tree(t, dir)
	w := create(t, out, Options{Force: true})
	if err := os.Rename(out, w.Scratch(oldName)); err != nil {
		t.Fatal(err)
	}
	if err := w.Discard(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("before -, after +:\n%s", diff)
	}
}

// TestFailedInstall checks that the old output is there again when the new one
// cannot be put in its place.
func TestFailedInstall(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	output(t, out, "old")
	before := tree(t, dir)
	w := create(t, out, Options{Force: true})
	w.swap = func(from, _ string) error { return errors.Join(os.RemoveAll(from), errors.ErrUnsupported) }
	if err := w.Install(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v, want %v", err, fs.ErrNotExist)
	}
	if got := tree(t, out); len(got) != 3 || got["weights"] != "old" {
		t.Errorf("the output is %v", got)
	}
	if err := w.Discard(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("before -, after +:\n%s", diff)
	}
}

// TestKilledInInstall ends an install right after the one step in which both
// folders change their names.
func TestKilledInInstall(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	output(t, out, "old")
	w := create(t, out, Options{Force: true})
	write(t, map[string]string{w.Dir() + "/weights": "new", w.Dir() + "/config": "new", w.Scratch("journal"): "x"})
	killed := errors.New("killed")
	w.swap = func(a, b string) error { return errors.Join(exchange(a, b), killed) }
	if err := w.Install(); !errors.Is(err, killed) {
		t.Fatalf("got error %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Check(out, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("got error %v, want %v", err, ErrExists)
	}
	want := map[string]string{"out": "", "out/weights": "new", "out/config": "new", "out/.lutq": marked}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

// TestManyAtOnce has processes begin and end the same output, of which one at a
// time may hold it, whatever the others delete meanwhile.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	var holders, held atomic.Int32
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			for range 10 {
				w, err := Create(out, Options{})
				if errors.Is(err, ErrBusy) {
					continue
				}
				if err != nil {
					return err
				}
				if holders.Add(1) > 1 {
					return errors.New("two hold the same output")
				}
				held.Add(1)
				holders.Add(-1)
				if err := w.Discard(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if held.Load() == 0 || len(tree(t, dir)) > 0 {
		t.Errorf("held %d times, left %v", held.Load(), tree(t, dir))
	}
}

// TestDeletedLock opens a lock that is deleted before it can be held.
func TestDeletedLock(t *testing.T) {
	w := create(t, filepath.Join(t.TempDir(), "out"), Options{})
	f, err := os.OpenFile(w.lockFile.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := w.Discard(); err != nil {
		t.Fatal(err)
	}
	if held, err := (&Work{place: w.place, lockFile: f}).hold(); held || err != nil {
		t.Errorf("got %v, %v, want a lock that is not held", held, err)
	}
}

func FuzzMark(f *testing.F) {
	f.Add([]byte(marked))
	f.Add([]byte(`{"lutq":"work","version":1,"out":"out","plan":"p"}` + "\nready 12\nready 1"))
	f.Add([]byte(`{"lutq":"work","vers`))
	f.Add([]byte(`{"lutq":"output","version":1,"files":[]}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, ready, err := parseWork(data)
		if err != nil || m == nil {
			if ready != 0 && err == nil {
				t.Error("ready without a mark")
			}
			return
		}
		text, err := m.bytes()
		if err != nil {
			t.Fatal(err)
		}
		again, n, err := parseWork(fmt.Appendf(text, readyFormat, ready))
		if err != nil || n != ready {
			t.Fatalf("got %d and error %v, want %d", n, err, ready)
		}
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("read -, written and read again +:\n%s", diff)
		}
	})
}
