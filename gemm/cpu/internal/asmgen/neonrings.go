package main

// neonUnpackRings emits the unpacking of blocks of rings, four lanes at a time: see unpackRingsGeneric in package cpu. Windows and what they
// name are made of vectors; the table is in memory, and an entry is loaded for each. The words of a block come to the scratch first,
// with those behind them that windows go on with: the first ones, halves changed.
func (g *gen) neonUnpackRings() {
	g.text("unpackRingsNEON", "dst *float32, stride int, words *byte, blocks, rate int, pairs *uint32, flips uint32, scratch *byte", 64)
	g.args("dst+0", "R0", "words+16", "R1", "blocks+24", "R2", "rate+32", "R3", "pairs+40", "R4", "scratch+56", "R5")
	const a, b, window, value, low, high, tmp = 0, 1, 2, 3, 4, 5, 6
	const shift, words, factor, index, flips, number = 16, 17, 18, 19, 20, 21
	g.dup32(words, 0xffff)
	g.dup32(factor, ringsFactor)
	g.dup32(index, 0xff)
	g.dup32(number, 0x8fffe000)
	g.i("MOVWU flips+48(FP), R16")
	g.i("VDUP R16, V%d.S4", flips)
	g.label("block")
	g.i("LSL $1, R3, R6") // words of a half of a ring
	g.i("MOVD R5, R7")
	for q := range 4 {
		g.ldq(tmp+q, "R1", 16*q)
		g.i("VREV32 V%d.H8, V%d.H8", tmp+q, tmp+q)
	}
	g.label("copy")
	g.i("VLD1.P 64(R1), [V0.B16, V1.B16, V2.B16, V3.B16]")
	g.i("VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R7)")
	g.next("R6", 1, "copy")
	for q := range 4 {
		g.stq(tmp+q, "R7", 16*q)
	}

	g.i("MOVD R0, R8")
	g.i("MOVD R5, R9")
	g.i("MOVD $4, R10")
	g.label("lanes")
	g.i("MOVD stride+8(FP), R6")
	g.i("MOVD $0, R7") // the bit at which the windows of a step begin
	for i := range 32 {
		g.i("LSR $4, R7, R11")
		g.i("ADD R11<<6, R9, R11")
		g.ldq(a, "R11", 0)
		g.ldq(b, "R11", 64)
		g.i("AND $15, R7, R11")
		g.i("NEG R11, R11")
		g.i("VDUP R11, V%d.S4", shift)
		g.i("ADD R3, R7")
		for half := range 2 {
			if half == 0 {
				g.mov(window, a)
				g.shift("VSLI", "S4", window, b, 16)
			} else {
				g.mov(window, b)
				g.i("VSRI $16, V%d.S4, V%d.S4", a, window)
			}
			g.op("ushl", window, window, shift)
			g.and(window, window, words)
			g.op("mul", window, window, factor)
			g.right("S4", tmp, window, 7)
			g.and(tmp, tmp, index)
			for lane := range 4 {
				g.i("VMOV V%d.S[%d], R%d", tmp, lane, 11+lane)
			}
			for lane := range 4 {
				g.i("MOVWU (R4)(R%d<<2), R%d", 11+lane, 11+lane)
			}
			for lane := range 4 {
				g.i("VMOV R%d, V%d.S[%d]", 11+lane, value, lane)
			}
			g.and(window, window, flips)
			g.eor(value, value, window)
			// Bits of a float16 where a float32 has them.
			g.shift("VSHL", "S4", low, value, 16)
			for _, r := range []int{low, value} {
				to := r
				if r == value {
					to = high
				}
				g.sshr(to, r, 3)
				g.and(to, to, number)
			}
			step := 32*half + i
			row, col := step>>2&3<<1|step&1, step>>4<<2|step&2
			if row == 0 {
				g.i("MOVD R8, R11")
			} else {
				g.i("MOVD $%d, R11", 4*row)
				g.i("MADD R11, R8, R6, R11")
			}
			g.stq(low, "R11", 64*col)
			g.stq(high, "R11", 64*col+64)
		}
	}
	g.i("ADD $16, R8")
	g.i("ADD $16, R9")
	g.next("R10", 1, "lanes")
	g.i("ADD $1024, R0")
	g.next("R2", 1, "block")
	g.i("RET")
}

// ringsFactor is what windows are multiplied by, as in package cpu.
const ringsFactor = 0xCBAC1FED
