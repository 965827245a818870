package exl3

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Target is the format of exllamav3. It implements [foreign.Target].
type Target struct{}

// Name implements [foreign.Target].
func (Target) Name() string { return "exl3" }

// Hint implements [foreign.Hinter].
func (Target) Hint() string {
	return "quantize --for exl3 makes a model whose layers fit; --requantize stores others in 16 bits, which exllamav3 takes"
}

// Format implements [foreign.Target].
func (Target) Format(m *foreign.Model) (foreign.Format, error) {
	f := &output{model: m, biases: make(map[string]*hf.Tensor), parts: make(map[string][]part)}
	if m.Decoder != nil {
		for _, of := range fusedIn(m.Decoder) {
			f.parts[of.as.Path] = of.parts
		}
	}
	layers := make(map[string]bool)
	for _, l := range m.Layers {
		layers[l.Name] = true
	}
	for _, t := range m.Kept {
		if name, is := strings.CutSuffix(t.Name, biasSuffix); is && layers[name] {
			f.biases[name] = t
		}
	}
	return f, nil
}

type output struct {
	model  *foreign.Model
	biases map[string]*hf.Tensor // of layers, by their names
	parts  map[string][]part     // that matrices become, by the names of their layers
}

// layers returns those that a layer becomes.
func (f *output) layers(l *foreign.Layer) []part {
	if parts := f.parts[l.Name]; parts != nil {
		return parts
	}
	return []part{{l.Name, 0, l.N}}
}

// Fit implements [foreign.Format]: rings go as they are.
func (f *output) Fit(l *foreign.Layer, _ *lut.Matrix) foreign.Fit {
	if why := foreign.Single(l); why != "" {
		return foreign.Fit{Why: why}
	}
	switch s := l.Stored; {
	case s.Kind != trellis.Name:
		return foreign.Fit{Why: "its codes are no windows on a ring"}
	case s.Codebook == trellis.Pairs:
		return foreign.Fit{Why: "its rings are lutq's own: exllamav3 has mul1, mcg and 3inst"}
	case s.ScaleType != weight.F16:
		return foreign.Fit{Why: fmt.Sprintf("its scales are of type %v: want f16", s.ScaleType)}
	}
	for _, p := range f.parts[l.Name] {
		if p.row%trellis.Block != 0 {
			return foreign.Fit{Why: "exllamav3 has it as several layers, one of which begins within rows that are mixed"}
		}
		if f.biases[l.Name] != nil {
			return foreign.Fit{Why: "exllamav3 has it as several layers, and its bias is one"}
		}
	}
	return foreign.Fit{Stored: true}
}

// Anew implements [foreign.Format].
func (f *output) Anew(*foreign.Layer) (lut.Format, error) {
	return lut.Format{}, errors.New("no table is a trellis")
}

// shape returns the tiles of rows of a layer, and what a spec's rings are.
func shape(l *foreign.Layer, rows int) (across, down int, layout trellis.Layout, err error) {
	c, err := trellis.NewCode(l.Stored.Codebook, l.Stored.Rate())
	if err != nil {
		return 0, 0, trellis.Layout{}, err
	}
	return padded(l.K) / tile, padded(rows) / tile, c.Layout(), nil
}

