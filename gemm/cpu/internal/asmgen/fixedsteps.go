package main

import "fmt"

// Where the steps of a fixedLUT in package cpu are, in bytes.
const (
	stepsMask = 0   // of a code in every byte
	stepsTop  = 32  // of what is put together apart: bits 3 and 7 at 3 bits, bit 4 at 5
	stepsBase = 64  // the first value, 32 bits
	stepsStep = 96  // of the values, 32 bits
	stepsPair = 128 // the same, 16 bits
)

// fixedSteps emits fixed for one row of x and tables of equal steps: the sum of what codes name is their first value times the sum of x and
// the step times that of codes by x. So nothing is looked up. x is in two bytes, of 7 and of 8 bits: each 32 lower bytes of columns and
// then 32 upper. PMADDUBSW multiplies 32 codes by one of them, and adds neighbours; words hold sums of eight times two codes of 4 bits.
// With dots VPDPBUSD of AVX-VNNI adds up four. There are a scale and the sum of x, 32 bits, for each half-block.
func (g *gen) fixedSteps(bits int, dots bool) {
	name := fmt.Sprintf("fixedSteps%d%s", bits, suffix256(dots))
	g.raw("\n// func %s(%s)", name, fixedSig)
	g.raw("TEXT ·%s(SB), NOSPLIT, $64-%d", name, fixedArgs)
	g.fixedArguments()
	k := &stepsKernel{fixedKernel: fixedKernel{gen: g, bits: bits, m: 1, dots: dots, scaleBytes: 8}}
	k.allocate()
	k.loop(k.half)
}

// stepsKernel takes the two streams of a panel side by side. The sums of each are of lower and of upper bytes of x.
type stepsKernel struct {
	fixedKernel
	total []string // by stream, of 32 bits, where words do not hold all columns
	rest  []string // by stream, the last columns of 3 bits
}

// wide reports whether sums in words must be widened after half of the columns.
func (f *stepsKernel) wide() bool { return f.bits == 5 && !f.dots }

func (f *stepsKernel) allocate() {
	f.streams = 2
	for range f.streams {
		f.acc = append(f.acc, []string{f.reg(), f.reg()})
		f.idx = append(f.idx, f.reg())
		if f.wide() {
			f.total = append(f.total, f.reg())
		}
		if f.bits == 3 {
			f.rest = append(f.rest, f.reg())
		}
	}
	f.x, f.tmp = f.reg(), f.reg()
	f.mask = f.constant(stepsMask)
}

// half adds a half-block, 8 rows a stream, to y.
func (f *stepsKernel) half(_ int, x rows) {
	f.prefetch()
	for _, acc := range f.acc {
		for _, a := range acc {
			if f.dots {
				f.i("VPXOR %s, %s, %s", a, a, a)
			}
		}
	}
	for l := range 8 {
		for s := range f.streams {
			f.codes(l, s, func(j int) string { return fmt.Sprintf("%d(AX)", 64*j+32*s) })
		}
		for b := range 2 {
			f.i("VPBROADCASTD %s, %s", x.at(0, 32*b+4*l), f.x)
			for s, idx := range f.idx {
				f.add(l, idx, f.acc[s][b])
			}
		}
		if f.wide() && l == 3 {
			for s, acc := range f.acc {
				f.widen(acc, f.total[s])
			}
		}
	}
	for s, acc := range f.acc {
		sum := acc[0]
		f.widen(acc, sum)
		if f.wide() {
			f.i("VPADDD %s, %s, %s", f.total[s], sum, sum)
		}
		f.i("VPBROADCASTD 4(R9), %s", f.tmp)
		f.i("VPMULLD %d(BX), %s, %s", stepsBase, f.tmp, f.tmp)
		f.i("VPADDD %s, %s, %s", f.tmp, sum, sum)
		f.i("VCVTDQ2PS %s, %s", sum, sum)
		f.i("VBROADCASTSS (R9), %s", f.x)
		f.scaled(s, 0, sum, f.x, f.tmp)
	}
}

