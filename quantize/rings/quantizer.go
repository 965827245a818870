package rings

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/viterbi"
)

// Options say how a layer is stored.
type Options struct {
	Code      *trellis.Code
	ScaleType weight.ScaleType
}

// A Quantizer turns rows of weights into rings and scales. Rows that share rings come together: a multiple of as many as a ring has,
// or fewer at the end of a layer. It keeps scratch memory, so each goroutine needs its own.
type Quantizer struct {
	o      Options
	layout trellis.Layout
	worker *viterbi.Worker

	rotation *Rotation // of the columns of the rows at hand

	// Of the rows fitted.
	n, k   int
	scales []float32 // of w′, as stored: those of the layer times √128
	stored []byte
	wants  []weight.ScaleType
	rings  []byte // [bands, rings across, bytes of a ring]

	// Scratch.
	rotated, ŵ []float32
	ring, back []float32 // a ring's values, and what is stored of them
	symbols    []uint16
}

// NewQuantizer returns a quantizer.
func NewQuantizer(o Options) (*Quantizer, error) {
	if o.Code.Codebook != trellis.Pairs {
		return nil, fmt.Errorf("weights are not made of codebook %s", o.Code.Codebook)
	}
	if !slices.Contains(trellis.Kind{}.ScaleTypes(), o.ScaleType) {
		return nil, fmt.Errorf("scale type %v", o.ScaleType)
	}
	l := o.Code.Layout()
	v, err := viterbi.New(o.Code)
	if err != nil {
		return nil, err
	}
	return &Quantizer{
		o: o, layout: l, worker: v.Worker(),
		ring: make([]float32, l.Rows*l.Cols), back: make([]float32, l.Rows*l.Cols), symbols: make([]uint16, l.Steps()),
	}, nil
}

// Rows implements [rounding.Quantizer]. Besides a [rounding.NotFiniteError] it fails with a [rounding.ScaleError] where a scale is
// too large for its type.
func (q *Quantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n := len(errs)
	if n == 0 {
		return nil
	}
	k := len(w) / n
	if err := q.CheckParts(parts, n, k); err != nil {
		return err
	}
	rotated, stored := grow(&q.rotated, n*k), grow(&q.ŵ, n*k)
	if err := q.Rotate(rotated, w, n); err != nil {
		return err
	}
	if err := q.Fit(rotated, n); err != nil {
		return err
	}
	block := make([]float32, 2*n*q.layout.Cols)
	for from := 0; from < k; from += q.layout.Cols {
		columns := min(q.layout.Cols, k-from)
		v, s := block[:n*columns], block[n*q.layout.Cols:][:n*columns]
		for r := range n {
			copy(v[r*columns:(r+1)*columns], rotated[r*k+from:])
		}
		q.Round(s, v, from)
		for r := range n {
			copy(stored[r*k+from:], s[r*columns:(r+1)*columns])
		}
	}
	for r := range errs {
		e := rounding.RowError{Wants: q.Wants(r)}
		for i, v := range rotated[r*k : (r+1)*k] {
			e.Add(v, stored[r*k+i])
		}
		errs[r] = e
	}
	q.Store(parts, 0)
	return nil
}

// Shared implements [rounding.Quantizer]: no part has no rows.
func (q *Quantizer) Shared([][]byte) {}

// across is how many rings k columns have.
func (q *Quantizer) across(k int) int { return (k + q.layout.Cols - 1) / q.layout.Cols }

// bands is how many rows of rings n rows have.
func (q *Quantizer) bands(n int) int { return (n + q.layout.Rows - 1) / q.layout.Rows }

// CheckParts reports parts that n rows of k columns have no place in.
func (q *Quantizer) CheckParts(parts [][]byte, n, k int) error {
	return rounding.CheckParts(parts, map[int]int{
		trellis.RingsPart: q.bands(n) * q.across(k) * q.layout.Bytes(), trellis.ScalesPart: n * q.o.ScaleType.Size(),
	})
}

// Rotate writes w′ of n rows of weights to dst.
func (q *Quantizer) Rotate(dst, w []float32, n int) error {
	k := len(w) / n
	for i, v := range w {
		if v-v != 0 {
			return &rounding.NotFiniteError{Row: i / k, Col: i % k, Value: v}
		}
	}
	if q.rotation == nil || len(q.rotation.factors) != k {
		q.rotation = NewRotation(k)
	}
	q.rotation.Rows(dst, w)
	return nil
}

// Block returns the columns that are rounded together.
func (q *Quantizer) Block() int { return q.layout.Cols }

