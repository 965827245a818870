package main

import "math"

// entryScale is tableScale for tables whose entries are rounded already.
const (
	entryScale = 127 + 22
	entryMost  = 1<<23 - 1
)

// halfSums emits the half tables of x, see halfSumsGeneric in package cpu: of eight tables at a time, a vector for each
// entry, which are then turned round.
func (g *gen) halfSums() {
	g.text("halfSumsAVX2", "entries *float32, most *uint32, sums, x *float32, halves int", 40)
	g.i("MOVQ entries+0(FP), DI")
	g.i("MOVQ most+8(FP), DX")
	g.i("MOVQ sums+16(FP), R8")
	g.i("MOVQ x+24(FP), SI")
	g.i("MOVQ halves+32(FP), CX")
	const (
		sum  = 4
		sign = 15
	)
	entry := [8]int{8, 9, 10, 11, 12, 13, 14, 7}
	g.label("half")
	g.i("VPCMPEQD Y%d, Y%d, Y%d", sign, sign, sign)
	g.i("VPSLLD $31, Y%d, Y%d", sign, sign)
	for t := range 4 {
		g.i("VMOVUPS %d(SI), X%d", 16*t, t)
		g.i("VINSERTF128 $1, %d(SI), Y%d, Y%d", 64+16*t, t, t)
	}
	g.transpose([4]int{0, 1, 2, 3}, [4]int{4, 5, 6, 7})
	g.i("VADDPS Y1, Y0, Y%d", sum)
	g.i("VADDPS Y2, Y%d, Y%d", sum, sum)
	g.i("VADDPS Y3, Y%d, Y%d", sum, sum)
	g.i("VXORPS Y%d, Y%d, Y%d", sign, sum, entry[0])
	for i := range 3 {
		g.i("VADDPS Y%d, Y%d, Y%d", i, i, i)
		for w := range 1 << i {
			g.i("VADDPS Y%d, Y%d, Y%d", i, entry[w], entry[w+1<<i])
		}
	}
	for w, r := range entry {
		// As whole numbers, absolute values are in order, and no NaN is lost.
		if w == 0 {
			g.i("VPANDN Y%d, Y%d, Y0", r, sign)
			continue
		}
		g.i("VPANDN Y%d, Y%d, Y1", r, sign)
		g.i("VPMAXUD Y1, Y0, Y0")
	}
	g.i("VMOVDQU Y0, (DX)")
	g.i("VCVTPS2PD X%d, Y0", sum)
	g.i("VEXTRACTF128 $1, Y%d, X1", sum)
	g.i("VCVTPS2PD X1, Y1")
	g.i("VADDPD Y1, Y0, Y0")
	g.i("VEXTRACTF128 $1, Y0, X1")
	g.i("VADDPD X1, X0, X0")
	g.i("VUNPCKHPD X0, X0, X1")
	g.i("VADDSD X1, X0, X0")
	g.i("VCVTSD2SS X0, X0, X0")
	g.i("VMOVSS X0, (R8)")
	lo, hi := [4]int(entry[:4]), [4]int(entry[4:])
	g.transpose(lo, [4]int{0, 1, 2, 3})
	g.transpose(hi, [4]int{0, 1, 2, 3})
	for t := range 4 {
		g.i("VPERM2F128 $0x20, Y%d, Y%d, Y0", hi[t], lo[t])
		g.i("VPERM2F128 $0x31, Y%d, Y%d, Y1", hi[t], lo[t])
		g.i("VMOVUPS Y0, %d(DI)", 32*t)
		g.i("VMOVUPS Y1, %d(DI)", 32*(t+4))
	}
	g.i("ADDQ $128, SI")
	g.i("ADDQ $256, DI")
	g.i("ADDQ $32, DX")
	g.i("ADDQ $4, R8")
	g.i("DECQ CX")
	g.i("JNE  half")
	g.i("VZEROUPPER")
	g.i("RET")
}

