package main

import "fmt"

// The signature of the fused kernels. Strides are in bytes.
const (
	fusedSig  = "m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int"
	fusedArgs = 104
)

// fusedSegment is the largest number of half-blocks between two scalings.
const fusedSegment = 8

// fused emits y[m][np][16] = x[m] · Ŵᵀ for np panels of the CPU layout of
// package repack, whose rows are of the given number of half-blocks and whose
// groups, but perhaps the last, are of group half-blocks; see fused.go in
// package cpu for the arithmetic. Codes go from the words through the table
// into the sums of all rows of x without touching memory between. A stream is
// one vector register of codes: a panel, or half of one. Several panels at
// once hide the latency of the sums, which are one chain a stream, and share
// the broadcasts of x.
func (g *gen) fused(v vec, bits int) {
	g.text(fmt.Sprintf("fused%d%s", bits, v.suffix), fusedSig, fusedArgs)
	g.i("MOVQ x+24(FP), SI")
	g.i("MOVQ ldx+32(FP), DX")
	g.i("MOVQ words+40(FP), AX")
	g.i("MOVQ stride+48(FP), CX")
	g.i("MOVQ scales+56(FP), R8")
	g.i("MOVQ sstride+64(FP), R9")
	g.i("MOVQ table+80(FP), BX")
	g.i("MOVQ halves+88(FP), R10")
	g.i("MOVQ m+0(FP), R12")
	g.i("MOVQ np+8(FP), R13")
	for _, f := range fusedVariants(v, bits) {
		g.i("CMPQ R12, $%d", f.m)
		g.i("JNE  not%dx%d", f.m, f.np)
		g.i("CMPQ R13, $%d", f.np)
		g.i("JEQ  kernel%dx%d", f.m, f.np)
		g.label(fmt.Sprintf("not%dx%d", f.m, f.np))
	}
	g.i("UD2")
	for _, f := range fusedVariants(v, bits) {
		f.emit(g)
	}
}

// fusedKernel is a fused kernel for m rows of x and np panels.
type fusedKernel struct {
	v     vec
	bits  int
	m, np int

	n int // registers given out

	table   []string // vectors of the table, or memory operands
	lo, hi  string   // of pairs, at 512 bits
	one     string   // 1, the same
	acc     [][]string
	idx     []string // by stream
	pair    string   // table of pairs, or of the lower codes of pairs
	tmp     []string
	shifted []string // by stream, at 512 bits and 2 bits a code
	xb      string   // of x, where it is no memory operand
}

// fusedVariants lists the shapes of kernels. Package cpu picks among them.
func fusedVariants(v vec, bits int) []*fusedKernel {
	var ks []*fusedKernel
	for m := 1; m <= 4; m++ {
		wide := 4
		switch {
		case v.reg != "Z" && m == 1 && bits != 5:
			wide = 2
		case v.reg != "Z":
			wide = 1
		}
		ks = append(ks, &fusedKernel{v: v, bits: bits, m: m, np: wide})
		if wide > 1 {
			ks = append(ks, &fusedKernel{v: v, bits: bits, m: m, np: 1})
		}
	}
	return ks
}

func (f *fusedKernel) reg() string {
	f.n++
	return f.v.r(f.n - 1)
}

func (f *fusedKernel) regs(n int) []string {
	var r []string
	for range n {
		r = append(r, f.reg())
	}
	return r
}

func (f *fusedKernel) wide() bool { return f.v.reg == "Z" }

