package lutq

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/weight"
)

// configName is the file that holds a container's configuration.
const configName = "config.json"

// CardName is the file that tells people about a model. Who publishes it edits that, so that there is no digest of it.
const CardName = "README.md"

// WeightSuffix is that of a layer's tensor in the original.
const WeightSuffix = ".weight"

// Entries returns the tensors that store a layer in parts.
func Entries(layer string, parts []weight.Part) []hf.Entry {
	entries := make([]hf.Entry, len(parts))
	for i, p := range parts {
		entries[i] = hf.Entry{Name: layer + p.Suffix, DType: hf.DType(p.DType), Shape: p.Shape}
	}
	return entries
}

// Model is an open container.
type Model struct {
	ckpt    *hf.Checkpoint
	config  *Config
	sealed  bool // config.json is what was written, or has no digest
	checked bool // what is read is held against its digest
	layers  []string
	parts   map[string][]*hf.Tensor // of each layer, as its kind has them; nil for one that is left out
	stored  map[string]string       // the layer that a tensor is part of
}

// Open opens a container and checks that its configuration and its tensors
// agree, and by their digests that config.json and the headers are what was
// written. The data of the tensors is read when asked for, and checked then;
// [Model.Verify] reads all of it. A container without digests is not checked
// against any.
func Open(dir string) (*Model, error) {
	ckpt, err := hf.Open(dir)
	if err != nil {
		return nil, err
	}
	m, err := Of(ckpt, true)
	if err != nil {
		ckpt.Close()
	}
	return m, err
}

// Of makes a container of a folder that is open, as [Open] does, or unless checked is set without a look at digests then or
// later. The container closes the folder.
func Of(ckpt *hf.Checkpoint, checked bool) (*Model, error) {
	m, err := open(ckpt, checked)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ckpt.Dir(), err)
	}
	return m, nil
}

func open(ckpt *hf.Checkpoint, checked bool) (*Model, error) {
	data, err := ckpt.File(configName, input.Config)
	if err != nil {
		return nil, err
	}
	config, err := ParseConfig(QuantizationConfig(data))
	if err != nil {
		return nil, err
	}
	m := &Model{ckpt: ckpt, config: config, layers: slices.Sorted(maps.Keys(config.Tensors))}
	m.parts, m.stored = make(map[string][]*hf.Tensor), make(map[string]string)
	// Either key without the other is what damage to a key leaves.
	m.sealed = config.Digests == nil && config.Seal == "" || config.Digests != nil && sealed(data)
	m.checked = checked && config.Digests != nil
	if checked {
		problems, err := m.frame()
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return nil, problems[0]
		}
	}
	for _, t := range ckpt.Tensors() {
		for _, kind := range Kinds() {
			if layer, ok := strings.CutSuffix(t.Name, kind.Suffix()); ok {
				if _, ok := config.Tensors[layer]; !ok {
					return nil, fmt.Errorf("%s: %s is not in the quantization_config", t.Shard, t.Name)
				}
			}
		}
	}
	for _, layer := range m.layers {
		if err := m.checkLayer(layer); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// checkLayer holds the tensors of a layer against its configuration.
func (m *Model) checkLayer(layer string) error {
	tc, spec := m.config.Tensors[layer], m.Spec(layer)
	kind, err := KindOf(spec.Kind)
	if err != nil {
		return fmt.Errorf("%s: %w", layer, err)
	}
	parts, err := kind.Parts(spec, tc.Shape[0], tc.Shape[1])
	if err != nil {
		return fmt.Errorf("%s: %w", layer, err)
	}
	tensors := make([]*hf.Tensor, len(parts))
	for i, want := range Entries(layer, parts) {
		got, ok := m.ckpt.Tensor(want.Name)
		switch {
		case !ok && parts[i].Optional:
			continue
		case !ok:
			return fmt.Errorf("tensor %s is missing", want.Name)
		case got.DType != want.DType:
			return fmt.Errorf("%s: %s is of type %s: want %s", got.Shard, got.Name, got.DType, want.DType)
		case !slices.Equal(got.Shape, want.Shape):
			return fmt.Errorf("%s: %s has shape %v: want %v", got.Shard, got.Name, got.Shape, want.Shape)
		}
		tensors[i], m.stored[want.Name] = got, layer
	}
	m.parts[layer] = tensors
	original, _ := tc.Original(layer)
	if t, ok := m.ckpt.Tensor(original); ok {
		return fmt.Errorf("%s: %s stands beside its quantized form", t.Shard, t.Name)
	}
	return nil
}

// quantized reports whether a tensor of the original is one that is quantized here.
func (m *Model) quantized(tensor string) bool {
	for _, layer := range []string{tensor, strings.TrimSuffix(tensor, WeightSuffix)} {
		if tc, ok := m.config.Tensors[layer]; ok {
			if name, _ := tc.Original(layer); name == tensor {
				return true
			}
		}
	}
	return false
}

// Has reports whether the container has a tensor, or has one of what it was made from in quantized form, as far as names
// go.
func (m *Model) Has(name string) bool {
	_, whole := m.config.Tensors[name]
	_, layer := m.config.Tensors[strings.TrimSuffix(name, WeightSuffix)]
	return m.ckpt.Has(name) || whole || layer
}

// Close closes the container's files.
func (m *Model) Close() error { return m.ckpt.Close() }

// Checkpoint returns the tensors as they are stored.
func (m *Model) Checkpoint() *hf.Checkpoint { return m.ckpt }

// Config returns the container's quantization_config.
func (m *Model) Config() *Config { return m.config }

// Linears returns the names of the quantized layers, sorted.
func (m *Model) Linears() []string { return m.layers }

// Spec returns the complete spec of a layer.
func (m *Model) Spec(layer string) weight.Spec {
	return m.config.spec(m.config.Tensors[layer].Spec)
}

// LayerOf returns the quantized layer that a tensor stores a part of, "" where it
// stores none.
func (m *Model) LayerOf(tensor string) string { return m.stored[tensor] }

// Parts returns the tensors that store a layer, in the order of its kind's parts. One that is left
// out is nil.
func (m *Model) Parts(layer string) []*hf.Tensor { return m.parts[layer] }

// frame returns what differs from what was written in all but the data of
// tensors and the side files.
func (m *Model) frame() (problems []error, err error) {
	if !m.sealed {
		problems = append(problems, differs(configName))
	}
	if m.config.Digests == nil {
		return problems, nil
	}
	headers, err := HeaderSums(m.ckpt)
	if err != nil {
		return nil, err
	}
	written := m.config.Digests.Headers
	problems = append(problems, otherNames(m.ckpt.Shards(), written)...)
	for _, shard := range m.ckpt.Shards() {
		if want, ok := written[shard]; ok && headers[shard] != want {
			problems = append(problems, differs(shard+": the header"))
		}
	}
	return problems, nil
}

// otherNames reports the names that are missing from what was written, and the
// ones that are there besides.
func otherNames(found []string, written map[string]Sum) (problems []error) {
	there := make(map[string]bool, len(found))
	for _, name := range found {
		there[name] = true
		if _, ok := written[name]; !ok {
			problems = append(problems, fmt.Errorf("%s is no part of what was written", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(written)) {
		if !there[name] {
			problems = append(problems, fmt.Errorf("%s is missing", name))
		}
	}
	return problems
}
