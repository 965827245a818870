package foreign

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
)

// ScaleType returns the type of 16 or 32 bits that safetensors calls so.
func ScaleType(t hf.DType) (weight.ScaleType, error) {
	for _, s := range []weight.ScaleType{weight.F16, weight.BF16, weight.F32} {
		if s.DType() == string(t) {
			return s, nil
		}
	}
	return 0, fmt.Errorf("type %s: want F16, BF16 or F32", t)
}

// TorchName returns a type as transformers spells it, such as "bfloat16".
func TorchName(t weight.ScaleType) string {
	switch t {
	case weight.F16:
		return "float16"
	case weight.BF16:
		return "bfloat16"
	}
	return "float32"
}

// DTypeOf returns the type that a model computes with, by its config.json, or else the type of most
// of its tensors.
func DTypeOf(config []byte, tensors []*hf.Tensor) weight.ScaleType {
	var outer struct {
		dtypes
		Text dtypes `json:"text_config"`
	}
	if json.Unmarshal(config, &outer) == nil {
		for _, name := range []string{outer.Text.DType, outer.Text.TorchDType, outer.DType, outer.TorchDType} {
			for _, t := range []weight.ScaleType{weight.F16, weight.BF16, weight.F32} {
				if TorchName(t) == strings.TrimPrefix(name, "torch.") {
					return t
				}
			}
		}
	}
	var sums [weight.F32 + 1]int64
	best := weight.F32
	for _, t := range tensors {
		s, err := ScaleType(t.DType)
		if err != nil {
			continue
		}
		if sums[s] += t.Elements(); sums[s] > sums[best] {
			best = s
		}
	}
	return best
}

// dtypes are the two keys that a type goes by.
type dtypes struct {
	DType      string `json:"dtype"`
	TorchDType string `json:"torch_dtype"`
}

// Unquantized returns the names of the linear layers that a model keeps in 16 or 32 bits, its output
// head among them also where that is the embedding: clients take what is not named
// for packed.
func (m *Model) Unquantized() []string {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	quantized := false
	for _, l := range m.Layers {
		if l.As == Dense && l.Role != arch.EmbeddingWeight {
			add(strings.TrimSuffix(l.Tensor, weightSuffix))
		}
		quantized = quantized || l.As != Dense && l.Role == arch.HeadWeight
	}
	for _, t := range m.Kept {
		name, ok := strings.CutSuffix(t.Name, weightSuffix)
		if role := m.Role(t.Name); ok && len(t.Shape) == 2 && role != arch.EmbeddingWeight && role != arch.NormWeight {
			add(name)
		}
	}
	if !quantized {
		add(m.Head())
	}
	return names
}

const weightSuffix = ".weight"

// Head names the module of the output head, be it one that shares the embedding's weights.
func (m *Model) Head() string {
	if m.Decoder != nil && !m.Decoder.Tied {
		return m.Decoder.Head.Stored.Path
	}
	return "lm_head"
}

// Experts returns how many layers that are quantized are matrices of an expert.
func (m *Model) Experts() int {
	if m.Decoder == nil {
		return 0
	}
	expert := make(map[string]bool)
	for _, b := range m.Decoder.Blocks {
		if b.MoE == nil {
			continue
		}
		for _, e := range b.MoE.Experts {
			for _, l := range e.Linears() {
				expert[l.Stored.Path] = true
			}
		}
	}
	n := 0
	for _, l := range m.Layers {
		if l.As != Dense && expert[l.Name] {
			n++
		}
	}
	return n
}

// Role says what a tensor of the model is for.
func (m *Model) Role(tensor string) arch.Role {
	if m.Decoder != nil {
		if role := m.Decoder.Role(tensor); role != arch.Other {
			return role
		}
	}
	return arch.ByName(tensor)
}

// Linear says why a layer cannot be one of those that programs multiply by in packed form,
// which hold the linear layers of a model's blocks one by one; "" is for one that can.
func Linear(l *Layer) string {
	if why := Single(l); why != "" {
		return why
	}
	if l.Role == arch.HeadWeight {
		return "it is the output head, which is not packed"
	}
	return ""
}

// Single is [Linear] for programs that pack the output head as well.
func Single(l *Layer) string {
	switch {
	case l.Experts > 0:
		return "it is a stack of experts, which are packed one by one only"
	case l.Role == arch.EmbeddingWeight:
		return "it is an embedding, which is not packed"
	}
	return ""
}

// Rowwise reports whether a layer is to be called one with a scale a row, where its groups might as well be of
// one of some sizes.
func Rowwise(l *Layer, sizes ...int) bool {
	return l.Group == l.K && (l.Stored.Group == weight.RowGroup || !slices.Contains(sizes, l.K))
}
