package main

import "fmt"

// This file and those behind it write the assembly for arm64. Helpers take what is written first, as the processor's manual does; Go's
// assembler takes it last.

// neonOp is an instruction that Go's assembler does not know: its bits without registers, and how the vectors are divided, as in the
// Arm Architecture Reference Manual (DDI 0487), C7.2.
type neonOp struct {
	code    uint32
	d, n, m string
}

// neonOps are those on two or, where m is empty, on one vector.
var neonOps = map[string]neonOp{
	"fadd": {0x4e20d400, "4s", "4s", "4s"}, "fsub": {0x4ea0d400, "4s", "4s", "4s"},
	"fmul": {0x6e20dc00, "4s", "4s", "4s"}, "fdiv": {0x6e20fc00, "4s", "4s", "4s"},
	"fmax": {0x4e20f400, "4s", "4s", "4s"}, "fmin": {0x4ea0f400, "4s", "4s", "4s"},
	"fcmeq": {0x4e20e400, "4s", "4s", "4s"}, "fcmgt": {0x6ea0e400, "4s", "4s", "4s"},
	"mla": {0x4ea09400, "4s", "4s", "4s"}, "mul": {0x4ea09c00, "4s", "4s", "4s"}, "ushl": {0x6ea04400, "4s", "4s", "4s"},
	"bic":   {0x4e601c00, "16b", "16b", "16b"},
	"smull": {0x0e60c000, "4s", "4h", "4h"}, "smull2": {0x4e60c000, "4s", "8h", "8h"},
	"smlal": {0x0e608000, "4s", "4h", "4h"}, "smlal2": {0x4e608000, "4s", "8h", "8h"},
	"frintn": {0x4e218800, "4s", "4s", ""}, "fcvtns": {0x4e21a800, "4s", "4s", ""}, "scvtf": {0x4e21d800, "4s", "4s", ""},
	"fcvtl": {0x0e217800, "4s", "4h", ""}, "fcvtl2": {0x4e217800, "4s", "8h", ""},
	"sqxtn": {0x0e614800, "4h", "4s", ""}, "sqxtn2": {0x4e614800, "8h", "4s", ""},
}

// word prints an instruction by its bits, with what it is as the GNU assembler writes it.
func (g *gen) word(code uint32, format string, a ...any) {
	g.i("WORD $0x%08x // %s", code, fmt.Sprintf(format, a...))
}

// op prints an instruction of neonOps.
func (g *gen) op(name string, d, n int, m ...int) {
	o := neonOps[name]
	if o.code == 0 || (o.m != "") != (len(m) == 1) {
		panic(name)
	}
	code := o.code | uint32(n<<5|d)
	if len(m) == 0 {
		g.word(code, "%s v%d.%s, v%d.%s", name, d, o.d, n, o.n)
		return
	}
	g.word(code|uint32(m[0])<<16, "%s v%d.%s, v%d.%s, v%d.%s", name, d, o.d, n, o.n, m[0], o.m)
}

// element returns the bits that name element i of register m, of 32 bits.
func element(m, i int) uint32 { return uint32(i&1<<21 | m<<16 | i>>1<<11) }

// fmlaBy adds n times element i of m to d.
func (g *gen) fmlaBy(d, n, m, i int) {
	g.word(0x4f801000|element(m, i)|uint32(n<<5|d), "fmla v%d.4s, v%d.4s, v%d.s[%d]", d, n, m, i)
}

// fmulBy sets d to n times element i of m.
func (g *gen) fmulBy(d, n, m, i int) {
	g.word(0x4f809000|element(m, i)|uint32(n<<5|d), "fmul v%d.4s, v%d.4s, v%d.s[%d]", d, n, m, i)
}

// sdotBy adds sums of four products each to d: of the bytes of n and those of element i of m.
func (g *gen) sdotBy(d, n, m, i int) {
	g.word(0x4f80e000|element(m, i)|uint32(n<<5|d), "sdot v%d.4s, v%d.16b, v%d.4b[%d]", d, n, m, i)
}

// shll makes numbers of 32 bits of the lower or the upper four of 16: theirs are the upper 16.
func (g *gen) shll(d, n int, upper bool) {
	if upper {
		g.word(0x6e613800|uint32(n<<5|d), "shll2 v%d.4s, v%d.8h, #16", d, n)
	} else {
		g.word(0x2e613800|uint32(n<<5|d), "shll v%d.4s, v%d.4h, #16", d, n)
	}
}

// umaxv sets the first element of d to the largest of n.
func (g *gen) umaxv(d, n int) { g.word(0x6eb0a800|uint32(n<<5|d), "umaxv s%d, v%d.4s", d, n) }

