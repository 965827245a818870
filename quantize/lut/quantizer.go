package lut

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/weight"
)

// Options describe the format that a [Quantizer] writes.
type Options struct {
	Codebook  Codebook
	Group     int // columns that share a scale; at least 1
	Scale     weight.ScaleMethod
	ScaleType weight.ScaleType

	// Weights are how much the squared errors of each column count where a scale
	// is searched, near 1; nil is all alike. A row has as many columns.
	Weights []float32
}

// A Quantizer turns rows of weights into codes and scales. It keeps scratch
// memory, so each goroutine needs its own.
type Quantizer struct {
	opt    Options
	bits   int
	max    float32 // largest magnitude in the codebook
	reach  float32 // what absmax gives to the largest weight
	signed bool    // whether a negative scale is worth trying
	table  *table
	kernels

	steps []float32 // of the search's grid, multiples of the absmax scale
	bytes []float32 // the scales that the bytes of a byte type stand for

	// Scratch for a row.
	codes        []uint8
	tops         []uint32
	scales, invs []float32
	sums         []groupError

	// Scratch for the scales that a search tries, and what they give.
	tried, triedInvs []float32
	fits             []moments

	weights []float32 // of the columns of the group at hand, or nil

	fitted fitted
}

// NewQuantizer returns a quantizer for a format. It uses the fastest kernels
// that the processor runs, all of which give the same bytes; the environment
// variable LUTQ_ISA, one of avx512, avx2 and generic, asks for others, and it
// is an error if the processor lacks them.
func NewQuantizer(o Options) (*Quantizer, error) {
	bits := o.Codebook.Bits()
	switch {
	case bits < MinBits || bits > MaxBits:
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
		kernels: k,
	}
	for m := float64(searchTo); m > searchLimit; m /= searchRatio {
		q.steps = append(q.steps, float32(m))
	}
	if o.ScaleType.Size() == 1 {
		q.bytes = make([]float32, 256)
		for i := range q.bytes {
			o.ScaleType.Decode(q.bytes[i:i+1], []byte{byte(i)})
		}
	}
	return q, nil
}

// Rows implements [weight.Quantizer]. Scales are rounded to their stored type before
// codes are chosen. A group of zeros gets the scale 0, or the least of a type without it. Besides a
// [weight.NotFiniteError] it fails where a scale is too large for its type.
func (q *Quantizer) Rows(parts [][]byte, errs []weight.RowError, w []float32) error {
	if len(errs) == 0 {
		return nil
	}
	codes, scales, k := parts[CodesPart], parts[ScalesPart], len(w)/len(errs)
	groups := weight.GroupsIn(k, q.opt.Group)
	rowBytes, scaleBytes := RowBytes(k, q.bits), groups*q.opt.ScaleType.Size()
	for n := range errs {
		row := w[n*k : (n+1)*k]
		stored := scales[n*scaleBytes : (n+1)*scaleBytes]
		if err := q.rowScales(stored, row, n); err != nil {
			return err
		}
		for g, s := range q.scales[:groups] {
			q.invs[g] = reciprocal(s)
		}
		q.encode(q.table, q.codes, row, q.opt.Group, q.invs, q.scales, q.sums[:groups])
		var e weight.RowError
		for _, s := range q.sums[:groups] {
			e.Energy += float64(s.energy)
			e.Squared += float64(s.squared)
		}
		if math.IsInf(e.Energy, 0) || math.IsInf(e.Squared, 0) {
			e = q.wideError(row) // squares beyond float32
		}
		errs[n] = e
		q.pack(codes[n*rowBytes:(n+1)*rowBytes], q.codes[:k], q.bits)
	}
	return nil
}

// Shared implements [weight.Quantizer].
func (q *Quantizer) Shared(parts [][]byte) { num.EncodeF32(parts[CodebookPart], q.opt.Codebook.Values) }

// wideError recomputes in float64 the error of the row at hand, whose codes
// and scales are in q.
func (q *Quantizer) wideError(row []float32) weight.RowError {
	var e weight.RowError
	for i, v := range row {
		d := float64(v) - float64(q.table.values[q.codes[i]]*q.scales[i/q.opt.Group])
		e.Energy += float64(v) * float64(v)
		e.Squared += d * d
	}
	return e
}

// rowScales finds the scales of a row, stores them, and leaves them as stored
// in q.scales. n is the row in its errors.
func (q *Quantizer) rowScales(stored []byte, row []float32, n int) error {
	k, group := len(row), q.opt.Group
	groups := weight.GroupsIn(k, group)
	if len(q.codes) < k {
		q.codes = make([]uint8, k)
	}
	if len(q.scales) < groups {
		q.scales, q.invs = make([]float32, groups), make([]float32, groups)
		q.tops, q.sums = make([]uint32, groups), make([]groupError, groups)
	}
	scales, tops := q.scales[:groups], q.tops[:groups]
	q.peaks(tops, row, group)
	for g, top := range tops {
		w := row[g*group : min((g+1)*group, k)]
		if top >= infBits {
			for i, v := range w {
				if math.Float32bits(v)&^signBit >= infBits {
					return &weight.NotFiniteError{Row: n, Col: g*group + i, Value: v}
				}
			}
		}
		if q.opt.Weights != nil {
			q.weights = q.opt.Weights[g*group : g*group+len(w)]
		}
		scales[g] = q.scale(w, math.Float32frombits(top))
	}
	q.opt.ScaleType.Encode(stored, scales)
	q.opt.ScaleType.Decode(scales, stored)
	for g, s := range scales {
		if math.IsInf(float64(s*q.max), 0) {
			return fmt.Errorf("row %d: the scale of group %d does not fit %v", n, g, q.opt.ScaleType)
		}
	}
	return nil
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

// stored returns a scale as it comes back from its stored type.
func (q *Quantizer) stored(s float32) float32 {
	one := [1]float32{s}
	var b [4]byte
	q.opt.ScaleType.Encode(b[:q.opt.ScaleType.Size()], one[:])
	q.opt.ScaleType.Decode(one[:], b[:q.opt.ScaleType.Size()])
	return one[0]
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
