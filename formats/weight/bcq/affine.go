package bcq

import (
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// affineSlack is by how much the values of a table may be off equal steps, as a part of its
// range.
const affineSlack = 0x1p-20

// FromLUT returns a matrix whose table has equal steps as sums of binary codes with
// offsets, of factors of a type:
//
//	αᵢ = 2^(i-1)·s, z = scale·T[0] + s·(2^b-1)/2, s = scale·(T[1]-T[0])
//
// It fails on another table, and where a factor does not fit the type. Weights are the
// same to the bit where the type holds α and z, and float32 their sums, exactly.
func FromLUT(m *lut.Matrix, t weight.ScaleType) (*Matrix, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	table := m.Codebook
	last := len(table) - 1
	first, size := float64(table[0]), float64(table[last])-float64(table[0])
	step := size / float64(last)
	for c, v := range table {
		if !(math.Abs(float64(v)-(first+float64(c)*step)) <= affineSlack*size) {
			return nil, fmt.Errorf("value %d of the table is %v: equal steps, as binary codes have them, would make it %v", c, v, first+float64(c)*step)
		}
	}
	b := &Matrix{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: t}
	groups := m.Groups()
	b.Planes = make([]byte, m.N*m.Bits*b.PlaneBytes())
	b.Alphas, b.Offsets = make([]byte, m.N*groups*m.Bits*t.Size()), make([]byte, m.N*groups*t.Size())
	if err := b.Validate(); err != nil {
		return nil, err
	}
	codes, scales := make([]uint8, m.K), make([]float32, groups)
	alphas, offsets := make([]float32, groups*m.Bits), make([]float32, groups)
	for n := range m.N {
		m.RowCodes(codes, n)
		PackCodes(b.Planes[n*m.Bits*b.PlaneBytes():][:m.Bits*b.PlaneBytes()], codes, m.Bits)
		m.RowScales(scales, n)
		for g, scale := range scales {
			s := float64(scale) * step
			for i := range m.Bits {
				alphas[g*m.Bits+i] = float32(math.Ldexp(s, i-1))
			}
			offsets[g] = float32(float64(float64(scale)*first) + s*float64(last)/2)
		}
		t.Encode(b.Alphas[n*len(alphas)*t.Size():], alphas)
		t.Encode(b.Offsets[n*len(offsets)*t.Size():], offsets)
	}
	return b, b.checkValues()
}

// LUT returns the matrix as one with a table of equal steps. It fails where the factors of
// a group are not each twice the one before, where groups would take different tables, and where
// a weight would change by a bit.
func (m *Matrix) LUT() (*lut.Matrix, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	l := &lut.Matrix{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	if m.Bits < lut.MinBits || m.Bits > lut.MaxBits {
		return nil, fmt.Errorf("%d bits: tables have %d to %d", m.Bits, lut.MinBits, lut.MaxBits)
	}
	// With α₀ for the scale, level c is α₀·(2c - (2^b-1) + z/α₀). Where those are even numbers
	// twice α₀ is it: so what was made of a table of integers becomes one again.
	l.Codes = make([]byte, m.N*l.RowBytes())
	codes, scales := make([]uint8, m.K), make([]float32, m.N*m.Groups())
	shift, known := 0.0, false
	var f Factors
	for n := range m.N {
		m.RowCodes(codes, n)
		lut.PackCodes(l.Codes[n*l.RowBytes():(n+1)*l.RowBytes()], codes, m.Bits)
		for g := range m.Groups() {
			m.ReadFactors(&f, n, g)
			for i, a := range f.Alpha[1:m.Bits] {
				if a != 2*f.Alpha[i] {
					return nil, fmt.Errorf("row %d, group %d: factor %d is %v: equal steps take %v", n, g, i+1, a, 2*f.Alpha[i])
				}
			}
			scales[n*m.Groups()+g] = f.Alpha[0]
			if f.Alpha[0] == 0 {
				continue // of zeros, or found out below
			}
			if s := float64(f.Z) / float64(f.Alpha[0]); !known {
				shift, known = s, true
			} else if s != shift {
				return nil, fmt.Errorf("row %d, group %d: an offset of %v steps: others have %v", n, g, s/2, shift/2)
			}
		}
	}
	last, unit := 1<<m.Bits-1, 1.0
	if math.Mod(shift, 2) == 1 || math.Mod(shift, 2) == -1 {
		unit = 2
	}
	for c := range 1 << m.Bits {
		l.Codebook = append(l.Codebook, float32((float64(2*c-last)+shift)/unit))
	}
	for i := range scales {
		scales[i] *= float32(unit)
	}
	l.Scales = make([]byte, len(scales)*m.ScaleType.Size())
	m.ScaleType.Encode(l.Scales, scales)
	if !Equal(m, l) {
		return nil, errors.New("a table and scales cannot hold the same numbers")
	}
	return l, nil
}

// Equal reports whether two matrices of a shape stand for the same numbers.
func Equal(a, b weight.Matrix) bool {
	n, k := a.Shape()
	x, y := make([]float32, k), make([]float32, k)
	for i := range n {
		a.Row(x, i)
		b.Row(y, i)
		for j, v := range x {
			if v != y[j] {
				return false
			}
		}
	}
	return true
}
