package gptq

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// Scheme is that of GPTQ.
type Scheme struct{}

// config is what config.json says about weights. Bits and groups of a layer that differ are
// told by its tensors.
type config struct {
	Bits      int             `json:"bits"`
	Group     int             `json:"group_size"` // −1: all of a row
	Symmetric *bool           `json:"sym"`
	Format    string          `json:"checkpoint_format"`
	Marlin    bool            `json:"is_marlin_format"`
	Dynamic   json.RawMessage `json:"dynamic"` // by pattern, what holds for some layers instead
}

// symmetric returns what is said of the zero points of a layer, nil where nothing is. The patterns are of Python: one
// that Go does not know is for no layer.
func (c *config) symmetric(layer string) *bool {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(c.Dynamic, &all) // of what is no object nothing is known
	for _, pattern := range slices.Sorted(maps.Keys(all)) {
		var own struct {
			Symmetric *bool `json:"sym"`
		}
		if json.Unmarshal(all[pattern], &own) != nil || own.Symmetric == nil || strings.HasPrefix(pattern, "-:") {
			continue
		}
		if re, err := regexp.Compile("^(?:" + strings.TrimPrefix(pattern, "+:") + ")"); err == nil && re.MatchString(layer) {
			return own.Symmetric
		}
	}
	return c.Symmetric
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
	symmetric := c.symmetric(layer)
	switch {
	case zero != nil:
		parts = append(parts, zero)
		if err := codes.Shape(zero, []int{scale.Shape[0], (n*bits + 31) / 32}, "I32"); err != nil {
			return none, err
		}
		if err := c.zeros(m, zero, symmetric); err != nil {
			return none, err
		}
	case symmetric != nil && !*symmetric:
		return none, t.Errorf("config.json says sym: false, and there are no zero points: want a tensor %q", layer+".qzeros")
	}
	by := fmt.Sprintf("GPTQ, %d bits", bits)
	if symmetric == nil || !*symmetric {
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

// zeros sets the zero points of a matrix, which are stored in z.
//
// Where config.json says that they are symmetric, kernels that take 2^(b−1) whatever is stored (Marlin's, in GPTQModel 7
// and vLLM) multiply by the same weights as those that read what is stored only if that is 2^(b−1). It
// is as well where all are stored as they are in the other of the two versions: files are known that name the wrong
// one.
func (c *config) zeros(m *codes.Matrix, z *hf.Tensor, symmetric *bool) error {
	groups, last := z.Shape[0], uint8(1)<<m.Bits-1
	stored := codes.Rows(z, groups, m.Bits)
	if symmetric != nil && *symmetric {
		middle := uint8(1) << (m.Bits - 1)
		all, same, err := codes.Uniform(stored, groups, m.N)
		switch {
		case err != nil:
			return err
		case !same || all != middle && all != middle-1:
			return z.Errorf("has zero points of its own, and config.json says sym: true: some programs use them, others do not")
		}
		return nil // codes around the middle, as they are without zero points
	}
	m.Values, m.Zeros = codes.Unsigned(m.Bits), codes.Transposed(stored)
	if c.Format != "gptq_v2" {
		m.Zeros = codes.Mapped(m.Zeros, func(z uint8) uint8 { return (z + 1) & last })
	}
	return nil
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
