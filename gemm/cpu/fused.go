package cpu

import (
	"github.com/lutq/lutq/formats/weight"
)

const (
	// fusedRows is the largest number of rows of x for which codes go straight
	// into the sums. For more, a panel is decoded once and used by all.
	fusedRows = 8

	// fusedTurn is the largest number of rows that a kernel takes.
	fusedTurn = 4

	// fusedPanels is the largest number of panels that a kernel takes.
	fusedPanels = 4

	// fusedSegment is the largest number of half-blocks between two scalings.
	fusedSegment = 8
)

// Forms of scales that the fused kernels read. Other types are decoded to
// float32 first.
const (
	scalesF16 = iota
	scalesBF16
	scalesF32
)

// fusedScratch is what a worker needs for fused products.
type fusedScratch struct {
	y      [fusedTurn * fusedPanels * 16]float32
	scales []byte
}

// fusedCall is the product of m ≤ fusedTurn rows of x, ldx elements apart,
// and np panels. Strides of panels are in bytes.
type fusedCall struct {
	m, np          int
	x              []float32 // zero between K and the end of its half-block
	ldx            int
	words          []byte
	stride         int
	scales         []byte
	sstride, stype int
	bits           int
	table          *[32]float32
	halves, group  int // in half-blocks
}

// fusable reports whether every half-block has one scale a row, as the fused
// kernels want it.
func (w *LUT) fusable() bool { return w.p.Group%32 == 0 || w.p.Group == w.p.K }

// fused computes the rows of panels p0 to p1 of y[m,N] = x[m,K]·Ŵᵀ; y begins
// with the first of them. x is as in fusedCall.
func (w *LUT) fused(s isa, y, x []float32, ldx, m, p0, p1 int, scratch *fusedScratch) {
	p := w.p
	for np := 0; p0 < p1; p0 += np {
		if np = s.fusedPanels(p.Bits, min(m, fusedTurn)); np > p1-p0 {
			np = 1
		}
		c := fusedCall{
			np: np, ldx: ldx, bits: p.Bits, table: &w.table,
			words: p.Panels[p0*p.PanelBytes():][:np*p.PanelBytes()], stride: p.PanelBytes(),
			halves: p.Halves(), group: ceilDiv(p.Group, 32),
		}
		c.scales, c.sstride, c.stype = w.scalesFor(s, p0, np, scratch)
		n := min(16*np, p.N-16*p0)
		for r0 := 0; r0 < m; r0 += fusedTurn {
			c.m, c.x = min(fusedTurn, m-r0), x[r0*ldx:]
			s.fused(scratch.y[:16*c.m*np], &c)
			for r := range c.m {
				copy(y[(r0+r)*p.N:][:n], scratch.y[16*np*r:])
			}
		}
		y = y[n:]
	}
}

// scalesFor returns the scales of np panels from the given one on, the bytes
// from one panel to the next, and their form.
func (w *LUT) scalesFor(s isa, panel, np int, scratch *fusedScratch) (scales []byte, stride, form int) {
	p := w.p
	stride = p.PanelScaleBytes()
	scales = p.Scales[panel*stride:][:np*stride]
	switch p.ScaleType {
	case weight.F16:
		return scales, stride, scalesF16
	case weight.BF16:
		return scales, stride, scalesBF16
	case weight.F32:
		return scales, stride, scalesF32
	}
	n := np * p.Groups()
	if cap(scratch.scales) < 64*n {
		scratch.scales = make([]byte, 64*n)
	}
	scales = scratch.scales[:64*n]
	var one [16]float32
	for i := range n {
		w.groupScales(s, &one, panel, i) // runs on into the next panels
		weight.F32.Encode(scales[64*i:][:64], one[:])
	}
	return scales, 64 * p.Groups(), scalesF32
}

// fusedProduct computes products of weights that are fusable.
func (e *Engine) fusedProduct(x []float32, k, m int, ops []fusedOp) {
	ldx := ceilDiv(k, 32) * 32
	if ldx != k {
		x = e.padX(x, m, k, ldx)
	}
	sets := 0
	for _, op := range ops {
		sets += op.sets()
	}
	e.split(sets, func(worker, s0, s1 int) {
		for _, op := range ops {
			own := op.sets()
			if p0, p1 := fusedPanels*max(0, s0), min(op.w.p.PanelCount(), fusedPanels*s1); p0 < p1 {
				op.w.fused(e.isa, op.y[16*p0:], x, ldx, m, p0, p1, &e.fusedScratch[worker])
			}
			s0, s1 = s0-own, s1-own
		}
	})
}

// fusedOp is one of several products of the same x.
type fusedOp struct {
	y []float32
	w *LUT
}

// sets is the number of times that the widest kernel runs.
func (op fusedOp) sets() int { return ceilDiv(op.w.p.PanelCount(), fusedPanels) }

// padX copies x[m,k] to rows of ldx with zeros behind.
func (e *Engine) padX(x []float32, m, k, ldx int) []float32 {
	if cap(e.xbuf) < m*ldx {
		e.xbuf = make([]float32, m*ldx)
	}
	xp := e.xbuf[:m*ldx]
	clear(xp)
	for r := range m {
		copy(xp[r*ldx:], x[r*k:][:k])
	}
	return xp
}

// fusedGeneric is the definition of the fused product: y[m][np][16], each
// element
//
//	y = fma(s, Σ x[k]·table[code[k]], y)
//
// over the segments in order, a segment being at most fusedSegment half-blocks
// of one group and s its scale. The sum is one chain of fused multiply-adds
// from zero; at 2 bits, one of additions of pairs fma(x[k+1], c', x[k]·c).
func fusedGeneric(y []float32, c *fusedCall) {
	clear(y)
	var ones [16]float32
	for i := range ones {
		ones[i] = 1
	}
	var values [512]float32
	for p := range c.np {
		words, scales := c.words[p*c.stride:], c.scales[p*c.sstride:]
		for h, g := 0, 0; h < c.halves; g++ {
			var scale [16]float32
			fusedScales(&scale, scales, g, c.stype)
			for end := min(h+c.group, c.halves); h < end; {
				var sums [fusedTurn][16]float32
				for stop := min(h+fusedSegment, end); h < stop; h++ {
					decodeHalf(&values, words[64*c.bits*h:], c.bits, c.table, &ones)
					for r := range c.m {
						addHalf(&sums[r], (*[32]float32)(c.x[r*c.ldx+32*h:]), &values, c.bits)
					}
				}
				for r := range c.m {
					out := y[16*(r*c.np+p):][:16]
					for i, s := range sums[r] {
						out[i] = fma32(scale[i], s, out[i])
					}
				}
			}
		}
	}
}

// fusedScales decodes the scales of a group.
func fusedScales(dst *[16]float32, src []byte, group, stype int) {
	switch stype {
	case scalesF16:
		weight.F16.Decode(dst[:], src[32*group:][:32])
	case scalesBF16:
		weight.BF16.Decode(dst[:], src[32*group:][:32])
	default:
		weight.F32.Decode(dst[:], src[64*group:][:64])
	}
}

// addHalf adds the products of 32 columns of x and of a panel to its sums.
func addHalf(sums *[16]float32, x *[32]float32, values *[512]float32, bits int) {
	if bits != 2 {
		for i := 0; i < 16; i += 4 {
			madd((*[4]float32)(sums[i:]), x[:], values[i:])
		}
		return
	}
	for k := 0; k < 32; k += 2 {
		v := (*[32]float32)(values[16*k:])
		for i := range sums {
			sums[i] += fma32(x[k+1], v[16+i], float32(x[k]*v[i]))
		}
	}
}
