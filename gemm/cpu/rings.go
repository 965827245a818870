package cpu

import (
	"encoding/binary"
	"math"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/repack"
)

const (
	// ringsFew is the largest number of rows of x for which windows go straight into the sums. Values of more are unpacked once for all.
	ringsFew = 4

	// ringsBlocks is the number of blocks of 16 columns that are summed from zero, see kBlock.
	ringsBlocks = kBlock / trellis.RingCols

	// ringsScratchBytes is what kernels need to hold the words of a block, from the beginning of a line on.
	ringsScratchBytes = 64 * (2*12 + 2)

	// ringsFactor is what [trellis.Hash] multiplies windows by.
	ringsFactor = 0xCBAC1FED

	// ringsX is what x is multiplied by for the kernels, and what their sums are. They take the bits of a float16 for those of a float32, which
	// stand for as much times 2^-112; so halves of that keep x, values and sums away from the ends of the range.
	ringsX = 0x1p56
)

// Rings is a matrix of the kind trellis, of pairs, in the CPU layout of package repack. What its rings hold is rotated, and so x is for
// products by it.
type Rings struct {
	p       *repack.CPURings
	factors []float32 // of columns
	table   *ringTable
	whole   *ringTable // in fixed point
	fixed   bool       // products of few rows of x are in fixed point, see Arrange
}

// ringTable is a table of pairs, and how windows name them.
type ringTable struct {
	planes [4][trellis.Entries]byte // the bytes of pairs, first so that they begin a line of a cache
	shift  [16]uint32               // 1<<13, by which a product of words is a shift
	pairs  [trellis.Entries]uint32
	again  [16]uint32   // shift
	steps  [32]ringStep // of either half of a ring, see ringsOrder
	hash   ringHash
	rate   int
	unit   float32 // what sums are times
	value  float32 // what pairs are times
}

// ringStep is where the windows of a step are.
type ringStep struct {
	at    uint32 // bytes from the first words of a block, of 16 rings
	words uint32 // by how many bits words are shifted, twice
	bits  uint32 // and once
	_     uint32
}

// ringHash is [trellis.Hash]: the factor and what is turned over, in halves that are each in both halves of 32 bits, and as they are.
// number has the bits of a float16 that was shifted to where a float32 has them.
type ringHash struct{ low, high, flipLow, flipHigh, factor, flip, number uint32 }

// newRingTable returns a table of pairs for kernels in float32. Values that are subnormal, which cost much time, are none after they are
// multiplied by a power of two. That can be done where none of their mantissas' bits are turned over.
func newRingTable(rate int, pairs []uint32) *ringTable {
	most, subnormal, flips := uint32(0), false, trellis.Flips(rate)
	for _, pair := range pairs {
		for half := range 2 {
			h := pair >> (16 * half)
			most = max(most, h>>10&31)
			if h&0x7C00 == 0 && h&0x3FF != 0 {
				subnormal = true
				if flips>>(16*half)&0x7FFF != 0 {
					return ringTableOf(rate, pairs, 1)
				}
			}
		}
	}
	if !subnormal {
		return ringTableOf(rate, pairs, 1)
	}
	return ringTableOf(rate, scaledPairs(pairs, 30-int(most)), float32(math.Exp2(float64(int(most)-30))))
}

// scaledPairs returns pairs times a power of two.
func scaledPairs(pairs []uint32, exponent int) []uint32 {
	by := float32(math.Exp2(float64(exponent)))
	half := func(h uint32) uint32 { return uint32(num.F32ToF16(num.F16ToF32(uint16(h)) * by)) }
	scaled := make([]uint32, len(pairs))
	for i, pair := range pairs {
		scaled[i] = half(pair) | half(pair>>16)<<16
	}
	return scaled
}

