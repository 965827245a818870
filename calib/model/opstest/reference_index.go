package opstest

import (
	"math"

	"github.com/lutq/lutq/calib/model"
)

// LayerNorm implements [model.IndexedOps].
func (Reference) LayerNorm(y, x, w, bias model.Array, rows int, eps float64) {
	out, in, weight, offset := values(y), values(x), values(w), values(bias)
	n := len(weight)
	for r := range rows {
		var mean, variance float64
		for _, v := range in[r*n : (r+1)*n] {
			mean += v / float64(n)
		}
		for _, v := range in[r*n : (r+1)*n] {
			variance += (v - mean) * (v - mean) / float64(n)
		}
		for i := range n {
			out[r*n+i] = (in[r*n+i]-mean)/math.Sqrt(variance+eps)*weight[i] + offset[i]
		}
	}
}

// Place implements [model.IndexedOps].
func (Reference) Place(kept, x model.Array, at model.Step, positions, width int) {
	row := 0
	for _, run := range at.Runs {
		for i := range run.Rows {
			copy(values(kept)[(run.Slot*positions+run.From+i)*width:], values(x)[row*width:(row+1)*width])
			row++
		}
	}
}

// Choose implements [model.IndexedOps]: of those that are left the best, again and again.
func (Reference) Choose(chosen, q, weights, keys model.Array, at model.Step, s model.IndexShape) {
	row := 0
	for _, run := range at.Runs {
		for position := run.From; position < run.From+run.Rows; position++ {
			scores := make([]float64, position+1)
			for k := range scores {
				key := values(keys)[(run.Slot*s.Positions+k)*s.Dim:][:s.Dim]
				for h := range s.Heads {
					scores[k] += values(weights)[row*s.Heads+h] * max(0, product(values(q)[(row*s.Heads+h)*s.Dim:][:s.Dim], key))
				}
			}
			in := make([]bool, len(scores))
			for range min(s.Top, len(scores)) {
				best := -1
				for k, v := range scores {
					if !in[k] && (best < 0 || v > scores[best]) {
						best = k
					}
				}
				in[best] = true
			}
			out := values(chosen)[row*s.Top : (row+1)*s.Top]
			n := 0
			for k := range in {
				if in[k] {
					out[n] = float64(k)
					n++
				}
			}
			for ; n < s.Top; n++ {
				out[n] = -1
			}
			row++
		}
	}
}

// RecallChosen implements [model.IndexedOps].
func (Reference) RecallChosen(o, q, keys, vals, chosen model.Array, at model.Step, positions int, s model.AttentionShape) {
	rows := 0
	for _, run := range at.Runs {
		rows += run.Rows
	}
	top, row := len(values(chosen))/rows, 0
	for _, run := range at.Runs {
		for range run.Rows {
			for h := range s.Heads {
				place := func(k float64) int {
					return ((run.Slot*positions+int(k))*s.KVHeads + h/(s.Heads/s.KVHeads)) * s.Dim
				}
				query, mixed, sum := values(q)[(row*s.Heads+h)*s.Dim:][:s.Dim], make([]float64, s.Dim), 0.0
				for _, k := range values(chosen)[row*top : (row+1)*top] {
					if k < 0 {
						continue
					}
					e := math.Exp(float64(s.Scale) * product(query, values(keys)[place(k):][:s.Dim]))
					sum += e
					for i := range mixed {
						mixed[i] += e * values(vals)[place(k)+i]
					}
				}
				for i, v := range mixed {
					values(o)[(row*s.Heads+h)*s.Dim+i] = v / sum
				}
			}
			row++
		}
	}
}
