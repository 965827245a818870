package cpu

import "github.com/lutq/lutq/calib/model"

var _ model.LatentOps = (*Ops)(nil)

// OneOrder implements [model.LatentOps]: keys lie in columns, and values in rows.
func (c *Ops) OneOrder() bool { return false }

// ByHeads implements [model.LatentOps]. A task is a head, whose matrix is read once for some rows.
func (c *Ops) ByHeads(y, x, w model.Array, s model.ByHeadsShape) {
	out, in, ws := host(y), host(x), host(w)
	if to, from := s.Spans(); len(out) < to || len(in) < from || len(ws) != s.Heads*s.N*s.K {
		panic(badSize)
	}
	c.engine.Parallel(s.Heads, func(_, h int) {
		for n := range s.N {
			row := ws[(h*s.N+n)*s.K:][:s.K]
			for r := range s.Rows {
				out[r*s.ToRow+h*s.ToHead+n] = float32(c.engine.Dot(in[r*s.FromRow+h*s.FromHead:][:s.K], row))
			}
		}
	})
}

// SumHeads implements [model.BackwardOps], in float64.
func (c *Ops) SumHeads(y, x model.Array, s model.HeadsShape) {
	to, from := host(y), host(x)
	if t, f := s.Spans(); len(to) < t || len(from) < f {
		panic(badSize)
	}
	c.overRows(s.Rows, func(_, first, end int) {
		for r := first; r < end; r++ {
			for i := range s.Width {
				var sum float64
				for h := range s.Heads {
					sum += float64(from[r*s.FromRow+h*s.FromHead+i])
				}
				to[r*s.ToRow+i] = float32(sum)
			}
		}
	})
}
