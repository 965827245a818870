package cpu

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/lutq/lutq/repack"
)

const (
	// fixedTurn is the largest number of rows that a kernel takes.
	fixedTurn = 4

	// fixedX is the largest column of x in a block, 16 times that the sum of
	// all but for rounding, and fixedTable the largest value of a table: a sum
	// of 32 products stays below 2^31.
	fixedX     = 1<<14 - 1
	fixedTable = 1<<13 - 1

	// fixedTiny is what the largest column of a block is taken for at least.
	fixedTiny = 0x1p-111
)

// FixedError bounds the relative error that fixed point adds to a product, in
// the Frobenius norm, where neither the columns of x nor the values that codes
// name are such that the products cancel.
const FixedError = 2e-4

// fixedLUT is the table of a [LUT] in fixed point.
type fixedLUT struct {
	values [32]int16  // by code
	unit   float32    // what 1 stands for
	bytes  [160]byte  // values as the kernels look them up: see fill
	steps  *[160]byte // of values that are equally far apart, what the kernels for those take: see equalSteps
}

// Fix has products by w done in fixed point: see the package documentation. It
// lays the codes out anew, in as much memory, and reports whether it could:
// groups must be multiples of 32 columns or rows, and the table not too large
// or small. Gradients stay the same. It must not run beside anything else that
// uses w.
func (w *LUT) Fix() bool {
	if w.fixed != nil {
		return true
	}
	t := newFixedLUT(w.p.Codebook)
	if t == nil || !w.fusable() {
		return false
	}
	p, err := w.p.Rearranged(true)
	if err != nil { // NewLUT has checked it
		return false
	}
	w.p, w.fixed = p, t
	return true
}

// newFixedLUT returns a codebook in fixed point, nil if its largest value is
// so far from 1 that products with scales and x could leave the range.
func newFixedLUT(codebook []float32) *fixedLUT {
	var most float64
	for _, c := range codebook {
		most = max(most, math.Abs(float64(c))) // keeps a NaN
	}
	if most == 0 {
		most = 1
	}
	if !(most >= 0x1p-40 && most <= 0x1p40) {
		return nil
	}
	// Of the units that give the largest value nearly all its bits, the one
	// that rounds the others least. Even levels become exact.
	const units = 512
	t, least := new(fixedLUT), math.Inf(1)
	for n := fixedTable; n > fixedTable-units; n-- {
		unit, sum := float64(float32(most/float64(n))), 0.0
		for _, c := range codebook {
			e := float64(c) - unit*math.RoundToEven(float64(c)/unit)
			sum += e * e
		}
		if sum < least {
			least, t.unit = sum, float32(unit)
		}
	}
	for i := range t.values {
		t.values[i] = int16(math.RoundToEven(float64(codebook[i%len(codebook)]) / float64(t.unit)))
	}
	t.fill(len(codebook))
	t.steps = equalSteps(t.values[:len(codebook)])
	return t
}

// equalSteps returns masks of codes, the first value, 32 bits, and the step between values, in 32 and in 16 bits, each over and over in
// 32 bytes; nil if steps differ.
func equalSteps(values []int16) *[160]byte {
	first, step := values[0], values[1]-values[0]
	for i, v := range values {
		if v != first+int16(i)*step {
			return nil
		}
	}
	low, top := byte(0x0f), byte(0)
	switch len(values) {
	case 4:
		low = 0x03
	case 8:
		low, top = 0x07, 0x88
	case 32:
		top = 0x10
	}
	at := new([160]byte)
	for i := range 32 {
		at[i], at[32+i] = low, top
	}
	for i := 0; i < 32; i += 4 {
		binary.LittleEndian.PutUint32(at[64+i:], uint32(first))
		binary.LittleEndian.PutUint32(at[96+i:], uint32(step))
		binary.LittleEndian.PutUint16(at[128+i:], uint16(step))
		binary.LittleEndian.PutUint16(at[130+i:], uint16(step))
	}
	return at
}

// fill writes the planes of 16 bytes that a shuffle looks up, each twice, the
// low bytes of values before the high ones: at 2 bits of the lower code of a
// pair, then of the upper; at 5 bits of either half. Behind them are masks.
func (t *fixedLUT) fill(values int) {
	at := t.bytes[:0]
	plane := func(code func(i int) int) {
		for _, shift := range []int{0, 8} {
			for i := range 32 {
				at = append(at, byte(t.values[code(i%16)]>>shift))
			}
		}
	}
	plane(func(i int) int { return i % values })
	switch values {
	case 4:
		plane(func(i int) int { return i / 4 })
	case 32:
		plane(func(i int) int { return 16 + i })
	}
	if values == 8 {
		at = append(at, slices.Repeat([]byte{0x77}, 32)...)
		_ = append(at, slices.Repeat([]byte{0x88}, 32)...)
		return
	}
	_ = append(at, slices.Repeat([]byte{0x0f}, 32)...)
}

