package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk quantizes to a file system that is too small, which only an
// administrator can make.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	for _, tc := range []struct {
		name, size, want string
	}{
		{"seen before the start", "800k", "not enough space"},
		{"met on the way", "1536k", "no space left on device"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("lutq", dir, "tmpfs", 0, "size="+tc.size); err != nil {
				t.Skipf("cannot mount a small file system: %v", err)
			}
			defer func() {
				if err := syscall.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			}()
			code, _, stderr := exec("quantize", "--preset", "fast", tiny, filepath.Join(dir, "out"))
			checkRefused(t, exitFailed, code, stderr)
			if !strings.Contains(stderr, tc.want) {
				t.Errorf("the message does not say %q:\n%s", tc.want, stderr)
			}
			if files := tree(t, dir); len(files) != 1 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
}

// TestShardsFullDisk: where there is no place for two files of a model, one comes at a time.
func TestShardsFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	model := filepath.Join(t.TempDir(), "model")
	shard(t, synthetic(t, 8, 256, 1024), model) // of 512 KiB each, and an output of 1.1 MB
	t.Setenv("HF_ENDPOINT", hubServer(t, model).URL)
	t.Setenv("HF_HUB_OFFLINE", "0")
	for size, want := range map[string]string{
		"1500k": "not enough space: the output and a file of the model take",
		"2000k": "",
	} {
		dir := t.TempDir()
		t.Setenv("HF_HUB_CACHE", t.TempDir())
		if err := syscall.Mount("lutq", dir, "tmpfs", 0, "size="+size); err != nil {
			t.Skipf("cannot mount a small file system: %v", err)
		}
		code, _, stderr := exec("quantize", "org/tiny", filepath.Join(dir, "out"), "--codebook", "nf", "--shards-from", "hub", "--quiet")
		if (code == exitDone) != (want == "") || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d\n%swant %q", size, code, stderr, want)
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
}

// TestExportFullDisk exports to a file system that is too small, and leaves nothing there.
func TestExportFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	made, dir := filepath.Join(t.TempDir(), "made"), t.TempDir()
	if code, _, stderr := exec("quantize", tiny, made, "--for", "ct"); code != 0 {
		t.Fatal(stderr)
	}
	if err := syscall.Mount("lutq", dir, "tmpfs", 0, "size=800k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	code, _, stderr := exec("export", made, filepath.Join(dir, "out"), "--to", "ct")
	checkRefused(t, exitFailed, code, stderr)
	if !strings.Contains(stderr, "no space left on device") {
		t.Errorf("the message does not say so:\n%s", stderr)
	}
	if files := tree(t, dir); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}
