package main

import (
	"fmt"
	"math"
)

// neonFixed are the kernels in fixed point; see fixed.go in package cpu. Bytes of 16 codes, of four columns in four rows, are looked up in
// planes of the table. With dot there are products of bytes: a value is 256·hi + lo, and so is a column of x, with signs in both bytes.
// Without, bytes become words.
type neonFixed struct {
	*gen
	bits int
	dot  bool

	planes       int // registers of the table: lo, hi, then at 2 bits those of the upper codes of pairs
	mask, top    int
	rest         int // at 3 bits
	word, lo, hi int
	tmp          int
}

func (f *neonFixed) suffix() string {
	if f.dot {
		return "DotNEON"
	}
	return "NEON"
}

// load gives out registers from one on and loads the table that a register points at.
func (f *neonFixed) load(first int, table string) {
	n := 2
	if f.bits == 2 || f.bits == 5 {
		n = 4
	}
	f.planes = first
	f.mask, f.top, f.rest = first+n, first+n+1, first+n+1
	f.word, f.lo, f.hi, f.tmp = first+n+2, first+n+3, first+n+4, first+n+5
	if f.tmp > 31 {
		panic(fmt.Sprintf("%d bits: too many registers", f.bits))
	}
	at := []int{0, 32, 64, 96}
	if f.bits == 5 {
		at = []int{0, 64, 32, 96} // both halves of the low bytes behind one another
	}
	for i := range n {
		f.ldq(f.planes+i, table, at[i])
	}
	if f.dot {
		// A low byte of 128 or more counts as that less 256, and the high one is one more.
		for i := range n / 2 {
			lo, hi := f.planes+2*i, f.planes+2*i+1
			if f.bits == 5 {
				lo, hi = f.planes+i, f.planes+2+i
			}
			f.shift("VUSRA", "B16", hi, lo, 7)
		}
	}
	mask := 0x0f
	if f.bits == 5 {
		mask = 0x1f
	}
	f.i("VMOVI $0x%02x, V%d.B16", mask, f.mask)
}

// begin loads what all columns of four rows share.
func (f *neonFixed) begin(load func(j, r int)) {
	switch f.bits {
	case 3:
		f.neonRest(f.rest, f.tmp, f.word, load)
	case 5:
		load(4, f.top)
	}
}

// lookup sets lo and hi to the bytes of the values of the l-th four columns.
func (f *neonFixed) lookup(l int, load func(j, r int)) {
	idx := f.word
	plane := f.planes
	switch {
	case f.bits == 2:
		// idx names pairs of columns.
		if l%2 == 0 {
			load(l/4, idx)
			f.nibble(idx, idx, l/2%2)
		} else {
			plane += 2
		}
	case f.bits == 3 && l >= 6:
		f.nibble(idx, f.rest, l-6)
	case f.bits == 5:
		load(l/2, idx)
		f.right("B16", idx, idx, l%2*4)
		f.right("B16", f.tmp, f.top, 7-l)
		f.shift("VSLI", "B16", idx, f.tmp, 4)
		f.and(idx, idx, f.mask)
		f.tbl(f.lo, plane, 2, idx, false)
		f.tbl(f.hi, plane+2, 2, idx, false)
		return
	default:
		load(l/2, idx)
		f.nibble(idx, idx, l%2)
	}
	f.tbl(f.lo, plane, 1, idx, false)
	f.tbl(f.hi, plane+1, 1, idx, false)
}

// nibble sets idx to the lower or the upper four bits of every byte of src.
func (f *neonFixed) nibble(idx, src, upper int) {
	if upper > 0 {
		f.right("B16", idx, src, 4)
	} else {
		f.and(idx, src, f.mask)
	}
}

// neonSplit sets lo and hi to bytes of 16 columns of x, whose words are in two registers. It changes nothing else.
func (g *gen) neonSplit(lo, hi, a, b int) {
	g.three("VUZP1", "B16", lo, a, b)
	g.three("VUZP2", "B16", hi, a, b)
	g.shift("VUSRA", "B16", hi, lo, 7)
}

// prepare writes a half-block of m rows of x, rows of them from R4 on, to the frame: with dot bytes, else words of four columns twice.
func (f *neonFixed) prepare(m, frame int) {
	for r := range m {
		row := fmt.Sprintf("R%d", 4+r)
		a, b, lo, hi := f.word, f.lo, f.hi, f.tmp
		if f.dot {
			for half := range 2 {
				f.ldq(a, row, 32*half)
				f.ldq(b, row, 32*half+16)
				f.neonSplit(lo, hi, a, b)
				f.stq(lo, "RSP", frame+64*r+32*half)
				f.stq(hi, "RSP", frame+64*r+32*half+16)
			}
			continue
		}
		for q := range 4 {
			f.ldq(a, row, 16*q)
			for i := range 2 {
				f.i("VDUP V%d.D[%d], V%d.D2", a, i, b)
				f.stq(b, "RSP", frame+128*r+32*q+16*i)
			}
		}
	}
}

