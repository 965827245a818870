package input

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// pooled makes n files, each of its number in text, and adds them to the pool.
func pooled(t *testing.T, p *Pool, n int) []*File {
	t.Helper()
	dir := t.TempDir()
	files := make([]*File, n)
	for i := range files {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(path, []byte(strconv.Itoa(1000+i)), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if files[i], err = p.Add(f, os.O_RDWR); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestPool reads and writes many files by several goroutines, of which few are ever open.
func TestPool(t *testing.T) {
	const most, count, workers = 3, 40, 4
	p := newPool(most)
	files := pooled(t, p, count)
	if p.open > most {
		t.Fatalf("%d files are open: want at most %d", p.open, most)
	}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range 5 * count {
				x, b := files[(7*i+w)%count], make([]byte, 3)
				if _, err := x.ReadAt(b, 1); err != nil || string(b) != strconv.Itoa(1000 + (7*i+w)%count)[1:] {
					t.Errorf("%s: read %q, %v", x.Name(), b, err)
				}
			}
			for i := w; i < count; i += workers {
				if _, err := files[i].WriteAt([]byte("2"), 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if p.open > most {
		t.Errorf("%d files are open after use: want at most %d", p.open, most)
	}
	for i, x := range files {
		got, err := os.ReadFile(x.Name())
		if want := strconv.Itoa(2000 + i); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v: want %s", x.Name(), got, err, want)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if _, err := x.ReadAt(make([]byte, 1), 0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("reading a closed file gives %v", err)
		}
	}
	if p.open != 0 {
		t.Errorf("%d files are open after all were closed", p.open)
	}
}

// TestPoolInUse: what is in use stays open, whatever the limit, and is closed after.
func TestPoolInUse(t *testing.T) {
	p := newPool(1)
	files := pooled(t, p, 2)
	err := files[0].Do(func(a *os.File) error {
		return files[1].Do(func(b *os.File) error {
			if err := files[0].Close(); err != nil {
				return err
			}
			_, err := io.ReadAll(a)
			return errors.Join(err, b.Sync())
		})
	})
	if err != nil || p.open != 0 {
		t.Errorf("%d files are open, %v: want none", p.open, err)
	}
	// One that is in use beside another is closed before that is.
	if _, err := files[1].ReadAt(make([]byte, 5), 0); err != io.EOF || p.open != 1 {
		t.Errorf("%d files are open, %v: want 1, EOF", p.open, err)
	}
}

// TestPoolReplaced: a file that another has taken the place of is not read for it.
func TestPoolReplaced(t *testing.T) {
	p := newPool(1)
	files := pooled(t, p, 2) // so that the first is not open any more
	other := files[0].Name() + ".new"
	if err := os.WriteFile(other, []byte("1000"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, files[0].Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := files[0].ReadAt(make([]byte, 4), 0); err == nil {
		t.Error("another file was read")
	}
}
