package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// What the kernel recall is made for.
const (
	recallThreads = 512
	recallDim     = 512 // the most elements of a head
	recallNarrow  = 256 // those of a head for which there are kernels that take less room
)

// recallRows is from how many rows of a text on their scores are products of matrices, whose keys are
// read once.
const recallRows = 16

// Keep writes keys and values to their places.
func (o *Ops) Keep(keys, values, k, v model.Array, at model.Step, c model.CacheShape) {
	rows := checkStep(at, c, keys, values)
	n := rows * c.KVHeads * c.Dim
	check(k.Len() == n && v.Len() == n, "keeping %d and %d elements of %d rows in %+v", k.Len(), v.Len(), rows, c)
	if n == 0 {
		return
	}
	grid, block := ofHeads(rows*c.KVHeads, c.Dim)
	o.do(func() {
		o.launch("keep", grid, block, keys, values, k, v, at.Rows, c.KVHeads, c.Dim, int64(c.Head()), rows*c.KVHeads)
	})
}

// Recall is attention over what is kept: by a kernel for single rows, one block for each query head, and by products
// for many rows of a text.
func (o *Ops) Recall(out, q, keys, values model.Array, at model.Step, c model.CacheShape, s model.AttentionShape) {
	rows, wide := checkStep(at, c, keys, values), s.Heads*s.Dim
	check(s.KVHeads == c.KVHeads && s.Dim == c.Dim && s.Heads%s.KVHeads == 0, "attention %+v over %+v", s, c)
	check(q.Len() == rows*wide && out.Len() == rows*wide, "%d queries and %d results of %d rows", q.Len(), out.Len(), rows)
	attend := func(out, q model.Array, run model.Run) {
		s.T = run.Rows
		o.attend(out, nil, q, s, past{tokens: run.From, keys: keptBy(keys, run.Slot, c), values: keptBy(values, run.Slot, c)})
	}
	once := ptr(keys) == ptr(values) && o.Recalls(c)
	single := func(run model.Run) bool { return run.Rows < recallRows && (once || s.Dim <= recallDim) }
	o.do(func() {
		if len(at.Runs) == 1 && !single(at.Runs[0]) {
			attend(out, q, at.Runs[0])
			return
		}
		o.rowByRow(out, func(out model.Array) {
			few := 0 // rows before row, which go together
			row := 0
			flush := func() {
				if few > 0 {
					from := row - few
					out, q, rows := out.Slice(from*wide, row*wide), q.Slice(from*wide, row*wide), at.Rows.Slice(2*from, 2*row)
					if once {
						o.latents(out, q, keys, rows, c, s)
					} else {
						o.recall(out, q, keys, values, rows, c, s)
					}
				}
				few = 0
			}
			for _, run := range at.Runs {
				if single(run) {
					few += run.Rows
					row += run.Rows
					continue
				}
				flush()
				attend(out.Slice(row*wide, (row+run.Rows)*wide), q.Slice(row*wide, (row+run.Rows)*wide), run)
				row += run.Rows
			}
			flush()
		})
	})
}

// recallParts returns in how many parts a query looks at a cache, several blocks at once where it may be long. How long a
// text is does not matter, so that it has the same bits beside any others.
func recallParts(c model.CacheShape) int { return min(max(c.Positions/512, 1), 16) }

// recall queues the kernel. It is called inside do.
func (o *Ops) recall(out, q, keys, values, rows model.Array, c model.CacheShape, s model.AttentionShape) {
	n, parts := rows.Len()/2, recallParts(c)
	grid := driver.Dim{X: uint32(n), Y: uint32(s.Heads), Z: uint32(parts)}
	var at driver.Ptr
	if parts > 1 {
		at = o.scratch(4 * n * s.Heads * parts * (s.Dim + 2))
		defer o.release(at)
	}
	name := "recall_"
	if s.Dim > recallNarrow {
		name = "recall_wide_"
	}
	o.launchEarly(name+capName(s.Cap > 0), grid, driver.Dim{X: recallThreads}, out, at, q, keys, values, rows,
		s.Heads, s.Heads/s.KVHeads, s.Dim, int64(c.Head()), s.Window, s.Sinks, s.Scale, s.Cap)
	if parts > 1 {
		o.launchEarly("recall_sum", driver.Dim{X: uint32(n), Y: uint32(s.Heads)}, driver.Dim{X: 128}, out, at, s.Heads, s.Dim, parts, s.Sinks)
	}
}

// keptBy returns what is kept of a slot, from a position on.
func keptBy(cache model.Array, slot int, c model.CacheShape) func(from int) heads {
	a := cache.(*array)
	return func(from int) heads {
		at := slot*c.KVHeads*c.Head() + from*c.Dim
		return heads{a.ptr + driver.Ptr(at*a.dtype.Size()), a.dtype, c.Dim, c.Head()}
	}
}

// checkStep returns the number of rows of a step.
func checkStep(at model.Step, c model.CacheShape, keys, values model.Array) int {
	n := 0
	for _, r := range at.Runs {
		check(0 <= r.Slot && r.Slot < c.Slots && 0 <= r.From && r.From+r.Rows <= c.Positions, "rows %+v have no place in %+v", r, c)
		n += r.Rows
	}
	check(at.Rows.Len() == 2*n && keys.Len() == c.Elements() && values.Len() == c.Elements(),
		"a step of %d rows over %+v: %d places, %d keys and %d values", n, c, at.Rows.Len(), keys.Len(), values.Len())
	return n
}
