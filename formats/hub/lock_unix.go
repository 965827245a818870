//go:build unix

package hub

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lutq/lutq/formats/input"
)

// lock takes the lock of a file, as huggingface_hub does, and calls waiting once where another process has it. The system frees
// what a process that ended had locked.
func lock(ctx context.Context, path string, waiting func()) (unlock func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		f, err := input.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, err
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			// Who had it may have deleted it.
			mine, err := f.Stat()
			if err == nil {
				now, err := os.Stat(path)
				if err == nil && os.SameFile(mine, now) {
					return f.Close, nil
				}
			}
			f.Close()
			continue
		case errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOLCK):
			return f.Close, nil // a file system without locks: hashes tell what goes wrong
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		f.Close()
		if first {
			waiting()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
