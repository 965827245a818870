package rtn

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Quantizer turns rows of weights into codes and scales. It keeps scratch
// memory, so each goroutine needs its own.
type Quantizer struct {
	opt    lut.Format
	bits   int
	max    float32 // largest magnitude in the codebook
	reach  float32 // what absmax gives to the largest weight
	signed bool    // whether a negative scale is worth trying
	table  *table
	kernels

	steps []float32 // of the search's grid, multiples of the absmax scale
	bytes []float32 // the scales that the bytes of a byte type stand for
	most  float32   // the largest of them, else infinite

	// Scratch for a row.
	codes        []uint8
	tops         []uint32
	scales, invs []float32
	wanted       []float32 // scales before they were rounded
	sums         []groupError
	wants        weight.ScaleType // as a row's error has it

	// Of the groups of a row what they were multiplied by to be near 1, and where that is not 1 for all,
	// the row and its scales that way.
	factors          []float64
	near, nearScales []float32
	factor           float64 // of the group at hand

	// Scratch for the scales that a search tries, and what they give.
	tried, triedInvs []float32
	fits             []moments

	columns []float32 // how much the squared errors of each count, or nil
	weights []float32 // of the columns of the group at hand, or nil

	fitted fitted
}

// NewQuantizer returns a quantizer for a format. It uses the fastest kernels
// that the processor runs, all of which give the same bytes; the environment
// variable LUTQ_ISA, one of avx512, avx2, neon and generic, asks for others, and it
// is an error if the processor lacks them.
func NewQuantizer(o lut.Format) (*Quantizer, error) {
	bits := o.Codebook.Bits()
	switch {
	case bits < lut.MinBits || bits > lut.MaxBits:
		return nil, fmt.Errorf("codebook %s has %d values: want 4, 8, 16 or 32", o.Codebook.Name, len(o.Codebook.Values))
	case o.Group < 1:
		return nil, fmt.Errorf("group of %d columns", o.Group)
	case o.ScaleType.Size() == 0:
		return nil, fmt.Errorf("unknown scale type %v", o.ScaleType)
	case o.Scale != weight.Absmax && o.Scale != weight.MSE:
		return nil, fmt.Errorf("unknown scale method %v", o.Scale)
	}
	if err := o.Codebook.Check(bits); err != nil {
		return nil, err
	}
	k, err := chooseKernels()
	if err != nil {
		return nil, err
	}
	q := &Quantizer{
		opt:     o,
		bits:    bits,
		max:     o.Codebook.Max(),
		reach:   o.Codebook.Reach(),
		signed:  o.Codebook.OneSided() && o.ScaleType.Signed(),
		table:   newTable(o.Codebook),
		factor:  1,
		kernels: k,
	}
	for m := float64(searchTo); m > searchLimit; m /= searchRatio {
		q.steps = append(q.steps, float32(m))
	}
	q.most = float32(math.Inf(1))
	if o.ScaleType.Size() == 1 {
		q.bytes, q.most = make([]float32, 256), 0
		for i := range q.bytes {
			o.ScaleType.Decode(q.bytes[i:i+1], []byte{byte(i)})
			if v := q.bytes[i]; v > q.most {
				q.most = v
			}
		}
	}
	return q, nil
}

// NewRounder is [NewQuantizer] for who asks for no errors: it returns what writes the codes and scales of n rows to parts.
func NewRounder(f lut.Format) (func(parts [][]byte, w []float32, n int) error, error) {
	q, err := NewQuantizer(f)
	if err != nil {
		return nil, err
	}
	return func(parts [][]byte, w []float32, n int) error { return q.Rows(parts, make([]rounding.RowError, n), w) }, nil
}

// Weigh has the squared errors of each column count so much, near 1, where a scale is searched; nil is all alike. A row
// has as many columns.
func (q *Quantizer) Weigh(columns []float32) { q.columns = columns }

// Rows implements [rounding.Quantizer]. Scales are rounded to their stored type before
// codes are chosen. A group of zeros gets the scale 0, or the least of a type without it. Besides a
// [rounding.NotFiniteError] it fails with a [rounding.ScaleError] where a scale is too large for its type.
func (q *Quantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if len(errs) == 0 {
		return nil
	}
	k := len(w) / len(errs)
	groups := weight.GroupsIn(k, q.opt.Group)
	rowBytes, scaleBytes := lut.RowBytes(k, q.bits), groups*q.opt.ScaleType.Size()
	if err := q.CheckParts(parts, len(errs), k); err != nil {
		return err
	}
	codes, scales := parts[lut.CodesPart], parts[lut.ScalesPart]
	for n := range errs {
		row := w[n*k : (n+1)*k]
		stored := scales[n*scaleBytes : (n+1)*scaleBytes]
		if err := q.rowScales(stored, row, n); err != nil {
			return err
		}
		near, nearScales := q.nearRow(row)
		for g, s := range nearScales {
			q.invs[g] = reciprocal(s)
		}
		q.encode(q.table, q.codes, near, q.opt.Group, q.invs, nearScales, q.sums[:groups])
		e := rounding.RowError{Wants: q.wants}
		for g, s := range q.sums[:groups] {
			if q.factors[g] == 1 {
				e.Energy += float64(s.energy)
				e.Squared += float64(s.squared)
				continue
			}
			from, to := g*q.opt.Group, min((g+1)*q.opt.Group, k)
			for i, v := range row[from:to] {
				e.Add(v, q.table.values[q.codes[from+i]]*q.scales[g])
			}
		}
		errs[n] = e
		q.pack(codes[n*rowBytes:(n+1)*rowBytes], q.codes[:k], q.bits)
	}
	return nil
}

