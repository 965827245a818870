package main

import (
	"fmt"
	"math"
	"strings"
)

// The signature of the kernels for rings. The stride is in elements. Offsets in words and steps are in bytes; size is of the vectors of words of a block.
const (
	ringsSig  = "m int, y, x *float32, ldx int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte"
	ringsArgs = 88

	unpackRingsSig  = "dst *float32, stride int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte"
	unpackRingsArgs = 72
)

const (
	// ringsRows is the largest number of rows of x.
	ringsRows = 4

	// ringsAhead is the distance of the prefetches in bytes. Panels follow each other.
	ringsAhead = 4096

	ringStepBytes = 16   // of a step
	ringScaleAt   = 32   // of that of a block of x
	ringNumberAt  = 24   // of the bits of a number, in a hash
	ringShiftAt   = 1024 // of the shift of lower words, behind the planes
	ringShiftBy   = 1024 // of that behind the pairs
)

// ringCols are the columns of the first weights of the steps of a row, but for those of the second half. Steps of two rows follow
// each other.
func ringCols() []int { return []int{0, 2, 4, 6} }

// Registers of the kernels for rings at 512 bits, behind the sums.
const (
	ringSums    = 8  // whole numbers of two rows, of one row of x
	ringTemps   = 10 // from here: those of two batches
	ringTempsOf = 10 // each
	ringFactor  = 30 // lower half of the factor, and 31
)

// ringsAVX512 emits y[m][8][16] = x · rings for some blocks of a panel of the CPU layout of package repack, in the arithmetic of
// rings.go in package cpu: in float32, or in fixed point. The bytes of values are looked up in four planes of 256 bytes, of which each is
// four permutations: 64 windows at a time, a batch, which are those of two steps and both halves of 16 rings.
//
// A batch takes longer from its first instruction to its last than the processor looks ahead, so the first half of each comes between
// the instructions of the second half of the one before.
func (g *gen) ringsAVX512(fixed bool) {
	if fixed {
		g.text("ringsFixedAVX512", strings.Replace(ringsSig, "y, x *float32", "y *float32, x *ringX", 1), ringsArgs)
	} else {
		g.text("ringsAVX512", ringsSig, ringsArgs)
	}
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), BX")
	g.i("MOVQ ldx+24(FP), R9")
	if fixed {
		g.i("SHLQ $6, R9")
	} else {
		g.i("SHLQ $2, R9")
	}
	g.i("MOVQ words+32(FP), SI")
	g.i("MOVQ blocks+40(FP), R13")
	g.i("MOVQ table+56(FP), R11")
	g.i("MOVQ hash+72(FP), R12")
	for i := range 2 {
		g.i("VPBROADCASTD %d(R12), Z%d", 4*i, ringFactor+i)
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
		for i := range 8 * m {
			if m == 1 { // sums stay in registers
				g.i("VPXORQ Z%d, Z%d, Z%d", i, i, i)
				continue
			}
			if i == 0 {
				g.i("VPXORQ Z%d, Z%d, Z%d", i, i, i)
			}
			g.i("VMOVUPS Z0, %d(DI)", 64*i)
		}

		g.label(name("block"))
		g.ringCopy(name("copy"), "Z", 64, ringTemps, "size+48(FP)")
		g.i("MOVQ steps+64(FP), R8")
		if m == 1 {
			var batches [][]string
			for t := range 4 {
				if fixed {
					batches = append(batches, ringFixedBatches(xs, m, 2*t, 8*ringStepBytes*t)...)
				} else {
					batches = append(batches, ringBatches(xs, m, 2*t, 8*ringStepBytes*t)...)
				}
			}
			g.interleave(batches)
		} else {
			g.i("MOVQ DI, DX")
			g.i("MOVQ $4, CX")
			g.label(name("pair"))
			if fixed {
				g.interleave(ringFixedBatches(xs, m, 0, 0))
			} else {
				g.ringSums(m, "VMOVUPS %d(DX), Z%d")
				g.interleave(ringBatches(xs, m, 0, 0))
				g.ringSums(m, "VMOVUPS Z%[2]d, %[1]d(DX)")
			}
			g.i("ADDQ $128, DX")
			g.i("ADDQ $%d, R8", 8*ringStepBytes)
			g.i("DECQ CX")
			g.i("JNE  %s", name("pair"))
		}
		for i := 0; 3*i < m; i++ {
			g.i("ADDQ $64, %s", xs.bases[i])
		}
		g.i("DECQ R13")
		g.i("JNE  %s", name("block"))
		if m == 1 {
			for i := range 8 {
				g.i("VMOVUPS Z%d, %d(DI)", i, 64*i)
			}
		}
		g.i("VZEROUPPER")
		g.i("RET")
	}
}

