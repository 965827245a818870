package main

import (
	"fmt"
	"math"
)

// The signature of the kernels for planes.
const (
	planesSig  = "y *float32, words, factors *byte, stype, bits, offset int, tables *byte, units, sums *float32, halves, group, block int"
	planesArgs = 96
)

// Constants of the tables, which package cpu has as well.
const (
	tableMost  = 1<<21 - 1  // the largest column of x
	tableTiny  = 0x1p-100   // what the largest is taken for at least
	tableBlock = 4          // half-blocks with one unit
	tableScale = 127 + 20   // exponent of the largest column of x, biased
	planeBytes = 64         // of a half-block
	planesMax  = 9          // factors of a group: of 8 planes, and an offset
	exponent   = 0x7f800000 // its bits
)

// planesAhead is the distance of the prefetches in bytes. Panels follow each other.
const planesAhead = 2048

// Registers of the kernels for planes.
const (
	planesY    = 0 // and 1: sums of rows 0 to 7, and of 8 to 15
	planesAcc  = 2 // two for each byte
	planesA    = 8 // bytes looked up
	planesB    = 9
	planesIdxA = 10
	planesIdxB = 11
	planesTmp  = 12
	planesMask = 13
	planesOnes = 14
	planesComb = 15 // 1 and 256 as words, over and over
)