// allocate gives out the registers and loads the constants.
func (f *fusedKernel) allocate(g *gen) {
	streams := f.np * f.v.parts()
	for range f.m {
		f.acc = append(f.acc, f.regs(streams))
	}
	f.idx = f.regs(streams)
	load := func(disp int) string {
		r := f.reg()
		g.i("VMOVUPS %d(BX), %s", disp, r)
		return r
	}
	switch {
	case f.bits == 2 && f.wide():
		f.lo, f.hi, f.one = load(0), load(64), f.reg()
		g.i("VPTERNLOGD $0xFF, %s, %s, %s", f.one, f.one, f.one)
		g.i("VPSRLD $25, %s, %s", f.one, f.one)
		g.i("VPSLLD $23, %s, %s", f.one, f.one)
		f.pair = f.reg()
		f.tmp, f.shifted = f.regs(streams), f.regs(streams)
	case f.bits == 2:
		f.table = []string{load(0)}
		f.pair, f.xb = f.reg(), f.reg()
		f.tmp = f.regs(streams + 1)
	case f.wide():
		for i := range max(1, 1<<f.bits/16) {
			f.table = append(f.table, load(64*i))
		}
		f.tmp = f.regs(max(2, (f.lag()+1)*streams))
	case f.bits == 5:
		for i := range 4 {
			f.table = append(f.table, fmt.Sprintf("%d(BX)", 32*i))
		}
		f.tmp = f.regs(4)
		f.xb = f.tmp[1]
	default:
		for i := range 1 << f.bits / 8 {
			f.table = append(f.table, load(32*i))
		}
		if f.tmp = f.regs(3); f.bits == 3 {
			f.tmp = append(f.tmp, f.reg())
		}
		f.xb = f.reg()
	}
	if most := 32 * f.v.bytes / 64; f.n > most {
		panic(fmt.Sprintf("%d bits, %d rows, %d panels: %d registers", f.bits, f.m, f.np, f.n))
	}
}

// emit emits the kernel. AX (and DI behind it, for the fourth panel) points
// at the words at hand, SI (and R14) at the columns of x.
func (f *fusedKernel) emit(g *gen) {
	name := func(s string) string { return fmt.Sprintf("%s%dx%d", s, f.m, f.np) }
	words, ahead := rows{bases: []string{"AX"}, stride: "CX"}, rows{bases: []string{"R15"}, stride: "CX"}
	if f.np > 3 {
		words.bases, ahead.bases = append(words.bases, "DI"), append(ahead.bases, "BX")
	}
	x := rows{bases: []string{"SI", "R14"}, stride: "DX"}
	per := 32 / f.bits

	g.label(name("kernel"))
	f.allocate(g)
	words.setup(g, f.np)
	x.setup(g, f.m)
	// The end of the first panel takes the place of the number of half-blocks.
	g.i("IMUL3Q $%d, R10, R12", 64*f.bits)
	g.i("ADDQ AX, R12")
	g.i("MOVQ R12, halves+88(FP)")
	g.i("LEAQ %d(AX), R15", fusedAhead/(64*f.bits)*64*f.bits)
	g.i("CMPQ R15, R12")
	g.i("JLE  %s", name("near"))
	f.skip(g)
	g.label(name("near"))
	ahead.setup(g, f.np)
	g.i("MOVQ y+16(FP), R13")
	f.zero(g, f.tmp[0])
	for i := 0; i < f.m*f.np*64; i += f.v.bytes {
		g.i("VMOVUPS %s, %d(R13)", f.tmp[0], i)
	}

	g.label(name("group"))
	g.i("MOVQ group+96(FP), R11")
	g.i("CMPQ R11, R10")
	g.i("CMOVQGT R10, R11")
	g.i("SUBQ R11, R10")

	g.label(name("segment"))
	g.i("MOVQ $%d, R12", fusedSegment)
	g.i("CMPQ R12, R11")
	g.i("CMOVQGT R11, R12")
	g.i("SUBQ R12, R11")
	for _, row := range f.acc {
		for _, a := range row {
			f.zero(g, a)
		}
	}

	g.label(name("half"))
	g.i("CMPQ R15, halves+88(FP)")
	g.i("JNE  %s", name("same"))
	f.skip(g)
	ahead.setup(g, f.np)
	g.label(name("same"))
	word := func(reload *rows) {
		for p := range f.np {
			g.i("PREFETCHT1 %s", ahead.at(p, 0))
		}
		for s, r := range f.idx {
			g.i("VMOVUPS %s, %s", words.at(s/f.v.parts(), s%f.v.parts()*f.v.bytes), r)
		}
		f.columns(g, x, per, reload)
		for _, base := range append(words.bases, ahead.bases...) {
			g.i("ADDQ $64, %s", base)
		}
		f.advance(g, per)
	}
	loop := f.bits
	if f.reload() > 0 {
		loop-- // the last word may be the last in memory
	}
	g.i("MOVQ $%d, R13", loop)
	g.label(name("word"))
	word(&words)
	g.i("DECQ R13")
	g.i("JNE  %s", name("word"))
	if loop < f.bits {
		word(nil)
	}
	if per*f.bits < 32 {
		f.leftOver(g, words)
		f.columns(g, x, 2, nil)
		f.advance(g, 2)
	}
	g.i("DECQ R12")
	g.i("JNE  %s", name("half"))

	f.scale(g, name)
	g.i("TESTQ R11, R11")
	g.i("JNE  %s", name("segment"))
	// The scales of a panel lie 16 to a group.
	g.i("MOVQ $32, R12")
	g.i("CMPQ stype+72(FP), $2")
	g.i("JNE  %s", name("next"))
	g.i("MOVQ $64, R12")
	g.label(name("next"))
	g.i("ADDQ R12, R8")
	g.i("TESTQ R10, R10")
	g.i("JNE  %s", name("group"))
	g.i("VZEROUPPER")
	g.i("RET")
}

