package model

import (
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
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

// Checkpoint is the source of a model's own weights.
type Checkpoint struct {
	desc *arch.Decoder
	ckpt *hf.Checkpoint
}

// NewCheckpoint returns the source of an open model that is no container.
func NewCheckpoint(m *source.Model) (*Checkpoint, error) {
	ckpt, err := m.Weights()
	if err != nil {
		return nil, err
	}
	d, err := m.Decoder()
	return &Checkpoint{desc: d, ckpt: ckpt}, err
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

// container is the source of a lutq container. It checks what it reads against
// the digests that the container has.
type container struct {
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

// newContainer returns the source of an open container. layouts, unless nil, has its layers as the device reads them.
func newContainer(m *source.Model, layouts func(*lutq.Model) (Layouts, error)) (*container, error) {
	packed, err := m.Container()
	if err != nil {
		return nil, err
	}
	d, err := m.Decoder()
	if err != nil {
		return nil, err
	}
	c := &container{Checkpoint: Checkpoint{desc: d, ckpt: packed.Checkpoint()}, reader: packed.Reader(), packs: make(map[string]bool)}
	for _, layer := range packed.Linears() {
		c.packs[layer] = true
	}
	if layouts != nil {
		c.layouts, err = layouts(packed)
	}
	return c, err
}

// done closes the layouts, which nothing reads any more.
func (c *container) done() error {
	if c.layouts == nil {
		return nil
	}
	return c.layouts.Close()
}

// Quantized implements [Source].
func (c *container) Quantized(layer string) (weight.Matrix, error) {
	if !c.packs[layer] {
		return nil, nil
	}
	return c.reader.Linear(layer)
}

// Layout returns a layer as the device's kernels read it, or nil where it is not at hand so.
func (c *container) Layout(layer string) (lut.Layout, error) {
	if c.layouts == nil || !c.packs[layer] {
		return nil, nil
	}
	return c.layouts.Layer(layer)
}

// Read implements [Source].
func (c *container) Read(t *hf.Tensor) ([]byte, error) { return c.reader.Tensor(t) }

// Wait implements [Source].
func (c *container) Wait() error { return c.reader.Wait() }

// sourceOf returns the source of an open model. The caller calls done when it has read what it needs.
func sourceOf(m *source.Model, layouts func(*lutq.Model) (Layouts, error)) (src Source, done func() error, err error) {
	is, err := m.IsContainer()
	if err != nil {
		return nil, nil, err
	}
	if is {
		c, err := newContainer(m, layouts)
		if err != nil {
			return nil, nil, err
		}
		return c, c.done, nil
	}
	if _, err := m.Text("config.json"); err != nil {
		return nil, nil, err
	}
	ckpt, err := m.Weights()
	if err != nil {
		return nil, nil, err
	}
	if err := ckpt.CheckUnquantized(); err != nil {
		return nil, nil, err
	}
	src, err = NewCheckpoint(m)
	return src, func() error { return nil }, err
}
