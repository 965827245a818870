package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.LatentOps = (*Ops)(nil)

// What the kernel by_heads is made for: the warps of a block, of a row of a matrix each, and the rows that one multiplies at a time.
const (
	byHeadsWarps = 8
	byHeadsRows  = 4
)

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
