package lut24

import (
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Matrix is a linear layer of which every four consecutive columns of a row keep two.
type Matrix struct {
	// Kept are the weights that are kept, [N, K/2], in groups of half as many columns.
	Kept *lut.Matrix
	// Pattern holds N rows of [PatternBytes]: a nibble for each chunk, and what is left of the last byte
	// is zero.
	Pattern []byte
}

// Kind implements [weight.Matrix].
func (m *Matrix) Kind() string { return Name }

// Spec returns how the matrix is stored, with its group in columns, and nothing of how it was found.
func (m *Matrix) Spec() weight.Spec {
	return weight.Spec{Kind: Name, Bits: m.Kept.Bits, Group: m.Group(), ScaleType: m.Kept.ScaleType}
}

// Shape implements [weight.Matrix].
func (m *Matrix) Shape() (n, k int) { return m.Kept.N, m.Kept.K / Kept * Chunk }

// Group returns the columns that share a scale, of which half are kept.
func (m *Matrix) Group() int { return m.Kept.Group / Kept * Chunk }

// Bytes implements [weight.Matrix].
func (m *Matrix) Bytes() int64 { return m.Kept.Bytes() + int64(len(m.Pattern)) }

// Parts implements [weight.Matrix].
func (m *Matrix) Parts() [][]byte { return append(m.Kept.Parts(), m.Pattern) }

// Validate implements [weight.Matrix].
func (m *Matrix) Validate() error {
	if m.Kept == nil {
		return errors.New("no weights")
	}
	if err := m.Kept.Validate(); err != nil {
		return err
	}
	if m.Kept.K%Kept != 0 || m.Kept.Group%Kept != 0 {
		return fmt.Errorf("%d columns in groups of %d are kept: want pairs", m.Kept.K, m.Kept.Group)
	}
	n, k := m.Shape()
	if want := n * PatternBytes(k); len(m.Pattern) != want {
		return fmt.Errorf("pattern takes %d bytes: want %d", len(m.Pattern), want)
	}
	return nil
}

// RowPattern returns the pattern of row n.
func (m *Matrix) RowPattern(n int) []byte {
	_, k := m.Shape()
	size := PatternBytes(k)
	return m.Pattern[n*size : (n+1)*size]
}

// Row implements [weight.Matrix]. What is not kept is +0.
func (m *Matrix) Row(dst []float32, n int) {
	kept := make([]float32, m.Kept.K)
	m.Kept.Row(kept, n)
	_, k := m.Shape()
	spread(dst[:k], kept, m.RowPattern(n))
}

// Rows implements [weight.Matrix].
func (m *Matrix) Rows(first, step, n int) weight.Matrix {
	r := &Matrix{Pattern: make([]byte, 0, n*len(m.RowPattern(0)))}
	r.Kept, _ = m.Kept.Rows(first, step, n).(*lut.Matrix) // which it is
	for i := range n {
		r.Pattern = append(r.Pattern, m.RowPattern(first+i*step)...)
	}
	return r
}

// CheckPadding implements [weight.Matrix].
func (m *Matrix) CheckPadding() error {
	if err := m.Kept.CheckPadding(); err != nil {
		return err
	}
	n, k := m.Shape()
	for row := range n {
		if p := m.RowPattern(row); k/Chunk%2 != 0 && p[len(p)-1]>>4 != 0 {
			return fmt.Errorf("row %d has bits set after the pattern of its last chunk", row)
		}
	}
	return nil
}

// Farther implements [weight.Matrix]: no weight of a chunk that is dropped is larger than one that is
// kept, and of those no other code is nearer.
func (m *Matrix) Farther(n int, w []float32) int {
	pattern := m.RowPattern(n)
	for c := range len(w) / Chunk {
		p := Nibble(pattern, c)
		chunk := w[Chunk*c:][:Chunk]
		least := min(math.Abs(float64(chunk[p&3])), math.Abs(float64(chunk[p>>2])))
		for i, v := range chunk {
			if i != int(p&3) && i != int(p>>2) && math.Abs(float64(v)) > least {
				return Chunk*c + i
			}
		}
	}
	kept := make([]float32, m.Kept.K)
	Gather(kept, w, pattern)
	at := m.Kept.Farther(n, kept)
	if at < 0 {
		return -1
	}
	p := Nibble(pattern, at/Kept)
	return at/Kept*Chunk + int(p>>(at%Kept*2)&3)
}
