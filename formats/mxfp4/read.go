// Package mxfp4 reads the MXFP4 of gpt-oss: stacks of matrices, one for each expert.
//
// A tensor P [..., n, k] is
//
//	P_blocks  U8 [..., n, k/32, 16]  codes of E2M1, the lower four bits first
//	P_scales  U8 [..., n, k/32]      powers of two: 2^(s−127)
//
// The format is that of the Open Compute Project (OCP Microscaling Formats 1.0).
package mxfp4

import (
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// block is how many weights share a scale.
const block = 32

// Scheme is that of gpt-oss.
type Scheme struct{}

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != "mxfp4" {
		return nil, false, nil
	}
	for _, t := range s.Tensors {
		if t.DType != hf.U8 {
			continue
		}
		if name, ok := strings.CutSuffix(t.Name, "_blocks"); ok {
			e, err := weight(s, name, t)
			if err != nil {
				return nil, false, err
			}
			found = append(found, e)
		}
		if name, ok := strings.CutSuffix(t.Name, "_scales"); ok && s.Tensor(name+"_blocks") == nil {
			return nil, false, t.Errorf("is the scales of %q, which is not there", name+"_blocks")
		}
	}
	return found, true, nil
}

// weight returns the tensor of a name whose codes are t.
func weight(s *hf.Stored, name string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	scales := s.Tensor(name + "_scales")
	last := len(t.Shape) - 1
	switch {
	case last < 2 || t.Shape[last] != block/2:
		return none, t.Errorf("shape %v: want blocks of %d bytes, as in [n, k/%d, %d]", t.Shape, block/2, block, block/2)
	case scales == nil:
		return none, t.Errorf("no scales: want a tensor %q", name+"_scales")
	case scales.DType != hf.U8 || !slices.Equal(scales.Shape, t.Shape[:last]):
		return none, t.Errorf("scales %q are %s %v: want U8 %v", scales.Name, scales.DType, scales.Shape, t.Shape[:last])
	case t.Shape[last-1] > math.MaxInt32/block:
		return none, t.Errorf("shape %v is too large", t.Shape)
	case t.Elements() == 0:
		return none, t.Errorf("shape %v has no elements", t.Shape)
	}
	shape := slices.Clone(t.Shape[:last])
	shape[last-1] *= block
	k := shape[last-1]
	rows := int(2 * t.Elements() / int64(k)) // of all matrices
	m := &codes.Matrix{N: rows, K: k, Bits: 4, Group: block, Values: codes.E2M1(), ScaleType: hf.F8E8M0, Codes: codes.Rows(t, rows, 4)}
	var err error
	if m.Scales, err = codes.Scales(scales, m.GroupsInRow()); err != nil {
		return none, err
	}
	e, err := m.Encoded(name, "MXFP4", t, scales)
	if err == nil {
		e.Shape, e.N, e.Turned = shape, shape[last-2], true
	}
	return e, err
}
