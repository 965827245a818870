package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var (
	_ model.LatentOps    = (*Ops)(nil)
	_ model.LatentKeeper = (*Ops)(nil)
)

// What the kernel by_heads is made for: the warps of a block, of a row of a matrix each, and the rows that one multiplies at a time.
const (
	byHeadsWarps = 8
	byHeadsRows  = 4
)

// What the kernel latent is made for.
const (
	latentWarps  = 8   // of a block, a query head each
	latentWidth  = 576 // the most that is kept of a token
	latentChunk  = 64  // positions of a part of a text that has several, and
	latentBlocks = 256 // about how many blocks a row has then at most
)

// OneOrder reports that keys and values lie in the same order.
func (o *Ops) OneOrder() bool { return true }

// Recalls reports whether the kernel latent is for what is kept.
func (o *Ops) Recalls(c model.CacheShape) bool {
	return c.KVHeads == 1 && c.Dim <= latentWidth && c.Dim%2 == 0
}

// KeepLatents writes what attention to latents reads.
func (o *Ops) KeepLatents(queries, kept, q, down, norm, cos, sin model.Array, at model.Step, c model.CacheShape, s model.LatentShape) {
	rows := checkStep(at, c, kept, kept)
	check(c.KVHeads == 1 && c.Dim == s.Rank+2*s.Half && s.Dim >= 2*s.Half && down.Len() == rows*c.Dim && q.Len() == rows*s.Heads*s.Dim &&
		queries.Len() == rows*s.Heads*c.Dim && norm.Len() == s.Rank && cos.Len() >= rows*s.Half && sin.Len() >= rows*s.Half,
		"keeping latents %+v of %d rows in %+v", s, rows, c)
	if rows == 0 {
		return
	}
	o.do(func() {
		o.launchEarly("keep_latents", driver.Dim{X: uint32(rows)}, driver.Dim{X: 256}, queries, kept, q, down, norm, cos, sin, at.Rows, int64(c.Head()),
			s.Heads, s.Dim, s.Rank, s.Half, truth(s.Adjacent), float32(s.Eps))
	})
}

// latents queues the kernel. How long texts are does not matter to what is asked for, so that it can be recorded. It is called inside do.
func (o *Ops) latents(out, q, kept, rows model.Array, c model.CacheShape, s model.AttentionShape) {
	check(s.Window == 0 && s.Cap == 0 && s.Sinks == nil, "attention %+v to latents", s)
	n, groups := rows.Len()/2, ceil(s.Heads, latentWarps)
	most := min(ceil(c.Positions, latentChunk), max(latentBlocks/groups, 1))
	var parts driver.Ptr
	if most > 1 {
		parts = o.scratch(4 * n * s.Heads * most * (s.Dim + 2))
		defer o.release(parts)
	}
	grid := driver.Dim{X: uint32(n), Y: uint32(groups), Z: uint32(most)}
	o.launchEarly("latent", grid, driver.Dim{X: 32 * latentWarps}, out, parts, q, kept, rows, s.Heads, s.Dim, int64(c.Head()), s.Scale)
	if most > 1 {
		o.launchEarly("latent_sum", driver.Dim{X: uint32(n), Y: uint32(s.Heads)}, driver.Dim{X: 128}, out, parts, rows, s.Heads, s.Dim, most)
	}
}

// ByHeads multiplies each head by a matrix of its own.
func (o *Ops) ByHeads(y, x, w model.Array, s model.ByHeadsShape) {
	to, from := s.Spans()
	check(y.Len() >= to && x.Len() >= from && w.Len() == s.Heads*s.N*s.K, "products by heads %+v of %d elements by %d to %d", s, x.Len(), w.Len(), y.Len())
	if s.Rows*s.Heads*s.N == 0 {
		return
	}
	grid, block := driver.Dim{X: uint32(ceil(s.N, byHeadsWarps)), Y: uint32(s.Heads), Z: uint32(ceil(s.Rows, byHeadsRows))}, driver.Dim{X: 32 * byHeadsWarps}
	o.do(func() {
		o.launch("by_heads", grid, block, y, x, w, s.Rows, s.N, s.K, s.ToRow, s.ToHead, s.FromRow, s.FromHead)
	})
}

// SumHeads adds up the heads of rows.
func (o *Ops) SumHeads(y, x model.Array, s model.HeadsShape) {
	to, from := s.Spans()
	check(y.Len() >= to && x.Len() >= from, "sums of heads %+v of %d elements to %d", s, x.Len(), y.Len())
	n := s.Rows * s.Width
	if n == 0 {
		return
	}
	grid, block := overAll(n)
	o.do(func() { o.launch("sum_heads", grid, block, y, x, s.Heads, s.Width, s.ToRow, s.FromRow, s.FromHead, n) })
}
