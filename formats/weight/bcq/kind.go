package bcq

import "github.com/lutq/lutq/formats/weight"

// Name is that of the kind that this package is about.
const Name = "bcq"

// The order of a layer's parts.
const (
	PlanesPart = iota
	AlphasPart
	OffsetsPart
)

// Kind is that of layers that are stored as planes, factors and offsets. It implements
// [weight.Kind].
type Kind struct{}

// Name implements [weight.Kind].
func (Kind) Name() string { return Name }

// Widths implements [weight.Kind].
func (Kind) Widths() (least, most int) { return MinBits, MaxBits }

// ScaleTypes implements [weight.Kind].
func (Kind) ScaleTypes() []weight.ScaleType {
	return []weight.ScaleType{weight.F16, weight.BF16, weight.F32}
}

// Fit implements [weight.Kind]: there is no table, nor a scale to it.
func (Kind) Fit(s weight.Spec) weight.Spec {
	s.Codebook, s.Scale = "", 0
	return s
}

// Suffix implements [weight.Kind].
func (Kind) Suffix() string { return ".planes" }

// Parts implements [weight.Kind].
func (kind Kind) Parts(s weight.Spec, n, k int) ([]weight.Part, error) {
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	groups, dtype := weight.GroupsIn(k, s.Columns(k)), s.ScaleType.DType()
	return []weight.Part{
		PlanesPart:  {Suffix: ".planes", DType: "U8", Shape: []int{n, s.Bits, (k + 7) / 8}, Rows: true},
		AlphasPart:  {Suffix: ".alphas", DType: dtype, Shape: []int{n, groups, s.Bits}, Rows: true},
		OffsetsPart: {Suffix: ".offsets", DType: dtype, Shape: []int{n, groups}, Rows: true, Optional: true},
	}, nil
}

// Open implements [weight.Kind].
func (kind Kind) Open(s weight.Spec, n, k int, data [][]byte) (weight.Matrix, error) {
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	m := &Matrix{
		N: n, K: k, Bits: s.Bits, Group: s.Columns(k), ScaleType: s.ScaleType,
		Planes: data[PlanesPart], Alphas: data[AlphasPart],
	}
	if len(data) > OffsetsPart {
		m.Offsets = data[OffsetsPart]
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := m.checkValues(); err != nil {
		return nil, err
	}
	return m, nil
}
