package main

import "fmt"

// The signature of the kernels for rings. Offsets in words and steps are in bytes; size is of the vectors of words of a block.
const (
	ringsSig  = "m int, y, x *float32, ldx int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte"
	ringsArgs = 88
)

const (
	// ringsRows is the largest number of rows of x.
	ringsRows = 4

	// ringsAhead is the distance of the prefetches in bytes. Panels follow each other.
	ringsAhead = 4096

	ringStepBytes = 16 // of a step
	ringNumber    = 0x8FFFE000
)

// ringOrder is a half-step of the kernels: two steps of one row, and the columns of their first weights in either half.
type ringOrder struct{ row, col int }

// ringOrders are those of two rows of a ring, in the order of their steps.
func ringOrders() (all []ringOrder) {
	for u := range 2 {
		for row := range 2 {
			all = append(all, ringOrder{row, 4 * u})
		}
	}
	return all
}

// ringsAVX512 emits y[m][8][16] = x · rings for some blocks of a panel of the CPU layout of package repack, in the arithmetic of
// rings.go in package cpu. The bytes of values are looked up in four planes of 256 bytes, of which each is four permutations: 64
// windows at a time, which are those of two steps and both halves of 16 rings.
func (g *gen) ringsAVX512() {
	const (
		acc  = 0  // of two rows of the rings for each of x
		x    = 8  // windows, and 9
		hi   = 10 // and 11
		low  = 12 // lower halves of the products, and 13
		high = 14 // and 15
		idx  = 16
		tmp  = 17
		look = 18 // bytes that were looked up, to 21
		word = 22 // float16, to 25
		num  = 26 // values
		mask = 27
		flip = 28 // of the first value, and of the second: 29
		hash = 30 // lower half of the factor, and 31
	)
	g.text("ringsAVX512", ringsSig, ringsArgs)
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), BX")
	g.i("MOVQ ldx+24(FP), R9")
	g.i("SHLQ $2, R9")
	g.i("MOVQ words+32(FP), SI")
	g.i("MOVQ blocks+40(FP), R13")
	g.i("MOVQ table+56(FP), R11")
	g.i("MOVQ hash+72(FP), AX")
	for i, r := range []int{hash, hash + 1, flip, flip + 1} {
		g.i("VPBROADCASTD %d(AX), Z%d", 4*i, r)
	}
	g.i("MOVL $0x%08x, AX", ringNumber)
	g.i("VPBROADCASTD AX, Z%d", mask)
	g.i("MOVQ scratch+80(FP), R14")
	g.i("ADDQ $63, R14")
	g.i("ANDQ $~63, R14")
	g.i("MOVQ m+0(FP), AX")
	for m := ringsRows; m > 1; m-- {
		g.i("CMPQ AX, $%d", m)
		g.i("JEQ  rows%d", m)
	}
	for m := 1; m <= ringsRows; m++ {
		xs := rows{bases: []string{"BX", "R10"}, stride: "R9"}
		name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
		g.label(name("rows"))
		xs.setup(g, m)
		g.i("VPXORQ Z%d, Z%d, Z%d", tmp, tmp, tmp)
		for i := range 8 * m {
			g.i("VMOVUPS Z%d, %d(DI)", tmp, 64*i)
		}

		g.label(name("block"))
		g.ringCopy(name("copy"), "Z", 64, tmp)
		g.i("MOVQ steps+64(FP), R8")
		g.i("MOVQ DI, DX")
		g.i("MOVQ $4, CX")
		g.label(name("pair"))
		for r := range m {
			for row := range 2 {
				g.i("VMOVUPS %d(DX), Z%d", 64*(8*r+row), acc+2*r+row)
			}
		}
		for i, o := range ringOrders() {
			for s := range 2 {
				at := ringStepBytes * (2*i + s)
				g.i("MOVL %d(R8), AX", at)
				g.i("VMOVDQU64 (R14)(AX*1), Z%d", x+s)
				g.i("VMOVDQU64 64(R14)(AX*1), Z%d", hi+s)
				g.i("VPBROADCASTD %d(R8), Z%d", at+4, tmp)
				g.i("VPSHRDVW Z%d, Z%d, Z%d", tmp, hi+s, x+s)
			}
			for s := range 2 {
				g.i("VPMULLW Z%d, Z%d, Z%d", hash, x+s, low+s)
				g.i("VPMULHUW Z%d, Z%d, Z%d", hash, x+s, high+s)
				g.i("VPMULLW Z%d, Z%d, Z%d", hash+1, x+s, x+s)
				g.i("VPADDW Z%d, Z%d, Z%d", x+s, high+s, high+s)
				g.i("VPSLLW $1, Z%d, Z%d", low+s, hi+s)
				g.i("VPSRLW $8, Z%d, Z%d", hi+s, hi+s)
			}
			g.i("VPACKUSWB Z%d, Z%d, Z%d", hi+1, hi, idx)
			g.i("VPMOVB2M Z%d, K1", idx)
			g.i("VPADDB Z%d, Z%d, Z%d", idx, idx, tmp)
			g.i("VPMOVB2M Z%d, K2", tmp)
			g.i("KANDNQ K2, K1, K3") // ¬K1 ∧ K2
			g.i("KANDNQ K1, K2, K4")
			g.i("KANDQ  K1, K2, K5")
			for p := range 4 {
				g.i("VPERMB %d(R11), Z%d, Z%d", 256*p, idx, look+p)
			}
			for q := 1; q < 4; q++ {
				for p := range 4 {
					g.i("VPERMB %d(R11), Z%d, K%d, Z%d", 256*p+64*q, idx, q+2, look+p)
				}
			}
			for v := range 2 { // of a pair
				for s, half := range []string{"L", "H"} {
					w := word + 2*s + v
					g.i("VPUNPCK%sBW Z%d, Z%d, Z%d", half, look+2*v+1, look+2*v, w)
					g.i("VPTERNLOGD $0x78, Z%d, Z%d, Z%d", flip+v, []int{low, high}[v]+s, w)
				}
			}
			for s := range 2 {
				for half := range 2 {
					for v := range 2 {
						w := word + 2*s + v
						to := num
						if half == 0 {
							g.i("VPSLLD $16, Z%d, Z%d", w, to)
							g.i("VPSRAD $3, Z%d, Z%d", to, to)
						} else {
							to = w
							g.i("VPSRAD $3, Z%d, Z%d", w, to)
						}
						g.i("VPANDD Z%d, Z%d, Z%d", mask, to, to)
						for r := range m {
							g.i("VFMADD231PS.BCST %s, Z%d, Z%d", xs.at(r, 4*(o.col+2*s+8*half+v)), to, acc+2*r+o.row)
						}
					}
				}
			}
		}
		for r := range m {
			for row := range 2 {
				g.i("VMOVUPS Z%d, %d(DX)", acc+2*r+row, 64*(8*r+row))
			}
		}
		g.i("ADDQ $128, DX")
		g.i("ADDQ $%d, R8", 8*ringStepBytes)
		g.i("DECQ CX")
		g.i("JNE  %s", name("pair"))
		for i := 0; 3*i < m; i++ {
			g.i("ADDQ $64, %s", xs.bases[i])
		}
		g.i("DECQ R13")
		g.i("JNE  %s", name("block"))
		g.i("VZEROUPPER")
		g.i("RET")
	}
}

