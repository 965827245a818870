package hf

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lutq/lutq/formats/input"
)

// Shard is a file of tensors that does not lie in a model's folder, such as one on a server. Its methods may be called from several
// goroutines.
type Shard interface {
	io.ReaderAt
	io.Closer
	Name() string // by which an index knows it
	Size() int64  // in bytes
	// Version tells it from others of its name.
	Version() string
}

// shardFile is an open file of a checkpoint.
type shardFile interface {
	io.ReaderAt
	io.Closer
	Size() int64
	Version() (string, error)
}

// diskFile is one of the folder. Its size and time tell it from others.
type diskFile struct{ *input.File }

func (f diskFile) Size() int64 { return f.Info().Size() }

func (f diskFile) Version() (version string, err error) {
	err = f.Do(func(f *os.File) error {
		info, err := f.Stat()
		if err == nil {
			version = fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	return version, err
}

// givenFile is one that was given.
type givenFile struct{ Shard }

func (f givenFile) Version() (string, error) { return f.Shard.Version(), nil }

// openFile opens a file of tensors.
func (c *Checkpoint) openFile(name string, pool *input.Pool) (shardFile, error) {
	if s := c.given[name]; s != nil {
		return givenFile{s}, nil
	}
	opened, err := input.Open(filepath.Join(c.dir, name))
	if err != nil {
		return nil, err
	}
	f, err := pool.Add(opened, os.O_RDONLY)
	return diskFile{f}, err
}

// there reports whether there is a file of tensors of a name.
func (c *Checkpoint) there(name string) (bool, error) {
	if c.given != nil {
		return c.given[name] != nil, nil
	}
	return exists(filepath.Join(c.dir, name))
}

// weightFiles lists the files of weights that there are.
func (c *Checkpoint) weightFiles() ([]weightFile, error) {
	if c.given == nil {
		return weightFiles(c.dir)
	}
	var found []weightFile
	for name, s := range c.given {
		found = append(found, weightFile{name, s.Size()})
	}
	return found, nil
}
