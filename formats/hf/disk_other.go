//go:build !(linux || darwin || freebsd)

package hf

import (
	"errors"
	"fmt"
)

// FreeSpace is not available on this system; the error wraps
// [errors.ErrUnsupported].
func FreeSpace(dir string) (int64, error) {
	return 0, fmt.Errorf("free space of %s: %w", dir, errors.ErrUnsupported)
}

// syncDir does nothing: directories cannot be synced here.
func syncDir(string) error { return nil }