// ringCopy emits a copy of the words of a block to scratch, with those behind them that windows go on with: the other half's first.
func (g *gen) ringCopy(label, reg string, bytes, tmp int) {
	g.i("MOVQ size+48(FP), CX")
	g.i("MOVQ R14, DX")
	g.i("VPROLD $16, (SI), %s%d", reg, tmp)
	g.i("VMOVDQU64 %s%d, (R14)(CX*1)", reg, tmp)
	g.label(label)
	g.i("PREFETCHT0 %d(SI)", ringsAhead)
	g.i("VMOVDQU64 (SI), %s%d", reg, tmp)
	g.i("VMOVDQU64 %s%d, (DX)", reg, tmp)
	g.i("ADDQ $%d, SI", bytes)
	g.i("ADDQ $%d, DX", bytes)
	g.i("SUBQ $%d, CX", bytes)
	g.i("JNE  %s", label)
}

// ringsAVX2 is ringsAVX512 at 256 bits: pairs are gathered, for 8 rings at a time. Words of 16 bits, which the kernel would have to shift two as
// one, are first put into words of 32 with those behind them.
func (g *gen) ringsAVX2() {
	const (
		acc  = 0 // of two rows of the rings for each of x
		y    = 8 // windows, then products
		tmp  = 9
		pair = 10
		ones = 11
		// Constants.
		number, flip, window, factor = 12, 13, 14, 15
	)
	g.text("ringsAVX2", ringsSig, ringsArgs)
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), BX")
	g.i("MOVQ ldx+24(FP), R9")
	g.i("SHLQ $2, R9")
	g.i("MOVQ words+32(FP), SI")
	g.i("MOVQ blocks+40(FP), R13")
	g.i("MOVQ table+56(FP), R11")
	g.i("MOVQ hash+72(FP), AX")
	g.i("VPBROADCASTD 16(AX), Y%d", factor)
	g.i("VPBROADCASTD 20(AX), Y%d", flip)
	for _, c := range []struct {
		bits uint32
		to   int
	}{{ringNumber, number}, {0xFFFF, window}} {
		g.i("MOVL $0x%08x, AX", c.bits)
		g.i("VMOVD AX, X%d", c.to)
		g.i("VPBROADCASTD X%d, Y%d", c.to, c.to)
	}
	g.i("MOVQ scratch+80(FP), R14")
	g.i("ADDQ $63, R14")
	g.i("ANDQ $~63, R14")
	g.i("MOVQ m+0(FP), AX")
	for m := ringsRows; m > 1; m-- {
		g.i("CMPQ AX, $%d", m)
		g.i("JEQ  rows%d", m)
	}
	for m := 1; m <= ringsRows; m++ {
		xs := rows{bases: []string{"BX", "R10"}, stride: "R9"}
		name := func(s string) string { return fmt.Sprintf("%s%d", s, m) }
		g.label(name("rows"))
		xs.setup(g, m)
		g.i("VPXOR Y%d, Y%d, Y%d", tmp, tmp, tmp)
		for i := range 16 * m {
			g.i("VMOVDQU Y%d, %d(DI)", tmp, 32*i)
		}

		g.label(name("block"))
		g.i("MOVQ $2, R12") // halves of the rings
		g.label(name("half"))
		g.ringSpread(name("spread"))
		g.i("MOVQ steps+64(FP), R8")
		g.i("MOVQ DI, DX")
		g.i("MOVQ $4, CX")
		g.label(name("pair"))
		for r := range m {
			for row := range 2 {
				g.i("VMOVUPS %d(DX), Y%d", 64*(8*r+row), acc+2*r+row)
			}
		}
		for i, o := range ringOrders() {
			for s := range 2 {
				at := ringStepBytes * (2*i + s)
				g.i("MOVL %d(R8), AX", at)
				for half := range 2 {
					g.i("VMOVDQA %d(R14)(AX*1), Y%d", 32*half, y)
					g.i("VPBROADCASTD %d(R8), Y%d", at+8, tmp)
					g.i("VPSRLVD Y%d, Y%d, Y%d", tmp, y, y)
					g.i("VPAND Y%d, Y%d, Y%d", window, y, y)
					g.i("VPMULLD Y%d, Y%d, Y%d", factor, y, y)
					g.i("VPSLLD $17, Y%d, Y%d", y, tmp)
					g.i("VPSRLD $24, Y%d, Y%d", tmp, tmp)
					g.i("VPCMPEQD Y%d, Y%d, Y%d", ones, ones, ones)
					g.i("VPGATHERDD Y%d, (R11)(Y%d*4), Y%d", ones, tmp, pair)
					g.i("VPAND Y%d, Y%d, Y%d", flip, y, y)
					g.i("VPXOR Y%d, Y%d, Y%d", y, pair, pair)
					for v := range 2 {
						to := pair
						if v == 0 {
							to = tmp
							g.i("VPSLLD $16, Y%d, Y%d", pair, tmp)
						}
						g.i("VPSRAD $3, Y%d, Y%d", to, to)
						g.i("VPAND Y%d, Y%d, Y%d", number, to, to)
						for r := range m {
							g.i("VBROADCASTSS %s, Y%d", xs.at(r, 4*(o.col+2*s+8*half+v)), ones)
							g.i("VFMADD231PS Y%d, Y%d, Y%d", ones, to, acc+2*r+o.row)
						}
					}
				}
			}
		}
		for r := range m {
			for row := range 2 {
				g.i("VMOVUPS Y%d, %d(DX)", acc+2*r+row, 64*(8*r+row))
			}
		}
		g.i("ADDQ $128, DX")
		g.i("ADDQ $%d, R8", 8*ringStepBytes)
		g.i("DECQ CX")
		g.i("JNE  %s", name("pair"))
		g.i("ADDQ $32, SI")
		g.i("ADDQ $32, DI")
		g.i("DECQ R12")
		g.i("JNE  %s", name("half"))
		g.i("SUBQ $64, DI")
		g.i("SUBQ $64, SI")
		g.i("ADDQ size+48(FP), SI")
		for i := 0; 3*i < m; i++ {
			g.i("ADDQ $64, %s", xs.bases[i])
		}
		g.i("DECQ R13")
		g.i("JNE  %s", name("block"))
		g.i("VZEROUPPER")
		g.i("RET")
	}
}

