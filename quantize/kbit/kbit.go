// Package kbit makes the same codes and scales as the encoder of bitsandbytes' k-bit kernels, bit for bit. (Those are
// encode_absmax_e4m4 of bitsandbytes/functional.py in its k-bit branch, and quantize_kbit_ref of its tests.)
//
// It rounds to the nearest value of a table. The scale is the largest magnitude of 32 weights, stored in E4M4. Package
// rtn does nearly the same, with two differences. Here codes are chosen by the exact magnitude, not by the scale as it
// is stored. And the encoder has no carry and no limit: a scale that rounds up to a power of two becomes the number
// below it, and one of 32 or more loses its exponent, so that 40 is stored as 20.
package kbit

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// Block is how many columns share a scale.
const Block = 32

// Quantizer implements [rounding.Quantizer] for matrices of package lut, with groups of [Block] columns and scales in
// E4M4. It keeps scratch memory, so each goroutine needs its own.
type Quantizer struct {
	table []float32
	bits  int
	codes []uint8
}

// NewQuantizer returns a quantizer with a table.
func NewQuantizer(cb lut.Codebook) (*Quantizer, error) {
	bits := cb.Bits()
	if bits < lut.MinBits || bits > lut.MaxBits {
		return nil, fmt.Errorf("codebook %s has %d values: want 4, 8, 16 or 32", cb.Name, len(cb.Values))
	}
	return &Quantizer{table: cb.Values, bits: bits}, cb.Check(bits)
}

// Rows implements [rounding.Quantizer]. A last block of a row may be short.
func (q *Quantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if len(errs) == 0 {
		return nil
	}
	k := len(w) / len(errs)
	groups, rowBytes := weight.GroupsIn(k, Block), lut.RowBytes(k, q.bits)
	if err := rounding.CheckParts(parts, map[int]int{lut.ScalesPart: len(errs) * groups, lut.CodesPart: len(errs) * rowBytes}); err != nil {
		return err
	}
	q.codes = slices.Grow(q.codes[:0], k)[:k]
	for n := range errs {
		row, scales := w[n*k:(n+1)*k], parts[lut.ScalesPart][n*groups:(n+1)*groups]
		errs[n] = rounding.RowError{}
		var lost float64
		for g := range groups {
			from, to := g*Block, min((g+1)*Block, k)
			top := float32(0)
			for i, v := range row[from:to] {
				if v-v != 0 {
					return &rounding.NotFiniteError{Row: n, Col: from + i, Value: v}
				}
				top = max(top, float32(math.Abs(float64(v))))
			}
			scales[g] = encodeE4M4(top)
			stored, by := num.E4M4ToF32(scales[g]), max(top, 1e-8)
			before := errs[n].Energy
			for i, v := range row[from:to] {
				c := q.nearest(v / by)
				q.codes[from+i] = c
				errs[n].Add(v, q.table[c]*stored)
			}
			if math.Abs(float64(stored)-float64(top)) > float64(top)/16 {
				lost += errs[n].Energy - before
			}
		}
		if lost > 0 && lost >= errs[n].Energy/100 {
			errs[n].Wants = weight.E4M4 // for there is no other
		}
		lut.PackCodes(parts[lut.CodesPart][n*rowBytes:(n+1)*rowBytes], q.codes, q.bits)
	}
	return nil
}

// nearest returns the code of the value nearest to x by the float32 distance, of equals the least.
func (q *Quantizer) nearest(x float32) uint8 {
	c, _ := slices.BinarySearch(q.table, x)
	switch {
	case c == len(q.table):
		c--
	case c > 0 && x-q.table[c-1] <= q.table[c]-x:
		c--
	}
	return uint8(c)
}

// Shared implements [rounding.Quantizer].
func (q *Quantizer) Shared(parts [][]byte) { num.EncodeF32(parts[lut.CodebookPart], q.table) }

// encodeE4M4 stores a number that is not negative in a byte: the exponent, plus 11 and clamped, above four bits of
// mantissa, which are rounded to even and clamped as well. The exponent is that of the logarithm in float32, which
// rounds to a whole number just below one.
func encodeE4M4(v float32) uint8 {
	if v == 0 {
		return 0
	}
	const bias = 11
	e := int(math.Floor(float64(float32(math.Log2(float64(v))))))
	mantissa := math.Ldexp(float64(v), 4+bias-1)
	if e+bias > 0 {
		mantissa = math.Ldexp(float64(v), 4-e) - 16
	}
	clamp := func(i float64) uint8 { return uint8(max(0, min(i, 15))) }
	return clamp(float64(e+bias))<<4 | clamp(math.RoundToEven(mantissa))
}
