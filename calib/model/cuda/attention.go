package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// The sizes of a block of queries: as many as whose scores fit in attentionBytes, but
// no more than keep the part of them that the causal mask throws away small.
const (
	attentionBytes = 256 << 20
	attentionRows  = 512
)

// attentionBlock is a block of queries and the keys that any of them sees.
type attentionBlock struct {
	from, to int // queries
	lo, hi   int // keys, counted from the first token of the text
	ld       int // elements of a row of scores, a multiple of 8
}

func (b attentionBlock) rows() int { return b.to - b.from }
func (b attentionBlock) keys() int { return b.hi - b.lo }

// attentionBlocks cuts the queries, which come after so many tokens, into blocks whose scores take bytes bytes
// each. It returns them and the number of scores of the largest block.
func attentionBlocks(s model.AttentionShape, after, bytes int) (blocks []attentionBlock, scores int) {
	span := after + s.T // keys that a query's block may see
	if s.Window > 0 {
		span = min(span, s.Window+attentionRows)
	}
	rows := min(max(attentionBytes/(bytes*s.Heads*ceil(span, 8)*8), 1), attentionRows)
	if rows >= 16 {
		rows -= rows % 16
	}
	for from := 0; from < s.T; from += rows {
		b := attentionBlock{from: from, to: min(from+rows, s.T)}
		b.hi = after + b.to
		if s.Window > 0 {
			b.lo = max(after+from-s.Window+1, 0)
		}
		b.ld = ceil(b.keys(), 8) * 8
		blocks = append(blocks, b)
		scores = max(scores, s.Heads*b.rows()*b.ld)
	}
	return blocks, scores
}

// heads is a matrix of every head.
type heads struct {
	ptr    driver.Ptr
	dtype  driver.DType
	ld     int // elements from one row to the next
	stride int // elements from one head to the next
}

// headsOf are the n heads of an array [T, n, dim], from a token on.
func headsOf(m model.Array, n, dim, from int) heads {
	a := m.(*array)
	return heads{a.ptr + driver.Ptr(from*n*dim*a.dtype.Size()), a.dtype, n * dim, dim}
}

// operand returns every step-th head from head i on.
func (h heads) operand(i, step int) driver.Operand {
	return driver.Operand{Ptr: h.ptr + driver.Ptr(i*h.stride*h.dtype.Size()), Ld: h.ld, Stride: step * h.stride}
}

// gemmHeads queues the product g for every query head: A and C are its own, and B is
// of its head of keys or values. g holds all but operands, types and batch.
func (o *Ops) gemmHeads(s model.AttentionShape, g driver.GEMM, a, b, c heads) {
	g.In, g.Out = a.dtype, c.dtype
	group := s.Heads / s.KVHeads
	// A call takes one query head of every group, or the heads of one group, whichever
	// needs fewer calls.
	if group <= s.KVHeads {
		g.Batch = s.KVHeads
		for j := range group {
			g.A, g.B, g.C = a.operand(j, group), b.operand(0, 1), c.operand(j, group)
			o.gemm(g)
		}
		return
	}
	g.Batch = group
	for i := range s.KVHeads {
		g.A, g.B, g.C = a.operand(i*group, 1), b.operand(i, 0), c.operand(i*group, 1)
		o.gemm(g)
	}
}

// Attention is causal attention: by the kernel flash, or where that cannot or where lse is asked for, for one block of
// queries after the other through the scores of all heads, and the probabilities in the type of activations.
func (o *Ops) Attention(out, lse, q, k, v model.Array, s model.AttentionShape) {
	checkAttention(s, out, q, k, v)
	check(lse == nil || lse.Len() == s.Heads*s.T, "room for lse of %d heads of %d tokens: wrong length", s.Heads, s.T)
	if s.T == 0 {
		return
	}
	o.do(func() {
		o.attend(out, lse, q, s, past{
			keys:   func(from int) heads { return headsOf(k, s.KVHeads, s.Dim, from) },
			values: func(from int) heads { return headsOf(v, s.KVHeads, s.Dim, from) },
		})
	})
}

// past is what queries see: their own keys and values, and those of so many tokens before.
type past struct {
	tokens       int
	keys, values func(from int) heads // from a token on
}

// attend queues the attention of s.T queries. It is called inside do.
func (o *Ops) attend(out, lse, q model.Array, s model.AttentionShape, seen past) {
	if lse == nil && o.flash(out, q, s, seen) {
		return
	}
	if _, ok := out.(*input); ok {
		o.rowByRow(out, func(out model.Array) { o.attend(out, lse, q, s, seen) })
		return
	}
	blocks, n := attentionBlocks(s, seen.tokens, driver.F32.Size()+o.acts.Size())
	at, p := o.scratch(n*driver.F32.Size()), o.scratch(n*o.acts.Size())
	for _, b := range blocks {
		scores := heads{at, driver.F32, b.ld, b.rows() * b.ld}
		o.gemmHeads(s, driver.GEMM{M: b.rows(), N: b.keys(), K: s.Dim, TransB: true, Alpha: s.Scale},
			headsOf(q, s.Heads, s.Dim, b.from), seen.keys(b.lo), scores)
		grid := driver.Dim{X: uint32(ceil(b.rows(), elementThreads/32)), Y: uint32(s.Heads)}
		o.launch("softmax_"+capName(s.Cap > 0), grid, driver.Dim{X: elementThreads}, p, lse, at, b.rows(), b.ld, seen.tokens+b.from, b.lo, s.Window, s.T, s.Sinks, s.Cap)
		o.gemmHeads(s, driver.GEMM{M: b.rows(), N: s.Dim, K: b.keys(), Alpha: 1},
			heads{p, o.acts, scores.ld, scores.stride}, seen.values(b.lo), headsOf(out, s.Heads, s.Dim, b.from))
	}
	o.release(at)
	o.release(p)
}

func checkAttention(s model.AttentionShape, out, q, k, v model.Array) {
	check(s.KVHeads > 0 && s.Heads%s.KVHeads == 0, "%d heads with %d of keys and values", s.Heads, s.KVHeads)
	wide, narrow := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim
	check(out.Len() == wide && q.Len() == wide && k.Len() == narrow && v.Len() == narrow,
		"attention over %+v: q, k, v and o have %d, %d, %d and %d elements", s, q.Len(), k.Len(), v.Len(), out.Len())
}
