package rings

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/viterbi"
)

// MixedOptions say how a layer is stored whose rows are mixed as well.
type MixedOptions struct {
	Options
	K int // columns, without padding

	// Blocks are what [Blocks] found of the layer; nil is 1 for each block.
	Blocks []float32
}

// Mixed is a quantizer of EXL3's layouts: rows are mixed in blocks of [trellis.Block] too. Each row is divided by its scale first, which is
// the root of its mean square with a sign, so that what is mixed are rows of one size; and codes of a block of columns are
// multiplied by a number that all rows of the layer share, which goes into the factors of these columns.
//
// Rows and columns come with padding: multiples of [trellis.Block], as [Padded] adds.
type Mixed struct {
	o      MixedOptions
	wide   int // columns
	layout trellis.Layout
	worker *viterbi.Worker

	sizes []float64 // of blocks of columns: what a row's mean square is taken in
	steps []float32 // of blocks of columns: what codes are multiplied by, as stored
	signs []float64 // of columns

	// Of the rows at hand.
	n      int
	scales []float32 // as stored
	stored []byte
	wants  []weight.ScaleType
	rings  []byte // [n/16, rings across, bytes of a ring]

	// Scratch.
	rotated, ŵ []float32
	band       []float64 // [Block, wide]
	ring, back []float32
	symbols    []uint16
	values     []float32 // of windows, once a device has chosen some
}

// NewMixed returns a quantizer.
func NewMixed(o MixedOptions) (*Mixed, error) {
	l := o.Code.Layout()
	wide := padded(o.K)
	blocks := wide / trellis.Block
	switch {
	case o.Code.Codebook == trellis.Pairs:
		return nil, fmt.Errorf("rows of codebook %s are not mixed", o.Code.Codebook)
	case !slices.Contains(trellis.Kind{}.ScaleTypes(), o.ScaleType):
		return nil, fmt.Errorf("scale type %v", o.ScaleType)
	case o.Blocks != nil && len(o.Blocks) != blocks:
		return nil, fmt.Errorf("%d blocks of %d columns", len(o.Blocks), wide)
	}
	v, err := viterbi.New(o.Code)
	if err != nil {
		return nil, err
	}
	q := &Mixed{
		o: o, wide: wide, layout: l, worker: v.Worker(), steps: make([]float32, blocks), sizes: make([]float64, blocks), signs: make([]float64, wide),
		band: make([]float64, trellis.Block*wide),
		ring: make([]float32, l.Rows*l.Cols), back: make([]float32, l.Rows*l.Cols), symbols: make([]uint16, l.Steps()),
	}
	for i := range q.signs {
		q.signs[i] = float64(trellis.Sign(i))
	}
	for b := range q.steps {
		q.sizes[b] = 1
		if o.Blocks != nil {
			q.sizes[b] = float64(o.Blocks[b])
		}
		q.steps[b] = num.F16ToF32(num.F32ToF16(float32(q.sizes[b] * mixedGain(o.Code))))
		if q.steps[b]-q.steps[b] != 0 {
			return nil, fmt.Errorf("block %d of the columns is %v times as large as all", b, q.sizes[b])
		}
	}
	return q, nil
}

// padded returns the next multiple of a block.
func padded(n int) int { return (n + trellis.Block - 1) / trellis.Block * trellis.Block }

// Rows implements [rounding.Quantizer].
func (q *Mixed) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n := len(errs)
	if err := q.CheckParts(parts, n, q.wide); err != nil {
		return err
	}
	rotated, stored := grow(&q.rotated, n*q.wide), grow(&q.ŵ, n*q.wide)
	if err := q.Rotate(rotated, w, n); err != nil {
		return err
	}
	if err := q.Fit(rotated, n); err != nil {
		return err
	}
	columns := q.layout.Cols
	v, s := make([]float32, n*columns), make([]float32, n*columns)
	for from := 0; from < q.wide; from += columns {
		for r := range n {
			copy(v[r*columns:(r+1)*columns], rotated[r*q.wide+from:])
		}
		q.Round(s, v, from)
		for r := range n {
			copy(stored[r*q.wide+from:], s[r*columns:(r+1)*columns])
		}
	}
	for r := range errs {
		errs[r] = rounding.RowError{Wants: q.Wants(r)}
	}
	q.Add(errs, w, stored)
	q.Store(parts, 0)
	return nil
}

// Shared implements [rounding.Quantizer]: it writes the factors.
func (q *Mixed) Shared(parts [][]byte) {
	factors := make([]float32, q.wide)
	for i, s := range q.signs {
		factors[i] = float32(s) * q.steps[i/trellis.Block]
	}
	num.EncodeF16(parts[trellis.FactorsPart], factors)
}

