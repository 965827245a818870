package lut

import (
	"fmt"
	"math"
	"slices"
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

// The search begins with a grid of multiples of the absmax scale. Normal
// weights have their best scale well inside it for groups of any size, also
// above 1 for small ones, where one weight more or less beyond the table's end
// matters little. Outliers in a large group push it down, so the grid goes on
// for as long as its lower end is best.
const (
	searchTo    = 1.6
	searchRatio = 1.058 // from step to step
	searchSteps = 28    // down to 0.35
	searchMore  = 8
	searchLimit = 0.02
	refineSteps = 3
)

// fineSteps divides a step of the grid, up and down, in three.
func fineSteps() [4]float32 { return [4]float32{0.963, 0.981, 1.019, 1.038} }

// search returns the scale of least squared error near end: a coarse grid of
// both signs where that helps, a finer one around its best two steps, then
// alternating between the best codes for a scale and the best scale for those
// codes. The result is compared with the absmax scale as both will be stored.
func (q *Quantizer) search(w []float32, end float32) float32 {
	if q.opt.ScaleType.Size() == 1 {
		return q.searchBytes(w, end)
	}
	b := bestFits{scale: end, from: [2]float32{end, end}, qq: 1}
	for i, n := 0, searchSteps; i < len(q.steps); i, n = i+n, searchMore {
		part := q.steps[i:min(i+n, len(q.steps))]
		q.tried = q.tried[:0]
		for _, m := range part {
			q.try(end * m)
		}
		q.fit(w)
		b.update(q.tried, q.fits)
		if lowest := end * part[len(part)-1]; b.from[0] != lowest && b.from[0] != -lowest {
			break
		}
	}
	q.tried = q.tried[:0]
	for _, s := range b.from {
		for _, m := range fineSteps() {
			q.tried = append(q.tried, s*m)
		}
	}
	q.fit(w)
	b.update(q.tried, q.fits)
	for range refineSteps {
		q.tried = append(q.tried[:0], b.scale)
		q.fit(w)
		if !b.update(q.tried, q.fits) {
			break
		}
	}
	if s, e := q.stored(b.scale), q.stored(end); q.squared(w, s) < q.squared(w, e) {
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

// fit sets q.fits to what the codes for each of the scales to be tried give.
func (q *Quantizer) fit(w []float32) {
	q.triedInvs = q.triedInvs[:0]
	for _, s := range q.tried {
		q.triedInvs = append(q.triedInvs, reciprocal(s))
	}
	q.fits = slices.Grow(q.fits[:0], len(q.tried))[:len(q.tried)]
	q.correlate(q.table, q.fits, w, q.triedInvs)
}

// bestFits keeps the best scale so far.
type bestFits struct {
	scale      float32    // the best for its codes
	from       [2]float32 // the scales tried that gave the best codes and the next best
	square, qq float64    // what scale takes off Σ w² is square over qq
}

// update takes in the fits of some scales, the first of equals, and reports
// whether the best changed. The squares of float32 moments stay within
// float64, also those of weights that are very small or large.
func (b *bestFits) update(tried []float32, fits []moments) bool {
	at, next := -1, -1
	var nextSquare, nextQQ float64 = 0, 1
	for i, m := range fits {
		square, qq := float64(m.wq)*float64(m.wq), float64(m.qq)
		switch {
		case !(square*nextQQ > nextSquare*qq) || math.IsInf(square, 0) || qq == 0:
		case square*b.qq > b.square*qq:
			next, nextSquare, nextQQ = at, b.square, b.qq
			at, b.square, b.qq = i, square, qq
		default:
			next, nextSquare, nextQQ = i, square, qq
		}
	}
	switch {
	case at < 0:
		return false
	case next < 0:
		b.from[1] = b.from[0]
	default:
		b.from[1] = tried[next]
	}
	b.from[0] = tried[at]
	b.scale = fits[at].wq / fits[at].qq
	return true
}

// searchBytes tries every scale that a byte can hold between the ends of the
// search: they are fewer than the steps of the grid. It compares
// Σ (w - s·T[c])² - Σ w².
func (q *Quantizer) searchBytes(w []float32, end float32) float32 {
	var ends [2]byte
	size := float32(math.Abs(float64(end)))
	q.opt.ScaleType.Encode(ends[:], []float32{size * q.steps[searchSteps-1], size * searchTo})
	q.tried = q.tried[:0]
	for _, s := range q.bytes[ends[0] : int(ends[1])+1] {
		q.try(s)
	}
	q.fit(w)
	var best float32
	least := math.Inf(1)
	for i, m := range q.fits {
		s := q.tried[i]
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
	q.tried, q.triedInvs = append(q.tried[:0], scale), append(q.triedInvs[:0], reciprocal(scale))
	q.encode(q.table, q.codes, w, len(w), q.triedInvs, q.tried, q.sums[:1])
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
