package hf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	given    map[string]Shard // files that do not lie there, by name; nil: all do
	shards   []string         // names of the files in the folder
	files    []shardFile      // they
	headers  []int64          // their headers' sizes
	index    bool             // whether there is one
	tensors  []*Tensor
	byName   map[string]*Tensor
	stored   map[string]*Tensor // as the files have them
	decodes  bool               // whether config.json has them decoded
	metadata map[string]string
	side     []string
	notes    []string

	newConfig []byte // in the place of config.json; see [Checkpoint.SetConfig]

	// Of a model that was made of other files; see [Make].
	made       map[string]func() ([]byte, error)
	alsoStores func(name string) bool
}

// Open opens the folder's model.safetensors, or where there is none the shards that its
// model.safetensors.index.json names, or without that all of a complete set of
// model-0000x-of-0000y.safetensors. It checks the headers of all: names,
// types, shapes, offsets and file sizes. It reads no tensor data, and keeps only some of many
// files open.
//
// Like transformers it takes every tensor of the files, whatever the index says of it. Of one that is in
// several of them it takes that in the shard that the index names, else the last; see
// [Checkpoint.Notes]. The index's total_size must be a number but need not be right: many published
// ones are not.
//
// Where weights are stored in one of the schemes, the checkpoint's tensors are those
// that this stores; see [Encoding]. The first scheme that knows the folder counts.
//
// A path that does not exist gives a [NotFoundError], and a folder without such files a
// [NoWeightsError] or an [UnreadableError].
func Open(dir string, schemes ...Scheme) (*Checkpoint, error) {
	return OpenShards(dir, nil, schemes...)
}

// OpenShards is [Open] of a folder whose files of tensors are given, and do not lie in it: of those there are none but these.
// They are closed with the checkpoint. nil is for a folder that has its own.
func OpenShards(dir string, given []Shard, schemes ...Scheme) (*Checkpoint, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NotFoundError{Model: dir}
	}
	if err != nil {
		return nil, fmt.Errorf("open model folder: %w", err)
	}
	if !info.IsDir() {
		return nil, &NotFoundError{Model: dir, File: true}
	}
	c := &Checkpoint{dir: dir, stored: make(map[string]*Tensor)}
	for _, s := range given {
		if c.given == nil {
			c.given = make(map[string]Shard)
		}
		c.given[s.Name()] = s
	}
	if c.side, err = sideFiles(dir); err != nil {
		return nil, err
	}
	if err := c.open(); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.decode(schemes); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Checkpoint) open() error {
	shards, index, err := c.find()
	if err != nil {
		return err
	}
	c.index = index != nil
	d := &double{index: index, dropped: make(map[*Tensor]bool)}
	buffers, pool := &sync.Pool{New: func() any { return new([chunk]byte) }}, input.NewPool()
	for _, shard := range shards {
		if err := c.addShard(shard, d, buffers, pool); err != nil {
			return err
		}
	}
	if len(d.dropped) > 0 {
		c.tensors = slices.DeleteFunc(c.tensors, func(t *Tensor) bool { return d.dropped[t] })
		c.note("%s%s", d.example, andMore(len(d.dropped)))
	}
	if index != nil {
		var without []string
		for name := range index.weightMap {
			if c.stored[name] == nil {
				without = append(without, name)
			}
		}
		if len(without) > 0 {
			c.note("%s names tensor %q, which no file has%s", indexName, slices.Min(without), andMore(len(without)))
		}
	}
	return nil
}

// find returns the names of the files that hold the tensors, and the index that has them.
func (c *Checkpoint) find() (shards []string, index *index, err error) {
	if index, err = readIndex(filepath.Join(c.dir, indexName)); err != nil {
		return nil, nil, err
	}
	single, err := c.there(singleName)
	switch {
	case err != nil:
		return nil, nil, err
	case single && (index == nil || !index.shards[singleName]):
		if index != nil {
			c.note("holds %s as well as an index of other shards: the former is read, as by transformers", singleName)
		}
		return []string{singleName}, nil, nil
	case index != nil:
		shards = slices.Sorted(maps.Keys(index.shards))
	default:
		found, err := c.weightFiles()
		if err != nil {
			return nil, nil, err
		}
		if shards = numbered(found); shards == nil {
			return nil, nil, noWeights(c.dir, found)
		}
		c.note("has no %s: all of the %d numbered shards are read", indexName, len(shards))
	}
	return shards, index, c.complete(shards)
}