// CheckParts reports parts that n rows of k columns have no place in.
func (q *Mixed) CheckParts(parts [][]byte, n, k int) error {
	if n%trellis.Block != 0 || k != q.wide {
		return errors.New("rows and columns without padding")
	}
	return rounding.CheckParts(parts, map[int]int{
		trellis.RingsPart: n / q.layout.Rows * q.across() * q.layout.Bytes(), trellis.ScalesPart: n * q.o.ScaleType.Size(),
		trellis.FactorsPart: 2 * q.wide,
	})
}

// across is how many rings a row of rings has.
func (q *Mixed) across() int { return q.wide / q.layout.Cols }

// Rotate writes n rows of weights, divided by their scales and mixed both ways, to dst. It keeps the scales until the next call.
func (q *Mixed) Rotate(dst, w []float32, n int) error { return q.mix(dst, w, n, true) }

// Mix is [Mixed.Rotate] without the rotation of columns, for a device that does that.
func (q *Mixed) Mix(dst, w []float32, n int) error { return q.mix(dst, w, n, false) }

func (q *Mixed) mix(dst, w []float32, n int, columns bool) error {
	for i, v := range w {
		if v-v != 0 {
			return &rounding.NotFiniteError{Row: i / q.wide, Col: i % q.wide, Value: v}
		}
	}
	grow(&q.scales, n)
	grow(&q.stored, n*q.o.ScaleType.Size())
	q.wants = slices.Grow(q.wants[:0], n)[:n]
	for first := 0; first < n; first += trellis.Block {
		var sizes [trellis.Block]float64
		some := 0
		for r := range sizes {
			if sizes[r] = q.size(w[(first+r)*q.wide:][:q.wide]); sizes[r] > 0 {
				some++
			}
		}
		// Rows of zeros, as padding has them, make mixed rows smaller.
		share := math.Sqrt(float64(some) / trellis.Block)
		for r := range trellis.Block {
			row, out := w[(first+r)*q.wide:][:q.wide], q.band[r*q.wide:][:q.wide]
			if err := q.setScale(first+r, float32(sizes[r]*share)); err != nil {
				return err
			}
			clear(out)
			if s := float64(q.scales[first+r]); s != 0 {
				for i, v := range row {
					out[i] = float64(v) / s
				}
				if columns {
					for i, sign := range q.signs {
						out[i] *= sign
					}
					mix(out)
				}
			}
		}
		q.mixRows()
		for i, v := range q.band {
			dst[first*q.wide+i] = float32(v)
		}
	}
	return nil
}

// size returns the root of a row's mean square, in terms of its blocks' sizes.
func (q *Mixed) size(row []float32) float64 {
	var squares float64
	for b, size := range q.sizes {
		if size == 0 {
			continue
		}
		var sum float64
		for _, v := range row[b*trellis.Block : (b+1)*trellis.Block] {
			sum += float64(v) * float64(v)
		}
		squares += sum / (size * size)
	}
	return math.Sqrt(squares / float64(q.wide))
}

// setScale stores the scale of a row.
func (q *Mixed) setScale(n int, wanted float32) error {
	one, size := [1]float32{wanted}, q.o.ScaleType.Size()
	stored := q.stored[n*size : (n+1)*size]
	q.o.ScaleType.Encode(stored, one[:])
	q.o.ScaleType.Decode(one[:], stored)
	const most = 1 << 100 // that the kind takes
	if !(one[0] <= most) {
		return &rounding.ScaleError{Row: n, What: "the scale", Value: wanted, Type: q.o.ScaleType}
	}
	q.wants[n] = q.o.ScaleType.Underflow(wanted, one[0])
	if q.scales[n] = one[0] * trellis.Sign(n%trellis.Block); one[0] != 0 {
		q.o.ScaleType.Encode(stored, q.scales[n:n+1])
	}
	return nil
}

// mixRows multiplies the band by a normed Hadamard matrix down its columns.
func (q *Mixed) mixRows() {
	trellis.HadamardRows(q.band, q.wide)
	norm := 1 / math.Sqrt(trellis.Block)
	for i := range q.band {
		q.band[i] *= norm
	}
}

// Block returns the columns that are rounded together.
func (q *Mixed) Block() int { return q.layout.Cols }

// Fit makes room for n rotated rows, of which there is nothing to find.
func (q *Mixed) Fit(_ []float32, n int) error {
	q.n = n
	grow(&q.rings, n/q.layout.Rows*q.across()*q.layout.Bytes())
	return nil
}

// Rings returns what a device makes rings of n rows of k columns by that [Mixed.Mix] has made, in the place of [Mixed.Fit] and
// [Mixed.Round]. All blocks of columns have one size there.
func (q *Mixed) Rings(n, _ int) rounding.Rings {
	_ = q.Fit(nil, n)
	return rounding.Rings{Code: q.o.Code, Bytes: q.rings, Scales: func(means []float32) ([]float32, error) {
		if q.o.Blocks != nil {
			return nil, errors.New("blocks of columns of their own sizes on a device")
		}
		return slices.Repeat(q.steps[:1], len(means)), nil
	}}
}

