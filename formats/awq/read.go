package awq

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// Scheme is that of AWQ.
type Scheme struct{}

// config is what config.json says about weights.
type config struct {
	Version   string `json:"version"`
	Bits      int    `json:"bits"`
	Group     int    `json:"group_size"` // −1: all of a row
	ZeroPoint *bool  `json:"zero_point"`
}

// places returns where the code of each of eight rows lies in a word.
func places() []int { return []int{0, 4, 1, 5, 2, 6, 3, 7} }

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != "awq" {
		return nil, false, nil
	}
	var c config
	if json.Unmarshal(s.Quantization, &c) != nil {
		return nil, false, fmt.Errorf("config.json: %s: want bits and group_size as numbers, and zero_point true or false", s.Key)
	}
	if version := strings.ToLower(c.Version); version != "gemm" && version != "" || c.Bits != 4 {
		return nil, false, fmt.Errorf("config.json: %s: version %.40q with %d bits is not supported: want gemm with 4", s.Key, c.Version, c.Bits)
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
	scale, zero := s.Tensor(layer+".scales"), s.Tensor(layer+".qzeros")
	switch {
	case len(t.Shape) != 2 || t.DType != "I32" || t.Shape[0] < 1 || t.Shape[1] < 1:
		return none, t.Errorf("is %s %v: want I32 [k, n/8]: stacks of matrices are not supported", t.DType, t.Shape)
	case scale == nil:
		return none, t.Errorf("no scales: want a tensor %q", layer+".scales")
	}
	n, k := 8*t.Shape[1], t.Shape[0]
	m := &codes.Matrix{
		N: n, K: k, Bits: 4, Group: k, Values: codes.Signed(4), ScaleType: scale.DType,
		Codes: codes.Transposed(codes.Ordered(codes.Rows(t, k, 4), places()...)),
	}
	if c.Group != -1 {
		m.Group = min(c.Group, k)
	}
	if m.Group < 1 {
		return none, t.Errorf("config.json has groups of %d weights", c.Group)
	}
	groups := m.GroupsInRow()
	if err := codes.Shape(scale, []int{groups, n}, hf.F16, hf.BF16, hf.F32); err != nil {
		return none, err
	}
	scales, err := codes.Scales(scale, n)
	if err != nil {
		return none, err
	}
	m.Scales = codes.Transposed(scales)
	parts := []*hf.Tensor{t, scale}
	by := "AWQ, 4 bits"
	switch {
	case zero != nil:
		parts = append(parts, zero)
		if err := codes.Shape(zero, []int{groups, n / 8}, "I32"); err != nil {
			return none, err
		}
		stored := codes.Rows(zero, groups, 4)
		if c.ZeroPoint != nil && !*c.ZeroPoint {
			// Which must be those that programs take that do not look at them.
			all, same, err := codes.Uniform(stored, groups, n)
			if err == nil && (!same || all != 8) {
				err = zero.Errorf("has zero points of its own, and config.json says zero_point: false: some programs use them, others do not")
			}
			if err != nil {
				return none, err
			}
			break
		}
		by += " with zero points"
		m.Values = codes.Unsigned(4)
		m.Zeros = codes.Transposed(codes.Ordered(stored, places()...))
	case c.ZeroPoint != nil && *c.ZeroPoint:
		return none, t.Errorf("config.json says zero_point: true, and there are none: want a tensor %q", layer+".qzeros")
	}
	return m.Encoded(layer+".weight", by, parts...)
}
