package gptq

import (
	"errors"

	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
)

// rowsAtOnce is the number of rows that go through the columns together: enough
// for what a product reads of A to count little.
const rowsAtOnce = 128

// A Quantizer turns rows of a layer into codes and scales. Rows do not depend
// on each other. It keeps scratch memory, so each goroutine needs its own.
type Quantizer struct {
	*State
	lut    *lut.Quantizer
	opt    lut.Options
	groups int
	group  []int // of the column that comes i-th
	engine *cpu.Engine

	// Scratch for rowsAtOnce rows. All but target and scales are in the order of
	// columns.
	target  []float32 // W*, where it is not W
	scales  []float32
	goal    []float32 // W* again
	value   []float32 // v, of columns that are done and that are not
	nearest []uint8   // codes
	fed     []uint8   // codes of values that errors were fed into
	errors  []float32 // of a block
	product []float32
	codes   []uint8 // of a row, in the order of the layer
}

// A Loss is the squared error of a row's output on what the layer reads, as a
// mean over the tokens: of the codes that were chosen, and of rounding to
// nearest. The two are equal where the latter was chosen, being as good.
// Both are 0 where the state says nothing.
type Loss struct{ Chosen, Nearest float64 }

// Quantizer returns a quantizer of a layer that reads the state.
func (s *State) Quantizer(o lut.Options) (*Quantizer, error) {
	o.Weights = s.weights
	inner, err := lut.NewQuantizer(o)
	if err != nil {
		return nil, err
	}
	engine, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	q := &Quantizer{State: s, lut: inner, opt: o, engine: engine, groups: weight.GroupsIn(s.k, o.Group)}
	for _, c := range s.order {
		q.group = append(q.group, c/o.Group)
	}
	return q, nil
}

