package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The signature of the fixed-point kernels.
const (
	fixedSig  = "m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int"
	fixedArgs = 96
)

// fixedAhead is the distance of the prefetches in bytes: what a thread of a Zen 5 reads in twice the time that memory takes to answer. Panels
// follow each other.
const fixedAhead = 8192

// fixed emits y[m][16] = x[m] · Ŵᵀ for a panel of the CPU layout by bytes of package repack, in the
// arithmetic of fixed.go in package cpu. Every byte of a vector of indices names a value of the table; its
// low and its high byte are looked up apart and interleaved to words, which PMADDWD multiplies by four
// columns of x, the same in all rows. The rows of a panel are taken 8 at a time. With dots an instruction of
// AVX-VNNI multiplies and adds.
func (g *gen) fixed(bits int, dots bool) {
	name := fmt.Sprintf("fixed%d%s", bits, suffix256(dots))
	g.raw("\n// func %s(%s)", name, fixedSig)
	g.raw("TEXT ·%s(SB), NOSPLIT, $64-%d", name, fixedArgs)
	g.fixedArguments()
	for m := 1; m < fixedRows; m++ {
		g.i("CMPQ R12, $%d", m)
		g.i("JEQ  kernel%d", m)
	}
	for m := fixedRows; m > 0; m-- { // the last, most rows, follows the comparisons
		f := &fixedKernel{gen: g, bits: bits, m: m, dots: dots, scaleBytes: 4}
		f.allocate()
		f.loop(f.half)
	}
}

// fixedArguments loads the arguments of a kernel.
func (g *gen) fixedArguments() {
	g.i("MOVQ m+0(FP), R12")
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), SI")
	g.i("MOVQ xscales+24(FP), R9")
	g.i("MOVQ ldx+32(FP), DX")
	g.i("MOVQ words+40(FP), AX")
	g.i("MOVQ scales+48(FP), R8")
	g.i("MOVQ table+64(FP), BX")
	g.i("MOVQ halves+80(FP), R10")
}

// suffix256 is that of kernels at 256 bits.
func suffix256(dots bool) string {
	if dots {
		return "AVXVNNI"
	}
	return "AVX2"
}

// dotWords prints VPDPWSSD of AVX-VNNI on YMM registers: products of a and b, words with signs, pair by pair, are added to sum. Go's
// assembler has that of AVX-512 alone. By the Intel SDM, volume 2, it is VEX.256.66.0F38.W0 52 /r.
func (g *gen) dotWords(a, b, sum string) { g.dot256("vpdpwssd", 0x52, a, b, sum) }

// dotBytes prints VPDPBUSD, the same but for 50 /r: by four, bytes of a with signs and of b without.
func (g *gen) dotBytes(a, b, sum string) { g.dot256("vpdpbusd", 0x50, a, b, sum) }

func (g *gen) dot256(name string, code int, a, b, sum string) {
	n := func(r string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(r, "Y"))
		if err != nil || n > 15 {
			panic(r)
		}
		return n
	}
	rm, v, reg := n(a), n(b), n(sum)
	// High bits of numbers, and all of the second, are inverted.
	first := 0x42 | (^reg>>3&1)<<7 | (^rm>>3&1)<<5
	second := 0x05 | (^v&15)<<3
	g.i("LONG $0x%02x%02x%02xc4; BYTE $0x%02x // %s %%ymm%d, %%ymm%d, %%ymm%d", code, second, first, 0xc0|reg&7<<3|rm&7, name, rm, v, reg)
}

// Constants of the fixed point; package cpu has the same.
const (
	fixedX    = 16383    // the largest column of x in a block
	fixedTiny = 0x1p-111 // what the largest is taken for at least
)

// fixedRows is the largest number of rows of x that a kernel takes.
const fixedRows = 4