// ringTableOf returns a table of pairs that are times value.
func ringTableOf(rate int, pairs []uint32, value float32) *ringTable {
	t := &ringTable{rate: rate, unit: ringsX * value, value: value}
	copy(t.pairs[:], pairs)
	for i, pair := range t.pairs {
		for b := range t.planes {
			t.planes[b][i] = byte(pair >> (8 * b))
		}
	}
	for i := range t.shift {
		t.shift[i], t.again[i] = 1<<13, 1<<13
	}
	for i := range t.steps {
		step := i>>2&1<<4 | i>>3<<2 | i&3
		bit := step * rate
		t.steps[i] = ringStep{at: uint32(bit / 16 * 64), words: uint32(bit % 16 * 0x10001), bits: uint32(bit % 16)}
	}
	twice := func(v uint32) uint32 { return v&0xFFFF | v<<16 }
	flips := trellis.Flips(rate)
	t.hash = ringHash{twice(ringsFactor), twice(ringsFactor >> 16), twice(flips), twice(flips >> 16), ringsFactor, flips, 0x8FFFE000}
	return t
}

// NewRings wraps p, which it keeps.
func NewRings(p *repack.CPURings) (*Rings, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	w := &Rings{p: p}
	m := trellis.Matrix{K: p.K, Factors: p.Factors}
	w.factors = m.ColumnFactors()
	w.table = newRingTable(p.Code.Rate, p.Code.Table)
	w.whole = newWholeTable(p.Code)
	return w, nil
}

// Rows returns N.
func (w *Rings) Rows() int { return w.p.N }

// Cols returns K.
func (w *Rings) Cols() int { return w.p.K }

// Bytes returns the size of rings, scales and factors, and of a table of the layer's own.
func (w *Rings) Bytes() int64 { return w.p.Bytes() }

// scales writes those of rows from one on.
func (w *Rings) scales(dst []float32, first int) {
	size := w.p.ScaleType.Size()
	w.p.ScaleType.Decode(dst, w.p.Scales[first*size:][:len(dst)*size])
}

// decode writes weights: what rings hold, mixed and scaled.
func (w *Rings) decode(_ isa, dst []float32, panel, k0, kc int) {
	w.unpack(dst, panel, k0, kc)
	trellis.Blocks(kc, func(from, to int) {
		v := dst[16*from : 16*to]
		for h := 16; h < len(v); h *= 2 { // [trellis.Hadamard] of 16 rows
			for i := 0; i < len(v); i += 2 * h {
				lo, hi := v[i:i+h:i+h], v[i+h:i+2*h:i+2*h]
				for j, a := range lo {
					b := hi[j]
					lo[j], hi[j] = a+b, a-b
				}
			}
		}
		if by := trellis.Even(to - from); by != 1 {
			for i := range v {
				v[i] *= by
			}
		}
	})
	var scales [16]float32
	w.scales(scales[:min(16, w.p.N-16*panel)], 16*panel)
	for k, f := range w.factors[k0 : k0+kc] {
		row := (*[16]float32)(dst[16*k:])
		for i, c := range scales {
			row[i] = float32(row[i]*c) * f
		}
	}
}

// unpack writes what rings hold of 16 rows, as decode has them.
func (w *Rings) unpack(dst []float32, panel, k0, kc int) {
	p := w.p
	var pairs [64]uint32
	for half := range 2 { // of the rows: a ring's
		lane := panel%8*2 + half
		for c := range ceilDiv(kc, trellis.RingCols) {
			at := panel/8*p.PanelBytes() + (k0/trellis.RingCols+c)*p.BlockBytes()
			out := dst[256*c+8*half:]
			w.table.ring(&pairs, p.Panels[at+4*lane:])
			for step, pair := range pairs {
				row, col := ringAt(step)
				for i := range 2 {
					if k := col + i; k < kc-trellis.RingCols*c {
						out[16*k+row] = num.F16ToF32(uint16(pair>>(16*i))) * w.table.value
					}
				}
			}
		}
	}
}

