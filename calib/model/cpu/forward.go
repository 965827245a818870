package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// Embed implements [model.Ops].
func (c *Ops) Embed(h model.Array, tokens []int, w model.Weight, scale float32) {
	dst := host(h)
	c.engine.Gather(dst, operand(w), tokens)
	if scale != 1 {
		c.overElements(len(dst), func(from, to int) { c.engine.Scale(dst[from:to], dst[from:to], scale) })
	}
}

// RMSNorm implements [model.Ops].
func (c *Ops) RMSNorm(y, x, w model.Array, rows int, eps float64) {
	dst, src, weight := host(y), host(x), host(w)
	width := len(weight)
	if len(dst) != rows*width || len(src) != len(dst) {
		panic(badSize)
	}
	c.overRows(rows, func(_, from, to int) {
		for i := from * width; i < to*width; i += width {
			c.engine.RMSNorm(dst[i:i+width], src[i:i+width], weight, eps)
		}
	})
}

// Linear implements [model.Ops].
func (c *Ops) Linear(x model.Array, rows int, to ...model.Product) {
	products := make([]gemmcpu.Op, len(to))
	for i, p := range to {
		y := host(p.Y)
		if p.Add {
			y = c.product(i, len(y))
		}
		products[i] = gemmcpu.Op{Y: y, W: operand(p.W)}
	}
	c.engine.MatMulMany(host(x), rows, products...)
	for i, p := range to {
		if p.Bias != nil {
			c.addBias(products[i].Y, rows, host(p.Bias))
		}
		if p.Add {
			c.add(host(p.Y), products[i].Y)
		}
	}
}

// product returns n elements of scratch for the i-th product of a Linear.
func (c *Ops) product(i, n int) []float32 {
	for len(c.products) <= i {
		c.products = append(c.products, nil)
	}
	if len(c.products[i]) < n {
		c.products[i] = make([]float32, n)
	}
	return c.products[i][:n]
}

// add adds x to h.
func (c *Ops) add(h, x []float32) {
	c.overElements(len(h), func(from, to int) {
		c.engine.Add(h[from:to], h[from:to], x[from:to])
	})
}

// addBias adds a vector to each row of y.
func (c *Ops) addBias(y []float32, rows int, bias []float32) {
	width := len(bias)
	c.overRows(rows, func(_, from, to int) {
		for i := from * width; i < to*width; i += width {
			c.engine.Add(y[i:i+width], y[i:i+width], bias)
		}
	})
}

// Rope implements [model.Ops].
func (c *Ops) Rope(x model.Array, s model.RopeShape, cos, sin model.Array, back bool) {
	if s.Rows == 0 || s.Heads == 0 {
		return
	}
	v, cosines, sines, half := host(x), host(cos), host(sin), s.Half
	if len(v) <= (s.Rows*s.Heads-1)*s.Dim+2*half-1 || s.Dim < 2*half || len(cosines) < s.Rows*half || len(sines) < s.Rows*half {
		panic(badSize)
	}
	c.overRows(s.Rows, func(_, from, to int) {
		for r := from; r < to; r++ {
			co, si := cosines[r*half:(r+1)*half], sines[r*half:(r+1)*half]
			for h := r * s.Heads; h < (r+1)*s.Heads; h++ {
				head := v[h*s.Dim : h*s.Dim+2*half]
				switch {
				case s.Adjacent:
					rotatePairs(head, co, si, back)
				case back:
					rotateBack(head[:half], head[half:], co, si)
				default:
					rotate(head[:half], head[half:], co, si)
				}
			}
		}
	})
}

// rotatePairs turns the pairs (x[2i], x[2i+1]).
func rotatePairs(x, cos, sin []float32, back bool) {
	for i, c := range cos {
		a, b, s := x[2*i], x[2*i+1], sin[i]
		if back {
			s = -s
		}
		x[2*i], x[2*i+1] = float32(a*c)-float32(b*s), float32(b*c)+float32(a*s)
	}
}

// rotate turns the pairs (x[i], y[i]).
func rotate(x, y, cos, sin []float32) {
	y, sin = y[:len(x)], sin[:len(cos)]
	for i, c := range cos {
		a, b := x[i], y[i]
		x[i] = float32(a*c) - float32(b*sin[i])
		y[i] = float32(b*c) + float32(a*sin[i])
	}
}

// rotateBack turns them by the negative angles.
func rotateBack(x, y, cos, sin []float32) {
	y, sin = y[:len(x)], sin[:len(cos)]
	for i, c := range cos {
		a, b := x[i], y[i]
		x[i] = float32(a*c) + float32(b*sin[i])
		y[i] = float32(b*c) - float32(a*sin[i])
	}
}

// NotFinite implements [model.Ops].
func (c *Ops) NotFinite(x model.Array, rows, cols int) int {
	src := host(x)
	if cap(c.bad) < rows {
		c.bad = make([]bool, rows)
	}
	bad := c.bad[:rows]
	c.overRows(rows, func(_, from, to int) {
		for i := from; i < to; i++ {
			row := src[i*cols : (i+1)*cols]
			sum := c.engine.Dot(row, row)
			bad[i] = math.IsNaN(sum) || math.IsInf(sum, 0)
		}
	})
	for i, b := range bad {
		if b {
			return i
		}
	}
	return -1
}