// fusedAhead is about the distance of the prefetches in each panel, in bytes.
// They go to level 2, as level 1 is full of x.
const fusedAhead = 4096

// skip moves the prefetches, which have come to the ends of the panels, over
// the other panels at hand to the ones behind them.
func (f *fusedKernel) skip(g *gen) {
	for range f.np - 1 {
		g.i("ADDQ CX, R15")
	}
}

func (f *fusedKernel) zero(g *gen, r string) {
	if f.wide() {
		g.i("VPXORQ %s, %s, %s", r, r, r)
	} else {
		g.i("VXORPS %s, %s, %s", r, r, r)
	}
}

// leftOver puts the codes of the last two columns of the half-block, whose
// words have been passed, into idx: the top two bits of each word.
func (f *fusedKernel) leftOver(g *gen, words rows) {
	parts := f.v.parts()
	top := func(s, j int, r string) {
		at := words.at(s/parts, 64*(j-f.bits)+s%parts*f.v.bytes)
		if f.wide() {
			g.i("VPSRLD $30, %s, %s", at, r)
		} else {
			g.i("VMOVUPS %s, %s", at, r)
			g.i("VPSRLD $30, %s, %s", r, r)
		}
		if j > 0 {
			g.i("VPSLLD $%d, %s, %s", 2*j, r, r)
		}
	}
	for s, idx := range f.idx {
		top(s, 0, idx)
		if !f.wide() {
			for j := 1; j < f.bits; j++ {
				r := f.tmp[s%len(f.tmp)]
				top(s, j, r)
				g.i("VPOR %s, %s, %s", r, idx, idx)
			}
			continue
		}
		a, b := f.tmp[s], f.tmp[(s+1)%len(f.tmp)]
		for j := 1; j < f.bits; j += 2 {
			top(s, j, a)
			top(s, j+1, b)
			g.i("VPTERNLOGD $0xFE, %s, %s, %s", a, b, idx) // the or of all three
		}
	}
}

// advance moves x by n columns.
func (f *fusedKernel) advance(g *gen, n int) {
	g.i("ADDQ $%d, SI", 4*n)
	if f.m > 3 {
		g.i("ADDQ $%d, R14", 4*n)
	}
}

// columns adds n columns to the sums, their codes in the low bits of idx.
// Every column shifts idx anew: a chain of shifts would be the bottleneck.
// With words, those at hand, it may read up to three bytes beyond their end.
func (f *fusedKernel) columns(g *gen, x rows, n int, words *rows) {
	switch {
	case f.bits == 2:
		f.pairs(g, x, n)
		return
	case f.wide():
		f.columns512(g, x, n, words)
		return
	}
	for i := range n {
		if len(f.table) == 1 {
			for s, r := range f.idx {
				if i > 0 {
					r = f.tmp[s]
					g.i("VPSRLD $%d, %s, %s", f.bits*i, f.idx[s], r)
				}
				f.lookup(g, f.idx[s], f.bits*i, r, f.tmp[s])
			}
			for r, acc := range f.acc {
				g.i("VBROADCASTSS %s, %s", x.at(r, 4*i), f.xb)
				for s, a := range acc {
					g.i("VFMADD231PS %s, %s, %s", f.tmp[s], f.xb, a)
				}
			}
			continue
		}
		once := f.m == 1 && f.bits != 5
		if once {
			g.i("VBROADCASTSS %s, %s", x.at(0, 4*i), f.xb)
		}
		for s, r := range f.idx {
			if i > 0 {
				r = f.tmp[0]
				g.i("VPSRLD $%d, %s, %s", f.bits*i, f.idx[s], r)
			}
			f.lookup(g, f.idx[s], f.bits*i, r, f.tmp[0])
			for r, acc := range f.acc {
				if !once {
					g.i("VBROADCASTSS %s, %s", x.at(r, 4*i), f.xb)
				}
				g.i("VFMADD231PS %s, %s, %s", f.tmp[0], f.xb, acc[s])
			}
		}
	}
}

