package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/outdir"
)

const (
	blocks  = 8
	windows = 11
)

// sizes are those of windows' states, which differ.
func sizes() (all []int) {
	for w := range windows {
		all = append(all, 5+w%3)
	}
	return all
}

// stateOf is what a window is before a block.
func stateOf(block, window int) []float32 {
	state := make([]float32, sizes()[window])
	for i := range state {
		v := float32(window*100 + i)
		for b := range block {
			v = v*1.25 + float32(b)
		}
		state[i] = v
	}
	return state
}

// folder makes one.
func folder(t testing.TB, out string) *outdir.Parts {
	t.Helper()
	f, err := outdir.OpenParts(out, outdir.Options{Plan: "plan"})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// options are those of a part of four, whose walk makes each state of the one before. walked counts windows by blocks.
func options(t testing.TB, f Folder, part int, walked *atomic.Int64) Options {
	all := sizes()
	marks := []Mark{{2, true}, {4, true}, {6, true}}
	return Options{
		Folder: f, Key: "plan", Part: part, Parts: 4, Marks: marks, First: 2 * (part - 1), Sizes: all, Starts: []int{0, 1, 3, 4, 5, 6, 7, 8, 9, 10}, Bytes: 1 << 20,
		Note: func(s string) { t.Errorf("noted: %s", s) },
		Walk: func(ctx context.Context, from, to int, of [2]int, s model.States) error {
			var group errgroup.Group // a device for every other window
			for odd := range 2 {
				group.Go(func() error {
					for w := of[0] + odd; w < of[1]; w += 2 {
						state := stateOf(0, w)
						if from > 0 {
							if err := s.Load(from, w-of[0], state); err != nil {
								return err
							}
						}
						for b := from; b < to; b++ {
							if err := ctx.Err(); err != nil {
								return err
							}
							for i := range state {
								state[i] = state[i]*1.25 + float32(b)
							}
							walked.Add(1)
							if s.Keeps(b + 1) {
								if err := s.Save(b+1, w-of[0], state); err != nil {
									return err
								}
							}
						}
					}
					return nil
				})
			}
			return group.Wait()
		},
	}
}

// check holds what is kept before a block against what it should be.
func check(t *testing.T, r *Relay, from int) error {
	t.Helper()
	for w, size := range sizes() {
		if from == 0 {
			break
		}
		state := make([]float32, size)
		if err := r.Whole().Load(from, w, state); err != nil {
			return err
		}
		if !slices.Equal(state, stateOf(from, w)) {
			t.Errorf("before block %d window %d is %v: want %v", from, w, state, stateOf(from, w))
		}
	}
	return nil
}

// left returns the folders of processes that lie there.
func left(t *testing.T, out string) []string {
	t.Helper()
	all, err := filepath.Glob(out + ".parts/.walk*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRun: whoever comes first, alone or with others, each part finds what it needs, no way is gone twice, and nothing is left
// but what is kept.
func TestRun(t *testing.T) {
	for name, order := range map[string][][]int{
		"in order":   {{1}, {2}, {3}, {4}},
		"backwards":  {{4}, {3}, {2}, {1}},
		"twice":      {{3}, {3}, {1}, {2}, {4}, {4}},
		"two by two": {{1, 2}, {3, 4}},
		"at once":    {{1, 2, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			f := folder(t, out)
			var walked atomic.Int64
			for _, parts := range order {
				var group errgroup.Group
				for _, part := range parts {
					o := options(t, f, part, &walked)
					o.Patience = time.Minute
					group.Go(func() error {
						r := New(o)
						from, err := r.Run(t.Context())
						if err == nil && from != o.First {
							t.Errorf("part %d goes on from block %d", part, from)
						}
						return errors.Join(err, check(t, r, from))
					})
				}
				if err := group.Wait(); err != nil {
					t.Fatal(err)
				}
			}
			if len(order) > 2 && walked.Load() != 6*windows { // else two may begin with the same
				t.Errorf("%d blocks were gone through: want %d", walked.Load(), 6*windows)
			}
			if all := left(t, out); len(all) > 0 {
				t.Errorf("left behind: %v", all)
			}
			if err := New(options(t, f, 1, &walked)).Clear(); err != nil {
				t.Error(err)
			}
			if names, err := f.Names(); err != nil || !slices.Equal(names, []string{outdir.MarkName}) {
				t.Errorf("cleared, there is %v, error %v", names, err)
			}
		})
	}
}

// TestKilled: what others are on their way with who never come is walked for all the same, and what one's own killed process had in
// the making is removed.
func TestKilled(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	f := folder(t, out)
	var walked atomic.Int64
	o := options(t, f, 3, &walked)
	r := New(o)
	for g := range r.groups {
		for _, part := range []int{3, 4} {
			other := New(options(t, f, part, &walked))
			dir, err := f.Scratch(other.claim(g))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, other.fileName([2]int{4, g})), []byte("half"), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	from, err := r.Run(t.Context())
	if err != nil || from != 4 {
		t.Fatalf("goes on from block %d, error %v", from, err)
	}
	if err := check(t, r, from); err != nil {
		t.Fatal(err)
	}
	if all := left(t, out); len(all) > 0 {
		t.Errorf("left behind: %v", all)
	}
}

// TestArrived: who walks with what others are late with stops when they come.
func TestArrived(t *testing.T) {
	f := folder(t, filepath.Join(t.TempDir(), "out"))
	var walked atomic.Int64
	late := New(options(t, f, 2, &walked))
	for g := range late.groups {
		if _, err := f.Scratch(late.claim(g)); err != nil {
			t.Fatal(err)
		}
	}
	o := options(t, f, 4, &walked)
	var once sync.Once
	stopped := false
	o.Walk = func(ctx context.Context, _, _ int, _ [2]int, _ model.States) error {
		once.Do(func() {
			if _, err := late.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
		<-ctx.Done()
		stopped = true
		return ctx.Err()
	}
	r := New(o)
	from, err := r.Run(t.Context())
	if err != nil || from != 6 || !stopped {
		t.Errorf("goes on from block %d, error %v, stopped %v", from, err, stopped)
	}
	if err := check(t, r, from); err != nil {
		t.Error(err)
	}
}

// TestDamaged: what is not as it was written is noticed, removed and made again, and what is cut short is not there.
func TestDamaged(t *testing.T) {
	for name, harm := range map[string]func(path string, data []byte) error{
		"a number":    func(path string, data []byte) error { data[headerSize+3] ^= 1; return os.WriteFile(path, data, 0o644) },
		"a sum":       func(path string, data []byte) error { data[len(data)-1] ^= 1; return os.WriteFile(path, data, 0o644) },
		"of another":  func(path string, data []byte) error { data[len(magic)] ^= 1; return os.WriteFile(path, data, 0o644) },
		"cut short":   func(path string, data []byte) error { return os.Truncate(path, int64(len(data))-1) },
		"it is empty": func(path string, data []byte) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			f := folder(t, filepath.Join(t.TempDir(), "out"))
			var walked atomic.Int64
			r := New(options(t, f, 4, &walked))
			if _, err := r.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			path := f.Path(r.fileName([2]int{6, 2}))
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := harm(path, data); err != nil {
				t.Fatal(err)
			}
			err = check(t, r, 6)
			if !Damaged(err) || !strings.Contains(err.Error(), filepath.Base(path)+" is not as it was written") {
				t.Fatalf("error %v", err)
			}
			before := walked.Load()
			from, err := r.Run(t.Context())
			if err != nil || from != 6 {
				t.Fatalf("goes on from block %d, error %v", from, err)
			}
			if err := check(t, r, from); err != nil {
				t.Fatal(err)
			}
			// From the mark before, for the windows of one file.
			if n := walked.Load() - before; n != 2*int64(r.groups[2].to-r.groups[2].from) {
				t.Errorf("%d blocks were gone through again", n)
			}
		})
	}
}

// broken is a folder that nothing can be written into.
type broken struct{ *outdir.Parts }

func (b broken) Scratch(name string) (string, error) {
	file := filepath.Join(filepath.Dir(b.Path(".")), "full")
	return filepath.Join(file, name), os.WriteFile(file, nil, 0o644)
}

// TestFull: where nothing can be kept each walks by itself, which is said in a line.
func TestFull(t *testing.T) {
	f := folder(t, filepath.Join(t.TempDir(), "out"))
	var walked atomic.Int64
	o := options(t, broken{f}, 4, &walked)
	var notes []string
	o.Note = func(s string) { notes = append(notes, s) }
	from, err := New(o).Run(t.Context())
	if err != nil || from != 0 {
		t.Errorf("goes on from block %d, error %v", from, err)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "out.parts: what the text is where parts begin cannot be kept, so each goes all the way by itself: ") || strings.Contains(notes[0], "\n") {
		t.Errorf("noted: %q", notes)
	}
}

// TestGone: a part whose folder is merged on the way says so.
func TestGone(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	f := folder(t, out)
	var walked atomic.Int64
	o := options(t, f, 4, &walked)
	walk := o.Walk
	o.Walk = func(ctx context.Context, from, to int, of [2]int, s model.States) error {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
		return walk(ctx, from, to, of, s)
	}
	if _, err := New(o).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "out.parts is gone") {
		t.Errorf("error %v", err)
	}
	if all, err := os.ReadDir(filepath.Dir(out)); err != nil || len(all) > 0 {
		t.Errorf("left behind: %v, error %v", all, err)
	}
}

// TestMarks: states are kept before as many blocks as there is room for, far from each other, and before no block that
// only finished parts begin with.
func TestMarks(t *testing.T) {
	var room int64
	for _, n := range sizes() {
		room += 4 * int64(n)
	}
	all := func(blocks ...int) (marks []Mark) {
		for _, b := range blocks {
			marks = append(marks, Mark{b, true})
		}
		return marks
	}
	for _, tc := range []struct {
		marks []Mark
		room  int64
		want  string
		needs []int // of a part that begins with block 0, 1, …
	}{
		{all(1, 2, 3), 3 * room, "[{1 true} {2 true} {3 true}]", []int{0, 1, 2, 3, 3}},
		{all(1, 2, 3), 3*room - 1, "[{1 true} {3 true}]", []int{0, 1, 1, 3}},
		{all(1, 2, 3), room, "[{2 true}]", []int{0, 0, 2, 2}},
		{all(1, 2, 3), room - 1, "[]", []int{0, 0, 0, 0}},
		{[]Mark{{1, false}, {2, true}, {3, false}}, room, "[{2 true}]", []int{0, 0, 2, 2}},
		{[]Mark{{1, true}, {2, false}, {3, false}}, room, "[{2 false}]", nil},
		{[]Mark{{1, true}, {2, false}, {3, true}}, room, "[{2 true}]", nil},
	} {
		for first, need := range append(tc.needs, -1) {
			o := options(t, nil, 1, nil)
			o.Marks, o.Bytes, o.First = tc.marks, tc.room, first
			r := New(o)
			if got := fmt.Sprint(r.marks); got != tc.want || need >= 0 && r.need != need {
				t.Errorf("marks %v and room for %d bytes: %s, and block %d needs %d: want %s and %d", tc.marks, tc.room, got, first, r.need, tc.want, need)
			}
		}
	}
	a, b := options(t, nil, 1, nil), options(t, nil, 2, nil)
	b.Key = "another"
	if New(a).id == New(b).id {
		t.Error("another plan has the same names")
	}
}

// FuzzFile reads a file of states that may be anything: it is as it was written, or an error and removed.
func FuzzFile(f *testing.F) {
	parts := folder(f, filepath.Join(f.TempDir(), "out"))
	r := New(options(f, parts, 4, nil))
	at := [2]int{6, 1}
	whole := r.header(at)
	for w := r.groups[1].from; w < r.groups[1].to; w++ {
		whole = append(whole, encode(stateOf(6, w))...)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append([]byte(magic), make([]byte, 200)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := parts.Path(r.fileName(at))
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		window := r.groups[1].from
		state := make([]float32, r.Sizes[window])
		err := r.load(6, window, state)
		_, statErr := os.Stat(path)
		switch {
		case err == nil:
			if back := encode(state); !bytes.Equal(back, data[headerSize:headerSize+len(back)]) || statErr != nil {
				t.Error("read is not what was written")
			}
		case !Damaged(err) || statErr == nil:
			t.Errorf("error %v, and the file: %v", err, statErr)
		}
	})
}
