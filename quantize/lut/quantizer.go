package lut

import (
	"fmt"
	"math"
)

// ScaleMethod says how the scale of a group is found.
type ScaleMethod uint8

const (
	// Absmax maps the weight of largest magnitude to the end of the table. A
	// one-sided table is mirrored where that weight has the other sign.
	Absmax ScaleMethod = iota + 1
	// MSE searches the scale with the smallest squared error.
	MSE
)

// ParseScaleMethod is the inverse of [ScaleMethod.String].
func ParseScaleMethod(s string) (ScaleMethod, error) {
	switch s {
	case "absmax":
		return Absmax, nil
	case "mse":
		return MSE, nil
	}
	return 0, fmt.Errorf("unknown scale method %q: want absmax or mse", s)
}

func (m ScaleMethod) String() string {
	switch m {
	case Absmax:
		return "absmax"
	case MSE:
		return "mse"
	}
	return fmt.Sprintf("ScaleMethod(%d)", uint8(m))
}

// Options describe the format that a [Quantizer] writes.
type Options struct {
	Codebook  Codebook
	Group     int // columns that share a scale; at least 1
	Scale     ScaleMethod
	ScaleType ScaleType
}

// A Quantizer turns rows of weights into codes and scales. It keeps scratch
// memory, so each goroutine needs its own.
type Quantizer struct {
	opt    Options
	bits   int
	max    float32 // largest magnitude in the codebook
	signed bool    // whether a negative scale is worth trying
	table  *table
	kernels

	// Scratch for a row and for the scales that a search tries.
	codes   []uint8
	tops    []uint32
	scales  []float32
	invs    []float32
	sums    []groupError
	tried   []float32
	moments []moments
	bytes   []float32 // the scales that a byte stands for
}

// NewQuantizer returns a quantizer for a format.
func NewQuantizer(o Options) (*Quantizer, error) {
	bits := o.Codebook.Bits()
	switch {
	case bits < MinBits || bits > MaxBits:
		return nil, fmt.Errorf("codebook %s has %d values: want 4, 8, 16 or 32", o.Codebook.Name, len(o.Codebook.Values))
	case o.Group < 1:
		return nil, fmt.Errorf("group of %d columns", o.Group)
	case o.ScaleType.Size() == 0:
		return nil, fmt.Errorf("unknown scale type %v", o.ScaleType)
	case o.Scale != Absmax && o.Scale != MSE:
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
		signed:  o.Codebook.OneSided() && o.ScaleType.Signed(),
		table:   newTable(o.Codebook),
		kernels: k,
	}
	if o.ScaleType.Size() == 1 {
		q.bytes = make([]float32, 256)
		for i := range q.bytes {
			o.ScaleType.Decode(q.bytes[i:i+1], []byte{byte(i)})
		}
	}
	return q, nil
}

// RowError is what quantization did to a row of weights.
type RowError struct {
	Energy  float64 // Σ w²
	Squared float64 // Σ (w - ŵ)²
}

// NotFiniteError reports a weight that no code can stand for.
type NotFiniteError struct {
	Row, Col int
	Value    float32
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("weight [%d, %d] is %v", e.Row, e.Col, e.Value)
}

// Rows quantizes len(errs) rows of k weights each. It writes RowBytes(k, bits)
// bytes a row to codes, the scales of a row to scales, and the error of each
// row to errs. Scales are rounded to their stored type before codes are
// chosen. A group of zeros gets the scale 0.
//
// It fails with a [NotFiniteError] on a weight that is NaN or infinite, its
// row counted from the first one given, and with another error where a scale
// is too large for its type.
func (q *Quantizer) Rows(codes, scales []byte, errs []RowError, w []float32, k int) error {
	groups := GroupsIn(k, q.opt.Group)
	if len(q.codes) < k {
		q.codes = make([]uint8, k)
	}
	if len(q.scales) < groups {
		q.scales, q.invs = make([]float32, groups), make([]float32, groups)
		q.tops, q.sums = make([]uint32, groups), make([]groupError, groups)
	}
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
		var e RowError
		for _, s := range q.sums[:groups] {
			e.Energy += float64(s.energy)
			e.Squared += float64(s.squared)
		}
		errs[n] = e
		q.pack(codes[n*rowBytes:(n+1)*rowBytes], q.codes[:k], q.bits)
	}
	return nil
}

