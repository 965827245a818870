package cuda

import (
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/rounding"
)

var _ model.FeedbackOps = (*Ops)(nil)

// The columns that a kernel rounds at a time, and the rows of a thread block, a warp each.
const (
	columnWidth = 128
	columnRows  = gradThreads / 32
)

// Diagonal writes the diagonal of h, floats [k, k], to d.
func (o *Ops) Diagonal(d, h model.Array, k int) {
	check(floats(d).n == k && floats(h).n == k*k, "the diagonal of %d elements to %d", h.Len(), d.Len())
	o.rounding.Lock()
	defer o.rounding.Unlock()
	o.do(func() {
		grid, block := pieces(k)
		o.launch("diagonal", grid, block, d, h, k)
	})
}

// feedback implements [rounding.Feedback].
type feedback struct {
	o       *Ops // whose memory it has
	main    *Ops
	k       int
	order   driver.Ptr
	unit    model.Array // A, [k, k]
	squares model.Array // R[j, j]² over the number of tokens
	shift   model.Array // D·H⁻¹, or nil
	share   float32     // of the shift

	// Where columns are rounded in blocks.
	fed     model.Array // A with the identity in the blocks of its diagonal
	damped  model.Array // H's diagonal, with what was added, in order
	tokens  int
	factors driver.Ptr // by which columns of weights are turned, 0 where they are not
}

// Feedback prepares a state on the device from its statistics, floats [k, k], of which d may be nil. It
// returns nil if h is not positive definite. Factors are those that the statistics were turned by, or nil.
func (o *Ops) Feedback(h, d model.Array, factors []float32, s rounding.FeedbackOptions) rounding.Feedback {
	main := o
	if s.Block == 0 {
		_ = main.Err() // so that what it sums is done
		l, back := main.lane()
		defer back()
		o = l
	} else { // rings take much memory
		o.rounding.Lock()
		defer o.rounding.Unlock()
	}
	var f *feedback
	o.Queue(func() { f = o.feedback(h, d, factors, s) })
	if o != main {
		if err := o.Err(); err != nil {
			main.do(func() { main.fail(err) })
		}
	}
	if f == nil {
		return nil
	}
	f.main = main
	return f
}

func (o *Ops) feedback(h, d model.Array, factors []float32, s rounding.FeedbackOptions) *feedback {
	k := len(s.Order)
	f := &feedback{o: o, k: k, unit: o.Floats(k * k), squares: o.Floats(k), share: s.Retarget, tokens: s.Tokens}
	factor := o.Floats(k * k)
	defer o.Free(factor)
	reversed := slices.Clone(s.Order)
	slices.Reverse(reversed)
	o.Reorder(factor, h, reversed, s.Add, k)
	if s.Block > 0 {
		f.prepareBlocks(factor, factors, s.Block)
	}
	if !o.Cholesky(factor, k) {
		o.Free(f.unit, f.squares, f.fed, f.damped)
		o.do(func() { o.release(f.factors) })
		return nil
	}
	o.UnitUpper(f.unit, factor, k)
	if s.Block > 0 {
		f.unitBlocks()
	}
	o.do(func() {
		grid, block := pieces(k)
		o.launch("pivots", grid, block, f.squares, factor, 1/float32(s.Tokens), k)
		f.order = o.uploadInts(s.Order)
	})
	if s.Retarget > 0 {
		f.shift = o.Floats(k * k)
		from, to := s.Rows(k)
		turned := o.Floats((to - from) * k)
		defer o.Free(turned)
		back := make([]int, k)
		for i, c := range reversed {
			back[c] = i
		}
		o.reorderColumns(turned, d.Slice(from*k, to*k), reversed, k)
		for at, part := 0, ceil(k, rounding.RetargetParts); at < to-from; at += part {
			rows := min(part, to-from-at)
			o.Solve(turned.Slice(at*k, (at+rows)*k), factor, rows, k)
		}
		o.reorderColumns(f.shift.Slice(from*k, to*k), turned, back, k)
	}
	return f
}

// Retargeting implements [model.Retargeting].
func (f *feedback) Retargeting() model.Array { return f.shift }

// reorderColumns writes dst[i, j] = src[i, order[j]], floats [rows, k].
func (o *Ops) reorderColumns(dst, src model.Array, order []int, k int) {
	rows := dst.Len() / k
	if rows == 0 {
		return
	}
	o.do(func() {
		at := o.uploadInts(order)
		defer o.release(at)
		o.launch("reorder_columns", driver.Dim{X: uint32(rows)}, driver.Dim{X: gradThreads}, dst, src, at, k)
	})
}

