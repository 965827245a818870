package outdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// What stands behind an output's name in that of the folder that it is built in, and of the one that its parts lie in.
const (
	partialSuffix = ".partial"
	partsSuffix   = ".parts"
)

// place is where an output goes: its name as it was given, for messages, and
// without links or "..", for everything else.
type place struct {
	name  string
	out   string
	work  string
	parts string
}

// locate finds the place of an output, which no input may share.
func locate(name string, inputs []string) (*place, error) {
	if name == "" {
		return nil, errors.New("the output's name is empty")
	}
	out, err := resolve(name)
	if err != nil {
		return nil, err
	}
	p := &place{name: name, out: out, work: out + partialSuffix, parts: out + partsSuffix}
	if trimmed := trim(name); trimmed != "" {
		p.name = trimmed
	}
	// Whoever stands in a folder that is replaced stands nowhere afterwards.
	if err := p.holds(".", "the current folder"); err != nil {
		return nil, err
	}
	for _, in := range inputs {
		if err := p.apart(in); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// resolve returns the absolute path of what need not exist, without links and
// "..". It goes through the name as the system would: a ".." after a link leads
// to the folder above the link's target. The last element may not be a link,
// which would be replaced in the place of its target.
func resolve(name string) (string, error) {
	if info, err := os.Lstat(trim(name)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return "", fmt.Errorf("%s: is a link: name the folder itself", name)
	}
	return follow(name)
}

// trim returns a name without the slashes at its end.
func trim(name string) string { return strings.TrimRight(name, string(filepath.Separator)) }

func follow(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if err == nil {
		return filepath.Abs(real)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	dir, base := filepath.Split(trim(name))
	if _, lstatErr := os.Lstat(dir + base); lstatErr == nil || base == ".." {
		return "", err // a link that leads nowhere, or a step out of nothing
	}
	if dir == "" {
		dir = "."
	}
	if dir, err = follow(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, base), nil
}

// apart refuses an output that is an input, contains it or lies in it. Where
// the input is a folder this holds for the files that it links to, as a model
// in a download cache does.
func (p *place) apart(in string) error {
	if err := p.holds(in, "the input "+in); err != nil {
		return err
	}
	info, err := os.Stat(in)
	if err != nil || !info.IsDir() {
		return nil // whoever reads it has the better message
	}
	if above(info, p.out) {
		return fmt.Errorf("%s: lies in the input %s", p.name, in)
	}
	entries, err := os.ReadDir(in)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		file := filepath.Join(in, e.Name())
		if err := p.holds(file, "what "+file+" links to"); err != nil {
			return err
		}
	}
	return nil
}

// holds refuses an output, or a folder that is made beside it, that is something which must stay
// or contains it. Files are compared and not their names, which may be spelled
// in several ways.
func (p *place) holds(in, what string) error {
	real, err := filepath.EvalSymlinks(in)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing to lose
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	for _, dir := range []struct{ path, name string }{{p.out, p.name}, {p.work, p.name + partialSuffix}, {p.parts, p.name + partsSuffix}} {
		of, err := os.Stat(dir.path)
		switch {
		case err != nil: // not there, most often
		case os.SameFile(of, info):
			return fmt.Errorf("%s: is %s", dir.name, what)
		case above(of, real):
			return fmt.Errorf("%s: contains %s", dir.name, what)
		}
	}
	return nil
}

// above reports whether a folder is one that a path, which need not exist, lies in.
func above(folder fs.FileInfo, path string) bool {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && os.SameFile(info, folder) {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}
