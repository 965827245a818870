package foreign

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Match says how a table is a part of another: value c of it is Factor times value
// Codes[c] of the other.
type Match struct {
	Codes  []uint8 // by code of the table
	Factor float64 // by which scales are multiplied; never 0
	// Rounded is by how much, at most, a value of the table is off, as a part of it: 0 where all
	// are exactly what they should be.
	Rounded float64
}

// roundedSlack is what the values of a table may be off: more than what rounding to float32 makes of
// them, since NormalFloat tables differ in the seventh digit by who computed them.
const roundedSlack = 0x1p-20

// MatchTable finds how a table is a constant times values of another, to the bit if it
// can, and the nearest to 1 of several. A negative constant is found where negative is set.
func MatchTable(table, values []float32, negative bool) (m Match, ok bool) {
	top := 0
	for i, v := range table {
		if math.Abs(float64(v)) > math.Abs(float64(table[top])) {
			top = i
		}
	}
	for _, sign := range []float64{1, -1} {
		if sign < 0 && !negative {
			break
		}
		for _, v := range values {
			factor := float64(table[top]) / float64(v)
			if v == 0 || math.Signbit(factor) != (sign < 0) {
				continue
			}
			if n, found := matchFactor(table, values, factor); found && (!ok || n.better(m)) {
				m, ok = n, true
			}
		}
	}
	return m, ok
}

// better reports whether a match is to be preferred to another of no other sign, or of the positive
// one.
func (m Match) better(than Match) bool {
	if m.Rounded != than.Rounded {
		return m.Rounded < than.Rounded
	}
	far := func(f float64) float64 { return math.Abs(math.Log2(math.Abs(f))) }
	return far(m.Factor) < far(than.Factor)
}

// matchFactor matches a table for one factor.
func matchFactor(table, values []float32, factor float64) (Match, bool) {
	m := Match{Codes: make([]uint8, len(table)), Factor: factor}
	for c, v := range table {
		at, least := -1, math.Inf(1)
		for i, u := range values {
			off := math.Abs(math.FMA(factor, float64(u), -float64(v)))
			if v != 0 {
				off /= math.Abs(float64(v))
			} else if u != 0 {
				continue
			}
			sameZero := v != 0 || math.Signbit(float64(v)) == math.Signbit(factor*float64(u))
			if off < least || off == least && sameZero && v == 0 {
				at, least = i, off
			}
		}
		if !(least <= roundedSlack) {
			return m, false
		}
		m.Codes[c] = uint8(at)
		m.Rounded = max(m.Rounded, least)
	}
	return m, true
}

// Straight reports whether codes stay what they are.
func (m Match) Straight() bool {
	for c, to := range m.Codes {
		if int(to) != c {
			return false
		}
	}
	return true
}

// Change returns by how much, at most, a scale of the matrix changes when it is multiplied by the
// factor and stored in a type, as a part of it, with what the table itself is off. It is
// infinite where the type has nothing near.
func (m Match) Change(w *lut.Matrix, t weight.ScaleType) float64 {
	if m.Factor == 1 && (w.ScaleType == t || t == weight.F32) {
		return m.Rounded
	}
	change := 0.0
	row, stored := make([]float32, w.Groups()), make([]byte, w.Groups()*t.Size())
	back := make([]float32, w.Groups())
	for n := range w.N {
		w.RowScales(row, n)
		m.encode(stored, back, t, row)
		t.Decode(back, stored)
		for g, s := range row {
			change = max(change, relative(float64(s)*m.Factor, float64(back[g])))
		}
	}
	return change + m.Rounded
}

// relative returns by how much v changes when it becomes u.
func relative(v, u float64) float64 {
	switch {
	case v == u:
		return 0
	case v == 0 || u-u != 0:
		return math.Inf(1)
	}
	return math.Abs(u-v) / math.Abs(v)
}

// encode stores scales times the factor, with room for as many float32 in buf.
func (m Match) encode(dst []byte, buf []float32, t weight.ScaleType, scales []float32) {
	for g, s := range scales {
		buf[g] = float32(float64(s) * m.Factor)
	}
	t.Encode(dst, buf)
}

