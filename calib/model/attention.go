package model

import (
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/gemm/cpu"
)

// queryRows is the number of queries of a head that one task handles: a
// multiple of the widest kernel's rows whose scores against 2048 keys stay in
// a level 2 cache of 1 MiB.
const queryRows = 56

// attentionScratch holds what attention needs beside queries, keys and values.
type attentionScratch struct {
	keys, values []cpu.PackedB // of each key-value head
	scores       [][]float32   // [queryRows, T] for each worker
}

func newAttentionScratch(c *hf.Config, t, threads int) attentionScratch {
	s := attentionScratch{
		keys:   make([]cpu.PackedB, c.KVHeads),
		values: make([]cpu.PackedB, c.KVHeads),
		scores: make([][]float32, threads),
	}
	for i := range s.scores {
		s.scores[i] = make([]float32, queryRows*t)
	}
	return s
}

// attention replaces the queries q[t, heads·dim], rotated and scaled, by the
// attention over keys and values [t, kv_heads·dim]: token i sees the tokens
// 0 to i, or the last SlidingWindow of them.
func (m *Model) attention(q, k, v []float32, t int) {
	c, s := m.config, &m.s.attention
	dim, qWidth, kvWidth := c.HeadDim, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	m.engine.Parallel(2*c.KVHeads, func(_, i int) {
		head := i / 2
		if i%2 == 0 {
			m.engine.PackRows(&s.keys[head], k[head*dim:], t, dim, kvWidth)
		} else {
			m.engine.PackCols(&s.values[head], v[head*dim:], dim, t, kvWidth)
		}
	})
	blocks := (t + queryRows - 1) / queryRows
	m.engine.Parallel(blocks*c.Heads, func(worker, i int) {
		// The last queries see the most keys: their blocks go first, so that
		// the workers finish together.
		head, block := i%c.Heads, blocks-1-i/c.Heads
		from, to := block*queryRows, min((block+1)*queryRows, t)
		kv := head / (c.Heads / c.KVHeads)
		m.queryBlock(q[from*qWidth+head*dim:], from, to, &s.keys[kv], &s.values[kv], s.scores[worker])
	})
}

// queryBlock computes the attention of the queries from ≤ i < to of one head,
// which start at q, in place.
func (m *Model) queryBlock(q []float32, from, to int, keys, values *cpu.PackedB, scores []float32) {
	c := m.config
	dim, qWidth := c.HeadDim, c.Heads*c.HeadDim
	rows, seen := to-from, to // the last query sees the keys before to
	m.engine.Block(scores, seen, q, qWidth, rows, keys, seen, dim, 1, false)
	sums := [queryRows]float64{}
	for r := range rows {
		row := scores[r*seen : (r+1)*seen]
		hi := from + r + 1
		lo := 0
		if c.SlidingWindow > 0 {
			lo = max(hi-c.SlidingWindow, 0)
		}
		sums[r] = m.engine.ExpSum(row[lo:hi], row[lo:hi], m.engine.Max(row[lo:hi]))
		clear(row[:lo])
		clear(row[hi:])
	}
	m.engine.Block(q, qWidth, scores, seen, rows, values, dim, seen, 1, false)
	for r := range rows {
		out := q[r*qWidth : r*qWidth+dim]
		m.engine.Scale(out, out, float32(1/sums[r]))
	}
}
