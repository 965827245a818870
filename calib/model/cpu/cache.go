package cpu

import (
	"github.com/lutq/lutq/calib/model"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

var _ model.Arranger = (*Ops)(nil)

// windowUnit is what the first key of a window is rounded down to: sums over keys are cut there, so
// that they are the same wherever a window begins.
const windowUnit = 256

// keptKeys are the keys of a head of a slot: a column for each position.
func keptKeys(data []float32, c model.CacheShape) gemmcpu.PackedB {
	return gemmcpu.PackedOver(c.Positions, c.Dim, data)
}

// keptValues are its values: a row for each position.
func keptValues(data []float32, c model.CacheShape) gemmcpu.PackedB {
	return gemmcpu.PackedOver(c.Dim, c.Positions, data)
}

// checkStep panics where rows of a step have no place in a cache.
func checkStep(rows, width, elements int, at model.Step, c model.CacheShape) {
	n := 0
	for _, r := range at.Runs {
		if r.Slot < 0 || r.Slot >= c.Slots || r.From < 0 || r.From+r.Rows > c.Positions {
			panic("cpu: a step that has no place in the cache")
		}
		n += r.Rows
	}
	if rows != n*width || elements != c.Elements() {
		panic(badSize)
	}
}

// Keep implements [model.Ops]. Both lie in panels as Block takes them.
func (c *Ops) Keep(keys, values, k, v model.Array, at model.Step, s model.CacheShape) {
	ks, vs, kn, vn := host(keys), host(values), host(k), host(v)
	width := s.KVHeads * s.Dim
	checkStep(len(kn), width, len(ks), at, s)
	checkStep(len(vn), width, len(vs), at, s)
	for _, run := range at.Runs {
		keep := func(_, h int) {
			from := (run.Slot*s.KVHeads + h) * s.Head()
			key, value := keptKeys(ks[from:], s), keptValues(vs[from:], s)
			for r := range run.Rows {
				row := r*width + h*s.Dim
				key.SetCol(run.From+r, kn[row:])
				value.SetRow(run.From+r, vn[row:])
			}
		}
		if run.Rows == 1 { // less than it takes to wake a worker
			for h := range s.KVHeads {
				keep(0, h)
			}
		} else {
			c.engine.Parallel(s.KVHeads, keep)
		}
		kn, vn = kn[run.Rows*width:], vn[run.Rows*width:]
	}
}

// recall is what a task of Recall takes: rows from a row of a run on, of one query head; or, of a run
// of one row, all query heads of one of keys.
type recall struct {
	run        model.Run
	row        int // of all rows
	from, rows int // of the run
	head       int
}

// Recall implements [model.Ops].
func (c *Ops) Recall(o, q, keys, values model.Array, at model.Step, s model.CacheShape, a model.AttentionShape) {
	out, queries, ks, vs := host(o), host(q), host(keys), host(values)
	width := a.Heads * a.Dim
	checkStep(len(queries), width, len(ks), at, s)
	checkStep(len(out), width, len(vs), at, s)
	group := a.Heads / a.KVHeads
	tasks := c.recalls[:0]
	row := 0
	for _, run := range at.Runs {
		if run.Rows == 1 {
			for head := 0; head < a.Heads; {
				// Of one group, and no more than a block has rows.
				n := min(group-head%group, queryRows)
				tasks = append(tasks, recall{run: run, row: row, rows: n, head: head})
				head += n
			}
		} else {
			for from := 0; from < run.Rows; from += queryRows {
				for head := range a.Heads {
					tasks = append(tasks, recall{run: run, row: row, from: from, rows: min(queryRows, run.Rows-from), head: head})
				}
			}
		}
		row += run.Rows
	}
	c.recalls = tasks
	c.attention.reserveScores(s.Positions, c.engine.Threads())
	c.engine.Parallel(len(tasks), func(worker, i int) {
		t := tasks[i]
		b := queryBlock{rows: t.rows, ld: a.Dim, first: t.run.From, scores: c.attention.scores[worker]}
		sinks := t.rows // heads
		if t.run.Rows > 1 {
			b.ld, b.first, b.advance, sinks = width, t.run.From+t.from, 1, 1
		}
		if a.Sinks != nil {
			b.sinks = host(a.Sinks)[t.head : t.head+sinks]
		}
		lo, _ := visible(a, b.first)
		b.base = lo / windowUnit * windowUnit
		from := (t.run.Slot*s.KVHeads + t.head/group) * s.Head()
		key, value := keptKeys(ks[from:], s), keptValues(vs[from:], s)
		b.keys, b.values = key.FromCol(b.base), value.FromRow(b.base)
		first := (t.row+t.from)*width + t.head*a.Dim
		c.queryBlock(out[first:], queries[first:], b, a)
	})
}

// Arrange implements [model.Arranger]: see the engine's.
func (c *Ops) Arrange(w model.Weight) {
	if s, ok := w.(stored); ok {
		c.engine.Arrange(s.w)
	}
}
