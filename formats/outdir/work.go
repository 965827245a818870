package outdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/lutq/lutq/formats/input"
)

// Options say what an output may replace and what it may not touch.
type Options struct {
	// Inputs are files and folders that are read to make the output, which may
	// be none of them, contain none and lie in none.
	Inputs []string
	// Force replaces a folder that lutq wrote.
	Force bool
	// Plan names what is carried out. What an interrupted run of another plan
	// left is not touched.
	Plan string
	// Resume keeps what an interrupted run of the same plan left.
	Resume bool
}

// ErrOtherRun means that the work folder holds an unfinished run of another
// plan.
var ErrOtherRun = errors.New("holds an unfinished run with other options or another model")

// ErrBusy means that another process is at work on the same output.
var ErrBusy = errors.New("another process is writing this output")

// The folders in a work folder.
const (
	newName = "new"
	oldName = "old"
)

// Check returns the error that [Create] would return for the output's name and
// what exists there, so that it comes before long preparations. It writes
// nothing, but cleans up after a run that was killed when its output was in
// place.
func Check(out string, o Options) error {
	p, err := locate(out, o.Inputs)
	if err != nil {
		return err
	}
	return p.check(o.Force)
}

func (p *place) check(force bool) error {
	w, err := p.lock(false)
	if err != nil {
		return err
	}
	if w != nil {
		if err := errors.Join(w.heal(), w.Close()); err != nil {
			return err
		}
	}
	return p.replaceable(force)
}

// Work is an output being built. It belongs to one process at a time.
type Work struct {
	*place
	lockFile *os.File
	mark     *mark // as an earlier run left it; nil for a new work folder
	ready    uint64
	force    bool
	parents  []string // that were made for the output, the innermost last
	left     []byte
	swap     func(a, b string) error
}

