package main

import "fmt"

// neonLookup looks values of a table of float32 up: four at a time, by bytes.
type neonLookup struct {
	*gen
	bits              int
	table             int // registers from here: as many as tables
	tables            int
	mask, base, times int
}

// newNeonLookup gives out registers from one on, and loads the table that a register points at.
func newNeonLookup(g *gen, bits, first int, table string) *neonLookup {
	l := &neonLookup{gen: g, bits: bits, table: first, tables: 4 << bits / 16}
	l.mask, l.base, l.times = first+l.tables, first+l.tables+1, first+l.tables+2
	for i := range l.tables {
		g.ldq(first+i, table, 16*i)
	}
	g.dup32(l.mask, 1<<bits-1)
	g.dup32(l.base, 0x03020100)
	g.dup32(l.times, 0x04040404)
	return l
}

// value sets dst to the values of the codes in idx, which may have other bits above. It changes idx.
func (l *neonLookup) value(dst, idx int) {
	l.and(idx, idx, l.mask)
	l.mov(dst, l.base)
	l.op("mla", dst, idx, l.times) // the four bytes of a value
	if l.tables <= 4 {
		l.tbl(dst, l.table, l.tables, dst, false)
		return
	}
	// The second half of the table is named by what is over 64.
	l.clear(idx)
	l.i("VMOVI $64, V%d.B16", idx)
	l.three("VSUB", "B16", idx, dst, idx)
	l.tbl(dst, l.table, 4, dst, false)
	l.tbl(dst, l.table+4, 4, idx, true)
}

// neonSpare sets spare to the codes of the last two columns of a half-block, the upper two bits of each word; word loads one.
func (g *gen) neonSpare(bits, spare, tmp int, word func(j, r int)) {
	for j := range bits {
		r := tmp
		if j == 0 {
			r = spare
		}
		word(j, r)
		g.shift("VUSHR", "S4", r, r, 30)
		if j > 0 {
			g.shift("VSHL", "S4", r, r, 2*j)
			g.orr(spare, spare, r)
		}
	}
}

// neonDecode emits decode, and with bytes decodeBytes: four rows at a time.
func (g *gen) neonDecode(bits int, bytes bool) {
	name := "decode"
	if bytes {
		name = "decodeBytes"
	}
	g.text(fmt.Sprintf("%s%dNEON", name, bits), "dst *float32, words *byte, table, scales *float32, halves int", 40)
	g.args("dst+0", "R0", "words+8", "R1", "table+16", "R4", "halves+32", "R3")
	const scale, word, idx, tmp, value, top = 0, 1, 2, 3, 4, 5
	l := newNeonLookup(g, bits, 8, "R4")
	g.label("half")
	g.i("MOVD scales+24(FP), R5")
	g.i("MOVD $4, R6")
	g.label("rows")
	g.ldq(scale, "R5", 0)
	column := func(k int) {
		l.value(value, idx)
		g.op("fmul", value, value, scale)
		g.stq(value, "R0", 64*k)
	}
	load := func(j, r int) { g.ldq(r, "R1", 64*j) }
	if bytes {
		l.columnsByBytes(load, word, idx, tmp, top, column)
	} else {
		per := 32 / bits
		for j := range bits {
			load(j, word)
			for i := range per {
				g.right("S4", idx, word, bits*i)
				column(j*per + i)
			}
		}
		if per*bits < 32 {
			g.neonSpare(bits, word, tmp, load)
			for i := range 2 {
				g.right("S4", idx, word, bits*i)
				column(30 + i)
			}
		}
	}
	g.i("ADD $16, R0")
	g.i("ADD $16, R1")
	g.i("ADD $16, R5")
	g.next("R6", 1, "rows")
	g.i("ADD $%d, R0", 2048-64)
	g.i("ADD $%d, R1", 64*bits-64)
	g.next("R3", 1, "half")
	g.i("RET")
}

// columnsByBytes calls column with the codes of each column in idx.
func (l *neonLookup) columnsByBytes(load func(j, r int), word, idx, tmp, top int, column func(k int)) {
	if l.bits == 5 {
		load(4, top)
	}
	columns := func(first, n, width int) {
		for i := range 4 {
			for c := range n {
				k := 4*(first+c) + i
				l.right("S4", idx, word, 8*i+width*c)
				if l.bits == 5 {
					l.right("S4", tmp, top, 8*(k%4)+7-k/4)
					l.shift("VSLI", "S4", idx, tmp, 4)
				}
				column(k)
			}
		}
	}
	for j := range min(l.bits, 4) {
		load(j, word)
		if l.bits == 2 {
			columns(4*j, 4, 2)
		} else {
			columns(2*j, 2, 4)
		}
	}
	if l.bits == 3 {
		l.neonRest(word, tmp, top, load)
		columns(6, 2, 4)
	}
}

// neonRest sets rest to the codes of the last eight columns of 3 bits by bytes: the bits 3 and 7 of every byte of three words.
func (g *gen) neonRest(rest, tmp, mask int, load func(j, r int)) {
	g.i("VMOVI $0x88, V%d.B16", mask)
	for j := range 3 {
		load(j, tmp)
		g.and(tmp, tmp, mask)
		if j == 0 {
			g.right("B16", rest, tmp, 3)
		} else {
			g.shift("VUSRA", "B16", rest, tmp, 3-j)
		}
	}
}

// neonFusedRows is the largest number of rows of x of a fused kernel.
func neonFusedRows(bits int) int {
	if bits == 5 {
		return 2 // the table takes eight registers
	}
	return 4
}

