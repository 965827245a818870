package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
)

// GLU implements [model.Ops].
func (c *Ops) GLU(y, g, u model.Array, act arch.Gating) {
	dst, gate, up := host(y), host(g), host(u)
	if len(dst) != len(gate) || len(up) != len(gate) {
		panic(badSize)
	}
	c.overElements(len(dst), func(from, to int) {
		dst, gate, up := dst[from:to], gate[from:to], up[from:to]
		if act.Act == arch.SiLU {
			c.engine.SiLUMul(dst, gate, up)
			return
		}
		for i := range dst {
			value, _, factor, _ := activate(act, float64(gate[i]), float64(up[i]))
			dst[i] = float32(value * factor)
		}
	})
}

// GLUBack implements [model.BackwardOps].
func (c *Ops) GLUBack(dg, du, dy, g, u model.Array, act arch.Gating) {
	dgate, dup, grad, gate, up := host(dg), host(du), host(dy), host(g), host(u)
	n := len(grad)
	if len(dgate) != n || len(dup) != n || len(gate) != n || len(up) != n {
		panic(badSize)
	}
	c.overElements(n, func(from, to int) {
		if act.Act == arch.SiLU {
			var e [256]float32
			for ; from < to; from += len(e) {
				n := min(len(e), to-from)
				c.siluBack(e[:n], dgate[from:from+n], dup[from:from+n], grad[from:from+n], gate[from:from+n], up[from:from+n])
			}
			return
		}
		for i := from; i < to; i++ {
			value, slope, factor, through := activate(act, float64(gate[i]), float64(up[i]))
			d := float64(grad[i])
			dgate[i], dup[i] = float32(d*slope*factor), float32(d*value*through)
		}
	})
}

// activate returns f(g) and f'(g) of an activation, and the factor that up becomes
// with its derivative by up.
func activate(act arch.Gating, g, u float64) (value, slope, factor, through float64) {
	switch act.Act {
	case arch.SiLU:
		s := logistic(g)
		return g * s, s * (1 + g*(1-s)), u, 1
	case arch.GELU:
		p := 0.5 * math.Erfc(-g/math.Sqrt2)
		return g * p, p + g*math.Exp(-g*g/2)/math.Sqrt(2*math.Pi), u, 1
	case arch.GELUTanh:
		const a, b = 0.7978845608028654, 0.044715 // √(2/π), and the third power's share
		t := math.Tanh(a * (g + b*g*g*g))
		return g * (1 + t) / 2, (1+t)/2 + g*(1-t*t)/2*a*(1+3*b*g*g), u, 1
	case arch.ReLU:
		if g > 0 {
			return g, 1, u, 1
		}
		return 0, 0, u, 1
	case arch.Sigmoid:
		s := logistic(g)
		return s, s * (1 - s), u, 1
	case arch.SwiGLUOAI:
		alpha, limit, through := act.Alpha, act.Limit, 1.0
		if u > limit || u < -limit {
			u, through = math.Copysign(limit, u), 0
		}
		if g > limit {
			return limit * logistic(alpha*limit), 0, u + 1, through
		}
		s := logistic(alpha * g)
		return g * s, s * (1 + alpha*g*(1-s)), u + 1, through
	}
	panic("cpu: unknown activation " + string(act.Act))
}

// logistic is 1/(1+e^−x).
func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// siluBack is GLUBack of a few elements for the activation silu, with as many of scratch. With s
// the logistic function of g,
//
//	dg = dy·u·s·(1 + g·(1−s))    du = dy·g·s
func (c *Ops) siluBack(e, dg, du, dy, g, u []float32) {
	// Where exp(−g) is infinite, its product with s would be no number.
	for i, x := range g {
		e[i] = min(-x, 80)
	}
	c.engine.ExpSum(e, e, 0)
	dg, du, dy, u, e = dg[:len(g)], du[:len(g)], dy[:len(g)], u[:len(g)], e[:len(g)]
	for i, x := range g {
		s := 1 / (1 + e[i])
		ds := float32(dy[i] * s)
		dg[i] = float32(ds*u[i]) * (1 + float32(x*float32(e[i]*s)))
		du[i] = float32(ds * x)
	}
}

// SoftCap implements [model.Ops].
func (c *Ops) SoftCap(x model.Array, limit float64) {
	v := host(x)
	c.overElements(len(v), func(from, to int) { softCap(v[from:to], limit) })
}

func softCap(x []float32, limit float64) {
	for i, v := range x {
		x[i] = float32(limit * math.Tanh(float64(v)/limit))
	}
}

// Scale implements [model.Ops].
func (c *Ops) Scale(x model.Array, by float32) {
	v := host(x)
	c.overElements(len(v), func(from, to int) {
		for i := from; i < to; i++ {
			v[i] *= by
		}
	})
}

// SoftCapBack implements [model.BackwardOps].
func (c *Ops) SoftCapBack(dx, y model.Array, limit float64) {
	d, v := host(dx), host(y)
	if len(d) != len(v) {
		panic(badSize)
	}
	c.overElements(len(d), func(from, to int) {
		for i := from; i < to; i++ {
			t := float64(v[i]) / limit
			d[i] = float32(float64(d[i]) * (1 - t*t))
		}
	})
}
