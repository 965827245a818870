package ct

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// The formats that are read, as config.json names them.
const (
	packed  = "pack-quantized"
	ints    = "int-quantized"
	nvfp4   = "nvfp4-pack-quantized"
	mxfp4   = "mxfp4-pack-quantized"
	several = "mixed-precision" // whose groups name their own
)

// Scheme is that of the formats of this package.
type Scheme struct{}

// config is what config.json says about weights.
type config struct {
	Format string           `json:"format"`
	Groups map[string]group `json:"config_groups"`
}

// group is how some layers are stored.
type group struct {
	Targets []string `json:"targets"`
	Format  string   `json:"format"`
	Weights *weights `json:"weights"`

	name    string
	targets []*regexp.Regexp // nil for a plain one
}

type weights struct {
	Bits     int    `json:"num_bits"`
	Type     string `json:"type"`
	Strategy string `json:"strategy"`
	Group    int    `json:"group_size"`

	Symmetric *bool           `json:"symmetric"` // true where it is left out
	Order     json.RawMessage `json:"actorder"`
}

// symmetric reports whether zero points are said to be in the middle.
func (w *weights) symmetric() bool { return w.Symmetric == nil || *w.Symmetric }

// reorders reports whether columns are said to be in groups that a tensor names: in any but the orders that leave
// them in their place.
func (w *weights) reorders() bool {
	switch order := strings.ToLower(string(w.Order)); order {
	case "", "null", "false", `"weight"`, `"static"`:
		return false
	}
	return true
}

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != "compressed-tensors" && s.Method != "" {
		return nil, false, nil
	}
	var c config
	err = json.Unmarshal(s.Quantization, &c)
	if !slices.Contains([]string{packed, ints, nvfp4, mxfp4, several}, c.Format) {
		return nil, false, nil
	}
	var groups []group
	if err == nil {
		groups, err = c.groups()
	}
	if err != nil {
		return nil, false, fmt.Errorf("config.json: %s: %w", s.Key, err)
	}
	l := layers{stored: s, part: make(map[*hf.Tensor]bool)}
	for _, t := range s.Tensors {
		layer, isPacked := strings.CutSuffix(t.Name, ".weight_packed")
		if !isPacked {
			var plain bool
			if layer, plain = strings.CutSuffix(t.Name, ".weight"); !plain || t.DType != "I8" {
				continue
			}
		}
		g, err := of(groups, layer)
		if err != nil {
			return nil, false, t.Errorf("%w", err)
		}
		e, err := l.layer(g, layer, t)
		if err != nil {
			return nil, false, err
		}
		for _, p := range e.Parts {
			l.part[p] = true
		}
		found = append(found, e)
	}
	for _, t := range s.Tensors {
		if layer, ok := strings.CutSuffix(t.Name, ".weight_scale"); ok && !l.part[t] {
			return nil, false, t.Errorf("is the scale of %q, whose weights are not there in a format that is known", layer)
		}
	}
	return found, true, nil
}

// groups returns the groups by name, with what they may leave to the whole filled in.
func (c *config) groups() ([]group, error) {
	var all []group
	for _, name := range slices.Sorted(maps.Keys(c.Groups)) {
		g := c.Groups[name]
		g.name = name
		if g.Format == "" {
			g.Format = c.Format
		}
		if g.Weights == nil {
			continue
		}
		for _, target := range g.Targets {
			var re *regexp.Regexp
			if text, ok := strings.CutPrefix(target, "re:"); ok {
				var err error
				if re, err = regexp.Compile("^(?:" + text + ")"); err != nil {
					return nil, fmt.Errorf("group %.40q: target %.80q is no pattern that is understood", name, target)
				}
			}
			g.targets = append(g.targets, re)
		}
		all = append(all, g)
	}
	if len(all) == 0 {
		return nil, errors.New("config_groups: no group says how weights are stored")
	}
	return all, nil
}

// of returns the group of a layer: the first that has its name, or a pattern for it, and
// otherwise the first that is for a class of modules.
func of(groups []group, layer string) (*group, error) {
	var class *group
	for i := range groups {
		g := &groups[i]
		for j, re := range g.targets {
			switch {
			case re != nil && re.MatchString(layer), re == nil && g.Targets[j] == layer:
				return g, nil
			case re == nil && !strings.Contains(g.Targets[j], ".") && class == nil:
				class = g
			}
		}
	}
	if class == nil {
		return nil, errors.New("is in no group of config.json's config_groups")
	}
	return class, nil
}

// layers makes layers of their parts.
type layers struct {
	stored *hf.Stored
	part   map[*hf.Tensor]bool
}

