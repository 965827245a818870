package main

import "fmt"

// This file writes the assembly for arm64, whose vectors have 8 states. Helpers take what is written first, as the processor's manual does;
// Go's assembler takes it last.

// The registers of vectors: minima of as many edges as the other kernels, from 0 on, and the rest.
const (
	neonSums   = 16
	neonLanes  = 8
	neonWeight = 16 // and the next
	neonLeast  = 18
	neonSpread = 19
	neonOver   = 20 // what a square saturates to
	neonFirst  = 21
	neonSecond = 22
	neonValue  = 23
)

// neonOps are instructions that Go's assembler does not know: their bits without registers, as in the Arm Architecture Reference Manual
// (DDI 0487), C7.2. All are on words of 16 bits.
var neonOps = map[string]uint32{
	"sqadd": 0x4e600c00, "uqadd": 0x6e600c00, "sqsub": 0x4e602c00, "sqrdmulh": 0x6e60b400,
}

// op prints an instruction of neonOps, with what it is as the GNU assembler writes it.
func (g *gen) op(name string, d, n, m int) {
	g.i("WORD $0x%08x // %s v%d.8h, v%d.8h, v%d.8h", neonOps[name]|uint32(m<<16|n<<5|d), name, d, n, m)
}

// uminv sets the first word of d to the smallest of n.
func (g *gen) uminv(d, n int) {
	g.i("WORD $0x%08x // uminv h%d, v%d.8h", 0x6e71a800|uint32(n<<5|d), d, n)
}

// three prints one that Go's assembler knows.
func (g *gen) three(name string, d, n, m int) { g.i("%s V%d.H8, V%d.H8, V%d.H8", name, m, n, d) }

// neonOnes sets all bits of a register.
func (g *gen) neonOnes(r int) { g.i("VCMEQ V%d.B16, V%[1]d.B16, V%[1]d.B16", r) }

// neonBegin loads what steps and sweeps have in common.
func (g *gen) neonBegin(k kernel) {
	g.i("MOVD dst+0(FP), R0")
	g.i("MOVD before+8(FP), R1")
	g.i("MOVD values+16(FP), R2")
	g.i("MOVD w+24(FP), R3")
	for i := range k.together {
		g.i("VLD1R.P %d(R3), [V%d.H8]", word, neonWeight+i)
	}
	g.i("MOVD in+32(FP), R4")
	g.i("MOVD $0x7fff, R5")
	g.i("VDUP R5, V%d.H8", neonOver)
}

// neonSquare squares the difference of a weight and values.
func (g *gen) neonSquare(p precision, d, weight int) {
	if !p.saturates {
		g.three("VSUB", d, weight, neonValue)
		g.op("sqrdmulh", d, d, d)
		return
	}
	g.op("sqsub", d, weight, neonValue)
	for range p.doublings {
		g.op("sqadd", d, d, d)
	}
	g.op("sqrdmulh", d, d, d)
	// That of -2^15 alone saturates, one below what it is.
	g.three("VCMEQ", neonValue, d, neonOver)
	g.three("VSUB", d, d, neonValue)
}

// neonTurn is turn. Costs of edges are in the register that edges returns.
func (g *gen) neonTurn(k kernel, p precision, edges func(state int) int) {
	for j := range neonSums {
		state := j * neonLanes
		cost := edges(state)
		for i := range k.together {
			g.i("FMOVQ %d(R9), F%d", word*(state/run*run*k.together+run*i+state%run), neonValue)
			g.neonSquare(p, neonFirst+i, neonWeight+i)
		}
		if k.together > 1 {
			if p.saturates {
				g.op("uqadd", neonFirst, neonFirst, neonSecond)
			} else {
				g.three("VADD", neonFirst, neonFirst, neonSecond)
			}
		}
		g.op("uqadd", neonFirst, neonFirst, cost)
		g.three("VUMIN", j, j, neonFirst)
	}
}

// neonSpreads emits what leaves the costs of the edges that a vector's states follow in a register, and returns it. The first is at R10;
// where several vectors follow an edge, R17 has come to the next.
func (g *gen) neonSpreads(in, state int) int {
	const m = neonSpread
	at := word * (state >> in)
	switch neonLanes >> in { // edges
	case 4:
		g.i("FMOVD %d(R10), F%d", at, m)
		g.three("VZIP1", m, m, m)
	case 2:
		g.i("FMOVS %d(R10), F%d", at, m)
		g.three("VZIP1", m, m, m)
		g.i("VZIP1 V%d.S4, V%[1]d.S4, V%[1]d.S4", m)
	default:
		if state&(1<<in-1) == 0 {
			g.i("VLD1R.P %d(R17), [V%d.H8]", word, m)
		}
	}
	return m
}