// ring writes the pairs of a ring by step. words are those of its block from its lane on.
func (t *ringTable) ring(pairs *[64]uint32, words []byte) {
	n := 2 * t.rate
	var of [2][25]uint32 // words of each half, and the first of the other
	for half := range 2 {
		for j := range n {
			of[half][j] = uint32(binary.LittleEndian.Uint16(words[4*repack.Lanes*j+2*half:]))
		}
	}
	of[0][n], of[1][n] = of[1][0], of[0][0]
	flips := t.hash.flip
	for half := range 2 {
		bit := 0
		for i := range 32 {
			j := bit / 16
			y := (of[half][j] | of[half][j+1]<<16) >> (bit % 16) & 0xFFFF * ringsFactor // [trellis.Hash]
			pairs[32*half+i] = t.pairs[y>>7&(trellis.Entries-1)] ^ y&flips
			bit += t.rate
		}
	}
}

// ringNumber returns a float16 times 2^-112: its bits where a float32 has them.
func ringNumber(half uint32) float32 {
	return math.Float32frombits(uint32(int32(half<<16)>>3) & 0x8FFFE000)
}

// ringAt returns the row and the column of the first weight of a step, see [trellis.Layout.At].
func ringAt(step int) (row, col int) { return step>>2&3<<1 | step&1, step>>4<<2 | step&2 }

// ringsCall is the product of m ≤ ringsFew rows of x, ldx elements apart, and some blocks of a panel.
type ringsCall struct {
	m, ldx int
	x      []float32 // rotated, times ringsX, of whole blocks
	words  []byte
	blocks int
	table  *ringTable

	scratch *[ringsScratchBytes]byte
}

// ringsOrder is the order in which columns of a block are added up: windows of both halves of a ring come together.
func ringsOrder() [trellis.RingCols]int {
	return [...]int{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}
}

// ringsGeneric is the definition of the product: y[m][8][16], for row 8·lane + r of the panel at [r][lane], is
//
//	Σ fma(x[k], value, …)
//
// from zero over the blocks in order, with the columns of each in ringsOrder. Values are times 2^-112.
func ringsGeneric(y []float32, c *ringsCall) {
	clear(y)
	var values, ordered [trellis.RingRows * trellis.RingCols * repack.Lanes]float32 // [rows][columns][lanes]
	var x [trellis.RingCols]float32
	order := ringsOrder()
	for b := range c.blocks {
		unpackRingsGeneric(values[:], 16*trellis.RingCols, c.words[b*repack.Lanes*8*c.table.rate:], 1, c.table)
		for r := range trellis.RingRows {
			at := r * 16 * trellis.RingCols
			for i, k := range order {
				copy(ordered[at+16*i:][:16], values[at+16*k:])
			}
		}
		for m := range c.m {
			for i, k := range order {
				x[i] = c.x[m*c.ldx+trellis.RingCols*b+k]
			}
			for r := range trellis.RingRows {
				sums := y[(m*8+r)*16:]
				for i := 0; i < 16; i += 4 {
					madd((*[4]float32)(sums[i:]), x[:], ordered[r*16*trellis.RingCols+i:])
				}
			}
		}
	}
}

// unpackRingsGeneric writes the values of blocks of a panel, times 2^-112, to dst[8][columns][16], for row 8·lane + r of the panel at
// [r][…][lane]; what belongs to one r begins stride elements behind the one before.
func unpackRingsGeneric(dst []float32, stride int, words []byte, blocks int, t *ringTable) {
	var pairs [64]uint32
	for b := range blocks {
		block := words[b*repack.Lanes*8*t.rate:]
		for lane := range repack.Lanes {
			out := dst[16*trellis.RingCols*b+lane:]
			t.ring(&pairs, block[4*lane:])
			for step, pair := range pairs {
				row, col := ringAt(step)
				at := row*stride + 16*col
				out[at], out[at+16] = ringNumber(pair&0xFFFF), ringNumber(pair>>16)
			}
		}
	}
}

