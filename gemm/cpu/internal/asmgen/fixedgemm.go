package main

import "fmt"

// unpackFixed emits the table's values of the codes of half-blocks of a panel by bytes, as
// [32·halves/2][16][2] words: two columns of a row side by side.
func (g *gen) unpackFixed(bits int) {
	g.text(fmt.Sprintf("unpackFixed%dAVX2", bits), "dst *int16, words, table *byte, halves int", 32)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ words+8(FP), AX")
	g.i("MOVQ table+16(FP), BX")
	g.i("MOVQ halves+24(FP), CX")
	f := &fixedKernel{gen: g, bits: bits}
	f.allocate()
	f.load()
	g.label("half")
	for rows := range 2 { // 8 each
		word := func(j int) string { return fmt.Sprintf("%d(AX)", 64*j+32*rows) }
		if bits == 5 {
			g.i("VMOVDQU %s, %s", word(4), f.top)
		}
		for l := range 8 {
			if bits != 2 || l%2 == 0 {
				f.index(l, 0, word)
			}
			f.lookup(l, 0)
			f.interleave(0)
			g.i("VSHUFPS $0x88, %s, %s, %s", f.hi[0], f.lo[0], f.x)
			g.i("VSHUFPS $0xDD, %s, %s, %s", f.hi[0], f.lo[0], f.tmp)
			g.i("VMOVUPS %s, %d(DI)", f.x, 128*l+32*rows)
			g.i("VMOVUPS %s, %d(DI)", f.tmp, 128*l+64+32*rows)
		}
	}
	g.i("ADDQ $%d, AX", 64*bits)
	g.i("ADDQ $1024, DI")
	g.i("DECQ CX")
	g.i("JNE  half")
	g.i("VZEROUPPER")
	g.i("RET")
}

// fixedTile is the largest number of rows of x of gemmFixed.
const fixedTile = 6

// gemmFixed emits y[m][16] = [y +] x[m] · Ŵᵀ for what unpackFixed has unpacked of a panel, in the arithmetic
// of fixed.go in package cpu. An instruction makes 16 products, of two columns in 8 rows of W, and with dots adds them. ldy is in bytes.
func (g *gen) gemmFixed(dots bool) {
	const sig = "m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int"
	g.text("gemmFixed"+suffix256(dots), sig, 72)
	g.i("MOVQ m+0(FP), R13")
	g.i("MOVQ y+8(FP), R8")
	g.i("MOVQ ldy+16(FP), R12")
	g.i("MOVQ x+24(FP), SI")
	g.i("MOVQ xscales+32(FP), BX")
	g.i("MOVQ w+40(FP), AX")
	g.i("MOVQ scales+48(FP), CX")
	g.i("MOVQ halves+56(FP), R11")
	for m := fixedTile; m > 1; m-- {
		g.i("CMPQ R13, $%d", m)
		g.i("JEQ  rows%d", m)
	}
	y := rows{bases: []string{"R8", "R9"}, stride: "R12"}
	acc := func(r, j int) string { return fmt.Sprintf("Y%d", 2*r+j) }
	w := []string{"Y12", "Y13"}
	const a, b = "Y14", "Y15"
	for m := 1; m <= fixedTile; m++ {
		g.label(fmt.Sprintf("rows%d", m))
		y.setup(g, m)
		for r := range m {
			g.i("PREFETCHT0 %s", y.at(r, 0))
		}
		g.i("CMPQ add+64(FP), $0")
		g.i("JNE  half%d", m)
		g.i("VPXOR %s, %s, %s", a, a, a)
		for r := range m {
			for j := range 2 {
				g.i("VMOVDQU %s, %s", a, y.at(r, 32*j))
			}
		}

		g.label(fmt.Sprintf("half%d", m))
		for pair := range 16 {
			for j := range 2 {
				g.i("VMOVDQU %d(AX), %s", 64*pair+32*j, w[j])
			}
			for r := range m {
				g.i("VPBROADCASTD %d(SI), %s", 64*r+4*pair, b)
				if pair == 0 {
					g.i("VPMADDWD %s, %s, %s", w[0], b, acc(r, 0))
					g.i("VPMADDWD %s, %s, %s", w[1], b, acc(r, 1))
					continue
				}
				if dots {
					g.dotWords(w[0], b, acc(r, 0))
					g.dotWords(w[1], b, acc(r, 1))
					continue
				}
				g.i("VPMADDWD %s, %s, %s", w[0], b, a)
				g.i("VPMADDWD %s, %s, %s", w[1], b, b)
				g.i("VPADDD %s, %s, %s", a, acc(r, 0), acc(r, 0))
				g.i("VPADDD %s, %s, %s", b, acc(r, 1), acc(r, 1))
			}
		}
		for j := range 2 {
			g.i("VMOVUPS %d(CX), %s", 32*j, w[j])
		}
		for r := range m {
			g.i("VBROADCASTSS %d(BX), %s", 4*r, b)
			for j := range 2 {
				g.i("VCVTDQ2PS %s, %s", acc(r, j), acc(r, j))
				g.i("VMULPS %s, %s, %s", b, acc(r, j), acc(r, j))
				g.i("VMOVUPS %s, %s", y.at(r, 32*j), a)
				g.i("VFMADD231PS %s, %s, %s", w[j], acc(r, j), a)
				g.i("VMOVUPS %s, %s", a, y.at(r, 32*j))
			}
		}
		g.i("ADDQ $1024, AX")
		g.i("ADDQ $64, CX")
		g.i("ADDQ $%d, BX", 4*m)
		g.i("ADDQ $%d, SI", 64*m)
		g.i("DECQ R11")
		g.i("JNE  half%d", m)
		g.i("VZEROUPPER")
		g.i("RET")
	}
}
