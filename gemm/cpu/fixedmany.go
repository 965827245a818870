package cpu

const (
	// fixedFew is the largest number of rows of x for which codes go straight
	// into the sums.
	fixedFew = 16

	// fixedTile is the largest number of rows of x that the kernel of many
	// rows takes.
	fixedTile = 6

	// fixedHalves is the most half-blocks of a panel that are unpacked at a
	// time: 16 KiB, which with a tile of x fit level 1 cache.
	fixedHalves = 16
)

// fixedScratch is what a worker needs for products of many rows in fixed point.
type fixedScratch struct {
	values [fixedHalves * 512]int16  // [half-blocks][16 pairs of columns][16 rows][2]
	scales [fixedHalves * 16]float32 // of the half-blocks, times the unit of the table
	edge   [fixedTile * 16]float32   // a tile where y has fewer columns
}

// fixedMany computes products of many rows of x, m of them from row m0 on, in
// fixed point: what a panel's codes name is unpacked once, for all rows.
func (e *Engine) fixedMany(x []float32, k, m0, m int, ops []Op) {
	ldx := ceilDiv(k, 32) * 32
	if ldx != k {
		x = e.padX(x, m, k, ldx)
	}
	f := &e.fixedX
	f.resize(m, ldx/32, fixedTile)
	const chunk = 16 // rows
	e.parallel(ceilDiv(m, chunk), func(_, i int) { f.quantize(e.isa, x, i*chunk, min(m, (i+1)*chunk), true) })
	units := e.divide(m, ops)
	e.parallel(len(units), func(worker, i int) {
		u := units[i]
		op := ops[u.op]
		if e.fixedScratch[worker] == nil {
			e.fixedScratch[worker] = new(fixedScratch)
		}
		n := op.W.Rows()
		op.W.(*LUT).fixedUnit(e.isa, op.Y[m0*n:], f, u, e.fixedScratch[worker])
	})
}

// takeFixed parts the products that are done in fixed point from the others.
func (e *Engine) takeFixed(ops []Op) (fixed, others []Op) {
	fixed, others = e.fixed[:0], e.others[:0]
	for _, op := range ops {
		if w, ok := op.W.(*LUT); ok && w.fixed != nil {
			fixed = append(fixed, op)
		} else {
			others = append(others, op)
		}
	}
	e.fixed, e.others = fixed, others
	return fixed, others
}

// fixedUnit computes the products of panels and the tiles of x that begin in
// the rows of a unit.
func (w *LUT) fixedUnit(s isa, y []float32, f *fixedRows, u unit, scratch *fixedScratch) {
	p := w.p
	halves, group := p.Halves(), ceilDiv(p.Group, 32)
	blocks := ceilDiv(halves, fixedHalves)
	for b := range blocks {
		h0, h1 := halves*b/blocks, halves*(b+1)/blocks
		for panel := u.p0; panel < u.p1; panel++ {
			words := p.Panels[panel*p.PanelBytes():][:p.PanelBytes()]
			values := scratch.values[:512*(h1-h0)]
			s.unpackFixed(values, words[h0*p.HalfBytes():h1*p.HalfBytes()], p.Bits, w.fixed)
			for h := h0; h < h1; h++ {
				at := (*[16]float32)(scratch.scales[16*(h-h0):])
				if h > h0 && h%group != 0 {
					copy(at[:], scratch.scales[16*(h-h0-1):])
					continue
				}
				w.groupScales(s, at, panel, h/group)
				for i := range at {
					at[i] *= w.fixed.unit
				}
			}
			n := min(16, p.N-16*panel)
			for row := ceilDiv(u.m0, fixedTile) * fixedTile; row < u.m1; row += fixedTile {
				m := min(fixedTile, f.m-row)
				at := row*halves + m*h0
				c := fixedTileCall{
					m: m, x: f.x[32*at:], xscales: f.scales[at:],
					values: values, scales: scratch.scales[:16*(h1-h0)], add: b > 0,
				}
				out := y[row*p.N+16*panel:]
				if n == 16 {
					s.gemmFixed(out, p.N, &c)
					continue
				}
				for r := range c.m {
					copy(scratch.edge[16*r:], out[r*p.N:][:n])
				}
				s.gemmFixed(scratch.edge[:], 16, &c)
				for r := range c.m {
					copy(out[r*p.N:][:n], scratch.edge[16*r:])
				}
			}
		}
	}
}

// fixedTileCall is the product of m ≤ fixedTile rows of x and half-blocks of a
// panel that are unpacked.
type fixedTileCall struct {
	m       int
	x       []int16   // [halves][m][32]
	xscales []float32 // [halves][m]
	values  []int16   // [halves][16 pairs of columns][16 rows][2]
	scales  []float32 // [halves][16]
	add     bool      // to what y holds
}

// gemmFixedGeneric adds the product to y[m][16], whose rows are ldy elements
// apart, one half-block after the other.
func gemmFixedGeneric(y []float32, ldy int, c *fixedTileCall) {
	for r := range c.m {
		out := y[r*ldy:][:16]
		if !c.add {
			clear(out)
		}
		for h := range len(c.scales) / 16 {
			x := c.x[32*(h*c.m+r):][:32]
			var sums [16]int32
			for k := 0; k < 32; k += 2 {
				values := (*[32]int16)(c.values[512*h+16*k:])
				a, b := int32(x[k]), int32(x[k+1])
				for i := range sums {
					sums[i] += a*int32(values[2*i]) + b*int32(values[2*i+1])
				}
			}
			scale := c.xscales[h*c.m+r]
			for i, s := range c.scales[16*h:][:16] {
				out[i] = fma32(float32(float32(sums[i])*scale), s, out[i])
			}
		}
	}
}

// unpackFixedGeneric writes the values that the codes of half-blocks name.
func unpackFixedGeneric(dst []int16, words []byte, bits int, t *fixedLUT) {
	var codes [32]uint8
	for ; len(dst) > 0; dst, words = dst[512:], words[64*bits:] {
		for row := range 16 {
			codesByBytes(&codes, words[4*row:], bits)
			for k, code := range codes {
				dst[k/2*32+2*row+k%2] = t.values[code]
			}
		}
	}
}
