package main

import (
	"fmt"
	"math"
)

// vec describes a vector width. Kernels take 16 elements a step at either
// width, in one register or two, so that lane j always holds the elements
// i ≡ j mod 16 and both give the same bits.
type vec struct {
	suffix string
	reg    string
	bytes  int
}

func avx512() vec { return vec{suffix: "AVX512", reg: "Z", bytes: 64} }
func avx2() vec   { return vec{suffix: "AVX2", reg: "Y", bytes: 32} }

// parts is the number of registers that 16 elements take.
func (v vec) parts() int { return 64 / v.bytes }

// r names register n.
func (v vec) r(n int) string { return fmt.Sprintf("%s%d", v.reg, n) }

// zero clears register n.
func (v vec) zero(g *gen, n int) {
	if v.reg == "Z" {
		g.i("VPXORQ Z%d, Z%d, Z%d", n, n, n)
	} else {
		g.i("VXORPS Y%d, Y%d, Y%d", n, n, n)
	}
}

// consts are the float32 constants of the exponential, by name; each is
// stored 16 times over, to serve as a memory operand of either width. exp.go
// in package cpu holds the same numbers and says where they come from.
func consts() []struct {
	name string
	bits uint32
} {
	f := math.Float32bits
	return []struct {
		name string
		bits uint32
	}{
		{"expLo", f(-87.33654)},
		{"expHi", f(89)},
		{"expLog2e", f(1.44269502)},
		{"expLn2Hi", f(0.693147182)},
		{"expLn2Lo", f(-1.90465421e-09)},
		{"expC6", f(0.00138145394)},
		{"expC5", f(0.00836874545)},
		{"expC4", f(0.041668389)},
		{"expC3", f(0.166665211)},
		{"expC2", f(0.49999994)},
		{"one", f(1)},
		{"expBias", 127},
	}
}

func (g *gen) constants() {
	for _, c := range consts() {
		g.raw("")
		for i := 0; i < 64; i += 8 {
			g.raw("DATA %s<>+%d(SB)/8, $0x%08x%08x", c.name, i, c.bits, c.bits)
		}
		g.raw("GLOBL %s<>(SB), RODATA|NOPTR, $64", c.name)
	}
}

// exp replaces register x by its exponential, using t0, t1 and a mask (a
// vector register, or K1 at 512 bits). See exp.go for the method.
func (g *gen) exp(v vec, x, t0, t1, mask int) {
	X, P, N := v.r(x), v.r(t0), v.r(t1)
	mem := func(name string) string { return name + "<>(SB)" }
	// not (x < lo): all ones, also for NaN.
	if v.reg == "Z" {
		g.i("VCMPPS $0x15, %s, %s, K1", mem("expLo"), X)
	} else {
		g.i("VCMPPS $0x15, %s, %s, %s", mem("expLo"), X, v.r(mask))
	}
	// The second source of VMAXPS and VMINPS is what a NaN gives.
	g.i("VMOVUPS %s, %s", mem("expLo"), P)
	g.i("VMAXPS %s, %s, %s", X, P, X)
	g.i("VMOVUPS %s, %s", mem("expHi"), P)
	g.i("VMINPS %s, %s, %s", X, P, X)
	g.i("VMULPS %s, %s, %s", mem("expLog2e"), X, N)
	if v.reg == "Z" {
		g.i("VRNDSCALEPS $8, %s, %s", N, N)
	} else {
		g.i("VROUNDPS $8, %s, %s", N, N)
	}
	g.i("VFNMADD231PS %s, %s, %s", mem("expLn2Hi"), N, X)
	g.i("VFNMADD231PS %s, %s, %s", mem("expLn2Lo"), N, X)
	g.i("VMOVUPS %s, %s", mem("expC6"), P)
	for _, c := range []string{"expC5", "expC4", "expC3", "expC2", "one", "one"} {
		g.i("VFMADD213PS %s, %s, %s", mem(c), X, P)
	}
	// 2^n as 2^(n>>1) · 2^(n-(n>>1)), each a normal number.
	g.i("VCVTPS2DQ %s, %s", N, N)
	g.i("VPSRAD $1, %s, %s", N, X)
	g.i("VPSUBD %s, %s, %s", X, N, N)
	for _, r := range []string{X, N} {
		g.i("VPADDD %s, %s, %s", mem("expBias"), r, r)
		g.i("VPSLLD $23, %s, %s", r, r)
	}
	g.i("VMULPS %s, %s, %s", X, P, P)
	g.i("VMULPS %s, %s, %s", N, P, P)
	if v.reg == "Z" {
		g.i("VMOVAPS.Z %s, K1, %s", P, X)
	} else {
		g.i("VANDPS %s, %s, %s", v.r(mask), P, X)
	}
}

