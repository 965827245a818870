package mlx

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// Scheme is that of MLX.
type Scheme struct{}

// format is how a layer is stored.
type format struct {
	Bits  int    `json:"bits"`
	Group int    `json:"group_size"`
	Mode  string `json:"mode"`
}

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != "" {
		return nil, false, nil
	}
	var of map[string]json.RawMessage // of layers, and what holds for the others
	if json.Unmarshal(s.Quantization, &of) != nil || of["bits"] == nil || of["group_size"] == nil {
		return nil, false, nil
	}
	var all format
	if json.Unmarshal(s.Quantization, &all) != nil {
		return nil, false, fmt.Errorf("config.json: %s: want bits and group_size as numbers", s.Key)
	}
	part := make(map[*hf.Tensor]bool)
	for _, t := range s.Tensors {
		layer, is := strings.CutSuffix(t.Name, ".weight")
		if !is || t.DType != "U32" {
			continue
		}
		own := all
		if text := of[layer]; text != nil {
			// An object replaces all of it; true means what holds for the others.
			var q format
			if json.Unmarshal(text, &q) == nil {
				own = q
			}
		}
		e, err := own.layer(s, layer, t)
		if err != nil {
			return nil, false, err
		}
		for _, p := range e.Parts {
			part[p] = true
		}
		found = append(found, e)
	}
	for _, t := range s.Tensors {
		if layer, ok := strings.CutSuffix(t.Name, ".scales"); ok && !part[t] {
			return nil, false, t.Errorf("is the scales of %q, whose weights are not there in U32", layer)
		}
	}
	return found, true, nil
}

// layer returns the weight of a layer whose codes are t.
func (f format) layer(s *hf.Stored, layer string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	scale, bias := s.Tensor(layer+".scales"), s.Tensor(layer+".biases")
	switch {
	case len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] < 1:
		return none, t.Errorf("shape %v: want a matrix: stacks of them are not supported", t.Shape)
	case scale == nil:
		return none, t.Errorf("no scales: want a tensor %q", layer+".scales")
	case f.Bits < 1 || f.Bits > 8 || f.Group < 1:
		return none, t.Errorf("config.json stores it in %d bits in groups of %d weights", f.Bits, f.Group)
	}
	n := t.Shape[0]
	m := &codes.Matrix{N: n, K: t.Shape[1] * 32 / f.Bits, Bits: f.Bits, Codes: codes.Rows(t, n, f.Bits)}
	if m.K*f.Bits != t.Shape[1]*32 || m.K%f.Group != 0 {
		return none, t.Errorf("rows of %d words are no groups of %d codes of %d bits", t.Shape[1], f.Group, f.Bits)
	}
	m.Group = f.Group
	shape := []int{n, m.GroupsInRow()}
	parts := []*hf.Tensor{t, scale}
	by := ""
	switch f.Mode {
	case "", "affine":
		by = fmt.Sprintf("MLX, %d bits", f.Bits)
		if !slices.Contains([]int{2, 3, 4, 5, 6, 8}, f.Bits) {
			return none, t.Errorf("config.json stores it in %d bits: want 2 to 6 or 8", f.Bits)
		}
		if bias == nil {
			return none, t.Errorf("no biases: want a tensor %q", layer+".biases")
		}
		for _, p := range []*hf.Tensor{scale, bias} {
			if err := codes.Shape(p, shape, hf.BF16, hf.F16, hf.F32); err != nil {
				return none, err
			}
		}
		var err error
		if m.Offsets, err = codes.Scales(bias, shape[1]); err != nil {
			return none, err
		}
		parts = append(parts, bias)
		m.Values, m.ScaleType = codes.Unsigned(f.Bits), scale.DType
	case "mxfp4", "nvfp4":
		by = "MLX " + strings.ToUpper(f.Mode)
		if f.Bits != 4 {
			return none, t.Errorf("config.json stores it as %s in %d bits", f.Mode, f.Bits)
		}
		if err := codes.Shape(scale, shape, hf.U8); err != nil {
			return none, err
		}
		m.Values, m.ScaleType = codes.E2M1(), hf.F8E8M0
	default:
		return none, t.Errorf("config.json stores it in mode %.40q: want affine, mxfp4 or nvfp4", f.Mode)
	}
	as := scale.DType
	if f.Mode == "nvfp4" {
		as, m.ScaleType, m.Unit = hf.F8E4M3, hf.F32, 1
	}
	var err error
	if m.Scales, err = codes.ScalesAs(scale, as, shape[1]); err != nil {
		return none, err
	}
	return m.Encoded(layer+".weight", by, parts...)
}
