package hub

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
)

// Remote is a model whose weights stay on the hub, and come one file at a time. What it has beside them lies in the cache.
type Remote struct {
	Dir string // the folder in the cache, of the model's commit

	shards []*shard // in the order of their names
	d      *download
	commit string
	into   string // the folder that files come into
}

// OpenRemote finds a model by its name, downloads what it has beside its weights as [Resolve] does, and reads the headers of its
// weights. Without the server it fails, as it does for a path.
func OpenRemote(ctx context.Context, name string, o Options) (*Remote, error) {
	n, ok := ParseName(name)
	if !ok {
		return nil, &Error{Model: name, Reason: "is no name of a model on a hub, from which its files could come", hint: "org/name, or hf://org/name"}
	}
	if o.Offline {
		return nil, &Error{Model: n.String(), Reason: "its weights are on the hub, and nothing is downloaded offline", hint: "leave out --offline and HF_HUB_OFFLINE, or name a folder"}
	}
	progress := o.Progress
	o.BesideWeights, o.Progress = true, nil
	dir, err := Resolve(ctx, name, o)
	if err != nil {
		return nil, err
	}
	_, commit := At(dir)
	if commit == "" {
		return nil, &Error{Model: name, Reason: "is a folder here, whose weights need not come from the hub", hint: "the model of that name on the hub is hf://" + name}
	}
	o.Progress = progress
	o = o.withDefaults()
	d, err := newDownload(n, placeOf(o.Cache, n), o)
	if err != nil {
		return nil, err
	}
	d.apart = true
	r := &Remote{Dir: dir, d: d, commit: commit}
	return r, r.find(ctx)
}

// find lists the files of weights and reads their headers.
func (r *Remote) find(ctx context.Context) error {
	l, err := r.d.list(ctx, r.commit)
	if err != nil {
		return err
	}
	files, err := r.d.weights(ctx, l)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.name == indexName { // which lies in the cache now
			continue
		}
		if f, err = r.d.ask(ctx, r.commit, f); err != nil {
			return err
		}
		r.shards = append(r.shards, &shard{Remote: r, file: f, ctx: ctx})
		r.d.total += f.size
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.d.o.Parallel)
	for _, s := range r.shards {
		group.Go(func() (err error) {
			s.head, err = s.header(ctx)
			return err
		})
	}
	return group.Wait()
}

// Shards returns the files of weights, whose headers are known. What else is read of one that is not here comes by a request of its
// own, and is held against no hash.
func (r *Remote) Shards() []hf.Shard {
	all := make([]hf.Shard, len(r.shards))
	for i, s := range r.shards {
		all[i] = s
	}
	return all
}

// shard finds a file of weights.
func (r *Remote) shard(name string) (*shard, error) {
	for _, s := range r.shards {
		if s.name == name {
			return s, nil
		}
	}
	return nil, &Error{Model: r.d.name.String(), Reason: "has no weights in " + name, hint: "what has changed on the hub meanwhile is named by its commit"}
}

// Size returns the bytes of a file of weights.
func (r *Remote) Size(name string) int64 {
	s, err := r.shard(name)
	if err != nil {
		return 0
	}
	return s.size
}

