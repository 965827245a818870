package cpu

import (
	"cmp"
	"math"
	"slices"

	"github.com/lutq/lutq/calib/model"
)

var _ model.IndexedOps = (*Ops)(nil)

// LayerNorm implements [model.IndexedOps], in float64.
func (c *Ops) LayerNorm(y, x, w, bias model.Array, rows int, eps float64) {
	out, in, weight, offset := host(y), host(x), host(w), host(bias)
	width := len(weight)
	if len(out) != rows*width || len(in) != len(out) || len(offset) != width {
		panic(badSize)
	}
	c.overRows(rows, func(_, from, to int) {
		for r := from; r < to; r++ {
			row, to := in[r*width:(r+1)*width], out[r*width:(r+1)*width]
			var sum, squares float64
			for _, v := range row {
				sum += float64(v)
			}
			mean := sum / float64(width)
			for _, v := range row {
				d := float64(v) - mean
				squares += d * d
			}
			scale := 1 / math.Sqrt(squares/float64(width)+eps)
			for i, v := range row {
				to[i] = float32((float64(v)-mean)*scale*float64(weight[i]) + float64(offset[i]))
			}
		}
	})
}

// Place implements [model.IndexedOps].
func (c *Ops) Place(kept, x model.Array, at model.Step, positions, width int) {
	to, from := host(kept), host(x)
	for _, run := range at.Runs {
		n := run.Rows * width
		copy(to[(run.Slot*positions+run.From)*width:][:n], from[:n])
		from = from[n:]
	}
}

// place is where a row of a step stands.
type place struct{ slot, position int }

// placesOf lists those of all rows.
func placesOf(at model.Step) (all []place) {
	for _, run := range at.Runs {
		for i := range run.Rows {
			all = append(all, place{run.Slot, run.From + i})
		}
	}
	return all
}

// keysPerTask is how many keys a task scores.
const keysPerTask = 128

// Choose implements [model.IndexedOps]. Rows follow each other, the keys of one are shared out.
func (c *Ops) Choose(chosen, q, weights, keys model.Array, at model.Step, s model.IndexShape) {
	out, queries, by, kept := host(chosen), host(q), host(weights), host(keys)
	scores, order := make([]float64, s.Positions), make([]int, s.Positions)
	for r, p := range placesOf(at) {
		n, row := p.position+1, out[r*s.Top:(r+1)*s.Top]
		if n > s.Top {
			of := kept[p.slot*s.Positions*s.Dim:][:n*s.Dim]
			c.engine.Parallel((n+keysPerTask-1)/keysPerTask, func(_, task int) {
				for i := task * keysPerTask; i < min((task+1)*keysPerTask, n); i++ {
					var sum float64
					for h := range s.Heads {
						if d := c.engine.Dot(queries[(r*s.Heads+h)*s.Dim:][:s.Dim], of[i*s.Dim:][:s.Dim]); d > 0 {
							sum += float64(by[r*s.Heads+h]) * d
						}
					}
					scores[i], order[i] = sum, i
				}
			})
			first := order[:n]
			slices.SortFunc(first, func(a, b int) int { return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b)) })
			slices.Sort(first[:s.Top])
			for i := range row {
				row[i] = float32(first[i])
			}
			continue
		}
		for i := range row {
			row[i] = -1
			if i < n {
				row[i] = float32(i)
			}
		}
	}
}

// RecallChosen implements [model.IndexedOps]. A task is a head of a row.
func (c *Ops) RecallChosen(o, q, keys, values, chosen model.Array, at model.Step, positions int, s model.AttentionShape) {
	out, queries, ks, vs, all := host(o), host(q), host(keys), host(values), host(chosen)
	rows := placesOf(at)
	if len(queries) != len(rows)*s.Heads*s.Dim || len(out) != len(queries) || len(all)%max(len(rows), 1) != 0 {
		panic(badSize)
	}
	top := len(all) / max(len(rows), 1)
	c.engine.Parallel(len(rows)*s.Heads, func(_, task int) {
		r, h := task/s.Heads, task%s.Heads
		seen := all[r*top : (r+1)*top]
		if n := slices.Index(seen, -1); n >= 0 {
			seen = seen[:n]
		}
		head := func(of []float32, position float32) []float32 {
			return of[((rows[r].slot*positions+int(position))*s.KVHeads+h/(s.Heads/s.KVHeads))*s.Dim:][:s.Dim]
		}
		query, scores, largest := queries[task*s.Dim:(task+1)*s.Dim], make([]float64, len(seen)), math.Inf(-1)
		for i, p := range seen {
			scores[i] = float64(s.Scale) * c.engine.Dot(query, head(ks, p))
			largest = max(largest, scores[i])
		}
		var sum float64
		mixed := make([]float64, s.Dim)
		for i, p := range seen {
			e := math.Exp(scores[i] - largest)
			sum += e
			for j, v := range head(vs, p) {
				mixed[j] += e * float64(v)
			}
		}
		for j, v := range mixed {
			out[task*s.Dim+j] = float32(v / sum)
		}
	})
}
