package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.Ranker = (*Ops)(nil)

// What the kernels rank_parts and rank_rows are made for.
const (
	rankPart = 2048
	rankMost = 4096
	ranked   = 256
)

// Rank finds the largest numbers of rows. Of a part of a row no more are looked at than it is sure to take for all parts to
// fit into a block's shared memory.
func (o *Ops) Rank(x model.Array, rows, cols int, temperature float64) []model.Ranked {
	parts := ceil(cols, rankPart)
	check(floats(x).n == rows*cols && 0 < parts && parts <= rankMost, "%d elements for %d rows of %d", x.Len(), rows, cols)
	keep := min(ranked, rankMost/parts)
	const each = 2*ranked + 3
	got := make([]float32, rows*each)
	err := o.now(func() {
		tops, sums, out := o.scratch(8*rows*parts*keep), o.scratch(8*rows*parts), o.scratch(4*len(got))
		grid := driver.Dim{X: uint32(rows), Y: uint32(parts)}
		o.launchEarly("rank_parts", grid, driver.Dim{X: 256}, tops, sums, x, cols, keep, temperature)
		grid.Y = 1
		o.launchEarly("rank_rows", grid, driver.Dim{X: 1024}, out, tops, sums, x, cols, parts, keep, temperature)
		if o.err == nil {
			o.fail(o.dev.Read(driver.Bytes(got), out))
		}
		o.release(tops)
		o.release(sums)
		o.release(out)
	})
	if err != nil {
		return nil // as Err tells
	}
	all := make([]model.Ranked, rows)
	for row := range all {
		part := got[row*each : (row+1)*each]
		r := &all[row]
		r.Values = part[:int(part[2*ranked])]
		for _, token := range part[ranked:][:len(r.Values)] {
			r.Tokens = append(r.Tokens, int(token))
		}
		r.Sum = float64(part[2*ranked+1]) + float64(part[2*ranked+2])
	}
	return all
}

// Weigh finds what parts of rows weigh.
func (o *Ops) Weigh(x model.Array, rows, cols int, temperature float64) []model.Weighed {
	parts := ceil(cols, rankPart)
	check(floats(x).n == rows*cols && parts > 0, "%d elements for %d rows of %d", x.Len(), rows, cols)
	got := make([]float64, rows*parts*2)
	err := o.now(func() {
		out := o.scratch(8 * len(got))
		o.launchEarly("weigh_parts", driver.Dim{X: uint32(rows), Y: uint32(parts)}, driver.Dim{X: 256}, out, x, cols, temperature)
		if o.err == nil {
			o.fail(o.dev.Read(driver.Bytes(got), out))
		}
		o.release(out)
	})
	if err != nil {
		return nil // as Err tells
	}
	all := make([]model.Weighed, rows)
	for row := range all {
		w := &all[row]
		w.Part = rankPart
		for p := range parts {
			at := got[(row*parts+p)*2:]
			w.Tops, w.Sums = append(w.Tops, float32(at[0])), append(w.Sums, at[1])
		}
	}
	return all
}
