package main

import "fmt"

// pack emits the transpose of 16 rows of k stored numbers, k a multiple of 8,
// into a float32 panel [k][16]. It works on 8×8 blocks in AVX2 registers,
// which AVX-512 machines run as well; the conversions are exact.
func (g *gen) pack(dtype string) {
	size := 2
	if dtype == "F32" {
		size = 4
	}
	g.text("pack"+dtype+"AVX2", "dst *float32, src *byte, stride, k int", 32)
	x := rows{bases: []string{"AX", "BX", "CX"}, stride: "R10"}
	g.i("MOVQ src+8(FP), R8")
	g.i("MOVQ stride+16(FP), R10")
	for half := range 2 {
		g.i("MOVQ dst+0(FP), DI")
		if half == 1 {
			g.i("LEAQ (R8)(R10*8), R8")
			g.i("ADDQ $32, DI")
		}
		g.i("MOVQ k+24(FP), DX")
		g.i("MOVQ R8, AX")
		x.setup(g, 8)
		g.label(fmt.Sprintf("half%d", half))
		for r := range 8 {
			// The next block of 256 columns: rows are too many streams for
			// the hardware to follow.
			g.i("PREFETCHT1 %s", x.at(r, 256*size))
		}
		for r := range 8 {
			switch dtype {
			case "F32":
				g.i("VMOVUPS %s, Y%d", x.at(r, 0), r)
			case "F16":
				g.i("VCVTPH2PS %s, Y%d", x.at(r, 0), r)
			case "BF16":
				g.i("VPMOVZXWD %s, Y%d", x.at(r, 0), r)
				g.i("VPSLLD $16, Y%d, Y%d", r, r)
			}
		}
		g.transpose8()
		for i := range 8 {
			g.i("VMOVUPS Y%d, %d(DI)", i, 64*i)
		}
		for _, base := range x.bases {
			g.i("ADDQ $%d, %s", 8*size, base)
		}
		g.i("ADDQ $512, DI")
		g.i("SUBQ $8, DX")
		g.i("JNE  half%d", half)
	}
	g.i("VZEROUPPER")
	g.i("RET")
}

// transpose8 transposes the 8×8 block in Y0-Y7 in place, through Y8-Y15.
func (g *gen) transpose8() {
	// Pairs of rows interleaved: Y8+r holds columns 0,1 (low) or 2,3 (high) of
	// rows r, r+1 in each 128-bit half.
	for r := 0; r < 8; r += 2 {
		g.i("VUNPCKLPS Y%d, Y%d, Y%d", r+1, r, 8+r)
		g.i("VUNPCKHPS Y%d, Y%d, Y%d", r+1, r, 9+r)
	}
	// Four rows together: Yc and Y(c+4) hold column c and c+4 in their halves,
	// of rows 0-3 in Y0-Y3 and rows 4-7 in Y4-Y7.
	for q := 0; q < 8; q += 4 {
		for c := range 2 {
			g.i("VUNPCKLPD Y%d, Y%d, Y%d", 8+q+2+c, 8+q+c, q+2*c)
			g.i("VUNPCKHPD Y%d, Y%d, Y%d", 8+q+2+c, 8+q+c, q+2*c+1)
		}
	}
	for c := range 4 {
		g.i("VPERM2F128 $0x20, Y%d, Y%d, Y%d", 4+c, c, 8+c)
		g.i("VPERM2F128 $0x31, Y%d, Y%d, Y%d", 4+c, c, 12+c)
	}
	for c := range 8 {
		g.i("VMOVAPS Y%d, Y%d", 8+c, c)
	}
}