// ringSums emits moves of the sums of two rows of the rings, of m rows of x each.
func (g *gen) ringSums(m int, move string) {
	for r := range m {
		for row := range 2 {
			g.i(move, 64*(8*r+row), 2*r+row)
		}
	}
}

// ringFixedBatches is ringBatches in fixed point. Products of whole numbers are summed over a block, and then go into the sums: of one row
// of x in registers, of several in memory.
func ringFixedBatches(xs rows, m, acc, steps int) (batches [][]string) {
	whole := 0
	if m == 1 {
		whole = ringSums
	}
	for i, col := range ringCols() {
		var list []string
		add := func(format string, a ...any) { list = append(list, fmt.Sprintf(format, a...)) }
		t := ringTemps + i%2*ringTempsOf
		word := ringLookup(add, t, 3*(i%2), steps+2*ringStepBytes*i)
		for v := range 2 {
			for s := range 2 {
				add("%s", toWords(word[s][v]))
			}
		}
		if i == 0 {
			for r := range 2 * m {
				add("VPXORQ Z%d, Z%d, Z%d", whole+r, whole+r, whole+r)
			}
		}
		for v := range 2 {
			for s := range 2 {
				for r := range m {
					add("VPDPWSSD.BCST %s, Z%d, Z%d", xs.at(r, 4*(col+v)), word[s][v], whole+2*r+s)
				}
			}
		}
		if i == len(ringCols())-1 {
			for r := range m {
				for s := range 2 {
					sum := acc + s
					if m > 1 {
						sum = t + s
						add("VMOVUPS %d(DX), Z%d", 64*(8*r+s), sum)
					}
					add("VCVTDQ2PS Z%d, Z%d", whole+2*r+s, t+8+s)
					add("VFMADD231PS.BCST %s, Z%d, Z%d", xs.at(r, ringScaleAt), t+8+s, sum)
					if m > 1 {
						add("VMOVUPS Z%d, %d(DX)", sum, 64*(8*r+s))
					}
				}
			}
		}
		batches = append(batches, list)
	}
	return batches
}

// toWords returns the bytes of VCVTPH2W of a register in place, which Go's assembler does not know: float16 become whole numbers, rounded
// to even.
func toWords(z int) string {
	low, high := z&7<<3|z&7, byte(0)
	if z&8 == 0 {
		high |= 0x80 | 0x20 // R and B, inverted
	}
	if z&16 == 0 {
		high |= 0x40 | 0x10 // X and R'
	}
	return fmt.Sprintf("BYTE $0x62; BYTE $0x%02x; BYTE $0x7D; BYTE $0x48; BYTE $0x7D; BYTE $0x%02x // VCVTPH2W Z%d, Z%d", high|5, 0xC0|low, z, z)
}

// ringBatches returns the instructions of the batches of two rows of the rings: sums of those are in two registers from acc on for each
// row of x, and their steps begin at an offset.
func ringBatches(xs rows, m, acc, steps int) [][]string {
	return ringNumbers(steps, func(add func(string, ...any), value, row, col int) {
		for r := range m {
			add("VFMADD231PS.BCST %s, Z%d, Z%d", xs.at(r, 4*col), value, acc+2*r+row)
		}
	})
}

