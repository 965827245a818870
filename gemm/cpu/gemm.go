package cpu

const (
	// kBlock is the number of columns summed from zero; see the package
	// documentation. A pair of panels of it is 32 KiB.
	kBlock = 256

	// xStride is the row stride of packed activations: kBlock and a cache
	// line, so that the rows of a tile fall into different cache sets.
	xStride = kBlock + 16

	// unitPairs and unitRows are the most panel pairs and rows of x that a
	// worker takes at a time: 256 KiB of decoded weights for level 2 cache.
	unitPairs = 8
	unitRows  = 512

	// xElements bounds the packed activations of a product, in elements
	// (64 MiB). More rows than fit are done in several turns.
	xElements = 16 << 20
)

// Messages of the panics that wrong arguments cause.
const (
	badShape = "cpu: slice too short for the shape"
	badOp    = "cpu: weights of one product differ in columns"
)

// Op is one product of [Engine.MatMulMany].
type Op struct {
	Y []float32 // [M, N], row-major
	W Weights
}

// MatMul computes y[m,N] = x[m,K] · Wᵀ, all row-major. Every element of y is
// written.
func (e *Engine) MatMul(y, x []float32, m int, w Weights) {
	e.MatMulMany(x, m, Op{Y: y, W: w})
}

// MatMulMany computes several products of one x in one parallel section, as
// for query, key and value. The weights must agree in their columns.
func (e *Engine) MatMulMany(x []float32, m int, ops ...Op) {
	if len(ops) == 0 || m <= 0 {
		return
	}
	k := ops[0].W.Cols()
	for _, op := range ops {
		if op.W.Cols() != k {
			panic(badOp)
		}
		if len(op.Y) < m*op.W.Rows() {
			panic(badShape)
		}
	}
	if len(x) < m*k {
		panic(badShape)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	rings, ops := e.takeRings(ops)
	if len(rings) > 0 {
		e.ringsProduct(x, k, m, rings)
	}
	fixed, ops := e.takeFixed(ops)
	if m <= fixedFew && len(fixed) > 0 {
		e.fixedProduct(x, k, m, fixed)
		fixed = nil
	}
	if m <= fusedRows {
		ops = e.few(x, k, m, ops)
	}
	if len(fixed)+len(ops) == 0 {
		return
	}
	turns := e.turns(m, k)
	for t := range turns {
		m0, m1 := m*t/turns, m*(t+1)/turns
		if len(fixed) > 0 {
			e.fixedMany(x[m0*k:m1*k], k, m0, m1-m0, fixed)
		}
		if len(ops) > 0 {
			e.product(x[m0*k:m1*k], k, k, m0, m1-m0, ops, false)
		}
	}
}

// turns returns in how many turns m rows of x go through, for the packed ones to
// stay within bounds.
func (e *Engine) turns(m, k int) int {
	if m <= e.isa.rows() {
		return 1
	}
	return ceilDiv(m*blocks(k)*xStride, xElements)
}

// few computes those products of few rows for which there are kernels of
// their own, and returns the others.
func (e *Engine) few(x []float32, k, m int, ops []Op) (others []Op) {
	fused, rows, planes := e.fused[:0], e.rows[:0], e.planes[:0]
	for _, op := range ops {
		w, ok := op.W.(*LUT)
		dense, isDense := op.W.(*Dense)
		binary, isBinary := op.W.(*Planes)
		switch {
		case isDense && m == 1 && dense.rows():
			rows = append(rows, rowOp{op.Y, dense})
		case isBinary && m <= planesRows && binary.Tabled():
			planes = append(planes, planesOp{op.Y, binary})
		case ok && w.fusable():
			fused = append(fused, fusedOp{op.Y, w})
		default:
			others = append(others, op)
		}
	}
	e.fused, e.rows, e.planes = fused, rows, planes
	if len(rows) > 0 {
		e.rowProduct(x[:k], rows)
	}
	if len(fused) > 0 {
		e.fusedProduct(x, k, m, fused)
	}
	if len(planes) > 0 {
		e.planesProduct(e.tablesOf(x, k, m), 0, m, planes)
	}
	return others
}

// product computes rows m0 to m0+m of the products, or adds them to what is
// there; x holds those rows, ldx elements apart.
func (e *Engine) product(x []float32, ldx, k, m0, m int, ops []Op, add bool) {
	// One strip of rows reads x where it is.
	xAt := func(k0 int) []float32 { return x[k0:] }
	if m > e.isa.rows() {
		xp := e.packX(x, m, k, ldx)
		xAt, ldx = func(k0 int) []float32 { return xp[k0/kBlock*m*xStride:] }, xStride
	}
	units := e.divide(m, ops)
	e.parallel(len(units), func(worker, i int) {
		u := units[i]
		op := ops[u.op]
		n := op.W.Rows()
		y := op.Y[(m0+u.m0)*n+16*u.p0:]
		buf := e.buffer(worker, (u.p1-u.p0)*16*kBlock)
		for k0 := 0; k0 < k; k0 += kBlock {
			kc := min(kBlock, k-k0)
			for p := u.p0; p < u.p1; p++ {
				op.W.decode(e.isa, buf[(p-u.p0)*16*kc:][:16*kc], p, k0, kc)
			}
			e.isa.sweep(sweep{
				y: y, ldy: n,
				x: xAt(k0)[u.m0*ldx:], ldx: ldx, m: u.m1 - u.m0,
				b: buf, stride: 16 * kc, n: min(n, 16*u.p1) - 16*u.p0, k: kc,
				alpha: 1, add: add || k0 > 0,
			}, &e.tiles[worker])
		}
	})
}

// unit is the work that is claimed at once: rows m0 to m1 of x times panels
// p0 to p1 of a product's weights.
type unit struct {
	op, m0, m1, p0, p1 int
}

// divide cuts products into enough units for the workers to finish together,
// and large enough that decoding a panel is little beside using it.
func (e *Engine) divide(m int, ops []Op) []unit {
	rows, group := min(m, unitRows), unitPairs
	if m <= e.isa.rows() {
		group = 1
	}
	count := func() (n int) {
		for _, op := range ops {
			n += ceilDiv(m, rows) * ceilDiv(op.W.Rows(), 32*group)
		}
		return n
	}
	for count() < 4*e.threads {
		switch {
		case rows > unitRows/4:
			rows = ceilDiv(rows, 2)
		case group > 1:
			group /= 2
		case rows > e.isa.rows():
			rows = ceilDiv(rows, 2)
		default:
			return e.cut(m, ops, rows, group)
		}
	}
	return e.cut(m, ops, rows, group)
}

// cut lists the units of at most the given rows and panel pairs, row by row.
func (e *Engine) cut(m int, ops []Op, rows, group int) []unit {
	units := e.units[:0]
	parts := ceilDiv(m, rows)
	for t := range parts {
		for i, op := range ops {
			panels := ceilDiv(op.W.Rows(), 16)
			pairs := ceilDiv(panels, 2)
			groups := ceilDiv(pairs, group)
			for g := range groups {
				units = append(units, unit{
					op: i,
					m0: m * t / parts, m1: m * (t + 1) / parts,
					p0: 2 * (pairs * g / groups), p1: min(panels, 2*(pairs*(g+1)/groups)),
				})
			}
		}
	}
	e.units = units
	return units
}

// packX copies x[m,k], whose rows are ldx elements apart, to blocks
// [k/kBlock][m][xStride].
func (e *Engine) packX(x []float32, m, k, ldx int) []float32 {
	if need := blocks(k) * m * xStride; cap(e.xbuf) < need {
		e.xbuf = make([]float32, need)
	}
	xp := e.xbuf[:cap(e.xbuf)]
	const chunk = 32 // rows
	e.parallel(ceilDiv(m, chunk), func(_, i int) {
		for r := i * chunk; r < min(m, (i+1)*chunk); r++ {
			for k0 := 0; k0 < k; k0 += kBlock {
				copy(xp[(k0/kBlock*m+r)*xStride:], x[r*ldx+k0:r*ldx+min(k0+kBlock, k)])
			}
		}
	})
	return xp
}

// buffer returns worker's scratch, of at least n elements.
func (e *Engine) buffer(worker, n int) []float32 {
	if cap(e.bufs[worker]) < n {
		e.bufs[worker] = make([]float32, n)
	}
	return e.bufs[worker][:n]
}

// sweep is the product of m rows of x and the panels of b over one k block:
// y[m,n] = [y +] alpha · x[m,k] · b. Panel p begins at b[p·stride].
type sweep struct {
	y      []float32
	ldy    int
	x      []float32
	ldx, m int
	b      []float32
	stride int
	n, k   int
	alpha  float32
	add    bool
}

// edgeTile takes the tile of a kernel where y has fewer columns than that.
type edgeTile [14 * 32]float32

// sweep runs the kernel over the tiles of a product. The rows are spread
// evenly over strips, so that no strip is much smaller than the kernel.
func (s isa) sweep(w sweep, edge *edgeTile) {
	width := 16 * s.panels()
	strips := ceilDiv(w.m, s.rows())
	for i := range strips {
		r0, r1 := w.m*i/strips, w.m*(i+1)/strips
		x, y := w.x[r0*w.ldx:], w.y[r0*w.ldy:]
		m := r1 - r0
		_ = x[(m-1)*w.ldx+w.k-1]
		for c := 0; c < w.n; c += width {
			b0 := w.b[c/16*w.stride:]
			_ = b0[16*w.k-1]
			n := min(width, w.n-c)
			b1 := b0
			if n > 16 {
				b1 = b0[w.stride:]
				_ = b1[16*w.k-1]
			}
			_ = y[(m-1)*w.ldy+c+n-1]
			if n == width {
				s.gemm(m, y[c:], w.ldy, x, w.ldx, b0, b1, w.k, w.alpha, w.add)
				continue
			}
			s.gemm(m, edge[:], width, x, w.ldx, b0, b1, w.k, w.alpha, false)
			for r := range m {
				yr := y[r*w.ldy+c:][:n]
				for j, v := range edge[r*width:][:n] {
					if w.add {
						v += yr[j]
					}
					yr[j] = v
				}
			}
		}
	}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// blocks is the number of k blocks in k columns.
func blocks(k int) int { return ceilDiv(k, kBlock) }
