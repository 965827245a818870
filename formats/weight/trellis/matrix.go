package trellis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
)

// Matrix is a linear layer of N output features and K input features as rings of bits. Its data is held exactly as the container stores
// it.
type Matrix struct {
	N, K int // output and input features
	Code *Code
	Own  bool // the table is the layer's own, and stored

	// Rings are [bands, rings down a band, rings across, bytes of a ring].
	Rings []byte

	// Scales are those of rows: [N], or [bands, Band] of EXL3's layouts, of which some stand for no row.
	Scales    []byte
	ScaleType weight.ScaleType

	// Factors are those of columns in float16: [K], nil for [Sign]. EXL3's layouts have as many as columns with padding.
	Factors []byte

	// The rows of a matrix that are looked at: first, and every step-th after it, or all where step is 0. N is how many.
	first, step, all int
}

// Of returns a matrix as one of this kind.
func Of(m weight.Matrix) (*Matrix, error) {
	t, ok := m.(*Matrix)
	if !ok {
		return nil, fmt.Errorf("weights of kind %s: want %s", m.Kind(), Name)
	}
	return t, nil
}

// Kind implements [weight.Matrix].
func (m *Matrix) Kind() string { return Name }

// Spec returns how the matrix is stored, and nothing of how it was found.
func (m *Matrix) Spec() weight.Spec {
	return weight.Spec{
		Kind: Name, Bits: m.Code.Rate / 2, Half: m.Code.Rate%2 != 0, Group: weight.RowGroup, Codebook: m.Code.Codebook, ScaleType: m.ScaleType,
	}
}

// Shape implements [weight.Matrix].
func (m *Matrix) Shape() (n, k int) { return m.N, m.K }

// Bytes implements [weight.Matrix].
func (m *Matrix) Bytes() int64 {
	var sum int64
	for _, p := range m.Parts() {
		sum += int64(len(p))
	}
	return sum
}

// Parts implements [weight.Matrix]. Of some rows they are those of all.
func (m *Matrix) Parts() [][]byte {
	parts := [][]byte{RingsPart: m.Rings, ScalesPart: m.Scales, FactorsPart: m.Factors}
	if m.Code.Codebook == Pairs {
		var table []byte
		if m.Own {
			table = EncodeTable(m.Code.Table)
		}
		parts = append(parts, table)
	}
	return parts
}

// stored returns how many rows are stored, and at which of them row n is.
func (m *Matrix) stored() int {
	if m.step == 0 {
		return m.N
	}
	return m.all
}

func (m *Matrix) row(n int) int {
	if m.step == 0 {
		return n
	}
	return m.first + n*m.step
}

// Whole reports whether the matrix has all rows that are stored, in order.
func (m *Matrix) Whole() bool { return m.step == 0 }

// Validate implements [weight.Matrix].
func (m *Matrix) Validate() error {
	if m.N <= 0 || m.K <= 0 {
		return fmt.Errorf("shape %d×%d has no elements", m.N, m.K)
	}
	l, err := layoutOf(m.Code.Codebook, m.Code.Rate)
	if err != nil {
		return err
	}
	bands, cols := up(m.stored(), l.Band)/l.Band, up(m.K, l.Pad)
	rows, factors := m.stored(), m.K
	if !l.pair {
		rows, factors = bands*l.Band, cols
	}
	switch rings := bands * (l.Band / l.Rows) * (cols / l.Cols) * l.Bytes(); {
	case !slices.Contains(Kind{}.ScaleTypes(), m.ScaleType):
		return errors.New("unknown type of scales")
	case len(m.Rings) != rings:
		return fmt.Errorf("rings take %d bytes: want %d", len(m.Rings), rings)
	case len(m.Scales) != rows*m.ScaleType.Size():
		return fmt.Errorf("scales take %d bytes: want %d", len(m.Scales), rows*m.ScaleType.Size())
	case m.Factors == nil && !l.pair:
		return fmt.Errorf("codebook %s without factors of columns", m.Code.Codebook)
	case m.Factors != nil && len(m.Factors) != 2*factors:
		return fmt.Errorf("factors take %d bytes: want %d", len(m.Factors), 2*factors)
	case l.pair && len(m.Code.Table) != Entries:
		return fmt.Errorf("a table of %d pairs: want %d", len(m.Code.Table), Entries)
	}
	return nil
}

// checkValues reports the first scale or factor with which a weight may not be finite: one that is not, or that is beyond what float32
// holds times the sums that it stands in front of.
func (m *Matrix) checkValues() error {
	const most = 1 << 88 // float32 ends at 2^128: sums have 2^23, times √128 in a small block less, and factors 2^16
	scales := make([]float32, len(m.Scales)/m.ScaleType.Size())
	m.ScaleType.Decode(scales, m.Scales)
	for i, s := range scales {
		if !(math.Abs(float64(s)) <= most) {
			return fmt.Errorf("the scale of row %d is %v", i, s)
		}
	}
	for i := 0; i < len(m.Factors); i += 2 {
		if h := binary.LittleEndian.Uint16(m.Factors[i:]); h>>10&31 == 31 {
			return fmt.Errorf("the factor of column %d is not finite", i/2)
		}
	}
	return nil
}

