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

	// Where few rows are retargeted, which are solved for by themselves: D, which others own, the factor of H, and the order of its
	// columns and back.
	drift, factor  model.Array
	reversed, back []int

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
	defer func() {
		if f.factor == nil {
			o.Free(factor)
		}
	}()
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
	if s.Retarget == 0 {
		return f
	}
	back := make([]int, k)
	for i, c := range reversed {
		back[c] = i
	}
	if s.Apart() {
		f.drift, f.factor, f.reversed, f.back = d, factor, reversed, back
		return f
	}
	f.shift = o.Floats(k * k)
	from, to := s.Rows(k)
	turned := o.Floats((to - from) * k)
	defer o.Free(turned)
	o.reorderColumns(turned, d.Slice(from*k, to*k), reversed, k)
	for at, part := 0, ceil(k, rounding.RetargetParts); at < to-from; at += part {
		rows := min(part, to-from-at)
		o.Solve(turned.Slice(at*k, (at+rows)*k), factor, rows, k)
	}
	o.reorderColumns(f.shift.Slice(from*k, to*k), turned, back, k)
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
	f.o.Free(f.unit, f.squares, f.shift, f.factor, f.fed, f.damped)
	f.o.do(func() {
		f.o.release(f.order)
		f.o.release(f.factors)
	})
}

// retargets reports whether weights are changed to those that make up for earlier losses.
func (f *feedback) retargets() bool { return f.shift != nil || f.drift != nil }

// retarget adds to rows of weights, floats [rows, k], what makes up for earlier losses. It is called inside do.
func (f *feedback) retarget(o *Ops, to, w model.Array, rows int) {
	product := func(dst, by model.Array, alpha, beta float32) {
		o.gemm(driver.GEMM{
			M: rows, N: f.k, K: f.k, A: driver.Operand{Ptr: ptr(w)}, B: driver.Operand{Ptr: ptr(by)}, C: driver.Operand{Ptr: ptr(dst)},
			In: driver.F32, Out: driver.F32, Alpha: alpha, Beta: beta,
		})
	}
	if f.shift != nil {
		product(to, f.shift, f.share, 1)
		return
	}
	moved, turned := o.Floats(rows*f.k), o.Floats(rows*f.k)
	defer o.Free(moved, turned)
	product(moved, f.drift, 1, 0)
	o.reorderColumns(turned, moved, f.reversed, f.k)
	o.Solve(turned, f.factor, rows, f.k)
	o.reorderColumns(moved, turned, f.back, f.k)
	grid, block := elements(rows * f.k)
	o.launch("add_scaled", grid, block, to, moved, f.share, int64(rows*f.k))
}

// Retarget implements [rounding.Feedback].
func (f *feedback) Retarget(w []float32) error {
	if !f.retargets() {
		return nil
	}
	o, back := f.main.lane()
	defer back()
	o.Queue(func() {
		from, to := o.Floats(len(w)), o.Floats(len(w))
		defer o.Free(from, to)
		o.Write(from, w)
		o.Copy(to, from)
		o.do(func() {
			f.retarget(o, to, from, len(w)/f.k)
			o.fetch(driver.Bytes(w), ptr(to))
		})
	})
	return o.Err()
}

// rows are rows of weights that are being rounded.
type rows struct {
	*feedback
	o            *Ops
	n            int
	group, count int
	in, level    model.Array // what they aim at, and what codes stand for
	goal, value  model.Array // scratch: in the order of columns
	errors       model.Array // of a block, or of all columns
}

func (f *feedback) newRows(o *Ops, n, group, count int) *rows {
	k := f.k
	return &rows{
		feedback: f, o: o, n: n, group: group, count: count,
		in: o.Floats(n * k), level: o.Floats(n * ceil(k, group) * count),
		goal: o.Floats(n * k), value: o.Floats(n * k), errors: o.Floats(n * max(k, columnWidth)),
	}
}

func (r *rows) free() { r.o.Free(r.in, r.level, r.goal, r.value, r.errors) }

// arrange writes what is aimed at in the order of columns. It is called inside do.
func (r *rows) arrange(dst model.Array) {
	r.o.launch("reorder_columns", driver.Dim{X: uint32(r.n)}, driver.Dim{X: gradThreads}, dst, r.in, r.order, r.k)
}

// round rounds the columns of some blocks. It is called inside do.
func (r *rows) round(codes driver.Ptr, loss model.Array, from, blocks, lde, feed int) {
	r.o.launch("round_columns", driver.Dim{X: uint32(ceil(r.n, columnRows)), Y: uint32(blocks)}, driver.Dim{X: gradThreads},
		codes, r.errors, lde, loss, r.value, r.goal, r.level, r.unit, r.squares, r.feedback.order, r.n, r.k, from, r.group, r.count, feed)
}

// feed rounds one column after the other with its error fed into those after it, and writes what is lost. It is called inside do.
func (r *rows) feed(codes driver.Ptr, loss model.Array) {
	o, k := r.o, r.k
	at := func(a model.Array, i int) driver.Ptr { return ptr(a) + driver.Ptr(4*i) }
	r.arrange(r.goal)
	r.arrange(r.value)
	for from := 0; from < k; from += columnWidth {
		to := min(from+columnWidth, k)
		r.round(codes, loss, from, 1, columnWidth, 1)
		if to < k {
			o.gemm(driver.GEMM{
				M: r.n, N: k - to, K: to - from, In: driver.F32, Out: driver.F32, Alpha: 1, Beta: 1,
				A: driver.Operand{Ptr: ptr(r.errors), Ld: columnWidth}, B: driver.Operand{Ptr: at(r.unit, from*k+to), Ld: k},
				C: driver.Operand{Ptr: at(r.value, to), Ld: k},
			})
		}
	}
}

// nearest rounds all columns to nearest after feed, and writes what is lost. It is called inside do.
func (r *rows) nearest(codes driver.Ptr, loss model.Array) {
	r.arrange(r.value)
	r.round(codes, loss, 0, ceil(r.k, columnWidth), r.k, 0)
	r.weigh(loss, r.errors)
}

// weigh writes what is lost by weights that are off by so much. It is called inside do.
func (r *rows) weigh(loss, off model.Array) {
	r.weighed(r.o, r.value, off, r.n)
	r.o.launch("weigh", driver.Dim{X: uint32(r.n)}, driver.Dim{X: gradThreads}, loss, r.value, r.squares, r.k)
}

// Round implements [rounding.Feedback].
func (f *feedback) Round(fed, nearest rounding.Rounded, outputs, w, levels []float32, group, count int) error {
	o, back := f.main.lane()
	defer back()
	o.Queue(func() {
		r := f.newRows(o, len(fed.Loss), group, count)
		defer r.free()
		o.Write(r.in, w)
		o.Write(r.level, levels)
		loss := o.Floats(r.n)
		defer o.Free(loss)
		o.do(func() {
			codes := o.scratch(r.n * r.k)
			defer o.release(codes)
			read := func(to rounding.Rounded) {
				o.fetch(to.Codes, codes)
				o.fetch(driver.Bytes(to.Loss), ptr(loss))
			}
			r.feed(codes, loss)
			read(fed)
			r.nearest(codes, loss)
			read(nearest)
			r.weigh(loss, r.goal)
			o.fetch(driver.Bytes(outputs), ptr(loss))
		})
	})
	return o.Err()
}
