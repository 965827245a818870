package main

import "fmt"

// fixed512 emits fixed at 512 bits, for processors that have dot products of words. Words of a row's two halves name the values of two
// columns: VPERMW looks at their lower five bits, and the table is there over and over where it has fewer values. So no mask is
// needed. x is in the order in which the columns come, see fixedOrder.
func (g *gen) fixed512(bits int) {
	g.raw("\n// func fixed%dAVX512(%s)", bits, fixedSig)
	g.raw("TEXT ·fixed%dAVX512(SB), NOSPLIT, $0-%d", bits, fixedArgs)
	g.i("MOVQ m+0(FP), R12")
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), SI")
	g.i("MOVQ xscales+24(FP), R9")
	g.i("MOVQ ldx+32(FP), DX")
	g.i("MOVQ words+40(FP), AX")
	g.i("MOVQ scales+48(FP), R8")
	g.i("MOVQ table+64(FP), BX")
	g.i("MOVQ halves+80(FP), R10")
	g.i("VMOVDQU64 (BX), Z%d", f512Table)
	for i, mask := range [][]uint32{3: {0x11111111, 0x33333333}, 5: {0x000f000f}}[bits] {
		g.i("MOVL $0x%08x, CX", mask)
		g.i("VPBROADCASTD CX, Z%d", f512Masks+i)
	}
	for m := 1; m < fixedRows; m++ {
		g.i("CMPQ R12, $%d", m)
		g.i("JEQ  kernel%d", m)
	}
	for m := fixedRows; m > 0; m-- { // the last, most rows, follows the comparisons
		g.fixed512Rows(bits, m)
	}
}

// The registers of fixed512: sums from 0 on, rows of y, and the rest.
const (
	f512Y     = 8
	f512Scale = 12
	f512Table = 13
	f512Masks = 15 // and the next
	f512Top   = 18
	f512Words = 19 // to 22
	f512Tmp   = 23 // to 31
)

