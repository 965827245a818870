package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// RMSNormBack implements [model.BackwardOps]. With r = 1/√(mean x² + eps) over n
// elements,
//
//	dx[i] = r·w[i]·dy[i] − x[i]·r³/n · Σ_j w[j]·dy[j]·x[j]
func (c *Ops) RMSNormBack(dx, dy, x, w model.Array, rows int, eps float64, add bool) {
	dst, grad, src, weight := host(dx), host(dy), host(x), host(w)
	width := len(weight)
	if len(dst) != rows*width || len(grad) != len(dst) || len(src) != len(dst) {
		panic(badSize)
	}
	c.overRows(rows, func(_, from, to int) {
		for i := from * width; i < to*width; i += width {
			x := src[i : i+width]
			r := 1 / math.Sqrt(c.engine.Dot(x, x)/float64(width)+eps)
			normBack(dst[i:i+width], grad[i:i+width], x, weight, r, add)
		}
	})
}

// normBack is RMSNormBack of a row.
func normBack(dx, dy, x, w []float32, r float64, add bool) {
	dx, dy, w = dx[:len(x)], dy[:len(x)], w[:len(x)]
	var sums [4]float64 // independent chains of additions
	for i, v := range x {
		sums[i%4] += float64(float32(w[i]*dy[i])) * float64(v)
	}
	sum := sums[0] + sums[1] + sums[2] + sums[3]
	a, b := float32(r), float32(r*r*r/float64(len(x))*sum)
	for i, v := range x {
		d := float32(float32(a*w[i])*dy[i]) - float32(b*v)
		if add {
			d += dx[i]
		}
		dx[i] = d
	}
}

// LinearBack implements [model.BackwardOps].
func (c *Ops) LinearBack(dx, dy model.Array, rows int, w model.Weight, add bool) {
	dst, grad := host(dx), host(dy)
	if n, k := w.Shape(); len(dst) != rows*k || len(grad) != rows*n {
		panic(badSize)
	}
	c.engine.MatMulBack(dst, grad, rows, operand(w), add)
}

const (
	// keyBlock is the number of keys in a tile of scores: two tiles of queryRows ×
	// keyBlock numbers and their packed forms fit in a level 2 cache of 1 MiB.
	keyBlock = 512

	// attentionTasks is how many sums of the gradients of keys and values there are
	// at least, if the shape gives them: as many tasks can run at a time.
	attentionTasks = 32
)

// attentionBackScratch holds what the gradient of attention needs beside its
// arguments.
type attentionBackScratch struct {
	blocks  []keyValues     // of each key-value head and block of keys
	sums    []float32       // see attentionBack
	workers []attentionTile // of each worker
}

// keyValues are packed keys and values of a block.
type keyValues struct{ keys, keyCols, values gemmcpu.PackedB }

// attentionTile is a worker's scratch.
type attentionTile struct {
	p, dp  [queryRows * keyBlock]float32
	packed gemmcpu.PackedB
	q, do  []float32 // [dim, queryRows]
}

// attentionBack is a gradient of attention at work. Queries are taken in blocks
// and keys in blocks of tiles, so that no more scores exist than those of a
// tile for each worker.
//
// Gradients of keys and values are summed over the queries of a task, [dim, ld] in
// the order of tokens, and those of the tasks of a head, and of the heads that share a
// key-value head, added up thereafter.
type attentionBack struct {
	*Ops
	a                        model.AttentionShape
	dq, do, o, lse, q        []float32
	blocks, keyBlocks, parts int // of queries, of keys, and of a head's blocks of queries
	ld                       int // of the sums
}

