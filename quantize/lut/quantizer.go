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
	codes  []uint8
	scales []float32
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
	return &Quantizer{
		opt:    o,
		bits:   bits,
		max:    o.Codebook.Max(),
		signed: o.Codebook.OneSided() && o.ScaleType.Signed(),
		table:  newTable(o.Codebook),
	}, nil
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
		q.scales = make([]float32, groups)
	}
	rowBytes, scaleBytes := RowBytes(k, q.bits), groups*q.opt.ScaleType.Size()
	for n := range errs {
		row := w[n*k : (n+1)*k]
		stored := scales[n*scaleBytes : (n+1)*scaleBytes]
		if err := q.rowScales(stored, row, n); err != nil {
			return err
		}
		var e RowError
		for g, s := range q.scales[:groups] {
			from, to := g*q.opt.Group, min((g+1)*q.opt.Group, k)
			e.Energy += float64(energy(row[from:to]))
			e.Squared += float64(q.encode(q.codes[from:to], row[from:to], s))
		}
		errs[n] = e
		PackCodes(codes[n*rowBytes:(n+1)*rowBytes], q.codes[:k], q.bits)
	}
	return nil
}

// rowScales finds the scales of a row, stores them, and leaves them as stored
// in q.scales.
func (q *Quantizer) rowScales(stored []byte, row []float32, n int) error {
	k, group := len(row), q.opt.Group
	scales := q.scales[:GroupsIn(k, group)]
	for g := range scales {
		w := row[g*group : min((g+1)*group, k)]
		top := peak(w)
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
		end = q.towards(w, end)
	}
	if q.opt.Scale == Absmax {
		return end
	}
	return q.search(w, end)
}

// towards gives end the sign that maps the largest weight to the end of the
// table that reaches Max. Of two weights of equal magnitude, the first counts.
func (q *Quantizer) towards(w []float32, end float32) float32 {
	var at float32
	for _, v := range w {
		if math.Float32bits(v)&^signBit > math.Float32bits(at)&^signBit {
			at = v
		}
	}
	upper := q.opt.Codebook.Values[len(q.opt.Codebook.Values)-1]
	if (at < 0) == (upper == q.max) {
		return -end
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
	best, bestGain := end, float32(-1)
	try := func(s float32) bool {
		a, b := q.table.correlate(w, reciprocal(s))
		if b == 0 || a == 0 {
			return false
		}
		// The square root of what the scale takes off Σ w², which would
		// underflow for small weights.
		gain := float32(math.Abs(float64(a)) / math.Sqrt(float64(b)))
		if !(gain > bestGain) || math.IsInf(float64(gain), 0) {
			return false
		}
		best, bestGain = a/b, gain
		return true
	}
	for i := range searchSteps {
		m := float32(searchFrom + (searchTo-searchFrom)*float64(i)/(searchSteps-1))
		try(end * m)
		if q.signed {
			try(-end * m)
		}
	}
	for range refineSteps {
		if !try(best) {
			break
		}
	}
	if s, e := q.stored(best), q.stored(end); q.encode(q.codes, w, s) < q.encode(q.codes, w, e) {
		return s
	}
	return end
}

// searchBytes tries every scale that a byte can hold between the ends of the
// search: they are fewer than the steps of the grid.
func (q *Quantizer) searchBytes(w []float32, end float32) float32 {
	var ends [2]byte
	size := float32(math.Abs(float64(end)))
	q.opt.ScaleType.Encode(ends[:], []float32{size * searchFrom, size * searchTo})
	var best float32
	bestError := float32(math.Inf(1))
	var s [1]float32
	for b := int(ends[0]); b <= int(ends[1]); b++ {
		q.opt.ScaleType.Decode(s[:], []byte{byte(b)})
		for range 2 {
			if e := q.encode(q.codes, w, s[0]); e < bestError {
				best, bestError = s[0], e
			}
			if !q.signed {
				break
			}
			s[0] = -s[0]
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

// encode chooses the codes of a group for a stored scale and returns the
// squared error.
func (q *Quantizer) encode(dst []uint8, w []float32, scale float32) float32 {
	return q.table.encode(dst, w, reciprocal(scale), scale)
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