// sshr shifts whole numbers to the right with their signs.
func (g *gen) sshr(d, n, by int) {
	g.word(0x4f000400|uint32((64-by)<<16|n<<5|d), "sshr v%d.4s, v%d.4s, #%d", d, n, by)
}

// Those that Go's assembler knows.

func (g *gen) fmla(d, n, m int) { g.i("VFMLA V%d.S4, V%d.S4, V%d.S4", m, n, d) }
func (g *gen) fmls(d, n, m int) { g.i("VFMLS V%d.S4, V%d.S4, V%d.S4", m, n, d) }
func (g *gen) and(d, n, m int)  { g.i("VAND V%d.B16, V%d.B16, V%d.B16", m, n, d) }
func (g *gen) orr(d, n, m int)  { g.i("VORR V%d.B16, V%d.B16, V%d.B16", m, n, d) }
func (g *gen) eor(d, n, m int)  { g.i("VEOR V%d.B16, V%d.B16, V%d.B16", m, n, d) }
func (g *gen) mov(d, n int)     { g.i("VMOV V%d.B16, V%d.B16", n, d) }
func (g *gen) clear(d int)      { g.eor(d, d, d) }

// three prints an instruction on vectors that are divided alike.
func (g *gen) three(name, div string, d, n, m int) {
	g.i("%s V%d.%s, V%d.%s, V%d.%s", name, m, div, n, div, d, div)
}

// shift prints a shift: VUSHR, VUSRA, VSHL or VSLI.
func (g *gen) shift(name, div string, d, n, by int) {
	g.i("%s $%d, V%d.%s, V%d.%s", name, by, n, div, d, div)
}

// right shifts to the right, or copies by 0 bits.
func (g *gen) right(div string, d, n, by int) {
	switch {
	case by > 0:
		g.shift("VUSHR", div, d, n, by)
	case d != n:
		g.mov(d, n)
	}
}

// bif takes the bits of n to d where those of m are 0.
func (g *gen) bif(d, n, m int) { g.i("VBIF V%d.B16, V%d.B16, V%d.B16", m, n, d) }

// tbl looks bytes of idx up in so many registers from table on; others than there are become 0, or stay with extend.
func (g *gen) tbl(d, table, n, idx int, extend bool) {
	name, list := "VTBL", ""
	if extend {
		name = "VTBX"
	}
	for i := range n {
		if i > 0 {
			list += ", "
		}
		list += fmt.Sprintf("V%d.B16", table+i)
	}
	g.i("%s V%d.B16, [%s], V%d.B16", name, idx, list, d)
}

// ldq loads 16 bytes.
func (g *gen) ldq(d int, base string, at int) { g.i("FMOVQ %d(%s), F%d", at, base, d) }

// stq stores them.
func (g *gen) stq(d int, base string, at int) { g.i("FMOVQ F%d, %d(%s)", d, at, base) }

// ldd loads 8 bytes.
func (g *gen) ldd(d int, base string, at int) { g.i("FMOVD %d(%s), F%d", at, base, d) }

// dup32 sets all elements to a number of 32 bits.
func (g *gen) dup32(d int, bits uint32) {
	g.i("MOVD $0x%08x, R16", bits)
	g.i("VDUP R16, V%d.S4", d)
}

// dupArg sets all elements to a float32 argument.
func (g *gen) dupArg(d int, arg string) {
	g.i("FMOVS %s(FP), F%d", arg, d)
	g.i("VDUP V%d.S[0], V%d.S4", d, d)
}

// args loads arguments of 8 bytes into registers.
func (g *gen) args(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		g.i("MOVD %s(FP), %s", pairs[i], pairs[i+1])
	}
}

// next counts a register down by n and jumps back unless it is 0.
func (g *gen) next(count string, n int, label string) {
	g.i("SUBS $%d, %s, %s", n, count, count)
	g.i("BNE  %s", label)
}

// transpose4 transposes 4×4 numbers of 32 bits, a row in each of four registers, through as many others. It changes both.
func (g *gen) transpose4(rows, tmp [4]int) {
	for i := 0; i < 4; i += 2 {
		g.three("VTRN1", "S4", tmp[i], rows[i], rows[i+1])
		g.three("VTRN2", "S4", tmp[i+1], rows[i], rows[i+1])
	}
	for i := range 2 {
		g.three("VZIP1", "D2", rows[i], tmp[i], tmp[2+i])
		g.three("VZIP2", "D2", rows[2+i], tmp[i], tmp[2+i])
	}
}
