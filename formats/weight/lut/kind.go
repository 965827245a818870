package lut

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
)

// Name is that of the kind that this package is about.
const Name = "lut"

// The order of a layer's parts.
const (
	CodebookPart = iota
	ScalesPart
	CodesPart
)

// Kind is that of layers that are stored as codes, scales and a codebook. It
// implements [weight.Kind].
type Kind struct{}

// Name implements [weight.Kind].
func (Kind) Name() string { return Name }

// Widths implements [weight.Kind].
func (Kind) Widths() (least, most int) { return MinBits, MaxBits }

// ScaleTypes implements [weight.Kind].
func (Kind) ScaleTypes() []weight.ScaleType {
	return []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}
}

// Fit implements [weight.Kind].
func (Kind) Fit(s weight.Spec) weight.Spec { return s }

// Suffix implements [weight.Kind].
func (Kind) Suffix() string { return ".codes" }

// Parts implements [weight.Kind].
func (kind Kind) Parts(s weight.Spec, n, k int) ([]weight.Part, error) {
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	return []weight.Part{
		CodebookPart: {Suffix: ".codebook", DType: "F32", Shape: []int{1 << s.Bits}},
		ScalesPart:   {Suffix: ".scales", DType: s.ScaleType.DType(), Shape: []int{n, weight.GroupsIn(k, s.Columns(k))}, Rows: true},
		CodesPart:    {Suffix: ".codes", DType: "U8", Shape: []int{n, RowBytes(k, s.Bits)}, Rows: true},
	}, nil
}

// Open implements [weight.Kind].
func (kind Kind) Open(s weight.Spec, n, k int, data [][]byte) (weight.Matrix, error) {
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	m := &Matrix{
		N: n, K: k, Bits: s.Bits, Group: s.Columns(k), ScaleType: s.ScaleType,
		Codes: data[CodesPart], Scales: data[ScalesPart], Codebook: make([]float32, 1<<s.Bits),
	}
	num.DecodeF32(m.Codebook, data[CodebookPart])
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := m.checkValues(); err != nil {
		return nil, err
	}
	return m, nil
}

// Of returns a matrix of this kind, which one of another is an error to.
func Of(m weight.Matrix) (*Matrix, error) {
	if l, ok := m.(*Matrix); ok {
		return l, nil
	}
	return nil, fmt.Errorf("weights of kind %s: only %s will do here", m.Kind(), Name)
}

// checkValues reports a table or scale that cannot be multiplied by, or whose
// largest product is not a number.
func (m *Matrix) checkValues() error {
	table := Codebook{Name: "table", Values: m.Codebook}
	if err := table.Check(m.Bits); err != nil {
		return err
	}
	top := table.Max()
	scales := make([]float32, m.Groups())
	for n := range m.N {
		m.RowScales(scales, n)
		for g, s := range scales {
			// The conversion rounds: some processors would subtract from the exact product.
			if p := float32(s * top); p-p != 0 { // NaN or infinite
				return fmt.Errorf("scale [%d, %d] is %v", n, g, s)
			}
		}
	}
	return nil
}

// Kind implements [weight.Matrix].
func (m *Matrix) Kind() string { return Name }

// Spec returns how the matrix is stored, with its group in columns, and nothing of how it was found.
func (m *Matrix) Spec() weight.Spec {
	return weight.Spec{Kind: Name, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
}

// Shape implements [weight.Matrix].
func (m *Matrix) Shape() (n, k int) { return m.N, m.K }

// Parts implements [weight.Matrix].
func (m *Matrix) Parts() [][]byte {
	table := make([]byte, 4*len(m.Codebook))
	num.EncodeF32(table, m.Codebook)
	return [][]byte{CodebookPart: table, ScalesPart: m.Scales, CodesPart: m.Codes}
}

// CheckPadding implements [weight.Matrix].
func (m *Matrix) CheckPadding() error {
	used := m.K * m.Bits % 8
	if used == 0 {
		return nil
	}
	rb := m.RowBytes()
	for n := range m.N {
		if m.Codes[(n+1)*rb-1]>>used != 0 {
			return fmt.Errorf("row %d has bits set after its last code", n)
		}
	}
	return nil
}

// Farther implements [weight.Matrix].
func (m *Matrix) Farther(n int, w []float32) int {
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	m.RowCodes(codes, n)
	m.RowScales(scales, n)
	for k, c := range codes {
		if !isNearest(m.Codebook, int(c), scales[k/m.Group], w[k]) {
			return k
		}
	}
	return -1
}

// isNearest reports whether no neighbour of code c is nearer to w, but for
// rounding.
func isNearest(table []float32, c int, s, w float32) bool {
	d := math.Abs(float64(w) - float64(table[c]*s))
	// Products that are subnormal round by half of the least number.
	slack := 1e-5*(math.Abs(float64(w))+math.Abs(float64(s))) + 2*math.SmallestNonzeroFloat32
	for _, other := range []int{c - 1, c + 1} {
		if other >= 0 && other < len(table) && math.Abs(float64(w)-float64(table[other]*s)) < d-slack {
			return false
		}
	}
	return true
}
