package tiles

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight/lut"
)

// version is that of the files. Those of version 1 had no checksums.
const version = "2"

// The suffixes of the tensors with a layer's table and its checksum.
const (
	codebookSuffix = ".codebook"
	checksumSuffix = ".crc32c"
)

// Progress is told how many bytes of how many are written, and the layer written last. It
// is called from several goroutines, one at a time.
type Progress func(done, total int64, layer string)

// Write lays all layers of a container out for a target and writes them to dir, an empty
// folder. Each is turned back and compared with the container's first. It returns the size
// of what was written.
func Write(ctx context.Context, dir string, m *lutq.Model, t *Target, progress Progress) (int64, error) {
	var all []hf.Entry
	var total int64
	for _, layer := range m.Linears() {
		mat, err := shape(m, layer)
		if err != nil {
			return 0, err
		}
		for _, e := range t.entries(layer, mat) {
			size, err := e.Bytes()
			if err != nil {
				return 0, err
			}
			total += size
			all = append(all, e)
		}
	}
	w, err := hf.NewWriter(dir, all, hf.WriterOptions{Metadata: map[string]string{
		"format": t.format, "version": version, "sha256": m.Config().SHA256,
	}})
	if err != nil {
		return 0, err
	}
	defer w.Abort()   // does nothing after Commit
	var mu sync.Mutex // for progress
	var done int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, layer := range m.Linears() {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := t.write(w, m, layer)
			if err != nil {
				return fmt.Errorf("%s: %w", layer, err)
			}
			mu.Lock()
			defer mu.Unlock()
			done += n
			progress(done, total, layer)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return total, w.Commit()
}

// write lays one layer out, checks it, writes it and returns its size.
func (t *Target) write(w *hf.Writer, m *lutq.Model, layer string) (int64, error) {
	linear, err := m.Linear(layer)
	if err != nil {
		return 0, err
	}
	mat, err := lut.Of(linear)
	if err != nil {
		return 0, err
	}
	l, err := t.pack(mat)
	if err != nil {
		return 0, err
	}
	back, err := l.Matrix()
	if err != nil {
		return 0, err
	}
	if !bytes.Equal(back.Codes, mat.Codes) || !bytes.Equal(back.Scales, mat.Scales) {
		return 0, fmt.Errorf("the %s do not turn back into the layer", t.Unit)
	}
	parts := t.data(l)
	data := [][]byte{parts[0], parts[1], mat.Parts()[lut.CodebookPart]}
	data = append(data, binary.LittleEndian.AppendUint32(nil, checksum(data)))
	var size int64
	for i, e := range t.entries(layer, mat) {
		if err := w.WriteAt(e.Name, data[i], 0); err != nil {
			return 0, err
		}
		size += int64(len(data[i]))
	}
	return size, nil
}

// checksum returns the CRC-32C of the parts of a layer.
func checksum(parts [][]byte) uint32 {
	sum := uint32(0)
	for _, p := range parts {
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), p)
	}
	return sum
}
