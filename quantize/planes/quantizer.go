package planes

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/quantize/rounding"
)

// DefaultRounds is how often factors and codes take turns where nothing else is said:
// with more, errors fall by less than a thousandth.
const DefaultRounds = 15

// Options describe what a [Quantizer] writes.
type Options struct {
	Bits      int // 1 to 8
	Group     int // columns that share factors; at least 1
	ScaleType weight.ScaleType
	Offset    bool // groups have an offset, too

	// Rounds is how often factors are fitted to codes and codes to factors, at most. 0 is the
	// greedy beginning: each plane fits what those before it leave.
	Rounds int

	// Weights are how much the squared errors of each column count, at least 0; nil is all
	// alike. A row has as many columns.
	Weights []float32
}

// A Quantizer turns rows of weights into planes and factors. It implements
// [rounding.Quantizer]. Products are rounded before they are added up, on every processor, so
// that all find the same.
type Quantizer struct {
	opt Options

	codes []uint8 // of a row

	// Of the group at hand: its weights, how much they count, and what was found.
	w, h            []float64
	rest            []float64
	now, best, last fit
	levels          bcq.Levels
	wants           weight.ScaleType // as a row's error has it
	count, sum      []float64        // of the weights with each code

	fitted fitted
}

// fit is what a group may become.
type fit struct {
	alpha [bcq.MaxBits]float64
	z     float64
	codes []uint8
	error float64 // Σ h·(w - ŵ)²
}

// NewQuantizer returns a quantizer.
func NewQuantizer(o Options) (*Quantizer, error) {
	switch {
	case o.Bits < bcq.MinBits || o.Bits > bcq.MaxBits:
		return nil, fmt.Errorf("%d bits: want %d to %d", o.Bits, bcq.MinBits, bcq.MaxBits)
	case o.Group < 1:
		return nil, fmt.Errorf("group of %d columns", o.Group)
	case !slices.Contains(bcq.Kind{}.ScaleTypes(), o.ScaleType):
		return nil, fmt.Errorf("factors of type %v: want f16, bf16 or f32", o.ScaleType)
	case o.Rounds < 0:
		return nil, fmt.Errorf("%d rounds", o.Rounds)
	}
	for i, h := range o.Weights {
		if !(h >= 0) || math.IsInf(float64(h), 0) {
			return nil, fmt.Errorf("column %d counts %v times", i, h)
		}
	}
	return &Quantizer{opt: o, count: make([]float64, 1<<o.Bits), sum: make([]float64, 1<<o.Bits)}, nil
}

// Shared implements [rounding.Quantizer]: each row has all that is its own.
func (q *Quantizer) Shared([][]byte) {}

// Rows implements [rounding.Quantizer]. Factors are rounded to their stored type before
// codes are chosen for the last time. Besides a [rounding.NotFiniteError] it fails where a
// factor is too large for its type, with a [rounding.ScaleError].
func (q *Quantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if len(errs) == 0 {
		return nil
	}
	k := len(w) / len(errs)
	if q.opt.Weights != nil && len(q.opt.Weights) != k {
		return fmt.Errorf("%d columns count for rows of %d", len(q.opt.Weights), k)
	}
	if err := q.CheckParts(parts, len(errs), k); err != nil {
		return err
	}
	q.codes = slices.Grow(q.codes[:0], k)[:k]
	for n := range errs {
		of := func(part int) []byte {
			size := len(parts[part]) / len(errs)
			return parts[part][n*size : (n+1)*size]
		}
		var offsets []byte
		if q.opt.Offset {
			offsets = of(bcq.OffsetsPart)
		}
		errs[n] = rounding.RowError{}
		row := w[n*k : (n+1)*k]
		err := q.row(of(bcq.AlphasPart), offsets, row, n, func(_, from, to int, f *bcq.Factors) {
			e := q.encode(q.codes[from:to], row[from:to], f)
			errs[n].Energy += e.Energy
			errs[n].Squared += e.Squared
		})
		if err != nil {
			return err
		}
		errs[n].Wants = q.wants
		bcq.PackCodes(of(bcq.PlanesPart), q.codes, q.opt.Bits)
	}
	return nil
}

// CheckParts reports parts that n rows of k columns have no place in.
func (q *Quantizer) CheckParts(parts [][]byte, n, k int) error {
	size := n * weight.GroupsIn(k, q.opt.Group) * q.opt.ScaleType.Size()
	sizes := map[int]int{bcq.PlanesPart: n * q.opt.Bits * ((k + 7) / 8), bcq.AlphasPart: size * q.opt.Bits}
	if q.opt.Offset {
		sizes[bcq.OffsetsPart] = size
	}
	return rounding.CheckParts(parts, sizes)
}

