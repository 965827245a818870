package lutq

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/lut"
)

// The suffixes of a quantized layer's tensors.
const (
	CodesSuffix    = ".codes"
	ScalesSuffix   = ".scales"
	CodebookSuffix = ".codebook"
	WeightSuffix   = ".weight" // of the original
)

// Entries returns the three tensors that store layer P of shape [n, k].
func Entries(layer string, f Format, n, k int) (codebook, codes, scales hf.Entry, err error) {
	st, err := lut.ParseScaleType(f.ScaleType)
	if err != nil {
		return codebook, codes, scales, err
	}
	codebook = hf.Entry{Name: layer + CodebookSuffix, DType: "F32", Shape: []int{1 << f.Bits}}
	codes = hf.Entry{Name: layer + CodesSuffix, DType: "U8", Shape: []int{n, lut.RowBytes(k, f.Bits)}}
	scales = hf.Entry{Name: layer + ScalesSuffix, DType: scaleDType(st), Shape: []int{n, lut.GroupsIn(k, f.Columns(k))}}
	return codebook, codes, scales, nil
}

// scaleDType returns the safetensors type that holds a scale type.
func scaleDType(t lut.ScaleType) hf.DType {
	switch t {
	case lut.F16:
		return "F16"
	case lut.BF16:
		return "BF16"
	case lut.F32:
		return "F32"
	}
	return "U8"
}

// Model is an open container.
type Model struct {
	ckpt   *hf.Checkpoint
	config *Config
	layers []string
}

// Open opens a container and checks that its configuration and its tensors
// agree. The data of the tensors is read when asked for; [Model.Verify] reads
// all of it.
func Open(dir string) (*Model, error) {
	ckpt, err := hf.Open(dir)
	if err != nil {
		return nil, err
	}
	m, err := open(ckpt)
	if err != nil {
		ckpt.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return m, nil
}

func open(ckpt *hf.Checkpoint) (*Model, error) {
	data, err := input.ReadFile(filepath.Join(ckpt.Dir(), "config.json"), input.Config)
	if err != nil {
		return nil, err
	}
	config, err := ParseConfig(QuantizationConfig(data))
	if err != nil {
		return nil, err
	}
	m := &Model{ckpt: ckpt, config: config, layers: slices.Sorted(maps.Keys(config.Tensors))}
	for _, t := range ckpt.Tensors() {
		if layer, ok := strings.CutSuffix(t.Name, CodesSuffix); ok {
			if _, ok := config.Tensors[layer]; !ok {
				return nil, fmt.Errorf("%s: %s is not in the quantization_config", t.Shard, t.Name)
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

// checkLayer holds the three tensors of a layer against its configuration.
func (m *Model) checkLayer(layer string) error {
	tc := m.config.Tensors[layer]
	codebook, codes, scales, err := Entries(layer, m.Format(layer), tc.Shape[0], tc.Shape[1])
	if err != nil {
		return fmt.Errorf("%s: %w", layer, err)
	}
	for _, want := range []hf.Entry{codebook, codes, scales} {
		got, ok := m.ckpt.Tensor(want.Name)
		switch {
		case !ok:
			return fmt.Errorf("tensor %s is missing", want.Name)
		case got.DType != want.DType:
			return fmt.Errorf("%s: %s is of type %s: want %s", got.Shard, got.Name, got.DType, want.DType)
		case !slices.Equal(got.Shape, want.Shape):
			return fmt.Errorf("%s: %s has shape %v: want %v", got.Shard, got.Name, got.Shape, want.Shape)
		}
	}
	if t, ok := m.ckpt.Tensor(layer + WeightSuffix); ok {
		return fmt.Errorf("%s: %s stands beside its quantized form", t.Shard, t.Name)
	}
	return nil
}

// Close closes the container's files.
func (m *Model) Close() error { return m.ckpt.Close() }

// Checkpoint returns the tensors as they are stored.
func (m *Model) Checkpoint() *hf.Checkpoint { return m.ckpt }

// Config returns the container's quantization_config.
func (m *Model) Config() *Config { return m.config }

// Linears returns the names of the quantized layers, sorted.
func (m *Model) Linears() []string { return m.layers }

// Format returns the complete format of a layer.
func (m *Model) Format(layer string) Format {
	return m.config.Tensors[layer].Or(m.config.Format)
}

// Linear reads a quantized layer. The name has no suffix. It fails on a table
// that is not ascending or a scale that is not finite.
func (m *Model) Linear(layer string) (*lut.Matrix, error) {
	tc, ok := m.config.Tensors[layer]
	if !ok {
		return nil, fmt.Errorf("%s is not a quantized layer", layer)
	}
	f := m.Format(layer)
	st, err := lut.ParseScaleType(f.ScaleType)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", layer, err)
	}
	var data [3][]byte
	for i, suffix := range []string{CodebookSuffix, CodesSuffix, ScalesSuffix} {
		t, _ := m.ckpt.Tensor(layer + suffix)
		data[i] = make([]byte, t.Bytes())
		if _, err := t.ReadAt(data[i], 0); err != nil {
			return nil, err
		}
	}
	mat := &lut.Matrix{
		N: tc.Shape[0], K: tc.Shape[1],
		Bits: f.Bits, Group: f.Columns(tc.Shape[1]),
		Codes: data[1], Scales: data[2], ScaleType: st,
		Codebook: make([]float32, 1<<f.Bits),
	}
	num.DecodeF32(mat.Codebook, data[0])
	if err := mat.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", layer, err)
	}
	if err := checkValues(mat); err != nil {
		return nil, fmt.Errorf("%s: %w", layer, err)
	}
	return mat, nil
}

// checkValues reports a table or scale that cannot be multiplied by, or whose
// largest product is not a number.
func checkValues(m *lut.Matrix) error {
	table := lut.Codebook{Name: "table", Values: m.Codebook}
	if err := table.Check(m.Bits); err != nil {
		return err
	}
	top := table.Max()
	scales := make([]float32, m.Groups())
	for n := range m.N {
		m.RowScales(scales, n)
		for g, s := range scales {
			if p := s * top; p-p != 0 { // NaN or infinite
				return fmt.Errorf("scale [%d, %d] is %v", n, g, s)
			}
		}
	}
	return nil
}
