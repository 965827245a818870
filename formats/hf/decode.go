package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// maxSize bounds sizes so that the product of two fits an int64.
const maxSize = math.MaxInt32

// scheme is what a config.json says about how weights are stored, of what is
// decoded.
type scheme struct {
	mxfp4 bool // otherwise FP8

	// block is the rows and columns of FP8 weights that share a scale, nil where
	// the scales' shape tells.
	block []int
}

// quantizationKeys are the keys of a config.json that say how weights are stored.
func quantizationKeys() []string { return []string{"quantization_config", "compression_config"} }

// readScheme returns nil where a config.json speaks of no scheme that is decoded.
func (o object) readScheme() (*scheme, error) {
	for _, part := range o.parts() {
		for _, key := range quantizationKeys() {
			if !part.has(key) {
				continue
			}
			s, err := parseScheme(part[key])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			return s, nil
		}
	}
	return nil, nil
}

func parseScheme(text json.RawMessage) (*scheme, error) {
	var is struct {
		Method string `json:"quant_method"`
		Format string `json:"format"`
	}
	if json.Unmarshal(text, &is) != nil {
		return nil, nil // CheckPlain refuses it
	}
	switch {
	case is.Method == "mxfp4":
		return &scheme{mxfp4: true}, nil
	case is.Method == "fbgemm_fp8":
		return &scheme{}, nil
	case is.Method == "fp8":
		var q struct {
			Block []int `json:"weight_block_size"`
		}
		if err := json.Unmarshal(text, &q); err != nil {
			return nil, errors.New("weight_block_size: want two numbers")
		}
		return &scheme{block: q.Block}, checkBlock(q.Block)
	case (is.Method == "compressed-tensors" || is.Method == "") && is.Format == "float-quantized":
		return parseFloatQuantized(text)
	}
	return nil, nil
}

// parseFloatQuantized reads the FP8 of compressed-tensors, which may have groups of
// layers with blocks of their own. What they are is told by the scales' shape,
// unless there are blocks.
func parseFloatQuantized(text json.RawMessage) (*scheme, error) {
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
	s, first := &scheme{}, true
	for _, g := range q.Groups {
		var block []int
		switch g.Weights.Strategy {
		case "block":
			block = g.Weights.Block
		case "group":
			block = []int{1, g.Weights.Group}
		}
		if !first && !slices.Equal(s.block, block) {
			return nil, errors.New("config_groups: layers with different blocks in one model are not supported")
		}
		s.block, first = block, false
	}
	return s, checkBlock(s.block)
}

func checkBlock(block []int) error {
	if block != nil && (len(block) != 2 || min(block[0], block[1]) < 1 || max(block[0], block[1]) > maxSize) {
		return fmt.Errorf("blocks of %v weights: want two positive numbers", block)
	}
	return nil
}

