package main

import "fmt"

// step16 emits body for 16 elements, in four registers each, until the count in R3, a positive multiple of 16, is used up. The pointers
// advance.
func (g *gen) step16(label string, ptrs []string, body func(at int)) {
	g.label(label)
	for q := range 4 {
		body(16 * q)
	}
	for _, p := range ptrs {
		g.i("ADD $64, %s", p)
	}
	g.next("R3", 16, label)
}

// neonConsts are the registers of the constants of the exponential.
const neonConsts = 20

// loadConsts loads them.
func (g *gen) loadConsts() {
	for i, c := range consts() {
		g.dup32(neonConsts+i, c.bits)
	}
}

func neonConst(name string) int {
	for i, c := range consts() {
		if c.name == name {
			return neonConsts + i
		}
	}
	panic(name)
}

// neonExp replaces register x by its exponential, using the three behind it. See exp32 in package cpu.
func (g *gen) neonExp(x int) {
	p, n, low := x+1, x+2, x+3
	c := neonConst
	g.op("fcmgt", low, c("expLo"), x) // not where x is no number
	g.op("fmax", x, x, c("expLo"))
	g.op("fmin", x, x, c("expHi"))
	g.op("fmul", n, x, c("expLog2e"))
	g.op("frintn", n, n)
	g.fmls(x, n, c("expLn2Hi"))
	g.fmls(x, n, c("expLn2Lo"))
	// Sums change their addend, so that two registers take turns.
	t := 16
	g.mov(p, c("expC6"))
	for _, name := range []string{"expC5", "expC4", "expC3", "expC2", "one", "one"} {
		g.mov(t, c(name))
		g.fmla(t, p, x)
		p, t = t, p
	}
	g.op("fcvtns", n, n)
	g.sshr(x, n, 1)
	g.three("VSUB", "S4", n, n, x)
	for _, r := range []int{x, n} {
		g.three("VADD", "S4", r, r, c("expBias"))
		g.shift("VSHL", "S4", r, r, 23)
		g.op("fmul", p, p, r)
	}
	g.op("bic", x, p, low)
}

func (g *gen) neonVec() {
	g.text("expSumNEON", "dst, src *float32, n int, shift float32, lanes *[16]float32", 40)
	g.args("dst+0", "R0", "src+8", "R1", "n+16", "R3", "lanes+32", "R4")
	g.dupArg(17, "shift+24")
	g.loadConsts()
	for q := range 4 {
		g.clear(12 + q)
	}
	step := func(store bool) func(int) {
		return func(at int) {
			const x = 0
			g.ldq(x, "R1", at)
			g.op("fsub", x, x, 17)
			g.neonExp(x)
			if store {
				g.stq(x, "R0", at)
			}
			g.op("fadd", 12+at/16, 12+at/16, x)
		}
	}
	g.i("CBZ  R0, sum")
	g.step16("store", []string{"R0", "R1"}, step(true))
	g.i("JMP  done")
	g.step16("sum", []string{"R1"}, step(false))
	g.label("done")
	for q := range 4 {
		g.stq(12+q, "R4", 16*q)
	}
	g.i("RET")

	g.text("maxNEON", "src *float32, n int, lanes *[16]float32", 24)
	g.args("src+0", "R1", "n+8", "R3", "lanes+16", "R4")
	for q := range 4 {
		g.ldq(q, "R1", 16*q)
	}
	g.step16("next", []string{"R1"}, func(at int) {
		const v, larger = 4, 5
		g.ldq(v, "R1", at)
		g.op("fcmgt", larger, at/16, v)
		g.bif(at/16, v, larger)
	})
	for q := range 4 {
		g.stq(q, "R4", 16*q)
	}
	g.i("RET")

	g.text("siluMulNEON", "dst, gate, up *float32, n int", 32)
	g.args("dst+0", "R0", "gate+8", "R1", "up+16", "R2", "n+24", "R3")
	g.loadConsts()
	g.clear(19)
	g.step16("next", []string{"R0", "R1", "R2"}, func(at int) {
		const x, gate, up = 0, 4, 5
		g.ldq(gate, "R1", at)
		g.op("fsub", x, 19, gate)
		g.neonExp(x)
		g.op("fadd", x, x, neonConst("one"))
		g.ldq(up, "R2", at)
		g.op("fdiv", x, gate, x)
		g.op("fmul", x, x, up)
		g.stq(x, "R0", at)
	})
	g.i("RET")

	g.text("dotNEON", "x, y *float32, n int, lanes *[16]float32", 32)
	g.args("x+0", "R1", "y+8", "R2", "n+16", "R3", "lanes+24", "R4")
	for q := range 4 {
		g.clear(q)
	}
	g.step16("next", []string{"R1", "R2"}, func(at int) {
		g.ldq(4, "R1", at)
		g.ldq(5, "R2", at)
		g.fmla(at/16, 4, 5)
	})
	for q := range 4 {
		g.stq(q, "R4", 16*q)
	}
	g.i("RET")

	g.text("axpyNEON", "y, x *float32, n int, alpha float32", 28)
	g.args("y+0", "R0", "x+8", "R1", "n+16", "R3")
	g.dupArg(16, "alpha+24")
	g.step16("next", []string{"R0", "R1"}, func(at int) {
		g.ldq(0, "R0", at)
		g.ldq(1, "R1", at)
		g.fmla(0, 1, 16)
		g.stq(0, "R0", at)
	})
	g.i("RET")

	g.text("scaleNEON", "dst, x *float32, n int, alpha float32", 28)
	g.args("dst+0", "R0", "x+8", "R1", "n+16", "R3")
	g.dupArg(16, "alpha+24")
	g.step16("next", []string{"R0", "R1"}, func(at int) {
		g.ldq(0, "R1", at)
		g.op("fmul", 0, 0, 16)
		g.stq(0, "R0", at)
	})
	g.i("RET")

	g.text("scaleMulNEON", "dst, x, w *float32, n int, alpha float32", 36)
	g.args("dst+0", "R0", "x+8", "R1", "w+16", "R2", "n+24", "R3")
	g.dupArg(16, "alpha+32")
	g.step16("next", []string{"R0", "R1", "R2"}, func(at int) {
		g.ldq(0, "R1", at)
		g.ldq(1, "R2", at)
		g.op("fmul", 0, 0, 16)
		g.op("fmul", 0, 0, 1)
		g.stq(0, "R0", at)
	})
	g.i("RET")

	g.text("addNEON", "dst, x, y *float32, n int", 32)
	g.args("dst+0", "R0", "x+8", "R1", "y+16", "R2", "n+24", "R3")
	g.step16("next", []string{"R0", "R1", "R2"}, func(at int) {
		g.ldq(0, "R1", at)
		g.ldq(1, "R2", at)
		g.op("fadd", 0, 0, 1)
		g.stq(0, "R0", at)
	})
	g.i("RET")

	g.text("readNEON", "src *byte, n int, lanes *[8]uint64", 24)
	g.args("src+0", "R1", "n+8", "R3", "lanes+16", "R4")
	for r := range 16 {
		g.clear(r)
	}
	g.label("next")
	for r := range 16 {
		g.ldq(16+r, "R1", 16*r)
	}
	for r := range 16 {
		g.eor(r, r, 16+r)
	}
	g.i("ADD $256, R1")
	g.next("R3", 256, "next")
	for q := range 4 {
		for r := q + 4; r < 16; r += 4 {
			g.eor(q, q, r)
		}
		g.stq(q, "R4", 16*q)
	}
	g.i("RET")
}

