package hf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/lutq/lutq/formats/input"
)

// Names of the files that hold the weights of a model folder.
const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"
	suffix     = ".safetensors"
	configName = "config.json"
)

// Checkpoint is an open model folder. Its methods may be called from several
// goroutines.
type Checkpoint struct {
	dir      string
	files    []*os.File // the shards
	headers  []int64    // their headers' sizes
	index    bool       // whether there is one
	tensors  []*Tensor
	byName   map[string]*Tensor
	stored   map[string]*Tensor // as the files have them
	decodes  bool               // whether config.json has them decoded
	metadata map[string]string
	side     []string

	// Of a model that was made of other files; see [Make].
	made       map[string]func() ([]byte, error)
	alsoStores func(name string) bool
}

// Open opens the folder's model.safetensors, or the shards that its
// model.safetensors.index.json names, and checks the headers of all: names,
// types, shapes, offsets and file sizes, and that index and shards agree on
// which tensor lies where. It reads no tensor data. The index's total_size
// must be a number but need not be right: many published ones are not.
//
// Where weights are stored in one of the schemes, the checkpoint's tensors are those
// that this stores; see [Encoding]. The first scheme that knows the folder counts.
func Open(dir string, schemes ...Scheme) (*Checkpoint, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open model folder: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open model folder: %s is not a folder", dir)
	}
	c := &Checkpoint{dir: dir, stored: make(map[string]*Tensor)}
	if c.side, err = sideFiles(dir); err != nil {
		return nil, err
	}
	if err := c.open(schemes); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Checkpoint) open(schemes []Scheme) error {
	index, err := readIndex(filepath.Join(c.dir, indexName))
	if err != nil {
		return err
	}
	single, err := exists(filepath.Join(c.dir, singleName))
	if err != nil {
		return err
	}
	c.index = index != nil
	var shards []string
	switch {
	case index != nil:
		shards = slices.Sorted(maps.Keys(index.shards))
		if single && !index.shards[singleName] {
			return fmt.Errorf("%s: holds %s as well as an index of other shards: remove one of them", c.dir, singleName)
		}
	case single:
		shards = []string{singleName}
	default:
		other, err := otherWeights(c.dir)
		if err != nil {
			return err
		}
		if other != "" {
			return &UnreadableError{Dir: c.dir, File: other}
		}
		return fmt.Errorf("%s: no %s or %s", c.dir, singleName, indexName)
	}
	buffers := &sync.Pool{New: func() any { return new([chunk]byte) }}
	for _, shard := range shards {
		if err := c.addShard(shard, index, buffers); err != nil {
			return err
		}
	}
	if index != nil {
		for _, name := range slices.Sorted(maps.Keys(index.weightMap)) {
			if c.stored[name] == nil {
				return fmt.Errorf("%s: tensor %q is not in %s", filepath.Join(c.dir, indexName), name, index.weightMap[name])
			}
		}
	}
	return c.decode(schemes)
}

// addShard opens one file and adds its tensors. index is nil for a folder
// without one.
func (c *Checkpoint) addShard(shard string, index *index, buffers *sync.Pool) error {
	path := filepath.Join(c.dir, shard)
	f, err := input.Open(path)
	if err != nil {
		return fmt.Errorf("open shard: %w", err)
	}
	c.files = append(c.files, f)
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open shard: %w", err)
	}
	h, err := readHeader(f, info.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.headers = append(c.headers, h.size)
	for i := range h.tensors {
		t := &h.tensors[i]
		if index != nil && index.weightMap[t.Name] != shard {
			return fmt.Errorf("%s: tensor %q is not listed there by %s", path, t.Name, indexName)
		}
		t.Shard, t.file, t.buffers = shard, f, buffers
		t.offset += h.size
		c.tensors = append(c.tensors, t)
		c.stored[t.Name] = t
	}
	for k, v := range h.metadata {
		if c.metadata == nil {
			c.metadata = make(map[string]string)
		}
		if _, ok := c.metadata[k]; !ok {
			c.metadata[k] = v
		}
	}
	return nil
}

// Close closes the files. Tensors cannot be read any more.
func (c *Checkpoint) Close() error {
	var first error
	for _, f := range c.files {
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	c.files = nil
	return first
}

// Dir returns the folder as it was given to [Open], or the path of a model that was made.
func (c *Checkpoint) Dir() string { return c.dir }

// Tensors returns all tensors, by shard name and then by offset.
func (c *Checkpoint) Tensors() []*Tensor { return slices.Clone(c.tensors) }

// Tensor looks a tensor up by name.
func (c *Checkpoint) Tensor(name string) (*Tensor, bool) {
	t, ok := c.byName[name]
	return t, ok
}

// Stores reports whether the files have a tensor of that name, be it one of those
// that an encoded tensor is stored in.
func (c *Checkpoint) Stores(name string) bool {
	return c.stored[name] != nil || c.alsoStores != nil && c.alsoStores(name)
}

// Has reports whether there is a tensor of that name, or the files have one.
func (c *Checkpoint) Has(name string) bool { return c.byName[name] != nil || c.Stores(name) }

// Metadata returns the strings that the shards' headers carry beside the
// tensors. Where shards disagree the first one wins.
func (c *Checkpoint) Metadata() map[string]string { return maps.Clone(c.metadata) }

// Shards returns the base names of the files that hold the tensors, sorted.
func (c *Checkpoint) Shards() []string {
	names := make([]string, len(c.files))
	for i, f := range c.files {
		names[i] = filepath.Base(f.Name())
	}
	return names
}

// Index returns the base name of the shards' index, "" where there is none.
func (c *Checkpoint) Index() string {
	if c.index {
		return indexName
	}
	return ""
}

// Header reads what stands before the data in a shard of [Checkpoint.Shards]:
// the JSON behind its length.
func (c *Checkpoint) Header(shard string) ([]byte, error) {
	for i, f := range c.files {
		if filepath.Base(f.Name()) != shard {
			continue
		}
		b := make([]byte, c.headers[i])
		if err := readFull(f, b, 0); err != nil {
			return nil, fmt.Errorf("%s: read header: %w", shard, err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("%s: no shard %s", c.dir, shard)
}

// SideFiles returns the base names of the folder's other regular files,
// sorted: config, tokenizer, licence and so on. Weights in any format, their
// indexes and hidden files are left out, and of a folder whose weights are decoded
// what says how they were quantized.
func (c *Checkpoint) SideFiles() []string { return slices.Clone(c.side) }

// sideFiles lists what [Checkpoint.SideFiles] returns.
func sideFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open model folder: %w", err)
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || isWeights(name) {
			continue
		}
		// Follow links: downloaded folders often consist of them.
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		names = append(names, name)
	}
	return names, nil // os.ReadDir sorts
}

// isWeights reports whether a file holds weights, or an index of them, in one
// of the formats that model folders are published with.
func isWeights(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".index.json")
	switch filepath.Ext(name) {
	case suffix, ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack",
		".onnx", ".onnx_data", ".tflite", ".ot", ".npz":
		return true
	}
	return false
}

// otherWeights returns the largest file of weights that are no safetensors, ""
// where there is none: optimizer states and the like are smaller, or beside them.
func otherWeights(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("open model folder: %w", err)
	}
	largest, most := "", int64(-1)
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !isWeights(name) || strings.HasSuffix(name, suffix) || strings.HasSuffix(name, ".index.json") {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Size() > most {
			largest, most = name, info.Size()
		}
	}
	return largest, nil
}

// exists reports whether there is a file at path.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
