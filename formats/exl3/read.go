package exl3

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Scheme is that of EXL3.
type Scheme struct{}

// The suffixes of a layer's tensors.
const (
	tilesSuffix   = ".trellis"
	inputsSuffix  = ".suh"
	outputsSuffix = ".svh"
	inSigns       = ".su"
	outSigns      = ".sv"
	mul1Suffix    = ".mul1"
	mcgSuffix     = ".mcg"
	biasSuffix    = ".bias"
	weightSuffix  = ".weight"
)

// What marks a codebook.
const (
	mul1Mark = 0x83DCD12D
	mcgMark  = 0xCBAC1FED
)

// Tile is the number of rows and of columns of a tile.
const tile = 16

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	isTiles := func(t *hf.Tensor) bool { return strings.HasSuffix(t.Name, tilesSuffix) }
	if s.Method != "exl3" && (s.Key != "" || !slices.ContainsFunc(s.Tensors, isTiles)) {
		return nil, false, nil
	}
	var c struct {
		Codebook string `json:"codebook"`
	}
	_ = json.Unmarshal(s.Quantization, &c) // of what is no object nothing is known
	if c.Codebook != "" && (c.Codebook == trellis.Pairs || !slices.Contains(trellis.Codebooks(), c.Codebook)) {
		return nil, false, fmt.Errorf("config.json: %s: codebook %.40q is not supported: want mul1, mcg or 3inst", s.Key, c.Codebook)
	}
	m := modelOf(s)
	for _, t := range s.Tensors {
		layer, is := strings.CutSuffix(t.Name, tilesSuffix)
		if is {
			if of := m.part[layer]; of != nil {
				if layer != of.parts[0].name {
					continue
				}
				e, err := of.encoded(s)
				if err != nil {
					return nil, false, err
				}
				found = append(found, e)
				continue
			}
			all, err := encoded(s, layer, t, m.stored[layer+weightSuffix])
			if err != nil {
				return nil, false, err
			}
			found = append(found, all...)
			continue
		}
		for _, suffix := range []string{inputsSuffix, outputsSuffix, inSigns, outSigns, mul1Suffix, mcgSuffix} {
			if layer, is := strings.CutSuffix(t.Name, suffix); is && s.Tensor(layer+tilesSuffix) == nil {
				return nil, false, t.Errorf("no tensor %q beside it", layer+tilesSuffix)
			}
		}
	}
	return found, true, nil
}

// known is what is known of a model of a known family.
type known struct {
	stored map[string]*arch.Stored // matrices by their tensors
	part   map[string]*fused       // by layers that are parts of a matrix, and stored as such
}

// modelOf returns what is known of a model.
func modelOf(s *hf.Stored) known {
	m := known{make(map[string]*arch.Stored), make(map[string]*fused)}
	config, err := input.ReadFile(filepath.Join(s.Dir, "config.json"), input.Config)
	if err != nil {
		return m
	}
	has := func(layer string) bool { return s.Tensor(layer+tilesSuffix) != nil }
	d, err := arch.Describe(config, func(name string) bool {
		layer, is := strings.CutSuffix(name, weightSuffix)
		return s.Tensor(name) != nil || is && has(layer)
	})
	if err != nil {
		return m // what needs a description says why there is none
	}
	for as := range d.AllStored() {
		m.stored[as.Tensor] = as
	}
	for _, f := range fusedIn(d) {
		missing := func(p part) bool { return !has(p.name) }
		if has(f.as.Path) || s.Tensor(f.as.Tensor) != nil || slices.ContainsFunc(f.parts, missing) {
			continue
		}
		for _, p := range f.parts {
			m.part[p.name] = f
		}
	}
	return m
}

// encoded returns the weight of a layer whose tiles are t, and its bias where that is padded. as is the matrix of the
// model, nil where it is not known.
func encoded(s *hf.Stored, layer string, t *hf.Tensor, as *arch.Stored) ([]hf.Encoded, error) {
	l, parts, err := open(s, layer, t)
	if err != nil {
		return nil, err
	}
	if as != nil && as.Experts == 0 && padded(as.N) == l.rows && padded(as.K) == l.cols {
		l.N, l.K = as.N, as.K
	}
	all := []hf.Encoded{{
		Name: layer + weightSuffix, DType: hf.F32, Shape: []int{l.N, l.K},
		Encoding: &hf.Encoding{
			Type: name(l),
			Rows: 1, Cols: l.K, N: l.N, K: l.K, Parts: parts, Codec: l,
		},
	}}
	bias := s.Tensor(layer + biasSuffix)
	switch {
	case bias == nil:
	case len(bias.Shape) != 1 || bias.Shape[0] != l.N && bias.Shape[0] != l.rows:
		return nil, bias.Errorf("shape %v: want [%d]", bias.Shape, l.N)
	case bias.Shape[0] != l.N:
		all = append(all, hf.Encoded{
			Name: bias.Name, DType: bias.DType, Shape: []int{l.N},
			Encoding: &hf.Encoding{
				Type: string(bias.DType) + " with padding", N: 1, K: l.N, Parts: []*hf.Tensor{bias}, Codec: Bias{bias},
			},
		})
	}
	return all, nil
}

