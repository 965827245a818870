package cuda

import (
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
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
	o.do(func() { o.launch(kernel, grid, block, dx, dy, x, w, rows, cols, float32(eps), truth(add)) })
}

// truth is a bool as a kernel's argument.
func truth(b bool) int {
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
		at, scratch := o.denseOf(w.(operand).base())
		o.gemm(driver.GEMM{
			M: rows, N: k, K: n, A: driver.Operand{Ptr: g.ptr}, B: driver.Operand{Ptr: at}, C: driver.Operand{Ptr: d.ptr},
			In: o.acts, Out: d.dtype, Alpha: 1, Beta: float32(truth(add)),
		})
		if scratch {
			o.release(at)
		}
	})
}

// GLUBack writes the gradients of gate and up.
func (o *Ops) GLUBack(dg, du, dy, g, u model.Array, act arch.Gating) {
	n := dy.Len()
	check(dg.Len() == n && du.Len() == n && g.Len() == n && u.Len() == n,
		"gradient of glu of %d elements: %d, %d, %d and %d", n, dg.Len(), du.Len(), g.Len(), u.Len())
	if n == 0 {
		return
	}
	each := vector(8, []int{n}, dg, du, dy, g, u)
	grid, block := pieces(n / each)
	o.do(func() {
		o.launch(fmt.Sprintf("glu_back_%s_%d", act.Act, each), grid, block, dg, du, dy, g, u, float32(act.Alpha), float32(act.Limit), int64(n))
	})
}

// The sizes of a block in AttentionBack: queries of a block, and bytes of its scores and
// their gradient for all heads of keys and values that are taken at a time.
const (
	attentionBackRows  = 256
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
	b := newAttentionBack(s, o.acts, attentionBackRows, attentionBackBytes)
	o.do(func() { o.attentionBack(&b, dq, dk, dv, do, lse, q, k, v) })
}

// attentionBack is what the blocks of a gradient share. A pair is two matrices, one
// behind the other: see grad.cu.
type attentionBack struct {
	s             model.AttentionShape
	group, window int

	queries, heads, scores int // of a block, at most

	query     driver.Ptr // acts [KVHeads] pairs [T, group, Dim]: queries, and the gradient of the output
	key       driver.Ptr // acts [KVHeads] pairs [T, Dim]: keys, and values
	dquery    driver.Ptr // like the first ones of query
	dkey      driver.Ptr // like key, floats
	lse       driver.Ptr // floats [Heads, T]
	score, ds driver.Ptr // floats [heads] pairs [queries, group, keys]: scores, and dP; acts: dS, and P
}

// newAttentionBack sizes blocks, of which a pair of scores and one of their
// gradients take no more than some bytes where one query does not.
func newAttentionBack(s model.AttentionShape, acts driver.DType, queries, bytes int) attentionBack {
	b := attentionBack{s: s, group: s.Heads / s.KVHeads, window: s.Window, queries: min(queries, s.T)}
	if b.window <= 0 {
		b.window = s.T
	}
	pitch := ceil(min(s.T, b.window+b.queries-1), 8) * 8
	each := b.group * pitch * 2 * (driver.F32.Size() + acts.Size()) // bytes for a query
	b.heads = min(max(bytes/(each*b.queries), 1), s.KVHeads)
	if b.heads == 1 {
		b.queries = min(max(bytes/each, 1), b.queries)
	}
	b.scores = b.heads * b.queries * b.group * pitch
	return b
}

func (o *Ops) attentionBack(b *attentionBack, dq, dk, dv, do, lse, q, k, v model.Array) {
	s, size := b.s, o.acts.Size()
	wide, narrow := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim
	for _, m := range []struct {
		at *driver.Ptr
		n  int
	}{
		{&b.query, 2 * wide * size},
		{&b.key, 2 * narrow * size},
		{&b.dquery, 2 * wide * size},
		{&b.dkey, 2 * narrow * 4},
		{&b.score, 2 * b.scores * 4},
		{&b.ds, 2 * b.scores * size},
	} {
		*m.at = o.scratch(m.n)
		defer o.release(*m.at)
	}
	if o.err != nil {
		return
	}
	b.lse = ptr(lse)
	each := vector(4, []int{s.Dim}, q, k, v, do, dq, dk, dv)
	kernel := func(name string, n int, args ...any) {
		grid, block := pieces(n)
		o.launch(fmt.Sprintf("attention_%s_%d", name, each), grid, block, append(args, s.T, s.KVHeads, b.group, s.Dim)...)
	}
	kernel("queries", wide/each, b.query, q, do)
	kernel("keys", narrow/each, b.key, k, v)
	o.fail(o.stream.Fill8(b.dkey, 0, 2*narrow*4))
	for head := 0; head < s.KVHeads; head += b.heads {
		for from := 0; from < s.T; from += b.queries {
			o.attentionBlockBack(b, head, min(head+b.heads, s.KVHeads), from, min(from+b.queries, s.T))
		}
	}
	kernel("queries_back", wide/each, dq, b.dquery)
	kernel("keys_back", narrow/each, dk, dv, b.dkey)
}