// fixedKernel is a kernel for m rows of x.
type fixedKernel struct {
	*gen
	bits, m int
	dots    bool // by AVX-VNNI

	scaleBytes int // from a scale of x to the next

	n       int        // registers given out
	streams int        // of 8 rows, side by side
	acc     [][]string // sums by stream, then row of x: of the first and the second two rows of W of every four
	planes  []string   // of the table, or memory operands
	mask    string
	top     string   // the fifth bits
	idx     []string // by stream
	lo, hi  []string // bytes looked up, then words, by stream
	x, tmp  string
	loads   []string // what the last registers hold
}

func (f *fixedKernel) reg() string {
	f.n++
	if f.n > 16 {
		panic(fmt.Sprintf("%d bits, %d rows of x: too many registers", f.bits, f.m))
	}
	return fmt.Sprintf("Y%d", f.n-1)
}

// allocate gives out the registers. What is left of them holds the table.
func (f *fixedKernel) allocate() {
	f.streams = 1
	if f.m == 1 && f.bits != 5 {
		f.streams = 2
	}
	for range f.streams {
		var acc []string
		for range 2 * f.m {
			acc = append(acc, f.reg())
		}
		f.acc = append(f.acc, acc)
		f.idx, f.lo, f.hi = append(f.idx, f.reg()), append(f.lo, f.reg()), append(f.hi, f.reg())
	}
	f.x, f.tmp = f.reg(), f.reg()
	if f.bits == 5 {
		f.top = f.reg()
	}
	planes := 2
	if f.bits == 2 || f.bits == 5 {
		planes = 4
	}
	for p := range planes {
		f.planes = append(f.planes, f.constant(32*p))
	}
	f.mask = f.constant(32 * planes)
}

// constant returns where 32 bytes of what BX points to are: in a register, if there is one left.
func (f *fixedKernel) constant(at int) string {
	mem := fmt.Sprintf("%d(BX)", at)
	if f.n == 16 {
		return mem
	}
	f.loads = append(f.loads, mem)
	return f.reg()
}

// load fills the registers that hold constants, the last ones.
func (f *fixedKernel) load() {
	for i, mem := range f.loads {
		f.i("VMOVDQU %s, Y%d", mem, f.n-len(f.loads)+i)
	}
}

// loop emits the kernel: half does a half-block of so many streams, from the given one on.
func (f *fixedKernel) loop(half func(first int, x rows)) {
	name := func(s string) string { return fmt.Sprintf("%s%d", s, f.m) }
	f.label(name("kernel"))
	f.load()
	x := rows{bases: []string{"SI", "R14"}, stride: "DX"}
	x.setup(f.gen, f.m)
	f.zero()
	f.i("XORQ R11, R11")

	f.label(name("half"))
	f.i("TESTQ R11, R11")
	f.i("JNE  %s", name("same"))
	f.i("MOVQ group+88(FP), R11")
	f.scales(name)
	f.label(name("same"))
	for s := 0; s < 2; s += f.streams {
		half(s, x)
	}
	f.i("ADDQ $%d, AX", 64*f.bits)
	f.i("ADDQ $64, SI")
	if f.m > 3 {
		f.i("ADDQ $64, R14")
	}
	f.i("ADDQ $%d, R9", f.scaleBytes*f.m)
	f.i("DECQ R11")
	f.i("DECQ R10")
	f.i("JNE  %s", name("half"))
	f.i("VZEROUPPER")
	f.i("RET")
}

// zero clears y.
func (f *fixedKernel) zero() {
	f.i("VPXOR %s, %s, %s", f.tmp, f.tmp, f.tmp)
	for i := 0; i < 64*f.m; i += 32 {
		f.i("VMOVDQU %s, %d(DI)", f.tmp, i)
	}
}

