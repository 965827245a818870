package hf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/lutq/lutq/formats/input"
)

// defaultShardSize is the limit that transformers splits at.
const defaultShardSize = 5_000_000_000

// WriterOptions are the choices of [NewWriter].
type WriterOptions struct {
	// MaxShardSize bounds the tensor data of a shard in bytes; 0 is 5 GB.
	MaxShardSize int64

	// Metadata goes into the header of every shard; nil is {"format": "pt"},
	// which transformers insists on.
	Metadata map[string]string

	// Resume keeps files that an earlier, interrupted Writer with the same
	// entries and options left, and replaces others of the same names. Without
	// it, files that are there already are an error.
	Resume bool
}

// Writer writes the shards of a model folder and their index. [Writer.WriteAt],
// [Writer.ReadAt] and [Writer.CopyTensor] may be called from several
// goroutines, for different tensors or different parts of one.
//
// The files have their final names and sizes from the start, but the folder
// can be opened only after [Writer.Commit] where there are several shards. A
// caller that wants a folder to appear whole or not at all writes to a
// temporary one and renames it.
type Writer struct {
	dir    string
	files  []*outFile
	places map[string]*place
	order  []*place // by file and offset
	total  int64    // bytes of tensor data
}

// outFile is a shard that is being written.
type outFile struct {
	*input.File
	name string // base name
	kept bool   // left by an earlier Writer
}