// layer returns the weight of a layer whose codes are t.
func (l *layers) layer(g *group, layer string, t *hf.Tensor) (hf.Encoded, error) {
	if len(t.Shape) != 2 {
		return hf.Encoded{}, t.Errorf("shape %v: want a matrix: stacks of them are not supported", t.Shape)
	}
	w := g.Weights
	scale := l.stored.Tensor(layer + ".weight_scale")
	if scale == nil {
		return hf.Encoded{}, t.Errorf("no scale: want a tensor %q", layer+".weight_scale")
	}
	parts := []*hf.Tensor{t, scale}
	for _, suffix := range []string{
		"weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale",
		"input_scale", "input_zero_point", "input_global_scale",
	} {
		if p := l.stored.Tensor(layer + "." + suffix); p != nil {
			parts = append(parts, p)
		}
	}
	var m *codes.Matrix
	var by string
	var err error
	switch {
	case g.Format == packed && w.Type == "int":
		by = fmt.Sprintf("compressed-tensors, %d bits", w.Bits)
		m, err = l.ints(w, layer, t, scale)
	case g.Format == ints && w.Type == "int":
		by = "compressed-tensors, 8 bits"
		m, err = l.bytes(w, layer, t, scale)
	case g.Format == nvfp4:
		by = "NVFP4"
		m, err = l.nvfp4(layer, t, scale)
	case g.Format == mxfp4:
		by = "MXFP4"
		m, err = mxfp4Matrix(t, scale)
	default:
		err = t.Errorf("config.json stores it as %.40q of type %.20q, which is not supported", g.Format, w.Type)
	}
	if err != nil {
		return hf.Encoded{}, err
	}
	if m.Zeros != nil {
		by += " with zero points"
	}
	return m.Encoded(layer+".weight", by, parts...)
}

// ints returns a matrix of packed integers.
func (l *layers) ints(w *weights, layer string, t, scale *hf.Tensor) (*codes.Matrix, error) {
	if w.Bits < 2 || w.Bits > 8 {
		return nil, t.Errorf("config.json stores it in %d bits: want 2 to 8", w.Bits)
	}
	shape := l.stored.Tensor(layer + ".weight_shape")
	if shape == nil {
		return nil, t.Errorf("no shape: want a tensor %q", layer+".weight_shape")
	}
	if len(shape.Shape) != 1 || shape.Shape[0] != 2 {
		return nil, shape.Errorf("shape %v: want two numbers", shape.Shape)
	}
	dims, err := codes.Ints(shape)
	if err != nil {
		return nil, err
	}
	n, k := int(dims[0]), int(dims[1])
	if n < 1 || k < 1 {
		return nil, shape.Errorf("is %v: want the shape of a matrix", dims)
	}
	p, err := packing(t, k, w.Bits)
	if err != nil {
		return nil, err
	}
	if err := codes.Shape(t, []int{n, p.Words(k)}, "I32"); err != nil {
		return nil, err
	}
	m := &codes.Matrix{N: n, K: k, Bits: w.Bits, Values: codes.Signed(w.Bits), Codes: codes.RowWords(t, p)}
	if err := l.scales(m, w, layer, t, scale); err != nil {
		return nil, err
	}
	return m, l.zeros(m, w, layer, t, func(zero *hf.Tensor) (codes.Field[uint8], error) {
		return codes.Columns(zero, p), codes.Shape(zero, []int{p.Words(n), m.GroupsInRow()}, "I32")
	})
}

// zeros sets the zero points of a matrix, of which field makes a field. What config.json says of them has to be so:
// transformers and vLLM go by it, and what is stored beside that they ignore, or take for zeros where it is not.
func (l *layers) zeros(m *codes.Matrix, w *weights, layer string, t *hf.Tensor, field func(*hf.Tensor) (codes.Field[uint8], error)) error {
	zero := l.stored.Tensor(layer + ".weight_zero_point")
	if zero == nil {
		if !w.symmetric() {
			return t.Errorf("config.json says symmetric: false, and there are no zero points: want a tensor %q", layer+".weight_zero_point")
		}
		return nil
	}
	zeros, err := field(zero)
	if err != nil {
		return err
	}
	if w.symmetric() {
		middle := uint8(1) << (m.Bits - 1)
		all, same, err := codes.Uniform(zeros, m.N, m.GroupsInRow())
		if err == nil && (!same || all != middle) {
			err = zero.Errorf("has zero points of its own, and config.json says symmetric: true: some programs use them, others do not")
		}
		return err
	}
	m.Values, m.Zeros = codes.Unsigned(m.Bits), zeros
	return nil
}

// packing returns which of two packings rows of k codes have, which their width tells:
// releases up to 0.17 have whole codes in each word, later ones a stream.
func packing(t *hf.Tensor, k, bits int) (codes.Packing, error) {
	stream, whole := codes.Packing{Bits: bits}, codes.Packing{Bits: bits, Whole: true}
	switch words := t.Shape[1]; {
	case 32%bits == 0 || words == stream.Words(k) && words != whole.Words(k):
		return stream, nil
	case words == stream.Words(k) && whole.Words(k) > 1:
		return stream, t.Errorf("rows of %d codes of %d bits in %d words, which may be packed in two ways", k, bits, words)
	case words == whole.Words(k):
		return whole, nil
	}
	return stream, nil
}