// AttentionBack implements [model.BackwardOps]. With p the probabilities,
//
//	dv[j] = Σ_i p[i,j]·do[i]
//	ds[i,j] = p[i,j]·(do[i]·v[j] − do[i]·o[i])
//	dq[i] = scale·Σ_j ds[i,j]·k[j]    dk[j] = scale·Σ_i ds[i,j]·q[i]
func (c *Ops) AttentionBack(dq, dk, dv, do, o, lse, q, k, v model.Array, a model.AttentionShape) {
	b := attentionBack{Ops: c, a: a, dq: host(dq), do: host(do), o: host(o), lse: host(lse), q: host(q)}
	dkeys, dvalues, keys, values := host(dk), host(dv), host(k), host(v)
	wide, narrow := a.T*a.Heads*a.Dim, a.T*a.KVHeads*a.Dim
	for _, x := range [][]float32{b.dq, b.do, b.o, b.q} {
		if len(x) != wide {
			panic(badSize)
		}
	}
	for _, x := range [][]float32{dkeys, dvalues, keys, values} {
		if len(x) != narrow {
			panic(badSize)
		}
	}
	if len(b.lse) != a.Heads*a.T {
		panic(badSize)
	}
	if wide == 0 {
		return
	}
	b.blocks = ceilDiv(a.T, queryRows)
	b.keyBlocks = ceilDiv(a.T, keyBlock)
	b.parts = min(ceilDiv(attentionTasks, a.Heads), b.blocks)
	b.ld = ceilDiv(a.T, 16)*16 + 16 // rows fall into different cache sets
	b.reserve()
	b.pack(keys, values)
	c.engine.Parallel(a.Heads*b.parts, func(worker, i int) {
		b.task(&c.back.workers[worker], i/b.parts, i%b.parts)
	})
	c.engine.Parallel(2*a.KVHeads*b.keyBlocks, func(_, i int) {
		block, head := i/2%b.keyBlocks, i/2/b.keyBlocks
		if i%2 == 0 {
			b.gather(dkeys, head, block, 0)
		} else {
			b.gather(dvalues, head, block, 1)
		}
	})
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func (b *attentionBack) reserve() {
	s := &b.back
	if n := b.a.KVHeads * b.keyBlocks; len(s.blocks) < n {
		s.blocks = append(s.blocks, make([]keyValues, n-len(s.blocks))...)
	}
	if n := 2 * b.a.Heads * b.parts * b.a.Dim * b.ld; len(s.sums) < n {
		s.sums = make([]float32, n)
	}
	if s.workers == nil {
		s.workers = make([]attentionTile, b.engine.Threads())
	}
}

// pack packs keys and values for the products.
func (b *attentionBack) pack(keys, values []float32) {
	a, e := b.a, b.engine
	width := a.KVHeads * a.Dim
	e.Parallel(a.KVHeads*b.keyBlocks, func(_, i int) {
		head, from := i/b.keyBlocks, i%b.keyBlocks*keyBlock
		n, at := min(keyBlock, a.T-from), from*width+head*a.Dim
		s := &b.back.blocks[i]
		e.PackRows(&s.keys, keys[at:], n, a.Dim, width)
		e.PackCols(&s.keyCols, keys[at:], a.Dim, n, width)
		e.PackRows(&s.values, values[at:], n, a.Dim, width)
	})
}

// sums returns where the gradient of the keys (which 0) or values (1) of a task is summed.
func (b *attentionBack) sums(head, part, which int) []float32 {
	n := b.a.Dim * b.ld
	return b.back.sums[((head*b.parts+part)*2+which)*n:][:n]
}

// task takes every parts-th block of queries of a head, since later ones see
// more keys.
func (b *attentionBack) task(s *attentionTile, head, part int) {
	dk, dv := b.sums(head, part, 0), b.sums(head, part, 1)
	clear(dk)
	clear(dv)
	for block := part; block < b.blocks; block += b.parts {
		b.queries(s, dk, dv, head, block*queryRows)
	}
}

// queries takes the gradient of a block of queries: it writes dq and adds to the
// sums.
func (b *attentionBack) queries(s *attentionTile, dk, dv []float32, head, from int) {
	a, e := b.a, b.engine
	width := a.Heads * a.Dim
	rows, at := min(queryRows, a.T-from), from*width+head*a.Dim
	q, do, o, dq := b.q[at:], b.do[at:], b.o[at:], b.dq[at:]
	s.q = transposed(s.q, q, width, rows, a.Dim)
	s.do = transposed(s.do, do, width, rows, a.Dim)
	var means [queryRows]float32
	for r := range rows {
		means[r] = float32(e.Dot(do[r*width:r*width+a.Dim], o[r*width:r*width+a.Dim]))
	}
	first, _ := visible(a, from)
	first /= keyBlock
	for j := first; j*keyBlock < from+rows; j++ {
		lo := j * keyBlock
		n := min(keyBlock, from+rows-lo) // keys that the last query sees
		kv := &b.back.blocks[head/(a.Heads/a.KVHeads)*b.keyBlocks+j]
		p, dp := s.p[:rows*n], s.dp[:rows*n]
		e.Block(p, n, q, width, rows, &kv.keys, n, a.Dim, a.Scale, false)
		e.Block(dp, n, do, width, rows, &kv.values, n, a.Dim, 1, false)
		for r := range rows {
			x, to := visible(a, from+r)
			x, to = min(max(x-lo, 0), n), min(max(to-lo, 0), n)
			row := p[r*n : (r+1)*n]
			clear(row[:x])
			clear(row[to:])
			if x < to {
				b.row(row[x:to], dp[r*n:][x:to], b.lse[head*a.T+from+r], means[r])
			}
			clear(dp[r*n:][:x])
			clear(dp[r*n:][to:n])
		}
		e.PackCols(&s.packed, p, n, rows, n)
		e.Block(dv[lo:], b.ld, s.do, rows, a.Dim, &s.packed, n, rows, 1, true)
		e.PackCols(&s.packed, dp, n, rows, n)
		e.Block(dk[lo:], b.ld, s.q, rows, a.Dim, &s.packed, n, rows, a.Scale, true)
		e.Block(dq, width, dp, n, rows, &kv.keyCols, a.Dim, n, a.Scale, j > first)
	}
}

// row makes probabilities p of scores, and of their gradient dp that of the
// scores: p·(dp − mean), through the cap where there is one.
func (b *attentionBack) row(p, dp []float32, lse, mean float32) {
	dp = dp[:len(p)]
	if b.a.Cap == 0 {
		b.engine.ExpSum(p, p, lse)
		for i, v := range p {
			dp[i] = v * (dp[i] - mean)
		}
		return
	}
	for i, score := range p {
		t := math.Tanh(float64(score / b.a.Cap))
		v := float32(math.Exp(float64(b.a.Cap)*t - float64(lse)))
		p[i], dp[i] = v, v*(dp[i]-mean)*float32(1-t*t)
	}
}

// transposed writes rows of n numbers, ld apart, to dst[n, rows], which grows where
// it is short.
func transposed(dst, src []float32, ld, rows, n int) []float32 {
	if cap(dst) < n*rows {
		dst = make([]float32, n*queryRows)
	}
	dst = dst[:n*rows]
	for r := range rows {
		for i, v := range src[r*ld : r*ld+n] {
			dst[i*rows+r] = v
		}
	}
	return dst
}

// gather adds up the sums of a block of keys, or of values, of a key-value head
// and writes them to dst[T, kv_heads·dim].
func (b *attentionBack) gather(dst []float32, kv, block, which int) {
	a := b.a
	from, to := block*keyBlock, min((block+1)*keyBlock, a.T)
	group := a.Heads / a.KVHeads
	total := b.sums(kv*group, 0, which)
	for i := 1; i < group*b.parts; i++ {
		part := b.sums(kv*group+i/b.parts, i%b.parts, which)
		for d := range a.Dim {
			row := total[d*b.ld+from : d*b.ld+to]
			b.engine.Add(row, row, part[d*b.ld+from:d*b.ld+to])
		}
	}
	for t := from; t < to; t++ {
		row := dst[(t*a.KVHeads+kv)*a.Dim:][:a.Dim]
		for d := range row {
			row[d] = total[d*b.ld+t]
		}
	}
}