// scales writes the scales of the next group, times the unit of the table, to the frame.
func (f *fixedKernel) scales(name func(string) string) {
	a, b := f.x, f.tmp
	unit := f.acc[0][0]
	f.i("CMPQ stype+56(FP), $1")
	f.i("JEQ  %s", name("bf16"))
	f.i("JGT  %s", name("f32"))
	f.i("VCVTPH2PS 0(R8), %s", a)
	f.i("VCVTPH2PS 16(R8), %s", b)
	f.i("ADDQ $32, R8")
	f.i("JMP  %s", name("scaled"))
	f.label(name("bf16"))
	for i, r := range []string{a, b} {
		f.i("VPMOVZXWD %d(R8), %s", 16*i, r)
		f.i("VPSLLD $16, %s, %s", r, r)
	}
	f.i("ADDQ $32, R8")
	f.i("JMP  %s", name("scaled"))
	f.label(name("f32"))
	for i, r := range []string{a, b} {
		f.i("VMOVUPS %d(R8), %s", 32*i, r)
	}
	f.i("ADDQ $64, R8")
	f.label(name("scaled"))
	f.i("VBROADCASTSS unit+72(FP), %s", unit)
	for i, r := range []string{a, b} {
		f.i("VMULPS %s, %s, %s", unit, r, r)
		f.i("VMOVUPS %s, %d(SP)", r, 32*i)
	}
}

// prefetch fetches a half-block ahead: less far with several rows of x, which take as much longer.
func (f *fixedKernel) prefetch() {
	for j := range f.bits {
		f.i("PREFETCHT0 %d(AX)", fixedAhead/f.m&^63+64*j)
	}
}

// half adds a half-block of some streams, 8 rows each, to y.
func (f *fixedKernel) half(first int, x rows) {
	word := func(j, s int) string { return fmt.Sprintf("%d(AX)", 64*j+32*(first+s)) }
	if first == 0 {
		f.prefetch()
	}
	if f.bits == 5 {
		f.i("VMOVDQU %s, %s", word(4, 0), f.top)
	}
	// What loads goes ahead of what waits for it: the schedulers of a Zen 3 are small.
	index := func(l int) {
		if f.bits == 2 && l%2 == 1 {
			return // idx names a pair
		}
		for s := range f.streams {
			f.index(l, s, func(j int) string { return word(j, s) })
		}
	}
	index(0)
	for l := range 8 {
		for s := range f.streams {
			f.lookup(l, s)
		}
		f.i("VPBROADCASTQ %s, %s", x.at(0, 8*l), f.x)
		if l < 7 {
			index(l + 1)
		}
		for s := range f.streams {
			f.interleave(s)
		}
		for r := range f.m {
			if r > 0 {
				f.i("VPBROADCASTQ %s, %s", x.at(r, 8*l), f.x)
			}
			f.multiply(r, l == 0)
		}
	}
	for s := range f.streams {
		for r := range f.m {
			f.flush(first+s, r, f.acc[s][2*r:])
		}
	}
}

// index sets idx of a stream to what the l-th four columns name.
func (f *fixedKernel) index(l, s int, word func(j int) string) {
	idx := f.idx[s]
	switch {
	case f.bits == 2:
		f.shifted(word(l/4), l/2%2*4, idx)
	case f.bits == 3 && l < 6:
		// Without the bits 3 and 7 of every byte nothing but the code matters, even shifted.
		if l%2 == 0 {
			f.i("VPAND %s, %s, %s", word(l/2), f.mask, idx)
		} else {
			f.i("VPSRLW $4, %s, %s", idx, idx)
		}
	case f.bits == 3 && l == 6:
		// The average of even bytes is half their sum: bits of the three words move side by side.
		for j := range 3 {
			r := f.tmp
			if j == 0 {
				r = idx
			}
			f.i("VMOVDQU 96(BX), %s", r)
			f.i("VPAND %s, %s, %s", word(j), r, r)
			if j == 0 {
				f.i("VPSRLW $1, %s, %s", r, r)
			} else {
				f.i("VPAVGB %s, %s, %s", r, idx, idx)
			}
		}
	case f.bits == 3:
		f.i("VPSRLW $4, %s, %s", idx, idx)
	default:
		f.shifted(word(l/2), l%2*4, idx)
	}
}

