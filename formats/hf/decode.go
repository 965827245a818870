package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// maxSize bounds sizes so that the product of two fits an int64.
const maxSize = math.MaxInt32

// FP8Scheme is that of weights in eight bits with a scale per block, row or tensor: of
// DeepSeek and those after it, of FBGEMM, and float-quantized of compressed-tensors.
type FP8Scheme struct{}

// Decode implements [Scheme].
func (FP8Scheme) Decode(s *Stored) ([]Encoded, bool, error) {
	block, ok, err := fp8Block(s)
	if err != nil {
		return nil, false, fmt.Errorf("config.json: %s: %w", s.Key, err)
	}
	if !ok {
		return nil, false, nil
	}
	d := decoder{Stored: s, block: block, part: make(map[*Tensor]bool), values: make(map[DType]*[256]float32)}
	found, err := d.all(func(t *Tensor) (*Encoded, error) {
		if t.DType != F8E4M3 && t.DType != F8E5M2 || d.isScale(t) {
			return nil, nil
		}
		return d.newFP8(t)
	})
	if err != nil {
		return nil, false, err
	}
	for _, t := range s.Tensors {
		if of, ok := strings.CutSuffix(t.Name, "_scale_inv"); ok && !d.part[t] {
			return nil, false, t.Errorf("is the scale of %q, which is not there in FP8", of)
		}
	}
	return found, true, nil
}

// fp8Block returns the rows and columns of FP8 weights that share a scale, nil where
// the scales' shape tells.
func fp8Block(s *Stored) (block []int, ok bool, err error) {
	var q struct {
		Format string `json:"format"`
		Block  []int  `json:"weight_block_size"`
	}
	err = json.Unmarshal(s.Quantization, &q)
	switch {
	case s.Method == "fbgemm_fp8":
		return nil, true, nil
	case s.Method == "fp8" && err != nil:
		return nil, false, errors.New("weight_block_size: want two numbers")
	case s.Method == "fp8":
		return q.Block, true, checkBlock(q.Block)
	case (s.Method == "compressed-tensors" || s.Method == "") && q.Format == "float-quantized":
		block, err = floatQuantized(s.Quantization)
		return block, true, err
	}
	return nil, false, nil
}

// floatQuantized reads the FP8 of compressed-tensors, which may have groups of
// layers with blocks of their own. What they are is told by the scales' shape,
// unless there are blocks.
func floatQuantized(text json.RawMessage) (shared []int, err error) {
	var q struct {
		Groups map[string]struct {
			Weights struct {
				Strategy string `json:"strategy"`
				Block    []int  `json:"block_structure"`
				Group    int    `json:"group_size"`
			} `json:"weights"`
		} `json:"config_groups"`
	}
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, fmt.Errorf("config_groups: %w", err)
	}
	first := true
	for _, g := range q.Groups {
		var block []int
		switch g.Weights.Strategy {
		case "block":
			block = g.Weights.Block
		case "group":
			block = []int{1, g.Weights.Group}
		}
		if !first && !slices.Equal(shared, block) {
			return nil, errors.New("config_groups: layers with different blocks in one model are not supported")
		}
		shared, first = block, false
	}
	return shared, checkBlock(shared)
}

func checkBlock(block []int) error {
	if block != nil && (len(block) != 2 || min(block[0], block[1]) < 1 || max(block[0], block[1]) > maxSize) {
		return fmt.Errorf("blocks of %v weights: want two positive numbers", block)
	}
	return nil
}

// decoder finds the tensors that are stored in others.
type decoder struct {
	*Stored
	block  []int
	part   map[*Tensor]bool // of an encoded tensor
	values map[DType]*[256]float32
}

// all gathers what find makes of the tensors.
func (d *decoder) all(find func(t *Tensor) (*Encoded, error)) (found []Encoded, err error) {
	for _, t := range d.Tensors {
		e, err := find(t)
		if err != nil {
			return nil, t.wrap(err)
		}
		if e != nil {
			found = append(found, *e)
		}
	}
	return found, nil
}

// isScale reports whether a tensor in FP8 has its name from weights.
func (d *decoder) isScale(t *Tensor) bool {
	for _, suffix := range []string{"_scale_inv", "_scale"} {
		if name, ok := strings.CutSuffix(t.Name, suffix); ok && d.Tensor(name) != nil {
			return true
		}
	}
	return false
}