// Close implements [rounding.Feedback].
func (f *feedback) Close() {
	f.o.Free(f.unit, f.squares, f.shift, f.fed, f.damped)
	f.o.do(func() {
		f.o.release(f.order)
		f.o.release(f.factors)
	})
}

// Retarget implements [rounding.Feedback].
func (f *feedback) Retarget(w []float32) error {
	if f.shift == nil {
		return nil
	}
	o, back := f.main.lane()
	defer back()
	k, rows := f.k, len(w)/f.k
	o.Queue(func() {
		from, to := o.Floats(len(w)), o.Floats(len(w))
		defer o.Free(from, to)
		o.Write(from, w)
		o.Copy(to, from)
		o.do(func() {
			o.gemm(driver.GEMM{
				M: rows, N: k, K: k, A: driver.Operand{Ptr: ptr(from)}, B: driver.Operand{Ptr: ptr(f.shift)}, C: driver.Operand{Ptr: ptr(to)},
				In: driver.F32, Out: driver.F32, Alpha: f.share, Beta: 1,
			})
			o.fetch(driver.Bytes(w), ptr(to))
		})
	})
	return o.Err()
}

// Round implements [rounding.Feedback].
func (f *feedback) Round(fed, nearest rounding.Rounded, outputs, w, levels []float32, group, count int) error {
	o, back := f.main.lane()
	defer back()
	o.Queue(func() { f.round(o, fed, nearest, outputs, w, levels, group, count) })
	return o.Err()
}

// round is Round by some operations, inside do.
func (f *feedback) round(o *Ops, fed, nearest rounding.Rounded, outputs, w, levels []float32, group, count int) {
	k, rows := f.k, len(fed.Loss)
	in, goal, value := o.Floats(rows*k), o.Floats(rows*k), o.Floats(rows*k)
	errors := o.Floats(rows * max(k, columnWidth)) // of a block, and then of all columns
	level, loss := o.Floats(len(levels)), o.Floats(rows)
	defer o.Free(in, goal, value, errors, level, loss)
	o.Write(in, w)
	o.Write(level, levels)
	at := func(a model.Array, i int) driver.Ptr { return ptr(a) + driver.Ptr(4*i) }
	var codes driver.Ptr
	o.do(func() { codes = o.scratch(rows * k) })
	defer o.do(func() { o.release(codes) })
	each := func(dst model.Array) {
		o.launch("reorder_columns", driver.Dim{X: uint32(rows)}, driver.Dim{X: gradThreads}, dst, in, f.order, k)
	}
	round := func(from, blocks, lde, feed int) {
		o.launch("round_columns", driver.Dim{X: uint32(ceil(rows, columnRows)), Y: uint32(blocks)}, driver.Dim{X: gradThreads},
			codes, errors, lde, loss, value, goal, level, f.unit, f.squares, f.order, rows, k, from, group, count, feed)
	}
	o.do(func() {
		each(goal)
		each(value)
		for from := 0; from < k; from += columnWidth {
			to := min(from+columnWidth, k)
			round(from, 1, columnWidth, 1)
			if to < k {
				o.gemm(driver.GEMM{
					M: rows, N: k - to, K: to - from, In: driver.F32, Out: driver.F32, Alpha: 1, Beta: 1,
					A: driver.Operand{Ptr: ptr(errors), Ld: columnWidth}, B: driver.Operand{Ptr: at(f.unit, from*k+to), Ld: k},
					C: driver.Operand{Ptr: at(value, to), Ld: k},
				})
			}
		}
	})
	o.fetchRounded(fed, codes, loss)
	weigh := func(off model.Array) {
		f.weighed(o, value, off, rows)
		o.launch("weigh", driver.Dim{X: uint32(rows)}, driver.Dim{X: gradThreads}, loss, value, f.squares, k)
	}
	o.do(func() {
		each(value)
		round(0, ceil(k, columnWidth), k, 0)
		weigh(errors)
	})
	o.fetchRounded(nearest, codes, loss)
	o.do(func() {
		weigh(goal)
		o.fetch(driver.Bytes(outputs), ptr(loss))
	})
}

// fetchRounded reads what rows were rounded to.
func (o *Ops) fetchRounded(to rounding.Rounded, codes driver.Ptr, loss model.Array) {
	o.do(func() {
		o.fetch(to.Codes, codes)
		o.fetch(driver.Bytes(to.Loss), ptr(loss))
	})
}