func (g *gen) fixed512Rows(bits, m int) {
	name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
	chains := []int{1: 4, 2: 4, 3: 2, 4: 2}[m] // of a row: each instruction waits for the one before in its chain
	x := rows{bases: []string{"SI", "R14"}, stride: "DX"}
	g.label(name("kernel"))
	x.setup(g, m)
	for r := range m {
		g.i("VPXORQ Z%d, Z%[1]d, Z%[1]d", f512Y+r)
	}
	g.i("XORQ R11, R11")

	g.label(name("half"))
	g.i("TESTQ R11, R11")
	g.i("JNE  %s", name("same"))
	g.i("MOVQ group+88(FP), R11")
	g.i("CMPQ stype+56(FP), $1")
	g.i("JEQ  %s", name("bf16"))
	g.i("JGT  %s", name("f32"))
	g.i("VCVTPH2PS (R8), Z%d", f512Scale)
	g.i("ADDQ $32, R8")
	g.i("JMP  %s", name("scaled"))
	g.label(name("bf16"))
	g.i("VPMOVZXWD (R8), Z%d", f512Scale)
	g.i("VPSLLD $16, Z%d, Z%[1]d", f512Scale)
	g.i("ADDQ $32, R8")
	g.i("JMP  %s", name("scaled"))
	g.label(name("f32"))
	g.i("VMOVUPS (R8), Z%d", f512Scale)
	g.i("ADDQ $64, R8")
	g.label(name("scaled"))
	g.i("VMULPS.BCST unit+72(FP), Z%d, Z%[1]d", f512Scale)
	g.label(name("same"))
	for j := range bits {
		g.i("PREFETCHT0 %d(AX)", fixedAhead+64*j)
	}
	for i := range m * chains {
		g.i("VPXORQ Z%d, Z%[1]d, Z%[1]d", i)
	}
	count := 0
	// columns adds those of a pair: the l-th four's, from byte b on, whose codes are in idx.
	columns := func(idx, l, b int) {
		v := f512Tmp + 4 + count%4
		g.i("VPERMW Z%d, Z%d, Z%d", f512Table, idx, v)
		for r := range m {
			g.i("VPDPWSSD.BCST %s, Z%d, Z%d", x.at(r, 8*l+4*b), v, r*chains+count%chains)
		}
		count++
	}
	if bits == 5 {
		g.i("VMOVDQU64 256(AX), Z%d", f512Top)
	}
	width := 4
	if bits == 2 {
		width = 2
	}
	each := 8 / width // codes of a byte
	for j := range 8 / each {
		w := f512Words + j
		switch {
		case bits == 3 && j == 3:
			// What is left of the bits 3 and 7 of every byte.
			for i := range 3 {
				g.i("VPSRLW $%d, Z%d, Z%d", 3-i, f512Words+i, f512Tmp+i)
			}
			g.i("VMOVDQA64 Z%d, Z%d", f512Masks, w)
			g.i("VPTERNLOGD $0xCA, Z%d, Z%d, Z%d", f512Tmp+1, f512Tmp, w)
			g.i("VMOVDQA64 Z%d, Z%d", f512Masks+1, f512Tmp)
			g.i("VPTERNLOGD $0xCA, Z%d, Z%d, Z%d", f512Tmp+2, w, f512Tmp)
			w = f512Tmp
		default:
			g.i("VMOVDQU64 %d(AX), Z%d", 64*j, w)
		}
		for b := range 2 {
			for c := range each {
				l, bit := each*j+c, width*c+8*b
				idx := w
				if bit > 0 {
					idx = f512Tmp + 4 + count%4
					g.i("VPSRLW $%d, Z%d, Z%d", bit, w, idx)
				}
				if bits == 5 {
					top := f512Tmp + count%4
					at := 8*b + 7 - l // of the fifth bit, to become bit 4
					switch {
					case at > 4:
						g.i("VPSRLW $%d, Z%d, Z%d", at-4, f512Top, top)
					case at < 4:
						g.i("VPSLLW $%d, Z%d, Z%d", 4-at, f512Top, top)
					default:
						g.i("VMOVDQA64 Z%d, Z%d", f512Top, top)
					}
					g.i("VPTERNLOGD $0xD8, Z%d, Z%d, Z%d", f512Masks, idx, top) // the lower bits of idx
					idx = top
				}
				columns(idx, l, b)
			}
		}
	}
	for r := range m {
		a := r * chains
		for n := chains / 2; n > 0; n /= 2 {
			for i := range n {
				g.i("VPADDD Z%d, Z%d, Z%d", a+n+i, a+i, a+i)
			}
		}
		g.i("VCVTDQ2PS Z%d, Z%d", a, a)
		g.i("VMULPS.BCST %d(R9), Z%d, Z%d", 4*r, a, a)
		g.i("VFMADD231PS Z%d, Z%d, Z%d", f512Scale, a, f512Y+r)
	}
	g.i("ADDQ $%d, AX", 64*bits)
	g.i("ADDQ $64, SI")
	if m > 3 {
		g.i("ADDQ $64, R14")
	}
	g.i("ADDQ $%d, R9", 4*m)
	g.i("DECQ R11")
	g.i("DECQ R10")
	g.i("JNE  %s", name("half"))
	for r := range m {
		g.i("VMOVUPS Z%d, %d(DI)", f512Y+r, 64*r)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}

// fixedOrder emits what puts blocks of x in the order that fixed512 has them in: of every four words the first and third, then the others.
func (g *gen) fixedOrder() {
	g.text("fixedOrderAVX512", "x *int16, blocks int", 16)
	g.i("MOVQ x+0(FP), SI")
	g.i("MOVQ blocks+8(FP), CX")
	g.label("next")
	g.i("VPSHUFLW $0xD8, (SI), Z0")
	g.i("VPSHUFHW $0xD8, Z0, Z0")
	g.i("VMOVDQU64 Z0, (SI)")
	g.i("ADDQ $64, SI")
	g.i("DECQ CX")
	g.i("JNE  next")
	g.i("VZEROUPPER")
	g.i("RET")
}

// gemmFixed512 is gemmFixed at 512 bits: an instruction makes 32 products, of two columns in 16 rows of W, and adds them to the sums, two
// of a row of x.
func (g *gen) gemmFixed512() {
	const sig = "m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int"
	g.text("gemmFixedAVX512", sig, 72)
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
	const out, w = 12, 20 // rows of y, and values
	for m := 1; m <= fixedTile; m++ {
		name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
		g.label(name("rows"))
		y.setup(g, m)
		for r := range m {
			g.i("VPXORQ Z%d, Z%[1]d, Z%[1]d", out+r)
		}
		g.i("CMPQ add+64(FP), $0")
		g.i("JEQ  %s", name("half"))
		for r := range m {
			g.i("VMOVUPS %s, Z%d", y.at(r, 0), out+r)
		}
		g.label(name("half"))
		for i := range 2 * m {
			g.i("VPXORQ Z%d, Z%[1]d, Z%[1]d", i)
		}
		for pair := range 16 {
			v := w + pair%4
			g.i("VMOVDQU64 %d(AX), Z%d", 64*pair, v)
			for r := range m {
				g.i("VPDPWSSD.BCST %d(SI), Z%d, Z%d", 64*r+4*pair, v, 2*r+pair%2)
			}
		}
		g.i("VMOVUPS (CX), Z%d", w)
		for r := range m {
			g.i("VPADDD Z%d, Z%d, Z%d", 2*r+1, 2*r, 2*r)
			g.i("VCVTDQ2PS Z%d, Z%d", 2*r, 2*r)
			g.i("VMULPS.BCST %d(BX), Z%d, Z%d", 4*r, 2*r, 2*r)
			g.i("VFMADD231PS Z%d, Z%d, Z%d", w, 2*r, out+r)
		}
		g.i("ADDQ $1024, AX")
		g.i("ADDQ $64, CX")
		g.i("ADDQ $%d, BX", 4*m)
		g.i("ADDQ $%d, SI", 64*m)
		g.i("DECQ R11")
		g.i("JNE  %s", name("half"))
		for r := range m {
			g.i("VMOVUPS Z%d, %s", out+r, y.at(r, 0))
		}
		g.i("VZEROUPPER")
		g.i("RET")
	}
}