// ringNumbers returns the instructions of the batches of two rows of the rings that make float32 of their values, with those that use
// adds for each register of them, by row and column.
func ringNumbers(steps int, use func(add func(string, ...any), value, row, col int)) (batches [][]string) {
	for i, col := range ringCols() {
		var list []string
		add := func(format string, a ...any) { list = append(list, fmt.Sprintf(format, a...)) }
		t := ringTemps + i%2*ringTempsOf
		k := 3 * (i % 2) // masks
		word := ringLookup(add, t, k, steps+2*ringStepBytes*i)
		for half := range 2 {
			for v := range 2 {
				for s := range 2 {
					to := t + 8 + s
					if half == 0 {
						add("VPMADDWD %d(R11), Z%d, Z%d", ringShiftAt, word[s][v], to) // the lower word, shifted by 13
					} else {
						to = word[s][v]
						add("VPSRAD $3, Z%d, Z%d", to, to)
					}
					add("VPANDD.BCST %d(R12), Z%d, Z%d", ringNumberAt, to, to)
					use(add, to, s, col+8*half+v)
				}
			}
		}
		batches = append(batches, list)
	}
	return batches
}

// ringLookup adds the instructions that look up the pairs of two steps at an offset. It returns the registers of words: of each step, the
// first values of pairs and the second ones, those of the first halves of rings below those of the second. It uses 10
// registers from t on, of which the last two are free thereafter, and three masks behind k.
func ringLookup(add func(string, ...any), t, k, steps int) (word [2][2]int) {
	x, next, low, high := t, t+2, t+4, t+6 // two each
	for s := range 2 {
		at := steps + ringStepBytes*s
		add("MOVL %d(R8), %s", at, []string{"AX", "R15"}[s])
		add("VMOVDQU64 (R14)(%s*1), Z%d", []string{"AX", "R15"}[s], x+s)
		add("VMOVDQU64 64(R14)(%s*1), Z%d", []string{"AX", "R15"}[s], next+s)
		add("VPBROADCASTD %d(R8), Z%d", at+4, t+8)
		add("VPSHRDVW Z%d, Z%d, Z%d", t+8, next+s, x+s)
	}
	for s := range 2 {
		add("VPMULLW Z%d, Z%d, Z%d", ringFactor, x+s, low+s)
	}
	for s := range 2 {
		add("VPSLLW $1, Z%d, Z%d", low+s, next+s)
	}
	for s := range 2 {
		add("VPSRLW $8, Z%d, Z%d", next+s, next+s)
	}
	idx := next
	add("VPACKUSWB Z%d, Z%d, Z%d", next+1, next, idx)
	add("VPADDB Z%d, Z%d, Z%d", idx, idx, next+1)
	add("VPMOVB2M Z%d, K%d", idx, k+1)
	add("VPMOVB2M Z%d, K%d", next+1, k+2)
	for s := range 2 {
		add("VPMULHUW Z%d, Z%d, Z%d", ringFactor, x+s, high+s)
		add("VPMULLW Z%d, Z%d, Z%d", ringFactor+1, x+s, x+s)
		add("VPADDW Z%d, Z%d, Z%d", x+s, high+s, high+s)
	}
	add("KANDQ K%d, K%d, K%d", k+2, k+1, k+3)
	look := []int{x, x + 1, next + 1, t + 8}
	for p, r := range look {
		add("VPERMB %d(R11), Z%d, Z%d", 256*p, idx, r)
	}
	for q, mask := range []int{k + 2, k + 1, k + 3} { // each over what the one before has put there
		for p, r := range look {
			add("VPERMB %d(R11), Z%d, K%d, Z%d", 256*p+64*(q+1), idx, mask, r)
		}
	}
	word = [2][2]int{{next, x + 1}, {x, next + 1}}
	for v := range 2 { // of a pair
		for s, half := range []string{"L", "H"} {
			add("VPUNPCK%sBW Z%d, Z%d, Z%d", half, look[2*v+1], look[2*v], word[s][v])
		}
	}
	for v := range 2 {
		for s := range 2 {
			add("VPTERNLOGD.BCST $0x78, %d(R12), Z%d, Z%d", 4*(2+v), []int{low, high}[v]+s, word[s][v])
		}
	}
	return word
}

