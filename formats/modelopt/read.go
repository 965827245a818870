// Package modelopt reads the NVFP4 of NVIDIA's Model Optimizer.
//
// A layer P of N rows and K columns is
//
//	P.weight          U8 [N, K/2]       codes of E2M1, the lower four bits first
//	P.weight_scale    F8_E4M3 [N, K/16]
//	P.weight_scale_2  F32 []            which scales are multiplied by
//	P.input_scale     F32 []            of activations; may be left out
//
// and means E2M1(code)·(scale·scale_2). config.json says so under quantization_config, or
// hf_quant_config.json under quantization: quant_algo is NVFP4. The source is the code of
// vLLM 0.33.
package modelopt

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
)

// sideName is the file that says how weights are stored where config.json does not.
const sideName = "hf_quant_config.json"

// group is how many weights share a scale.
const group = 16

// Scheme is that of Model Optimizer.
type Scheme struct{}

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	algorithm, err := algorithm(s)
	if err != nil || algorithm == "" {
		return nil, false, err
	}
	if algorithm != "NVFP4" {
		return nil, false, fmt.Errorf("quant_algo %.40q of Model Optimizer is not supported: want NVFP4", algorithm)
	}
	for _, t := range s.Tensors {
		layer, is := strings.CutSuffix(t.Name, ".weight")
		if !is || t.DType != hf.U8 {
			continue
		}
		e, err := weight(s, layer, t)
		if err != nil {
			return nil, false, err
		}
		found = append(found, e)
	}
	return found, true, nil
}

// algorithm returns the quant_algo of a folder, "" where it is not of Model Optimizer.
func algorithm(s *hf.Stored) (string, error) {
	type quantization struct {
		Algorithm string `json:"quant_algo"`
	}
	var q quantization
	switch s.Method {
	case "modelopt", "modelopt_fp4":
		if json.Unmarshal(s.Quantization, &q) != nil {
			return "", fmt.Errorf("config.json: %s: want quant_algo as text", s.Key)
		}
		if q.Algorithm == "" && s.Method == "modelopt_fp4" {
			q.Algorithm = "NVFP4"
		}
		return q.Algorithm, nil
	case "":
		if s.Quantization != nil {
			return "", nil
		}
	default:
		return "", nil
	}
	text, err := input.ReadFile(filepath.Join(s.Dir, sideName), input.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var side struct {
		Quantization quantization `json:"quantization"`
	}
	if json.Unmarshal(text, &side) != nil {
		return "", fmt.Errorf("%s: want a JSON object with quant_algo under quantization", sideName)
	}
	return side.Quantization.Algorithm, nil
}

// weight returns the weight of a layer whose codes are t.
func weight(s *hf.Stored, layer string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	scale, second := s.Tensor(layer+".weight_scale"), s.Tensor(layer+".weight_scale_2")
	switch {
	case len(t.Shape) != 2:
		return none, t.Errorf("shape %v: want a matrix: stacks of them are not supported", t.Shape)
	case scale == nil || second == nil:
		return none, t.Errorf("no scales: want tensors %q and %q", layer+".weight_scale", layer+".weight_scale_2")
	}
	n, k := t.Shape[0], 2*t.Shape[1]
	if n < 1 || k < 1 || k%group != 0 {
		return none, t.Errorf("shape %v: want [n, k/2], with k a multiple of %d", t.Shape, group)
	}
	if err := codes.Shape(scale, []int{n, k / group}, hf.F8E4M3); err != nil {
		return none, err
	}
	by, err := codes.Number(second)
	if err != nil {
		return none, err
	}
	scales, err := codes.Scales(scale, k/group)
	if err != nil {
		return none, err
	}
	m := &codes.Matrix{
		N: n, K: k, Bits: 4, Group: group, Values: codes.E2M1(), ScaleType: hf.F32, Unit: by, Codes: codes.Rows(t, n, 4),
		Scales: codes.Mapped(scales, func(s float32) float32 { return s * by }),
	}
	parts := []*hf.Tensor{t, scale, second}
	if in := s.Tensor(layer + ".input_scale"); in != nil {
		parts = append(parts, in)
	}
	return m.Encoded(layer+".weight", "NVFP4", parts...)
}