// decode makes the checkpoint's tensors those that the files' encode, where
// config.json says how. A config.json that is no object is left to others.
func (c *Checkpoint) decode() error {
	c.byName = c.stored
	path := filepath.Join(c.dir, "config.json")
	text, err := input.ReadFile(path, input.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	var config object
	if json.Unmarshal(text, &config) != nil {
		return nil
	}
	s, err := config.readScheme()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if s == nil {
		return nil
	}
	c.decodes = true
	d := decoder{scheme: s, stored: c.stored, part: make(map[*Tensor]bool), values: make(map[DType]*[256]float32)}
	decoded := make(map[*Tensor]*Tensor)
	for _, t := range c.tensors {
		of, err := d.tensor(t)
		if err != nil {
			return fmt.Errorf("%s: %w", c.dir, t.wrap(err))
		}
		if of != nil {
			decoded[t] = of
		}
	}
	c.byName = make(map[string]*Tensor, len(c.tensors))
	kept := c.tensors[:0]
	for _, t := range c.tensors {
		if of := decoded[t]; of != nil {
			t = of
		} else if d.part[t] {
			continue
		}
		if err := d.checkRest(t); err != nil {
			return fmt.Errorf("%s: %w", c.dir, t.wrap(err))
		}
		kept = append(kept, t)
		c.byName[t.Name] = t
	}
	c.tensors = kept
	c.side = slices.DeleteFunc(c.side, func(name string) bool { return name == "quantize_config.json" })
	return nil
}

// decoder finds the tensors that a scheme stores others in.
type decoder struct {
	*scheme
	stored map[string]*Tensor
	part   map[*Tensor]bool // of an encoded tensor
	values map[DType]*[256]float32
}

// tensor returns the tensor that t has the codes of, nil where it has none.
func (d *decoder) tensor(t *Tensor) (*Tensor, error) {
	name, ok := strings.CutSuffix(t.Name, "_blocks")
	switch {
	case d.mxfp4 && ok && t.DType == U8:
		return d.newMXFP4(name, t)
	case !d.mxfp4 && (t.DType == F8E4M3 || t.DType == F8E5M2) && !d.isScale(t):
		return d.newFP8(t)
	}
	return nil, nil
}

// isScale reports whether a tensor in FP8 has its name from weights.
func (d *decoder) isScale(t *Tensor) bool {
	for _, suffix := range []string{"_scale_inv", "_scale"} {
		if name, ok := strings.CutSuffix(t.Name, suffix); ok && d.stored[name] != nil {
			return true
		}
	}
	return false
}

// checkRest refuses what is left where it is a part of nothing.
func (d *decoder) checkRest(t *Tensor) error {
	of, ok := strings.CutSuffix(t.Name, "_scale_inv")
	if !d.mxfp4 {
		if ok {
			return fmt.Errorf("is the scale of %q, which is not there in FP8", of)
		}
		return nil
	}
	if of, ok = strings.CutSuffix(t.Name, "_scales"); ok && t.DType == U8 {
		return fmt.Errorf("is the scales of %q, which is not there", of+"_blocks")
	}
	return nil
}

// newMXFP4 returns the tensor [..., n, k] of a name, of which t has the codes in
// blocks [..., n, k/32, 16] and another tensor the scales [..., n, k/32].
func (d *decoder) newMXFP4(name string, t *Tensor) (*Tensor, error) {
	const block = 32
	scales := d.stored[name+"_scales"]
	last := len(t.Shape) - 1
	switch {
	case d.stored[name] != nil:
		return nil, fmt.Errorf("stores %q, which is there as well", name)
	case last < 2 || t.Shape[last] != block/2:
		return nil, fmt.Errorf("shape %v: want blocks of %d bytes, as in [n, k/%d, %d]", t.Shape, block/2, block, block/2)
	case scales == nil:
		return nil, fmt.Errorf("no scales: want a tensor %q", name+"_scales")
	case scales.DType != U8 || !slices.Equal(scales.Shape, t.Shape[:last]):
		return nil, fmt.Errorf("scales %q are %s %v: want U8 %v", scales.Name, scales.DType, scales.Shape, t.Shape[:last])
	case t.Shape[last-1] > maxSize/block:
		return nil, fmt.Errorf("shape %v is too large", t.Shape)
	}
	shape := slices.Clone(t.Shape[:last])
	shape[last-1] *= block
	d.part[t], d.part[scales] = true, true
	exponents := *scales
	exponents.DType = F8E8M0 // which safetensors did not have yet
	return newEncoded(name, shape, &Encoding{
		Type: MXFP4, Rows: 1, Cols: block, n: shape[last-2], k: shape[last-1],
		codes: t, scales: &exponents, values: d.table(MXFP4), nibbles: true,
	})
}

// newFP8 returns the tensor of t's name and shape of which t has the codes.
func (d *decoder) newFP8(t *Tensor) (*Tensor, error) {
	inverse, scale := d.stored[t.Name+"_scale_inv"], d.stored[t.Name+"_scale"]
	layer := strings.TrimSuffix(t.Name, ".weight")
	switch {
	case inverse != nil && scale != nil:
		return nil, fmt.Errorf("has two scales, %q and %q", inverse.Name, scale.Name)
	case inverse != nil:
		scale = inverse // named for what weights were multiplied by
	case scale == nil:
		return nil, fmt.Errorf("no scale: want a tensor %q or %q", t.Name+"_scale_inv", t.Name+"_scale")
	}
	if zero := d.stored[t.Name+"_zero_point"]; zero != nil {
		return nil, fmt.Errorf("has a zero point, %q, which is not supported", zero.Name)
	}
	if !slices.Contains([]DType{F32, BF16, F16, F8E8M0}, scale.DType) {
		return nil, fmt.Errorf("scale %q is of type %s: want F32, BF16, F16 or F8_E8M0", scale.Name, scale.DType)
	}
	e := &Encoding{Type: t.DType, codes: t, scales: scale, values: d.table(t.DType)}
	if err := e.layOut(t.Shape, scale.Shape, d.block); err != nil {
		return nil, fmt.Errorf("scale %q of shape %v: %w", scale.Name, scale.Shape, err)
	}
	d.part[t], d.part[scale] = true, true
	for _, suffix := range []string{"input_scale", "activation_scale", "input_scale_ub"} {
		for _, sep := range []string{".", "_"} {
			if u := d.stored[layer+sep+suffix]; u != nil && !d.part[u] {
				d.part[u] = true
				e.unused = append(e.unused, u)
			}
		}
	}
	return newEncoded(t.Name, t.Shape, e)
}

// layOut finds out which weights share a scale, in matrices of a shape, from the
// shape of the scales, given the block or nil.
func (e *Encoding) layOut(shape, scales, block []int) error {
	if len(shape) < 2 {
		return fmt.Errorf("weights of shape %v: want a matrix", shape)
	}
	before, n, k := shape[:len(shape)-2], shape[len(shape)-2], shape[len(shape)-1]
	e.n, e.k = n, k
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
			e.n *= dim
		}
		e.Rows = e.n
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
	path := filepath.Join(c.dir, "config.json")
	text, err := input.ReadFile(path, input.Config)
	if err != nil || !c.decodes {
		return text, err
	}
	if text, err = withoutQuantization(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// withoutQuantization cuts the keys that say how weights are stored out of a
// config.json and its text_config.
func withoutQuantization(text []byte) ([]byte, error) {
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
			if value, err = withoutQuantization(value); err != nil {
				return err
			}
		}
		out = append(out, value...)
		return nil
	})
	return append(out, text[end:]...), err
}
