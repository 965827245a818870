package gptq

import (
	"errors"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/rounding"
)

// rowsAtOnce is the number of rows that go through the columns together: enough
// for what a product reads of A to count little.
const rowsAtOnce = 128

// A Rounder rounds weights to what a kind of layer can hold. That of
// package rtn is one.
type Rounder interface {
	rounding.Quantizer
	// CheckParts reports parts that n rows of k columns have no place in.
	CheckParts(parts [][]byte, n, k int) error
	// Fit finds what n rows of weights are stored with besides their codes, and
	// keeps it until the next call.
	Fit(w []float32, n int) error
	// Wants returns what [rounding.RowError] wants for one of those rows.
	Wants(row int) weight.ScaleType
	// Nearest returns the code nearest to v in a column of one of those rows, and
	// the weight that it stands for.
	Nearest(row, col int, v float32) (code uint8, weight float32)
	// Store writes one of those rows, with a code for each column, as row to of parts.
	Store(parts [][]byte, to, row int, codes []uint8)
}

// A Leveled is a Rounder whose codes stand for the same weights in all columns of a group, which
// a device can round by.
type Leveled interface {
	Rounder
	// Levels returns those weights of the rows fitted, [rows, groups, count], and the columns of a
	// group.
	Levels() (levels []float32, group, count int)
}

// A Searched is a Leveled whose scales a device can search.
type Searched interface {
	Leveled
	// Search returns how Fit searches them, nil where a device cannot.
	Search() *rounding.Search
	// Found is Fit of n rows by what a search found of their groups, see [rounding.Tables]. It reports whether that is all; if not, Fit
	// is to be called.
	Found(wanted []float32, tops []uint32, n int) bool
}

// A Pruner is a Rounder that makes some weights of each [Options.Chunk] columns 0. Fit chooses them.
type Pruner interface {
	Rounder
	// Keep chooses anew in the chunk of one of the rows fitted that begins with a column and has
	// the values v by now. h is how much the squared error of each counts.
	Keep(row, col int, v []float32, h []float64)
}

// A Rescaler is a Rounder whose columns share scales by [Options.Group].
type Rescaler interface {
	Rounder
	// Rescale gives the group that a column of one of the rows fitted is in its fitted scale times a factor, as it is stored,
	// and reports whether that can be stored. Otherwise nothing changes. A factor of 1 gives the fitted scale back.
	Rescale(row, col int, by float32) bool
}

// quantizer implements [rounding.Quantizer].
type quantizer struct {
	products
	Rounder
	pruner   Pruner   // the same, where chunks are pruned, or nil
	rescaler Rescaler // the same, where scales are chosen again, or nil

	// Scratch for rowsAtOnce rows, in the order of columns.
	goal    []float32 // W* again
	value   []float32 // v, of columns that are done and that are not
	nearest []uint8   // codes
	rounded []float32 // what they stand for
	fed     []uint8   // codes of values that errors were fed into
	stored  []float32 // what they stand for
	errors  []float32 // of a block
	off     []float32 // by which the nearest ones are
	losses  []loss
	codes   []uint8 // of a row, in the order of the layer
}

// loss is the squared error of a row's output as a mean over tokens: of the codes
// that errors were fed into, and of the nearest ones.
type loss struct{ fed, nearest, all float64 } // all: of weights that are 0

// QuantizerBy is [State.Quantizer] for as many rounders as are wanted, each with scratch memory of its own: a device takes them.
func (s *State) QuantizerBy(make func() (Rounder, error)) (rounding.Quantizer, error) {
	r, err := make()
	if err != nil {
		return nil, err
	}
	if s.report.Nearest != "" || s.device == nil {
		return s.Quantizer(r)
	}
	first, ok := r.(Leveled)
	if !ok {
		return nil, errors.New("codes that no device can round by")
	}
	var search *rounding.Search
	if of, ok := r.(Searched); ok {
		search = of.Search()
	}
	return &deviceQuantizer{State: s, search: search, pieces: []*piece{{Leveled: first}}, make: func() (Leveled, error) {
		r, err := make()
		if err != nil {
			return nil, err
		}
		return r.(Leveled), nil
	}}, nil
}

// Quantizer returns a quantizer of a layer that reads the state: r itself where
// weights are rounded to nearest after all.
func (s *State) Quantizer(r Rounder) (rounding.Quantizer, error) {
	if s.report.Nearest != "" {
		return r, nil
	}
	if s.device != nil {
		return nil, errors.New("rows that a device rounds in pieces, with a rounder each")
	}
	var pruner Pruner
	if s.chunk > 1 {
		var ok bool
		if pruner, ok = r.(Pruner); !ok {
			return nil, errors.New("weights that cannot be pruned")
		}
	}
	var rescaler Rescaler
	if s.group > 0 {
		rescaler, _ = r.(Rescaler)
	}
	p, err := s.products()
	if err != nil {
		return nil, err
	}
	return &quantizer{products: p, Rounder: r, pruner: pruner, rescaler: rescaler, codes: make([]uint8, s.k)}, nil
}