// name says what a layer's codes are.
func name(l *Layer) string {
	s := l.Spec()
	return fmt.Sprintf("EXL3 %s, %s bits", s.Codebook, s.Width())
}

// Bias is the beginning of a bias that is padded. It implements [hf.Codec].
type Bias struct{ *hf.Tensor }

// open returns the layer of a name whose tiles are t, without knowing what of it is padding, and its tensors.
func open(s *hf.Stored, name string, t *hf.Tensor) (*Layer, []*hf.Tensor, error) {
	switch {
	case s.Tensor(name+".signs") != nil:
		return nil, nil, t.Errorf("are rows of an embedding, with signs: want the tiles of a linear layer")
	case len(t.Shape) != 3 || t.DType != "I16":
		return nil, nil, t.Errorf("is %s %v: want I16 [inputs/16, outputs/16, 16 times the bits]", t.DType, t.Shape)
	case t.Elements() == 0:
		return nil, nil, t.Errorf("shape %v has no elements", t.Shape)
	case t.Shape[0]%(trellis.Block/tile) != 0 || t.Shape[1]%(trellis.Block/tile) != 0:
		return nil, nil, t.Errorf("%d×%d tiles of 16: want multiples of 8 both ways", t.Shape[0], t.Shape[1])
	case t.Shape[2]%8 != 0:
		return nil, nil, t.Errorf("tiles of %d words: want 16 for each bit, or 8 for half a bit", t.Shape[2])
	}
	codebook, parts, err := codebookOf(s, name, []*hf.Tensor{t})
	if err != nil {
		return nil, nil, err
	}
	l := &Layer{rows: t.Shape[1] * tile, cols: t.Shape[0] * tile, tiles: t}
	l.N, l.K = l.rows, l.cols
	if l.code, err = trellis.NewCode(codebook, t.Shape[2]/8); err != nil {
		return nil, nil, t.Errorf("%w", err)
	}
	for _, f := range []struct {
		suffix, signs string
		n             int
		to            *func() ([]byte, error)
	}{{inputsSuffix, inSigns, l.cols, &l.inputs}, {outputsSuffix, outSigns, l.rows, &l.outputs}} {
		numbers, signs := s.Tensor(name+f.suffix), s.Tensor(name+f.signs)
		switch {
		case numbers != nil:
			err = codes.Shape(numbers, []int{f.n}, hf.F16)
			*f.to = factors(numbers)
		case signs != nil:
			err = codes.Shape(signs, []int{f.n / 16}, "I16")
			*f.to = signFactors(signs)
		default:
			err = t.Errorf("no factors: want a tensor %q", name+f.suffix)
		}
		if err != nil {
			return nil, nil, err
		}
		for _, p := range []*hf.Tensor{numbers, signs} { // of which signs do not count beside numbers
			if p != nil {
				parts = append(parts, p)
			}
		}
	}
	return l, parts, nil
}

// codebookOf tells the codebook of a layer by which marker it has, and adds that to the parts.
func codebookOf(s *hf.Stored, name string, parts []*hf.Tensor) (string, []*hf.Tensor, error) {
	mul1, mcg := s.Tensor(name+mul1Suffix), s.Tensor(name+mcgSuffix)
	mark, codebook, want := mul1, trellis.Mul1, uint32(mul1Mark)
	switch {
	case mul1 != nil && mcg != nil:
		return "", nil, mul1.Errorf("is there, and %q as well: want one codebook", mcg.Name)
	case mul1 == nil && mcg == nil:
		return trellis.Inst3, parts, nil
	case mul1 == nil:
		mark, codebook, want = mcg, trellis.MCG, mcgMark
	}
	if mark.Elements() != 1 || mark.DType != "I32" {
		return "", nil, mark.Errorf("is %s %v: want one I32", mark.DType, mark.Shape)
	}
	var raw [4]byte
	if _, err := mark.ReadAt(raw[:], 0); err != nil {
		return "", nil, err
	}
	if is := binary.LittleEndian.Uint32(raw[:]); is != want {
		return "", nil, mark.Errorf("is %#x, which is no codebook that is known: want %#x", is, want)
	}
	return codebook, append(parts, mark), nil
}

// padded returns how many rows or columns are stored for n.
func padded(n int) int { return (n + trellis.Block - 1) / trellis.Block * trellis.Block }
