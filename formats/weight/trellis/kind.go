package trellis

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
)

// Name is that of the kind that this package is about.
const Name = "trellis"

// The order of a layer's parts.
const (
	RingsPart = iota
	ScalesPart
	FactorsPart // optional but in EXL3's layouts
	TablePart   // optional
)

// Kind is that of layers that are stored as rings. It implements [weight.Kind].
type Kind struct{}

// Name implements [weight.Kind].
func (Kind) Name() string { return Name }

// Widths implements [weight.Kind].
func (Kind) Widths() (least, most int) { return 1, 8 }

// ScaleTypes implements [weight.Kind].
func (Kind) ScaleTypes() []weight.ScaleType {
	return []weight.ScaleType{weight.F16, weight.BF16, weight.F32}
}

// Fit implements [weight.Kind]: rows have one scale.
func (Kind) Fit(s weight.Spec) weight.Spec {
	s.Group, s.Scale = weight.RowGroup, 0
	if s.Codebook == "" {
		s.Codebook = Pairs
	}
	return s
}

// Suffix implements [weight.Kind].
func (Kind) Suffix() string { return ".rings" }

// up returns n as a multiple.
func up(n, of int) int { return (n + of - 1) / of * of }

// Parts implements [weight.Kind].
func (kind Kind) Parts(s weight.Spec, n, k int) ([]weight.Part, error) {
	s = kind.Fit(s)
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	l, err := layoutOf(s.Codebook, s.Rate())
	if err != nil {
		return nil, err
	}
	if n <= 0 || k <= 0 {
		return nil, fmt.Errorf("shape %d×%d has no elements", n, k)
	}
	bands, cols, dtype := up(n, l.Band)/l.Band, up(k, l.Pad)/l.Cols, s.ScaleType.DType()
	parts := []weight.Part{
		RingsPart:   {Suffix: ".rings", DType: "U8", Shape: []int{bands, l.Band / l.Rows, cols, l.Bytes()}, Rows: true, Per: l.Band},
		ScalesPart:  {Suffix: ".scales", DType: dtype, Shape: []int{n}, Rows: true},
		FactorsPart: {Suffix: ".factors", DType: "F16", Shape: []int{k}, Optional: true},
	}
	if !l.pair {
		parts[ScalesPart].Shape, parts[ScalesPart].Per = []int{bands, l.Band}, l.Band
		parts[FactorsPart].Shape, parts[FactorsPart].Optional = []int{up(k, l.Pad)}, false
		return parts, nil
	}
	return append(parts, weight.Part{Suffix: ".pairs", DType: "F16", Shape: []int{Entries, 2}, Optional: true}), nil
}

// Open implements [weight.Kind].
func (kind Kind) Open(s weight.Spec, n, k int, data [][]byte) (weight.Matrix, error) {
	s = kind.Fit(s)
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	c, err := NewCode(s.Codebook, s.Rate())
	if err != nil {
		return nil, err
	}
	data = append(data[:len(data):len(data)], nil, nil)
	m := &Matrix{
		N: n, K: k, Code: c, ScaleType: s.ScaleType,
		Rings: data[RingsPart], Scales: data[ScalesPart], Factors: data[FactorsPart],
	}
	if table := data[TablePart]; c.Codebook == Pairs && table != nil {
		if c.Table, err = decodeTable(table); err != nil {
			return nil, err
		}
		m.Own = true
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return m, m.checkValues()
}
