package lut24

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Name is that of the kind that this package is about.
const Name = "lut24"

// The order of a layer's parts: those of package lut, and the pattern.
const (
	CodebookPart = lut.CodebookPart
	ScalesPart   = lut.ScalesPart
	CodesPart    = lut.CodesPart
	PatternPart  = CodesPart + 1
)

// Kind is that of layers that are stored as codes of two weights in four, a pattern of where
// they are, scales and a codebook. It implements [weight.Kind].
type Kind struct{}

// Name implements [weight.Kind].
func (Kind) Name() string { return Name }

// Widths implements [weight.Kind].
func (Kind) Widths() (least, most int) { return lut.Kind{}.Widths() }

// ScaleTypes implements [weight.Kind].
func (Kind) ScaleTypes() []weight.ScaleType { return lut.Kind{}.ScaleTypes() }

// Fit implements [weight.Kind].
func (Kind) Fit(s weight.Spec) weight.Spec { return s }

// Suffix implements [weight.Kind].
func (Kind) Suffix() string { return ".pattern" }

// CheckColumns reports a row that cannot be divided into chunks.
func CheckColumns(k, group int) error {
	switch {
	case k%Chunk != 0:
		return fmt.Errorf("%d columns: weights of kind %s take a multiple of %d", k, Name, Chunk)
	case group%Chunk != 0:
		return fmt.Errorf("groups of %d columns: weights of kind %s take a multiple of %d", group, Name, Chunk)
	}
	return nil
}

// half returns the spec of the kept weights as a layer of the kind lut.
func half(s weight.Spec, k int) weight.Spec {
	s.Group = s.Columns(k) / Chunk * Kept
	return s
}

// Parts implements [weight.Kind].
func (kind Kind) Parts(s weight.Spec, n, k int) ([]weight.Part, error) {
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	if err := CheckColumns(k, s.Columns(k)); err != nil {
		return nil, err
	}
	parts, err := lut.Kind{}.Parts(half(s, k), n, k/Chunk*Kept)
	if err != nil {
		return nil, err
	}
	return append(parts, weight.Part{Suffix: kind.Suffix(), DType: "U8", Shape: []int{n, PatternBytes(k)}, Rows: true}), nil
}

// Open implements [weight.Kind].
func (kind Kind) Open(s weight.Spec, n, k int, data [][]byte) (weight.Matrix, error) {
	if err := s.Check(kind); err != nil {
		return nil, err
	}
	if err := CheckColumns(k, s.Columns(k)); err != nil {
		return nil, err
	}
	kept, err := lut.Kind{}.Open(half(s, k), n, k/Chunk*Kept, data[:PatternPart])
	if err != nil {
		return nil, err
	}
	m := &Matrix{Pattern: data[PatternPart]}
	if m.Kept, err = lut.Of(kept); err != nil {
		return nil, err
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return m, checkPattern(m.Pattern, n, k)
}