// Together returns the rows that are.
func (q *Quantizer) Together() int { return q.layout.Rows }

// unit is what a layer's scale is multiplied by for w′.
const unit = 8 * math.Sqrt2 // √128

// Fit finds the scales of n rows of rotated weights, and keeps them until the next call.
func (q *Quantizer) Fit(rotated []float32, n int) error {
	q.room(n, len(rotated)/n)
	for r := range n {
		var squares float64
		for _, v := range rotated[r*q.k : (r+1)*q.k] {
			squares += float64(v) * float64(v)
		}
		if err := q.setScale(r, math.Sqrt(squares/float64(q.k))); err != nil {
			return err
		}
	}
	return nil
}

// room makes room for n rows of k columns.
func (q *Quantizer) room(n, k int) {
	q.n, q.k = n, k
	grow(&q.rings, q.bands(n)*q.across(k)*q.layout.Bytes())
	q.wants = slices.Grow(q.wants[:0], n)[:n]
	grow(&q.scales, n)
	grow(&q.stored, n*q.o.ScaleType.Size())
}

// Rings returns what a device makes rings of n rows of k columns by, in the place of [Quantizer.Fit] and [Quantizer.Round].
func (q *Quantizer) Rings(n, k int) rounding.Rings {
	q.room(n, k)
	return rounding.Rings{Code: q.o.Code, Bytes: q.rings, Scales: func(means []float32) ([]float32, error) {
		for r, v := range means {
			if err := q.setScale(r, math.Sqrt(float64(v))); err != nil {
				return nil, err
			}
		}
		return q.scales, nil
	}}
}

// setScale stores the scale of a row of w′.
func (q *Quantizer) setScale(row int, scale float64) error {
	one, size := [1]float32{float32(scale / unit)}, q.o.ScaleType.Size()
	wanted, stored := one[0], q.stored[row*size:(row+1)*size]
	q.o.ScaleType.Encode(stored, one[:])
	q.o.ScaleType.Decode(one[:], stored)
	const most = 1 << 100 // that the kind takes
	if !(one[0] <= most) {
		return &rounding.ScaleError{Row: row, What: "the scale", Value: wanted, Type: q.o.ScaleType}
	}
	q.scales[row], q.wants[row] = float32(float64(one[0])*unit), q.o.ScaleType.Underflow(wanted, one[0])
	return nil
}

// Stretch multiplies the scale of one of the rows fitted by about a factor, and returns by which: 1 where the type does not hold it.
func (q *Quantizer) Stretch(row int, factor float64) float64 {
	before := q.scales[row]
	if err := q.setScale(row, float64(before)*factor); err != nil || q.scales[row] == 0 {
		_ = q.setScale(row, float64(before)) // which it held
	}
	return float64(q.scales[row]) / float64(before)
}

// Wants returns what [rounding.RowError] wants for one of the rows fitted.
func (q *Quantizer) Wants(row int) weight.ScaleType { return q.wants[row] }

// Round codes the columns of all rows fitted from a first one on, a multiple of [Quantizer.Block], whose values are v [rows, columns]. It
// writes the weights that they are stored as.
func (q *Quantizer) Round(stored, v []float32, first int) {
	l, columns := q.layout, len(v)/q.n
	for b := range q.bands(q.n) {
		clear(q.ring) // of padding
		rows := min(l.Rows, q.n-b*l.Rows)
		for r := range rows {
			row := b*l.Rows + r
			if scale := q.scales[row]; scale != 0 {
				for i, x := range v[row*columns : (row+1)*columns] {
					q.ring[r*l.Cols+i] = x / scale
				}
			}
		}
		q.worker.Encode(q.symbols, q.back, q.ring)
		l.Pack(q.rings[(b*q.across(q.k)+first/l.Cols)*l.Bytes():][:l.Bytes()], q.symbols)
		for r := range rows {
			row := b*l.Rows + r
			for i := range columns {
				stored[row*columns+i] = q.back[r*l.Cols+i] * q.scales[row]
			}
		}
	}
}

// Store writes the rows fitted, whose columns have all been rounded, as rows from to on of parts.
func (q *Quantizer) Store(parts [][]byte, to int) {
	copy(parts[trellis.ScalesPart][to*q.o.ScaleType.Size():], q.stored[:q.n*q.o.ScaleType.Size()])
	band := q.across(q.k) * q.layout.Bytes()
	copy(parts[trellis.RingsPart][to/q.layout.Rows*band:], q.rings[:q.bands(q.n)*band])
}

// grow returns a slice of n elements backed by *buf, which it enlarges.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	*buf = (*buf)[:n]
	return *buf
}