// transpose turns four by four numbers in each half of four vectors.
func (g *gen) transpose(v, tmp [4]int) {
	for i := 0; i < 4; i += 2 {
		g.i("VUNPCKLPS Y%d, Y%d, Y%d", v[i+1], v[i], tmp[i])
		g.i("VUNPCKHPS Y%d, Y%d, Y%d", v[i+1], v[i], tmp[i+1])
	}
	for i := range 2 {
		g.i("VUNPCKLPD Y%d, Y%d, Y%d", tmp[i+2], tmp[i], v[2*i])
		g.i("VUNPCKHPD Y%d, Y%d, Y%d", tmp[i+2], tmp[i], v[2*i+1])
	}
}

// shareMost emits the largest of some vectors of numbers in place of all in them: see shareMostGeneric.
func (g *gen) shareMost() {
	g.text("shareMostAVX2", "most *uint32, halves, block int", 24)
	g.i("MOVQ most+0(FP), DI")
	g.i("MOVQ halves+8(FP), CX")
	g.i("MOVQ block+16(FP), R8")
	g.label("block")
	g.i("CMPQ CX, R8")
	g.i("CMOVQLT CX, R8")
	g.i("SUBQ R8, CX")
	g.i("MOVQ DI, SI")
	g.i("MOVQ R8, DX")
	g.i("VPXOR Y0, Y0, Y0")
	g.label("largest")
	g.i("VPMAXUD (SI), Y0, Y0")
	g.i("ADDQ $32, SI")
	g.i("DECQ DX")
	g.i("JNE  largest")
	g.largest()
	g.label("store")
	g.i("VMOVDQU Y0, (DI)")
	g.i("ADDQ $32, DI")
	g.i("CMPQ DI, SI")
	g.i("JNE  store")
	g.i("TESTQ CX, CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}

// tableScales emits the scales of entries of 8 bits from the largest magnitudes, as bits: see tableScalesGeneric.
func (g *gen) tableScales() {
	g.text("tableScalesAVX2", "scales *float32, most *uint32, n int", 24)
	g.i("MOVQ scales+0(FP), DI")
	g.i("MOVQ most+8(FP), SI")
	g.i("MOVQ n+16(FP), CX")
	const (
		largest, steps, limit = 0, 14, 15
		lessThan, notLess     = 0x11, 0x16 // not: or equal
		up                    = 2
	)
	g.broadcast(math.Float32bits(127), steps)
	g.broadcast(math.Float32bits(65504), limit)
	g.label("eight")
	g.i("VMOVUPS (SI), Y%d", largest)
	g.i("VDIVPS Y%d, Y%d, Y1", steps, largest)
	g.i("VCVTPS2PH $%d, Y1, X1", up)
	// The quotient may have been rounded down to a float16.
	g.i("VCVTPH2PS X1, Y2")
	g.i("VMULPS Y%d, Y2, Y2", steps)
	g.i("VCMPPS $%d, Y%d, Y2, Y2", lessThan, largest)
	g.i("VEXTRACTI128 $1, Y2, X3")
	g.i("VPACKSSDW X3, X2, X2")
	g.i("VPSUBW X2, X1, X1")
	g.i("VCVTPH2PS X1, Y1")
	g.i("VCMPPS $%d, Y%d, Y1, Y2", notLess, limit)
	g.i("VORPS Y2, Y1, Y1") // a NaN then
	g.i("VMOVUPS Y1, (DI)")
	g.i("ADDQ $32, SI")
	g.i("ADDQ $32, DI")
	g.i("SUBQ $8, CX")
	g.i("JNE  eight")
	g.i("VZEROUPPER")
	g.i("RET")
}

// tableCodes emits tables of 8 bits from their entries and the scale of each: see tableCodesGeneric.
func (g *gen) tableCodes() {
	g.text("tableCodesAVX2", "dst *byte, entries, scales *float32, halves int", 32)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ entries+8(FP), SI")
	g.i("MOVQ scales+16(FP), DX")
	g.i("MOVQ halves+24(FP), CX")
	const (
		order, signs, there = 11, 12, 13 // with the next
		zero, above         = 15, 0x1e
	)
	g.i("VMOVDQU tableSigns<>+%d(SB), Y%d", tableOrder, order)
	for i := range 3 {
		g.i("VMOVDQU tableBack<>+%d(SB), Y%d", 32*i, signs+i)
	}
	g.i("VXORPS Y%d, Y%d, Y%d", zero, zero, zero)
	g.label("half")
	for v := range 2 {
		for t := range 4 {
			at := 4*v + t
			g.i("VBROADCASTSS %d(DX), Y%d", 4*at, 4+t)
			g.i("VMOVUPS %d(SI), Y%d", 32*at, t)
			g.i("VDIVPS Y%d, Y%d, Y%d", 4+t, t, t)
			g.i("VCVTPS2DQ Y%d, Y%d", t, t)
		}
		g.i("VMOVUPS %d(DX), X4", 16*v)
		g.i("VCMPPS $%d, X%d, X4, X4", above, zero)
		g.i("VPMOVSXDQ X4, Y4")
		g.i("VPACKSSDW Y1, Y0, Y0")
		g.i("VPACKSSDW Y3, Y2, Y2")
		g.i("VPACKSSWB Y2, Y0, Y0")
		g.i("VPERMD Y0, Y%d, Y0", order)
		g.i("VPAND Y4, Y0, Y0")
		for i := range 2 {
			g.i("VPSHUFB Y%d, Y0, Y%d", there+i, 1+i)
			g.i("VPSIGNB Y%d, Y%d, Y%d", signs, 1+i, 1+i)
		}
		g.i("VPERM2I128 $0x20, Y2, Y1, Y0")
		g.i("VPERM2I128 $0x31, Y2, Y1, Y1")
		g.i("VMOVDQU Y0, %d(DI)", 64*v)
		g.i("VMOVDQU Y1, %d(DI)", 64*v+32)
	}
	g.i("ADDQ $256, SI")
	g.i("ADDQ $32, DX")
	g.i("ADDQ $128, DI")
	g.i("DECQ CX")
	g.i("JNE  half")
	g.i("VZEROUPPER")
	g.i("RET")
	g.tableBack()
}

// tableBack emits the constants of tableCodes: signs of a table's entries, and where they are, of the first and of the
// second of two tables that have their first eight.
func (g *gen) tableBack() {
	at := 0
	g.raw("")
	for _, of := range []func(entry int) uint8{
		func(entry int) uint8 { return uint8(1 - entry/8*2) },
		func(entry int) uint8 { return uint8(min(entry, 15-entry)) },
		func(entry int) uint8 { return uint8(8 + min(entry, 15-entry)) },
	} {
		for i := range 32 {
			g.raw("DATA tableBack<>+%d(SB)/1, $0x%02x", at, of(i%16))
			at++
		}
	}
	g.raw("GLOBL tableBack<>(SB), RODATA|NOPTR, $%d", at)
}

// roundSteps emits the rounding of entries to 8 bits times the scale of their table: see roundStepsGeneric.
func (g *gen) roundSteps() {
	g.text("roundStepsAVX2", "entries, scales *float32, tables int", 24)
	g.i("MOVQ entries+0(FP), DI")
	g.i("MOVQ scales+8(FP), SI")
	g.i("MOVQ tables+16(FP), CX")
	const unequal = 4
	g.i("VXORPS Y15, Y15, Y15")
	g.label("table")
	g.i("VBROADCASTSS (SI), Y1")
	g.i("VMOVUPS (DI), Y0")
	g.i("VDIVPS Y1, Y0, Y0")
	g.i("VROUNDPS $0, Y0, Y0")
	g.i("VMULPS Y1, Y0, Y0")
	g.i("VCMPPS $%d, Y15, Y1, Y1", unequal)
	g.i("VANDPS Y1, Y0, Y0")
	g.i("VMOVUPS Y0, (DI)")
	g.i("ADDQ $4, SI")
	g.i("ADDQ $32, DI")
	g.i("DECQ CX")
	g.i("JNE  table")
	g.i("VZEROUPPER")
	g.i("RET")
}

// roundF16 emits the rounding of n numbers to float16 times a unit: see roundF16Generic.
func (g *gen) roundF16() {
	g.text("roundF16AVX2", "v *float32, n int, unit, inverse float32", 24)
	g.i("MOVQ v+0(FP), DI")
	g.i("MOVQ n+8(FP), CX")
	g.i("VBROADCASTSS unit+16(FP), Y1")
	g.i("VBROADCASTSS inverse+20(FP), Y2")
	g.label("eight")
	g.i("VMULPS (DI), Y2, Y0")
	g.i("VCVTPS2PH $0, Y0, X0")
	g.i("VCVTPH2PS X0, Y0")
	g.i("VMULPS Y1, Y0, Y0")
	g.i("VMOVUPS Y0, (DI)")
	g.i("ADDQ $32, DI")
	g.i("SUBQ $8, CX")
	g.i("JNE  eight")
	g.i("VZEROUPPER")
	g.i("RET")
}

// tableEntries emits tables of three bytes an entry from entries that are rounded: see tableEntriesGeneric.
func (g *gen) tableEntries() {
	g.text("tableEntriesAVX2", "dst *byte, units, entries *float32, halves int", 32)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ units+8(FP), BX")
	g.i("MOVQ entries+16(FP), SI")
	g.i("MOVQ halves+24(FP), CX")
	const order, bytes, back, zero, least, most, inverse, unit = 7, 8, 9, 10, 11, 12, 13, 14
	g.i("VMOVDQU tableSigns<>+%d(SB), Y%d", tableOrder, order)
	g.i("VMOVDQU tableSigns<>+%d(SB), Y%d", tableBytes, bytes)
	g.i("VMOVDQU tableSigns<>+%d(SB), Y%d", tableTurn, back)
	g.i("VPXOR Y%d, Y%d, Y%d", zero, zero, zero)
	g.broadcast(entryMost, most)
	g.broadcast(-entryMost&math.MaxUint32, least)

	g.label("block")
	g.i("MOVQ $%d, DX", tableBlock)
	g.i("CMPQ CX, DX")
	g.i("CMOVQLT CX, DX")
	g.i("SUBQ DX, CX")
	g.i("MOVQ SI, R10")
	g.i("MOVQ DX, R9")
	g.broadcast(math.MaxInt32, 6)
	g.broadcast(math.Float32bits(tableTiny), 0)
	g.label("largest")
	for i := range 8 {
		g.i("VPAND %d(R10), Y6, Y%d", 32*i, 1+i%4)
		g.i("VPMAXUD Y%d, Y0, Y0", 1+i%4)
	}
	g.i("ADDQ $256, R10")
	g.i("DECQ R9")
	g.i("JNE  largest")
	g.tableUnit(entryScale, unit, inverse)

	g.label("half")
	for t := range 8 {
		const lo, hi = 0, 1
		g.i("VMULPS %d(SI), Y%d, Y%d", 32*t, inverse, lo)
		g.i("VCVTPS2DQ Y%d, Y%d", lo, lo)
		g.i("VPMINSD Y%d, Y%d, Y%d", most, lo, lo)
		g.i("VPMAXSD Y%d, Y%d, Y%d", least, lo, lo)
		g.i("VPERMD Y%d, Y%d, Y%d", lo, back, hi)
		g.i("VPSUBD Y%d, Y%d, Y%d", hi, zero, hi)
		g.storeTable(t, lo, hi, bytes, order)
	}
	g.i("ADDQ $256, SI")
	g.i("ADDQ $384, DI")
	g.i("DECQ DX")
	g.i("JNE  half")
	g.i("TESTQ CX, CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}