// rowScales finds the scales of a row, stores them, and leaves them as stored
// in q.scales.
func (q *Quantizer) rowScales(stored []byte, row []float32, n int) error {
	k, group := len(row), q.opt.Group
	scales := q.scales[:GroupsIn(k, group)]
	tops := q.tops[:len(scales)]
	q.peaks(tops, row, group)
	for g, top := range tops {
		w := row[g*group : min((g+1)*group, k)]
		if top >= infBits {
			for i, v := range w {
				if math.Float32bits(v)&^signBit >= infBits {
					return &NotFiniteError{Row: n, Col: g*group + i, Value: v}
				}
			}
		}
		scales[g] = q.scale(w, math.Float32frombits(top))
	}
	q.opt.ScaleType.Encode(stored, scales)
	q.opt.ScaleType.Decode(scales, stored)
	for g, s := range scales {
		if math.IsInf(float64(s), 0) {
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
	end := top / q.max
	if q.signed {
		end = q.towards(w, end, top)
	}
	if q.opt.Scale == Absmax {
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

// The search tries these multiples of the absmax scale: notes on importance
// matrices and block scales agree that the best lies well inside, and a factor
// below the first loses the largest weight altogether.
const (
	searchFrom  = 0.35
	searchTo    = 1.25
	searchSteps = 72
	refineSteps = 3
)

// search returns the scale of least squared error near end: a grid over
// fractions of it, of both signs where that helps, then alternating between
// the best codes for a scale and the best scale for those codes. The result is
// compared with the absmax scale as both will be stored.
func (q *Quantizer) search(w []float32, end float32) float32 {
	if q.opt.ScaleType.Size() == 1 {
		return q.searchBytes(w, end)
	}
	q.tried = q.tried[:0]
	for i := range searchSteps {
		m := float32(searchFrom + (searchTo-searchFrom)*float64(i)/(searchSteps-1))
		q.try(end * m)
	}
	best := bestFit{scale: end, qq: 1}
	best.better(q.fits(w))
	for range refineSteps {
		q.tried = append(q.tried[:0], best.scale)
		if !best.better(q.fits(w)) {
			break
		}
	}
	if s, e := q.stored(best.scale), q.stored(end); q.squared(w, s) < q.squared(w, e) {
		return s
	}
	return end
}

// try appends a scale to those to be tried, with its negative where that may
// be better.
func (q *Quantizer) try(scale float32) {
	q.tried = append(q.tried, scale)
	if q.signed {
		q.tried = append(q.tried, -scale)
	}
}

// fits returns the moments of the codes that each of the scales to be tried
// gives. It overwrites the scales with their reciprocals.
func (q *Quantizer) fits(w []float32) []moments {
	for i, s := range q.tried {
		q.tried[i] = reciprocal(s)
	}
	if len(q.moments) < len(q.tried) {
		q.moments = make([]moments, len(q.tried))
	}
	m := q.moments[:len(q.tried)]
	q.correlate(q.table, m, w, q.tried)
	return m
}

// bestFit is the best scale so far and what it takes off Σ w²: square over qq.
type bestFit struct {
	scale      float32
	square, qq float64
}

// better takes the best of some fits, the first of equals, if that is better,
// and reports whether it was. Squares of float32 moments stay within float64.
func (b *bestFit) better(fits []moments) bool {
	found := -1
	for i, m := range fits {
		square, qq := float64(m.wq)*float64(m.wq), float64(m.qq)
		if square*b.qq > b.square*qq && square <= math.MaxFloat32*math.MaxFloat32 && qq > 0 {
			b.square, b.qq, found = square, qq, i
		}
	}
	if found < 0 {
		return false
	}
	b.scale = fits[found].wq / fits[found].qq
	return true
}

// searchBytes tries every scale that a byte can hold between the ends of the
// search: they are fewer than the steps of the grid. It compares
// Σ (w - s·T[c])² - Σ w².
func (q *Quantizer) searchBytes(w []float32, end float32) float32 {
	var ends [2]byte
	size := float32(math.Abs(float64(end)))
	q.opt.ScaleType.Encode(ends[:], []float32{size * searchFrom, size * searchTo})
	scales := q.bytes[ends[0] : int(ends[1])+1]
	q.tried = q.tried[:0]
	for _, s := range scales {
		q.try(s)
	}
	var best float32
	least := math.Inf(1)
	for i, m := range q.fits(w) {
		s := scales[i*len(scales)/len(q.tried)]
		if q.signed && i%2 == 1 {
			s = -s
		}
		if e := float64(s) * (float64(s)*float64(m.qq) - 2*float64(m.wq)); e < least {
			best, least = s, e
		}
	}
	return best
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
	q.invs[0], q.tried[0] = reciprocal(scale), scale
	q.encode(q.table, q.codes, w, len(w), q.invs, q.tried, q.sums[:1])
	return q.sums[0].squared
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