// row finds the factors of row n, stores them, and hands each group with its columns
// and its factors as stored to then.
func (q *Quantizer) row(alphas, offsets []byte, w []float32, n int, then func(g, from, to int, f *bcq.Factors)) error {
	for i, v := range w {
		if v-v != 0 {
			return &rounding.NotFiniteError{Row: n, Col: i, Value: v}
		}
	}
	var all, lost float64
	q.wants = 0
	for g := range weight.GroupsIn(len(w), q.opt.Group) {
		from := g * q.opt.Group
		to := min(from+q.opt.Group, len(w))
		f := q.group(w[from:to], from)
		var energy float64
		for _, w := range q.w {
			energy += float64(w * w)
		}
		all += energy
		wanted := f.Largest(q.opt.Bits)
		if err := q.store(alphas, offsets, &f, g); err != nil {
			err.Row = n
			return err
		}
		if t := q.opt.ScaleType.Underflow(wanted, f.Largest(q.opt.Bits)); t != 0 {
			lost += energy
			q.wants = max(q.wants, t)
		}
		then(g, from, to, &f)
	}
	if lost < all/100 {
		q.wants = 0
	}
	return nil
}

// store writes a group's factors, and leaves in f what they are then.
func (q *Quantizer) store(alphas, offsets []byte, f *bcq.Factors, g int) *rounding.ScaleError {
	wanted := f.Largest(q.opt.Bits)
	put := func(dst []byte, at int, v []float32) {
		b := dst[at*q.opt.ScaleType.Size():]
		q.opt.ScaleType.Encode(b, v)
		q.opt.ScaleType.Decode(v, b)
	}
	put(alphas, g*q.opt.Bits, f.Alpha[:q.opt.Bits])
	if q.opt.Offset {
		z := []float32{f.Z}
		put(offsets, g, z)
		f.Z = z[0]
	}
	for _, v := range append(f.Alpha[:q.opt.Bits:q.opt.Bits], f.Z) {
		if math.IsInf(float64(v), 0) {
			return &rounding.ScaleError{Group: g, What: "a factor", Value: wanted, Type: q.opt.ScaleType}
		}
	}
	return nil
}

// encode writes the codes nearest to a group's weights.
func (q *Quantizer) encode(codes []uint8, w []float32, f *bcq.Factors) (e rounding.RowError) {
	q.levels.Set(f.Alpha[:q.opt.Bits], f.Z)
	for i, v := range w {
		at := q.levels.Nearest(float64(v))
		codes[i] = q.levels.Code[at]
		e.Add(v, q.levels.Value[at])
	}
	return e
}

// group returns the factors of a group that begins with a column, before they are rounded.
func (q *Quantizer) group(w []float32, column int) bcq.Factors {
	q.load(w, column)
	q.greedy()
	q.best.copy(&q.now)
	if q.opt.Rounds > 0 {
		q.alternate()
		q.uniform()
		q.alternate()
	}
	var f bcq.Factors
	for i, a := range q.best.alpha[:q.opt.Bits] {
		f.Alpha[i] = float32(a)
	}
	f.Z = float32(q.best.z)
	return f
}

// load takes in a group's weights, and how much they count.
func (q *Quantizer) load(w []float32, column int) {
	q.w, q.h = q.w[:0], q.h[:0]
	var total float64
	for i, v := range w {
		h := 1.0
		if q.opt.Weights != nil {
			h = float64(q.opt.Weights[column+i])
		}
		q.w, q.h = append(q.w, float64(v)), append(q.h, h)
		total += h
	}
	if total == 0 { // nothing counts, so that all is alike
		for i := range q.h {
			q.h[i] = 1
		}
	}
}

func (f *fit) copy(from *fit) {
	codes := append(f.codes[:0], from.codes...)
	*f = *from
	f.codes = codes
}

// greedy fits one plane after the other to what those before it leave.
func (q *Quantizer) greedy() {
	f := &q.now
	f.codes = append(f.codes[:0], make([]uint8, len(q.w))...)
	var total float64
	f.z = 0
	for i, h := range q.h {
		total += h
		f.z += float64(h * q.w[i])
	}
	f.z /= total
	if !q.opt.Offset {
		f.z = 0
	}
	q.rest = q.rest[:0]
	for _, w := range q.w {
		q.rest = append(q.rest, w-f.z)
	}
	for p := range q.opt.Bits {
		var a float64
		for i, r := range q.rest {
			a += float64(q.h[i] * math.Abs(r))
		}
		a /= total
		f.alpha[p] = a
		for i, r := range q.rest {
			if r >= 0 {
				f.codes[i] |= 1 << p
				q.rest[i] -= a
			} else {
				q.rest[i] += a
			}
		}
	}
	f.error = 0
	for i, r := range q.rest {
		f.error += float64(q.h[i] * r * r)
	}
}