// neonRows is the largest number of rows of gemmNEON: their sums and those of x leave two registers and a panel's.
const neonRows = 5

// neonGemm emits y[m,16] = [y +] alpha · x[m,k] · b, see gemm. Four columns of each row of x are in a register.
func (g *gen) neonGemm() {
	g.text("gemmNEON", "m int, y *float32, ldy int, x *float32, ldx int, b *float32, k int, alpha float32, add int", 72)
	g.args("m+0", "R0", "y+8", "R1", "ldy+16", "R2", "x+24", "R4", "ldx+32", "R9", "b+40", "R10", "k+48", "R11", "add+64", "R12")
	g.i("LSL $2, R2")
	g.i("LSL $2, R9")
	g.dupArg(29, "alpha+56")
	for m := neonRows; m > 1; m-- {
		g.i("CMP $%d, R0", m)
		g.i("BEQ  rows%d", m)
	}
	const b, x = 20, 24
	for m := 1; m <= neonRows; m++ {
		name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
		row := func(r int) string { return fmt.Sprintf("R%d", 4+r) }
		g.label(name("rows"))
		for r := 1; r < m; r++ {
			g.i("ADD R9, %s, %s", row(r-1), row(r))
		}
		for i := range 4 * m {
			g.clear(i)
		}
		column := func(u int) {
			g.i("VLD1.P 64(R10), [V20.S4, V21.S4, V22.S4, V23.S4]")
			for r := range m {
				for j := range 4 {
					g.fmlaBy(4*r+j, b+j, x+r, u)
				}
			}
		}
		g.i("SUBS $4, R11, R11")
		g.i("BLT  %s", name("tail"))
		g.label(name("loop"))
		for r := range m {
			g.i("VLD1.P 16(%s), [V%d.S4]", row(r), x+r)
		}
		for u := range 4 {
			column(u)
		}
		g.i("SUBS $4, R11, R11")
		g.i("BGE  %s", name("loop"))
		g.label(name("tail"))
		g.i("ADDS $4, R11, R11")
		g.i("BEQ  %s", name("store"))
		g.label(name("one"))
		for r := range m {
			g.i("FMOVS.P 4(%s), F%d", row(r), x+r)
		}
		column(0)
		g.next("R11", 1, name("one"))

		g.label(name("store"))
		for i := range 4 * m {
			g.op("fmul", i, i, 29)
		}
		g.i("CBZ  R12, %s", name("write"))
		g.i("MOVD R1, R5")
		for r := range m {
			for j := range 4 {
				g.ldq(b+j, "R5", 16*j)
				g.op("fadd", 4*r+j, 4*r+j, b+j)
			}
			g.i("ADD R2, R5")
		}
		g.label(name("write"))
		for r := range m {
			for j := range 4 {
				g.stq(4*r+j, "R1", 16*j)
			}
			g.i("ADD R2, R1")
		}
		g.i("RET")
	}
}

