package cuda

import (
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.RecurrentOps = (*Ops)(nil)

// What the kernels of mixers.cu are made for.
const (
	mostConvolved = 8   // tokens
	mostDelta     = 256 // elements of a head
	deltaThreads  = 256 // of a block
)

// CopyHeads copies heads of rows.
func (o *Ops) CopyHeads(dst, src model.Array, s model.HeadsShape) {
	to, from := s.Spans()
	check(dst.Len() >= to && src.Len() >= from, "heads %+v of %d elements to %d", s, src.Len(), dst.Len())
	n := s.Rows * s.Heads * s.Width
	if n == 0 {
		return
	}
	grid, block := overAll(n)
	o.do(func() {
		o.launch(o.of("copy_heads", src), grid, block, dst, src, s.Heads, s.Width, s.ToRow, s.ToHead, s.FromRow, s.FromHead, n)
	})
}

// rowsOf returns how many rows a step has, and where they are told: nowhere where nothing is kept.
func rowsOf(at model.Step, kept model.Array) (n int, rows model.Array) {
	for _, r := range at.Runs {
		n += r.Rows
	}
	if kept == nil {
		check(len(at.Runs) == 1, "%d texts of which nothing is kept", len(at.Runs))
		return n, nil
	}
	check(at.Rows.Len() == 2*n, "%d places of %d rows", at.Rows.Len(), n)
	return n, at.Rows
}

// starts is how many blocks look for the beginning of a run in so many rows.
func starts(n int, rows model.Array) uint32 {
	if rows == nil {
		return 1
	}
	return uint32(n)
}

// Convolve passes channels through a convolution each.
func (o *Ops) Convolve(y, x, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	n, rows := rowsOf(at, kept)
	size := n * s.Channels
	check(y.Len() == size && x.Len() == size && w.Len() == s.Channels*s.Width && s.Width <= mostConvolved, "convolution %+v of %d elements to %d", s, x.Len(), y.Len())
	if n == 0 {
		return
	}
	silu := 0
	if s.SiLU {
		silu = 1
	}
	grid, block := overAll(s.Channels)
	grid.Y = starts(n, rows)
	o.do(func() { o.launch("convolve", grid, block, y, x, w, bias, kept, rows, s.Channels, s.Width, silu, n) })
}

// DeltaRule takes states through tokens.
func (o *Ops) DeltaRule(out, x, a, b, aLog, bias, state model.Array, at model.Step, s model.DeltaShape) {
	n, rows := rowsOf(at, state)
	check(x.Len() == n*(2*s.KHeads*s.KDim+s.VHeads*s.VDim) && out.Len() == n*s.VHeads*s.VDim && max(s.KDim, s.VDim) <= mostDelta,
		"delta rule %+v of %d rows: %d elements to %d", s, n, x.Len(), out.Len())
	check(a.Len() == n*s.VHeads && b.Len() == n*s.VHeads, "%d and %d gates of %d rows of %d heads", a.Len(), b.Len(), n, s.VHeads)
	if n == 0 {
		return
	}
	key := 64
	for key < s.KDim {
		key *= 2
	}
	threads := ceil(4*s.VDim, 32) * 32
	grid, block := driver.Dim{X: starts(n, rows), Y: uint32(s.VHeads), Z: uint32(ceil(threads, deltaThreads))}, driver.Dim{X: uint32(min(threads, deltaThreads))}
	o.do(func() {
		o.launch(fmt.Sprintf("delta_rule_%d", key), grid, block, out, x, a, b, aLog, bias, state, rows, s.KHeads, s.VHeads, s.KDim, s.VDim, n)
	})
}
