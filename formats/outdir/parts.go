package outdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// Parts is the folder beside an output, OUT.parts, in which several processes put pieces of it. They may run on machines
// that have nothing but this folder in common:
//
//	OUT.parts/.lutq     its mark: that it belongs to lutq and to OUT, and the plan carried out
//	OUT.parts/NAME      a finished file, whole
//	OUT.parts/.NAME.X   a folder of one process, in which it makes files of a name
//
// Nothing is ever locked, and no time of a file is looked at: clocks of machines may differ. What is asked of the file system
// is that who opens a file after it was closed and renamed sees it as it was written, as on NFS; and that a folder has
// one of a name. A rename that is a copy leaves a file that is cut short where its machine dies: so whoever reads a file has
// to know whether it is whole. Two processes may make the same file. They make the same bytes, and the last
// rename stays.
type Parts struct{ *place }

// CheckParts returns the error that [OpenParts] would return for the output's name and what exists there. It writes nothing.
func CheckParts(out string, o Options) error {
	p, err := locate(out, o.Inputs)
	if err != nil {
		return err
	}
	if err := p.replaceable(o.Force); err != nil {
		return err
	}
	_, err = (&Parts{p}).begun()
	return err
}

// OpenParts returns the folder of an output's parts, which it makes if need be. One of another plan is an error that wraps
// [ErrOtherRun].
func OpenParts(out string, o Options) (*Parts, error) {
	at, err := locate(out, o.Inputs)
	if err != nil {
		return nil, err
	}
	if err := at.replaceable(o.Force); err != nil {
		return nil, err
	}
	p := &Parts{at}
	if _, err := makeParents(p.parts); err != nil {
		return nil, err
	}
	if err := os.Mkdir(p.parts, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	m, err := p.begun()
	if err == nil && m == nil {
		if err = p.begin(o.Plan); err == nil {
			m, err = p.begun() // which may be another's
		}
	}
	return p, p.of(m, o.Plan, err)
}

// FindParts is OpenParts for a folder that should be there: its error wraps [fs.ErrNotExist] where it is not.
func FindParts(out string, o Options) (*Parts, error) {
	at, err := locate(out, o.Inputs)
	if err != nil {
		return nil, err
	}
	p := &Parts{at}
	m, err := p.begun()
	if err == nil && m == nil {
		err = fmt.Errorf("%s: %w", p.Name(), fs.ErrNotExist)
	}
	return p, p.of(m, o.Plan, err)
}

// of returns an error unless a mark is of a plan.
func (p *Parts) of(m *mark, plan string, err error) error {
	switch {
	case err != nil:
		return err
	case m == nil:
		return fmt.Errorf("%s: its mark is gone", p.Name())
	case m.Plan != plan:
		return &OtherPlanError{Folder: p.Name(), Plan: m.Plan}
	}
	return nil
}

// OtherPlanError means that parts are of another plan.
type OtherPlanError struct{ Folder, Plan string }

func (e *OtherPlanError) Error() string { return e.Folder + ": " + ErrOtherRun.Error() }

// Unwrap returns [ErrOtherRun].
func (e *OtherPlanError) Unwrap() error { return ErrOtherRun }

// Name names the folder in messages.
func (p *Parts) Name() string { return p.name + partsSuffix }

// begun reads the mark of the folder, nil where it has none yet. A folder that holds other things alone is somebody else's.
func (p *Parts) begun() (*mark, error) {
	foreign := fmt.Errorf("%s: is in the way and %w: parts of the output go there", p.Name(), ErrForeign)
	info, err := os.Lstat(p.parts)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, foreign
	}
	data, err := input.ReadFile(filepath.Join(p.parts, MarkName), input.Mark)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(p.parts)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), MarkName) { // or a mark that is being written
				return nil, foreign
			}
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	m, _, err := parseWork(data)
	switch {
	case err != nil, m != nil && (m.Kind != kindParts || m.Out != filepath.Base(p.out)):
		return nil, foreign
	}
	return m, nil // nil of one that was cut short
}

// begin marks the folder, unless it is marked meanwhile: by a hard link, or where there are none by a rename.
func (p *Parts) begin(plan string) error {
	data, err := mark{Kind: kindParts, Version: markVersion, Out: filepath.Base(p.out), Plan: plan}.bytes()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(p.parts, MarkName+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	to := filepath.Join(p.parts, MarkName)
	err = link(f.Name(), to)
	if errors.Is(err, fs.ErrExist) {
		if m, readErr := p.begun(); readErr != nil || m != nil {
			return readErr
		}
	}
	if err != nil { // there are no links, or a mark was cut short
		return os.Rename(f.Name(), to)
	}
	return nil
}

// link makes a hard link; tests stand in for file systems without them.
var link = os.Link

// Path returns where a finished file lies.
func (p *Parts) Path(name string) string { return filepath.Join(p.parts, name) }

// Names returns what lies in the folder: the mark, finished files, and folders of processes.
func (p *Parts) Names() (names []string, err error) {
	entries, err := os.ReadDir(p.parts)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, p.Gone()
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Gone is the error where there is no folder any more.
func (p *Parts) Gone() error {
	return fmt.Errorf("%s is gone: the parts were merged, or the folder was deleted", p.Name())
}

// Scratch makes a folder of this process alone, in which to make files that begin with a name. It fails where the parts
// are gone.
func (p *Parts) Scratch(name string) (string, error) { return os.MkdirTemp(p.parts, "."+name+".*") }

// Put gives a file that lies in a folder of [Parts.Scratch] its place, and makes it durable.
func (p *Parts) Put(file, name string) error {
	if err := syncFile(file); err != nil {
		return err
	}
	if err := os.Rename(file, p.Path(name)); err != nil {
		return err
	}
	return syncFile(p.parts)
}

// Sweep removes what processes of any machine have in the making of names that are asked for, which is of no more use.
func (p *Parts) Sweep(asked func(name string) bool) error {
	entries, err := os.ReadDir(p.parts)
	if errors.Is(err, fs.ErrNotExist) {
		return p.Gone()
	}
	for _, e := range entries {
		name, making := strings.CutPrefix(e.Name(), ".")
		if name, _, ok := strings.Cut(name, "."); making && ok && asked(name) {
			err = errors.Join(err, os.RemoveAll(p.Path(e.Name())))
		}
	}
	return err
}

// Remove removes the folder, the mark last. A process that is still at work on a part may put something in meanwhile: it
// is removed as well.
func (p *Parts) Remove() error {
	const tries = 10
	var err error
	for range tries {
		var entries []os.DirEntry
		if entries, err = os.ReadDir(p.parts); err != nil {
			break
		}
		for _, e := range entries {
			if e.Name() != MarkName {
				err = errors.Join(err, os.RemoveAll(p.Path(e.Name())))
			}
		}
		if err == nil {
			if err = os.Remove(p.Path(MarkName)); err == nil || errors.Is(err, fs.ErrNotExist) {
				if err = os.Remove(p.parts); err == nil {
					return nil
				}
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