// Rows quantizes len(errs) rows of the layer, as [lut.Quantizer.Rows] does, and
// writes the loss of each row to losses.
func (q *Quantizer) Rows(codes, scales []byte, errs []weight.RowError, losses []Loss, w []float32) error {
	if q.report.Nearest != "" {
		clear(losses)
		return q.lut.Rows([][]byte{lut.ScalesPart: scales, lut.CodesPart: codes}, errs, w)
	}
	codeBytes, scaleBytes := lut.RowBytes(q.k, q.opt.Codebook.Bits()), q.groups*q.opt.ScaleType.Size()
	for from := 0; from < len(errs); from += rowsAtOnce {
		to := min(from+rowsAtOnce, len(errs))
		err := q.rows(codes[from*codeBytes:to*codeBytes], scales[from*scaleBytes:to*scaleBytes], errs[from:to], losses[from:to], w[from*q.k:to*q.k])
		var bad *weight.NotFiniteError
		if errors.As(err, &bad) {
			bad.Row += from
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *Quantizer) rows(codes, scales []byte, errs []weight.RowError, losses []Loss, w []float32) error {
	n, k := len(errs), q.k
	if q.codes == nil {
		q.codes = make([]uint8, k)
	}
	target := q.retargeted(w, n)
	if err := q.fitScales(scales, target, n); err != nil {
		return err
	}
	goal := grow(&q.goal, n*k)
	for r := range n {
		for i, c := range q.order {
			goal[r*k+i] = target[r*k+c]
		}
	}
	q.roundAll(losses)
	q.feed(losses)
	codeBytes := lut.RowBytes(k, q.opt.Codebook.Bits())
	for r := range n {
		chosen := q.fed[r*k : (r+1)*k]
		if !(losses[r].Chosen < losses[r].Nearest) {
			chosen, losses[r].Chosen = q.nearest[r*k:(r+1)*k], losses[r].Nearest
		}
		var e weight.RowError
		for i, c := range q.order {
			q.codes[c] = chosen[i]
			v := float64(w[r*k+c])
			d := v - float64(q.opt.Codebook.Values[chosen[i]]*q.scale(r, i))
			e.Energy += v * v
			e.Squared += d * d
		}
		errs[r] = e
		lut.PackCodes(codes[r*codeBytes:(r+1)*codeBytes], q.codes, q.opt.Codebook.Bits())
	}
	return nil
}

// retargeted returns W* of n rows.
func (q *Quantizer) retargeted(w []float32, n int) []float32 {
	if q.shift == nil {
		return w
	}
	target := grow(&q.target, n*q.k)
	q.engine.MatMul(target, w, n, q.shift)
	q.engine.Add(target, target, w)
	for r := range n {
		row := target[r*q.k : (r+1)*q.k]
		for _, v := range row {
			if v-v != 0 { // beyond float32, or w is not finite
				copy(row, w[r*q.k:])
				break
			}
		}
	}
	return target
}

// fitScales finds the scales of n rows, writes them to stored and keeps them.
func (q *Quantizer) fitScales(stored []byte, target []float32, n int) error {
	scaleBytes := len(stored) / n
	kept := grow(&q.scales, n*q.groups)
	for r := range n {
		scales, err := q.lut.RowScales(stored[r*scaleBytes:(r+1)*scaleBytes], target[r*q.k:(r+1)*q.k], r)
		if err != nil {
			return err
		}
		copy(kept[r*q.groups:], scales)
	}
	return nil
}

// scale returns the scale of row r's i-th column.
func (q *Quantizer) scale(r, i int) float32 { return q.scales[r*q.groups+q.group[i]] }

// round returns the code nearest to v in row r's i-th column, and the weight that
// it stands for. In a group of scale 0, that is the code of the weight itself.
func (q *Quantizer) round(r, i int, v float32) (code uint8, weight float32) {
	s := q.scale(r, i)
	if s == 0 {
		v = q.goal[r*q.k+i]
	}
	return q.lut.Nearest(v, s)
}

// roundAll rounds the goal to nearest, and notes what is lost.
func (q *Quantizer) roundAll(losses []Loss) {
	n, k := len(losses), q.k
	codes, value := grow(&q.nearest, n*k), grow(&q.value, n*k)
	clear(value) // becomes (W* − Ŵ)·A
	for b, block := range q.blocks {
		from, to := b*width, min(b*width+width, k)
		e := grow(&q.errors, n*(to-from))
		for r := range n {
			for i := from; i < to; i++ {
				var weight float32
				codes[r*k+i], weight = q.round(r, i, q.goal[r*k+i])
				e[r*(to-from)+i-from] = q.goal[r*k+i] - weight
			}
		}
		q.add(value, from, e, n, block)
	}
	for r := range losses {
		losses[r].Nearest = 0
		for i, v := range value[r*k : (r+1)*k] {
			losses[r].Nearest += q.squares[i] * float64(v) * float64(v)
		}
	}
}

// feed rounds one column of the goal after the other, feeding its error into those
// after it, and notes what is lost.
func (q *Quantizer) feed(losses []Loss) {
	n, k := len(losses), q.k
	codes, value := grow(&q.fed, n*k), grow(&q.value, n*k)
	copy(value, q.goal)
	for r := range losses {
		losses[r].Chosen = 0
	}
	for b, after := range q.after {
		from, to := b*width, min(b*width+width, k)
		e := grow(&q.errors, n*(to-from))
		for r := range n {
			losses[r].Chosen += q.feedBlock(codes[r*k+from:r*k+to], e[r*(to-from):(r+1)*(to-from)], value[r*k+from:r*k+to], r, from)
		}
		if after != nil {
			q.add(value, to, e, n, after)
		}
	}
}

// feedBlock does the columns of row r from a block's first, whose values, with the
// errors of the blocks before, are v. It writes codes and errors.
func (q *Quantizer) feedBlock(codes []uint8, e, v []float32, r, from int) (loss float64) {
	var values [width]float32 // with zeros, for Axpy to begin and end at whole vectors
	copy(values[:], v)
	for i := range codes {
		code, weight := q.round(r, from+i, values[i])
		d := float64(values[i]) - float64(weight)
		loss += q.squares[from+i] * d * d
		codes[i], e[i] = code, q.goal[r*q.k+from+i]-weight
		const vector = 16
		start := (i + 1) &^ (vector - 1)
		q.engine.Axpy(e[i], q.carry[(from+i)*width+start:(from+i+1)*width], values[start:])
	}
	return loss
}

// add adds e·Aᵀ to the columns of value from a first one on, where a holds A's
// columns as rows.
func (q *Quantizer) add(value []float32, from int, e []float32, n int, a *cpu.Plain) {
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