// shifted sets idx to four bits of every byte of a word.
func (f *fixedKernel) shifted(word string, bit int, idx string) {
	if bit == 0 && f.mask[0] == 'Y' {
		f.i("VPAND %s, %s, %s", word, f.mask, idx)
		return
	}
	f.i("VMOVDQU %s, %s", word, idx)
	if bit > 0 {
		f.i("VPSRLW $%d, %s, %s", bit, idx, idx)
	}
	f.i("VPAND %s, %s, %s", f.mask, idx, idx)
}

// lookup sets lo and hi of a stream to bytes of the values that idx names, of the l-th four columns.
func (f *fixedKernel) lookup(l, s int) {
	planes, idx, lo, hi := f.planes, f.idx[s], f.lo[s], f.hi[s]
	if f.bits == 2 && l%2 == 1 {
		planes = planes[2:]
	}
	shuffle := func(plane, dst string) {
		if plane[0] != 'Y' {
			f.i("VMOVDQU %s, %s", plane, dst)
			plane = dst
		}
		f.i("VPSHUFB %s, %s, %s", idx, plane, dst)
	}
	shuffle(planes[0], lo)
	shuffle(planes[1], hi)
	if f.bits == 5 {
		// The fifth bits, doubled to where the blend looks, choose between halves of the table.
		bit := f.top
		if l > 0 {
			f.i("VPADDB %s, %s, %s", bit, bit, bit)
		}
		shuffle(planes[2], f.x)
		f.i("VPBLENDVB %s, %s, %s, %s", bit, f.x, lo, lo)
		shuffle(planes[3], f.x)
		f.i("VPBLENDVB %s, %s, %s, %s", bit, f.x, hi, hi)
	}
}

// interleave makes words of lo and hi of a stream.
func (f *fixedKernel) interleave(s int) {
	lo, hi := f.lo[s], f.hi[s]
	f.i("VPUNPCKLBW %s, %s, %s", hi, lo, f.tmp)
	f.i("VPUNPCKHBW %s, %s, %s", hi, lo, hi)
	f.lo[s], f.tmp = f.tmp, lo
}

// multiply adds the products of words, in lo and hi, and four columns of a row of x to its sums.
func (f *fixedKernel) multiply(r int, first bool) {
	for s := range f.streams {
		lo, hi, acc := f.lo[s], f.hi[s], f.acc[s][2*r:]
		if first {
			f.i("VPMADDWD %s, %s, %s", lo, f.x, acc[0])
			f.i("VPMADDWD %s, %s, %s", hi, f.x, acc[1])
			continue
		}
		if f.dots {
			f.dotWords(lo, f.x, acc[0])
			f.dotWords(hi, f.x, acc[1])
			continue
		}
		a, b := f.tmp, f.x
		if s < f.streams-1 {
			a, b = lo, hi
		}
		f.i("VPMADDWD %s, %s, %s", lo, f.x, a)
		f.i("VPMADDWD %s, %s, %s", hi, f.x, b)
		f.i("VPADDD %s, %s, %s", a, acc[0], acc[0])
		f.i("VPADDD %s, %s, %s", b, acc[1], acc[1])
	}
}

// flush adds the sums of a row of x to y. Each row of W has two, side by side.
func (f *fixedKernel) flush(s, r int, acc []string) {
	lo, hi, a, b := acc[0], acc[1], f.x, f.tmp
	f.i("VSHUFPS $0x88, %s, %s, %s", hi, lo, a)
	f.i("VSHUFPS $0xDD, %s, %s, %s", hi, lo, lo)
	f.i("VBROADCASTSS %d(R9), %s", 4*r, b)
	f.i("VPADDD %s, %s, %s", lo, a, lo)
	f.i("VCVTDQ2PS %s, %s", lo, lo)
	f.scaled(s, r, lo, b, a)
}

