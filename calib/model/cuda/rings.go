package cuda

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/rounding"
)

// The shapes of the kernels of rings.cu.
const (
	ringThreads = 256
	ringColumns = 16
	ringSums    = 11 // of a row
)

// Rotate writes h, floats [k, k] of as many factors as columns, turned on both sides.
func (o *Ops) Rotate(dst, h model.Array, factors []float32) {
	k := len(factors)
	check(floats(dst).n == k*k && floats(h).n == k*k, "a matrix of %d elements turned by %d factors", h.Len(), k)
	o.rounding.Lock()
	defer o.rounding.Unlock()
	o.do(func() {
		by := o.uploadFloats(factors)
		defer o.release(by)
		o.rotateRows(ptr(dst), ptr(h), by, k, k)
		o.launch("rotate_columns", driver.Dim{X: uint32(ceil(k, 32)), Y: uint32(ceil(k, trellis.Block))}, driver.Dim{X: ringThreads}, dst, by, k)
	})
}

// rotateRows queues the turning of rows of k columns. It is called inside do.
func (o *Ops) rotateRows(dst, src, factors driver.Ptr, rows, k int) {
	warps := rows * ceil(k, trellis.Block)
	o.launch("rotate_rows", driver.Dim{X: uint32(ceil(warps, ringThreads/32))}, driver.Dim{X: ringThreads}, dst, src, factors, rows, k)
}

// uploadFloats queues a copy of numbers to scratch memory.
func (o *Ops) uploadFloats(v []float32) driver.Ptr {
	at := o.scratch(4 * len(v))
	o.upload(at, driver.Bytes(v))
	return at
}

// prepareBlocks keeps what is needed of H in reverse order, before it is factored.
func (f *feedback) prepareBlocks(reversed model.Array, factors []float32, block int) {
	check(block == ringColumns, "columns are rounded in blocks of %d", block)
	o, k := f.o, f.k
	f.fed, f.damped = o.Floats(k*k), o.Floats(k)
	diagonal := o.Floats(k)
	defer o.Free(diagonal)
	back := make([]int, k)
	for i := range back {
		back[i] = k - 1 - i
	}
	o.do(func() {
		grid, threads := pieces(k)
		o.launch("diagonal", grid, threads, diagonal, reversed, k)
		order := o.uploadInts(back)
		defer o.release(order)
		o.launch("reorder_columns", driver.Dim{X: 1}, driver.Dim{X: gradThreads}, f.damped, diagonal, order, k)
		if factors != nil {
			inverse := slices.Clone(factors)
			for i, v := range inverse {
				inverse[i] = 1 / v
			}
			f.factors = o.uploadFloats(inverse)
		}
	})
}

// unitBlocks makes A what blocks are fed by.
func (f *feedback) unitBlocks() {
	f.o.do(func() {
		grid := driver.Dim{X: uint32(ceil(f.k, ringThreads)), Y: uint32(ceil(f.k, ringColumns))}
		f.o.launch("unit_blocks", grid, driver.Dim{X: ringThreads}, f.fed, f.unit, f.k)
	})
}