// uniform begins with levels of equal steps from the least weight to the largest.
func (q *Quantizer) uniform() {
	f := &q.now
	low, high := slices.Min(q.w), slices.Max(q.w)
	if !q.opt.Offset {
		high = max(-low, high)
		low = -high
	}
	step := (high - low) / float64(int(1)<<q.opt.Bits-1)
	for p := range q.opt.Bits {
		f.alpha[p] = math.Ldexp(step, p-1)
	}
	f.z = (low + high) / 2
	q.recode()
}

// alternate fits factors to codes and codes to factors, and keeps the best of all that
// it comes by.
func (q *Quantizer) alternate() {
	for range q.opt.Rounds {
		q.last.copy(&q.now)
		if q.now.error < q.best.error {
			q.best.copy(&q.now)
		}
		if !q.solve() {
			return
		}
		q.recode()
		if q.now.error < q.best.error {
			q.best.copy(&q.now)
		}
		if q.now.error >= q.last.error || slices.Equal(q.now.codes, q.last.codes) {
			return
		}
	}
}

// recode chooses the codes nearest to the weights.
func (q *Quantizer) recode() {
	f := &q.now
	var alpha [bcq.MaxBits]float32
	for i, a := range f.alpha[:q.opt.Bits] {
		alpha[i] = float32(a)
	}
	q.levels.Set(alpha[:q.opt.Bits], float32(f.z))
	f.error = 0
	f.codes = slices.Grow(f.codes[:0], len(q.w))[:len(q.w)]
	for i, w := range q.w {
		at := q.levels.Nearest(w)
		f.codes[i] = q.levels.Code[at]
		d := w - float64(q.levels.Value[at])
		f.error += float64(q.h[i] * d * d)
	}
}

// solve sets the factors to those that have the least error with the codes, by Cholesky's
// method on the normal equations. It reports whether there are any.
func (q *Quantizer) solve() bool {
	f, n := &q.now, q.opt.Bits
	if q.opt.Offset {
		n++
	}
	clear(q.count)
	clear(q.sum)
	var total float64
	for i, c := range f.codes {
		q.count[c] += q.h[i]
		q.sum[c] += float64(q.h[i] * q.w[i])
		total += q.h[i]
	}
	var a [bcq.MaxBits + 1][bcq.MaxBits + 1]float64
	var b [bcq.MaxBits + 1]float64
	for c, count := range q.count {
		if count == 0 && q.sum[c] == 0 {
			continue
		}
		var sign [bcq.MaxBits + 1]float64
		for i := range n {
			sign[i] = 1
			if i < q.opt.Bits && c>>i&1 == 0 {
				sign[i] = -1
			}
		}
		for i := range n {
			b[i] += float64(sign[i] * q.sum[c])
			for j := range i + 1 {
				a[i][j] += float64(sign[i] * sign[j] * count)
			}
		}
	}
	for i := range n {
		a[i][i] += float64(ridge * total)
	}
	if !cholesky(&a, &b, n) {
		return false
	}
	f.z = 0
	if q.opt.Offset {
		f.z = b[q.opt.Bits]
	}
	for i := range q.opt.Bits {
		f.alpha[i] = math.Abs(b[i])
	}
	slices.SortFunc(f.alpha[:q.opt.Bits], func(x, y float64) int { return cmp.Compare(y, x) })
	return true
}

// ridge keeps the normal equations regular where planes are equal, as a part of their diagonal.
const ridge = 1e-6

// cholesky solves a·x = b, of which a has the lower triangle, and leaves x in b.
// It reports whether a is positive definite.
func cholesky(a *[bcq.MaxBits + 1][bcq.MaxBits + 1]float64, b *[bcq.MaxBits + 1]float64, n int) bool {
	for i := range n {
		for j := range i + 1 {
			v := a[i][j]
			for k := range j {
				v -= float64(a[i][k] * a[j][k])
			}
			if i != j {
				a[i][j] = v / a[j][j]
				continue
			}
			if !(v > 0) {
				return false
			}
			a[i][i] = math.Sqrt(v)
		}
	}
	for i := range n {
		for k := range i {
			b[i] -= float64(a[i][k] * b[k])
		}
		b[i] /= a[i][i]
	}
	for i := n - 1; i >= 0; i-- {
		for k := i + 1; k < n; k++ {
			b[i] -= float64(a[k][i] * b[k])
		}
		b[i] /= a[i][i]
	}
	return true
}