// scaled adds a sum, times the scale of x and that of the group, to y.
func (f *fixedKernel) scaled(s, r int, sum, scale, tmp string) {
	y := fmt.Sprintf("%d(DI)", 64*r+32*s)
	f.i("VMOVUPS %s, %s", y, tmp)
	f.i("VMULPS %s, %s, %s", scale, sum, sum)
	f.i("VFMADD231PS %d(SP), %s, %s", 32*s, sum, tmp)
	f.i("VMOVUPS %s, %s", tmp, y)
}

// quantize emits the rounding of x to fixed point, 32 columns at a time: see fixedX in package cpu. Blocks
// of them are step bytes apart, scales stride bytes.
func (g *gen) quantize() {
	g.text("quantizeAVX2", "dst *int16, step int, scales *float32, stride int, src *float32, blocks int", 48)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ step+8(FP), R8")
	g.i("MOVQ scales+16(FP), BX")
	g.i("MOVQ stride+24(FP), DX")
	g.i("MOVQ src+32(FP), SI")
	g.i("MOVQ blocks+40(FP), CX")
	broadcast := func(bits uint32, r int) {
		g.i("MOVL $0x%08x, AX", bits)
		g.i("VMOVD AX, X%d", r)
		g.i("VPBROADCASTD X%d, Y%d", r, r)
	}
	const part, abs, tiny, most, unit = 11, 12, 13, 14, 15
	broadcast(math.Float32bits(1./16), part)
	broadcast(0x7fffffff, abs)
	broadcast(math.Float32bits(fixedTiny), tiny)
	broadcast(math.Float32bits(fixedX), most)
	broadcast(math.Float32bits(float32(1)/fixedX), unit)
	g.label("block")
	for i := range 4 {
		g.i("VMOVUPS %d(SI), Y%d", 32*i, i)
		g.i("VPAND Y%d, Y%d, Y%d", i, abs, 4+i)
	}
	// As whole numbers, absolute values are in order, and no NaN is lost.
	const sum = 8
	g.i("VADDPS Y5, Y4, Y%d", sum)
	g.i("VADDPS Y7, Y6, Y9")
	g.i("VADDPS Y9, Y%d, Y%d", sum, sum)
	g.i("VMULPS Y%d, Y%d, Y%d", part, sum, sum)
	g.i("VPMAXUD Y5, Y4, Y4")
	g.i("VPMAXUD Y7, Y6, Y6")
	g.i("VPMAXUD Y6, Y4, Y4")
	for _, swap := range []string{"VPERM2I128 $1, Y%d, Y%[1]d, Y5", "VPSHUFD $0x4E, Y%d, Y5", "VPSHUFD $0xB1, Y%d, Y5"} {
		g.i(swap, 4)
		g.i("VPMAXUD Y5, Y4, Y4")
		g.i(swap, sum)
		g.i("VADDPS Y5, Y%d, Y%d", sum, sum)
	}
	g.i("VPMAXUD Y%d, Y4, Y4", sum)
	g.i("VPMAXUD Y%d, Y4, Y4", tiny)
	g.i("VDIVPS Y4, Y%d, Y5", most)
	g.i("VMULSS X%d, X4, X4", unit)
	g.i("VMOVSS X4, (BX)")
	for i := range 4 {
		g.i("VMULPS Y5, Y%d, Y%d", i, i)
		g.i("VCVTPS2DQ Y%d, Y%d", i, i)
	}
	for i := 0; i < 4; i += 2 {
		g.i("VPACKSSDW Y%d, Y%d, Y%d", i+1, i, i)
		g.i("VPERMQ $0xD8, Y%d, Y%d", i, i)
		g.i("VMOVDQU Y%d, %d(DI)", i, 16*i)
	}
	g.i("ADDQ $128, SI")
	g.i("ADDQ R8, DI")
	g.i("ADDQ DX, BX")
	g.i("DECQ CX")
	g.i("JNE  block")
	g.i("VZEROUPPER")
	g.i("RET")
}