// sums is how many registers the sums of four rows of W by a row of x take.
func (f *neonFixed) sums() int {
	if f.dot {
		return 3
	}
	return 4
}

// kernel emits the product of up to fixedRows rows of x and a panel.
func (f *neonFixed) kernel() {
	f.raw("\n// func fixed%d%s(%s)", f.bits, f.suffix(), fixedSig)
	frame := 16 + 64 + 128*fixedRows
	f.raw("TEXT ·fixed%d%s(SB), NOSPLIT, $%d-%d", f.bits, f.suffix(), frame, fixedArgs)
	f.args("m+0", "R0", "y+8", "R1", "x+16", "R4", "xscales+24", "R9", "ldx+32", "R2", "words+40", "R8", "scales+48", "R10",
		"stype+56", "R11", "table+64", "R3", "halves+80", "R12")
	for m := fixedRows; m > 1; m-- {
		f.i("CMP $%d, R0", m)
		f.i("BEQ  rows%d", m)
	}
	for m := 1; m <= fixedRows; m++ {
		f.rows(m)
	}
}

func (f *neonFixed) rows(m int) {
	name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
	row := func(r int) string { return fmt.Sprintf("R%d", 4+r) }
	// The frame: the scales of the group, times the unit of the table, then x. The first 16 bytes are the assembler's.
	const scales, frame = 16, 16 + 64
	acc := func(r int) int { return f.sums() * r }
	x := f.sums() * m
	xs := 1
	if f.dot {
		xs = min(4*m, 8)
	}
	f.label(name("rows"))
	f.load(x+xs, "R3")
	for r := 1; r < m; r++ {
		f.i("ADD R2, %s, %s", row(r-1), row(r))
	}
	f.clear(f.tmp)
	for i := range 4 * m {
		f.stq(f.tmp, "R1", 16*i)
	}
	f.i("MOVD $0, R13")

	f.label(name("half"))
	f.i("CBNZ R13, %s", name("same"))
	f.i("MOVD group+88(FP), R13")
	f.dupArg(f.tmp, "unit+72")
	f.neonScales(name, "R10", "R11", func(int) int { return f.lo }, func(q, scale int) {
		f.op("fmul", scale, scale, f.tmp)
		f.stq(scale, "RSP", scales+16*q)
	})
	f.i("MOVD $32, R14")
	f.i("MOVD $64, R15")
	f.i("CMP $2, R11")
	f.i("CSEL EQ, R15, R14, R14")
	f.i("ADD R14, R10")
	f.label(name("same"))
	f.prepare(m, frame)
	// Bytes of one or two rows of x stay in registers, of more those of 16 columns.
	whole := f.dot && m <= 2
	if whole {
		for i := range 4 * m {
			f.ldq(x+i, "RSP", frame+16*i)
		}
	}
	f.i("MOVD R1, R15")
	f.i("ADD $%d, RSP, R14", scales)
	f.i("MOVD $4, R17")
	f.label(name("quarter")) // of the rows of W
	load := func(j, r int) { f.ldq(r, "R8", 64*j) }
	for i := range f.sums() * m {
		f.clear(i)
	}
	f.begin(load)
	for l := range 8 {
		if f.dot && !whole && l%4 == 0 {
			for r := range m {
				f.ldq(x+2*r, "RSP", frame+64*r+8*l)
				f.ldq(x+2*r+1, "RSP", frame+64*r+8*l+16)
			}
		}
		f.lookup(l, load)
		if !f.dot {
			f.three("VZIP1", "B16", f.tmp, f.lo, f.hi)
			f.three("VZIP2", "B16", f.hi, f.lo, f.hi)
		}
		for r := range m {
			if f.dot {
				at := x + 2*r
				if whole {
					at = x + 4*r + l/4*2
				}
				f.products(acc(r), f.lo, f.hi, at, l%4)
				continue
			}
			f.ldq(x, "RSP", frame+128*r+16*l)
			for i, w := range []int{f.tmp, f.hi} {
				f.op("smlal", acc(r)+2*i, w, x)
				f.op("smlal2", acc(r)+2*i+1, w, x)
			}
		}
	}
	f.ldq(f.lo, "R14", 0)
	for r := range m {
		f.total(acc(r))
		f.i("FMOVS %d(R9), F%d", 4*r, f.word)
		f.op("scvtf", acc(r), acc(r))
		f.fmulBy(acc(r), acc(r), f.word, 0)
		f.ldq(f.hi, "R15", 64*r)
		f.fmla(f.hi, acc(r), f.lo)
		f.stq(f.hi, "R15", 64*r)
	}
	for _, p := range []string{"R8", "R14", "R15"} {
		f.i("ADD $16, %s", p)
	}
	f.next("R17", 1, name("quarter"))
	f.i("ADD $%d, R8", 64*f.bits-64)
	for r := range m {
		f.i("ADD $64, %s", row(r))
	}
	f.i("ADD $%d, R9", 4*m)
	f.i("SUB $1, R13")
	f.next("R12", 1, name("half"))
	f.i("RET")
}

