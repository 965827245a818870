package outdir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lutq/lutq/formats/input"
)

// MarkName is the file that tells lutq's folders from all others. Its name
// begins with a dot, so that it is not taken for a part of a model.
const MarkName = ".lutq"

// mark is the content of a mark, a JSON object.
type mark struct {
	Kind    string `json:"lutq"`
	Version int    `json:"version"`

	Files []string `json:"files,omitempty"` // of an output: the names of its files

	Out  string `json:"out,omitempty"`  // of a work folder, or one of parts: the output's name, without its folder
	Plan string `json:"plan,omitempty"` // likewise: what is carried out in it
}

const (
	markVersion = 1
	kindOutput  = "output"
	kindWork    = "work"
	kindParts   = "parts"
)

// parseMark reads a mark.
func parseMark(data []byte) (*mark, error) {
	var m mark
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if m.Kind != kindOutput && m.Kind != kindWork && m.Kind != kindParts {
		return nil, fmt.Errorf("kind %q", m.Kind)
	}
	if m.Version != markVersion {
		return nil, fmt.Errorf("version %d: this lutq knows version %d", m.Version, markVersion)
	}
	return &m, nil
}

// readyFormat is a line after the mark of a work folder: the finished folder is
// the one with this inode, under whatever name.
const readyFormat = "ready %d\n"

// parseWork reads the mark of a work folder and the last of the lines after it.
// A line that a kill cut short counts as not written: m is nil where the first
// one is.
func parseWork(data []byte) (m *mark, ready uint64, err error) {
	for line := range bytes.Lines(data) {
		switch {
		case line[len(line)-1] != '\n':
			return m, ready, nil
		case m == nil:
			if m, err = parseMark(line); err != nil {
				return nil, 0, err
			}
		default:
			if _, err := fmt.Sscanf(string(line), readyFormat, &ready); err != nil {
				return nil, 0, err
			}
		}
	}
	return m, ready, nil
}

// bytes returns the mark as it is stored, on a line.
func (m mark) bytes() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(m)
	return b.Bytes(), err
}

// readMark reads the mark of an output. Whatever is no mark counts as none.
func readMark(dir string) (*mark, bool) {
	data, err := input.ReadFile(filepath.Join(dir, MarkName), input.Mark)
	if err != nil {
		return nil, false
	}
	line, _ := firstLine(data)
	m, err := parseMark(line)
	return m, err == nil && m.Kind == kindOutput
}

// firstLine divides the mark of an output, which is a line, from what is left to do with it.
func firstLine(data []byte) (line, left []byte) {
	at := bytes.IndexByte(data, '\n') + 1
	if at == 0 {
		at = len(data)
	}
	return data[:at], data[at:]
}

// Left returns what [Work.Leave] noted of an output, nil where nothing is left to do.
func Left(out string) []byte {
	if _, ok := readMark(out); !ok {
		return nil
	}
	data, err := input.ReadFile(filepath.Join(out, MarkName), input.Mark)
	if err != nil {
		return nil
	}
	if _, left := firstLine(data); len(left) > 0 {
		return left
	}
	return nil
}

// Begun returns the plan of the unfinished run that stands beside an output, "" where there is none that can be read.
func Begun(out string) string {
	data, err := input.ReadFile(filepath.Join(filepath.Clean(out)+partialSuffix, MarkName), input.Mark)
	if err != nil {
		return ""
	}
	m, _, err := parseWork(data)
	if err != nil || m == nil || m.Kind != kindWork {
		return ""
	}
	return m.Plan
}

// Settle notes that nothing is left to do with an output.
func Settle(out string) error {
	path := filepath.Join(out, MarkName)
	data, err := input.ReadFile(path, input.Mark)
	if err != nil {
		return err
	}
	line, left := firstLine(data)
	if len(left) == 0 {
		return nil
	}
	return os.Truncate(path, int64(len(line)))
}

// outputMark returns the mark of an output with the given files.
func outputMark(files []string) ([]byte, error) {
	return mark{Kind: kindOutput, Version: markVersion, Files: files}.bytes()
}

// SoundMark reports whether the mark of an output is the one that was written
// with the given files, in any order, whatever is left to do. A folder without a mark has a sound one.
func SoundMark(dir string, files []string) (bool, error) {
	data, err := input.ReadFile(filepath.Join(dir, MarkName), input.Mark)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, nil
	}
	want, err := outputMark(slices.Sorted(slices.Values(files)))
	line, _ := firstLine(data)
	return bytes.Equal(line, want), err
}

// writeMark lists the files of a finished folder in its mark, before what is left to do, and makes all of
// it durable.
func writeMark(dir string, left []byte) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var files []string
	for _, e := range entries {
		if e.Name() == MarkName {
			continue
		}
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s: is no regular file", filepath.Join(dir, e.Name()))
		}
		files = append(files, e.Name())
	}
	data, err := outputMark(files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, MarkName), append(data, left...), 0o666); err != nil {
		return err
	}
	// Together, which costs a disk little more than one of them.
	var group errgroup.Group
	for _, name := range append(files, MarkName, ".") {
		group.Go(func() error { return syncFile(filepath.Join(dir, name)) })
	}
	return group.Wait()
}

// syncFile makes a file, or the names in a folder, durable.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ErrExists means that the output exists. Lutq wrote it, and may be told to
// replace it.
var ErrExists = errors.New("already exists")

// ErrReadOnly means that the output exists and cannot be replaced by this user.
var ErrReadOnly = errors.New("cannot be replaced, since it may not be written")

// ErrForeign means that the output, or the folder it would be built in, holds
// something that lutq did not write and does not delete.
var ErrForeign = errors.New("is not lutq's to replace")

// replaceable returns nil where the output does not exist, is an empty folder,
// or is one that lutq wrote and force says to replace.
func (p *place) replaceable(force bool) error {
	entries, err := os.ReadDir(p.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		if info, statErr := os.Stat(p.out); statErr == nil && !info.IsDir() {
			return fmt.Errorf("%s: is a file: the output is a folder", p.name)
		}
		return err
	case len(entries) == 0:
		return p.movable()
	}
	m, ours := readMark(p.out)
	if !ours {
		return fmt.Errorf("%s: already exists and %w: lutq did not write it", p.name, ErrForeign)
	}
	var others []string
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() != MarkName && !slices.Contains(m.Files, e.Name()) {
			others = append(others, e.Name())
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("%s: already exists and %w: it holds %s, which lutq did not write", p.name, ErrForeign, listed(others))
	}
	if !force {
		return fmt.Errorf("%s: %w", p.name, ErrExists)
	}
	return p.movable()
}

// movable refuses an output that exists and may not be written, which moving it to another place takes: better
// before the work than after it.
func (p *place) movable() error {
	err := unix.Faccessat(unix.AT_FDCWD, p.out, unix.W_OK, unix.AT_EACCESS)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%s: %w: %w", p.name, ErrReadOnly, err)
	}
	return nil
}

// listed names a few of several files.
func listed(names []string) string {
	const most = 3
	for i := range names {
		names[i] = input.Name(names[i])
	}
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}
