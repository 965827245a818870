package main

import "fmt"

// The signature shared by the matrix microkernels. All strides are in
// elements.
const (
	gemmSig  = "m int, y *float32, ldy int, x *float32, ldx int, b0, b1 *float32, k int, alpha float32, add int"
	gemmArgs = 80
)

// rows addresses up to 3·len(bases) rows of a row-major matrix: each base
// register points at every third row, and the rows between are reached by
// the scaled stride register.
type rows struct {
	bases  []string
	stride string
}

// at returns the operand for the element disp bytes into row r.
func (x rows) at(r, disp int) string {
	base := x.bases[r/3]
	if r%3 == 0 {
		return fmt.Sprintf("%d(%s)", disp, base)
	}
	return fmt.Sprintf("%d(%s)(%s*%d)", disp, base, x.stride, r%3)
}

// setup points the bases that m rows need behind the first, which is set.
func (x rows) setup(g *gen, m int) {
	for i := 1; 3*i < m; i++ {
		g.i("LEAQ (%s)(%s*2), %s", x.bases[i-1], x.stride, x.bases[i])
		g.i("ADDQ %s, %s", x.stride, x.bases[i])
	}
}

// tile describes a register-tiled product kernel: m rows of x times np panels
// of 16 columns, held in regs vector registers a row.
type tile struct {
	name  string
	reg   string // register prefix
	width int    // bytes of a vector register
	rows  int    // the largest m
	np    int    // panels
}

func (g *gen) gemmAVX512() {
	g.gemm(tile{name: "gemmAVX512", reg: "Z", width: 64, rows: 14, np: 2})
}

func (g *gen) gemmAVX2() {
	g.gemm(tile{name: "gemmAVX2", reg: "Y", width: 32, rows: 6, np: 1})
}

// gemm emits y[m, 16·np] = [y +] alpha · x[m,k] · b for every m from 1 to
// t.rows. The accumulators start from zero and take one fused multiply-add
// per k, in order; alpha and the sum with y are rounded separately.
func (g *gen) gemm(t tile) {
	perPanel := 64 / t.width
	perRow := t.np * perPanel // vector registers a row
	nAcc := t.rows * perRow
	acc := func(r, j int) string { return fmt.Sprintf("%s%d", t.reg, r*perRow+j) }
	// What the accumulators leave: first the b vectors, then broadcasts of x.
	b := func(j int) string { return fmt.Sprintf("%s%d", t.reg, nAcc+j) }
	bc := func(r int) string { return fmt.Sprintf("%s%d", t.reg, nAcc+perRow+r%2) }
	panel := []string{"SI", "DI"}
	x := rows{bases: []string{"AX", "BX", "CX", "R8", "R9"}, stride: "R10"}
	y := rows{bases: x.bases, stride: "R12"} // the x pointers are dead when y is written

	g.text(t.name, gemmSig, gemmArgs)
	g.i("MOVQ x+24(FP), AX")
	g.i("MOVQ ldx+32(FP), R10")
	g.i("SHLQ $2, R10")
	g.i("MOVQ b0+40(FP), SI")
	if t.np == 2 {
		g.i("MOVQ b1+48(FP), DI")
	}
	g.i("MOVQ k+56(FP), DX")
	g.i("MOVQ y+8(FP), R11")
	g.i("MOVQ ldy+16(FP), R12")
	g.i("SHLQ $2, R12")
	g.i("MOVQ m+0(FP), R13")
	for m := t.rows; m > 1; m-- {
		g.i("CMPQ R13, $%d", m)
		g.i("JEQ  rows%d", m)
	}

	const unroll = 4
	for m := 1; m <= t.rows; m++ {
		g.label(fmt.Sprintf("rows%d", m))
		for r := range m {
			for j := range perRow {
				if t.reg == "Z" {
					g.i("VPXORQ %s, %s, %s", acc(r, j), acc(r, j), acc(r, j))
				} else {
					g.i("VXORPS %s, %s, %s", acc(r, j), acc(r, j), acc(r, j))
				}
			}
		}
		x.setup(g, m)
		step := func(u int) {
			for j := range perRow {
				g.i("VMOVUPS %d(%s), %s", 64*u+t.width*(j%perPanel), panel[j/perPanel], b(j))
			}
			for r := range m {
				g.i("VBROADCASTSS %s, %s", x.at(r, 4*u), bc(r))
				for j := range perRow {
					g.i("VFMADD231PS %s, %s, %s", b(j), bc(r), acc(r, j))
				}
			}
		}
		advance := func(u int) {
			for i := 0; 3*i < m; i++ {
				g.i("ADDQ $%d, %s", 4*u, x.bases[i])
			}
			for p := range t.np {
				g.i("ADDQ $%d, %s", 64*u, panel[p])
			}
		}
		g.i("SUBQ $%d, DX", unroll)
		g.i("JLT  tail%d", m)
		g.label(fmt.Sprintf("loop%d", m))
		for u := range unroll {
			step(u)
		}
		advance(unroll)
		g.i("SUBQ $%d, DX", unroll)
		g.i("JGE  loop%d", m)
		g.label(fmt.Sprintf("tail%d", m))
		g.i("ADDQ $%d, DX", unroll)
		g.i("JEQ  store%d", m)
		g.label(fmt.Sprintf("one%d", m))
		step(0)
		advance(1)
		g.i("DECQ DX")
		g.i("JNE  one%d", m)

		g.label(fmt.Sprintf("store%d", m))
		g.i("VBROADCASTSS alpha+64(FP), %s", b(0))
		g.i("MOVQ R11, AX")
		y.setup(g, m)
		for r := range m {
			for j := range perRow {
				g.i("VMULPS %s, %s, %s", b(0), acc(r, j), acc(r, j))
			}
		}
		g.i("CMPQ add+72(FP), $0")
		g.i("JEQ  write%d", m)
		for r := range m {
			for j := range perRow {
				g.i("VADDPS %s, %s, %s", y.at(r, t.width*j), acc(r, j), acc(r, j))
			}
		}
		g.label(fmt.Sprintf("write%d", m))
		for r := range m {
			for j := range perRow {
				g.i("VMOVUPS %s, %s", acc(r, j), y.at(r, t.width*j))
			}
		}
		g.i("VZEROUPPER")
		g.i("RET")
	}
}
