package cpu

// Plain is a matrix of float32 numbers in memory, row-major, that its owner
// may change between products.
type Plain struct {
	n, k int
	data []float32
}

// NewPlain wraps data[n,k], which it keeps.
func NewPlain(n, k int, data []float32) *Plain {
	if len(data) != n*k {
		panic(badShape)
	}
	return &Plain{n, k, data}
}

// Rows returns N.
func (w *Plain) Rows() int { return w.n }

// Cols returns K.
func (w *Plain) Cols() int { return w.k }

// Bytes returns the size of the numbers.
func (w *Plain) Bytes() int64 { return 4 * int64(len(w.data)) }

func (w *Plain) decode(s isa, dst []float32, panel, k0, kc int) {
	r := 16 * panel
	s.packRows(dst, w.data[r*w.k+k0:], w.k, min(16, w.n-r), kc)
}

// packed is the right-hand side of a product as weights: W = bᵀ.
type packed struct{ PackedB }

func (w *packed) Rows() int    { return w.N }
func (w *packed) Cols() int    { return w.K }
func (w *packed) Bytes() int64 { return 4 * int64(len(w.data)) }

func (w *packed) decode(_ isa, dst []float32, panel, k0, kc int) {
	copy(dst, w.data[16*(panel*w.K+k0):][:16*kc])
}

// backElements bounds the rows of weights that MatMulBack decodes at a time,
// in elements (64 MiB).
const backElements = 16 << 20

// MatMulBack computes dx[m,K] = dy[m,N] · W, which is the gradient of
// [Engine.MatMul] by x, or adds it to dx. The numerics are those of a product
// with Wᵀ, whose sums are over N; where dx is added to, it comes first.
func (e *Engine) MatMulBack(dx, dy []float32, m int, w Weights, add bool) {
	e.matMulBack(dx, dy, m, w, add, backElements)
}

