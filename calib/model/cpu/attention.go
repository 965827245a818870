package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// queryRows is the number of queries of a head that one task handles: a
// multiple of the widest kernel's rows whose scores against 2048 keys stay in
// a level 2 cache of 1 MiB.
const queryRows = 56

// attentionScratch holds what attention needs beside queries, keys and values.
type attentionScratch struct {
	keys, values []gemmcpu.PackedB // of each key-value head
	scores       [][]float32       // [queryRows, T] for each worker
}

// reserve makes room for an attention of the given sizes.
func (s *attentionScratch) reserve(a model.AttentionShape, threads int) {
	if len(s.keys) < a.KVHeads {
		s.keys = append(s.keys, make([]gemmcpu.PackedB, a.KVHeads-len(s.keys))...)
		s.values = append(s.values, make([]gemmcpu.PackedB, a.KVHeads-len(s.values))...)
	}
	s.reserveScores(a.T, threads)
}

// reserveScores makes room for the scores of a block of queries against so many keys.
func (s *attentionScratch) reserveScores(keys, threads int) {
	if len(s.scores) == 0 || len(s.scores[0]) < queryRows*keys {
		s.scores = make([][]float32, threads)
		for i := range s.scores {
			s.scores[i] = make([]float32, queryRows*keys)
		}
	}
}

// Attention implements [model.Ops].
func (c *Ops) Attention(o, lse, q, k, v model.Array, a model.AttentionShape) {
	out, sums, queries, keys, values := host(o), host(lse), host(q), host(k), host(v)
	qWidth, kvWidth := a.Heads*a.Dim, a.KVHeads*a.Dim
	if len(out) != a.T*qWidth || len(queries) != len(out) || len(keys) != a.T*kvWidth || len(values) != len(keys) ||
		lse != nil && len(sums) != a.Heads*a.T {
		panic(badSize)
	}
	s := &c.attention
	s.reserve(a, c.engine.Threads())
	c.engine.Parallel(2*a.KVHeads, func(_, i int) {
		head := i / 2
		if i%2 == 0 {
			c.engine.PackRows(&s.keys[head], keys[head*a.Dim:], a.T, a.Dim, kvWidth)
		} else {
			c.engine.PackCols(&s.values[head], values[head*a.Dim:], a.Dim, a.T, kvWidth)
		}
	})
	blocks := (a.T + queryRows - 1) / queryRows
	c.engine.Parallel(blocks*a.Heads, func(worker, i int) {
		// The last queries see the most keys: their blocks go first, so that
		// the workers finish together.
		head, block := i%a.Heads, blocks-1-i/a.Heads
		from, to := block*queryRows, min((block+1)*queryRows, a.T)
		kv := head / (a.Heads / a.KVHeads)
		b := queryBlock{
			rows: to - from, ld: qWidth, first: from, advance: 1,
			keys: s.keys[kv], values: s.values[kv], scores: s.scores[worker],
		}
		at := from*qWidth + head*a.Dim
		if a.Sinks != nil {
			b.sinks = host(a.Sinks)[head : head+1]
		}
		if lse != nil {
			b.lse = sums[head*a.T+from : head*a.T+to]
		}
		c.queryBlock(out[at:], queries[at:], b, a)
	})
}

// queryBlock are queries that see keys of one head. Row r stands at position first + advance·r.
type queryBlock struct {
	rows, ld       int // elements from one row to the next, of queries and results
	first, advance int
	base           int             // the position of the first key, before all that are seen
	keys, values   gemmcpu.PackedB // from there on
	scores         []float32
	lse            []float32 // nil: not wanted
	sinks          []float32 // of each row, or one of all; nil: none
}

// queryBlock computes the attention of the queries that start at q. o may be q.
func (c *Ops) queryBlock(o, q []float32, b queryBlock, a model.AttentionShape) {
	seen := b.first + b.advance*(b.rows-1) + 1 - b.base // by the last query
	c.engine.Block(b.scores, seen, q, b.ld, b.rows, &b.keys, seen, a.Dim, a.Scale, false)
	sums := [queryRows]float64{}
	for r := range b.rows {
		row := b.scores[r*seen : (r+1)*seen]
		lo, hi := visible(a, b.first+b.advance*r)
		lo, hi = lo-b.base, hi-b.base
		if a.Cap > 0 {
			softCap(row[lo:hi], float64(a.Cap))
		}
		top := c.engine.Max(row[lo:hi])
		var sink float32
		if b.sinks != nil {
			sink = b.sinks[r%len(b.sinks)]
			top = max(top, sink)
		}
		sums[r] = c.engine.ExpSum(row[lo:hi], row[lo:hi], top)
		if b.sinks != nil {
			sums[r] += math.Exp(float64(sink) - float64(top))
		}
		if b.lse != nil {
			b.lse[r] = float32(float64(top) + math.Log(sums[r]))
		}
		clear(row[:lo])
		clear(row[hi:])
	}
	c.engine.Block(o, b.ld, b.scores, seen, b.rows, &b.values, a.Dim, seen, 1, false)
	for r := range b.rows {
		out := o[r*b.ld : r*b.ld+a.Dim]
		c.engine.Scale(out, out, float32(1/sums[r]))
	}
}

// visible returns the tokens [lo, hi) that token i sees.
func visible(a model.AttentionShape, i int) (lo, hi int) {
	if a.Window > 0 {
		lo = max(i+1-a.Window, 0)
	}
	return lo, i + 1
}
