package input

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Private returns an error if another user could have put files into a folder,
// or could do so before it is made: if somebody else owns it or may write there,
// or may rename a folder on the way to it. It is for what is trusted because of
// where it lies, such as a cache of machine code.
func Private(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	// Links are followed as far as there is something.
	real, err := filepath.EvalSymlinks(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(dir); err == nil {
			return fmt.Errorf("%s is a link to nothing", dir)
		}
		if parent := filepath.Dir(dir); parent != dir {
			return onTheWay(parent)
		}
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", dir, err)
	}
	if err := checkFolder(real, true); err != nil {
		return err
	}
	return onTheWay(filepath.Dir(real))
}

// onTheWay checks the folders that a private one lies in, of which the last
// ones need not be there.
func onTheWay(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		return onTheWay(filepath.Dir(dir))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	for {
		if err := checkFolder(real, false); err != nil {
			return err
		}
		parent := filepath.Dir(real)
		if parent == real {
			return nil
		}
		real = parent
	}
}

// checkFolder checks one folder; own tells that files are looked for in it.
func checkFolder(dir string, own bool) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	owner, ok := uid(info)
	if !ok {
		return nil // a system without users
	}
	// The superuser may do anything anyway. Within a container it may have
	// another number, but it owns the root folder.
	trusted := owner == os.Geteuid() || owner == 0
	if root, err := os.Lstat("/"); err == nil && !own {
		id, ok := uid(root)
		trusted = trusted || ok && owner == id
	}
	switch mode := info.Mode(); {
	case !trusted:
		return fmt.Errorf("%s belongs to another user", dir)
	case mode.Perm()&0o022 != 0 && (own || mode&fs.ModeSticky == 0):
		return fmt.Errorf("%s can be written by other users", dir)
	}
	return nil
}

// uid returns the number of a file's owner.
func uid(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// CacheDir returns lutq's folder in the user's one for caches, or in that for temporary files where the user has none.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "lutq")
}