// Begin names the folder that files come into, and deletes what an interrupted run has left there but for what has come of some files.
func (r *Remote) Begin(dir string, need []string) error {
	r.into = dir
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	stays := make(map[string]bool)
	for _, s := range r.shards {
		if slices.Contains(need, s.name) {
			stays[s.sum], stays[s.sum+incomplete] = true, true
		}
	}
	for _, e := range entries {
		if !stays[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Fetch brings a file of weights into the folder of [Remote.Begin], unless the cache has it. It is whole and has its hash, and is read
// from there until [Remote.Drop]. What came of it before it was interrupted is gone on with.
func (r *Remote) Fetch(ctx context.Context, name string) error {
	s, err := r.shard(name)
	if err != nil {
		return err
	}
	return s.fetch(ctx)
}

// Drop deletes what [Remote.Fetch] brought of a file, but for some tensors, which are read from what is left. With none all of it goes.
func (r *Remote) Drop(name string, keep []*hf.Tensor) error {
	s, err := r.shard(name)
	if err != nil {
		return err
	}
	return s.drop(keep)
}

// shard is a file of a [Remote].
type shard struct {
	*Remote
	file
	ctx  context.Context // of requests that a read makes
	head []byte          // its length and JSON

	mu    sync.RWMutex
	local *os.File // nil: it is not here
	path  string   // of what is deleted in the end, "" for what the cache has
	kept  []keptSpan
	whole bool // else kept alone

	asking sync.Mutex
	pieces []piece // that came by requests of their own, the last in front
}

// piece is a part of a file in memory.
type piece struct {
	from int64
	data []byte
}

// The most pieces of a file that are kept in memory, for two tensors that are read beside each other, and the most bytes of one.
const (
	mostPieces = 2
	mostPiece  = 16 << 20
)

// keptSpan is a part of a file that lies in another, at a byte.
type keptSpan struct{ from, size, at int64 }

// Name implements [hf.Shard].
func (s *shard) Name() string { return s.name }

// Size implements [hf.Shard].
func (s *shard) Size() int64 { return s.size }

// Version implements [hf.Shard]: it is the file's hash.
func (s *shard) Version() string { return s.sum }

// Close implements [hf.Shard]. What is on the disk stays there.
func (s *shard) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}

func (s *shard) close() error {
	if s.local == nil {
		return nil
	}
	err := s.local.Close()
	s.local, s.kept, s.whole = nil, nil, false
	return err
}

// ReadAt implements [hf.Shard].
func (s *shard) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	var end error
	if left := max(s.size-off, 0); int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	n, err := s.read(p, off)
	if err == nil {
		err = end
	}
	return n, err
}

func (s *shard) read(p []byte, off int64) (int, error) {
	if off+int64(len(p)) <= int64(len(s.head)) {
		return copy(p, s.head[off:]), nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.whole {
		return s.local.ReadAt(p, off)
	}
	for _, k := range s.kept {
		if k.from <= off && off+int64(len(p)) <= k.from+k.size {
			return s.local.ReadAt(p, k.at+off-k.from)
		}
	}
	return s.ask(p, off)
}

// ask reads a part of a file that is not here. Who reads on is given more at a time, up to [mostPiece].
func (s *shard) ask(p []byte, off int64) (int, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	size, old := int64(len(p)), len(s.pieces)
	for i, x := range s.pieces {
		switch end := x.from + int64(len(x.data)); {
		case x.from <= off && off+int64(len(p)) <= end:
			return copy(p, x.data[off-x.from:]), nil
		case x.from <= off && off <= end: // it goes on
			size, old = max(size, min(2*int64(len(x.data)), mostPiece)), i
		}
	}
	data := make([]byte, min(size, s.size-off))
	if n, err := s.request(s.ctx, data, off); err != nil {
		return copy(p, data[:n]), err
	}
	s.pieces = slices.Delete(s.pieces, old, min(old+1, len(s.pieces)))
	s.pieces = slices.Insert(s.pieces, 0, piece{off, data})
	s.pieces = s.pieces[:min(len(s.pieces), mostPieces)]
	return copy(p, data), nil
}

// request asks the server for a part of the file.
func (s *shard) request(ctx context.Context, p []byte, off int64) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	err = s.d.again(ctx, s.name, func() (int64, error) {
		before := n
		a, err := s.d.send(ctx, http.MethodGet, s.d.address(s.commit, s.name), s.name, span{off + int64(n), off + int64(len(p))})
		if err != nil {
			return 0, err
		}
		defer a.Close()
		switch a.StatusCode {
		case http.StatusPartialContent:
			var begin int64
			if k, _ := fmt.Sscanf(a.Header.Get("Content-Range"), "bytes %d-", &begin); k != 1 || begin != off+int64(n) {
				return 0, &temporary{error: errors.New("the server sends another part than was asked for")}
			}
		case http.StatusOK: // all of it, whatever was asked for
			if _, err := io.CopyN(io.Discard, a, off+int64(n)); err != nil {
				return 0, &temporary{error: err}
			}
		default:
			return 0, fmt.Errorf("the server answers %s", statusName(a.StatusCode))
		}
		got, err := io.ReadFull(a, p[n:])
		n += got
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = &temporary{error: fmt.Errorf("it ended after %d of %d bytes", n, len(p))}
		}
		return int64(n - before), err
	})
	return n, err
}