// newOutFile takes over an open shard.
func newOutFile(pool *input.Pool, f *os.File, name string, kept bool) (*outFile, error) {
	x, err := pool.Add(f, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	return &outFile{File: x, name: name, kept: kept}, nil
}

// place is where a tensor's data goes.
type place struct {
	Entry
	file         *outFile
	offset, size int64 // in the file
	written      atomic.Int64
}

// NewWriter lays the entries out in order, creates the shards in dir, which
// must exist, in their full size, and writes their headers.
func NewWriter(dir string, entries []Entry, o WriterOptions) (*Writer, error) {
	if o.MaxShardSize < 0 {
		return nil, fmt.Errorf("shard size of %d bytes is negative", o.MaxShardSize)
	}
	o = o.complete()
	shards, err := layOut(entries, o.MaxShardSize, o.Metadata)
	if err != nil {
		return nil, fmt.Errorf("lay out checkpoint: %w", err)
	}
	if err := checkTarget(dir, shards, o.Resume); err != nil {
		return nil, err
	}
	pool := input.NewPool()
	w := &Writer{dir: dir, places: make(map[string]*place, len(entries))}
	for i := range shards {
		s := &shards[i]
		f, err := createShard(pool, filepath.Join(dir, s.name), s, o.Resume)
		if err != nil {
			w.discard()
			return nil, fmt.Errorf("create shard: %w", err)
		}
		w.files = append(w.files, f)
		for _, e := range s.entries {
			p := &place{
				Entry: e.Entry, file: f,
				offset: int64(len(s.header)) + e.offset, size: e.size,
			}
			w.places[e.Name] = p
			w.order = append(w.order, p)
			w.total += e.size
		}
	}
	return w, nil
}

// checkTarget refuses a folder with weights that are not of this layout: a
// reader would take them for a part of it, or the other way round.
func checkTarget(dir string, shards []shardLayout, resume bool) error {
	planned := make(map[string]bool, len(shards))
	for i := range shards {
		planned[shards[i].name] = true
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("create checkpoint: %w", err)
	}
	for _, e := range found {
		name := e.Name()
		ours := planned[name] || name == indexName
		switch {
		case ours && !resume:
			return fmt.Errorf("create checkpoint: %s: %w", filepath.Join(dir, name), fs.ErrExist)
		case !ours && strings.HasPrefix(name, "model") && strings.HasSuffix(name, suffix):
			return fmt.Errorf("create checkpoint: %s is in the way: it is no part of the new one", filepath.Join(dir, name))
		}
	}
	// An index belongs to complete shards only.
	if err := os.Remove(filepath.Join(dir, indexName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("create checkpoint: %w", err)
	}
	return nil
}

// createShard creates a file of its full size with its header, or with resume
// opens one that is just that already.
func createShard(pool *input.Pool, path string, s *shardLayout, resume bool) (*outFile, error) {
	if resume {
		f, err := reopenShard(pool, path, s)
		if f != nil || err != nil {
			return f, err
		}
		// Not truncated but removed: it may be a link to another model's file.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	// The header comes last, so that a file with a header has its full size.
	err = f.Truncate(s.size)
	if err == nil {
		_, err = f.WriteAt(s.header, 0)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return newOutFile(pool, f, s.name, false)
}

// reopenShard returns nil where the file is missing or another one.
func reopenShard(pool *input.Pool, path string, s *shardLayout) (*outFile, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() != s.size {
		return nil, nil
	}
	f, err := input.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	header := make([]byte, len(s.header))
	if err := readFull(f, header, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !bytes.Equal(header, s.header) {
		return nil, f.Close()
	}
	return newOutFile(pool, f, s.name, true)
}

// discard removes what an unfinished NewWriter created.
func (w *Writer) discard() {
	w.Abort()
	for _, f := range w.files {
		if !f.kept {
			os.Remove(f.Name())
		}
	}
}

// Resumed reports whether the shard of the named tensor was left by an earlier
// Writer, so that some of its data may be there already.
func (w *Writer) Resumed(name string) bool {
	p := w.places[name]
	return p != nil && p.file.kept
}

// WriteAt writes p to the named tensor's data from byte off on. A range
// outside the tensor is an error and writes nothing.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	t, err := w.within(name, len(p), off)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if _, err := t.file.WriteAt(p, t.offset+off); err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	t.written.Add(int64(len(p)))
	return nil
}

// ReadAt reads back len(p) bytes of the named tensor's data from byte off on.
// What has not been written yet is zero.
func (w *Writer) ReadAt(name string, p []byte, off int64) error {
	t, err := w.within(name, len(p), off)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if err := readFull(t.file, p, t.offset+off); err != nil {
		return fmt.Errorf("tensor %q: read back from %s: %w", name, t.file.name, err)
	}
	return nil
}

// within looks a tensor up and checks the range of n bytes from off.
func (w *Writer) within(name string, n int, off int64) (*place, error) {
	t, ok := w.places[name]
	if !ok {
		return nil, fmt.Errorf("tensor %q is not in the layout", name)
	}
	if off < 0 || off > t.size-int64(n) {
		return nil, fmt.Errorf("tensor %q: %d bytes at %d are outside its %d", name, n, off, t.size)
	}
	return t, nil
}

// CopyTensor writes the tensor's bytes under the same name. The entry must
// have its type and number of bytes.
func (w *Writer) CopyTensor(ctx context.Context, t *Tensor) error {
	to, err := w.within(t.Name, 0, 0)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if to.DType != t.DType || to.size != t.size {
		return t.wrap(fmt.Errorf("cannot copy %s %v to %s %v", t.DType, t.Shape, to.DType, to.Shape))
	}
	buf := t.buffers.Get().(*[chunk]byte)
	defer t.buffers.Put(buf)
	for off := int64(0); off < t.size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(chunk, t.size-off)]
		if _, err := t.ReadAt(p, off); err != nil {
			return err
		}
		if err := w.WriteAt(t.Name, p, off); err != nil {
			return err
		}
		off += int64(len(p))
	}
	return nil
}

// Commit makes the shards durable, closes them and, where there are several,
// writes the index. A tensor that has not been written in full is an error;
// of files that an earlier Writer left, Commit cannot know.
func (w *Writer) Commit() error {
	for _, t := range w.order {
		if n := t.written.Load(); !t.file.kept && n < t.size {
			w.Abort()
			return fmt.Errorf("tensor %q: %d of %d bytes were written to %s", t.Name, n, t.size, t.file.name)
		}
	}
	for _, f := range w.files {
		err := f.Do((*os.File).Sync)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			w.Abort()
			return fmt.Errorf("commit: %w", err)
		}
	}
	if len(w.files) > 1 {
		if err := w.writeIndex(); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
	}
	if err := syncDir(w.dir); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// indexText returns the index of tensors in some files.
func indexText(total int64, files map[string]string) ([]byte, error) {
	type metadata struct {
		TotalSize int64 `json:"total_size"`
	}
	x := struct {
		Metadata  metadata          `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{metadata{total}, files}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(x)
	return text.Bytes(), err
}

// WrittenBytes returns what all files of a checkpoint of some tensors take, the index included.
func WrittenBytes(entries []Entry, o WriterOptions) (int64, error) {
	o = o.complete()
	shards, err := layOut(entries, o.MaxShardSize, o.Metadata)
	if err != nil {
		return 0, err
	}
	var sum, total int64
	files := make(map[string]string)
	for i := range shards {
		sum += shards[i].size
		for _, e := range shards[i].entries {
			total += e.size
			files[e.Name] = shards[i].name
		}
	}
	if len(shards) == 1 {
		return sum, nil
	}
	text, err := indexText(total, files)
	return sum + int64(len(text)), err
}

// complete fills in the defaults.
func (o WriterOptions) complete() WriterOptions {
	if o.MaxShardSize == 0 {
		o.MaxShardSize = defaultShardSize
	}
	if o.Metadata == nil {
		o.Metadata = map[string]string{"format": "pt"}
	}
	return o
}

// writeIndex writes the index under another name first: it appears whole.
func (w *Writer) writeIndex() error {
	files := make(map[string]string, len(w.places))
	for name, t := range w.places {
		files[name] = t.file.name
	}
	text, err := indexText(w.total, files)
	if err != nil {
		return err
	}
	path := filepath.Join(w.dir, "."+indexName+".tmp")
	err = writeSynced(path, text)
	if err == nil {
		err = os.Rename(path, filepath.Join(w.dir, indexName))
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

// writeSynced is [os.WriteFile] for a file that must be durable.
func writeSynced(path string, data []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// Abort closes the files and leaves them as they are, for a Writer that
// resumes. After [Writer.Commit] it does nothing.
func (w *Writer) Abort() {
	for _, f := range w.files {
		f.Close()
	}
}

// Shards returns the base names of the files, sorted.
func (w *Writer) Shards() []string {
	names := make([]string, len(w.files))
	for i, f := range w.files {
		names[i] = f.name
	}
	return names
}
