package tiles

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/lut"
)

// ErrOther is in the chain of the error of a folder that was made of another container, or
// for another target.
var ErrOther = errors.New("not of this model and device")

// Folder is an open folder that [Write] has written. Its methods may be called from several
// goroutines.
type Folder struct {
	ckpt   *hf.Checkpoint
	model  *lutq.Model
	target *Target
}

// Open opens a folder that was made of a container for a target. It fails where the folder
// is of another, wrapping [ErrOther], and where a tensor is not as the container has it. The
// data is checked when it is read. The container stays open while the folder is in use.
func Open(dir string, m *lutq.Model, t *Target) (*Folder, error) {
	ckpt, err := hf.Open(dir)
	if err != nil {
		return nil, err
	}
	f := &Folder{ckpt: ckpt, model: m, target: t}
	if err := f.check(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), ckpt.Close())
	}
	return f, nil
}

func (f *Folder) check() error {
	meta := f.ckpt.Metadata()
	switch {
	case !slices.ContainsFunc(Targets(), func(t *Target) bool { return t.format == meta["format"] }):
		return errors.New("not a folder that lutq repack has written")
	case meta["format"] != f.target.format || meta["sha256"] != f.model.Config().SHA256:
		return fmt.Errorf("%s: %w", meta["format"], ErrOther)
	case meta["version"] != version:
		return fmt.Errorf("%s of version %q: this lutq knows version %s", f.target.Unit, meta["version"], version)
	}
	for _, layer := range f.model.Linears() {
		m, err := shape(f.model, layer)
		if err != nil {
			return err
		}
		for _, want := range f.target.entries(layer, m) {
			got, ok := f.ckpt.Tensor(want.Name)
			switch {
			case !ok:
				return fmt.Errorf("tensor %s is missing", want.Name)
			case got.DType != want.DType || !slices.Equal(got.Shape, want.Shape):
				return fmt.Errorf("%s: %s is %s %v: want %s %v", got.Shard, got.Name, got.DType, got.Shape, want.DType, want.Shape)
			}
		}
	}
	return nil
}

// Close closes the folder's files.
func (f *Folder) Close() error { return f.ckpt.Close() }

// Layer reads a layer, a repack.CPUPanels or a repack.CUDATiles by the target, and
// checks it. It fails on a name that is none of the container's layers.
func (f *Folder) Layer(name string) (lut.Layout, error) {
	l, err := f.layer(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", f.ckpt.Dir(), name, err)
	}
	return l, nil
}

func (f *Folder) layer(name string) (lut.Layout, error) {
	if _, ok := f.model.Config().Tensors[name]; !ok {
		return nil, errors.New("not a quantized layer")
	}
	m, err := shape(f.model, name)
	if err != nil {
		return nil, err
	}
	var data [][]byte
	for _, e := range f.target.entries(name, m) {
		t, _ := f.ckpt.Tensor(e.Name) // check saw to it
		b := make([]byte, t.Bytes())
		if _, err := t.ReadAt(b, 0); err != nil {
			return nil, err
		}
		data = append(data, b)
	}
	if checksum(data[:3]) != binary.LittleEndian.Uint32(data[3]) {
		return nil, errors.New("damaged: its checksum is another")
	}
	m.Codebook = make([]float32, 1<<m.Bits)
	num.DecodeF32(m.Codebook, data[2])
	l := f.target.layout(m, data[0], data[1])
	return l, l.Validate()
}

// CacheDir returns the folder in [input.CacheDir] that holds a container's layers for
// a target, where they are.
func CacheDir(m *lutq.Model, t *Target) string {
	return filepath.Join(input.CacheDir(), "tiles", m.Config().SHA256+"-"+t.Name)
}
