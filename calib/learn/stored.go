package learn

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// stored is a layer as it is stored, or some of its rows, of a kind whose numbers are learned.
type stored interface {
	weight.Matrix
	shape() shape
	// weights gives a weight that is learned the numbers of the layer, scales included. Where no table has what scales multiply it
	// returns that: the original of the weight, [N, K].
	weights(t *model.Trainable) []float32
	// set gives rows what was learned for them: first, and every step-th after it.
	set(of outcome, first, step int)
	// only drops codes that were not chosen anew.
	only(of outcome)
}

// outcome is what came of the rows of a layer.
type outcome struct {
	rows   int
	scales []byte
	table  []float32 // nil where it is what it was
	codes  []uint8   // [rows, K], likewise
}

// shape is what learning has to know of how a layer is stored.
type shape struct {
	n, k, group int // group: columns that share a scale
	bits        int // of a code, in full
	scaleType   weight.ScaleType
	entries     int   // of a table that can be learned; 0 where there is none, and codes are not chosen one by one
	data        int64 // bytes of codes
}

func (s *shape) groups() int { return weight.GroupsIn(s.k, s.group) }

// storedOf returns a matrix as one whose numbers are learned.
func storedOf(m weight.Matrix) (stored, error) {
	switch m := m.(type) {
	case *lut.Matrix:
		return tabled{m}, nil
	case *trellis.Matrix:
		return ringed{m}, nil
	}
	return nil, fmt.Errorf("there are no scales to learn in weights of kind %s", m.Kind())
}

// check reports what cannot be learned of layers of a shape.
func (o Options) check(s shape) error {
	switch {
	case s.entries > 0:
		return nil
	case o.Mode == Flute || o.Recode > 0:
		return errors.New("codes of rings are chosen together: learning cannot choose them anew")
	case o.LSQ:
		return errors.New("codes of rings are chosen together: none moves with its scale, as the gradient of LSQ has it")
	case o.Table:
		return errors.New("tables of pairs are not learned: scales are")
	}
	return nil
}

// tabled is a layer of codes in a table of numbers.
type tabled struct{ *lut.Matrix }

func (t tabled) shape() shape {
	return shape{
		n: t.N, k: t.K, group: t.Group, bits: t.Bits, scaleType: t.ScaleType, entries: 1 << t.Bits, data: int64(t.N) * int64(t.RowBytes()),
	}
}

func (t tabled) weights(w *model.Trainable) []float32 {
	w.Codes, w.Table = make([]uint8, t.N*t.K), append([]float32(nil), t.Codebook...)
	parallel(t.N, func(n int) {
		t.RowCodes(w.Codes[n*t.K:(n+1)*t.K], n)
		t.RowScales(w.Scales[n*t.Groups():(n+1)*t.Groups()], n)
	})
	return nil
}

func (t tabled) set(of outcome, first, step int) {
	part := *t.Matrix
	part.N, part.Scales, part.Codes = of.rows, of.scales, nil
	if of.codes != nil {
		rb := t.RowBytes()
		part.Codes = make([]byte, of.rows*rb)
		parallel(of.rows, func(n int) { lut.PackCodes(part.Codes[n*rb:(n+1)*rb], of.codes[n*t.K:(n+1)*t.K], t.Bits) })
	}
	t.SetRows(&part, first, step)
	if of.table != nil {
		t.Codebook = of.table
	}
}

func (t tabled) only(of outcome) {
	if of.codes == nil {
		t.Codes = nil
	}
}

// ringed is a layer of rings. What scales of rows multiply hangs on no table that is learned: it is as it is.
type ringed struct{ *trellis.Matrix }

func (r ringed) shape() shape {
	return shape{
		n: r.N, k: r.K, group: r.K, bits: r.Code.Rate / 2, scaleType: r.ScaleType, data: int64(r.N) * int64(r.Columns()) * int64(r.Code.Rate) / 16,
	}
}

func (r ringed) weights(w *model.Trainable) []float32 {
	copy(w.Scales, r.RowScales())
	one := *r.Matrix // with scales of 1
	ones := make([]float32, len(r.Scales)/r.ScaleType.Size())
	for i := range ones {
		ones[i] = 1
	}
	one.ScaleType, one.Scales = weight.F32, make([]byte, 4*len(ones))
	one.ScaleType.Encode(one.Scales, ones)
	values := make([]float32, r.N*r.K)
	parallel((r.N+weight.Together-1)/weight.Together, func(i int) {
		from, to := i*weight.Together, min((i+1)*weight.Together, r.N)
		one.RowsTo(values[from*r.K:to*r.K], from, to-from)
	})
	return values
}

func (r ringed) set(of outcome, first, step int) {
	size := r.ScaleType.Size()
	for i := range of.rows {
		to := first + i*step
		copy(r.Scales[to*size:(to+1)*size], of.scales[i*size:])
	}
}

func (r ringed) only(outcome) { r.Rings, r.Factors = nil, nil }

// parallel calls f for 0 to n−1 on all processors.
func parallel(n int, f func(i int)) {
	var group errgroup.Group
	parts := min(n, runtime.GOMAXPROCS(0))
	for p := range parts {
		group.Go(func() error {
			for i := p * n / parts; i < (p+1)*n/parts; i++ {
				f(i)
			}
			return nil
		})
	}
	_ = group.Wait() // nothing fails
}