// bytes returns a matrix of integers of eight bits.
func (l *layers) bytes(w *weights, layer string, t, scale *hf.Tensor) (*codes.Matrix, error) {
	n, k := t.Shape[0], t.Shape[1]
	flip := func(c uint8) uint8 { return c ^ 0x80 } // of two's complement: 128 more
	m := &codes.Matrix{N: n, K: k, Bits: 8, Values: codes.Signed(8), Codes: codes.Mapped(codes.Rows(t, n, 8), flip)}
	if n < 1 || k < 1 {
		return nil, t.Errorf("shape %v has no elements", t.Shape)
	}
	if err := l.scales(m, &weights{Strategy: "group", Group: groupSize(k, scale), Order: w.Order}, layer, t, scale); err != nil {
		return nil, err
	}
	return m, l.zeros(m, w, layer, t, func(zero *hf.Tensor) (codes.Field[uint8], error) {
		return codes.Mapped(codes.Rows(zero, n, 8), flip), codes.Shape(zero, scale.Shape, "I8")
	})
}

// groupSize returns the columns that share a scale, as far as the scales' shape tells.
func groupSize(k int, scale *hf.Tensor) int {
	if len(scale.Shape) == 2 && scale.Shape[1] > 0 {
		return max((k-1)/scale.Shape[1]+1, 1)
	}
	return k
}

// scales sets the scales of a matrix, and which columns share one.
func (l *layers) scales(m *codes.Matrix, w *weights, layer string, t, scale *hf.Tensor) (err error) {
	switch w.Strategy {
	case "group":
		m.Group = min(w.Group, m.K)
	case "channel":
		m.Group = m.K
	default:
		return t.Errorf("config.json has scales per %.20q, which is not supported: want group or channel", w.Strategy)
	}
	if m.Group < 1 {
		return t.Errorf("config.json has groups of %d weights", w.Group)
	}
	if err := codes.Shape(scale, []int{m.N, m.GroupsInRow()}, hf.F16, hf.BF16, hf.F32); err != nil {
		return err
	}
	m.ScaleType = scale.DType
	if m.Scales, err = codes.Scales(scale, m.GroupsInRow()); err != nil {
		return err
	}
	index := l.stored.Tensor(layer + ".weight_g_idx")
	if index == nil {
		return nil
	}
	if err := codes.Shape(index, []int{m.K}, "I32", "I64"); err != nil {
		return err
	}
	groups, err := codes.Ints(index)
	if err != nil {
		return err
	}
	// Filled with −1 where columns stand in their order.
	if slices.ContainsFunc(groups, func(g int32) bool { return g != -1 }) {
		m.SetGroups(groups)
	}
	if m.Groups != nil && !w.reorders() {
		return index.Errorf("has groups that are not of columns side by side, and config.json has no actorder for them: some programs use them, others do not")
	}
	return nil
}

// nibbles returns a matrix of codes of E2M1 whose scales are a column for each group.
func nibbles(t, scale *hf.Tensor, group int, types ...hf.DType) (*codes.Matrix, error) {
	n, k := t.Shape[0], 2*t.Shape[1]
	if t.DType != hf.U8 || n < 1 || k < 1 || k%group != 0 {
		return nil, t.Errorf("is %s %v: want U8 [n, k/2], with k a multiple of %d", t.DType, t.Shape, group)
	}
	m := &codes.Matrix{N: n, K: k, Bits: 4, Group: group, Values: codes.E2M1(), Codes: codes.Rows(t, n, 4)}
	if err := codes.Shape(scale, []int{n, k / group}, types...); err != nil {
		return nil, err
	}
	var err error
	m.Scales, err = codes.Scales(scale, m.GroupsInRow())
	return m, err
}

// nvfp4 returns a matrix of NVFP4.
func (l *layers) nvfp4(layer string, t, scale *hf.Tensor) (*codes.Matrix, error) {
	m, err := nibbles(t, scale, 16, hf.F8E4M3)
	if err != nil {
		return nil, err
	}
	global := l.stored.Tensor(layer + ".weight_global_scale")
	if global == nil {
		return nil, t.Errorf("no scale of all weights: want a tensor %q", layer+".weight_global_scale")
	}
	by, err := codes.Number(global)
	if err != nil {
		return nil, err
	}
	if by <= 0 {
		return nil, global.Errorf("is %v: want a number above 0 to divide by", by)
	}
	m.ScaleType = hf.F32
	if frac, _ := math.Frexp(float64(by)); frac == 0.5 {
		m.Unit = 1 / by // which is as exact for a power of two
	}
	m.Scales = codes.Mapped(m.Scales, func(s float32) float32 { return s / by })
	return m, nil
}

// mxfp4Matrix returns a matrix of MXFP4.
func mxfp4Matrix(t, scale *hf.Tensor) (*codes.Matrix, error) {
	m, err := nibbles(t, scale, 32, hf.U8, hf.F8E8M0)
	if err == nil {
		m.ScaleType = hf.F8E8M0
	}
	return m, err
}
