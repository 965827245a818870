package cpu

import (
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/repack"
)

// planesRows is the largest number of rows of x that are multiplied by binary codes through tables. For
// more, panels are decoded once for all rows.
const planesRows = 6

// Planes is a matrix of binary codes in the CPU layout of package repack.
type Planes struct{ p *repack.CPUPlanes }

// NewPlanes wraps p, which it keeps.
func NewPlanes(p *repack.CPUPlanes) (*Planes, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Planes{p}, nil
}

// Rows returns N.
func (w *Planes) Rows() int { return w.p.N }

// Cols returns K.
func (w *Planes) Cols() int { return w.p.K }

// Bytes returns the size of planes and factors.
func (w *Planes) Bytes() int64 { return w.p.Bytes() }

// Tabled reports whether there are products by w through tables of x: where every half-block has
// one group of factors.
func (w *Planes) Tabled() bool { return w.p.Group%repack.Half == 0 || w.p.Group == w.p.K }

// factorsOf decodes the factors of a group of a panel: the offset, which is 0 where there is none, and those of the
// planes.
func (w *Planes) factorsOf(s isa, dst *[planeFactors][16]float32, panel, group int) {
	p := w.p
	size := 16 * p.ScaleType.Size()
	at := (panel*p.Groups() + group) * p.Vectors() * size
	to := dst[:p.Bits+1]
	if !p.Offsets {
		to[0] = [16]float32{}
		to = to[1:]
	}
	for i := range to {
		s.scales(&to[i], p.Factors[at+i*size:][:size], p.ScaleType)
	}
}

// planeFactors is the most factors that a group has, an offset included.
const planeFactors = 9

func (w *Planes) decode(s isa, dst []float32, panel, k0, kc int) {
	p := w.p
	hb := p.Bits * repack.PlaneBytes
	words := p.Planes[panel*p.PanelBytes():][:p.PanelBytes()]
	var factors [planeFactors][16]float32
	for k := k0; k < k0+kc; {
		group := k / p.Group
		end := min((group+1)*p.Group, k0+kc)
		w.factorsOf(s, &factors, panel, group)
		out, half := dst[16*(k-k0):], words[k/repack.Half*hb:]
		if halves := (end - k) / repack.Half; k%repack.Half == 0 && halves > 0 {
			s.planesDecode(out[:512*halves], half, &factors, p.Bits)
			k += repack.Half * halves
			continue
		}
		// Columns of a half-block that several groups share, or that K cuts short.
		var values [512]float32
		s.planesDecode(values[:], half, &factors, p.Bits)
		from := k % repack.Half
		n := min(repack.Half-from, end-k)
		copy(out[:16*n], values[16*from:])
		k += n
	}
}

// The tables of x. Columns of tableBlock half-blocks are whole numbers of 22 bits times a power of two, the least by
// which the largest of them fits.
const (
	tableBlock = 4
	tableMost  = 1<<21 - 1
	tableTiny  = 0x1p-100 // what the largest is taken for at least
	tableBits  = 20       // the exponent of the largest, times the inverse of the unit
)

// entryBytes is the size of the entries of such tables.
const entryBytes = 3

// PlaneTables are tables of sums of four columns of rows of x, for products by [Planes].
type PlaneTables struct {
	rows, halves int
	precision    lookup.Precision // of tables that FillTables makes,
	k            int              // and the columns that they are of
	width        int              // bytes of an entry
	block        int              // half-blocks with one unit
	bytes        []byte           // [rows][halves][2][width][4 tables][16]
	units        []float32        // [rows][⌈halves/block⌉]
	sums         []float32        // [rows][halves]: of columns
}

// resize makes room for the tables of rows of k columns, with entries of width bytes and a unit for
// every block half-blocks.
func (t *PlaneTables) resize(rows, k, width, block int) {
	halves := ceilDiv(k, repack.Half)
	t.rows, t.halves, t.width, t.block = rows, halves, width, block
	resize := func(v []float32, n int) []float32 { return slices.Grow(v[:0], n)[:n] }
	n := rows * halves * t.halfBytes()
	t.bytes = slices.Grow(t.bytes[:0], n)[:n]
	t.units, t.sums = resize(t.units, rows*ceilDiv(halves, block)), resize(t.sums, rows*halves)
}

// halfBytes is the size of the tables of a half-block.
func (t *PlaneTables) halfBytes() int { return 128 * t.width }

// row returns the tables of a row.
func (t *PlaneTables) row(r int) (bytes []byte, units, sums []float32) {
	n, u := t.halves*t.halfBytes(), ceilDiv(t.halves, t.block)
	return t.bytes[r*n:][:n], t.units[r*u:][:u], t.sums[r*t.halves:][:t.halves]
}