// Create begins an output, or goes on with one. It makes the folders above it
// that are missing.
func Create(out string, o Options) (*Work, error) {
	p, err := locate(out, o.Inputs)
	if err != nil {
		return nil, err
	}
	if err := p.check(o.Force); err != nil {
		return nil, err
	}
	parents, err := makeParents(p.out)
	if err != nil {
		return nil, errors.Join(err, removeEmpty(parents...))
	}
	w, err := p.lock(true)
	if err != nil {
		return nil, errors.Join(err, removeEmpty(parents...))
	}
	w.force, w.parents = o.Force, parents
	switch {
	case w.mark == nil:
		if err := w.begin(o.Plan); err != nil {
			return nil, errors.Join(err, w.Discard())
		}
	case w.mark.Plan != o.Plan:
		return nil, errors.Join(fmt.Errorf("%s: %w", p.name+partialSuffix, ErrOtherRun), w.Close())
	case !o.Resume:
		if err := w.empty(); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	if err := os.Mkdir(w.Dir(), 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errors.Join(err, w.Discard())
	}
	return w, nil
}

// Dir returns the folder that becomes the output. It holds files only.
func (w *Work) Dir() string { return filepath.Join(w.work, newName) }

// Scratch returns the path of a file that stays between runs that are
// interrupted, and goes away when the output is in place.
func (w *Work) Scratch(name string) string { return filepath.Join(w.work, name) }

// lock takes hold of the work folder, which it makes if told so; otherwise it
// returns nil where there is none.
func (p *place) lock(create bool) (*Work, error) {
	for {
		if create {
			if err := os.Mkdir(p.work, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		}
		entries, err := p.workEntries()
		if errors.Is(err, fs.ErrNotExist) {
			if create {
				continue // another process has just finished
			}
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		marked := false
		for _, e := range entries {
			marked = marked || e.Name() == MarkName && e.Type().IsRegular()
		}
		if len(entries) > 0 && !marked {
			return nil, p.foreignWork()
		}
		if !create && !marked {
			// Its run was killed before it had begun, or after it had ended.
			return nil, removeEmpty(p.work)
		}
		f, err := input.OpenFile(filepath.Join(p.work, MarkName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		w := &Work{place: p, lockFile: f, swap: exchange}
		held, err := w.hold()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if held {
			return w, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// workEntries lists the work folder, which must be a folder.
func (p *place) workEntries() ([]fs.DirEntry, error) {
	info, err := os.Lstat(p.work)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, p.foreignWork()
	}
	return os.ReadDir(p.work)
}

func (p *place) foreignWork() error {
	return fmt.Errorf("%s: is in the way and %w: the output is built under this name", p.name+partialSuffix, ErrForeign)
}

// hold locks the open mark and reads it. It returns false where the file was
// deleted meanwhile.
func (w *Work) hold() (bool, error) {
	switch err := flock(int(w.lockFile.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, fmt.Errorf("%s: %w", w.name, ErrBusy)
	case lockless(err): // then nobody looks that there is one process alone
	case err != nil:
		return false, fmt.Errorf("lock %s: %w", w.lockFile.Name(), err)
	}
	have, err := w.lockFile.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(w.lockFile.Name())
	if err != nil || !os.SameFile(have, named) {
		return false, nil
	}
	data, err := input.ReadOpen(w.lockFile, input.Mark)
	if err != nil {
		return false, err
	}
	if w.mark, w.ready, err = parseWork(data); err != nil {
		return false, w.foreignWork()
	}
	if w.mark == nil { // which its run was killed before it wrote anything else
		entries, err := w.workEntries()
		if err == nil && len(entries) > 1 {
			err = w.foreignWork()
		}
		return err == nil, err
	}
	if w.mark.Kind != kindWork || w.mark.Out != filepath.Base(w.out) {
		return false, w.foreignWork()
	}
	return true, nil
}

// flock locks a file; tests stand in for file systems without locks.
var flock = syscall.Flock

// lockless reports whether a file system has no locks, as those of mounted object storage.
func lockless(err error) bool {
	return errors.Is(err, syscall.ENOLCK) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOTSUP)
}

// begin marks a new work folder.
func (w *Work) begin(plan string) error {
	data, err := mark{Kind: kindWork, Version: markVersion, Out: filepath.Base(w.out), Plan: plan}.bytes()
	if err != nil {
		return err
	}
	if err := w.lockFile.Truncate(0); err != nil {
		return err
	}
	return w.note(data)
}

// note adds to the mark, durably.
func (w *Work) note(data []byte) error {
	if _, err := w.lockFile.Write(data); err != nil {
		return err
	}
	return w.lockFile.Sync()
}

// heal repairs what a run left that was killed before it had begun, or while it
// put its output in place.
func (w *Work) heal() error {
	if w.mark == nil {
		return w.clear()
	}
	if w.ready == 0 {
		return nil
	}
	if err := w.restore(); err != nil {
		return err
	}
	if n, err := inode(w.Dir()); err == nil && n == w.ready {
		return nil // not in place yet
	}
	return w.clear()
}

// restore gives the old output its name back where neither it nor the new one
// has it.
func (w *Work) restore() error {
	if _, err := os.Lstat(w.out); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := os.Rename(filepath.Join(w.work, oldName), w.out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there was none
	}
	return err
}

// inode returns the number of a folder, which stays when it is renamed.
func inode(dir string) (uint64, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: %w: no inode", dir, errors.ErrUnsupported)
	}
	return uint64(st.Ino), nil
}

// Leave notes, for [Left], that something is left to be done with the output when it is in place, until
// [Settle]. What is noted is one line or more. It does nothing where a mark has no room for it.
func (w *Work) Leave(note []byte) {
	if int64(len(note)) < input.Mark.Limit()/2 {
		w.left = note
	}
}

// Install puts the finished folder in the output's place, and removes what
// stood there and the work folder. After an error the work is still to be
// closed or discarded.
func (w *Work) Install() error {
	if err := w.install(); err != nil {
		return err
	}
	if err := w.clear(); err != nil {
		return err
	}
	return w.Close()
}

func (w *Work) install() error {
	if err := writeMark(w.Dir(), w.left); err != nil {
		return err
	}
	// Once more, since much time may have passed.
	if err := w.replaceable(w.force); err != nil {
		return err
	}
	n, err := inode(w.Dir())
	if err != nil {
		return err
	}
	if err := w.note(fmt.Appendf(nil, readyFormat, n)); err != nil {
		return err
	}
	w.ready = n
	if err := w.rename(); err != nil {
		return err
	}
	return syncFile(filepath.Dir(w.out))
}

// rename gives the finished folder the output's name. One that has it already
// goes to the work folder.
func (w *Work) rename() error {
	if _, err := os.Lstat(w.out); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(w.Dir(), w.out)
	}
	err := w.swap(w.Dir(), w.out)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err := os.Rename(w.out, filepath.Join(w.work, oldName)); err != nil {
		return err
	}
	if err := os.Rename(w.Dir(), w.out); err != nil {
		return errors.Join(err, w.restore())
	}
	return nil
}

// Close lets go of the output and keeps what is done for the next run. After
// [Work.Install] it does nothing.
func (w *Work) Close() error {
	if w.lockFile == nil {
		return nil
	}
	err := w.lockFile.Close()
	w.lockFile = nil
	return err
}

// Discard removes the work, with the folders made for it, and closes it. After
// [Work.Install] it does nothing.
func (w *Work) Discard() error {
	if w.lockFile == nil {
		return nil
	}
	err := w.restore()
	if err == nil {
		err = w.clear()
	}
	if err == nil {
		err = removeEmpty(w.parents...)
	}
	return errors.Join(err, w.Close())
}

// empty removes everything but the mark.
func (w *Work) empty() error {
	entries, err := os.ReadDir(w.work)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == MarkName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(w.work, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// clear removes the work folder, the mark last: what is left of a folder whose
// removal is cut short must still have it.
func (w *Work) clear() error {
	if err := w.empty(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(w.work, MarkName)); err != nil {
		return err
	}
	return removeEmpty(w.work)
}

// makeParents makes the folders above a path that are missing, and returns
// them, the innermost last.
func makeParents(path string) (made []string, err error) {
	var missing []string
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := os.Mkdir(missing[i], 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return made, err
		} else if err == nil {
			made = append(made, missing[i])
		}
	}
	return made, nil
}

// removeEmpty removes folders, the last first, unless another process has begun
// to use them.
func removeEmpty(dirs ...string) error {
	for i := len(dirs) - 1; i >= 0; i-- {
		err := os.Remove(dirs[i])
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