// CheckParts reports parts that n rows of k columns have no place in.
func (q *Quantizer) CheckParts(parts [][]byte, n, k int) error {
	return rounding.CheckParts(parts, map[int]int{
		lut.ScalesPart: n * weight.GroupsIn(k, q.opt.Group) * q.opt.ScaleType.Size(), lut.CodesPart: n * lut.RowBytes(k, q.bits),
	})
}

// Shared implements [rounding.Quantizer].
func (q *Quantizer) Shared(parts [][]byte) {
	num.EncodeF32(parts[lut.CodebookPart], q.opt.Codebook.Values)
}

// far is the power of two that the largest magnitude of a group is at most, and at least the
// reciprocal of, for squares and reciprocals to stay within float32.
const far = 0x1p40

// nearFactor returns the power of two that brings a magnitude near 1 where it is far from it, else 1.
func nearFactor(top float32) float64 {
	if top == 0 || top >= 1/far && top <= far {
		return 1
	}
	_, exp := math.Frexp(float64(top))
	return math.Ldexp(1, -exp)
}

// times is exact but where the product is subnormal.
func times(v float32, factor float64) float32 { return float32(float64(v) * factor) }

// nearGroup returns a group's weights multiplied by q.factor.
func (q *Quantizer) nearGroup(dst, w []float32) []float32 {
	for i, v := range w {
		dst[i] = times(v, q.factor)
	}
	return dst[:len(w)]
}

// nearRow returns the row at hand and its scales, with each group multiplied by its factor.
func (q *Quantizer) nearRow(row []float32) (near, scales []float32) {
	groups := weight.GroupsIn(len(row), q.opt.Group)
	if !slices.ContainsFunc(q.factors[:groups], func(f float64) bool { return f != 1 }) {
		return row, q.scales[:groups]
	}
	q.near, q.nearScales = slices.Grow(q.near[:0], len(row))[:len(row)], slices.Grow(q.nearScales[:0], groups)[:groups]
	for g := range groups {
		from, to := g*q.opt.Group, min((g+1)*q.opt.Group, len(row))
		q.factor = q.factors[g]
		q.nearGroup(q.near[from:to], row[from:to])
		q.nearScales[g] = times(q.scales[g], q.factor)
	}
	return q.near, q.nearScales
}

// grow makes room for what is known of a row.
func (q *Quantizer) grow(k, groups int) {
	if len(q.codes) < k {
		q.codes = make([]uint8, k)
	}
	if len(q.scales) < groups {
		q.scales, q.invs, q.wanted = make([]float32, groups), make([]float32, groups), make([]float32, groups)
		q.tops, q.sums, q.factors = make([]uint32, groups), make([]groupError, groups), make([]float64, groups)
	}
}

// rowScales finds the scales of a row, stores them, and leaves them as stored
// in q.scales. n is the row in its errors.
func (q *Quantizer) rowScales(stored []byte, row []float32, n int) error {
	k, group := len(row), q.opt.Group
	groups := weight.GroupsIn(k, group)
	q.grow(k, groups)
	scales, tops := q.scales[:groups], q.tops[:groups]
	q.peaks(tops, row, group)
	for g, top := range tops {
		w := row[g*group : min((g+1)*group, k)]
		if top >= infBits {
			for i, v := range w {
				if math.Float32bits(v)&^signBit >= infBits {
					return &rounding.NotFiniteError{Row: n, Col: g*group + i, Value: v}
				}
			}
		}
		if q.columns != nil {
			q.weights = q.columns[g*group : g*group+len(w)]
		}
		peak := math.Float32frombits(top)
		q.factor = nearFactor(peak)
		if q.factors[g] = q.factor; q.factor != 1 {
			q.near = slices.Grow(q.near[:0], len(w))[:len(w)]
			w, peak = q.nearGroup(q.near, w), times(peak, q.factor)
		}
		scales[g] = times(q.scale(w, peak), 1/q.factor)
	}
	if err := q.settle(stored, groups, n); err != nil {
		return err
	}
	if q.wants != 0 {
		q.wants = q.lacking(row)
	}
	return nil
}

