package cpu

import "github.com/lutq/lutq/calib/model"

// AddTo implements [model.Ops].
func (c *Ops) AddTo(h, x model.Array) {
	dst, src := host(h), host(x)
	if len(dst) != len(src) {
		panic(badSize)
	}
	c.add(dst, src)
}

// Gather implements [model.Ops].
func (c *Ops) Gather(dst, src model.Array, rows []int, weights []float32) {
	out, in := host(dst), host(src)
	c.eachRow(out, rows, weights, func(i, at, width int, w float32) {
		row := out[i*width : (i+1)*width]
		if weights == nil {
			copy(row, in[at:at+width])
			return
		}
		c.engine.Scale(row, in[at:at+width], w)
	})
}

// Scatter implements [model.Ops].
func (c *Ops) Scatter(h, src model.Array, rows []int, weights []float32) {
	out, in := host(h), host(src)
	c.eachRow(in, rows, weights, func(i, at, width int, w float32) {
		row := in[i*width : (i+1)*width]
		if weights == nil {
			c.engine.Add(out[at:at+width], out[at:at+width], row)
			return
		}
		c.engine.Axpy(w, row, out[at:at+width])
	})
}

// eachRow calls f for every row of packed [len(rows), width], in parallel, with where row rows[i] begins
// in an array of rows as wide, and its weight.
func (c *Ops) eachRow(packed []float32, rows []int, weights []float32, f func(i, at, width int, w float32)) {
	if len(rows) == 0 {
		return
	}
	width := len(packed) / len(rows)
	if len(packed) != len(rows)*width || weights != nil && len(weights) != len(rows) {
		panic(badSize)
	}
	c.overRows(len(rows), func(_, from, to int) {
		for i := from; i < to; i++ {
			w := float32(1)
			if weights != nil {
				w = weights[i]
			}
			f(i, rows[i]*width, width, w)
		}
	})
}

// RowDots implements [model.BackwardOps].
func (c *Ops) RowDots(dst, a, b model.Array, rows int) {
	out, x, y := host(dst), host(a), host(b)
	if len(out) != rows || len(x) != len(y) {
		panic(badSize)
	}
	c.overRows(rows, func(_, from, to int) {
		width := len(x) / rows
		for i := from; i < to; i++ {
			out[i] = float32(c.engine.Dot(x[i*width:(i+1)*width], y[i*width:(i+1)*width]))
		}
	})
}