// codes sets idx of a stream to the codes of the l-th four columns.
func (f *stepsKernel) codes(l, s int, word func(j int) string) {
	idx := f.idx[s]
	shifted := func(j, bit int) {
		f.i("VMOVDQU %s, %s", word(j), idx)
		if bit > 0 {
			f.i("VPSRLW $%d, %s, %s", bit, idx, idx)
		}
		f.i("VPAND %s, %s, %s", f.mask, idx, idx)
	}
	switch {
	case f.bits == 2:
		shifted(l/4, 2*(l%4))
	case f.bits == 3 && l == 6:
		// The average of even bytes is half their sum: bits of the three words move side by side.
		for j := range 3 {
			r := f.tmp
			if j == 0 {
				r = f.rest[s]
			}
			f.i("VMOVDQU %d(BX), %s", stepsTop, r)
			f.i("VPAND %s, %s, %s", word(j), r, r)
			if j == 0 {
				f.i("VPSRLW $1, %s, %s", r, r)
			} else {
				f.i("VPAVGB %s, %s, %s", r, f.rest[s], f.rest[s])
			}
		}
		f.i("VPAND %s, %s, %s", f.mask, f.rest[s], idx)
	case f.bits == 3 && l == 7:
		f.i("VPSRLW $4, %s, %s", f.rest[s], idx)
		f.i("VPAND %s, %s, %s", f.mask, idx, idx)
	default:
		shifted(l/2, l%2*4)
	}
	if f.bits != 5 {
		return
	}
	// The fifth bit is bit 7 - l, to become bit 4.
	f.i("VMOVDQU %s, %s", word(4), f.tmp)
	switch {
	case l < 3:
		f.i("VPSRLW $%d, %s, %s", 3-l, f.tmp, f.tmp)
	case l > 3:
		f.i("VPSLLW $%d, %s, %s", l-3, f.tmp, f.tmp)
	}
	f.i("VPAND %d(BX), %s, %s", stepsTop, f.tmp, f.tmp)
	f.i("VPOR %s, %s, %s", f.tmp, idx, idx)
}

// add adds the products of codes and x to sums.
func (f *stepsKernel) add(l int, idx, acc string) {
	switch {
	case f.dots:
		f.dotBytes(f.x, idx, acc)
	case l == 0 || f.wide() && l == 4:
		f.i("VPMADDUBSW %s, %s, %s", f.x, idx, acc)
	default:
		f.i("VPMADDUBSW %s, %s, %s", f.x, idx, f.tmp)
		f.i("VPADDW %s, %s, %s", f.tmp, acc, acc)
	}
}

// widen sets dst, which may be the first of acc, to the step times the sum of codes by x. It takes both of acc.
func (f *stepsKernel) widen(acc []string, dst string) {
	if f.dots {
		f.i("VPSLLD $7, %s, %s", acc[1], acc[1])
		f.i("VPADDD %s, %s, %s", acc[1], acc[0], dst)
		f.i("VPMULLD %d(BX), %s, %s", stepsStep, dst, dst)
		return
	}
	f.i("VPMADDWD %d(BX), %s, %s", stepsPair, acc[1], acc[1])
	f.i("VPSLLD $7, %s, %s", acc[1], acc[1])
	f.i("VPMADDWD %d(BX), %s, %s", stepsPair, acc[0], dst)
	f.i("VPADDD %s, %s, %s", acc[1], dst, dst)
}

// fixedBytes emits the parting of x in fixed point for fixedSteps: blocks of 32 words become the lower 7 bits of each and then the upper
// ones as bytes, and scales come to be beside sums.
func (g *gen) fixedBytes() {
	g.text("fixedBytesAVX2", "dst, x *int16, sums, scales *float32, blocks int", 40)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ sums+16(FP), BX")
	g.i("MOVQ scales+24(FP), R8")
	g.i("MOVQ blocks+32(FP), CX")
	const low, ones = 14, 15
	g.i("VPCMPEQW Y%d, Y%[1]d, Y%[1]d", low)
	g.i("VPSRLW $15, Y%d, Y%d", low, ones)
	g.i("VPSRLW $9, Y%d, Y%d", low, low) // 127
	g.label("block")
	for i := range 2 {
		g.i("VMOVDQU %d(SI), Y%d", 32*i, i)
		g.i("VPAND Y%d, Y%d, Y%d", low, i, 2+i)
		g.i("VPMADDWD Y%d, Y%d, Y%d", ones, i, 4+i)
		g.i("VPSRAW $7, Y%d, Y%d", i, i)
	}
	g.i("VPACKUSWB Y3, Y2, Y2")
	g.i("VPACKSSWB Y1, Y0, Y0")
	for i, r := range []int{2, 0} {
		g.i("VPERMQ $0xD8, Y%d, Y%d", r, r)
		g.i("VMOVDQU Y%d, %d(DI)", r, 32*i)
	}
	g.i("VPADDD Y5, Y4, Y4")
	for _, swap := range []string{"VPERM2I128 $1, Y4, Y4, Y5", "VPSHUFD $0x4E, Y4, Y5", "VPSHUFD $0xB1, Y4, Y5"} {
		g.i(swap)
		g.i("VPADDD Y5, Y4, Y4")
	}
	g.i("MOVL (R8), AX")
	g.i("MOVL AX, (BX)")
	g.i("VMOVD X4, 4(BX)")
	g.i("ADDQ $64, SI")
	g.i("ADDQ $64, DI")
	g.i("ADDQ $4, R8")
	g.i("ADDQ $8, BX")
	g.i("DECQ CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}