// settle stores the scales of a row, given in q.scales for groups whose largest magnitudes are q.tops, and leaves them there as
// stored. n is the row in its errors. q.wants is what groups want that are beyond their type, whatever they weigh.
func (q *Quantizer) settle(stored []byte, groups, n int) error {
	scales, tops := q.scales[:groups], q.tops[:groups]
	copy(q.wanted, scales)
	q.opt.ScaleType.Encode(stored, scales)
	q.opt.ScaleType.Decode(scales, stored)
	q.wants = 0
	for g, s := range scales {
		end := math.Float32frombits(tops[g]) / q.reach
		if !q.holds(s) || end > q.most {
			return &rounding.ScaleError{Row: n, Group: g, What: "the scale", Value: max(end, q.wanted[g], -q.wanted[g]), Type: q.opt.ScaleType}
		}
		if q.wanted[g] == 0 { // of zeros, or because no byte but that is small enough
			q.wanted[g] = end
		}
		q.wants = max(q.wants, q.opt.ScaleType.Underflow(q.wanted[g], s))
	}
	return nil
}

// holds reports whether the largest weight of a scale is a number.
func (q *Quantizer) holds(scale float32) bool { return !math.IsInf(float64(scale*q.max), 0) }

// lacking returns what [rounding.RowError] wants for the row at hand, of which some scales are too small.
func (q *Quantizer) lacking(row []float32) (wants weight.ScaleType) {
	var all, lost float64
	for g, s := range q.scales[:weight.GroupsIn(len(row), q.opt.Group)] {
		var energy float64
		for _, v := range row[g*q.opt.Group : min((g+1)*q.opt.Group, len(row))] {
			energy += float64(v) * float64(v)
		}
		all += energy
		if t := q.opt.ScaleType.Underflow(q.wanted[g], s); t != 0 {
			lost += energy
			wants = max(wants, t)
		}
	}
	if lost < all/100 {
		return 0
	}
	return wants
}

// scale returns the scale of a group whose largest magnitude is top.
func (q *Quantizer) scale(w []float32, top float32) float32 {
	if top == 0 {
		return 0
	}
	end := top / q.reach
	if q.signed {
		end = q.towards(w, end, top)
	}
	if q.opt.Scale == weight.Absmax {
		return end
	}
	return q.search(w, end)
}

// towards gives end the sign that maps the weight of magnitude top to the end
// of the table that reaches Max. Of two weights of that magnitude, the first
// counts.
func (q *Quantizer) towards(w []float32, end, top float32) float32 {
	upper := q.opt.Codebook.Values[len(q.opt.Codebook.Values)-1]
	for _, v := range w {
		if v == top || v == -top {
			if (v < 0) == (upper == q.max) {
				return -end
			}
			break
		}
	}
	return end
}

// stored returns a scale of the group at hand as it comes back from its stored type.
func (q *Quantizer) stored(s float32) float32 {
	one := [1]float32{times(s, 1/q.factor)}
	var b [4]byte
	q.opt.ScaleType.Encode(b[:q.opt.ScaleType.Size()], one[:])
	q.opt.ScaleType.Decode(one[:], b[:q.opt.ScaleType.Size()])
	if !q.holds(one[0]) {
		return float32(math.Inf(1))
	}
	return times(one[0], q.factor)
}

// squared returns the squared error of a group with a stored scale.
func (q *Quantizer) squared(w []float32, scale float32) float32 {
	q.tried, q.triedInvs = append(q.tried[:0], scale), append(q.triedInvs[:0], reciprocal(scale))
	q.encode(q.table, q.codes, w, len(w), q.triedInvs, q.tried, q.sums[:1])
	if q.weights == nil {
		return q.sums[0].squared
	}
	var sum float32
	for i, v := range w {
		d := v - float32(q.table.values[q.codes[i]]*scale)
		sum += float32(q.weights[i] * float32(d*d))
	}
	return sum
}

// least is the smallest magnitude that a scale is taken for when weights are
// divided by it, so that its reciprocal is a number: a group of zeros gets the
// code of zero. bitsandbytes has the same bound, and so the same codes.
const least = 1e-38

func reciprocal(scale float32) float32 {
	switch {
	case scale >= 0 && scale < least:
		scale = least
	case scale < 0 && scale > -least:
		scale = -least
	}
	return 1 / scale
}

// quotient returns w over a scale as [Quantizer.Rows] has it, which brings what is small near 1 before.
func quotient(w, scale float32) float32 {
	const small, factor = 0x1p-100, 0x1p100
	if scale != 0 && scale < small && scale > -small {
		return float32(float32(w*factor) * reciprocal(scale*factor))
	}
	return float32(w * reciprocal(scale))
}