// Scales returns the matrix's scales times the factor in a type, [N, ⌈K/group⌉]: group divides that
// of the matrix, and each part of one has its scale.
func (m Match) Scales(w *lut.Matrix, t weight.ScaleType, group int) []byte {
	if m.Factor == 1 && w.ScaleType == t && group == w.Group {
		return w.Scales
	}
	groups := weight.GroupsIn(w.K, group)
	dst := make([]byte, w.N*groups*t.Size())
	row, buf, wide := make([]float32, w.Groups()), make([]float32, groups), make([]float32, groups)
	for n := range w.N {
		w.RowScales(row, n)
		for g := range wide {
			wide[g] = row[g*group/w.Group]
		}
		m.encode(dst[n*groups*t.Size():][:groups*t.Size()], buf, t, wide)
	}
	return dst
}

// RowCodes unpacks the codes of a row as the other table's, to dst of length K.
func (m Match) RowCodes(dst []uint8, w *lut.Matrix, n int) {
	w.RowCodes(dst, n)
	var to [1 << 8]uint8
	copy(to[:], m.Codes)
	for i, c := range dst {
		dst[i] = to[c]
	}
}

// maxChange is what a scale that is rounded once more may change by at most: half a step of a
// BF16. Beyond it codes would no longer be the nearest.
const maxChange = 0x1p-8

// FitScales says whether a matrix's scales fit a type.
func FitScales(m Match, w *lut.Matrix, t weight.ScaleType) Fit { return fitScales(m, w, t, maxChange) }

// FitExactly is [FitScales] for a target that takes only layers whose weights stay what they are.
func FitExactly(m Match, w *lut.Matrix, t weight.ScaleType) Fit { return fitScales(m, w, t, 0) }

func fitScales(m Match, w *lut.Matrix, t weight.ScaleType, most float64) Fit {
	change := m.Change(w, t)
	switch {
	case math.IsInf(change, 1):
		return Fit{Why: fmt.Sprintf("a scale of it is beyond %v", t)}
	case change > most:
		return Fit{Why: fmt.Sprintf("rounded to %v a scale of it would change by %.2g %%", t, 100*change)}
	}
	return Fit{Change: change}
}

// Integers returns the integers of b bits, by the code that has the least for 0.
func Integers(bits int) []float32 {
	v := make([]float32, 1<<bits)
	for i := range v {
		v[i] = float32(i - len(v)/2)
	}
	return v
}

// FitGroup returns the largest of some numbers of columns that the groups of a layer can be
// divided into, 0 where there is none.
func FitGroup(group, k int, sizes ...int) int {
	best := 0
	for _, size := range sizes {
		if k%size == 0 && (group >= k || group%size == 0) {
			best = max(best, size)
		}
	}
	return best
}

// MatchIntegers finds the narrowest integers, of one of some widths in ascending order and no fewer bits than
// codes have, that a table is a multiple of.
func MatchIntegers(table []float32, widths ...int) (m Match, bits int, ok bool) {
	for _, bits = range widths {
		if 1<<bits < len(table) {
			continue
		}
		if m, ok = MatchTable(table, Integers(bits), true); ok {
			return m, bits, true
		}
	}
	return m, 0, false
}

// FitIntegers says whether a matrix fits a target with integers of one of some widths, and scales of a
// type.
func FitIntegers(w *lut.Matrix, t weight.ScaleType, widths ...int) Fit {
	m, _, ok := MatchIntegers(w.Codebook, widths...)
	if !ok {
		if _, _, ok := MatchIntegers(w.Codebook, 2, 3, 4, 5, 6, 7, 8); ok {
			return Fit{Why: fmt.Sprintf("it has integers of %d bits, beyond what is held", w.Bits)}
		}
		return Fit{Why: "its table is not one of integers, in equal steps from 0"}
	}
	return FitScales(m, w, t)
}

// NewIntegers returns how a layer is quantized anew to integers of the nearest of some widths, 2 to 5
// bits, with a scale of a type for a group of columns.
func NewIntegers(l *Layer, group int, t weight.ScaleType, widths ...int) lut.Format {
	bits := widths[0]
	for _, b := range widths {
		if b <= min(l.Bits, lut.MaxBits) {
			bits = b
		}
	}
	return lut.Format{
		Codebook: lut.Codebook{Name: fmt.Sprintf("q%d", bits), Values: Integers(bits)},
		Group:    group, Scale: weight.MSE, ScaleType: t,
	}
}