// products multiplies rows by what a state holds.
type products struct {
	*State
	engine *cpu.Engine

	// Scratch.
	target  []float32 // W*, where it is not W
	product []float32
}

func (s *State) products() (products, error) {
	engine, err := cpu.New(cpu.Options{Threads: 1})
	return products{State: s, engine: engine}, err
}

// Rows implements [rounding.Quantizer].
func (q *quantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if err := q.CheckParts(parts, len(errs), q.k); err != nil {
		return err
	}
	return someRows(len(errs), func(from, to int) error { return q.rows(parts, from, errs[from:to], w[from*q.k:to*q.k]) })
}

// someRows calls do for some of n rows at a time, and counts those of its errors from the first of all.
func someRows(n int, do func(from, to int) error) error {
	for from := 0; from < n; from += rowsAtOnce {
		if err := do(from, min(from+rowsAtOnce, n)); err != nil {
			return fromRow(err, from)
		}
	}
	return nil
}

// fromRow counts the row of an error from the first of more rows, before which there are some.
func fromRow(err error, before int) error {
	var bad *rounding.NotFiniteError
	if errors.As(err, &bad) {
		bad.Row += before
	}
	var scale *rounding.ScaleError
	if errors.As(err, &scale) {
		scale.Row += before
	}
	return err
}

// rows quantizes rows that are those from a first one on in parts.
func (q *quantizer) rows(parts [][]byte, first int, errs []rounding.RowError, w []float32) error {
	n, k := len(errs), q.k
	target := q.retargeted(w, n)
	if err := q.Fit(target, n); err != nil {
		return err
	}
	q.arrange(grow(&q.goal, n*k), target)
	losses := grow(&q.losses, n)
	q.roundAll(losses)
	q.feed(losses)
	for r, l := range losses {
		e := rounding.RowError{Loss: l.fed, NearestLoss: l.nearest, Output: l.all, Wants: q.Wants(r)}
		codes, stored := q.fed[r*k:(r+1)*k], q.stored[r*k:(r+1)*k]
		if !(l.fed < l.nearest) {
			codes, stored, e.Loss = q.nearest[r*k:(r+1)*k], q.rounded[r*k:(r+1)*k], l.nearest
			if q.rescaler != nil { // which they were rounded with
				for c := 0; c < k; c += q.group {
					q.rescaler.Rescale(r, c, 1)
				}
			}
		}
		goal := q.goal[r*k : (r+1)*k]
		for i, c := range q.order {
			q.codes[c] = codes[i]
			e.Add(w[r*k+c], stored[i])
		}
		q.undamp(&e, goal, func(i int) float32 { return stored[i] })
		errs[r] = e
		q.Store(parts, first+r, r, q.codes)
	}
	return nil
}

// retargeted returns W* of n rows.
func (q *products) retargeted(w []float32, n int) []float32 {
	if q.shift == nil {
		return w
	}
	target := grow(&q.target, n*q.k)
	q.engine.MatMul(target, w, n, q.shift)
	q.engine.Add(target, target, w)
	keepFinite(target, w, q.k)
	return target
}

// keepFinite copies to target the rows of w that retargeting put beyond float32, or
// that are not finite themselves.
func keepFinite(target, w []float32, k int) {
	for from := 0; from < len(w); from += k {
		row := target[from : from+k]
		if !finite(row) {
			copy(row, w[from:])
		}
	}
}

// undamp completes the error of a row's output, of which Output is damped, given what it aims at and what is
// stored, in any order of columns.
func (s *State) undamp(e *rounding.RowError, goal []float32, stored func(i int) float32) {
	var all, off float64
	for i, v := range goal {
		d := float64(v) - float64(stored(i))
		all += float64(v) * float64(v)
		off += d * d
	}
	s.undampBy(e, all, off)
}

// undampBy is undamp, given the squares of what is aimed at and of what it is off by.
func (s *State) undampBy(e *rounding.RowError, all, off float64) {
	e.OutputSquared = max(e.Loss-s.added*off, 0)
	e.Output = max(e.Output-s.added*all, 0)
}

// roundAll rounds the goal to nearest, and notes what is lost, and what were if all were 0.
func (q *quantizer) roundAll(losses []loss) {
	n, k := len(losses), q.k
	codes, rounded, off := grow(&q.nearest, n*k), grow(&q.rounded, n*k), grow(&q.off, n*k)
	for r := range n {
		for i, c := range q.order {
			at := r*k + i
			codes[at], rounded[at] = q.Nearest(r, c, q.goal[at])
			off[at] = q.goal[at] - rounded[at]
		}
	}
	q.weigh(off, n, func(r int, loss float64) { losses[r].nearest = loss })
	q.weigh(q.goal, n, func(r int, loss float64) { losses[r].all = loss })
}