// interleave emits batches, each half of one between what is left of the one before.
func (g *gen) interleave(batches [][]string) {
	var rest []string
	for _, b := range batches {
		half := len(b) * 2 / 5
		first := b[:half]
		for i := range max(len(first), len(rest)) {
			if i < len(rest) {
				g.i("%s", rest[i])
			}
			if i < len(first) {
				g.i("%s", first[i])
			}
		}
		rest = b[half:]
	}
	for _, line := range rest {
		g.i("%s", line)
	}
}

// ringCopy emits a copy of the words of a block to scratch, with those behind them that windows go on with: the other half's first.
func (g *gen) ringCopy(label, reg string, bytes, tmp int, size string) {
	g.i("MOVQ %s, CX", size)
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

// Registers of the kernels for rings at 256 bits, behind the sums of two rows of the rings for each of x.
const (
	ringY    = 8 // windows, then products
	ringTmp  = 9
	ringPair = 10
	ringOnes = 11
	// Constants.
	ringNumber = 12
	ringFlip   = 13
	ringWindow = 14
	ringWhole  = 15 // the factor
)

// ringConstants emits constants, of a hash that a register points to.
func (g *gen) ringConstants(hash string) {
	for _, c := range []struct{ at, to int }{{ringNumberAt, ringNumber}, {20, ringFlip}, {16, ringWhole}} {
		g.i("VPBROADCASTD %d(%s), Y%d", c.at, hash, c.to)
	}
	g.i("VPCMPEQD Y%d, Y%d, Y%d", ringWindow, ringWindow, ringWindow)
	g.i("VPSRLD $16, Y%d, Y%d", ringWindow, ringWindow)
}

// ringGather emits the values of a step at an offset, of 8 rings, and calls use for each register of them, with how far its column
// is behind that of the step.
func (g *gen) ringGather(at int, use func(value, col int)) {
	g.i("MOVL %d(R8), AX", at)
	for half := range 2 {
		g.i("VMOVDQA %d(R14)(AX*1), Y%d", 32*half, ringY)
		g.i("VPBROADCASTD %d(R8), Y%d", at+8, ringTmp)
		g.i("VPSRLVD Y%d, Y%d, Y%d", ringTmp, ringY, ringY)
		g.i("VPAND Y%d, Y%d, Y%d", ringWindow, ringY, ringY)
		g.i("VPMULLD Y%d, Y%d, Y%d", ringWhole, ringY, ringY)
		g.i("VPSLLD $17, Y%d, Y%d", ringY, ringTmp)
		g.i("VPSRLD $24, Y%d, Y%d", ringTmp, ringTmp)
		g.i("VPCMPEQD Y%d, Y%d, Y%d", ringOnes, ringOnes, ringOnes)
		g.i("VPGATHERDD Y%d, (R11)(Y%d*4), Y%d", ringOnes, ringTmp, ringPair)
		g.i("VPAND Y%d, Y%d, Y%d", ringFlip, ringY, ringY)
		g.i("VPXOR Y%d, Y%d, Y%d", ringY, ringPair, ringPair)
		for v := range 2 {
			to := ringPair
			if v == 0 {
				to = ringTmp
				g.i("VPMADDWD %d(R11), Y%d, Y%d", ringShiftBy, ringPair, to)
			} else {
				g.i("VPSRAD $3, Y%d, Y%d", to, to)
			}
			g.i("VPAND Y%d, Y%d, Y%d", ringNumber, to, to)
			use(to, 8*half+v)
		}
	}
}

// ringsAVX2 is ringsAVX512 at 256 bits: pairs are gathered, for 8 rings at a time. Words of 16 bits, which the kernel would have to shift two as
// one, are first put into words of 32 with those behind them.
func (g *gen) ringsAVX2() {
	g.text("ringsAVX2", ringsSig, ringsArgs)
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), BX")
	g.i("MOVQ ldx+24(FP), R9")
	g.i("SHLQ $2, R9")
	g.i("MOVQ words+32(FP), SI")
	g.i("MOVQ blocks+40(FP), R13")
	g.i("MOVQ table+56(FP), R11")
	g.i("MOVQ hash+72(FP), AX")
	g.ringConstants("AX")
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
		g.i("VPXOR Y%d, Y%d, Y%d", ringTmp, ringTmp, ringTmp)
		for i := range 16 * m {
			g.i("VMOVDQU Y%d, %d(DI)", ringTmp, 32*i)
		}

		g.label(name("block"))
		g.i("MOVQ $2, R12") // halves of the rings
		g.label(name("half"))
		g.ringSpread(name("spread"), "size+48(FP)")
		g.i("MOVQ steps+64(FP), R8")
		g.i("MOVQ DI, DX")
		g.i("MOVQ $4, CX")
		g.label(name("pair"))
		g.ringSums(m, "VMOVUPS %d(DX), Y%d")
		for i, col := range ringCols() {
			for s := range 2 {
				g.ringGather(ringStepBytes*(2*i+s), func(value, behind int) {
					for r := range m {
						g.i("VBROADCASTSS %s, Y%d", xs.at(r, 4*(col+behind)), ringOnes)
						g.i("VFMADD231PS Y%d, Y%d, Y%d", ringOnes, value, 2*r+s)
					}
				})
			}
		}
		g.ringSums(m, "VMOVUPS Y%[2]d, %[1]d(DX)")
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
func (g *gen) ringSpread(label, size string) {
	const a, b, low, high, first = 8, 9, 10, 11, 0
	g.i("MOVQ %s, CX", size)
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

// unpackRings emits dst[8][k][16], row after row of rings and stride elements apart, of the values in some blocks of a panel.
func (g *gen) unpackRings(v vec) {
	g.text("unpackRings"+v.suffix, unpackRingsSig, unpackRingsArgs)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ stride+8(FP), R9")
	g.i("SHLQ $2, R9")
	g.i("MOVQ words+16(FP), SI")
	g.i("MOVQ blocks+24(FP), R13")
	g.i("MOVQ table+40(FP), R11")
	g.i("MOVQ hash+56(FP), R12")
	g.i("MOVQ scratch+64(FP), R14")
	g.i("ADDQ $63, R14")
	g.i("ANDQ $~63, R14")
	g.i("MOVQ steps+48(FP), R8")
	to := rows{bases: []string{"DI", "BX", "R10"}, stride: "R9"}
	to.setup(g, 8)
	if v.reg == "Z" {
		for i := range 2 {
			g.i("VPBROADCASTD %d(R12), Z%d", 4*i, ringFactor+i)
		}
	} else {
		g.ringConstants("R12")
	}
	g.label("block")
	if v.reg == "Z" {
		g.ringCopy("copy", "Z", 64, ringTemps, "size+32(FP)")
		var batches [][]string
		for t := range 4 {
			batches = append(batches, ringNumbers(8*ringStepBytes*t, func(add func(string, ...any), value, row, col int) {
				add("VMOVUPS Z%d, %s", value, to.at(2*t+row, 64*col))
			})...)
		}
		g.interleave(batches)
	} else {
		for half := range 2 {
			g.ringSpread(fmt.Sprintf("spread%d", half), "size+32(FP)")
			for t := range 4 {
				for i, col := range ringCols() {
					for s := range 2 {
						g.ringGather(ringStepBytes*(8*t+2*i+s), func(value, col2 int) {
							g.i("VMOVUPS Y%d, %s", value, to.at(2*t+s, 64*(col+col2)+32*half))
						})
					}
				}
			}
			g.i("ADDQ $32, SI")
		}
		g.i("SUBQ $64, SI")
		g.i("ADDQ size+32(FP), SI")
	}
	for _, base := range to.bases {
		g.i("ADDQ $1024, %s", base)
	}
	g.i("DECQ R13")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}

// ringData emits constants: the signs of the halves of 2, 4 and 8 numbers that butterflies subtract, and an order of bytes by which words
// of two vectors that are packed, four of either, come to alternate.
func (g *gen) ringData() {
	for level := range 3 {
		for i := range 8 {
			g.raw("DATA ringSigns<>+%d(SB)/4, $0x%08x", 32*level+4*i, uint32(i>>level&1)<<31)
		}
	}
	g.raw("GLOBL ringSigns<>(SB), RODATA|NOPTR, $96")
	for i := range 32 {
		word := i % 16 / 2
		g.raw("DATA ringWords<>+%d(SB)/1, $0x%02x", i, 2*(word%2*4+word/2)+i%2)
	}
	g.raw("GLOBL ringWords<>(SB), RODATA|NOPTR, $32")
}

// rotateRings emits dst = x · factors, mixed in blocks of 128, times by: the butterflies of 64 numbers in registers, then those of both
// halves.
func (g *gen) rotateRings() {
	g.text("rotateRingsAVX2", "dst, x, factors *float32, blocks int, by float32", 36)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ factors+16(FP), AX")
	g.i("MOVQ blocks+24(FP), CX")
	const signs, tmp, by = 12, 8, 15
	for level := range 3 {
		g.i("VMOVUPS ringSigns<>+%d(SB), Y%d", 32*level, signs+level)
	}
	g.i("VBROADCASTSS by+32(FP), Y%d", by)
	g.label("block")
	for half := range 2 {
		v := []int{0, 1, 2, 3, 4, 5, 6, 7}
		for i, r := range v {
			at := 256*half + 32*i
			g.i("VMOVUPS %d(SI), Y%d", at, r)
			g.i("VMULPS %d(AX), Y%d, Y%d", at, r, r)
		}
		for level := range 3 {
			for i, r := range v {
				t := tmp + i%2
				switch level {
				case 0:
					g.i("VPERMILPS $0xB1, Y%d, Y%d", r, t)
				case 1:
					g.i("VPERMILPS $0x4E, Y%d, Y%d", r, t)
				default:
					g.i("VPERM2F128 $0x01, Y%d, Y%d, Y%d", r, r, t)
				}
				g.i("VXORPS Y%d, Y%d, Y%d", signs+level, r, r)
				g.i("VADDPS Y%d, Y%d, Y%d", r, t, r)
			}
		}
		spare := tmp
		for h := 1; h < 8; h *= 2 {
			for i := range v {
				if i&h == 0 {
					g.i("VSUBPS Y%d, Y%d, Y%d", v[i+h], v[i], spare)
					g.i("VADDPS Y%d, Y%d, Y%d", v[i+h], v[i], v[i])
					v[i+h], spare = spare, v[i+h]
				}
			}
		}
		for i, r := range v {
			g.i("VMOVUPS Y%d, %d(DI)", r, 256*half+32*i)
		}
	}
	for i := range 8 {
		g.i("VMOVUPS %d(DI), Y%d", 32*i, i)
		g.i("VMOVUPS %d(DI), Y%d", 256+32*i, tmp)
		g.i("VSUBPS Y%d, Y%d, Y%d", tmp, i, tmp+1)
		g.i("VADDPS Y%d, Y%d, Y%d", tmp, i, i)
		g.i("VMULPS Y%d, Y%d, Y%d", by, tmp+1, tmp+1)
		g.i("VMULPS Y%d, Y%d, Y%d", by, i, i)
		g.i("VMOVUPS Y%d, %d(DI)", i, 32*i)
		g.i("VMOVUPS Y%d, %d(DI)", tmp+1, 256+32*i)
	}
	for _, r := range []string{"DI", "SI", "AX"} {
		g.i("ADDQ $512, %s", r)
	}
	g.i("DECQ CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}

// The numbers that x is rounded by, which package cpu has as well.
const (
	ringWholeX = 1<<14 - 4
	ringTiny   = 0x1p-111
)

// roundRings emits the rounding of blocks of 16 columns of x, in the arithmetic of ringX.round in package cpu.
func (g *gen) roundRings() {
	g.text("roundRingsAVX2", "dst *ringX, x *float32, blocks int", 24)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ blocks+16(FP), CX")
	const (
		low, high     = 0, 1
		absLow, abs   = 2, 3
		sum, most     = 4, 5
		words, eighth = 9, 10
		whole, part   = 11, 12
		tiny, mask    = 13, 14
		tmp           = 6
	)
	g.i("VMOVDQU ringWords<>(SB), Y%d", words)
	for _, c := range []struct {
		to    int
		value float32
	}{{eighth, 1. / 8}, {whole, ringWholeX}, {part, float32(1) / ringWholeX}, {tiny, ringTiny}} {
		g.i("MOVL $0x%08x, AX", math.Float32bits(c.value))
		g.i("VMOVD AX, X%d", c.to)
	}
	g.i("VPCMPEQD Y%d, Y%d, Y%d", mask, mask, mask)
	g.i("VPSRLD $1, Y%d, Y%d", mask, mask)
	g.label("block")
	g.i("VMOVUPS (SI), Y%d", low)
	g.i("VMOVUPS 32(SI), Y%d", high)
	g.i("VANDPS Y%d, Y%d, Y%d", mask, low, absLow)
	g.i("VANDPS Y%d, Y%d, Y%d", mask, high, abs)
	g.i("VADDPS Y%d, Y%d, Y%d", abs, absLow, sum)
	g.i("VPMAXSD Y%d, Y%d, Y%d", abs, absLow, most)
	// Halves onto each other, in four, two and one.
	for _, move := range []string{"VEXTRACTF128 $1, Y%d, X%d", "VPSHUFD $0x4E, X%d, X%d", "VPSHUFD $0xB1, X%d, X%d"} {
		g.i(move, sum, tmp)
		g.i("VADDPS X%d, X%d, X%d", tmp, sum, sum)
		g.i(move, most, tmp)
		g.i("VPMAXSD X%d, X%d, X%d", tmp, most, most)
	}
	g.i("VMULSS X%d, X%d, X%d", eighth, sum, sum)
	g.i("VPMAXSD X%d, X%d, X%d", sum, most, most)
	g.i("VPMAXSD X%d, X%d, X%d", tiny, most, most)
	g.i("VDIVSS X%d, X%d, X%d", most, whole, tmp)
	g.i("VMULSS X%d, X%d, X%d", part, most, most)
	g.i("VMOVSS X%d, %d(DI)", most, ringScaleAt)
	g.i("VBROADCASTSS X%d, Y%d", tmp, tmp)
	for _, r := range []int{low, high} {
		g.i("VMULPS Y%d, Y%d, Y%d", tmp, r, r)
		g.i("VCVTPS2DQ Y%d, Y%d", r, r)
	}
	g.i("VPACKSSDW Y%d, Y%d, Y%d", high, low, low)
	g.i("VPSHUFB Y%d, Y%d, Y%d", words, low, low)
	g.i("VMOVDQU Y%d, (DI)", low)
	g.i("ADDQ $64, SI")
	g.i("ADDQ $64, DI")
	g.i("DECQ CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}

// hasFP16 emits the question whether the processor has AVX512-FP16.
func (g *gen) hasFP16() {
	g.text("cpuHasFP16", ") (has bool", 1)
	g.i("MOVL $7, AX")
	g.i("XORL CX, CX")
	g.i("CPUID")
	g.i("SHRL $23, DX")
	g.i("ANDL $1, DX")
	g.i("MOVB DX, has+0(FP)")
	g.i("RET")
}