// products adds those of four columns to sums: of high bytes, of different ones, of low bytes. x has its low bytes before its high ones.
func (g *gen) products(acc, lo, hi, x, l int) {
	g.sdotBy(acc, hi, x+1, l)
	g.sdotBy(acc+1, lo, x+1, l)
	g.sdotBy(acc+2, lo, x, l)
	g.sdotBy(acc+1, hi, x, l)
}

// total sets the first of some sums to what they are together, for four rows.
func (f *neonFixed) total(acc int) {
	if f.dot {
		f.shift("VSHL", "S4", acc, acc, 16)
		f.shift("VSHL", "S4", acc+1, acc+1, 8)
		f.three("VADD", "S4", acc, acc, acc+1)
		f.three("VADD", "S4", acc, acc, acc+2)
		return
	}
	f.three("VADDP", "S4", acc, acc, acc+1)
	f.three("VADDP", "S4", acc+2, acc+2, acc+3)
	f.three("VADDP", "S4", acc, acc, acc+2)
}

// unpack emits the table's values of the codes of half-blocks, for gemm: four rows by four rows. With dot 16 low and 16 high bytes of four
// columns, else eight columns of each row behind one another.
func (f *neonFixed) unpack() {
	f.text(fmt.Sprintf("unpackFixed%d%s", f.bits, f.suffix()), "dst *int16, words, table *byte, halves int", 32)
	f.args("dst+0", "R0", "words+8", "R8", "table+16", "R3", "halves+24", "R12")
	f.load(8, "R3")
	f.label("half")
	f.i("MOVD $4, R13")
	f.label("rows")
	load := func(j, r int) { f.ldq(r, "R8", 64*j) }
	f.begin(load)
	for l := range 8 {
		f.lookup(l, load)
		if f.dot {
			f.stq(f.lo, "R0", 32*l)
			f.stq(f.hi, "R0", 32*l+16)
			continue
		}
		at := 2 * (l % 2)
		f.three("VZIP1", "B16", at, f.lo, f.hi)
		f.three("VZIP2", "B16", at+1, f.lo, f.hi)
		if l%2 == 1 {
			for i := range 2 { // two rows each
				f.three("VZIP1", "D2", 4, i, 2+i)
				f.three("VZIP2", "D2", 5, i, 2+i)
				f.stq(4, "R0", 32*(l-1)+32*i)
				f.stq(5, "R0", 32*(l-1)+32*i+16)
			}
		}
	}
	f.i("ADD $256, R0")
	f.i("ADD $16, R8")
	f.next("R13", 1, "rows")
	f.i("ADD $%d, R8", 64*f.bits-64)
	f.next("R12", 1, "half")
	f.i("RET")
}

