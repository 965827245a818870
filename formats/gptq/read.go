package gptq

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/codes"
	"github.com/lutq/lutq/formats/hf"
)

// Scheme is that of GPTQ.
type Scheme struct{}

// config is what config.json says about weights. Bits and groups of a layer that differ are
// told by its tensors.
type config struct {
	Bits      int    `json:"bits"`
	Group     int    `json:"group_size"` // −1: all of a row
	Symmetric bool   `json:"sym"`
	Format    string `json:"checkpoint_format"`
	Marlin    bool   `json:"is_marlin_format"`
}

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != "gptq" {
		return nil, false, nil
	}
	var c config
	if json.Unmarshal(s.Quantization, &c) != nil {
		return nil, false, fmt.Errorf("config.json: %s: want bits and group_size as numbers, and sym true or false", s.Key)
	}
	if c.Marlin || !slices.Contains([]string{"", "gptq", "gptq_v2"}, c.Format) {
		return nil, false, fmt.Errorf("config.json: %s: checkpoint_format %.40q is not supported: want gptq or gptq_v2", s.Key, c.Format)
	}
	for _, t := range s.Tensors {
		layer, is := strings.CutSuffix(t.Name, ".qweight")
		if !is {
			continue
		}
		e, err := c.layer(s, layer, t)
		if err != nil {
			return nil, false, err
		}
		found = append(found, e)
	}
	return found, true, nil
}

// layer returns the weight of a layer whose codes are t.
func (c *config) layer(s *hf.Stored, layer string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	scale, zero, index := s.Tensor(layer+".scales"), s.Tensor(layer+".qzeros"), s.Tensor(layer+".g_idx")
	switch {
	case len(t.Shape) != 2 || t.DType != "I32":
		return none, t.Errorf("is %s %v: want I32 [words, n]: stacks of matrices are not supported", t.DType, t.Shape)
	case scale == nil:
		return none, t.Errorf("no scales: want a tensor %q", layer+".scales")
	case len(scale.Shape) != 2 || scale.Shape[1] != t.Shape[1] || scale.Shape[0] < 1 || t.Shape[0] < 1 || t.Shape[1] < 1:
		return none, scale.Errorf("shape %v: want [groups, n] for codes of %v", scale.Shape, t.Shape)
	}
	parts := []*hf.Tensor{t, scale}
	n, bits := t.Shape[1], c.Bits
	k := 0
	if index != nil {
		if len(index.Shape) != 1 || index.Shape[0] < 1 {
			return none, index.Errorf("shape %v: want a group for each column", index.Shape)
		}
		k = index.Shape[0]
		bits = t.Shape[0] * 32 / k
	} else if bits > 0 {
		k = t.Shape[0] * 32 / bits
	}
	if !slices.Contains([]int{2, 3, 4, 8}, bits) || k*bits != 32*t.Shape[0] {
		return none, t.Errorf("%d columns in %d words are no codes of 2, 3, 4 or 8 bits", k, t.Shape[0])
	}
	m := &codes.Matrix{
		N: n, K: k, Bits: bits, Group: c.group(k, scale.Shape[0]), Values: codes.Signed(bits), ScaleType: scale.DType,
		Codes: codes.Transposed(codes.Columns(t, codes.Packing{Bits: bits})),
	}
	if m.GroupsInRow() != scale.Shape[0] {
		return none, scale.Errorf("%d groups of %d columns, in config.json of %d", scale.Shape[0], k, c.Group)
	}
	scales, err := codes.Scales(scale, n)
	if err != nil {
		return none, err
	}
	m.Scales = codes.Transposed(scales)
	if zero != nil {
		parts = append(parts, zero)
		if err := codes.Shape(zero, []int{scale.Shape[0], (n*bits + 31) / 32}, "I32"); err != nil {
			return none, err
		}
		m.Values = codes.Unsigned(bits)
		m.Zeros = codes.Transposed(codes.Rows(zero, scale.Shape[0], bits))
		if c.Format != "gptq_v2" {
			last := uint8(1)<<bits - 1
			m.Zeros = codes.Mapped(m.Zeros, func(z uint8) uint8 { return (z + 1) & last })
		}
	}
	by := fmt.Sprintf("GPTQ, %d bits", bits)
	if !c.Symmetric {
		by += " with zero points"
	}
	if index != nil {
		parts = append(parts, index)
		groups, err := codes.Ints(index)
		if err != nil {
			return none, err
		}
		if m.SetGroups(groups); m.Groups != nil {
			by += ", columns reordered"
		}
	}
	return m.Encoded(layer+".weight", by, parts...)
}

// group returns the columns of a group, of which k columns have some.
func (c *config) group(k, groups int) int {
	switch {
	case c.Group == -1 && groups == 1:
		return k
	case c.Group > 0 && (k-1)/min(c.Group, k)+1 == groups:
		return min(c.Group, k)
	}
	return (k-1)/groups + 1
}
