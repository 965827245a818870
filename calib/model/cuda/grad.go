package cuda

import (
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// gradThreads is the block size of the kernels of gradients.
const gradThreads = 256

// pieces returns grid and block for n pieces of work, one a thread.
func pieces(n int) (grid, block driver.Dim) {
	return driver.Dim{X: uint32(ceil(n, gradThreads))}, driver.Dim{X: gradThreads}
}

// vector returns how many elements of arrays the kernels may take at a time: v where
// it divides every length and each array lies at a multiple of 16 bytes, or 1.
func vector(v int, lengths []int, arrays ...model.Array) int {
	for _, n := range lengths {
		if n%v != 0 {
			return 1
		}
	}
	for _, a := range arrays {
		if ptr(a)%16 != 0 {
			return 1
		}
	}
	return v
}

// RMSNormBack adds or writes the gradient of a norm.
func (o *Ops) RMSNormBack(dx, dy, x, w model.Array, rows int, eps float64, add bool) {
	cols := w.Len()
	check(dx.Len() == rows*cols && dy.Len() == rows*cols && x.Len() == rows*cols,
		"gradient of a norm of %d rows of %d: %d and %d to %d elements", rows, cols, dy.Len(), x.Len(), dx.Len())
	check(dx.(*array).dtype == x.(*array).dtype, "the gradient of a norm has another type than its input")
	if rows == 0 {
		return
	}
	team := 32 // threads of a row
	if cols > 512 {
		team = gradThreads
	}
	kernel := fmt.Sprintf("%s_%d_%d", o.of("rms_norm_back", x, dy), team, vector(8, []int{cols}, dx, dy, x, w))
	grid, block := pieces(rows * team)
	o.do(func() { o.launch(kernel, grid, block, dx, dy, x, w, rows, cols, float32(eps), flag(add)) })
}

// flag is a bool as a kernel's argument.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// LinearBack adds or writes dy·W to dx.
func (o *Ops) LinearBack(dx, dy model.Array, rows int, w model.Weight, add bool) {
	n, k := w.Shape()
	d, g := dx.(*array), dy.(*array)
	check(g.dtype == o.acts && g.n == rows*n && d.n == rows*k,
		"gradient of a weight of shape [%d, %d] for %d rows: %d elements of %v to %d", n, k, rows, g.n, g.dtype, d.n)
	if rows == 0 {
		return
	}
	o.do(func() {
		at, scratch := o.denseOf(w.(weight).base())
		o.gemm(driver.GEMM{
			M: rows, N: k, K: n, A: driver.Operand{Ptr: g.ptr}, B: driver.Operand{Ptr: at}, C: driver.Operand{Ptr: d.ptr},
			In: o.acts, Out: d.dtype, Alpha: 1, Beta: float32(flag(add)),
		})
		if scratch {
			o.release(at)
		}
	})
}

// SwiGLUBack writes the gradients of gate and up.
func (o *Ops) SwiGLUBack(dg, du, dy, g, u model.Array) {
	n := dy.Len()
	check(dg.Len() == n && du.Len() == n && g.Len() == n && u.Len() == n,
		"gradient of swiglu of %d elements: %d, %d, %d and %d", n, dg.Len(), du.Len(), g.Len(), u.Len())
	if n == 0 {
		return
	}
	each := vector(8, []int{n}, dg, du, dy, g, u)
	grid, block := pieces(n / each)
	o.do(func() { o.launch(fmt.Sprintf("swiglu_back_%d", each), grid, block, dg, du, dy, g, u, int64(n)) })
}

// The sizes of a block in AttentionBack: queries of a block, and bytes of its scores and
// their gradient for all heads of keys and values that are taken at a time.
const (
	attentionBackRows  = 128
	attentionBackBytes = 256 << 20
)

// AttentionBack writes the gradients of queries, keys and values.
//
// The queries of the heads that share keys and values become the rows of one matrix,
// so a product gives the scores of all of them, and another sums their gradients of the
// keys: those sums are of float32, from block to block too.
func (o *Ops) AttentionBack(dq, dk, dv, do, out, lse, q, k, v model.Array, s model.AttentionShape) {
	checkAttention(s, out, q, k, v)
	checkAttention(s, do, dq, dk, dv)
	check(lse.Len() == s.Heads*s.T, "lse of %d heads of %d tokens has %d elements", s.Heads, s.T, lse.Len())
	if s.T == 0 {
		return
	}
	o.do(func() {
		group, size := s.Heads/s.KVHeads, o.acts.Size()
		wide, narrow, rows := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim, s.T*s.Heads
		b := attentionBack{
			s: s, group: group, window: s.Window,
			q: o.scratch(wide * size), do: o.scratch(wide * size), dq: o.scratch(wide * size),
			lse: o.scratch(rows * 4), dot: o.scratch(rows * 4),
			dk: o.scratch(narrow * 4), dv: o.scratch(narrow * 4),
			k: ptr(k), v: ptr(v),
		}
		if b.window <= 0 {
			b.window = s.T
		}
		each := vector(4, []int{s.Dim}, q, do, out, dq)
		grid, block := pieces(rows * 32)
		o.launch(fmt.Sprintf("attention_gather_%d", each), grid, block,
			b.q, b.do, b.lse, b.dot, q, do, out, lse, s.T, s.KVHeads, group, s.Dim)
		for _, at := range []driver.Ptr{b.dk, b.dv} {
			if o.err == nil {
				o.fail(o.stream.Fill8(at, 0, narrow*4))
			}
		}
		o.attentionBack(&b)
		grid, block = pieces(wide / each)
		o.launch(fmt.Sprintf("attention_scatter_%d", each), grid, block, dq, b.dq, s.T, s.KVHeads, group, s.Dim)
		o.convert(ptr(dk), o.acts, b.dk, driver.F32, narrow)
		o.convert(ptr(dv), o.acts, b.dv, driver.F32, narrow)
		for _, at := range []driver.Ptr{b.q, b.do, b.dq, b.lse, b.dot, b.dk, b.dv} {
			o.release(at)
		}
	})
}

// attentionBack is what the blocks of a gradient share. q, do and dq are acts
// [KVHeads, T, group, Dim], lse and dot, the products of do and o, floats [KVHeads, T,
// group], k and v acts [T, KVHeads, Dim], and dk and dv the same of floats.
type attentionBack struct {
	s                             model.AttentionShape
	group, window                 int
	q, do, dq, lse, dot, k, v, dk driver.Ptr
	dv                            driver.Ptr
}

// sizes returns the most queries, heads of keys and values, and scores of a block.
func (b *attentionBack) sizes(acts driver.DType) (queries, heads, scores int) {
	queries = min(attentionBackRows, b.s.T)
	pitch := ceil(min(b.s.T, b.window+queries-1), 8) * 8
	each := b.group * pitch * 2 * (driver.F32.Size() + acts.Size()) // bytes for a query
	heads = min(max(attentionBackBytes/(each*queries), 1), b.s.KVHeads)
	if heads == 1 {
		queries = min(max(attentionBackBytes/each, 1), queries)
	}
	return queries, heads, heads * queries * b.group * pitch
}

func (o *Ops) attentionBack(b *attentionBack) {
	size, s := o.acts.Size(), b.s
	queries, most, n := b.sizes(o.acts)
	scores, dp := o.scratch(4*n), o.scratch(4*n)
	p, ds := o.scratch(size*n), o.scratch(size*n)
	for head := 0; head < s.KVHeads; head += most {
		for from := 0; from < s.T; from += queries {
			heads, to := min(most, s.KVHeads-head), min(from+queries, s.T)
			key := max(from-b.window+1, 0)
			rows, keys := (to-from)*b.group, to-key
			pitch := ceil(keys, 8) * 8
			wide := func(at driver.Ptr) driver.Operand {
				return driver.Operand{
					Ptr: at + driver.Ptr((head*s.T+from)*b.group*s.Dim*size),
					Ld:  s.Dim, Stride: s.T * b.group * s.Dim,
				}
			}
			narrow := func(at driver.Ptr, size int) driver.Operand {
				return driver.Operand{
					Ptr: at + driver.Ptr((key*s.KVHeads+head)*s.Dim*size),
					Ld:  s.KVHeads * s.Dim, Stride: s.Dim,
				}
			}
			block := func(at driver.Ptr) driver.Operand {
				return driver.Operand{Ptr: at, Ld: pitch, Stride: rows * pitch}
			}
			product := driver.GEMM{M: rows, N: keys, K: s.Dim, TransB: true, In: o.acts, Out: driver.F32, Alpha: 1, Batch: heads}
			product.A, product.B, product.C = wide(b.q), narrow(b.k, size), block(scores)
			o.gemm(product)
			product.A, product.B, product.C = wide(b.do), narrow(b.v, size), block(dp)
			o.gemm(product)

			at := driver.Ptr(4 * head * s.T * b.group)
			grid, threads := pieces(rows * 32)
			grid.Y = uint32(heads)
			o.launch("softmax_back", grid, threads, p, ds, scores, dp, b.lse+at, b.dot+at,
				rows, pitch, from, key, b.window, b.group, s.T, s.Scale)

			sum := driver.GEMM{M: keys, N: s.Dim, K: rows, TransA: true, In: o.acts, Out: driver.F32, Alpha: 1, Beta: 1, Batch: heads}
			sum.A, sum.B, sum.C = block(p), wide(b.do), narrow(b.dv, 4)
			o.gemm(sum)
			sum.A, sum.B, sum.C = block(ds), wide(b.q), narrow(b.dk, 4)
			o.gemm(sum)
			o.gemm(driver.GEMM{
				M: rows, N: s.Dim, K: keys, A: block(ds), B: narrow(b.k, size), C: wide(b.dq),
				In: o.acts, Out: o.acts, Alpha: 1, Batch: heads,
			})
		}
	}
	for _, at := range []driver.Ptr{scores, dp, p, ds} {
		o.release(at)
	}
}