// Rings implements [rounding.Feedback].
func (f *feedback) Rings(r rounding.Rings, w []float32) error {
	f.o.rounding.Lock()
	defer f.o.rounding.Unlock()
	o, k, rows, layout := f.o, f.k, len(r.Sums), r.Code.Layout()
	if f.fed == nil || layout.Cols != ringColumns {
		return fmt.Errorf("a state that was not prepared for rings of %d columns", layout.Cols)
	}
	down, across := ceil(rows, layout.Rows), ceil(k, ringColumns)
	check(len(w) == rows*k && len(r.Bytes) == down*across*layout.Bytes(), "%d weights of %d rows to %d bytes of rings", len(w), rows, len(r.Bytes))

	own, goal, value, errors := o.Floats(rows*k), o.Floats(rows*k), o.Floats(rows*k), o.Floats(rows*k)
	means, sums := o.Floats(rows), o.Floats(rows*ringSums)
	defer o.Free(own, goal, value, errors, means, sums)
	o.Write(value, w)
	each := driver.Dim{X: uint32(rows)}
	reorder := func(dst, src model.Array) {
		o.launch("reorder_columns", each, driver.Dim{X: gradThreads}, dst, src, f.order, k)
	}
	o.do(func() {
		if f.factors != 0 {
			o.rotateRows(ptr(value), ptr(value), f.factors, rows, k)
		}
		o.convert(ptr(errors), driver.F32, ptr(value), driver.F32, rows*k)
		if f.shift != nil {
			o.gemm(driver.GEMM{
				M: rows, N: k, K: k, A: driver.Operand{Ptr: ptr(value)}, B: driver.Operand{Ptr: ptr(f.shift)}, C: driver.Operand{Ptr: ptr(errors)},
				In: driver.F32, Out: driver.F32, Alpha: f.share, Beta: 1,
			})
		}
		reorder(own, value)
		reorder(goal, errors)
		o.launch("ring_targets", each, driver.Dim{X: ringThreads}, goal, means, own, k)
		o.convert(ptr(value), driver.F32, ptr(goal), driver.F32, rows*k)
	})
	squares := make([]float32, rows)
	o.Read(squares, means)
	if err := o.Err(); err != nil {
		return err
	}
	scales, err := r.Scales(squares)
	if err != nil {
		return err
	}
	check(len(scales) == rows, "%d scales of %d rows", len(scales), rows)
	o.do(func() {
		v := o.newViterbi(r.Code)
		if v == nil {
			return
		}
		defer v.close()
		f.rings(v, rows, r.Bytes, value, goal, errors, scales)
		factor := 1 / float32(f.tokens)
		o.launch("ring_sums", each, driver.Dim{X: ringThreads}, sums, own, goal, value, errors, f.damped, factor, k)
		for _, product := range []struct{ to, of model.Array }{{own, goal}, {value, errors}} {
			f.weighed(o, product.to, product.of, rows)
		}
		o.launch("ring_metric", each, driver.Dim{X: ringThreads}, sums, own, value, f.squares, k)
	})
	all := make([]float32, rows*ringSums)
	o.Read(all, sums)
	for i := range r.Sums {
		s := all[i*ringSums : (i+1)*ringSums]
		r.Sums[i] = rounding.RingSums{
			Squared: float64(s[0]), Off: float64(s[1]), OffStored: float64(s[2]), Stored: float64(s[3]),
			Goal: float64(s[4]), Missed: float64(s[5]), MissedStored: float64(s[6]), ByChance: float64(s[7]),
			Output: float64(s[8]), OutputMissed: float64(s[9]), Loss: float64(s[10]),
		}
	}
	return o.Err()
}

// rings rounds one block of columns after the other, which takes value for scratch: each block becomes what it was when its turn came. It
// writes the bytes of rings, and the errors that are left of the goal. It is called inside do.
func (f *feedback) rings(v *viterbi, rows int, bytes []byte, value, goal, errors model.Array, scales []float32) {
	o, k, l := f.o, f.k, v.layout
	down, across := ceil(rows, l.Rows), ceil(k, ringColumns)
	work := v.work(down)
	defer v.release(work)
	scale, codes := o.uploadFloats(scales), o.scratch(len(bytes))
	defer o.release(scale)
	defer o.release(codes)
	at := func(a model.Array, i int) driver.Ptr { return ptr(a) + driver.Ptr(4*i) }
	each, threads := driver.Dim{X: uint32(down)}, driver.Dim{X: uint32(ceil(v.size(), 32) * 32)}
	pairs := 0
	if l.Together > 1 {
		pairs = 1
	}
	for group := 0; group < k; group += columnWidth {
		end := min(group+columnWidth, k)
		for from := group; from < end; from += ringColumns {
			o.launch("ring_steps", each, threads, work.steps, value, errors, f.fed, scale, v.place, v.size(), l.Rows, rows, k, group, from, v.unit, v.limit)
			v.choose(work)
			o.launch("ring_errors", each, threads, errors, goal, work.windows, v.table, scale, v.place, v.size(), l.Together, l.Rows, rows, k, from, 1/v.unit)
			grid, block := pieces(down * l.Bytes())
			o.launch("ring_bytes", grid, block, codes, work.windows, f.order, down, l.Steps(), l.Bits(0), pairs, l.Bytes(), across, from)
		}
		if end < k {
			o.gemm(driver.GEMM{
				M: rows, N: k - end, K: end - group, In: driver.F32, Out: driver.F32, Alpha: 1, Beta: 1,
				A: driver.Operand{Ptr: at(errors, group), Ld: k}, B: driver.Operand{Ptr: at(f.fed, group*k+end), Ld: k},
				C: driver.Operand{Ptr: at(value, end), Ld: k},
			})
		}
	}
	if o.err == nil {
		o.fail(o.dev.Read(bytes, codes))
	}
}

// weighed queues the product of rows with A.
func (f *feedback) weighed(o *Ops, dst, of model.Array, rows int) {
	k := f.k
	for from := 0; from < k; from += strip { // below its diagonal A is zero
		to := min(from+strip, k)
		o.gemm(driver.GEMM{
			M: rows, N: to - from, K: to, In: driver.F32, Out: driver.F32, Alpha: 1,
			A: driver.Operand{Ptr: ptr(of), Ld: k}, B: driver.Operand{Ptr: ptr(f.unit) + driver.Ptr(4*from), Ld: k},
			C: driver.Operand{Ptr: ptr(dst) + driver.Ptr(4*from), Ld: k},
		})
	}
}
