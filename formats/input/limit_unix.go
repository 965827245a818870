//go:build unix

package input

import (
	"math"

	"golang.org/x/sys/unix"
)

// openLimit returns how many files the process may have open.
func openLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxInt
	}
	return int(min(uint64(r.Cur), math.MaxInt32))
}
