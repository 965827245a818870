package cpu

import "github.com/lutq/lutq/calib/model"

var _ model.ShortConvOps = (*Ops)(nil)

// Multiply implements [model.ShortConvOps].
func (c *Ops) Multiply(y, a, b model.Array) {
	out, x, by := host(y), host(a), host(b)
	if len(out) != len(x) || len(out) != len(by) {
		panic(badSize)
	}
	for i, v := range x {
		out[i] = v * by[i]
	}
}
