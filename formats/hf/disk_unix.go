//go:build linux || darwin || freebsd

package hf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FreeSpace returns the bytes that an unprivileged process may still write to
// the file system that holds dir.
func FreeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// syncDir makes the names of new files in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