// weigh hands each of n rows' loss to note, where weights are off by so much, in the order of columns.
func (q *quantizer) weigh(off []float32, n int, note func(r int, loss float64)) {
	k := q.k
	value := grow(&q.value, n*k)
	clear(value) // becomes off·A
	for b, block := range q.blocks {
		from, to := b*width, min(b*width+width, k)
		e := grow(&q.errors, n*(to-from))
		for r := range n {
			copy(e[r*(to-from):(r+1)*(to-from)], off[r*k+from:r*k+to])
		}
		q.add(value, from, e, n, block)
	}
	for r := range n {
		var loss float64
		for i, v := range value[r*k : (r+1)*k] {
			loss += q.squares[i] * float64(v) * float64(v)
		}
		note(r, loss)
	}
}

// feed rounds one column of the goal after the other, feeding its error into those
// after it, and notes what is lost.
func (q *quantizer) feed(losses []loss) {
	n, k := len(losses), q.k
	value := grow(&q.value, n*k)
	grow(&q.fed, n*k)
	grow(&q.stored, n*k)
	copy(value, q.goal)
	for r := range losses {
		losses[r].fed = 0
	}
	for b, after := range q.after {
		from, to := b*width, min(b*width+width, k)
		e := grow(&q.errors, n*(to-from))
		for r := range n {
			losses[r].fed += q.feedBlock(e[r*(to-from):(r+1)*(to-from)], value[r*k+from:r*k+to], r, from)
		}
		if after != nil {
			q.add(value, to, e, n, after)
		}
	}
}

// feedBlock does the columns of row r from a block's first, whose values, with the
// errors of the blocks before, are v. It writes their own errors.
func (q *quantizer) feedBlock(e, v []float32, r, from int) (loss float64) {
	var values [width]float32 // with zeros, for Axpy to begin and end at whole vectors
	copy(values[:], v)
	if q.rescaler == nil {
		return q.feedColumns(e, &values, r, from, 0, len(e), width)
	}
	for i := 0; i < len(e); i += q.group {
		q.rescale(e, &values, r, from, i)
		loss += q.feedColumns(e, &values, r, from, i, i+q.group, width)
	}
	return loss
}

// factors are what a scale is multiplied by when it is chosen again: 1 first, which wins where none is better.
var factors = [...]float32{1, 0.8, 0.85, 0.9, 0.94, 0.97, 1.03, 1.06, 1.1, 1.15}

// rescale chooses the scale of the group of row r that begins with column i of a block again: the one with which its columns,
// each making up for those before it, lose least on the values that they have by now.
func (q *quantizer) rescale(e []float32, values *[width]float32, r, from, i int) {
	col, best, least := q.order[from+i], float32(1), math.Inf(1)
	for _, by := range factors {
		if !q.rescaler.Rescale(r, col, by) {
			continue
		}
		tried := *values
		if loss := q.feedColumns(e, &tried, r, from, i, i+q.group, i+q.group); loss < least {
			best, least = by, loss
		}
	}
	q.rescaler.Rescale(r, col, best)
}

// feedColumns does columns start to end of a block and carries their errors on to those before the column limit.
func (q *quantizer) feedColumns(e []float32, values *[width]float32, r, from, start, end, limit int) (loss float64) {
	for i := start; i < end; i++ {
		at := r*q.k + from + i
		if q.pruner != nil && i%q.chunk == 0 {
			to := i + q.chunk
			q.pruner.Keep(r, q.order[from+i], values[i:to], q.squares[from+i:from+to])
		}
		q.fed[at], q.stored[at] = q.Nearest(r, q.order[from+i], values[i])
		d := float64(values[i]) - float64(q.stored[at])
		loss += q.squares[from+i] * d * d
		e[i] = q.goal[at] - q.stored[at]
		const vector = 16
		first := (i + 1) &^ (vector - 1)
		q.engine.Axpy(e[i], q.carry[(from+i)*width+first:(from+i)*width+limit], values[first:limit])
	}
	return loss
}

// add adds e·Aᵀ to the columns of value from a first one on, where a holds A's
// columns as rows.
func (q *products) add(value []float32, from int, e []float32, n int, a *cpu.Plain) {
	columns := a.Rows()
	product := grow(&q.product, n*columns)
	q.engine.MatMul(product, e, n, a)
	for r := range n {
		v := value[r*q.k+from:][:columns]
		q.engine.Add(v, v, product[r*columns:(r+1)*columns])
	}
}

// grow returns a slice of n elements backed by *buf, which it enlarges.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n]
}
