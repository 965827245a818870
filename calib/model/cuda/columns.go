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
	o       *Ops
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
	o.rounding.Lock()
	defer o.rounding.Unlock()
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
		turned := o.Floats(k * k)
		defer o.Free(turned)
		back := make([]int, k)
		for i, c := range reversed {
			back[c] = i
		}
		o.reorderColumns(turned, d, reversed, k)
		o.Solve(turned, factor, k, k)
		o.reorderColumns(f.shift, turned, back, k)
	}
	return f
}

// reorderColumns writes dst[i, j] = src[i, order[j]], floats [k, k].
func (o *Ops) reorderColumns(dst, src model.Array, order []int, k int) {
	o.do(func() {
		at := o.uploadInts(order)
		defer o.release(at)
		o.launch("reorder_columns", driver.Dim{X: uint32(k)}, driver.Dim{X: gradThreads}, dst, src, at, k)
	})
}

// Close implements [rounding.Feedback].
func (f *feedback) Close() {
	f.o.rounding.Lock()
	defer f.o.rounding.Unlock()
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
	f.o.rounding.Lock()
	defer f.o.rounding.Unlock()
	o, k, rows := f.o, f.k, len(w)/f.k
	from, to := o.Floats(len(w)), o.Floats(len(w))
	defer o.Free(from, to)
	o.Write(from, w)
	o.Copy(to, from)
	o.do(func() {
		o.gemm(driver.GEMM{
			M: rows, N: k, K: k, A: driver.Operand{Ptr: ptr(from)}, B: driver.Operand{Ptr: ptr(f.shift)}, C: driver.Operand{Ptr: ptr(to)},
			In: driver.F32, Out: driver.F32, Alpha: f.share, Beta: 1,
		})
	})
	o.Read(w, to)
	return o.Err()
}

// Round implements [rounding.Feedback].
func (f *feedback) Round(fed, nearest rounding.Rounded, outputs, w, levels []float32, group, count int) error {
	f.o.rounding.Lock()
	defer f.o.rounding.Unlock()
	o, k, rows := f.o, f.k, len(fed.Loss)
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
	f.read(fed, codes, loss)
	weigh := func(off model.Array) {
		f.weighed(value, off, rows)
		o.launch("weigh", driver.Dim{X: uint32(rows)}, driver.Dim{X: gradThreads}, loss, value, f.squares, k)
	}
	o.do(func() {
		each(value)
		round(0, ceil(k, columnWidth), k, 0)
		weigh(errors)
	})
	f.read(nearest, codes, loss)
	o.do(func() { weigh(goal) })
	o.Read(outputs, loss)
	return o.Err()
}

// read reads what rows were rounded to.
func (f *feedback) read(to rounding.Rounded, codes driver.Ptr, loss model.Array) {
	f.o.do(func() { f.o.fail(f.o.dev.Read(to.Codes, codes)) })
	f.o.Read(to.Loss, loss)
}