// fixedCall is the product of m ≤ fixedTurn rows of x, ldx elements apart, and
// a panel.
type fixedCall struct {
	m, ldx        int
	x             []int16   // zero between K and the end of its half-block; see isa.order
	xscales       []float32 // [halves][m]
	words, scales []byte
	stype, bits   int
	table         *fixedLUT
	halves, group int  // in half-blocks
	steps         bool // by the kernels for equal steps: x and xscales are as fixedRows.part has made them
}

// fixedRows holds rows of x in fixed point, some of which are taken at a time.
type fixedRows struct {
	x         []int16   // [m][halves][32], or in the order of scales
	scales    []float32 // [⌈m/turn⌉][halves][rows of the turn]
	bytes     []int16   // [halves], 32 bytes of lower bits and 32 of upper ones of a single row: see part
	sums      []float32 // scales, each with the bits of the sum of 32 columns, a whole number, behind it
	m, halves int
	turn      int
}

// resize makes room for m rows.
func (f *fixedRows) resize(m, halves, turn int) {
	f.m, f.halves, f.turn = m, halves, turn
	f.x = slices.Grow(f.x[:0], 32*m*halves)[:32*m*halves]
	f.scales = slices.Grow(f.scales[:0], m*halves)[:m*halves]
}

// quantize rounds rows r0 to r1 of x[m,32·halves], a row behind the other or all rows of a turn side by side.
func (f *fixedRows) quantize(s isa, x []float32, r0, r1 int, sideBySide bool) {
	k := 32 * f.halves
	for r := r0; r < r1; r++ {
		t := r - r%f.turn
		rows, first := min(f.turn, f.m-t), t*f.halves+r-t
		dst, step := f.x[r*k:], 32
		if sideBySide {
			dst, step = f.x[32*first:], 32*rows
		}
		s.quantize(dst, step, f.scales[first:], rows, x[r*k:][:k])
	}
}

// part parts a single row for tables of equal steps.
func (f *fixedRows) part(s isa) {
	f.bytes = slices.Grow(f.bytes[:0], len(f.x))[:len(f.x)]
	f.sums = slices.Grow(f.sums[:0], 2*len(f.scales))[:2*len(f.scales)]
	s.fixedBytes(f.bytes, f.x, f.sums, f.scales)
}

// fixedPanels computes the rows of panels p0 to p1 of y[m,N]; y begins with
// the first of them.
func (w *LUT) fixedPanels(s isa, y []float32, f *fixedRows, m, p0, p1 int, scratch *fusedScratch) {
	p := w.p
	c := fixedCall{ldx: 32 * f.halves, bits: p.Bits, table: w.fixed, halves: p.Halves(), group: ceilDiv(p.Group, 32), steps: w.bySteps(s, m)}
	x, scales := f.x, f.scales
	if c.steps {
		x, scales = f.bytes, f.sums
	}
	for ; p0 < p1; p0++ {
		c.words = p.Panels[p0*p.PanelBytes():][:p.PanelBytes()]
		c.scales, _, c.stype = w.scalesFor(s, p0, 1, scratch)
		n := min(16, p.N-16*p0)
		for r0 := 0; r0 < m; r0 += fixedTurn {
			c.m, c.x, c.xscales = min(fixedTurn, m-r0), x[r0*c.ldx:], scales[r0*c.halves:]
			s.fixed(scratch.y[:16*c.m], &c)
			for r := range c.m {
				copy(y[(r0+r)*p.N:][:n], scratch.y[16*r:])
			}
		}
		y = y[n:]
	}
}

// bySteps reports whether products of m rows take the kernels for equal steps. They give the same sums.
func (w *LUT) bySteps(s isa, m int) bool { return m == 1 && w.fixed.steps != nil && s.steps() }

// fixedProduct computes products of weights in fixed point.
func (e *Engine) fixedProduct(x []float32, k, m int, ops []Op) {
	ldx := ceilDiv(k, 32) * 32
	if ldx != k {
		x = e.padX(x, m, k, ldx)
	}
	e.fixedX.resize(m, ldx/32, fixedTurn)
	e.fixedX.quantize(e.isa, x, 0, m, false)
	if slices.ContainsFunc(ops, func(op Op) bool { return op.W.(*LUT).bySteps(e.isa, m) }) {
		e.fixedX.part(e.isa)
	}
	e.isa.order(e.fixedX.x)
	panels := 0
	for _, op := range ops {
		panels += op.W.(*LUT).p.PanelCount()
	}
	e.split(panels, func(worker, p0, p1 int) {
		for _, op := range ops {
			own := op.W.(*LUT).p.PanelCount()
			if from, to := max(0, p0), min(own, p1); from < to {
				op.W.(*LUT).fixedPanels(e.isa, op.Y[16*from:], &e.fixedX, m, from, to, &e.fusedScratch[worker])
			}
			p0, p1 = p0-own, p1-own
		}
	})
}

