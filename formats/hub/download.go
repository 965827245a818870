package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/input"
)

// download brings a model into the cache.
type download struct {
	name   Name
	place  place
	o      Options
	token  string
	client *http.Client
	apart  bool // what comes lies on another disk than the cache

	mu    sync.Mutex
	total int64            // 0: not known
	done  map[string]int64 // by file
}

// tell tells what is at hand.
func (d *download) tell(item string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report(item)
}

// has tells how much of a file is there.
func (d *download) has(f file, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done[f.name] = n
	d.report(f.name)
}

func (d *download) report(item string) {
	if d.total == 0 {
		return
	}
	var sum int64
	for _, n := range d.done {
		sum += n
	}
	d.o.Progress(min(sum, d.total), d.total, item)
}

// run downloads what is missing of a revision and returns its folder.
func (d *download) run(ctx context.Context, revision string) (string, error) {
	l, err := d.list(ctx, revision)
	if err != nil {
		return "", err
	}
	all := l.beside()
	if d.o.BesideWeights {
		if len(all) == 0 {
			return "", &Error{Model: d.name.String(), Reason: "has neither a " + configName + " nor a tokenizer"}
		}
	} else {
		weights, err := d.weights(ctx, l)
		if err != nil {
			return "", err
		}
		if l.files[configName].name == "" {
			return "", &Error{Model: d.name.String(), Reason: "has no " + configName}
		}
		others, err := d.ofContainer(ctx, l)
		if err != nil {
			return "", err
		}
		for _, f := range append(weights, others...) {
			if !slices.ContainsFunc(all, func(has file) bool { return has.name == f.name }) {
				all = append(all, f)
			}
		}
	}
	if all, err = d.measure(ctx, l.commit, all); err != nil {
		return "", err
	}
	if err := d.files(ctx, l.commit, all); err != nil {
		return "", err
	}
	_ = d.place.noteAbsent(l) // which saves a question at most
	return d.place.snapshot(l.commit), d.failed("the cache", d.place.writeRef(d.name.Revision, l.commit))
}

// ofContainer returns the files of which the config.json of a model that lutq quantized has digests, so that it can be verified.
// It downloads that, since it names them.
func (d *download) ofContainer(ctx context.Context, l *listing) ([]file, error) {
	config, err := d.ask(ctx, l.commit, l.files[configName])
	if err != nil {
		return nil, err
	}
	if err := d.file(ctx, l.commit, config); err != nil {
		return nil, err
	}
	data, err := input.ReadFile(filepath.Join(d.place.snapshot(l.commit), configName), input.Config)
	if err != nil {
		return nil, &Error{Model: d.name.String(), Err: err}
	}
	var c struct {
		Quantization struct {
			Method  string `json:"quant_method"`
			Digests struct {
				Files map[string]any `json:"files"`
			} `json:"digests"`
		} `json:"quantization_config"`
	}
	if json.Unmarshal(data, &c) != nil || c.Quantization.Method != "lutq" {
		return nil, nil
	}
	var all []file
	for _, name := range slices.Sorted(maps.Keys(c.Quantization.Digests.Files)) {
		if f, ok := l.files[name]; ok {
			all = append(all, f)
		}
	}
	return all, nil
}

// weights returns the files that the weights are in. It downloads an index, since that names them.
func (d *download) weights(ctx context.Context, l *listing) ([]file, error) {
	single, isSingle := l.files[singleName]
	index, isIndex := l.files[indexName]
	switch {
	case isSingle: // which is what is read where there is an index too
		return []file{single}, nil
	case !isIndex:
		for name := range l.files {
			shards := numberedShards(name)
			if shards == nil {
				continue
			}
			return l.named(shards, d.name, "its shards are numbered so")
		}
		return nil, l.noWeights(d.name)
	}
	index, err := d.ask(ctx, l.commit, index)
	if err != nil {
		return nil, err
	}
	if err := d.file(ctx, l.commit, index); err != nil {
		return nil, err
	}
	data, err := input.ReadFile(filepath.Join(d.place.snapshot(l.commit), indexName), input.Index)
	if err != nil {
		return nil, &Error{Model: d.name.String(), Err: err}
	}
	shards, err := parseShards(data)
	if err != nil {
		return nil, &Error{Model: d.name.String(), Err: err}
	}
	files, err := l.named(shards, d.name, indexName+" names it")
	return append(files, index), err
}

