package main

import "fmt"

// rowPanels is the number of panels that the wide kernel of a row takes: as many sums at once as hide the latency of
// multiply-adds.
const rowPanels = 4

// row emits y[np][16] = x[k] · b for np panels [k][16] of 16-bit numbers, stride bytes apart: one row of x and dense
// weights in panels. The sums of 256 columns each are added in order.
func (g *gen) row(dtype string) {
	g.text("row"+dtype+"AVX2", "np int, y, x *float32, b *byte, stride, k int", 48)
	g.i("MOVQ np+0(FP), R12")
	g.i("MOVQ y+8(FP), DI")
	g.i("MOVQ x+16(FP), SI")
	g.i("MOVQ b+24(FP), AX")
	g.i("MOVQ stride+32(FP), DX")
	g.i("MOVQ k+40(FP), CX")
	g.i("XORQ R9, R9")
	g.i("CMPQ R12, $1")
	g.i("JEQ  kernel1")
	for _, np := range []int{rowPanels, 1} {
		name := func(s string) string { return fmt.Sprintf("%s%d", s, np) }
		b := rows{bases: []string{"AX", "R8"}, stride: "DX"}
		g.label(name("kernel"))
		b.setup(g, np)
		g.label(name("block"))
		g.i("MOVQ $256, R10")
		g.i("CMPQ R10, CX")
		g.i("CMOVQGT CX, R10")
		g.i("SUBQ R10, CX")
		for r := range 2 * np {
			g.i("VXORPS Y%d, Y%d, Y%d", r, r, r)
		}
		const x, w = 15, 8
		g.label(name("column"))
		g.i("VBROADCASTSS (SI), Y%d", x)
		for p := range np {
			g.i("PREFETCHT0 %s", b.at(p, 1024))
			for h := range 2 {
				r := w + (2*p+h)%7
				if dtype == "F16" {
					g.i("VCVTPH2PS %s, Y%d", b.at(p, 16*h), r)
				} else {
					g.i("VPMOVZXWD %s, Y%d", b.at(p, 16*h), r)
					g.i("VPSLLD $16, Y%d, Y%d", r, r)
				}
				g.i("VFMADD231PS Y%d, Y%d, Y%d", r, x, 2*p+h)
			}
		}
		g.i("ADDQ $4, SI")
		for i := 0; 3*i < np; i++ {
			g.i("ADDQ $32, %s", b.bases[i])
		}
		g.i("DECQ R10")
		g.i("JNE  %s", name("column"))
		g.i("TESTQ R9, R9")
		g.i("JEQ  %s", name("store"))
		for r := range 2 * np {
			g.i("VADDPS %d(DI), Y%d, Y%d", 32*r, r, r)
		}
		g.label(name("store"))
		for r := range 2 * np {
			g.i("VMOVUPS Y%d, %d(DI)", r, 32*r)
		}
		g.i("MOVQ $1, R9")
		g.i("TESTQ CX, CX")
		g.i("JNE  %s", name("block"))
		g.i("VZEROUPPER")
		g.i("RET")
	}
}
