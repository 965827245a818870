package lutgemm

import (
	"fmt"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight/bcq"
)

// method is the quant_method of the layout.
const method = "lutgemm"

// Layout is that of LUT-GEMM. It implements [hf.Scheme] and [foreign.Target].
type Layout struct{}

// Decode implements [hf.Scheme].
func (Layout) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != method {
		return nil, false, nil
	}
	found, err = s.Layers(".bWeight", layer)
	return found, err == nil, err
}

// layer returns the weight of a layer whose planes are t. Groups are told by the tensor of factors.
func layer(s *hf.Stored, name string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	alpha, bias := s.Tensor(name+".alpha"), s.Tensor(name+".q_bias")
	switch {
	case len(t.Shape) != 3 || t.DType != "I32" || t.Shape[0] < 1 || t.Shape[1] < 1 || t.Shape[1] > bcq.MaxBits || t.Shape[2] < 1:
		return none, t.Errorf("is %s %v: want I32 [k/%d, 1 to %d planes, n]", t.DType, t.Shape, word, bcq.MaxBits)
	case alpha == nil:
		return none, t.Errorf("no factors: want a tensor %q", name+".alpha")
	case len(alpha.Shape) != 3 || alpha.Shape[0] < 1 || t.Shape[0]%alpha.Shape[0] != 0:
		return none, alpha.Errorf("shape %v: want [groups, planes, n] for groups of whole words of %v", alpha.Shape, t.Shape)
	}
	n, bits, k, groups := t.Shape[2], t.Shape[1], t.Shape[0]*word, alpha.Shape[0]
	if why := unfit(n, k, k/groups); why != "" {
		return none, t.Errorf("%s", why)
	}
	if err := codes.Shape(alpha, []int{groups, bits, n}, hf.F16); err != nil {
		return none, err
	}
	alphas, err := codes.Scales(alpha, n)
	if err != nil {
		return none, err
	}
	m := &codes.Binary{
		N: n, K: k, Bits: bits, Group: k / groups, ScaleType: hf.F16,
		Codes: planes(t, n, bits), Alphas: codes.Transposed(alphas),
	}
	parts := []*hf.Tensor{t, alpha}
	if bias != nil {
		parts = append(parts, bias)
		if err := codes.Shape(bias, []int{groups, n}, hf.F16); err != nil {
			return none, err
		}
		offsets, err := codes.Scales(bias, n)
		if err != nil {
			return none, err
		}
		m.Offsets = codes.Transposed(offsets)
	}
	return m.Encoded(name+".weight", fmt.Sprintf("LUT-GEMM, %d planes", bits), parts...)
}

// planes reads the codes of n rows.
func planes(t *hf.Tensor, n, bits int) codes.Field[uint8] {
	return func(dst []uint8, b codes.Block) error {
		clear(dst)
		raw := make([]byte, 4*b.Rows)
		for w := b.Col / word; w*word < b.Col+b.Cols; w++ {
			first, last := max(b.Col, w*word), min(b.Col+b.Cols, (w+1)*word)
			for i := range bits {
				if _, err := t.ReadAt(raw, 4*(int64(w*bits+i)*int64(n)+int64(b.Row))); err != nil {
					return err
				}
				unpack(dst[first-b.Col:], raw, b.Cols, first-w*word, last-w*word, i)
			}
		}
		return nil
	}
}