// ringsProduct computes products of m rows of x by matrices of rings. x is rotated once for those that have the factors of their
// columns in common.
func (e *Engine) ringsProduct(x []float32, k, m int, ops []Op) {
	few := m <= ringsFew
	ldx := k
	if few {
		ldx = ceilDiv(k, trellis.RingCols) * trellis.RingCols
	}
	turns := max(1, ceilDiv(m*ldx, xElements))
	for len(ops) > 0 {
		first := ops[0].W.(*Rings)
		fixed := few && first.fixed
		same, rest := e.rings.same[:0], ops[:0]
		for _, op := range ops {
			if w := op.W.(*Rings); first.p.SameFactors(w.p) && (few && w.fixed) == fixed {
				same = append(same, op)
			} else {
				rest = append(rest, op)
			}
		}
		e.rings.same, ops = same, rest
		by := float32(ringsX)
		if fixed {
			by = 1
		}
		for t := range turns {
			m0, m1 := m*t/turns, m*(t+1)/turns
			rotated := e.rotate(x[m0*k:m1*k], first.factors, m1-m0, ldx, by)
			if fixed {
				e.roundRings(rotated, m, ldx)
			}
			if few {
				e.ringsRows(rotated, ldx, m, same)
			} else {
				e.ringsMany(rotated, k, m0, m1-m0, same)
			}
		}
	}
}

// ringsScratch is what products by rings need beside their arguments.
type ringsScratch struct {
	ops, others []Op      // of the product at hand
	same        []Op      // of those, by one rotated x
	x           []float32 // rotated
	fixed       []ringX   // in fixed point
	native      bool      // there is a kernel for that
}

// takeRings parts the products by rings from the others.
func (e *Engine) takeRings(ops []Op) (rings, others []Op) {
	rings, others = e.rings.ops[:0], e.rings.others[:0]
	for _, op := range ops {
		if _, ok := op.W.(*Rings); ok {
			rings = append(rings, op)
		} else {
			others = append(others, op)
		}
	}
	e.rings.ops, e.rings.others = rings, others
	return rings, others
}

// rotate returns rows of x times the factors of columns and by, mixed, ldx elements apart with zeros between.
func (e *Engine) rotate(x, factors []float32, m, ldx int, by float32) []float32 {
	if cap(e.rings.x) < m*ldx {
		e.rings.x = make([]float32, m*ldx)
	}
	dst, k := e.rings.x[:m*ldx], len(factors)
	e.parallel(m, func(_, r int) {
		row := dst[r*ldx:][:ldx]
		clear(row[k:])
		e.isa.rotate(row[:k], x[r*k:][:k], factors, by)
	})
	return dst
}

// rotateGeneric writes x times factors, mixed, times by to dst: [trellis.Rotate] without its norm, which rows' scales are for.
func rotateGeneric(dst, x, factors []float32, by float32) {
	for i := range dst {
		dst[i] = x[i] * factors[i]
	}
	trellis.Blocks(len(dst), func(from, to int) {
		v := dst[from:to]
		trellis.Hadamard(v)
		c := by * trellis.Even(to-from)
		for i := range v {
			v[i] *= c
		}
	})
}

// ringsRows computes products of few rows of x, which is as in ringsCall.
func (e *Engine) ringsRows(x []float32, ldx, m int, ops []Op) {
	panels := 0
	for _, op := range ops {
		panels += op.W.(*Rings).p.PanelCount()
	}
	e.split(panels, func(_, p0, p1 int) {
		for _, op := range ops {
			w := op.W.(*Rings)
			own := w.p.PanelCount()
			for p := max(0, p0); p < min(own, p1); p++ {
				w.panelRows(e, op.Y, x, ldx, m, p)
			}
			p0, p1 = p0-own, p1-own
		}
	})
}

// panelRows computes the rows of a panel of y[m,N], from x or from the engine's in fixed point.
func (w *Rings) panelRows(e *Engine, y, x []float32, ldx, m, panel int) {
	const size = 16 * trellis.RingRows
	var sums, part [ringsFew * size]float32
	var scratch [ringsScratchBytes]byte
	p := w.p
	words := p.Panels[panel*p.PanelBytes():][:p.PanelBytes()]
	total := sums[:m*size]
	unit := w.table.unit
	for b := 0; b < p.Columns(); b += ringsBlocks {
		to, blocks, at := total, min(ringsBlocks, p.Columns()-b), words[b*p.BlockBytes():]
		if b > 0 {
			to = part[:m*size]
		}
		if w.fixed {
			unit = w.whole.unit
			e.isa.ringsFixed(to, &ringsFixedCall{
				m: m, ldx: p.Columns(), x: e.rings.fixed[b:], words: at, blocks: blocks, table: w.whole, scratch: &scratch,
				native: e.rings.native,
			})
		} else {
			e.isa.rings(to, &ringsCall{
				m: m, ldx: ldx, x: x[b*trellis.RingCols:], words: at, blocks: blocks, table: w.table, scratch: &scratch,
			})
		}
		if b > 0 {
			e.isa.add(total, total, to)
		}
	}
	w.finish(y, total, m, panel, unit)
}