// planes emits y[16] = x · Ŵᵀ for a panel of binary codes of the CPU layout of package repack, in the
// arithmetic of planes.go in package cpu, through tables whose entries have width bytes. A nibble of each byte of
// a vector names an entry of the table of four columns, one table in either half of it. Entries of two tables are
// interleaved, a byte of them at a time, and added up in words.
func (g *gen) planes(width int) {
	name := fmt.Sprintf("planes%dAVX2", width)
	const count = 64 * planesMax // where the frame has the planes left, behind the factors of a group
	g.raw("\n// func %s(%s)", name, planesSig)
	g.raw("TEXT ·%s(SB), NOSPLIT, $%d-%d", name, count+8, planesArgs)
	g.i("MOVQ words+8(FP), AX")
	g.i("MOVQ factors+16(FP), R8")
	g.i("MOVQ bits+32(FP), DX")
	g.i("SHLQ $6, DX") // of a half-block
	g.i("MOVQ tables+48(FP), SI")
	g.i("MOVQ units+56(FP), R9")
	g.i("MOVQ sums+64(FP), DI")
	g.i("MOVQ halves+72(FP), R10")
	g.i("MOVQ block+88(FP), R12") // half-blocks left of it
	g.i("XORQ R11, R11")          // of the group
	g.i("VPCMPEQD Y%d, Y%d, Y%d", planesOnes, planesOnes, planesOnes)
	g.i("VPSRLW $12, Y%d, Y%d", planesOnes, planesMask)
	g.i("VPACKUSWB Y%d, Y%d, Y%d", planesMask, planesMask, planesMask)
	g.i("VPABSB Y%d, Y%d", planesOnes, planesOnes)
	g.i("MOVL $0x01000001, BX")
	g.i("VMOVD BX, X%d", planesComb)
	g.i("VPBROADCASTD X%d, Y%d", planesComb, planesComb)
	for h := range 2 {
		g.i("VXORPS Y%d, Y%d, Y%d", planesY+h, planesY+h, planesY+h)
	}

	g.label("segment")
	g.i("TESTQ R11, R11")
	g.i("JNE  same")
	g.i("MOVQ group+80(FP), R11")
	g.factors()
	g.label("same")
	g.i("MOVQ R10, CX")
	for _, left := range []string{"R11", "R12"} {
		g.i("CMPQ %s, CX", left)
		g.i("CMOVQLT %s, CX", left)
	}
	g.i("LEAQ 0(SP), BX")
	g.i("CMPQ offset+40(FP), $0")
	g.i("JEQ  weighted")
	g.i("MOVQ DI, R14")
	g.i("MOVQ CX, R13")
	g.label("offset")
	g.i("VBROADCASTSS (R14), Y%d", planesTmp)
	for h := range 2 {
		g.i("VFMADD231PS %d(BX), Y%d, Y%d", 32*h, planesTmp, planesY+h)
	}
	g.i("ADDQ $4, R14")
	g.i("DECQ R13")
	g.i("JNE  offset")
	g.i("ADDQ $64, BX")
	g.label("weighted")
	g.i("MOVQ bits+32(FP), R13")
	g.i("MOVQ R13, %d(SP)", count)

	g.label("plane")
	for i := range 2 * width {
		g.i("VPXOR Y%d, Y%d, Y%d", planesAcc+i, planesAcc+i, planesAcc+i)
	}
	g.i("MOVQ AX, R14")
	g.i("MOVQ SI, R15")
	g.i("MOVQ CX, R13")
	g.label("half")
	g.i("PREFETCHT0 %d(R14)", planesAhead)
	for v := range 2 {
		g.planeLookups(width, v)
	}
	g.i("ADDQ DX, R14")
	g.i("ADDQ $%d, R15", 128*width)
	g.i("DECQ R13")
	g.i("JNE  half")
	for h := range 2 {
		g.planeFlush(width, h)
	}
	g.i("ADDQ $%d, AX", planeBytes)
	g.i("ADDQ $64, BX")
	g.i("DECQ %d(SP)", count)
	g.i("JNE  plane")

	// AX is at the next half-block.
	g.i("SUBQ CX, R11")
	g.i("SUBQ CX, R10")
	g.i("LEAQ (DI)(CX*4), DI")
	g.i("MOVQ CX, R13")
	g.i("IMULQ $%d, R13", 128*width)
	g.i("ADDQ R13, SI")
	g.i("MOVQ CX, R13")
	g.i("DECQ R13")
	g.i("IMULQ DX, R13")
	g.i("ADDQ R13, AX")
	g.i("SUBQ CX, R12")
	g.i("JNE  unit")
	g.i("MOVQ block+88(FP), R12")
	g.i("ADDQ $4, R9")
	g.label("unit")
	g.i("TESTQ R10, R10")
	g.i("JNE  segment")
	g.i("MOVQ y+0(FP), DI")
	for h := range 2 {
		g.i("VMOVUPS Y%d, %d(DI)", planesY+h, 32*h)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}

// factors writes those of the next group to the frame.
func (g *gen) factors() {
	const a, b = planesA, planesB
	g.i("MOVQ bits+32(FP), R13")
	g.i("ADDQ offset+40(FP), R13")
	g.i("LEAQ 0(SP), BX")
	g.i("MOVQ stype+24(FP), R14")
	g.label("factor")
	g.i("CMPQ R14, $1")
	g.i("JEQ  bf16")
	g.i("JGT  f32")
	g.i("VCVTPH2PS 0(R8), Y%d", a)
	g.i("VCVTPH2PS 16(R8), Y%d", b)
	g.i("ADDQ $32, R8")
	g.i("JMP  read")
	g.label("bf16")
	for i, r := range []int{a, b} {
		g.i("VPMOVZXWD %d(R8), Y%d", 16*i, r)
		g.i("VPSLLD $16, Y%d, Y%d", r, r)
	}
	g.i("ADDQ $32, R8")
	g.i("JMP  read")
	g.label("f32")
	for i, r := range []int{a, b} {
		g.i("VMOVUPS %d(R8), Y%d", 32*i, r)
	}
	g.i("ADDQ $64, R8")
	g.label("read")
	for i, r := range []int{a, b} {
		g.i("VMOVUPS Y%d, %d(BX)", r, 32*i)
	}
	g.i("ADDQ $64, BX")
	g.i("DECQ R13")
	g.i("JNE  factor")
}

// planeLookups adds what 16 columns of a half-block name to the sums of a plane.
func (g *gen) planeLookups(width, v int) {
	const a, b, tmp = planesA, planesB, planesTmp
	g.i("VMOVDQU %d(R14), Y%d", 32*v, planesIdxB)
	g.i("VPAND Y%d, Y%d, Y%d", planesMask, planesIdxB, planesIdxA)
	g.i("VPSRLW $4, Y%d, Y%d", planesIdxB, planesIdxB)
	g.i("VPAND Y%d, Y%d, Y%d", planesMask, planesIdxB, planesIdxB)
	for p := range width {
		at := 64 * (v*width + p)
		g.i("VMOVDQU %d(R15), Y%d", at, a)
		g.i("VPSHUFB Y%d, Y%d, Y%d", planesIdxA, a, a)
		g.i("VMOVDQU %d(R15), Y%d", at+32, b)
		g.i("VPSHUFB Y%d, Y%d, Y%d", planesIdxB, b, b)
		g.i("VPUNPCKLBW Y%d, Y%d, Y%d", b, a, tmp)
		g.i("VPUNPCKHBW Y%d, Y%d, Y%d", b, a, b)
		for h, r := range []int{tmp, b} {
			if p == width-1 { // with signs
				g.i("VPMADDUBSW Y%d, Y%d, Y%d", r, planesOnes, r)
			} else {
				g.i("VPMADDUBSW Y%d, Y%d, Y%d", planesOnes, r, r)
			}
			acc := planesAcc + 2*p + h
			g.i("VPADDW Y%d, Y%d, Y%d", r, acc, acc)
		}
	}
}

// planeFlush adds the sums of a plane, of rows 8h on, to y.
func (g *gen) planeFlush(width, h int) {
	const lo, hi, t, zero = planesA, planesB, planesIdxA, planesTmp
	acc := func(p int) int { return planesAcc + 2*p + h }
	top := acc(width - 1)
	g.i("VPXOR Y%d, Y%d, Y%d", zero, zero, zero)
	if width == 3 {
		g.i("VPUNPCKLWD Y%d, Y%d, Y%d", acc(1), acc(0), lo)
		g.i("VPUNPCKHWD Y%d, Y%d, Y%d", acc(1), acc(0), hi)
		for _, r := range []int{lo, hi} {
			g.i("VPMADDWD Y%d, Y%d, Y%d", planesComb, r, r)
		}
		g.i("VPUNPCKLWD Y%d, Y%d, Y%d", top, zero, t)
		g.i("VPADDD Y%d, Y%d, Y%d", t, lo, lo)
		g.i("VPUNPCKHWD Y%d, Y%d, Y%d", top, zero, t)
		g.i("VPADDD Y%d, Y%d, Y%d", t, hi, hi)
	} else {
		g.i("VPUNPCKLWD Y%d, Y%d, Y%d", top, zero, lo)
		g.i("VPUNPCKHWD Y%d, Y%d, Y%d", top, zero, hi)
		for _, r := range []int{lo, hi} {
			g.i("VPSRAD $16, Y%d, Y%d", r, r)
		}
	}
	// The tables of the other half.
	g.i("VPERM2I128 $0x20, Y%d, Y%d, Y%d", hi, lo, t)
	g.i("VPERM2I128 $0x31, Y%d, Y%d, Y%d", hi, lo, lo)
	g.i("VPADDD Y%d, Y%d, Y%d", t, lo, lo)
	g.i("VCVTDQ2PS Y%d, Y%d", lo, lo)
	g.i("VBROADCASTSS (R9), Y%d", hi)
	g.i("VMULPS Y%d, Y%d, Y%d", hi, lo, lo)
	g.i("VFMADD231PS %d(BX), Y%d, Y%d", 32*h, lo, planesY+h)
}

// tables emits the tables of x, of three bytes an entry, half-block by half-block: see tablesGeneric in package cpu.
func (g *gen) tables() {
	g.raw("\n// func tablesAVX2(dst *byte, units, sums, x *float32, halves int)")
	g.raw("TEXT ·tablesAVX2(SB), NOSPLIT, $128-40")
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ units+8(FP), BX")
	g.i("MOVQ sums+16(FP), R8")
	g.i("MOVQ x+24(FP), SI")
	g.i("MOVQ halves+32(FP), CX")
	const (
		unit, inverse, least, most = 15, 14, 13, 12
		signs                      = 9 // of the first three columns in entries 0 to 7
		bytes                      = 8 // of a half to fours of each significance
		order                      = 7
	)
	for i, r := range []int{signs, signs + 1, signs + 2, bytes, order} {
		g.i("VMOVDQU tableSigns<>+%d(SB), Y%d", 32*i, r)
	}

	g.label("block")
	g.i("MOVQ $%d, DX", tableBlock)
	g.i("CMPQ CX, DX")
	g.i("CMOVQLT CX, DX")
	g.i("MOVQ SI, R10")
	g.i("MOVQ DX, R9")
	g.broadcast(math.MaxInt32, 6)
	g.broadcast(math.Float32bits(tableTiny), 0)
	g.label("largest")
	for i := range 4 {
		// As whole numbers, absolute values are in order, and no NaN is lost.
		g.i("VPAND %d(R10), Y6, Y%d", 32*i, 1+i)
		g.i("VPMAXUD Y%d, Y0, Y0", 1+i)
	}
	g.i("ADDQ $128, R10")
	g.i("DECQ R9")
	g.i("JNE  largest")
	g.tableUnit(tableScale, unit, inverse)
	g.i("SUBQ DX, CX")

	g.label("half")
	g.broadcast(tableMost, most)
	g.broadcast(-tableMost&math.MaxUint32, least)
	for i := range 4 {
		g.i("VMULPS %d(SI), Y%d, Y%d", 32*i, inverse, i)
		g.i("VCVTPS2DQ Y%d, Y%d", i, i)
		g.i("VPMINSD Y%d, Y%d, Y%d", most, i, i)
		g.i("VPMAXSD Y%d, Y%d, Y%d", least, i, i)
		g.i("VMOVDQU Y%d, %d(SP)", i, 32*i)
	}
	g.i("VPADDD Y1, Y0, Y0")
	g.i("VPADDD Y3, Y2, Y2")
	g.i("VPADDD Y2, Y0, Y0")
	g.i("VEXTRACTI128 $1, Y0, X1")
	g.i("VPADDD X1, X0, X0")
	g.i("VPSHUFD $0x4E, X0, X1")
	g.i("VPADDD X1, X0, X0")
	g.i("VPSHUFD $0xB1, X0, X1")
	g.i("VPADDD X1, X0, X0")
	g.i("VCVTDQ2PS X0, X0")
	g.i("VMULSS X%d, X0, X0", unit)
	g.i("VMOVSS X0, (R8)")
	g.i("ADDQ $4, R8")
	for t := range 8 {
		const lo, hi = 0, 1
		for i := range 3 {
			g.i("VPBROADCASTD %d(SP), Y%d", 16*t+4*i, 2+i)
			g.i("VPSIGND Y%d, Y%d, Y%d", signs+i, 2+i, 2+i)
		}
		g.i("VPBROADCASTD %d(SP), Y5", 16*t+12)
		g.i("VPADDD Y3, Y2, Y2")
		g.i("VPADDD Y4, Y2, Y2")
		g.i("VPSUBD Y5, Y2, Y%d", lo)
		g.i("VPADDD Y5, Y2, Y%d", hi)
		g.storeTable(t, lo, hi, bytes, order)
	}
	g.i("ADDQ $128, SI")
	g.i("ADDQ $384, DI")
	g.i("DECQ DX")
	g.i("JNE  half")
	g.i("TESTQ CX, CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
	g.tableSigns()
}

// tableUnit sets vectors to the unit of numbers, of which Y0 has the largest as bits, and to its inverse, and stores the
// unit behind BX. scale is the exponent that the largest has then.
func (g *gen) tableUnit(scale uint32, unit, inverse int) {
	g.largest()
	g.broadcast(exponent, 1)
	g.i("VPAND Y1, Y0, Y0")
	g.i("VPCMPEQD Y1, Y0, Y1") // a NaN then, for a unit
	g.broadcast((scale+127)<<23, inverse)
	g.i("VPSUBD Y0, Y%d, Y%d", inverse, inverse)
	g.broadcast((scale-127)<<23, unit)
	g.i("VPSUBD Y%d, Y0, Y%d", unit, unit)
	g.i("VPOR Y1, Y%d, Y%d", unit, unit)
	g.i("VMOVSS X%d, (BX)", unit)
	g.i("ADDQ $4, BX")
}

// largest sets all of Y0 to the largest number in it.
func (g *gen) largest() {
	g.i("VPERM2I128 $1, Y0, Y0, Y1")
	g.i("VPMAXUD Y1, Y0, Y0")
	g.i("VPSHUFD $0x4E, Y0, Y1")
	g.i("VPMAXUD Y1, Y0, Y0")
	g.i("VPSHUFD $0xB1, Y0, Y1")
	g.i("VPMAXUD Y1, Y0, Y0")
}

// storeTable stores the t-th table of a half-block: lo has entries 0 to 7 and hi the others.
func (g *gen) storeTable(t, lo, hi, bytes, order int) {
	for _, r := range []int{lo, hi} {
		g.i("VPSHUFB Y%d, Y%d, Y%d", bytes, r, r)
	}
	at := t/4*64*3 + t%4*16
	g.i("VPUNPCKLDQ Y%d, Y%d, Y2", hi, lo)
	g.i("VPUNPCKHDQ Y%d, Y%d, Y3", hi, lo)
	g.i("VPERMD Y2, Y%d, Y2", order)
	g.i("VPERMD Y3, Y%d, Y3", order)
	g.i("VMOVDQU X2, %d(DI)", at)
	g.i("VEXTRACTI128 $1, Y2, %d(DI)", at+64)
	g.i("VMOVDQU X3, %d(DI)", at+128)
}

// broadcast sets all of a vector to a number.
func (g *gen) broadcast(bits uint32, r int) {
	g.i("MOVL $0x%08x, AX", bits)
	g.i("VMOVD AX, X%d", r)
	g.i("VPBROADCASTD X%d, Y%d", r, r)
}

// Where the constants of tables begin.
const (
	tableBytes = 96  // of four words by significance
	tableOrder = 128 // of the words of two tables in turns
	tableTurn  = 160 // of words from the last to the first
)

// tableSigns emits the constants of tables: the signs of three columns in entries 0 to 7, and orders.
func (g *gen) tableSigns() {
	at := 0
	word := func(v uint32) {
		g.raw("DATA tableSigns<>+%d(SB)/4, $0x%08x", at, v)
		at += 4
	}
	g.raw("")
	for i := range 3 {
		for entry := range 8 {
			if entry>>i&1 == 1 {
				word(1)
			} else {
				word(math.MaxUint32)
			}
		}
	}
	for range 2 {
		for i := range uint32(4) {
			word(0x0c080400 + 0x01010101*i)
		}
	}
	for _, i := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
		word(i)
	}
	for i := range uint32(8) {
		word(7 - i)
	}
	g.raw("GLOBL tableSigns<>(SB), RODATA|NOPTR, $%d", at)
}

// planesDecode emits the weights of half-blocks of one group of a panel: dst [32·halves][16]. factors are an offset
// and those of the planes, [bits + 1][16].
func (g *gen) planesDecode() {
	g.text("planesDecodeAVX2", "dst *float32, words *byte, factors *float32, bits, halves int", 40)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ words+8(FP), SI")
	g.i("MOVQ bits+24(FP), DX")
	g.i("MOVQ halves+32(FP), CX")
	const (
		codes, t, ones, sign, factor = 8, 9, 10, 11, 12 // the columns at hand before them
	)
	g.i("VPCMPEQD Y%d, Y%d, Y%d", ones, ones, ones)
	g.i("VPSLLD $31, Y%d, Y%d", ones, sign)
	g.label("half")
	for v := range 2 {
		for l := range 2 {
			for h := range 2 {
				name := fmt.Sprintf("plane%d%d%d", v, l, h)
				g.i("MOVQ factors+16(FP), BX")
				g.i("MOVQ SI, R8")
				g.i("MOVQ DX, R9")
				for c := range 8 {
					g.i("VMOVUPS %d(BX), Y%d", 32*h, c)
				}
				g.label(name)
				g.i("ADDQ $64, BX")
				g.i("VMOVUPS %d(BX), Y%d", 32*h, factor)
				g.i("VPMOVZXBD %d(R8), Y%d", 32*v+16*l+8*h, codes)
				g.i("VPXOR Y%d, Y%d, Y%d", ones, codes, codes)
				for c := range 8 {
					g.i("VPSLLD $%d, Y%d, Y%d", 31-c, codes, t)
					g.i("VPAND Y%d, Y%d, Y%d", sign, t, t)
					g.i("VXORPS Y%d, Y%d, Y%d", factor, t, t)
					g.i("VADDPS Y%d, Y%d, Y%d", t, c, c)
				}
				g.i("ADDQ $%d, R8", planeBytes)
				g.i("DECQ R9")
				g.i("JNE  %s", name)
				for c := range 8 {
					g.i("VMOVUPS Y%d, %d(DI)", c, 64*(16*v+c/4*8+4*l+c%4)+32*h)
				}
			}
		}
	}
	g.i("MOVQ DX, R8")
	g.i("SHLQ $6, R8")
	g.i("ADDQ R8, SI")
	g.i("ADDQ $2048, DI")
	g.i("DECQ CX")
	g.i("JNE  half")
	g.i("VZEROUPPER")
	g.i("RET")
}