// neonNumbers loads four stored numbers as float32.
func (g *gen) neonNumbers(dtype string, d int, base string, at int) {
	switch dtype {
	case "F32":
		g.ldq(d, base, at)
	case "F16":
		g.ldd(d, base, at)
		g.op("fcvtl", d, d)
	case "BF16":
		g.ldd(d, base, at)
		g.shll(d, d, false)
	}
}

// neonPack emits pack, four rows at a time.
func (g *gen) neonPack(dtype string) {
	size := 2
	if dtype == "F32" {
		size = 4
	}
	g.text("pack"+dtype+"NEON", "dst *float32, src *byte, stride, k int", 32)
	g.args("dst+0", "R0", "src+8", "R1", "stride+16", "R2")
	g.i("MOVD $4, R8")
	g.label("rows")
	g.i("MOVD k+24(FP), R3")
	g.i("MOVD R0, R9")
	row := func(r int) string { return fmt.Sprintf("R%d", 4+r) }
	g.i("MOVD R1, %s", row(0))
	for r := 1; r < 4; r++ {
		g.i("ADD R2, %s, %s", row(r-1), row(r))
	}
	g.i("ADD R2, %s, R1", row(3))
	g.label("next")
	for r := range 4 {
		g.neonNumbers(dtype, r, row(r), 0)
		g.i("ADD $%d, %s", 4*size, row(r))
	}
	g.transpose4([4]int{0, 1, 2, 3}, [4]int{4, 5, 6, 7})
	for c := range 4 {
		g.stq(c, "R9", 64*c)
	}
	g.i("ADD $256, R9")
	g.next("R3", 4, "next")
	g.i("ADD $16, R0")
	g.next("R8", 1, "rows")
	g.i("RET")
}

// neonWiden emits widen.
func (g *gen) neonWiden(dtype string) {
	g.text("widen"+dtype+"NEON", "dst *float32, src *byte, n int", 24)
	g.args("dst+0", "R0", "src+8", "R1", "n+16", "R3")
	g.label("next")
	for q := range 4 {
		g.neonNumbers(dtype, q, "R1", 8*q)
		g.stq(q, "R0", 16*q)
	}
	g.i("ADD $32, R1")
	g.i("ADD $64, R0")
	g.next("R3", 16, "next")
	g.i("RET")
}

// neonRow emits row: one row of x and np panels of 16-bit numbers.
func (g *gen) neonRow(dtype string) {
	g.text("row"+dtype+"NEON", "np int, y, x *float32, b *byte, stride, k int", 48)
	g.args("np+0", "R0", "y+8", "R1", "x+16", "R2", "b+24", "R4", "stride+32", "R8", "k+40", "R9")
	g.i("MOVD $0, R10")
	g.i("CMP $1, R0")
	g.i("BEQ  kernel1")
	for _, np := range []int{rowPanels, 1} {
		name := func(s string) string { return fmt.Sprintf("%s%d", s, np) }
		panel := func(p int) string { return fmt.Sprintf("R%d", 4+p) }
		g.label(name("kernel"))
		for p := 1; p < np; p++ {
			g.i("ADD R8, %s, %s", panel(p-1), panel(p))
		}
		g.label(name("block"))
		g.i("MOVD $256, R11")
		g.i("CMP R11, R9")
		g.i("CSEL LT, R9, R11, R11")
		g.i("SUB R11, R9")
		for i := range 4 * np {
			g.clear(i)
		}
		const x, w = 16, 17
		g.label(name("column"))
		g.i("FMOVS.P 4(R2), F%d", x)
		for p := range np {
			for j := range 4 {
				r := w + (4*p+j)%14
				g.neonNumbers(dtype, r, panel(p), 8*j)
				g.fmlaBy(4*p+j, r, x, 0)
			}
			g.i("ADD $32, %s", panel(p))
		}
		g.next("R11", 1, name("column"))
		g.i("CBZ  R10, %s", name("store"))
		for i := range 4 * np {
			g.ldq(w, "R1", 16*i)
			g.op("fadd", i, i, w)
		}
		g.label(name("store"))
		for i := range 4 * np {
			g.stq(i, "R1", 16*i)
		}
		g.i("MOVD $1, R10")
		g.i("CBNZ R9, %s", name("block"))
		g.i("RET")
	}
}