// newFP8 returns the tensor of t's name and shape of which t has the codes.
func (d *decoder) newFP8(t *Tensor) (*Encoded, error) {
	inverse, scale := d.Tensor(t.Name+"_scale_inv"), d.Tensor(t.Name+"_scale")
	layer := strings.TrimSuffix(t.Name, ".weight")
	switch {
	case inverse != nil && scale != nil:
		return nil, fmt.Errorf("has two scales, %q and %q", inverse.Name, scale.Name)
	case inverse != nil:
		scale = inverse // named for what weights were multiplied by
	case scale == nil:
		return nil, fmt.Errorf("no scale: want a tensor %q or %q", t.Name+"_scale_inv", t.Name+"_scale")
	}
	if zero := d.Tensor(t.Name + "_zero_point"); zero != nil {
		return nil, fmt.Errorf("has a zero point, %q, which is not supported", zero.Name)
	}
	if !slices.Contains([]DType{F32, BF16, F16, F8E8M0}, scale.DType) {
		return nil, fmt.Errorf("scale %q is of type %s: want F32, BF16, F16 or F8_E8M0", scale.Name, scale.DType)
	}
	e := &Encoding{Type: string(t.DType), Parts: []*Tensor{t, scale}}
	if err := e.layOut(t.Shape, scale.Shape, d.block); err != nil {
		return nil, fmt.Errorf("scale %q of shape %v: %w", scale.Name, scale.Shape, err)
	}
	d.part[t], d.part[scale] = true, true
	for _, suffix := range []string{"input_scale", "activation_scale", "input_scale_ub"} {
		for _, sep := range []string{".", "_"} {
			if u := d.Tensor(layer + sep + suffix); u != nil && !d.part[u] {
				d.part[u] = true
				e.Parts = append(e.Parts, u)
			}
		}
	}
	return newScaled(t.Name, t.Shape, &scaled{Encoding: e, codes: t, scales: scale, values: d.table(t.DType)}), nil
}

// layOut finds out which weights share a scale, in matrices of a shape, from the
// shape of the scales, given the block or nil.
func (e *Encoding) layOut(shape, scales, block []int) error {
	if len(shape) < 2 {
		return fmt.Errorf("weights of shape %v: want a matrix", shape)
	}
	before, n, k := shape[:len(shape)-2], shape[len(shape)-2], shape[len(shape)-1]
	e.N, e.K = n, k
	with := func(dims ...int) bool { return slices.Equal(scales, slices.Concat(before, dims)) }
	if block != nil {
		e.Rows, e.Cols = block[0], block[1]
		if want := []int{blocks(n, e.Rows), blocks(k, e.Cols)}; !with(want...) {
			return fmt.Errorf("want %v, for blocks of %d×%d weights of %v", slices.Concat(before, want), e.Rows, e.Cols, shape)
		}
		return nil
	}
	elements := 1
	for _, dim := range scales {
		elements *= dim // of a tensor that is there
	}
	e.Rows, e.Cols = n, k
	switch {
	case with(n, 1), with(n): // a row of a matrix
		e.Rows = 1
	case with(1, 1), with(): // a matrix
	case elements == 1: // all matrices together
		for _, dim := range before {
			e.N *= dim
		}
		e.Rows = e.N
	default:
		return fmt.Errorf("want one number, or one a row of %v", shape)
	}
	return nil
}

func (d *decoder) table(t DType) *[256]float32 {
	if d.values[t] == nil {
		d.values[t] = valueTable(t)
	}
	return d.values[t]
}

// ConfigJSON returns the folder's config.json as it is true of the checkpoint's
// tensors: without what says how they are stored where they are decoded, and
// otherwise as it stands.
func (c *Checkpoint) ConfigJSON() ([]byte, error) {
	text, err := c.File(configName, input.Config)
	if err != nil || !c.decodes {
		return text, err
	}
	if text, err = WithoutQuantization(text); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(c.dir, configName), err)
	}
	return text, nil
}

// WithoutQuantization cuts the keys that say how weights are stored out of a
// config.json and its text_config, and leaves everything else as it stands.
func WithoutQuantization(text []byte) ([]byte, error) {
	s, err := newScanner(text)
	if err != nil {
		return nil, err
	}
	open := bytes.IndexByte(text, '{') + 1
	end, out := open, bytes.Clone(text[:open]) // end is that of the last member
	members, kept := 0, 0
	err = s.object(func(key []byte) error {
		name := string(key)
		s.next()
		from := s.pos
		value := s.value()
		before := text[end:from] // comma, key and colon
		end = s.pos
		members++
		if slices.Contains(quantizationKeys(), name) {
			return nil
		}
		if kept++; kept == 1 && members > 1 {
			before = before[bytes.IndexByte(before, ',')+1:]
		}
		out = append(out, before...)
		if name == textPart && value[0] == '{' {
			if value, err = WithoutQuantization(value); err != nil {
				return err
			}
		}
		out = append(out, value...)
		return nil
	})
	return append(out, text[end:]...), err
}
