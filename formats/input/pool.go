package input

import (
	"container/list"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Pool holds files of which only some are open at a time: a model may be in more of them than a
// process may have open. The others are opened again when they are used. Its methods, and those of its
// files, may be called from several goroutines.
type Pool struct {
	mu    sync.Mutex
	most  int        // that are open while no more are in use
	ready *list.List // of *File that are open and not in use, the last used in front
	open  int
}

// The least and the most files that a pool keeps open, where the process may have more.
const (
	leastOpen = 2
	mostOpen  = 64
)

// NewPool returns an empty pool, which keeps a share of the files open that the process may have.
func NewPool() *Pool {
	// There may be several pools, and others open files too.
	return newPool(max(leastOpen, min(mostOpen, openLimit()/8)))
}

func newPool(most int) *Pool { return &Pool{most: most, ready: list.New()} }

// File is a file of a [Pool].
type File struct {
	pool *Pool
	name string
	flag int // that it is opened with again
	info fs.FileInfo

	// Guarded by the pool.
	f      *os.File // nil while it is not open
	users  int
	place  *list.Element // among those that are ready
	closed bool
}

// Add takes over an open file, which may be opened again by its name with flag, one of the access modes
// of package os.
func (p *Pool) Add(f *os.File, flag int) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	x := &File{pool: p, name: f.Name(), flag: flag, info: info, f: f, users: 1}
	p.mu.Lock()
	p.open++
	p.mu.Unlock()
	return x, x.release()
}

// Name returns the name that the file was opened by.
func (x *File) Name() string { return x.name }

// Info describes the file as it was when it was added.
func (x *File) Info() fs.FileInfo { return x.info }

// ReadAt is [os.File.ReadAt].
func (x *File) ReadAt(p []byte, off int64) (n int, err error) {
	err = x.Do(func(f *os.File) error {
		n, err = f.ReadAt(p, off)
		return err
	})
	return n, err
}

// WriteAt is [os.File.WriteAt].
func (x *File) WriteAt(p []byte, off int64) (n int, err error) {
	err = x.Do(func(f *os.File) error {
		n, err = f.WriteAt(p, off)
		return err
	})
	return n, err
}

// Do calls use with the open file, which is not to be kept.
func (x *File) Do(use func(f *os.File) error) error {
	f, err := x.acquire()
	if err != nil {
		return err
	}
	err = use(f)
	if done := x.release(); err == nil {
		err = done
	}
	return err
}

// Close closes the file. What uses it meanwhile comes to its end.
func (x *File) Close() error {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	if x.closed {
		return &fs.PathError{Op: "close", Path: x.name, Err: fs.ErrClosed}
	}
	x.closed = true
	if x.users > 0 {
		return nil
	}
	return x.shut()
}

// acquire opens the file where it is not open.
func (x *File) acquire() (*os.File, error) {
	p := x.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.closed {
		return nil, &fs.PathError{Op: "use", Path: x.name, Err: fs.ErrClosed}
	}
	if x.f == nil {
		if err := p.shrink(p.most - 1); err != nil {
			return nil, err
		}
		f, err := OpenFile(x.name, x.flag, 0)
		if err != nil {
			return nil, err
		}
		// What was read of the old file says nothing about another one.
		if info, err := f.Stat(); err != nil || !os.SameFile(info, x.info) {
			f.Close()
			return nil, fmt.Errorf("%s is another file than when it was opened", x.name)
		}
		x.f = f
		p.open++
	}
	if x.place != nil {
		p.ready.Remove(x.place)
		x.place = nil
	}
	x.users++
	return x.f, nil
}

// release ends one use, and closes what is too much.
func (x *File) release() error {
	p := x.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	x.users--
	if x.users > 0 {
		return nil
	}
	if x.closed {
		return x.shut()
	}
	x.place = p.ready.PushFront(x)
	return p.shrink(p.most)
}

// shrink closes those files that have not been used for longest while more than so many are open.
func (p *Pool) shrink(most int) error {
	for p.open > most && p.ready.Len() > 0 {
		if err := p.ready.Back().Value.(*File).shut(); err != nil {
			return err
		}
	}
	return nil
}

// shut closes a file that nobody uses.
func (x *File) shut() error {
	if x.place != nil {
		x.pool.ready.Remove(x.place)
		x.place = nil
	}
	if x.f == nil {
		return nil
	}
	f := x.f
	x.f = nil
	x.pool.open--
	return f.Close()
}