// fill makes the tables of row r, whose length is a multiple of a half-block.
func (t *PlaneTables) fill(s isa, r int, x []float32) {
	bytes, units, sums := t.row(r)
	s.tables(bytes, units, sums, x)
}

// MatMulTables computes products of rows from r0 on of x by its tables. All weights are [Planes] that are tabled,
// of as many columns.
func (e *Engine) MatMulTables(t *PlaneTables, r0, rows int, ops ...Op) {
	planes := make([]planesOp, len(ops))
	for i, op := range ops {
		w := op.W.(*Planes)
		if ceilDiv(w.p.K, repack.Half) != t.halves || r0+rows > t.rows || !w.Tabled() || len(op.Y) < rows*w.p.N {
			panic(badShape)
		}
		planes[i] = planesOp{op.Y, w}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.planesProduct(t, r0, rows, planes)
}

// planesCache is how many bytes of tables a worker goes through for one panel before the next.
const planesCache = 192 << 10

// planesCall is the product of a row of x and a panel.
type planesCall struct {
	words, factors []byte
	stype, bits    int
	offset         int // 1 where there are offsets
	width          int
	tables         []byte
	units, sums    []float32
	halves         int
	group, block   int // in half-blocks
}

// panels computes the rows of panels p0 to p1 of y[rows,N], of rows of the tables from r0 on; y begins with the first of
// them.
func (w *Planes) panels(s isa, y []float32, t *PlaneTables, r0, rows, p0, p1 int) {
	p := w.p
	c := planesCall{
		bits: p.Bits, stype: scalesForm(p.ScaleType), offset: p.Vectors() - p.Bits, width: t.width,
		halves: p.Halves(), group: ceilDiv(p.Group, repack.Half), block: t.block,
	}
	var out [16]float32
	// As many rows at a time as have their tables in level 2 cache.
	turn := max(1, planesCache/(t.halves*t.halfBytes()))
	for from := 0; from < rows; from += turn {
		for i := p0; i < p1; i++ {
			c.words = p.Planes[i*p.PanelBytes():][:p.PanelBytes()]
			c.factors = p.Factors[i*p.PanelFactorBytes():][:p.PanelFactorBytes()]
			n := min(16, p.N-16*i)
			for r := from; r < min(from+turn, rows); r++ {
				c.tables, c.units, c.sums = t.row(r0 + r)
				s.planes(&out, &c)
				copy(y[r*p.N+16*(i-p0):][:n], out[:])
			}
		}
	}
}

// scalesForm returns the form of numbers of a type that binary codes have factors of.
func scalesForm(t weight.ScaleType) int {
	switch t {
	case weight.F16:
		return scalesF16
	case weight.BF16:
		return scalesBF16
	}
	return scalesF32
}

// planesProduct computes products of weights that are tabled, of rows of tables from r0 on.
func (e *Engine) planesProduct(t *PlaneTables, r0, rows int, ops []planesOp) {
	panels := 0
	for _, op := range ops {
		panels += op.w.p.PanelCount()
	}
	e.split(panels, func(_, p0, p1 int) {
		for _, op := range ops {
			own := op.w.p.PanelCount()
			if from, to := max(0, p0), min(own, p1); from < to {
				op.w.panels(e.isa, op.y[16*from:], t, r0, rows, from, to)
			}
			p0, p1 = p0-own, p1-own
		}
	})
}

// planesOp is one of several products of the same x.
type planesOp struct {
	y []float32
	w *Planes
}

// tablesOf makes the tables of x[m,k].
func (e *Engine) tablesOf(x []float32, k, m int) *PlaneTables {
	ldx := ceilDiv(k, repack.Half) * repack.Half
	if ldx != k {
		x = e.padX(x, m, k, ldx)
	}
	t := &e.planeTables
	t.resize(m, k, entryBytes, tableBlock)
	if m == 1 { // less than it takes to wake a worker
		t.fill(e.isa, 0, x[:ldx])
		return t
	}
	e.parallel(m, func(_, r int) { t.fill(e.isa, r, x[r*ldx:][:ldx]) })
	return t
}

// planesGeneric is the definition of the product by planes: y[16].
func planesGeneric(y *[16]float32, c *planesCall) {
	*y = [16]float32{}
	var factors [planeFactors][16]float32
	for h := 0; h < c.halves; {
		// Half-blocks with one group and one unit.
		g := h / c.group
		end := min((g+1)*c.group, (h/c.block+1)*c.block, c.halves)
		vectors := c.bits + c.offset
		for i := range vectors {
			fusedScales(&factors[i], c.factors, g*vectors+i, c.stype)
		}
		if c.offset > 0 {
			for _, sum := range c.sums[h:end] {
				for lane, z := range factors[0] {
					y[lane] = fma32(sum, z, y[lane])
				}
			}
		}
		for plane, alphas := range factors[c.offset:vectors] {
			for lane, a := range alphas {
				var sum int32
				for i := h; i < end; i++ {
					sum += planeSum(c.words[(i*c.bits+plane)*repack.PlaneBytes+lane:], c.tables[i*128*c.width:], c.width)
				}
				y[lane] = fma32(float32(float32(sum)*c.units[h/c.block]), a, y[lane])
			}
		}
		h = end
	}
}

// planeSum returns the sum of what a row of a plane of a half-block, whose bytes are 16 apart, names in tables.
func planeSum(words, tables []byte, width int) (sum int32) {
	for i := range 8 {
		w := words[i/4*32+i%2*16]
		sum += tableEntry(tables, width, i, w>>(i/2%2*4)&15)
	}
	return sum
}

// tableEntry returns an entry of the i-th table of a half-block.
func tableEntry(tables []byte, width, i int, entry uint8) int32 {
	at := i/4*64*width + i%4*16 + int(entry)
	v := int32(int8(tables[at+64*(width-1)]))
	for p := width - 2; p >= 0; p-- {
		v = v<<8 | int32(tables[at+64*p])
	}
	return v
}

// setTable writes the i-th table of a half-block.
func setTable(tables []byte, width, i int, entries *[16]int32) {
	at := i/4*64*width + i%4*16
	for w, v := range entries {
		for p := range width {
			tables[at+64*p+w] = byte(v >> (8 * p))
		}
	}
}

// tablesGeneric makes the tables of a row of x: entry w of a table is the sum of four columns, column j added where
// bit j of w is set and else taken off.
func tablesGeneric(tables []byte, units, sums, x []float32) {
	for b := range units {
		block := x[b*32*tableBlock : min((b+1)*32*tableBlock, len(x))]
		most := math.Float32bits(tableTiny)
		for _, v := range block {
			most = max(most, math.Float32bits(v)&^(1<<31)) // as whole numbers, absolute values are in order
		}
		var inverse float32
		inverse, units[b] = tableUnit(most, tableBits)
		for i := 0; i < len(block); i += 32 {
			h := (b*32*tableBlock + i) / 32
			var sum int32
			for t := range 8 {
				var column [4]int32
				for j, v := range block[i+4*t:][:4] {
					column[j] = tableWhole(float32(v*inverse), tableMost)
					sum += column[j]
				}
				var entries [16]int32
				for w := range entries {
					for j, v := range column {
						entries[w] += v * int32(2*(w>>j&1)-1)
					}
				}
				setTable(tables[h*128*entryBytes:], entryBytes, t, &entries)
			}
			sums[h] = float32(sum) * units[b]
		}
	}
}

// tableUnit returns the unit with which the largest of some numbers, as bits, has an exponent of so many, and its
// inverse. The unit is NaN where that is not finite.
func tableUnit(most uint32, bits uint32) (inverse, unit float32) {
	const exponent = 0xff
	e := most >> 23
	inverse = math.Float32frombits((2*127 + bits - e) << 23)
	if e == exponent {
		return inverse, math.Float32frombits(math.MaxUint32)
	}
	return inverse, math.Float32frombits((e - bits) << 23)
}

// tableWhole rounds a number to one no larger than most.
func tableWhole(v float32, most int32) int32 {
	switch q := math.RoundToEven(float64(v)); {
	case q >= float64(most) && v < math.MaxInt32:
		return most
	case q > float64(-most) && q < float64(most):
		return int32(q)
	default: // as small, too large and NaN
		return -most
	}
}

// planesDecodeGeneric writes the weights of half-blocks of one group to dst [32·halves][16].
func planesDecodeGeneric(dst []float32, words []byte, factors *[planeFactors][16]float32, bits int) {
	for ; len(dst) >= 512; dst = dst[512:] {
		for k := range repack.Half {
			at, bit := repack.PlanePlace(k)
			for lane := range 16 {
				w := factors[0][lane]
				for i, a := range factors[1 : bits+1] {
					if words[i*repack.PlaneBytes+at+lane]>>bit&1 != 0 {
						w += a[lane]
					} else {
						w -= a[lane]
					}
				}
				dst[16*k+lane] = w
			}
		}
		words = words[bits*repack.PlaneBytes:]
	}
}
