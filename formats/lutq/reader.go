package lutq

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
)

// Reader reads the tensors of a container. What it reads is held against the
// digests beside the caller's own work, so nothing of it may be trusted, and
// none of its bytes changed, before [Reader.Wait]. One SHA-256 cannot be spread
// over processors, but those of several tensors are, over all but the one that
// the caller keeps busy. At most 2 GiB, or one tensor, wait for theirs.
//
// Tensors may be read from several goroutines, all of which end before [Reader.Wait].
type Reader struct {
	model   *Model
	checks  errgroup.Group
	hashing chan struct{}       // holds a token for each tensor being hashed
	limit   int64               // of bytes that wait for their hash
	waiting *semaphore.Weighted // those bytes
}

// maxWaiting bounds the data that waits for its hash: the embeddings and the
// head of a large model, which are read first.
const maxWaiting = 2 << 30

// Reader returns a reader of the container's tensors.
func (m *Model) Reader() *Reader {
	return &Reader{
		model:   m,
		hashing: make(chan struct{}, max(runtime.GOMAXPROCS(0)-1, 1)),
		limit:   maxWaiting,
		waiting: semaphore.NewWeighted(maxWaiting),
	}
}

// readPiece is how much is read before the hash follows, while it is in cache.
const readPiece = 256 << 10

// Tensor reads all of the data of a tensor of the container.
func (r *Reader) Tensor(t *hf.Tensor) ([]byte, error) {
	if !r.model.checked {
		return readAll(t)
	}
	size := min(t.Bytes(), r.limit)
	if err := r.waiting.Acquire(context.Background(), size); err != nil {
		return nil, err
	}
	data := make([]byte, t.Bytes())
	pieces := make(chan []byte, len(data)/readPiece+1) // of data, as they are read
	r.checks.Go(func() error {
		defer r.waiting.Release(size)
		r.hashing <- struct{}{}
		defer func() { <-r.hashing }()
		return r.model.follow(t, pieces)
	})
	defer close(pieces)
	for off := 0; off < len(data); off += readPiece {
		piece := data[off:min(off+readPiece, len(data))]
		if err := readFull(t, piece, int64(off)); err != nil {
			return nil, err
		}
		pieces <- piece
	}
	return data, nil
}

// follow checks a tensor's data piece by piece. Of data that could not be read
// in full there is nothing to say.
func (m *Model) follow(t *hf.Tensor, pieces <-chan []byte) error {
	h := sha256.New()
	read := int64(0)
	for p := range pieces {
		h.Write(p)
		read += int64(len(p))
	}
	if read < t.Bytes() {
		return nil
	}
	return m.check(t, Sum(h.Sum(nil)))
}

// Linear reads a quantized layer. The name has no suffix. It fails on data that is
// no weight, as [weight.Kind] has it.
func (r *Reader) Linear(layer string) (weight.Matrix, error) {
	parts, ok := r.model.parts[layer]
	if !ok {
		return nil, fmt.Errorf("%s is not a quantized layer", layer)
	}
	data := make([][]byte, len(parts))
	for i, t := range parts {
		if t == nil {
			continue
		}
		var err error
		if data[i], err = r.Tensor(t); err != nil {
			return nil, err
		}
	}
	return r.model.matrix(layer, data)
}

// Wait waits until all that was read is checked. The error names the first
// tensor found that differs from what was written, and wraps [ErrDiffers].
func (r *Reader) Wait() error { return r.checks.Wait() }

// Linear reads a quantized layer as [Reader.Linear] does, and checks it.
func (m *Model) Linear(layer string) (weight.Matrix, error) {
	r := m.Reader()
	mat, err := r.Linear(layer)
	// Damage also explains values that make no sense.
	if err := r.Wait(); err != nil {
		return nil, err
	}
	return mat, err
}

// CheckSum holds the SHA-256 of all of a tensor's data against the one that was written, where the
// container is checked.
func (m *Model) CheckSum(t *hf.Tensor, sum Sum) error {
	if !m.checked {
		return nil
	}
	return m.check(t, sum)
}

// check holds a tensor's digest against the one that was written.
func (m *Model) check(t *hf.Tensor, sum Sum) error {
	if sum != m.config.Digests.Tensors[t.Name] {
		return differs(t.Shard + ": " + t.Name)
	}
	return nil
}

// CheckFiles holds side files of the folder of a config.json against their digests. A folder that is no container or has no
// digests passes, and so does a file without one, and one that is missing.
func CheckFiles(dir string, configJSON []byte, names ...string) error {
	q := QuantizationConfig(configJSON)
	if !IsContainer(q) {
		return nil
	}
	config, err := ParseConfig(q)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if config.Digests == nil {
		return nil
	}
	for _, name := range names {
		want, ok := config.Digests.Files[name]
		if !ok {
			continue
		}
		got, err := FileSum(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case got != want:
			return fmt.Errorf("%s: %w", dir, differs(name))
		}
	}
	return nil
}

// matrix makes a layer's matrix of the data of its parts.
func (m *Model) matrix(layer string, data [][]byte) (weight.Matrix, error) {
	tc, spec := m.config.Tensors[layer], m.Spec(layer)
	kind, err := KindOf(spec.Kind)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", layer, err)
	}
	mat, err := kind.Open(spec, tc.Shape[0], tc.Shape[1], data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", layer, err)
	}
	return mat, nil
}

// readAll reads a tensor's data.
func readAll(t *hf.Tensor) ([]byte, error) {
	data := make([]byte, t.Bytes())
	if len(data) == 0 {
		return data, nil
	}
	if _, err := t.ReadAt(data, 0); err != nil {
		return nil, err
	}
	return data, nil
}