// neonFused emits the fused kernel of a panel; see fused and fused.go in package cpu.
func (g *gen) neonFused(bits int) {
	g.text(fmt.Sprintf("fused%dNEON", bits), "m int, y, x *float32, ldx int, words, scales *byte, stype int, table *float32, halves, group int", 80)
	g.args("m+0", "R0", "y+8", "R1", "x+16", "R4", "ldx+24", "R2", "words+32", "R8", "scales+40", "R9",
		"stype+48", "R10", "table+56", "R3", "halves+64", "R11", "group+72", "R12")
	rows := neonFusedRows(bits)
	for m := rows; m > 1; m-- {
		g.i("CMP $%d, R0", m)
		g.i("BEQ  rows%d", m)
	}
	for m := 1; m <= rows; m++ {
		g.neonFusedOf(bits, m)
	}
}

func (g *gen) neonFusedOf(bits, m int) {
	name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
	per := 32 / bits
	acc := func(r, q int) int { return 4*r + q }
	n := 4 * m
	x := n // of each row, four columns
	idx, value, more := n+m, n+m+1, n+m+2
	row := func(r int) string { return fmt.Sprintf("R%d", 4+r) }

	g.label(name("rows"))
	l := newNeonLookup(g, bits, n+m+3, "R3")
	if l.times > 31 {
		panic(fmt.Sprintf("%d bits, %d rows: too many registers", bits, m))
	}
	for r := 1; r < m; r++ {
		g.i("ADD R2, %s, %s", row(r-1), row(r))
	}
	g.clear(idx)
	for i := range n {
		g.stq(idx, "R1", 16*i)
	}
	g.label(name("group"))
	g.i("CMP R12, R11")
	g.i("CSEL LT, R11, R12, R13")
	g.i("SUB R13, R11")
	g.label(name("segment"))
	g.i("MOVD $%d, R14", fusedSegment)
	g.i("CMP R14, R13")
	g.i("CSEL LT, R13, R14, R14")
	g.i("SUB R14, R13")
	for i := range n {
		g.clear(i)
	}
	g.label(name("half"))

	// columns adds some columns, whose codes of four rows load puts into idx.
	columns := func(count int, load func(q, i, r int)) {
		for first := 0; first < count; first += 4 {
			some := min(4, count-first)
			for r := range m {
				if some == 4 {
					g.ldq(x+r, row(r), 4*first)
				} else {
					g.ldd(x+r, row(r), 4*first)
				}
			}
			for q := range 4 {
				for c := 0; c < some; c++ {
					load(q, first+c, idx)
					l.value(value, idx)
					if bits != 2 {
						for r := range m {
							g.fmlaBy(acc(r, q), value, x+r, c)
						}
						continue
					}
					c++
					load(q, first+c, idx)
					l.value(more, idx)
					for r := range m {
						g.fmulBy(idx, value, x+r, c-1)
						g.fmlaBy(idx, more, x+r, c)
						g.op("fadd", acc(r, q), acc(r, q), idx)
					}
				}
			}
		}
		for r := range m {
			g.i("ADD $%d, %s", 4*count, row(r))
		}
	}
	g.i("MOVD $%d, R15", bits)
	g.label(name("word"))
	columns(per, func(q, i, r int) {
		g.ldq(r, "R8", 16*q)
		g.right("S4", r, r, bits*i)
	})
	g.i("ADD $64, R8")
	g.next("R15", 1, name("word"))
	if per*bits < 32 {
		columns(2, func(q, i, r int) {
			g.neonSpare(bits, r, more, func(j, r int) { g.i("ADD $%d, R8, R17", 64*(j-bits)+16*q); g.ldq(r, "R17", 0) })
			g.right("S4", r, r, bits*i)
		})
	}
	g.next("R14", 1, name("half"))

	g.neonScales(name, "R9", "R10", func(q int) int { return x + q%2 }, func(q, scale int) {
		for r := range m {
			g.ldq(value, "R1", 16*acc(r, q))
			g.fmla(value, acc(r, q), scale)
			g.stq(value, "R1", 16*acc(r, q))
		}
	})
	g.i("CBNZ R13, %s", name("segment"))
	// The scales of a panel lie 16 to a group.
	g.i("MOVD $32, R14")
	g.i("MOVD $64, R15")
	g.i("CMP $2, R10")
	g.i("CSEL EQ, R15, R14, R14")
	g.i("ADD R14, R9")
	g.i("CBNZ R11, %s", name("group"))
	g.i("RET")
}

// neonScales calls use with the scales of four rows each that a register points at, in one of the forms.
func (g *gen) neonScales(name func(string) string, at, form string, reg func(q int) int, use func(q, scale int)) {
	g.i("CMP $1, %s", form)
	g.i("BEQ  %s", name("bf16"))
	g.i("BGT  %s", name("f32"))
	for _, s := range []struct{ label, dtype string }{{"", "F16"}, {"bf16", "BF16"}, {"f32", "F32"}} {
		if s.label != "" {
			g.label(name(s.label))
		}
		for q := range 4 {
			size := 8
			if s.dtype == "F32" {
				size = 16
			}
			g.neonNumbers(s.dtype, reg(q), at, size*q)
			use(q, reg(q))
		}
		if s.dtype != "F32" {
			g.i("JMP  %s", name("scaled"))
		}
	}
	g.label(name("scaled"))
}
