package outdir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestReadOnly: an output that may not be written is named, before the work and where it is found out after it.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	out, other := filepath.Join(dir, "out"), filepath.Join(dir, "other", "new")
	write(t, map[string]string{filepath.Join(other, "x"): ""})
	w, err := Create(out, Options{})
	if err == nil {
		err = w.Install()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{other, out} {
		if err := os.Chmod(d, 0o555); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(other, 0o755) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Root may write everything: for this thread, which ends with the function, files are another user's.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				t.Error(err)
				return
			}
		}
		if err := Check(out, Options{Force: true}); !errors.Is(err, ErrReadOnly) || !strings.Contains(err.Error(), out) {
			t.Errorf("got error %v: want %v of %s", err, ErrReadOnly, out)
		}
		if err := exchange(other, out); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), out) {
			t.Errorf("got error %v: want one that names %s", err, out)
		}
	}()
	<-done
}
