package hub

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNoSpaceLeft downloads to a file system that is too small, which only an administrator can make, and goes on when it is
// larger.
func TestNoSpaceLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	s := newServer(t)
	o := s.options(t)
	dir := t.TempDir()
	if err := syscall.Mount("lutq", dir, "tmpfs", 0, "size=900k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	o.Cache = filepath.Join(dir, "hub")
	if _, err := Resolve(t.Context(), "org/name", o); err == nil || !strings.Contains(err.Error(), "org/name: 2 MB are to come, and ") {
		t.Errorf("seen before the start: error %v", err)
	}
	o.free = func(string) (int64, error) { return math.MaxInt64, nil }
	_, err := Resolve(t.Context(), "org/name", o)
	if err == nil || !strings.Contains(err.Error(), "the disk of the cache is full") || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("met on the way: error %v", err)
	}
	checkNames(t, o)
	o.free = nil
	if err := syscall.Mount("lutq", dir, "tmpfs", syscall.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	got, err := Resolve(t.Context(), "org/name", o)
	if err != nil {
		t.Fatal(err)
	}
	checkWhole(t, s, o, got)
}
