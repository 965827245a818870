package planes

import (
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
)

// fitted are the factors of some rows. Codes are spoken of as the ranks of their levels.
type fitted struct {
	rows, groups    int
	levels          []bcq.Levels // [rows, groups]
	alphas, offsets []byte       // as they are stored
	values          []float32
	codes           []uint8            // of a row
	wants           []weight.ScaleType // of a row
}

// Fit finds the factors of n rows of weights, as [Quantizer.Rows] does, for others to
// choose codes. They are kept until the next call.
func (q *Quantizer) Fit(w []float32, n int) error {
	k := len(w) / n
	f, size := &q.fitted, q.opt.ScaleType.Size()
	f.rows, f.groups = n, weight.GroupsIn(k, q.opt.Group)
	f.wants = slices.Grow(f.wants[:0], n)[:n]
	if len(f.levels) < n*f.groups {
		f.levels = make([]bcq.Levels, n*f.groups)
		f.alphas, f.offsets = make([]byte, n*f.groups*q.opt.Bits*size), make([]byte, n*f.groups*size)
	}
	for r := range n {
		alphas, offsets := f.row(r, q.opt.Bits, size)
		err := q.row(alphas, offsets, w[r*k:(r+1)*k], r, func(g, _, _ int, of *bcq.Factors) {
			f.levels[r*f.groups+g].Set(of.Alpha[:q.opt.Bits], of.Z)
		})
		if err != nil {
			return err
		}
		f.wants[r] = q.wants
	}
	return nil
}

// Wants returns what [rounding.RowError] wants for one of the rows fitted.
func (q *Quantizer) Wants(row int) weight.ScaleType { return q.fitted.wants[row] }

// row returns what is stored of the factors of a row.
func (f *fitted) row(r, bits, size int) (alphas, offsets []byte) {
	n := f.groups * size
	return f.alphas[r*n*bits : (r+1)*n*bits], f.offsets[r*n : (r+1)*n]
}

// Nearest returns the rank of the level nearest to w in a column of one of the rows fitted,
// the lower of two, and the level.
func (q *Quantizer) Nearest(row, col int, w float32) (rank uint8, stored float32) {
	l := &q.fitted.levels[row*q.fitted.groups+col/q.opt.Group]
	at := l.Nearest(float64(w))
	return uint8(at), l.Value[at]
}

// Levels returns the levels of each group of the rows fitted by rank, [rows, groups, count],
// until the next call, and the columns of a group.
func (q *Quantizer) Levels() (values []float32, group, count int) {
	f := &q.fitted
	f.values = f.values[:0]
	for i := range f.rows * f.groups {
		f.values = append(f.values, f.levels[i].Value...)
	}
	return f.values, q.opt.Group, 1 << q.opt.Bits
}

// Store writes one of the rows fitted, with a level's rank for each column, as row to of
// parts.
func (q *Quantizer) Store(parts [][]byte, to, row int, ranks []uint8) {
	f := &q.fitted
	alphas, offsets := f.row(row, q.opt.Bits, q.opt.ScaleType.Size())
	copy(parts[bcq.AlphasPart][to*len(alphas):], alphas)
	if q.opt.Offset {
		copy(parts[bcq.OffsetsPart][to*len(offsets):], offsets)
	}
	f.codes = slices.Grow(f.codes[:0], len(ranks))[:len(ranks)]
	for c, rank := range ranks {
		f.codes[c] = f.levels[row*f.groups+c/q.opt.Group].Code[rank]
	}
	size := q.opt.Bits * ((len(ranks) + 7) / 8)
	bcq.PackCodes(parts[bcq.PlanesPart][to*size:(to+1)*size], f.codes, q.opt.Bits)
}