// named returns files of the list by their names.
func (l *listing) named(names []string, n Name, why string) ([]file, error) {
	var all []file
	for _, name := range names {
		f, ok := l.files[name]
		if !ok {
			return nil, &Error{Model: n.String(), Reason: fmt.Sprintf("has no file %s, and %s", name, why)}
		}
		all = append(all, f)
	}
	return all, nil
}

// measure completes what is known of files, and refuses what the disk has no place for.
func (d *download) measure(ctx context.Context, commit string, all []file) ([]file, error) {
	var total, need int64
	for i, f := range all {
		f, err := d.ask(ctx, commit, f)
		if err != nil {
			return nil, err
		}
		all[i] = f
		total += f.size
		switch info, err := os.Stat(d.place.blob(f.sum) + incomplete); {
		case d.there(commit, f):
		case err == nil:
			need += max(f.size-info.Size(), 0)
		default:
			need += f.size
		}
	}
	if err := os.MkdirAll(filepath.Join(d.place.dir, "blobs"), 0o777); err != nil {
		return nil, d.failed("the cache", err)
	}
	if free, err := d.o.free(d.place.dir); err == nil && need > free {
		return nil, &Error{
			Model:  d.name.String(),
			Reason: fmt.Sprintf("%d MB are to come, and %s has room for %d", need/1e6+1, d.o.Cache, free/1e6),
			hint:   "make room, or name another folder by HF_HUB_CACHE",
		}
	}
	d.mu.Lock()
	d.total = total
	d.mu.Unlock()
	return all, nil
}

// there reports whether the cache has a file.
func (d *download) there(commit string, f file) bool {
	info, err := os.Stat(filepath.Join(d.place.snapshot(commit), filepath.FromSlash(f.name)))
	if err == nil && info.Mode().IsRegular() && info.Size() == f.size {
		return true
	}
	return d.blobThere(f)
}

func (d *download) blobThere(f file) bool {
	info, err := os.Stat(d.place.blob(f.sum))
	return err == nil && info.Mode().IsRegular() && info.Size() == f.size
}

// files downloads several at once. The first comes alone: what is wrong with the model is wrong with it.
func (d *download) files(ctx context.Context, commit string, all []file) error {
	if len(all) == 0 {
		return nil
	}
	if err := d.file(ctx, commit, all[0]); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(d.o.Parallel)
	for _, f := range all[1:] {
		group.Go(func() error { return d.file(ctx, commit, f) })
	}
	return group.Wait()
}

// file brings one file into the cache, and gives it its name in the commit.
func (d *download) file(ctx context.Context, commit string, f file) error {
	path := filepath.Join(d.place.snapshot(commit), filepath.FromSlash(f.name))
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() == f.size {
		d.has(f, f.size)
		return nil
	}
	if !d.blobThere(f) {
		unlock, err := lock(ctx, d.place.lockFile(f.sum), func() { d.tell(f.name + ": another program is downloading it") })
		if err != nil {
			if ctx.Err() != nil {
				return d.ended(ctx)
			}
			return d.failed("the cache", err)
		}
		if !d.blobThere(f) { // nor has another process brought it
			err = d.blob(ctx, commit, f, d.place.blob(f.sum))
		}
		if err = errors.Join(err, unlock()); err != nil {
			return err
		}
	}
	d.has(f, f.size)
	return d.failed("the cache", d.place.link(commit, f.name, f.sum))
}

const incomplete = ".incomplete"

// partial is a file of which a part has come.
type partial struct {
	*os.File
	want file
	sum  hash.Hash // of what is there
	size int64
}