// loop emits body once for 16 elements, repeated until the count in CX, a
// positive multiple of 16, is used up. The registers in ptrs advance.
func (g *gen) loop(label string, ptrs []string, body func()) {
	g.label(label)
	body()
	for _, p := range ptrs {
		g.i("ADDQ $64, %s", p)
	}
	g.i("SUBQ $16, CX")
	g.i("JNE  %s", label)
}

func (g *gen) expSum(v vec) {
	g.text("expSum"+v.suffix, "dst, src *float32, n int, shift float32, lanes *[16]float32", 40)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ src+8(FP), SI")
	g.i("MOVQ n+16(FP), CX")
	g.i("VBROADCASTSS shift+24(FP), %s", v.r(15))
	g.i("MOVQ lanes+32(FP), DX")
	for p := range v.parts() {
		v.zero(g, 13+p)
	}
	step := func(store bool) func() {
		return func() {
			for p := range v.parts() {
				x := 4 * p
				g.i("VMOVUPS %d(SI), %s", p*v.bytes, v.r(x))
				g.i("VSUBPS %s, %s, %s", v.r(15), v.r(x), v.r(x))
				g.exp(v, x, x+1, x+2, x+3)
				if store {
					g.i("VMOVUPS %s, %d(DI)", v.r(x), p*v.bytes)
				}
				g.i("VADDPS %s, %s, %s", v.r(x), v.r(13+p), v.r(13+p))
			}
		}
	}
	g.i("TESTQ DI, DI")
	g.i("JEQ  sum")
	g.loop("store", []string{"SI", "DI"}, step(true))
	g.i("JMP  done")
	g.loop("sum", []string{"SI"}, step(false))
	g.label("done")
	for p := range v.parts() {
		g.i("VMOVUPS %s, %d(DX)", v.r(13+p), p*v.bytes)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) maximum(v vec) {
	g.text("max"+v.suffix, "src *float32, n int, lanes *[16]float32", 24)
	g.i("MOVQ src+0(FP), SI")
	g.i("MOVQ n+8(FP), CX")
	g.i("MOVQ lanes+16(FP), DX")
	for p := range v.parts() {
		g.i("VMOVUPS %d(SI), %s", p*v.bytes, v.r(p))
	}
	g.loop("next", []string{"SI"}, func() {
		for p := range v.parts() {
			g.i("VMAXPS %d(SI), %s, %s", p*v.bytes, v.r(p), v.r(p))
		}
	})
	for p := range v.parts() {
		g.i("VMOVUPS %s, %d(DX)", v.r(p), p*v.bytes)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) siluMul(v vec) {
	g.text("siluMul"+v.suffix, "dst, gate, up *float32, n int", 32)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ gate+8(FP), SI")
	g.i("MOVQ up+16(FP), DX")
	g.i("MOVQ n+24(FP), CX")
	v.zero(g, 15)
	g.loop("next", []string{"DI", "SI", "DX"}, func() {
		for p := range v.parts() {
			x, q := 6*p, p*v.bytes
			g.i("VMOVUPS %d(SI), %s", q, v.r(x+4))
			g.i("VSUBPS %s, %s, %s", v.r(x+4), v.r(15), v.r(x))
			g.exp(v, x, x+1, x+2, x+3)
			g.i("VADDPS one<>(SB), %s, %s", v.r(x), v.r(x))
			g.i("VDIVPS %s, %s, %s", v.r(x), v.r(x+4), v.r(x))
			g.i("VMULPS %d(DX), %s, %s", q, v.r(x), v.r(x))
			g.i("VMOVUPS %s, %d(DI)", v.r(x), q)
		}
	})
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) dot(v vec) {
	g.text("dot"+v.suffix, "x, y *float32, n int, lanes *[16]float32", 32)
	g.i("MOVQ x+0(FP), SI")
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ n+16(FP), CX")
	g.i("MOVQ lanes+24(FP), DX")
	for p := range v.parts() {
		v.zero(g, p)
	}
	g.loop("next", []string{"SI", "DI"}, func() {
		for p := range v.parts() {
			g.i("VMOVUPS %d(SI), %s", p*v.bytes, v.r(4+p))
			g.i("VFMADD231PS %d(DI), %s, %s", p*v.bytes, v.r(4+p), v.r(p))
		}
	})
	for p := range v.parts() {
		g.i("VMOVUPS %s, %d(DX)", v.r(p), p*v.bytes)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) axpy(v vec) {
	g.text("axpy"+v.suffix, "y, x *float32, n int, alpha float32", 28)
	g.i("MOVQ y+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ n+16(FP), CX")
	g.i("VBROADCASTSS alpha+24(FP), %s", v.r(15))
	g.loop("next", []string{"SI", "DI"}, func() {
		for p := range v.parts() {
			g.i("VMOVUPS %d(DI), %s", p*v.bytes, v.r(p))
			g.i("VFMADD231PS %d(SI), %s, %s", p*v.bytes, v.r(15), v.r(p))
			g.i("VMOVUPS %s, %d(DI)", v.r(p), p*v.bytes)
		}
	})
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) scale(v vec) {
	g.text("scale"+v.suffix, "dst, x *float32, n int, alpha float32", 28)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ n+16(FP), CX")
	g.i("VBROADCASTSS alpha+24(FP), %s", v.r(15))
	g.loop("next", []string{"SI", "DI"}, func() {
		for p := range v.parts() {
			g.i("VMULPS %d(SI), %s, %s", p*v.bytes, v.r(15), v.r(p))
			g.i("VMOVUPS %s, %d(DI)", v.r(p), p*v.bytes)
		}
	})
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) scaleMul(v vec) {
	g.text("scaleMul"+v.suffix, "dst, x, w *float32, n int, alpha float32", 36)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ w+16(FP), DX")
	g.i("MOVQ n+24(FP), CX")
	g.i("VBROADCASTSS alpha+32(FP), %s", v.r(15))
	g.loop("next", []string{"SI", "DI", "DX"}, func() {
		for p := range v.parts() {
			g.i("VMULPS %d(SI), %s, %s", p*v.bytes, v.r(15), v.r(p))
			g.i("VMULPS %d(DX), %s, %s", p*v.bytes, v.r(p), v.r(p))
			g.i("VMOVUPS %s, %d(DI)", v.r(p), p*v.bytes)
		}
	})
	g.i("VZEROUPPER")
	g.i("RET")
}

func (g *gen) add(v vec) {
	g.text("add"+v.suffix, "dst, x, y *float32, n int", 32)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ x+8(FP), SI")
	g.i("MOVQ y+16(FP), DX")
	g.i("MOVQ n+24(FP), CX")
	g.loop("next", []string{"SI", "DI", "DX"}, func() {
		for p := range v.parts() {
			g.i("VMOVUPS %d(SI), %s", p*v.bytes, v.r(p))
			g.i("VADDPS %d(DX), %s, %s", p*v.bytes, v.r(p), v.r(p))
			g.i("VMOVUPS %s, %d(DI)", v.r(p), p*v.bytes)
		}
	})
	g.i("VZEROUPPER")
	g.i("RET")
}

// read emits the probe of read bandwidth: the exclusive or of 64-byte blocks,
// four a step, fetched 4 KiB ahead, where the hardware stops at page ends.
func (g *gen) read(v vec) {
	g.text("read"+v.suffix, "src *byte, n int, lanes *[8]uint64", 24)
	g.i("MOVQ src+0(FP), SI")
	g.i("MOVQ n+8(FP), CX")
	g.i("MOVQ lanes+16(FP), DX")
	xor := "VPXOR"
	if v.reg == "Z" {
		xor = "VPXORQ"
	}
	n := 4 * v.parts()
	for r := range n {
		v.zero(g, r)
	}
	g.label("next")
	for i := range 4 {
		g.i("PREFETCHT0 %d(SI)", 4096+64*i)
	}
	for r := range n {
		g.i("%s %d(SI), %s, %s", xor, r*v.bytes, v.r(r), v.r(r))
	}
	g.i("ADDQ $256, SI")
	g.i("SUBQ $256, CX")
	g.i("JNE  next")
	for p := range v.parts() {
		for r := p + v.parts(); r < n; r += v.parts() {
			g.i("%s %s, %s, %s", xor, v.r(r), v.r(p), v.r(p))
		}
		g.i("VMOVUPS %s, %d(DX)", v.r(p), p*v.bytes)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}
