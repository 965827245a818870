package source

import (
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
)

// Entry is a tensor of a model, or a layer that lutq has quantized, which is stored in several.
type Entry struct {
	Name  string // of the tensor, or of the layer without a suffix
	Bytes int64  // that are stored

	Tensor *hf.Tensor         // nil for a layer
	Layer  *lutq.TensorConfig // nil for a tensor; its spec is complete
}

// Entries returns what a model stores, in the order of its files: a layer stands where its first tensor does.
func (m *Model) Entries() ([]Entry, error) {
	container, err := m.IsContainer()
	if err != nil {
		return nil, err
	}
	if container {
		c, err := m.Container()
		if err != nil {
			return nil, err
		}
		return packed(c), nil
	}
	c, err := m.Stored()
	if err != nil {
		return nil, err
	}
	var all []Entry
	for _, t := range c.Tensors() {
		all = append(all, Entry{Name: t.Name, Bytes: t.StoredBytes(), Tensor: t})
	}
	return all, nil
}

// packed returns what a container stores.
func packed(c *lutq.Model) []Entry {
	var all []Entry
	seen := make(map[string]bool)
	for _, t := range c.Checkpoint().Tensors() {
		name := c.LayerOf(t.Name)
		if name == "" {
			all = append(all, Entry{Name: t.Name, Bytes: t.StoredBytes(), Tensor: t})
			continue
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		layer := c.Config().Tensors[name]
		layer.Spec = c.Spec(name)
		e := Entry{Name: name, Layer: &layer}
		for _, p := range c.Parts(name) {
			if p != nil { // or it is left out
				e.Bytes += p.Bytes()
			}
		}
		all = append(all, e)
	}
	return all
}