// neonStep is step.
func (g *gen) neonStep(k kernel) {
	g.text(k.name("step"), "dst, before *uint16, values *int16, w *[2]int16, in, out int, less uint16) uint16", 58)
	g.neonBegin(k)
	g.i("MOVD out+40(FP), R6")
	g.neonOnes(neonLeast)

	// R8 is how far states that lead to the same edge are apart in values, R11 how far the edges before them are.
	g.i("MOVD $%d, R8", word*states*k.together)
	g.i("LSR R6, R8")
	g.i("MOVD $1, R13") // states that lead to an edge
	g.i("LSL R6, R13")
	g.i("MOVD $%d, R12", states/(neonSums*neonLanes)) // blocks of edges
	g.i("LSR R6, R12")
	g.i("MOVD $%d, R11", word*states)
	g.i("LSR R6, R11")
	g.i("LSR R4, R11")
	for in := k.together + 1; in < swept; in++ {
		g.i("CMP $%d, R4", in)
		g.i("BEQ bits%d", in)
	}
	for in := k.together; in < swept; in++ { // a step adds a bit for each weight at least
		if in > k.together {
			g.label("bits%d", in)
		}
		g.label("block%d", in)
		for j := range neonSums {
			g.neonOnes(j)
		}
		g.i("MOVD R2, R9")
		g.i("MOVD R1, R10")
		g.i("MOVD R13, R14")
		g.label("turn%d", in)
		g.i("MOVD R10, R17")
		g.neonTurn(k, k.precision(in), func(state int) int { return g.neonSpreads(in, state) })
		g.i("ADD R8, R9")
		g.i("ADD R11, R10")
		g.i("SUBS $1, R14, R14")
		g.i("BNE turn%d", in)
		g.i("MOVHU less+48(FP), R14")
		g.i("VDUP R14, V%d.H8", neonSpread)
		for j := range neonSums {
			g.three("VSUB", j, j, neonSpread)
			g.i("FMOVQ F%d, %d(R0)", j, word*neonLanes*j)
			g.three("VUMIN", neonLeast, neonLeast, j)
		}
		g.i("ADD $%d, R0", word*neonLanes*neonSums)
		g.i("ADD $%d, R2", word*neonLanes*neonSums*k.together)
		g.i("ADD $%d, R1", word*(neonLanes*neonSums>>in))
		g.i("SUBS $1, R12, R12")
		g.i("BNE block%d", in)
		if in < swept-1 {
			g.i("JMP done")
		}
	}
	g.label("done")
	g.neonSmallest("ret+56(FP)")
}

// neonSmallest emits the end of a function that returns the smallest word.
func (g *gen) neonSmallest(ret string) {
	g.uminv(neonLeast, neonLeast)
	g.i("VMOV V%d.H[0], R0", neonLeast)
	g.i("MOVH R0, %s", ret)
	g.i("RET")
}

// neonSweep is sweep.
func (g *gen) neonSweep(k kernel, in int) {
	g.text(k.name(fmt.Sprintf("sweep%dOf", in)), "dst *[chunks << swept]uint16, before *uint16, values *int16, w *[2]int16, in int)", 40)
	g.neonBegin(k)
	g.i("SUB $%d, R4", swept)
	share := 1 << swept / (neonSums * neonLanes) // of the remainders in registers
	for h := range share {
		g.i("MOVD $0, R8") // turns
		if h > 0 {
			g.i("SUB $%d, R0", word*chunks<<swept-word*neonSums*neonLanes)
			g.i("SUB $%d, R2", (word*states-word*neonSums*neonLanes)*k.together)
		}
		g.label("chunk%d", h)
		for j := range neonSums {
			g.neonOnes(j)
		}
		g.label("turn%d", h)
		g.i("LSR R4, R8, R10")
		g.i("ADD R10<<%d, R1, R10", word/2)
		g.i("VLD1R (R10), [V%d.H8]", neonSpread)
		g.i("MOVD R2, R9")
		g.neonTurn(k, k.precision(in), func(int) int { return neonSpread })
		g.i("ADD $%d, R2", word*k.together<<swept)
		g.i("ADD $1, R8")
		g.i("TST $%d, R8", states/chunks>>swept-1)
		g.i("BNE turn%d", h)
		for j := range neonSums {
			g.i("FMOVQ F%d, %d(R0)", j, word*neonLanes*j)
		}
		g.i("ADD $%d, R0", word<<swept)
		g.i("CMP $%d, R8", states>>swept)
		g.i("BNE chunk%d", h)
	}
	g.i("RET")
}

// neonFold is fold.
func (g *gen) neonFold() {
	g.text("foldNEON", "dst *uint16, parts *[chunks << swept]uint16, edges int, less uint16) uint16", 34)
	g.i("MOVD dst+0(FP), R0")
	g.i("MOVD parts+8(FP), R1")
	g.i("MOVD edges+16(FP), R2")
	g.i("LSL $%d, R2", word/2)
	g.i("MOVHU less+24(FP), R3")
	g.i("VDUP R3, V%d.H8", neonWeight)
	g.neonOnes(neonLeast)
	g.i("ADD $%d, R1, R4", word*chunks<<swept) // the end
	g.i("ADD R2, R1, R5")                      // of edges
	g.label("edges")
	g.neonOnes(0)
	g.i("MOVD R1, R6")
	g.label("part")
	g.i("FMOVQ (R6), F1")
	g.three("VUMIN", 0, 0, 1)
	g.i("ADD R2, R6")
	g.i("CMP R4, R6")
	g.i("BLO part")
	g.three("VSUB", 0, 0, neonWeight)
	g.i("FMOVQ F0, (R0)")
	g.three("VUMIN", neonLeast, neonLeast, 0)
	g.i("ADD $%d, R0", word*neonLanes)
	g.i("ADD $%d, R1", word*neonLanes)
	g.i("CMP R5, R1")
	g.i("BLO edges")
	g.neonSmallest("ret+32(FP)")
}
