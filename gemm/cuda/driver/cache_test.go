package driver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCache(t *testing.T) {
	c := NewCache(filepath.Join(t.TempDir(), "new", "folder"))
	if n, size, err := c.Size(); n != 0 || size != 0 || err != nil {
		t.Errorf("a folder that is not there: got %d entries, %d bytes, error %v", n, size, err)
	}
	if _, ok := c.Get("a"); ok {
		t.Error("an empty cache has an entry")
	}
	for _, content := range []string{"first", "", "second\nwith lines\n"} {
		if err := c.Put("a", []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, ok := c.Get("a"); !ok || string(got) != content {
			t.Errorf("got %q, %t, want %q", got, ok, content)
		}
	}
	files, err := os.ReadDir(c.Dir())
	if err != nil || len(files) != 1 {
		t.Errorf("the folder has %d files, error %v: want the entry alone", len(files), err)
	}
	if n, size, err := c.Size(); n != 1 || size == 0 || err != nil {
		t.Errorf("got %d entries, %d bytes, error %v, want 1 entry", n, size, err)
	}
}

// TestCacheCorrupt damages an entry in one place or cuts it off, and never gets
// anything but the content that was put or nothing.
func TestCacheCorrupt(t *testing.T) {
	c := NewCache(t.TempDir())
	content := []byte("machine code\n\x00\x01")
	if err := c.Put("k", content); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(c.path("k"))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(whole)
		if i := rapid.IntRange(0, len(bad)-1).Draw(t, "at"); rapid.Bool().Draw(t, "cut") {
			bad = bad[:i]
		} else {
			bad[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		}
		if err := os.WriteFile(c.path("k"), bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, ok := c.Get("k"); ok {
			t.Fatalf("got %q from a damaged entry", got)
		}
	})
	if err := c.Put("k", content); err != nil {
		t.Fatal(err)
	}
	if got, ok := c.Get("k"); !ok || !bytes.Equal(got, content) {
		t.Errorf("after another Put: got %q, %t", got, ok)
	}
}

func FuzzCacheEntry(f *testing.F) {
	c := NewCache(f.TempDir())
	if err := c.Put("k", []byte("code")); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(c.path("k"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte("lutq kernel 1 \n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		content, ok := parseEntry(data)
		if !ok {
			return
		}
		if want := cacheMagic + digest(content) + "\n" + string(content); string(data) != want {
			t.Errorf("%q is taken for an entry", data)
		}
	})
}

func TestCacheNotWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := NewCache(filepath.Join(file, "kernels")) // not even root can make that folder
	err := c.Put("k", []byte("x"))
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("got error %v, want one line", err)
	}
	if _, ok := c.Get("k"); ok {
		t.Error("what could not be kept is there")
	}
	var none *Cache
	if _, ok := none.Get("k"); ok || none.Put("k", nil) != nil {
		t.Error("no cache at all keeps something or complains")
	}
}

// TestCacheProcesses has several processes write the same entry at the same
// time, while this one reads it.
func TestCacheProcesses(t *testing.T) {
	content := func(writer string) []byte { return bytes.Repeat([]byte(writer), 20000) }
	if dir, writer := os.Getenv("LUTQ_TEST_CACHE"), os.Getenv("LUTQ_TEST_WRITER"); dir != "" {
		for range 100 {
			if err := NewCache(dir).Put("k", content(writer)); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	c := NewCache(t.TempDir())
	results := make(chan error)
	const writers = 3
	for w := range writers {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCacheProcesses$")
		cmd.Env = append(os.Environ(), "LUTQ_TEST_CACHE="+c.Dir(), fmt.Sprintf("LUTQ_TEST_WRITER=%d", w))
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			results <- err
		}()
	}
	seen := false
	for ended := 0; ended < writers; {
		select {
		case err := <-results:
			if err != nil {
				t.Error(err)
			}
			ended++
		default:
		}
		got, ok := c.Get("k")
		if seen && !ok {
			t.Fatal("an entry disappeared or was read half-written")
		}
		seen = seen || ok
		if ok && !bytes.Equal(got, content(string(got[0]))) {
			t.Fatal("an entry mixes two writers")
		}
	}
	if !seen {
		t.Error("no entry was ever read")
	}
	if files, err := os.ReadDir(c.Dir()); err != nil || len(files) != 1 {
		t.Errorf("%d files are left, error %v: want the entry alone", len(files), err)
	}
}

// TestCacheOfOthers: nothing is taken from a folder that others may write, and
// nothing is put there.
func TestCacheOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kernels")
	c := NewCache(dir)
	if err := c.Put("a", []byte("own")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Get("a"); ok {
		t.Error("an entry of a folder that others may write is taken")
	}
	if err := c.Put("b", []byte("own")); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("put in a folder that others may write: error %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, ok := c.Get("a"); !ok || string(got) != "own" {
		t.Errorf("got %q, %t", got, ok)
	}
}