// attentionBlockBack takes the heads [head, headTo) of keys and values and the
// queries of tokens [from, to).
func (o *Ops) attentionBlockBack(b *attentionBack, head, headTo, from, to int) {
	s, size := b.s, o.acts.Size()
	first := max(from-b.window+1, 0) // key
	rows, keys, heads := (to-from)*b.group, to-first, headTo-head
	pitch := ceil(keys, 8) * 8
	// Matrices of pairs, and of every first or second one.
	queries := func(at driver.Ptr) driver.Operand {
		n := s.T * b.group * s.Dim
		return driver.Operand{Ptr: at + driver.Ptr((2*head*n+from*b.group*s.Dim)*size), Ld: s.Dim, Stride: n}
	}
	theKeys := func(at driver.Ptr, size int) driver.Operand {
		n := s.T * s.Dim
		return driver.Operand{Ptr: at + driver.Ptr((2*head*n+first*s.Dim)*size), Ld: s.Dim, Stride: n}
	}
	scores := func(at driver.Ptr) driver.Operand { return driver.Operand{Ptr: at, Ld: pitch, Stride: rows * pitch} }
	every2 := func(x driver.Operand) driver.Operand {
		x.Stride *= 2
		return x
	}
	o.gemm(driver.GEMM{
		M: rows, N: keys, K: s.Dim, A: queries(b.query), B: theKeys(b.key, size), C: scores(b.score),
		TransB: true, In: o.acts, Out: driver.F32, Alpha: 1, Batch: 2 * heads,
	})
	kernel, threads := softmaxBack(pitch, s.Cap > 0)
	o.launch(kernel, driver.Dim{X: uint32(rows), Y: uint32(heads)}, driver.Dim{X: uint32(threads)},
		b.ds, b.score, b.lse+driver.Ptr(4*head*b.group*s.T), pitch, from, first, b.window, b.group, s.T, s.Scale, s.Cap)
	o.gemm(driver.GEMM{
		M: keys, N: s.Dim, K: rows, A: scores(b.ds), B: queries(b.query), C: theKeys(b.dkey, 4),
		TransA: true, In: o.acts, Out: driver.F32, Alpha: 1, Beta: 1, Batch: 2 * heads,
	})
	o.gemm(driver.GEMM{
		M: rows, N: s.Dim, K: keys, A: every2(scores(b.ds)), B: every2(theKeys(b.key, size)), C: every2(queries(b.dquery)),
		In: o.acts, Out: o.acts, Alpha: 1, Batch: heads,
	})
}

// softmaxBack returns the kernel for rows of a pitch, and its threads: so many that
// they hold a row in registers, where it is not longer than 8192.
func softmaxBack(pitch int, capped bool) (kernel string, threads int) {
	held := 1
	for held < 4 && held*gradThreads*8 < pitch {
		held *= 2
	}
	return fmt.Sprintf("softmax_back_%s_%d", capName(capped), held), min(ceil(pitch, held*8*32)*32, gradThreads)
}

// capName is what kernels with and without a cap on scores are called.
func capName(capped bool) string {
	if capped {
		return "capped"
	}
	return "plain"
}

// SoftCapBack multiplies a gradient by the slope of a cap.
func (o *Ops) SoftCapBack(dx, y model.Array, limit float64) {
	check(dx.Len() == y.Len() && floats(y).n == y.Len(), "gradient of %d capped numbers of %d", dx.Len(), y.Len())
	o.elementwise("soft_cap_back", y.Len(), dx, y, float32(limit))
}

// RowDots writes the products of rows.
func (o *Ops) RowDots(dst, a, b model.Array, rows int) {
	check(floats(dst).n == rows && a.Len() == b.Len(), "%d products of %d rows of %d and %d elements", dst.Len(), rows, a.Len(), b.Len())
	if rows == 0 {
		return
	}
	cols := a.Len() / rows
	grid, block := perRow(rows, cols)
	o.do(func() { o.launch(o.of("row_dots", a, b), grid, block, dst, a, b, cols) })
}