// ringSpread emits the words of 8 rings of a block to scratch, as words of 32 bits: of the first halves and of the second.
func (g *gen) ringSpread(label string) {
	const a, b, low, high, first = 8, 9, 10, 11, 0
	g.i("MOVQ size+48(FP), CX")
	g.i("MOVQ R14, DX")
	g.i("MOVQ SI, AX")
	g.i("VMOVDQU (SI), Y%d", a)
	g.i("VPSRLD $16, Y%d, Y%d", a, first)
	g.i("VPSLLD $16, Y%d, Y%d", a, low)
	g.i("VPOR Y%d, Y%d, Y%d", low, first, first)
	write := func() {
		g.i("VPSLLD $16, Y%d, Y%d", b, low)
		g.i("VPBLENDW $0x55, Y%d, Y%d, Y%d", a, low, low)
		g.i("VPSRLD $16, Y%d, Y%d", a, high)
		g.i("VPBLENDW $0xAA, Y%d, Y%d, Y%d", b, high, high)
		g.i("VMOVDQA Y%d, (DX)", low)
		g.i("VMOVDQA Y%d, 32(DX)", high)
	}
	g.i("SUBQ $64, CX")
	g.label(label)
	g.i("PREFETCHT0 %d(AX)", ringsAhead)
	g.i("VMOVDQU 64(AX), Y%d", b)
	write()
	g.i("VMOVDQA Y%d, Y%d", b, a)
	g.i("ADDQ $64, AX")
	g.i("ADDQ $64, DX")
	g.i("SUBQ $64, CX")
	g.i("JNE  %s", label)
	g.i("VMOVDQA Y%d, Y%d", first, b)
	write()
}
