package model

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Source is where a model's weights come from. A model reads everything it
// needs while it is built, several tensors at a time, and forgets its source.
type Source interface {
	// Name is what messages call the source: its folder.
	Name() string
	Decoder() *arch.Decoder
	// Tensor returns a tensor by its full name.
	Tensor(name string) (*hf.Tensor, bool)
	// Read reads the data of a tensor that Tensor returned.
	Read(t *hf.Tensor) ([]byte, error)
	// Quantized returns the packed matrix of a linear layer, named by its
	// module path without a suffix, or nil where the layer is stored dense.
	Quantized(layer string) (weight.Matrix, error)
	// Wait waits for checks of what was read, which may go on beside the reading
	// and during which the bytes may not change, and returns the first to fail.
	Wait() error
}

// Checkpoint is the source of an unquantized Hugging Face folder.
type Checkpoint struct {
	desc *arch.Decoder
	ckpt *hf.Checkpoint
}

// NewCheckpoint returns the source of an open checkpoint.
func NewCheckpoint(ckpt *hf.Checkpoint) (*Checkpoint, error) {
	c := &Checkpoint{ckpt: ckpt}
	var err error
	c.desc, err = arch.ReadFrom(ckpt, ckpt.Has)
	return c, err
}

// Name implements [Source].
func (c *Checkpoint) Name() string { return c.ckpt.Dir() }

// Decoder implements [Source].
func (c *Checkpoint) Decoder() *arch.Decoder { return c.desc }

// Tensor implements [Source].
func (c *Checkpoint) Tensor(name string) (*hf.Tensor, bool) { return c.ckpt.Tensor(name) }

// Read implements [Source].
func (c *Checkpoint) Read(t *hf.Tensor) ([]byte, error) {
	data := make([]byte, t.Bytes())
	if len(data) == 0 {
		return data, nil
	}
	_, err := t.ReadAt(data, 0)
	return data, err
}

// Quantized implements [Source]: nothing is.
func (c *Checkpoint) Quantized(string) (weight.Matrix, error) { return nil, nil }

// Wait implements [Source]: nothing is checked.
func (c *Checkpoint) Wait() error { return nil }

// Container is the source of a lutq container. It checks what it reads against
// the digests that the container has.
type Container struct {
	Checkpoint
	reader  *lutq.Reader
	packs   map[string]bool
	layouts Layouts // or nil
}

// Layouts are the layers of a container as a device's kernels read them.
type Layouts interface {
	// Layer returns a layer, or nil where it is to be laid out anew.
	Layer(name string) (lut.Layout, error)
	Close() error
}

// NewContainer returns the source of an open container.
func NewContainer(m *lutq.Model) (*Container, error) {
	c := &Container{Checkpoint: Checkpoint{ckpt: m.Checkpoint()}, reader: m.Reader(), packs: make(map[string]bool)}
	for _, layer := range m.Linears() {
		c.packs[layer] = true
	}
	config, err := source.ConfigOf(m)
	if err != nil {
		return nil, err
	}
	if c.desc, err = arch.Describe(config, m.Has); err != nil {
		err = fmt.Errorf("%s: %w", filepath.Join(c.Name(), "config.json"), err)
	}
	return c, err
}

// Quantized implements [Source].
func (c *Container) Quantized(layer string) (weight.Matrix, error) {
	if !c.packs[layer] {
		return nil, nil
	}
	return c.reader.Linear(layer)
}

// Layout returns a layer as the device's kernels read it, or nil where it is not at hand so.
func (c *Container) Layout(layer string) (lut.Layout, error) {
	if c.layouts == nil || !c.packs[layer] {
		return nil, nil
	}
	return c.layouts.Layer(layer)
}

// Read implements [Source].
func (c *Container) Read(t *hf.Tensor) ([]byte, error) { return c.reader.Tensor(t) }

// Wait implements [Source].
func (c *Container) Wait() error { return c.reader.Wait() }

// openSource opens a folder of either kind. The caller calls done when it has read what
// it needs.
func openSource(dir string, o OpenOptions) (src Source, done func() error, err error) {
	text, err := source.File(dir, "config.json", input.Config)
	if err != nil {
		return nil, nil, err
	}
	if lutq.IsContainer(lutq.QuantizationConfig(text)) {
		return openContainer(dir, o)
	}
	ckpt, err := source.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := ckpt.CheckUnquantized(); err != nil {
		return nil, nil, closing(err, ckpt.Close)
	}
	src, err = NewCheckpoint(ckpt)
	return src, ckpt.Close, closing(err, ckpt.Close)
}

func openContainer(dir string, o OpenOptions) (src Source, done func() error, err error) {
	open := lutq.Open
	if o.Unchecked {
		open = lutq.OpenUnchecked
	}
	m, err := open(dir)
	if err != nil {
		return nil, nil, err
	}
	done = m.Close
	c, err := NewContainer(m)
	if err == nil && o.Layouts != nil {
		c.layouts, err = o.Layouts(m)
	}
	if c.layouts != nil {
		done = func() error { return errors.Join(c.layouts.Close(), m.Close()) }
	}
	return c, done, closing(err, done)
}

// closing returns err, after which it closes what was opened.
func closing(err error, done func() error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, done())
}