// Errors adds to the errors of the rows at hand those of weights w, by the rings that a device has chosen.
func (q *Mixed) Errors(errs []rounding.RowError, w []float32) {
	if q.values == nil {
		q.values = q.o.Code.Values()[0]
	}
	l, stored := q.layout, grow(&q.ŵ, q.n*q.wide)
	for at := 0; at < len(q.rings); at += l.Bytes() {
		ring := q.rings[at:][:l.Bytes()]
		tile := at / l.Bytes()
		first := tile/q.across()*l.Rows*q.wide + tile%q.across()*l.Cols
		step := q.steps[tile%q.across()*l.Cols/trellis.Block]
		for i := range l.Steps() {
			row, col := l.At(i)
			stored[first+row*q.wide+col] = q.values[l.Window(ring, i)] * step
		}
	}
	q.Add(errs, w, stored)
}

// Stretch changes nothing: mixed rows have no scale of their own.
func (q *Mixed) Stretch(int, float64) float64 { return 1 }

// Wants returns what [rounding.RowError] wants for one of the rows at hand.
func (q *Mixed) Wants(row int) weight.ScaleType { return q.wants[row] }

// Round codes the columns of all rows at hand from a first one on, a multiple of [Mixed.Block], whose values are v [rows, columns]. It
// writes what they are stored as.
func (q *Mixed) Round(stored, v []float32, first int) {
	l, step := q.layout, q.steps[first/trellis.Block]
	for b := range q.n / l.Rows {
		tile, out := v[b*len(q.ring):][:len(q.ring)], stored[b*len(q.ring):][:len(q.ring)]
		clear(q.ring)
		if step != 0 {
			for i, x := range tile {
				q.ring[i] = x / step
			}
		}
		q.worker.Encode(q.symbols, q.back, q.ring)
		l.Pack(q.rings[(b*q.across()+first/l.Cols)*l.Bytes():][:l.Bytes()], q.symbols)
		for i, x := range q.back {
			out[i] = x * step
		}
	}
}

// Add adds to the errors of the rows at hand those of weights w, given what their mixed rows are stored as.
func (q *Mixed) Add(errs []rounding.RowError, w, stored []float32) {
	for first := 0; first < q.n; first += trellis.Block {
		for i, v := range stored[first*q.wide:][:len(q.band)] {
			q.band[i] = float64(v)
		}
		q.mixRows()
		for r := range trellis.Block {
			row := q.band[r*q.wide:][:q.wide]
			mix(row)
			for i, v := range w[(first+r)*q.wide:][:q.o.K] {
				errs[first+r].Add(v, float32(row[i]*q.signs[i]*float64(q.scales[first+r])))
			}
		}
	}
}

// Store writes the rows at hand, whose columns have all been rounded, as rows from to on of parts.
func (q *Mixed) Store(parts [][]byte, to int) {
	size, strip := q.o.ScaleType.Size(), q.across()*q.layout.Bytes()
	copy(parts[trellis.ScalesPart][to*size:], q.stored[:q.n*size])
	copy(parts[trellis.RingsPart][to/q.layout.Rows*strip:], q.rings[:q.n/q.layout.Rows*strip])
}

// Sizes finds how large blocks of [trellis.Block] columns are beside each other: the roots of mean squares over all rows, each row
// counting the same. It is given the rows in order.
type Sizes struct {
	k    int
	sums []float64
	rows int
}

// NewSizes returns one for rows of k columns.
func NewSizes(k int) *Sizes { return &Sizes{k: k, sums: make([]float64, padded(k)/trellis.Block)} }

// Rows takes in rows. Those with numbers that are not finite, and those of zeros, count nothing.
func (s *Sizes) Rows(w []float32) {
	own := make([]float64, len(s.sums))
	for ; len(w) > 0; w = w[s.k:] {
		clear(own)
		var all float64
		for i, v := range w[:s.k] {
			own[i/trellis.Block] += float64(v) * float64(v)
			all += float64(v) * float64(v)
		}
		if !(all > 0) || all > math.MaxFloat64 {
			continue
		}
		s.rows++
		for b, v := range own {
			s.sums[b] += v / all
		}
	}
}

// Blocks returns what [MixedOptions] want, whose mean square is 1.
func (s *Sizes) Blocks() []float32 {
	blocks := make([]float32, len(s.sums))
	for b, sum := range s.sums {
		blocks[b] = 1
		if s.rows > 0 {
			blocks[b] = float32(math.Sqrt(sum / float64(s.rows) * float64(len(blocks))))
		}
	}
	return blocks
}
