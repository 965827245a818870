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
	if len(s.scores) == 0 || len(s.scores[0]) < queryRows*a.T {
		s.scores = make([][]float32, threads)
		for i := range s.scores {
			s.scores[i] = make([]float32, queryRows*a.T)
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
		b := queryBlock{from: from, to: to, keys: &s.keys[kv], values: &s.values[kv], scores: s.scores[worker]}
		at := from*qWidth + head*a.Dim
		if a.Sinks != nil {
			b.sink = &host(a.Sinks)[head]
		}
		if lse != nil {
			b.lse = sums[head*a.T+from : head*a.T+to]
		}
		c.queryBlock(out[at:], queries[at:], b, a)
	})
}

// queryBlock are the queries from ≤ i < to of one head.
type queryBlock struct {
	from, to     int
	keys, values *gemmcpu.PackedB
	scores       []float32
	lse          []float32 // nil: not wanted
	sink         *float32  // nil: none
}

// queryBlock computes the attention of the queries that start at q. o may be q.
func (c *Ops) queryBlock(o, q []float32, b queryBlock, a model.AttentionShape) {
	qWidth := a.Heads * a.Dim
	rows, seen := b.to-b.from, b.to // the last query sees the keys before to
	c.engine.Block(b.scores, seen, q, qWidth, rows, b.keys, seen, a.Dim, a.Scale, false)
	sums := [queryRows]float64{}
	for r := range rows {
		row := b.scores[r*seen : (r+1)*seen]
		lo, hi := visible(a, b.from+r)
		if a.Cap > 0 {
			softCap(row[lo:hi], float64(a.Cap))
		}
		top := c.engine.Max(row[lo:hi])
		if b.sink != nil {
			top = max(top, *b.sink)
		}
		sums[r] = c.engine.ExpSum(row[lo:hi], row[lo:hi], top)
		if b.sink != nil {
			sums[r] += math.Exp(float64(*b.sink) - float64(top))
		}
		if b.lse != nil {
			b.lse[r] = float32(float64(top) + math.Log(sums[r]))
		}
		clear(row[:lo])
		clear(row[hi:])
	}
	c.engine.Block(o, qWidth, b.scores, seen, rows, b.values, a.Dim, seen, 1, false)
	for r := range rows {
		out := o[r*qWidth : r*qWidth+a.Dim]
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
