package hf

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/lutq/lutq/formats/input"
)

// Made is a model in files of another kind, to make a [Checkpoint] of.
type Made struct {
	Path    string        // of the model, which opens it again
	Files   []*input.File // that the tensors lie in, whose base names are the shards
	Tensors []MadeTensor

	// Side makes the files that a model folder has beside its weights.
	Side map[string]func() ([]byte, error)

	Notes []string // what is odd about it, as [Checkpoint.Notes] returns it

	// Stores reports whether a folder of these tensors would store one of a name that is none
	// of theirs, as [Checkpoint.Stores] says. It may be nil.
	Stores func(name string) bool
}

// MadeTensor is a tensor of a [Made].
type MadeTensor struct {
	Name  string
	DType DType // that holds its values: F32, F16 or BF16
	Shape []int
	Shard string // base name of the file
	Bytes int64  // that it takes there
	Codec Codec
	// Encoding says how the values are stored, nil where that is as they are. It has no parts, and its codec may
	// be another that reads the same.
	Encoding *Encoding
}

// Make makes a checkpoint. Its tensors are read by their codecs, and its files are the caller's no
// longer.
func Make(m Made) (*Checkpoint, error) {
	c := &Checkpoint{
		dir: m.Path, made: make(map[string]func() ([]byte, error)), alsoStores: m.Stores, notes: m.Notes,
		stored: make(map[string]*Tensor, len(m.Tensors)), side: slices.Sorted(maps.Keys(m.Side)),
	}
	for _, f := range m.Files {
		c.shards, c.files = append(c.shards, filepath.Base(f.Name())), append(c.files, diskFile{f})
	}
	for name, make := range m.Side {
		c.made[name] = sync.OnceValues(make)
	}
	for _, x := range m.Tensors {
		t := &Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Shard: x.Shard, encoding: x.Encoding, codec: x.Codec, storedSize: x.Bytes}
		var err error
		if t.elements, t.size, err = sizeOf(t.DType, t.Shape); err != nil {
			return nil, t.wrap(err)
		}
		if c.stored[t.Name] != nil {
			return nil, t.wrap(fmt.Errorf("appears twice"))
		}
		c.tensors = append(c.tensors, t)
		c.stored[t.Name] = t
	}
	c.byName = c.stored
	return c, nil
}

// With returns the checkpoint with other values for some of its tensors, which have the names of those they replace and
// take what these take in the files. Files stay the checkpoint's own: it is closed last, and alone.
func (c *Checkpoint) With(changed []MadeTensor) (*Checkpoint, error) {
	n := *c
	n.tensors, n.byName = slices.Clone(c.tensors), maps.Clone(c.byName)
	at := make(map[string]int, len(n.tensors))
	for i, t := range n.tensors {
		at[t.Name] = i
	}
	for _, x := range changed {
		i, ok := at[x.Name]
		if !ok {
			return nil, fmt.Errorf("%s: no tensor %q", c.dir, x.Name)
		}
		old := n.tensors[i]
		t := &Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Shard: old.Shard, codec: x.Codec, storedSize: old.StoredBytes()}
		var err error
		if t.elements, t.size, err = sizeOf(t.DType, t.Shape); err != nil {
			return nil, t.wrap(err)
		}
		n.tensors[i], n.byName[x.Name] = t, t
	}
	return &n, nil
}

// SetConfig puts a config.json in the place of the model's own for all who read it from the checkpoint, and notes why.
func (c *Checkpoint) SetConfig(text []byte, why string) {
	c.newConfig = text
	c.note("%s", why)
}

// File reads a file of the model beside its weights, such as config.json.
func (c *Checkpoint) File(name string, kind input.Kind) ([]byte, error) {
	if name == configName && c.newConfig != nil {
		return c.newConfig, nil
	}
	if c.made == nil {
		return input.ReadFile(filepath.Join(c.dir, name), kind)
	}
	make, ok := c.made[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", c.dir, &fs.PathError{Op: "make", Path: name, Err: fs.ErrNotExist})
	}
	data, err := make()
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.dir, name, err)
	}
	return data, nil
}

// OpenFile opens one of [Checkpoint.SideFiles], whatever it is.
func (c *Checkpoint) OpenFile(name string) (io.ReadCloser, error) {
	if c.made == nil {
		return input.Open(filepath.Join(c.dir, name))
	}
	data, err := c.File(name, "")
	return io.NopCloser(bytes.NewReader(data)), err
}

// Version tells a file of [Checkpoint.Shards] from others of its name, as far as that goes without reading it.
func (c *Checkpoint) Version(shard string) (string, error) {
	if i := slices.Index(c.shards, shard); i >= 0 {
		return c.files[i].Version()
	}
	return "", fmt.Errorf("%s: no shard %s", c.dir, shard)
}

// checkMade makes every file of a made checkpoint, so that what cannot be made is known in time.
func (c *Checkpoint) checkMade() error {
	if c.made == nil {
		return nil
	}
	for _, name := range c.side {
		if _, err := c.File(name, ""); err != nil {
			return err
		}
	}
	return nil
}