// fixedGeneric is the definition of the product in fixed point: y[m][16].
func fixedGeneric(y []float32, c *fixedCall) {
	clear(y)
	var scale [16]float32
	var codes [32]uint8
	for h := range c.halves {
		if h%c.group == 0 {
			fusedScales(&scale, c.scales, h/c.group, c.stype)
			for i := range scale {
				scale[i] *= c.table.unit
			}
		}
		words := c.words[64*c.bits*h:]
		for lane, s := range scale {
			codesByBytes(&codes, words[4*lane:], c.bits)
			for r := range c.m {
				x := (*[32]int16)(c.x[r*c.ldx+32*h:])
				var sum int32
				for k, code := range codes {
					sum += int32(c.table.values[code]) * int32(x[k])
				}
				y[16*r+lane] = fma32(float32(float32(sum)*c.xscales[h*c.m+r]), s, y[16*r+lane])
			}
		}
	}
}

// quantizeGeneric rounds x, blocks of 32 columns, to dst, step elements apart,
// and their scales stride.
func quantizeGeneric(dst []int16, step int, scales []float32, stride int, x []float32) {
	for b := 0; 32*b < len(x); b++ {
		block := x[32*b:][:32]
		// As whole numbers, absolute values are in order, and no NaN is lost.
		most := math.Float32bits(fixedTiny)
		var sums [8]float32
		abs := func(i int) float32 { return math.Float32frombits(math.Float32bits(block[i]) &^ (1 << 31)) }
		for i := range sums {
			sums[i] = float32(((abs(i) + abs(8+i)) + (abs(16+i) + abs(24+i))) * (1. / 16))
		}
		for n := 4; n > 0; n /= 2 {
			for i := range n {
				sums[i] += sums[n+i]
			}
		}
		for i := range block {
			most = max(most, math.Float32bits(abs(i)))
		}
		most = max(most, math.Float32bits(sums[0]))
		inverse := fixedX / math.Float32frombits(most)
		scales[stride*b] = math.Float32frombits(most) * (1 / float32(fixedX))
		for i, v := range block {
			switch q := math.RoundToEven(float64(float32(v * inverse))); {
			case q >= -fixedX && q <= fixedX:
				dst[step*b+i] = int16(q)
			default: // of NaN and infinity
				dst[step*b+i] = math.MinInt16
			}
		}
	}
}

// fixedBytesGeneric parts blocks of a row of x, 32 bytes of the lower 7 bits and 32 of what is above them, and writes their scales, each
// with the sum of the block behind it.
func fixedBytesGeneric(dst, x []int16, sums, scales []float32) {
	for b := range len(x) / 32 {
		var sum int32
		low, high := dst[32*b:][:16], dst[32*b+16:][:16]
		for i := range 16 {
			v, w := x[32*b+2*i], x[32*b+2*i+1]
			sum += int32(v) + int32(w)
			low[i] = v&127 | w&127<<8
			high[i] = max(v>>7, math.MinInt8)&255 | max(w>>7, math.MinInt8)<<8
		}
		sums[2*b], sums[2*b+1] = scales[b], math.Float32frombits(uint32(sum))
	}
}

// codesByBytes reads the codes of a row of a half-block by bytes, whose words
// are 64 bytes apart.
func codesByBytes(codes *[32]uint8, words []byte, bits int) {
	var w [5]uint32
	for j := range bits {
		w[j] = binary.LittleEndian.Uint32(words[64*j:])
	}
	put := func(l int, v uint32) { binary.LittleEndian.PutUint32(codes[4*l:], v) }
	switch bits {
	case 2:
		for l := range 8 {
			put(l, w[l/4]>>(2*(l%4))&0x03030303)
		}
	case 3:
		for l := range 6 {
			put(l, w[l/2]>>(4*(l%2))&0x07070707)
		}
		rest := w[0]>>3&0x11111111 | w[1]>>2&0x22222222 | w[2]>>1&0x44444444
		put(6, rest&0x0f0f0f0f)
		put(7, rest>>4&0x0f0f0f0f)
	default:
		for l := range 8 {
			v := w[l/2] >> (4 * (l % 2)) & 0x0f0f0f0f
			if bits == 5 {
				v |= w[4] >> (7 - l) & 0x01010101 << 4
			}
			put(l, v)
		}
	}
}

// decodeBytesGeneric is decodeGeneric for codes by bytes.
func decodeBytesGeneric(dst []float32, words []byte, bits int, t *[32]float32, scales *[16]float32) {
	var codes [32]uint8
	for ; len(dst) >= 16*repack.Half; dst = dst[16*repack.Half:] {
		for lane, s := range scales {
			codesByBytes(&codes, words[4*lane:], bits)
			for k, c := range codes {
				dst[16*k+lane] = t[c] * s
			}
		}
		words = words[64*bits:]
	}
}
