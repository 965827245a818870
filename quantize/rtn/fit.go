package rtn

import (
	"errors"
	"math"
	"slices"
	"sort"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// fitted are the scales of some rows, [rows, groups].
type fitted struct {
	groups int
	scales []float32
	stored []byte     // as they are stored
	begun  []float32  // scales as Fit found them
	scale  [1]float32 // scratch for one
	bytes  [4]byte    // and as it is stored
	levels []float32
	wants  []weight.ScaleType // of a row
}

// Fit finds the scales of n rows of weights, as [Quantizer.Rows] does, for
// others to choose codes. They are kept until the next call.
func (q *Quantizer) Fit(w []float32, n int) error {
	k := len(w) / n
	return q.fitRows(n, weight.GroupsIn(k, q.opt.Group), func(stored []byte, r int) error { return q.rowScales(stored, w[r*k:(r+1)*k], r) })
}

// fitRows keeps what fit finds of n rows.
func (q *Quantizer) fitRows(n, groups int, fit func(stored []byte, r int) error) error {
	f := &q.fitted
	bytes := groups * q.opt.ScaleType.Size()
	f.groups = groups
	f.wants = slices.Grow(f.wants[:0], n)[:n]
	f.scales, f.stored = slices.Grow(f.scales[:0], n*groups)[:n*groups], slices.Grow(f.stored[:0], n*bytes)[:n*bytes]
	for r := range n {
		if err := fit(f.stored[r*bytes:(r+1)*bytes], r); err != nil {
			return err
		}
		copy(f.scales[r*groups:], q.scales[:groups])
		f.wants[r] = q.wants
	}
	f.begun = append(f.begun[:0], f.scales...)
	return nil
}

// Search returns how Fit finds scales, for a device to find the same, or nil where columns are weighed.
func (q *Quantizer) Search() *rounding.Search {
	if q.columns != nil {
		return nil
	}
	n, fine := 1<<q.bits, fineSteps()
	s := &rounding.Search{
		Values: q.table.values[:n], Mids: q.table.mids[:n-1], Max: q.max, Reach: q.reach, Group: q.opt.Group, Type: q.opt.ScaleType,
		Absmax: q.opt.Scale == weight.Absmax, Signed: q.signed, UpperEnd: q.table.values[n-1] == q.max,
		First: searchSteps, More: searchMore, Refine: refineSteps, Coarse: q.steps, Fine: fine[:],
	}
	if q.bytes == nil {
		return s
	}
	byteOf := func(bits int) int {
		var b [1]byte
		q.opt.ScaleType.Encode(b[:], []float32{math.Float32frombits(uint32(bits))})
		return int(b[0])
	}
	for i := range byteOf(infBits-1) + 1 {
		least := sort.Search(infBits-1, func(bits int) bool { return byteOf(bits) >= i })
		s.Bytes, s.Least = append(s.Bytes, q.bytes[i]), append(s.Least, math.Float32frombits(uint32(least)))
	}
	return s
}

// Found is Fit of n rows, given what a search found of their groups: scales as they are wanted, and the bits of the largest
// magnitudes, [n, groups]. It reports whether that is all there is to say: if not, as where a weight is not finite or a scale is
// beyond its type, Fit is to be called.
func (q *Quantizer) Found(wanted []float32, tops []uint32, n int) bool {
	groups := len(wanted) / n
	q.grow(0, groups)
	return q.fitRows(n, groups, func(stored []byte, r int) error {
		copy(q.scales, wanted[r*groups:(r+1)*groups])
		copy(q.tops, tops[r*groups:(r+1)*groups])
		if slices.Max(q.tops[:groups]) >= infBits {
			return errNotFound
		}
		if err := q.settle(stored, groups, r); err != nil || q.wants != 0 {
			return errNotFound
		}
		return nil
	}) == nil
}

// errNotFound means that the weights themselves are needed.
var errNotFound = errors.New("not to be told from scales")

// Nearest returns the code that [Quantizer.Rows] gives to w in a column of one of
// the rows fitted, and the weight that it stands for.
func (q *Quantizer) Nearest(row, col int, w float32) (code uint8, stored float32) {
	scale := q.fitted.scales[row*q.fitted.groups+col/q.opt.Group]
	code = q.table.code(quotient(w, scale))
	return code, q.table.values[code&(1<<lut.MaxBits-1)] * scale
}

// Rescale gives the group of a column of one of the rows fitted its fitted scale times a factor, as it is stored, and
// reports whether the type holds that. Otherwise nothing changes. A factor of 1 gives the fitted scale back.
func (q *Quantizer) Rescale(row, col int, by float32) bool {
	f := &q.fitted
	at := row*f.groups + col/q.opt.Group
	size := q.opt.ScaleType.Size()
	stored, scale := f.bytes[:size], f.scale[:]
	scale[0] = f.begun[at] * by
	q.opt.ScaleType.Encode(stored, scale)
	q.opt.ScaleType.Decode(scale, stored)
	if s := scale[0]; by != 1 && (s == 0 || !(max(s, -s) <= q.most) || !q.holds(s)) {
		return false
	}
	f.scales[at] = scale[0]
	copy(f.stored[at*size:(at+1)*size], stored)
	return true
}

// Wants returns what [rounding.RowError] wants for one of the rows fitted.
func (q *Quantizer) Wants(row int) weight.ScaleType { return q.fitted.wants[row] }

// Levels returns the weights that codes stand for in each group of the rows fitted,
// [rows, groups, count], until the next call, and the columns of a group.
func (q *Quantizer) Levels() (levels []float32, group, count int) {
	count = 1 << q.bits
	f := &q.fitted
	f.levels = slices.Grow(f.levels[:0], len(f.scales)*count)[:len(f.scales)*count]
	for i, s := range f.scales {
		for c, v := range q.table.values[:count] {
			f.levels[i*count+c] = v * s
		}
	}
	return f.levels, q.opt.Group, count
}

// Store writes one of the rows fitted, with a code for each column, as row to of
// parts. In groups of scale 0 that is the code of 0, whatever is given.
func (q *Quantizer) Store(parts [][]byte, to, row int, codes []uint8) {
	for g, s := range q.fitted.scales[row*q.fitted.groups : (row+1)*q.fitted.groups] {
		if s == 0 {
			group := codes[g*q.opt.Group : min((g+1)*q.opt.Group, len(codes))]
			for i := range group {
				group[i] = q.table.code(0)
			}
		}
	}
	scaleBytes, codeBytes := q.fitted.groups*q.opt.ScaleType.Size(), lut.RowBytes(len(codes), q.bits)
	copy(parts[lut.ScalesPart][to*scaleBytes:], q.fitted.stored[row*scaleBytes:(row+1)*scaleBytes])
	q.pack(parts[lut.CodesPart][to*codeBytes:(to+1)*codeBytes], codes, q.bits)
}