// blob downloads a file to a path. What has come of it before is gone on with.
func (d *download) blob(ctx context.Context, commit string, f file, to string) error {
	path := to + incomplete
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return d.failed("the cache", err)
	}
	open, err := input.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return d.failed("the cache", err)
	}
	defer open.Close() // once more, where all went well
	p := &partial{File: open, want: f}
	if err := p.resume(ctx, func() { d.has(f, p.size) }); err != nil {
		if ctx.Err() != nil {
			return d.ended(ctx)
		}
		return d.failed(f.name, err)
	}
	wrong := 0
	err = d.again(ctx, f.name, func() (int64, error) {
		before := p.size
		if p.size < f.size {
			if err := d.part(ctx, commit, p); err != nil {
				return max(p.size-before, 0), err
			}
		}
		if got := hex.EncodeToString(p.sum.Sum(nil)); got != f.sum {
			if err := p.restart(); err != nil {
				return 0, err
			}
			err := fmt.Errorf("what came is not what the server lists: its hash is %.12s…, and not %.12s…", got, f.sum)
			if wrong++; wrong < 2 {
				return 0, &temporary{error: err} // what came before may have been wrong
			}
			return 0, err
		}
		return 0, nil
	})
	if err != nil {
		if p.size == 0 {
			os.Remove(path) // the first error tells more
		}
		return err
	}
	if err := errors.Join(p.Sync(), p.Close()); err != nil {
		return d.failed(f.name, err)
	}
	return d.failed(f.name, os.Rename(path, to))
}

// newSum returns the hash by which a file is named.
func newSum(f file) hash.Hash {
	if len(f.sum) == 2*sha256.Size {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.size) // as git
	return h
}

// resume reads what is there, which may be much, and calls read after each piece.
func (p *partial) resume(ctx context.Context, read func()) error {
	info, err := p.Stat()
	if err != nil {
		return err
	}
	if info.Size() > p.want.size {
		return p.restart()
	}
	p.sum = newSum(p.want)
	buf := make([]byte, 1<<20)
	for {
		n, err := p.Read(buf)
		p.sum.Write(buf[:n])
		p.size += int64(n)
		read()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// restart forgets what is there.
func (p *partial) restart() error {
	p.sum, p.size = newSum(p.want), 0
	_, err := p.Seek(0, io.SeekStart)
	return errors.Join(p.Truncate(0), err)
}

// part asks for the rest of a file, and writes what comes.
func (d *download) part(ctx context.Context, commit string, p *partial) error {
	f := p.want
	a, err := d.send(ctx, http.MethodGet, d.address(commit, f.name), f.name, span{from: p.size})
	if err != nil {
		return err
	}
	defer a.Close()
	switch a.StatusCode {
	case http.StatusOK: // all of it, whatever was asked for
		if p.size > 0 {
			err = p.restart()
		}
	case http.StatusPartialContent:
		var begin, end, size int64
		if n, _ := fmt.Sscanf(a.Header.Get("Content-Range"), "bytes %d-%d/%d", &begin, &end, &size); n < 2 || begin != p.size || n == 3 && size != f.size {
			err = errors.Join(p.restart(), &temporary{error: errors.New("the server sends another part than was asked for")})
		}
	case http.StatusRequestedRangeNotSatisfiable:
		err = errors.Join(p.restart(), &temporary{error: errors.New("the server has no such part")})
	default:
		err = fmt.Errorf("the server answers %s", statusName(a.StatusCode))
	}
	if err != nil {
		return err
	}
	if left := f.size - p.size; a.ContentLength >= 0 && a.ContentLength != left {
		return fmt.Errorf("the server sends %d bytes, where its list leaves %d of %d", a.ContentLength, left, f.size)
	}
	d.has(f, p.size)
	buf := make([]byte, 256<<10)
	for {
		n, err := a.Read(buf)
		if int64(n) > f.size-p.size {
			return errors.Join(p.restart(), fmt.Errorf("the server sends more than the %d bytes that it lists", f.size))
		}
		if n > 0 {
			if _, err := p.Write(buf[:n]); err != nil {
				return errors.Join(err, p.Truncate(p.size)) // which is what its hash is of
			}
			p.sum.Write(buf[:n])
			p.size += int64(n)
			d.has(f, p.size)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if p.size < f.size {
		return &temporary{error: fmt.Errorf("it ended after %d of %d bytes", p.size, f.size)}
	}
	return nil
}
