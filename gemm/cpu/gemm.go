package cpu

import "sync/atomic"

const (
	// kBlock is the number of columns summed from zero; see the package
	// documentation. A pair of panels of it is 32 KiB.
	kBlock = 256

	// xStride is the row stride of packed activations: kBlock and a cache
	// line, so that the rows of a tile fall into different cache sets.
	xStride = kBlock + 16

	// groupPairs is the most panel pairs that a worker decodes before it goes
	// over the rows of X: 256 KiB of level 2 cache.
	groupPairs = 8

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
	turns := 1
	if m > e.isa.rows() {
		turns = ceilDiv(m*blocks(k)*xStride, xElements)
	}
	for t := range turns {
		m0, m1 := m*t/turns, m*(t+1)/turns
		e.product(x[m0*k:m1*k], k, m0, m1-m0, ops)
	}
}

// product computes rows m0 to m0+m of the products; x holds those rows.
func (e *Engine) product(x []float32, k, m0, m int, ops []Op) {
	rows := e.isa.rows()
	// One strip of rows reads x where it is.
	xAt, ldx := func(k0 int) []float32 { return x[k0:] }, k
	group := 1
	if m > rows {
		xp := e.packX(x, m, k)
		xAt, ldx = func(k0 int) []float32 { return xp[k0/kBlock*m*xStride:] }, xStride
		group = groupPairs
	}

	spans := e.split(m, ops)
	total := spans[len(spans)-1].end
	var next atomic.Int64
	e.dispatch(total, func(worker int) {
		buf := e.buffer(worker, 2*group*16*kBlock)
		for {
			lo, hi, sp := take(&next, spans, e.threads, group)
			if sp == nil {
				return
			}
			op := ops[sp.op]
			n := op.W.Rows()
			lo, hi = lo-sp.begin, hi-sp.begin // panel pairs
			p0, p1 := 2*lo, min(2*hi, ceilDiv(n, 16))
			y := op.Y[(m0+sp.m0)*n+16*p0:]
			if w, ok := op.W.(*LUT); ok && m <= e.isa.fusedRows() {
				for p := p0; p < p1; p++ {
					w.fused(y[16*(p-p0):], n, min(16, n-16*p), x[sp.m0*k:], sp.m1-sp.m0, p)
				}
				continue
			}
			for k0 := 0; k0 < k; k0 += kBlock {
				kc := min(kBlock, k-k0)
				for p := p0; p < p1; p++ {
					op.W.decode(e.isa, buf[(p-p0)*16*kc:][:16*kc], p, k0, kc)
				}
				e.isa.sweep(sweep{
					y: y, ldy: n,
					x: xAt(k0)[sp.m0*ldx:], ldx: ldx, m: sp.m1 - sp.m0,
					b: buf, stride: 16 * kc, n: min(n, 16*p1) - 16*p0, k: kc,
					alpha: 1, add: k0 > 0,
				}, &e.tiles[worker])
			}
		}
	})
}

// packX copies x[m,k] to blocks [k/kBlock][m][xStride].
func (e *Engine) packX(x []float32, m, k int) []float32 {
	if need := blocks(k) * m * xStride; cap(e.xbuf) < need {
		e.xbuf = make([]float32, need)
	}
	xp := e.xbuf[:cap(e.xbuf)]
	const chunk = 32 // rows
	e.parallel(ceilDiv(m, chunk), func(_, i int) {
		for r := i * chunk; r < min(m, (i+1)*chunk); r++ {
			for k0 := 0; k0 < k; k0 += kBlock {
				copy(xp[(k0/kBlock*m+r)*xStride:], x[r*k+k0:r*k+min(k0+kBlock, k)])
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

// span is the work of one product on rows m0 to m1: a panel pair for each
// number from begin to end.
type span struct {
	op         int
	m0, m1     int
	begin, end int
}

// split lists the spans of a parallel section. Rows are divided only where
// the panels alone would leave workers idle, since each division decodes the
// panels once more.
func (e *Engine) split(m int, ops []Op) []span {
	pairs := 0
	for _, op := range ops {
		pairs += ceilDiv(op.W.Rows(), 32)
	}
	parts := 1
	if pairs < 2*e.threads {
		parts = min(ceilDiv(2*e.threads, pairs), ceilDiv(m, e.isa.rows()))
	}
	var spans []span
	at := 0
	for i, op := range ops {
		for t := range parts {
			s := span{op: i, m0: m * t / parts, m1: m * (t + 1) / parts, begin: at}
			at += ceilDiv(op.W.Rows(), 32)
			s.end = at
			spans = append(spans, s)
		}
	}
	return spans
}

// take claims the next pairs of the spans, never across the end of one: up to
// most of them at first and fewer towards the end, so that workers finish
// together. It returns a nil span when none are left.
func take(next *atomic.Int64, spans []span, threads, most int) (lo, hi int, sp *span) {
	total := spans[len(spans)-1].end
	for {
		lo = int(next.Load())
		if lo >= total {
			return 0, 0, nil
		}
		for i := range spans {
			if lo < spans[i].end {
				sp = &spans[i]
				break
			}
		}
		n := max(1, min(most, (total-lo)/(2*threads)))
		hi = min(lo+n, sp.end)
		if next.CompareAndSwap(int64(lo), int64(hi)) {
			return lo, hi, sp
		}
	}
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