// ColumnFactors returns those of the columns, with padding where the layout stores it.
func (m *Matrix) ColumnFactors() []float32 {
	if m.Factors != nil {
		f := make([]float32, len(m.Factors)/2)
		num.DecodeF16(f, m.Factors)
		return f
	}
	f := make([]float32, m.K)
	for k := range f {
		f[k] = Sign(k)
	}
	return f
}

// RowScales returns those of the N rows.
func (m *Matrix) RowScales() []float32 {
	all := make([]float32, len(m.Scales)/m.ScaleType.Size())
	m.ScaleType.Decode(all, m.Scales)
	scales := make([]float32, m.N)
	for n := range scales {
		scales[n] = all[m.row(n)]
	}
	return scales
}

// Columns is the number of columns of rings, with padding.
func (m *Matrix) Columns() int { return up(m.K, m.Code.Layout().Pad) }

// Decode writes what the rings of a row of rings hold to dst [Rows, Columns]: r[n,j] of the package's comment.
func (m *Matrix) Decode(dst []float32, ringRow int) {
	l, cols := m.Code.Layout(), m.Columns()
	size := l.Bytes()
	places := make([]int, l.Steps()) // of steps' weights
	for step := range places {
		row, col := l.At(step)
		places[step] = row*cols + col
	}
	windows := make([]uint16, l.Steps())
	for c := range cols / l.Cols {
		l.windows(windows, m.Rings[(ringRow*(cols/l.Cols)+c)*size:][:size])
		to := dst[c*l.Cols:]
		if !l.pair {
			for step, x := range windows {
				to[places[step]] = num.F16ToF32(uint16(m.Code.Pair(x)))
			}
			continue
		}
		for step, x := range windows {
			pair := m.Code.Pair(x)
			at := to[places[step]:][:2]
			at[0], at[1] = num.F16ToF32(uint16(pair)), num.F16ToF32(uint16(pair>>16))
		}
	}
}

// Row implements [weight.Matrix].
func (m *Matrix) Row(dst []float32, n int) { m.RowsTo(dst, n, 1) }

// RowsTo implements [weight.Several]. Bands are decoded at a time.
func (m *Matrix) RowsTo(dst []float32, first, n int) {
	l, cols := m.Code.Layout(), m.Columns()
	band, held := make([]float32, l.Band*cols), -1
	factors := m.ColumnFactors()
	var scale [1]float32
	for i := range n {
		at := m.row(first + i)
		if at/l.Band != held {
			held = at / l.Band
			for r := range l.Band / l.Rows {
				m.Decode(band[r*l.Rows*cols:], held*(l.Band/l.Rows)+r)
			}
			m.mix(band, cols)
		}
		size := m.ScaleType.Size()
		m.ScaleType.Decode(scale[:], m.Scales[at*size:(at+1)*size])
		row, src := dst[i*m.K:(i+1)*m.K], band[at%l.Band*cols:]
		for k := range row {
			row[k] = src[k] * scale[0] * factors[k]
		}
	}
}

// mix turns what rings hold of a band into weights without scales and factors.
func (m *Matrix) mix(band []float32, cols int) {
	pair := m.Code.Codebook == Pairs
	k := cols
	if pair {
		k = m.K
	}
	for at := 0; at < len(band); at += cols {
		Blocks(k, func(from, to int) {
			v := band[at+from : at+to]
			Hadamard(v)
			if by := Even(to - from); by != 1 {
				for i := range v {
					v[i] *= by
				}
			}
		})
	}
	if pair {
		return
	}
	HadamardRows(band, cols)
	for i := range band {
		band[i] *= 1. / Block
	}
}

// Rows implements [weight.Matrix]. It shares the data. Whole bands that follow each other are a matrix of their own.
func (m *Matrix) Rows(first, step, n int) weight.Matrix {
	r := *m
	l := m.Code.Layout()
	from := m.row(first)
	if m.step != 0 {
		step *= m.step
	}
	r.first, r.step, r.N, r.all = from, max(step, 1), n, m.stored()
	if r.step == 1 && from%l.Band == 0 && (n%l.Band == 0 || from+n == r.all) {
		bands := up(r.all, l.Band) / l.Band
		ring, scale := len(m.Rings)/bands, m.ScaleType.Size()
		rows := n
		if !l.pair {
			rows = up(n, l.Band)
		}
		r.Rings = m.Rings[from/l.Band*ring:][:up(n, l.Band)/l.Band*ring]
		r.Scales = m.Scales[from*scale:][:rows*scale]
		r.first, r.step, r.all = 0, 0, 0
	}
	return &r
}

// CheckPadding implements [weight.Matrix]: rings are full of bits, whose padding is chosen with the rest.
func (m *Matrix) CheckPadding() error { return nil }

// Farther implements [weight.Matrix]: codes of a ring are chosen together, so none is the nearest by itself.
func (m *Matrix) Farther(int, []float32) int { return -1 }