// complete reports shards that are not there, all at once: a download that did not come to its end lacks many.
func (c *Checkpoint) complete(shards []string) error {
	var missing []string
	for _, shard := range shards {
		there, err := c.there(shard)
		if err != nil {
			return fmt.Errorf("open shard: %w", err)
		}
		if !there {
			missing = append(missing, shard)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %d of %d shards are missing, such as %s: is the download complete?", c.dir, len(missing), len(shards), missing[0])
	}
	return nil
}

// double is what to do with a tensor that is in several files.
type double struct {
	index   *index // nil: there is none
	dropped map[*Tensor]bool
	example string
}

// take returns which of two tensors of a name counts, of which the second is in a later file.
func (d *double) take(a, b *Tensor) *Tensor {
	taken, dropped := b, a
	if d.index != nil && d.index.weightMap[a.Name] == a.Shard {
		taken, dropped = a, b
	}
	d.dropped[dropped] = true
	if d.example == "" {
		why := "the last counts"
		if d.index != nil && d.index.weightMap[a.Name] == taken.Shard {
			why = indexName + " names that"
		}
		d.example = fmt.Sprintf("tensor %q is in %s and in %s: taken from %s, as %s", a.Name, a.Shard, b.Shard, taken.Shard, why)
	}
	return taken
}

// andMore says how many more there are than one.
func andMore(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" (and %d more such)", n-1)
}

// addShard opens one file and adds its tensors.
func (c *Checkpoint) addShard(shard string, d *double, buffers *sync.Pool, pool *input.Pool) error {
	path := filepath.Join(c.dir, shard)
	f, err := c.openFile(shard, pool)
	if err != nil {
		return fmt.Errorf("open shard: %w", err)
	}
	c.files, c.shards = append(c.files, f), append(c.shards, shard)
	h, err := readHeader(f, f.Size())
	if err != nil {
		if other := standsFor(path, f); other != nil {
			return other
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	c.headers = append(c.headers, h.size)
	for i := range h.tensors {
		t := &h.tensors[i]
		t.Shard, t.file, t.buffers = shard, f, buffers
		t.offset += h.size
		c.tensors = append(c.tensors, t)
		if old := c.stored[t.Name]; old != nil {
			t = d.take(old, t)
		}
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

// standsFor returns the error that says what a file is that is no safetensors, nil where nothing is known
// of it.
func standsFor(path string, r io.ReaderAt) error {
	head := make([]byte, input.HeadSize)
	n, _ := r.ReadAt(head, 0)
	head = head[:n]
	if err := input.Placeholder(path, head, true); err != nil {
		return err
	}
	switch {
	case n == 0:
		return fmt.Errorf("%s is empty: download it again", path)
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return fmt.Errorf("%s is a zip file, as torch.save writes one, and no safetensors", path)
	case bytes.HasPrefix(head, []byte("GGUF")):
		return fmt.Errorf("%s is a GGUF file and no safetensors: name it *.gguf", path)
	}
	return nil
}

func (c *Checkpoint) note(format string, args ...any) {
	c.notes = append(c.notes, c.dir+": "+fmt.Sprintf(format, args...))
}

// Notes returns what is odd about the folder but has one reading, a line each: of which of several files
// or tensors it was read. It is for users to see.
func (c *Checkpoint) Notes() []string { return slices.Clone(c.notes) }

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

// Shards returns the names of the files that hold the tensors, sorted: base names, unless an index names
// some in folders within the folder.
func (c *Checkpoint) Shards() []string { return slices.Clone(c.shards) }

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
	if i := slices.Index(c.shards, shard); i >= 0 {
		b := make([]byte, c.headers[i])
		if err := readFull(c.files[i], b, 0); err != nil {
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

// exists reports whether there is a file at path.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