// matMulBack is MatMulBack with so many elements of w at a time, or a block's rows.
func (e *Engine) matMulBack(dx, dy []float32, m int, w Weights, add bool, elements int) {
	n, k := w.Rows(), w.Cols()
	if m <= 0 {
		return
	}
	if len(dx) < m*k || len(dy) < m*n {
		panic(badShape)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	most := max(elements/(16*ceilDiv(k, 16))/kBlock, 1) * kBlock
	for n0 := 0; n0 < n; n0 += most {
		rows := min(most, n-n0)
		e.transpose(&e.back.PackedB, w, n0, rows)
		op := []Op{{Y: dx, W: &e.back}}
		turns := e.turns(m, rows)
		for t := range turns {
			m0, m1 := m*t/turns, m*(t+1)/turns
			e.product(dy[m0*n+n0:(m1-1)*n+n0+rows], n, rows, m0, m1-m0, op, add || n0 > 0)
		}
	}
}

// transpose packs rows n0 to n0+n of w so that column j of dst is column j of
// w, with e.mu held. n0 is a multiple of 16.
func (e *Engine) transpose(dst *PackedB, w Weights, n0, n int) {
	k := w.Cols()
	data := dst.resize(k, n)
	e.parallel(ceilDiv(n, 16), func(worker, i int) {
		rows := min(16, n-16*i)
		buf := e.buffer(worker, 16*kBlock)
		for k0 := 0; k0 < k; k0 += kBlock {
			kc := min(kBlock, k-k0)
			w.decode(e.isa, buf[:16*kc], n0/16+i, k0, kc)
			for c := 0; c < kc; c += 16 {
				e.isa.packRows(data[(k0+c)*n+256*i:][:16*rows], buf[16*c:], 16, min(16, kc-c), rows)
			}
		}
	})
}

// Rows writes the rows of w from r0, a multiple of 16, to the end of dst or of
// w to dst[rows,K]; at most 16 of them. It runs on the calling goroutine, for
// use inside [Engine.Parallel].
func (e *Engine) Rows(dst []float32, w Weights, r0 int) {
	k := w.Cols()
	rows := min(16, len(dst)/k, w.Rows()-r0)
	if rows <= 0 || r0%16 != 0 {
		panic(badShape)
	}
	var panel [16 * kBlock]float32
	var tile [256]float32
	for k0 := 0; k0 < k; k0 += kBlock {
		kc := min(kBlock, k-k0)
		w.decode(e.isa, panel[:16*kc], r0/16, k0, kc)
		for c := 0; c < kc; c += 16 {
			n := min(16, kc-c)
			e.isa.packRows(tile[:16*rows], panel[16*c:], 16, n, rows)
			for r := range rows {
				copy(dst[r*k+k0+c:][:n], tile[16*r:])
			}
		}
	}
}

// outerRows is the most rows of a block of [Engine.Outer].
const outerRows = 112

// Outer computes G[n,k] = Σ_r dy[r,n]·x[r,k] over m rows, the gradient of
// weights, a block of rows at a time: f(worker, n0, g) is called for each block, with
// its first row, a multiple of 16, and its rows of G, which are gone thereafter; of no
// rows there is none. Calls
// run as those of [Engine.Parallel] do. How rows form blocks depends on the
// number of threads, an element of G does not: it is summed as in a product, in
// blocks of 256 rows.
func (e *Engine) Outer(dy, x []float32, m, n, k int, f func(worker, n0 int, g []float32)) {
	e.outer(dy, x, m, n, k, false, f)
}

// Gram computes G[k,k] = Σ_r x[r]·x[r]ᵀ over m rows as [Engine.Outer] does, but of row n0 and
// the others of its block only the columns from n0 on, k−n0 of them: G is symmetric.
func (e *Engine) Gram(x []float32, m, k int, f func(worker, n0 int, g []float32)) {
	e.outer(x, x, m, k, k, true, f)
}

// outer is Outer, or of a symmetric G the columns from each block's first row on.
func (e *Engine) outer(dy, x []float32, m, n, k int, symmetric bool, f func(worker, n0 int, g []float32)) {
	if len(dy) < m*n || len(x) < m*k {
		panic(badShape)
	}
	if m <= 0 || n <= 0 || k <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.back.resize(k, m)
	panels := ceilDiv(k, 16)
	e.parallel(panels, func(_, p int) {
		one := PackedB{data: b[16*p*m : 16*(p+1)*m]}
		e.PackCols(&one, x[16*p:], min(16, k-16*p), m, k)
	})
	// As few blocks as give every worker his share.
	blocks := ceilDiv(n, outerRows)
	blocks = ceilDiv(blocks, e.threads) * e.threads
	most := ceilDiv(ceilDiv(n, blocks), 16) * 16
	ld := m + 16 // rows fall into different cache sets
	e.parallel(ceilDiv(n, most), func(worker, i int) {
		n0 := i * most
		rows := min(most, n-n0)
		first := 0
		if symmetric {
			first = n0
		}
		cols := k - first
		buf := e.buffer(worker, rows*(ld+cols))
		left, g := buf[:rows*ld], buf[rows*ld:][:rows*cols]
		e.transposeBlock(left, ld, dy[n0:], n, m, rows)
		for c := first; c < k; c += kBlock {
			for r0 := 0; r0 < m; r0 += kBlock {
				e.isa.sweep(sweep{
					y: g[c-first:], ldy: cols,
					x: left[r0:], ldx: ld, m: rows,
					b: b[c*m+16*r0:], stride: 16 * m, n: min(kBlock, k-c), k: min(kBlock, m-r0),
					alpha: 1, add: r0 > 0,
				}, &e.tiles[worker])
			}
		}
		f(worker, n0, g)
	})
}

// transposeBlock writes src[m,n], whose rows are lds apart, to dst[n,m], whose
// rows are ldd apart.
func (e *Engine) transposeBlock(dst []float32, ldd int, src []float32, lds, m, n int) {
	var tile [16 * outerRows]float32
	for r := 0; r < m; r += 16 {
		rows := min(16, m-r)
		e.isa.packRows(tile[:16*n], src[r*lds:], lds, rows, n)
		for j := range n {
			copy(dst[j*ldd+r:][:rows], tile[16*j:])
		}
	}
}