// ringsMany computes rows m0 to m0+m of products of many rows of x, which is rotated, times ringsX: what rings hold is unpacked once for a
// worker's rows. Rows that are the same in each ring of a panel are side by side there, and so they are multiplied.
func (e *Engine) ringsMany(x []float32, k, m0, m int, ops []Op) {
	ldx := k
	xAt := func(k0 int) []float32 { return x[k0:] }
	if m > e.isa.rows() {
		xp := e.packX(x, m, k, k)
		xAt, ldx = func(k0 int) []float32 { return xp[k0/kBlock*m*xStride:] }, xStride
	}
	units := e.ringsUnits(m, ops)
	e.parallel(len(units), func(worker, i int) {
		u := units[i]
		op := ops[u.op]
		w := op.W.(*Rings)
		const decoded = repack.RingPanelRows * kBlock
		rows := u.m1 - u.m0
		buf := e.buffer(worker, decoded+rows*repack.RingPanelRows)
		tile := buf[decoded:]
		words := w.p.Panels[u.p0*w.p.PanelBytes():][:w.p.PanelBytes()]
		var scratch [ringsScratchBytes]byte
		for k0 := 0; k0 < k; k0 += kBlock {
			kc := min(kBlock, k-k0)
			blocks := ceilDiv(kc, trellis.RingCols)
			stride := 16 * trellis.RingCols * blocks
			e.isa.unpackRings(buf[:trellis.RingRows*stride], stride, words[k0/trellis.RingCols*w.p.BlockBytes():], blocks, w.table, &scratch)
			e.isa.sweep(sweep{
				y: tile, ldy: repack.RingPanelRows,
				x: xAt(k0)[u.m0*ldx:], ldx: ldx, m: rows,
				b: buf, stride: stride, n: repack.RingPanelRows, k: kc,
				alpha: 1, add: k0 > 0,
			}, &e.tiles[worker])
		}
		w.finish(op.Y[(m0+u.m0)*w.p.N:], tile, rows, u.p0, w.table.unit)
	})
}

// ringsUnits cuts products into panels, by so many rows of x that all workers have some and that unpacking is little beside.
func (e *Engine) ringsUnits(m int, ops []Op) []unit {
	const least = 32
	panels := 0
	for _, op := range ops {
		panels += op.W.(*Rings).p.PanelCount()
	}
	parts := ceilDiv(m, unitRows)
	for panels*parts < 4*e.threads && m/(2*parts) >= least {
		parts *= 2
	}
	units := e.units[:0]
	for t := range parts {
		for i, op := range ops {
			for p := range op.W.(*Rings).p.PanelCount() {
				units = append(units, unit{op: i, m0: m * t / parts, m1: m * (t + 1) / parts, p0: p, p1: p + 1})
			}
		}
	}
	e.units = units
	return units
}

// finish writes the rows of a panel of y[m,N], whose sums are [m][8][16], in units.
func (w *Rings) finish(y, sums []float32, m, panel int, unit float32) {
	const size = repack.RingPanelRows
	var scales [size]float32
	n0 := panel * size
	n := min(size, w.p.N-n0)
	w.scales(scales[:n], n0)
	for r := range m {
		row, from := y[r*w.p.N+n0:], sums[r*size:][:size]
		for i, c := range scales[:n] {
			row[i] = float32(from[i%8*16+i/8]*unit) * c
		}
	}
}