func (f *fusedKernel) columns512(g *gen, x rows, n int, words *rows) {
	streams := len(f.idx)
	tmp := func(c int) []string { return f.tmp[c%(f.lag()+1)*streams:][:streams] }
	for c := range n + f.lag() {
		if c < n {
			src, bit := f.idx, f.bits*c
			if c > 0 {
				src = tmp(c)
			}
			for s, r := range src {
				switch {
				case c == 0:
				case c == f.reload() && words != nil:
					g.i("VMOVUPS %s, %s", words.at(s, bit/8), r)
				default:
					g.i("VPSRLD $%d, %s, %s", bit, f.idx[s], r)
				}
			}
			for s, r := range src {
				f.lookup(g, f.idx[s], bit, r, tmp(c)[s])
			}
		}
		if c -= f.lag(); c >= 0 {
			for r, acc := range f.acc {
				for s, a := range acc {
					g.i("VFMADD231PS.BCST %s, %s, %s", x.at(r, 4*c), tmp(c)[s], a)
				}
			}
		}
	}
}

// reload returns the column of a word that is loaded again, from the byte that
// its codes begin at, instead of shifted; 0 means none. Shifts, permutations
// and multiply-adds at 512 bits keep all vector ports of a Zen 4 busy, while
// those of level 1 cache have time for one such load in a word.
func (f *fusedKernel) reload() int {
	switch {
	case f.wide() && f.bits == 3:
		return 8
	case f.wide() && f.bits == 4:
		return 4
	}
	return 0
}

// lag is by how many columns the sums lag behind the lookups, at 512 bits and
// more than 2 bits a code. With many rows of x the sums have all the time.
func (f *fusedKernel) lag() int {
	if f.m > 2 {
		return 0
	}
	return 3
}

// lookup sets dst, which may be idx, to the table entries that the low bits
// of idx name. idx is word shifted right by the given bits.
func (f *fusedKernel) lookup(g *gen, word string, shifted int, idx, dst string) {
	if len(f.table) == 1 {
		g.i("VPERMPS %s, %s, %s", f.table[0], idx, dst)
		return
	}
	if f.wide() {
		if idx != dst {
			g.i("VMOVAPS %s, %s", idx, dst)
		}
		g.i("VPERMI2PS %s, %s, %s", f.table[1], f.table[0], dst)
		return
	}
	// Two registers of 8 entries and a choice by index bit 3, moved to where
	// the blend looks; of four, by bit 4 then. The last permutation may
	// overwrite idx.
	mask := f.tmp[len(f.tmp)-1]
	choose := func(table int, a, b string) {
		g.i("VPERMPS %s, %s, %s", f.table[table+1], idx, b)
		g.i("VPERMPS %s, %s, %s", f.table[table], idx, a)
		g.i("VBLENDVPS %s, %s, %s, %s", mask, b, a, a)
	}
	g.i("VPSLLD $%d, %s, %s", 28-shifted, word, mask)
	if len(f.table) == 4 {
		choose(2, f.tmp[2], f.tmp[1])
	}
	choose(0, dst, f.tmp[1])
	if len(f.table) == 4 {
		g.i("VPSLLD $%d, %s, %s", 27-shifted, word, mask)
		g.i("VBLENDVPS %s, %s, %s, %s", mask, f.tmp[2], dst, dst)
	}
}