// marker returns the tensor that marks a codebook, if one does.
func marker(codebook string) (suffix string, mark uint32) {
	switch codebook {
	case trellis.Mul1:
		return mul1Suffix, mul1Mark
	case trellis.MCG:
		return mcgSuffix, mcgMark
	}
	return "", 0
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) (all []hf.Entry, err error) {
	for _, p := range f.layers(l) {
		entries, err := f.entries(l, p)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	return all, nil
}

// entries returns the tensors of a part of a layer.
func (f *output) entries(l *foreign.Layer, p part) ([]hf.Entry, error) {
	across, down, layout, err := shape(l, p.n)
	if err != nil {
		return nil, err
	}
	all := []hf.Entry{
		{Name: p.name + tilesSuffix, DType: "I16", Shape: []int{across, down, layout.Bytes() / 2}},
		{Name: p.name + inputsSuffix, DType: hf.F16, Shape: []int{across * tile}},
		{Name: p.name + outputsSuffix, DType: hf.F16, Shape: []int{down * tile}},
	}
	if f.biases[l.Name] != nil {
		all = append(all, hf.Entry{Name: p.name + biasSuffix, DType: hf.F16, Shape: []int{down * tile}})
	}
	if suffix, _ := marker(l.Stored.Codebook); suffix != "" {
		all = append(all, hf.Entry{Name: p.name + suffix, DType: "I32", Shape: []int{}})
	}
	return all, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) (data [][]byte, err error) {
	stored, err := s.Weights(l)
	if err != nil {
		return nil, err
	}
	for _, p := range f.layers(l) {
		m, err := trellis.Of(stored.Rows(p.row, 1, p.n))
		if err != nil {
			return nil, err
		}
		if !m.Whole() {
			return nil, fmt.Errorf("rows %d to %d are no bands", p.row, p.row+p.n)
		}
		across, down, layout, err := shape(l, p.n)
		if err != nil {
			return nil, err
		}
		data = append(data, foreign.Transpose(m.Rings, down, across, layout.Bytes()), m.Factors, m.Scales)
		if t := f.biases[l.Name]; t != nil {
			bias, err := f.bias(t, s, down*tile)
			if err != nil {
				return nil, err
			}
			data = append(data, bias)
		}
		if suffix, mark := marker(l.Stored.Codebook); suffix != "" {
			data = append(data, binary.LittleEndian.AppendUint32(nil, mark))
		}
	}
	return data, nil
}

// bias returns a bias in float16, with zeros behind it.
func (f *output) bias(t *hf.Tensor, s foreign.Source, n int) ([]byte, error) {
	raw := make([]byte, t.Bytes())
	err := s.Copy(t, func(p []byte, off int64) error {
		copy(raw[off:], p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	data := make([]byte, 2*n)
	if t.DType == hf.F16 {
		copy(data, raw)
		return data, nil
	}
	st, err := foreign.ScaleType(t.DType)
	if err != nil {
		return nil, t.Errorf("%w", err)
	}
	values := make([]float32, t.Elements())
	st.Decode(values, raw)
	num.EncodeF16(data, values)
	if i := hf.F16.FirstNotFinite(data); i >= 0 {
		return nil, t.Errorf("element %d, %v, is beyond f16", i, values[i])
	}
	return data, nil
}

// Rounds implements [foreign.Rounder]: biases become float16.
func (f *output) Rounds() bool {
	for _, l := range f.model.Layers {
		t := f.biases[l.Name]
		if t == nil || l.As == foreign.Dense || t.DType == hf.F16 {
			continue
		}
		values := make([]float32, t.Elements())
		if t.ReadFloat32(values, 0) != nil {
			continue // what writes it says what is wrong
		}
		if slices.ContainsFunc(values, func(v float32) bool { return num.F16ToF32(num.F32ToF16(v)) != v }) {
			return true
		}
	}
	return false
}

// Version is that of exllamav3 whose format this is.
const version = "1.6.5"

// written is the quantization_config, and the beginning of quantization_config.json.
type written struct {
	Method   string            `json:"quant_method"`
	Version  string            `json:"version"`
	Bits     float64           `json:"bits"`
	Head     float64           `json:"head_bits"`
	Codebook string            `json:"codebook,omitempty"` // of most layers
	Storage  map[string]module `json:"tensor_storage,omitempty"`
}

// module is what quantization_config.json tells of a module.
type module struct {
	Tensors map[string]tensor `json:"stored_tensors"`
	Format  string            `json:"quant_format,omitempty"`
	Bits    float64           `json:"bits_per_weight,omitempty"`
	Mul1    uint32            `json:"mul1_multiplier,omitempty"`
	MCG     uint32            `json:"mcg_multiplier,omitempty"`
}

type tensor struct {
	Shape []int  `json:"shape"`
	Bytes int64  `json:"n_bytes"`
	DType string `json:"dtype"` // as torch calls it
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	c, storage, err := f.config()
	if err != nil {
		return err
	}
	q, err := foreign.Indented(c)
	if err != nil {
		return err
	}
	c.Storage = storage
	file, err := foreign.JSON(c)
	if err != nil {
		return err
	}
	packed := make(map[*hf.Tensor]bool)
	for _, l := range f.model.Layers {
		if l.As != foreign.Dense && f.biases[l.Name] != nil {
			packed[f.biases[l.Name]] = true
		}
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{
		Edits: []foreign.Member{{Key: "quantization_config", Value: q}},
		Files: map[string][]byte{"quantization_config.json": file},
		Skip:  func(t *hf.Tensor) bool { return packed[t] },
	})
}

// config returns what tells of the layers, and where all tensors are.
func (f *output) config() (written, map[string]module, error) {
	c := written{Method: "exl3", Version: version, Head: 16}
	storage, books := make(map[string]module), make(map[string]int)
	bits, weights := 0.0, 0.0
	add := func(name string, e hf.Entry) error {
		size, err := e.Bytes()
		if err != nil {
			return err
		}
		m := storage[name]
		if m.Tensors == nil {
			m.Tensors = make(map[string]tensor)
		}
		m.Tensors[e.Name] = tensor{Shape: e.Shape, Bytes: size, DType: torchNames()[e.DType]}
		storage[name] = m
		return nil
	}
	head := f.model.Head()
	for _, l := range f.model.Layers {
		width := float64(l.Stored.Rate()) / 2
		if l.As == foreign.Dense {
			e := hf.Entry{Name: l.Tensor, DType: hf.DType(f.model.DType.DType()), Shape: l.Shape}
			if err := add(moduleOf(l.Tensor), e); err != nil {
				return c, nil, err
			}
			continue
		}
		for _, p := range f.layers(l) {
			entries, err := f.entries(l, p)
			if err != nil {
				return c, nil, err
			}
			for _, e := range entries {
				if err := add(p.name, e); err != nil {
					return c, nil, err
				}
			}
			m := storage[p.name]
			m.Format, m.Bits = "exl3", width
			switch l.Stored.Codebook {
			case trellis.Mul1:
				m.Mul1 = mul1Mark
			case trellis.MCG:
				m.MCG = mcgMark
			}
			storage[p.name] = m
		}
		if l.Name == head {
			c.Head = width
			continue
		}
		books[l.Stored.Codebook]++
		bits, weights = bits+width*float64(l.N)*float64(l.K), weights+float64(l.N)*float64(l.K)
	}
	for _, t := range f.model.Kept {
		name := moduleOf(t.Name)
		if _, packed := storage[name].Tensors[t.Name]; packed {
			continue
		}
		if err := add(name, hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape}); err != nil {
			return c, nil, err
		}
	}
	if weights > 0 {
		c.Bits = math.Round(100*bits/weights) / 100
	}
	for _, book := range slices.Sorted(maps.Keys(books)) {
		if books[book] > books[c.Codebook] {
			c.Codebook = book
		}
	}
	return c, storage, nil
}

// moduleOf returns what a tensor is of.
func moduleOf(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return name[:i]
	}
	return name
}

// torchNames returns what torch calls the types of tensors.
func torchNames() map[hf.DType]string {
	return map[hf.DType]string{
		"I16": "torch.int16", "I32": "torch.int32", "I64": "torch.int64", "I8": "torch.int8", hf.U8: "torch.uint8", "BOOL": "torch.bool",
		hf.F16: "torch.float16", hf.BF16: "torch.bfloat16", hf.F32: "torch.float32", hf.F64: "torch.float64",
	}
}
