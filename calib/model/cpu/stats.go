package cpu

import "github.com/lutq/lutq/calib/model"

var _ model.StatsOps = (*Ops)(nil)

// Gram implements [model.StatsOps].
func (c *Ops) Gram(h, x model.Array, rows int) {
	if rows == 0 {
		return
	}
	sums, in := host(h), host(x)
	k := len(in) / rows
	if len(in) != rows*k || len(sums) != k*k {
		panic(badSize)
	}
	c.engine.Gram(in, rows, k, func(_, n0 int, g []float32) {
		width := k - n0
		for at := n0 * (k + 1); len(g) > 0; at, g = at+k, g[width:] {
			c.engine.Add(sums[at:at+width], sums[at:at+width], g[:width])
		}
	})
}

// Cross implements [model.StatsOps].
func (c *Ops) Cross(d, x, xq model.Array, rows int) {
	if rows == 0 {
		return
	}
	sums, a, b := host(d), host(x), host(xq)
	k := len(b) / rows
	if len(a) != len(b) || len(b) != rows*k || len(sums) != k*k {
		panic(badSize)
	}
	diff := c.product(0, len(b))
	c.overElements(len(b), func(from, to int) {
		for i := from; i < to; i++ {
			diff[i] = a[i] - b[i]
		}
	})
	c.engine.Outer(diff, b, rows, k, k, func(_, n0 int, g []float32) {
		c.engine.Add(sums[n0*k:n0*k+len(g)], sums[n0*k:n0*k+len(g)], g)
	})
}

// Mirror implements [model.StatsOps].
func (c *Ops) Mirror(h model.Array, k int) {
	v := host(h)
	if len(v) != k*k {
		panic(badSize)
	}
	c.overRows(k, func(_, from, to int) {
		for j := range to {
			for i := max(from, j+1); i < to; i++ {
				v[i*k+j] = v[j*k+i]
			}
		}
	})
}