// pairs adds n columns of 2 bits, two at a time: what is added is the sum of
// c·x[k], rounded, and c'·x[k+1].
func (f *fusedKernel) pairs(g *gen, x rows, n int) {
	if f.wide() {
		f.pairs512(g, x, n)
		return
	}
	// The four values of a code, or of its product, fit the permutation within
	// 128 bits, which looks at the low two bits of an index. All rows of x
	// share the upper values of pairs.
	lower, v := f.pair, f.tmp[len(f.idx)]
	for i := 0; i < n; i += 2 {
		bit := 2 * i
		if f.m > 1 {
			bit = 0 // idx is shifted in place
		}
		for s, r := range f.idx {
			g.i("VPSRLD $%d, %s, %s", bit+2, r, f.tmp[s])
			g.i("VPERMILPS %s, %s, %s", f.tmp[s], f.table[0], f.tmp[s])
		}
		for r, acc := range f.acc {
			g.i("VBROADCASTSS %s, %s", x.at(r, 4*i), lower)
			g.i("VBROADCASTSS %s, %s", x.at(r, 4*i+4), f.xb)
			g.i("VMULPS %s, %s, %s", f.table[0], lower, lower)
			for s, sum := range acc {
				idx := f.idx[s]
				if bit > 0 {
					g.i("VPSRLD $%d, %s, %s", bit, idx, v)
					idx = v
				}
				g.i("VPERMILPS %s, %s, %s", idx, lower, v)
				g.i("VFMADD231PS %s, %s, %s", f.tmp[s], f.xb, v)
				g.i("VADDPS %s, %s, %s", v, sum, sum)
			}
		}
		if f.m > 1 && i < n-2 {
			for _, r := range f.idx {
				g.i("VPSRLD $4, %s, %s", r, r)
			}
		}
	}
}

// sum adds a to dst, the sum of a stream. A multiplication by one gives the
// same bits on ports that have less to do.
func (f *fusedKernel) sum(g *gen, stream int, a, dst string) {
	if stream%2 == 0 {
		g.i("VFMADD231PS %s, %s, %s", f.one, a, dst)
	} else {
		g.i("VADDPS %s, %s, %s", a, dst, dst)
	}
}

// pairs512 looks up the sum itself: four bits name one of 16, which all rows
// of W share.
func (f *fusedKernel) pairs512(g *gen, x rows, n int) {
	t := f.pair
	for i := 0; i < n; i += 2 {
		src := f.idx
		if i > 0 {
			src = f.shifted
			for s, r := range f.idx {
				g.i("VPSRLD $%d, %s, %s", 2*i, r, src[s])
			}
		}
		for r, acc := range f.acc {
			g.i("VMULPS.BCST %s, %s, %s", x.at(r, 4*i), f.lo, t)
			g.i("VFMADD231PS.BCST %s, %s, %s", x.at(r, 4*i+4), f.hi, t)
			for s := range acc {
				g.i("VPERMPS %s, %s, %s", t, src[s], f.tmp[s])
			}
			for s, a := range acc {
				f.sum(g, s, f.tmp[s], a)
			}
		}
	}
}

// scale adds the sums of a segment, times the scales of its group, to y.
func (f *fusedKernel) scale(g *gen, name func(string) string) {
	scales := rows{bases: []string{"R8", "R12"}, stride: "R9"}
	scales.setup(g, f.np)
	parts := f.v.parts()
	load := func(width int, emit func(mem, r string)) {
		for s, r := range f.idx {
			emit(scales.at(s/parts, s%parts*width), r)
		}
	}
	half := f.v.bytes / 2
	g.i("MOVQ y+16(FP), R13")
	g.i("CMPQ stype+72(FP), $1")
	g.i("JEQ  %s", name("bf16"))
	g.i("JGT  %s", name("f32"))
	load(half, func(mem, r string) { g.i("VCVTPH2PS %s, %s", mem, r) })
	g.i("JMP  %s", name("scaled"))
	g.label(name("bf16"))
	load(half, func(mem, r string) {
		g.i("VPMOVZXWD %s, %s", mem, r)
		g.i("VPSLLD $16, %s, %s", r, r)
	})
	g.i("JMP  %s", name("scaled"))
	g.label(name("f32"))
	load(f.v.bytes, func(mem, r string) { g.i("VMOVUPS %s, %s", mem, r) })
	g.label(name("scaled"))
	for r, acc := range f.acc {
		for s, a := range acc {
			y := fmt.Sprintf("%d(R13)", 64*f.np*r+f.v.bytes*s)
			g.i("VFMADD213PS %s, %s, %s", y, f.idx[s], a)
			g.i("VMOVUPS %s, %s", a, y)
		}
	}
}
