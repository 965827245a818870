package rtn

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// Quantize stores a layer's weights w, the rows of n output features with k input features each, in a format. A group
// longer than a row is a row. The bytes are those that a [Quantizer] makes, which is for who has rows in pieces, works
// with several goroutines, or asks for errors.
//
// It fails where w has another length or the format is none, with a [rounding.NotFiniteError] where a weight is NaN or
// infinite, and with a [rounding.ScaleError] where a scale is too large for its type.
func Quantize(w []float32, n, k int, f lut.Format) (*lut.Matrix, error) {
	if n < 1 || k < 1 || len(w) != n*k {
		return nil, fmt.Errorf("%d weights for %d rows of %d", len(w), n, k)
	}
	f.Group = min(f.Group, k)
	q, err := NewQuantizer(f)
	if err != nil {
		return nil, err
	}
	m := &lut.Matrix{N: n, K: k, Bits: f.Codebook.Bits(), Group: f.Group, ScaleType: f.ScaleType, Codebook: slices.Clone(f.Codebook.Values)}
	m.Codes, m.Scales = make([]byte, n*m.RowBytes()), make([]byte, n*m.Groups()*m.ScaleType.Size())
	if err := q.Rows(m.Parts(), make([]rounding.RowError, n), w); err != nil {
		return nil, err
	}
	return m, nil
}
