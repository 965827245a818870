package outdir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// exchange gives each of two folders the other's name in one step. Where the
// file system cannot, the error wraps [errors.ErrUnsupported].
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return errors.ErrUnsupported // what file systems say, and old kernels ENOSYS
	}
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
}
