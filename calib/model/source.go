package model

import (
	"errors"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/lut"
)

// Source is where a model's weights come from. A model reads everything it
// needs while it is built and forgets its source.
type Source interface {
	// Name is what messages call the source: its folder.
	Name() string
	Config() *hf.Config
	// Tensor returns a tensor by its full name.
	Tensor(name string) (*hf.Tensor, bool)
	// Read reads the data of a tensor that Tensor returned.
	Read(t *hf.Tensor) ([]byte, error)
	// Quantized returns the packed matrix of a linear layer, named by its
	// module path without a suffix, or nil where the layer is stored dense.
	Quantized(layer string) (*lut.Matrix, error)
	// Wait waits for checks of what was read, which may go on beside the reading
	// and during which the bytes may not change, and returns the first to fail.
	Wait() error
}

// Checkpoint is the source of an unquantized Hugging Face folder.
type Checkpoint struct {
	config *hf.Config
	ckpt   *hf.Checkpoint
}

// NewCheckpoint returns the source of an open checkpoint.
func NewCheckpoint(config *hf.Config, ckpt *hf.Checkpoint) *Checkpoint {
	return &Checkpoint{config: config, ckpt: ckpt}
}

// Name implements [Source].
func (c *Checkpoint) Name() string { return c.ckpt.Dir() }

// Config implements [Source].
func (c *Checkpoint) Config() *hf.Config { return c.config }

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
func (c *Checkpoint) Quantized(string) (*lut.Matrix, error) { return nil, nil }

// Wait implements [Source]: nothing is checked.
func (c *Checkpoint) Wait() error { return nil }

// Container is the source of a lutq container. It checks what it reads against
// the digests that the container has.
type Container struct {
	Checkpoint
	reader *lutq.Reader
	packs  map[string]bool
}

// NewContainer returns the source of an open container.
func NewContainer(config *hf.Config, m *lutq.Model) *Container {
	c := &Container{Checkpoint: Checkpoint{config: config, ckpt: m.Checkpoint()}, reader: m.Reader(), packs: make(map[string]bool)}
	for _, layer := range m.Linears() {
		c.packs[layer] = true
	}
	return c
}

// Quantized implements [Source].
func (c *Container) Quantized(layer string) (*lut.Matrix, error) {
	if !c.packs[layer] {
		return nil, nil
	}
	return c.reader.Linear(layer)
}

// Read implements [Source].
func (c *Container) Read(t *hf.Tensor) ([]byte, error) { return c.reader.Tensor(t) }

// Wait implements [Source].
func (c *Container) Wait() error { return c.reader.Wait() }

// openSource opens a folder of either kind, a container with a function of
// package lutq. The caller calls done when it has read what it needs.
func openSource(dir string, container func(dir string) (*lutq.Model, error)) (src Source, done func() error, err error) {
	config, err := hf.ReadConfig(dir)
	if err != nil {
		return nil, nil, err
	}
	if lutq.IsContainer(config.Quantization) {
		m, err := container(dir)
		if err != nil {
			return nil, nil, err
		}
		return NewContainer(config, m), m.Close, nil
	}
	ckpt, err := hf.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := ckpt.CheckUnquantized(); err != nil {
		return nil, nil, errors.Join(err, ckpt.Close())
	}
	return NewCheckpoint(config, ckpt), ckpt.Close, nil
}