// gemm emits the product of many rows of x and what unpack has unpacked. ldy is in bytes.
func (f *neonFixed) gemm() {
	const sig = "m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int"
	frame := 0
	if f.dot {
		frame = 16 + 64*fixedTile
	}
	f.raw("\n// func gemmFixed%s(%s)", f.suffix(), sig)
	f.raw("TEXT ·gemmFixed%s(SB), NOSPLIT, $%d-72", f.suffix(), frame)
	f.args("m+0", "R0", "y+8", "R1", "ldy+16", "R2", "x+24", "R4", "xscales+32", "R9", "w+40", "R8", "scales+48", "R10", "halves+56", "R12",
		"add+64", "R13")
	for m := fixedTile; m > 1; m-- {
		f.i("CMP $%d, R0", m)
		f.i("BEQ  rows%d", m)
	}
	const out, value = "R14", "R17"
	for m := 1; m <= fixedTile; m++ {
		name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
		acc := func(r int) int { return f.sums() * r }
		w := f.sums() * m
		tmp := 31
		f.label(name("rows"))
		f.i("CBNZ R13, %s", name("half"))
		f.clear(tmp)
		f.i("MOVD R1, %s", out)
		for range m {
			for q := range 4 {
				f.stq(tmp, out, 16*q)
			}
			f.i("ADD R2, %s", out)
		}
		f.label(name("half"))
		if f.dot {
			for r := range m {
				for half := range 2 {
					f.ldq(0, "R4", 64*r+32*half)
					f.ldq(1, "R4", 64*r+32*half+16)
					f.neonSplit(2, 3, 0, 1)
					f.stq(2, "RSP", 16+64*r+32*half)
					f.stq(3, "RSP", 16+64*r+32*half+16)
				}
			}
		}
		f.i("MOVD R1, %s", value)
		f.i("MOVD $4, R11")
		f.label(name("quarter"))
		for i := range w {
			f.clear(i)
		}
		if f.dot {
			for half := range 2 { // of the columns
				for i := range 8 {
					f.ldq(w+i, "R8", 128*half+16*i)
				}
				for r := range m {
					x := w + 8
					f.ldq(x, "RSP", 16+64*r+32*half)
					f.ldq(x+1, "RSP", 16+64*r+32*half+16)
					for l := range 4 {
						f.products(acc(r), w+2*l, w+2*l+1, x, l)
					}
				}
			}
		} else {
			for eight := range 4 {
				for i := range 4 {
					f.ldq(w+i, "R8", 64*eight+16*i)
				}
				for r := range m {
					x := w + 4
					f.ldq(x, "R4", 64*r+16*eight)
					for i := range 4 {
						f.op("smlal", acc(r)+i, w+i, x)
						f.op("smlal2", acc(r)+i, w+i, x)
					}
				}
			}
		}
		scale, s := w, w+1
		f.ldq(scale, "R10", 0)
		f.i("MOVD %s, %s", value, out)
		for r := range m {
			f.total(acc(r))
			f.i("FMOVS %d(R9), F%d", 4*r, s)
			f.op("scvtf", acc(r), acc(r))
			f.fmulBy(acc(r), acc(r), s, 0)
			f.ldq(tmp, out, 0)
			f.fmla(tmp, acc(r), scale)
			f.stq(tmp, out, 0)
			f.i("ADD R2, %s", out)
		}
		f.i("ADD $256, R8")
		f.i("ADD $16, R10")
		f.i("ADD $16, %s", value)
		f.next("R11", 1, name("quarter"))
		f.i("ADD $%d, R9", 4*m)
		f.i("ADD $%d, R4", 64*m)
		f.next("R12", 1, name("half"))
		f.i("RET")
	}
}

// neonQuantize emits quantize.
func (g *gen) neonQuantize() {
	g.text("quantizeNEON", "dst *int16, step int, scales *float32, stride int, src *float32, blocks int", 48)
	g.args("dst+0", "R0", "step+8", "R2", "scales+16", "R4", "stride+24", "R5", "src+32", "R1", "blocks+40", "R3")
	const part, abs, tiny, most, unit, invalid, sum, top, tmp, mask = 24, 25, 26, 27, 28, 29, 16, 18, 19, 20
	g.dup32(part, math.Float32bits(1./16))
	g.dup32(abs, 0x7fffffff)
	g.dup32(tiny, math.Float32bits(fixedTiny))
	g.dup32(most, math.Float32bits(fixedX))
	g.dup32(unit, math.Float32bits(float32(1)/fixedX))
	g.dup32(invalid, 0x80000000)
	g.label("block")
	for i := range 8 {
		g.ldq(i, "R1", 16*i)
		g.and(8+i, i, abs)
	}
	for h := range 2 {
		g.op("fadd", sum+h, 8+h, 10+h)
		g.op("fadd", tmp, 12+h, 14+h)
		g.op("fadd", sum+h, sum+h, tmp)
		g.op("fmul", sum+h, sum+h, part)
	}
	g.op("fadd", sum, sum, sum+1)
	g.three("VEXT $8,", "B16", tmp, sum, sum)
	g.op("fadd", sum, sum, tmp)
	g.i("VREV64 V%d.S4, V%d.S4", sum, tmp)
	g.op("fadd", sum, sum, tmp)
	// As whole numbers, absolute values are in order, and no NaN is lost.
	g.three("VUMAX", "S4", top, sum, tiny)
	for i := range 8 {
		g.three("VUMAX", "S4", top, top, 8+i)
	}
	g.umaxv(top, top)
	g.i("VDUP V%d.S[0], V%d.S4", top, top)
	g.op("fmul", tmp, top, unit)
	g.i("FMOVS F%d, (R4)", tmp)
	g.op("fdiv", tmp, most, top)
	for i := range 8 {
		g.op("fmul", i, i, tmp)
		g.op("fcmeq", mask, i, i)
		g.op("fcvtns", i, i)
		g.bif(i, invalid, mask)
	}
	for i := 0; i < 8; i += 2 {
		g.op("sqxtn", 8+i, i)
		g.op("sqxtn2", 8+i, i+1)
		g.stq(8+i, "R0", 8*i)
	}
	g.i("ADD $128, R1")
	g.i("ADD R2, R0")
	g.i("ADD R5, R4")
	g.next("R3", 1, "block")
	g.i("RET")
}
