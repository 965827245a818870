package rtn

import (
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight/lut"
)

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
	if q.weights == nil {
		q.correlate(q.table, q.fits, w, q.triedInvs)
		return
	}
	for i := range q.fits {
		q.encode(q.table, q.codes, w, len(w), q.triedInvs[i:i+1], q.tried[i:i+1], q.sums[:1])
		var m moments
		for j, v := range w {
			value := q.table.values[q.codes[j]&(1<<lut.MaxBits-1)]
			weighted := float32(q.weights[j] * value)
			m.wq += float32(weighted * v)
			m.qq += float32(weighted * value)
		}
		q.fits[i] = m
	}
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
	size := float32(math.Abs(float64(end)) / q.factor)
	q.opt.ScaleType.Encode(ends[:], []float32{size * q.steps[searchSteps-1], size * searchTo})
	q.tried = q.tried[:0]
	for _, s := range q.bytes[ends[0] : int(ends[1])+1] {
		if q.holds(s) {
			q.try(times(s, q.factor))
		}
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
