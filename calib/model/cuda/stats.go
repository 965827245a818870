package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.StatsOps = (*Ops)(nil)

// Gram adds the products of the columns of x.
func (o *Ops) Gram(h, x model.Array, rows int) {
	if rows == 0 {
		return
	}
	in := x.(*array)
	k := in.n / rows
	check(in.dtype == o.acts && in.n == rows*k && floats(h).n == k*k, "products of the columns of %d rows of %d: %d elements to %d", rows, k, in.n, h.Len())
	o.do(func() {
		for from := 0; from < k; from += strip {
			to := min(from+strip, k)
			o.outer(ptr(h), in.ptr, in.ptr, rows, k, from, to, to)
		}
	})
}

// Cross adds the products of the columns of a difference and xq.
func (o *Ops) Cross(d, x, xq model.Array, rows int) {
	if rows == 0 {
		return
	}
	a, b := x.(*array), xq.(*array)
	k := b.n / rows
	check(a.dtype == o.acts && b.dtype == o.acts && a.n == rows*k && b.n == a.n && floats(d).n == k*k,
		"products of the columns of %d rows of %d: %d and %d elements to %d", rows, k, a.n, b.n, d.Len())
	o.do(func() {
		diff := o.scratch(a.bytes())
		defer o.release(diff)
		grid, block := elements(a.n)
		o.launch("difference", grid, block, diff, a, b, int64(a.n))
		o.outer(ptr(d), diff, b.ptr, rows, k, 0, k, k)
	})
}

// outer queues the addition of aᵀ·b, of columns [from, to) and that many of its first rows, to floats [k, k].
func (o *Ops) outer(sum, a, b driver.Ptr, rows, k, from, to, first int) {
	size := o.acts.Size()
	o.gemm(driver.GEMM{
		M: first, N: to - from, K: rows, TransA: true, In: o.acts, Out: driver.F32, Alpha: 1, Beta: 1,
		A: driver.Operand{Ptr: a, Ld: k}, B: driver.Operand{Ptr: b + driver.Ptr(from*size), Ld: k}, C: driver.Operand{Ptr: sum + driver.Ptr(4*from), Ld: k},
	})
}

// The side of a tile of the kernel mirror, and the threads of a block, which has one.
const (
	mirrorTile    = 32
	mirrorThreads = 256
)

// Mirror copies what lies above a diagonal to below it.
func (o *Ops) Mirror(h model.Array, k int) {
	check(floats(h).n == k*k, "%d elements of a symmetric matrix of %d rows", h.Len(), k)
	tiles := uint32(ceil(k, mirrorTile))
	o.do(func() { o.launch("mirror", driver.Dim{X: tiles, Y: tiles}, driver.Dim{X: mirrorThreads}, h, k) })
}