// firstBytes is how much of a file is asked for at first to read its header, which is less in most.
const firstBytes = 64 << 10

// header reads the length and the JSON that a file begins with. Whether it makes sense is for who reads it to say.
func (s *shard) header(ctx context.Context) ([]byte, error) {
	head := make([]byte, min(firstBytes, s.size))
	if _, err := s.request(ctx, head, 0); err != nil || len(head) < 8 {
		return head, err
	}
	n := binary.LittleEndian.Uint64(head)
	if n > uint64(min(input.Header.Limit(), s.size-8)) {
		return head[:8], nil
	}
	got := int64(len(head))
	if size := int64(8 + n); size <= got {
		return head[:size], nil
	}
	head = append(head, make([]byte, int64(8+n)-got)...)
	_, err := s.request(ctx, head[got:], got)
	return head, err
}

// fetch brings the file.
func (s *shard) fetch(ctx context.Context) error {
	path, ours := s.d.place.blob(s.sum), false
	if !s.d.blobThere(s.file) {
		if err := os.MkdirAll(s.into, 0o777); err != nil {
			return s.d.failed(s.name, err)
		}
		path, ours = filepath.Join(s.into, s.sum), true
		if info, err := os.Stat(path); err != nil || info.Size() != s.size {
			if err := s.d.blob(ctx, s.commit, s.file, path); err != nil {
				return err
			}
		}
	}
	s.d.has(s.file, s.size)
	local, err := input.Open(path)
	if err != nil {
		return s.d.failed(s.name, err)
	}
	head := make([]byte, len(s.head))
	if _, err := local.ReadAt(head, 0); err != nil || !bytes.Equal(head, s.head) {
		return s.d.failed(s.name, errors.Join(err, local.Close(), errors.New("its header is another than the one that came first")))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.forget(); err != nil {
		return errors.Join(err, local.Close())
	}
	s.local, s.whole = local, true
	s.asking.Lock()
	s.pieces = nil
	s.asking.Unlock()
	if ours {
		s.path = path
	}
	return nil
}

// forget closes and deletes what is here.
func (s *shard) forget() error {
	path := s.path
	s.path = ""
	err := s.close()
	if path != "" {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// keptSuffix ends the name of what is kept of a file.
const keptSuffix = ".kept"

// drop deletes the file, but for tensors to be kept.
func (s *shard) drop(keep []*hf.Tensor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(keep) == 0 {
		return s.forget()
	}
	if s.path == "" || !s.whole { // the cache's, or the keeping has been done
		return nil
	}
	path := s.path + keptSuffix
	left, err := input.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return s.d.failed(s.name, err)
	}
	var kept []keptSpan
	var at int64
	for _, t := range keep {
		from, size := t.Extent()
		kept = append(kept, keptSpan{from, size, at})
		n, err := io.Copy(left, io.NewSectionReader(s.local, from, size))
		if err != nil || n != size {
			return s.d.failed(s.name, errors.Join(err, left.Close(), os.Remove(path)))
		}
		at += size
	}
	if err := s.forget(); err != nil {
		return errors.Join(err, left.Close())
	}
	s.local, s.path, s.kept = left, path, kept
	return nil
}
