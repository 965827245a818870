package cpu

// rowPanels is the number of panels that the wide kernel of a row takes.
const rowPanels = 4

// rows reports whether there is a kernel for one row of x: for panels of 16-bit numbers.
func (w *Dense) rows() bool { return w.panels && w.dtype != f32 }

// rowOp is one of several products of one row of x.
type rowOp struct {
	y []float32
	w *Dense
}

// sets is the number of times that the widest kernel runs.
func (op rowOp) sets() int { return ceilDiv(ceilDiv(op.w.n, 16), rowPanels) }

// rowProduct computes products of a row of x and dense weights, with the bits of [Engine.product].
func (e *Engine) rowProduct(x []float32, ops []rowOp) {
	sets := 0
	for _, op := range ops {
		sets += op.sets()
	}
	e.split(sets, func(_, s0, s1 int) {
		for _, op := range ops {
			own := op.sets()
			op.w.rowPanels(e.isa, op.y, x, rowPanels*max(0, s0), min(ceilDiv(op.w.n, 16), rowPanels*s1))
			s0, s1 = s0-own, s1-own
		}
	})
}

// rowPanels computes the rows of panels p0 to p1 of y.
func (w *Dense) rowPanels(s isa, y, x []float32, p0, p1 int) {
	var tile [16 * rowPanels]float32
	stride := 32 * w.k
	for np := 0; p0 < p1; p0 += np {
		if np = rowPanels; p0+np > p1 {
			np = 1
		}
		s.row(tile[:16*np], x[:w.k], w.data[p0*stride:], stride, np, w.dtype)
		copy(y[16*p0:w.n], tile[:16*np])
	}
}

// rowGeneric is the portable twin.
func rowGeneric(y, x []float32, b []byte, stride, np int, t dtype) {
	var values [16 * kBlock]float32
	for p := range np {
		out, panel := y[16*p:][:16], b[p*stride:]
		for k0 := 0; k0 < len(x); k0 += kBlock {
			part := x[k0:min(k0+kBlock, len(x))]
			widenGeneric(values[:16*len(part)], panel[32*k0:][:32*len(part)], t)
			gemmGeneric(1, out, 16, part, len(part), values[:], len(part), 1, k0 > 0)
		}
	}
}
