package main

// decode emits the decoding of half-blocks of the CPU layout in package
// repack, all of one group, to float32: dst [32·halves][16] = table[code] ·
// scale. table holds the codebook over and over to 32 entries, so that the
// permutations, which look at the low bits of an index only, need no mask.
func (g *gen) decode(v vec, bits int) {
	per := 32 / bits
	g.text("decode"+string(rune('0'+bits))+v.suffix, "dst *float32, words *byte, table, scales *float32, halves int", 40)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ words+8(FP), SI")
	g.i("MOVQ table+16(FP), AX")
	g.i("MOVQ scales+24(FP), BX")
	g.i("MOVQ halves+32(FP), CX")
	const (
		scale = 0 // of the part at hand
		table = 1 // registers from here: at most 4
		idx   = 5 // index words
		spare = 6 // the codes of the two columns left over
		tmp   = 7 // from here: temporaries
	)
	perTable := v.bytes / 4 // entries of a register
	tables := max(1, 1<<bits/perTable)
	for t := range tables {
		g.i("VMOVUPS %d(AX), %s", t*v.bytes, v.r(table+t))
	}
	if v.reg == "Z" {
		g.i("VMOVUPS (BX), %s", v.r(scale))
	}

	g.label("half")
	for j := range bits {
		g.i("PREFETCHT0 %d(SI)", 4096+64*j)
	}
	for p := range v.parts() {
		if v.reg != "Z" {
			g.i("VMOVUPS %d(BX), %s", p*v.bytes, v.r(scale))
		}
		// column writes the weights of a column from the low bits of src.
		column := func(k, src int) {
			g.lookup(v, src, table, tables, tmp)
			g.i("VMULPS %s, %s, %s", v.r(scale), v.r(tmp), v.r(tmp))
			g.i("VMOVUPS %s, %d(DI)", v.r(tmp), 64*k+p*v.bytes)
		}
		for j := range bits {
			g.i("VMOVUPS %d(SI), %s", 64*j+p*v.bytes, v.r(idx))
			if per*bits < 32 {
				if j == 0 {
					g.i("VPSRLD $30, %s, %s", v.r(idx), v.r(spare))
				} else {
					g.i("VPSRLD $30, %s, %s", v.r(idx), v.r(tmp))
					g.i("VPSLLD $%d, %s, %s", 2*j, v.r(tmp), v.r(tmp))
					g.or(v, tmp, spare)
				}
			}
			for i := range per {
				column(j*per+i, idx)
				if i < per-1 {
					g.i("VPSRLD $%d, %s, %s", bits, v.r(idx), v.r(idx))
				}
			}
		}
		if per*bits < 32 {
			column(30, spare)
			g.i("VPSRLD $%d, %s, %s", bits, v.r(spare), v.r(spare))
			column(31, spare)
		}
	}
	g.i("ADDQ $%d, SI", 64*bits)
	g.i("ADDQ $2048, DI")
	g.i("DECQ CX")
	g.i("JNE  half")
	g.i("VZEROUPPER")
	g.i("RET")
}

// or adds the bits of register src to dst.
func (g *gen) or(v vec, src, dst int) {
	if v.reg == "Z" {
		g.i("VPORD Z%d, Z%d, Z%d", src, dst, dst)
	} else {
		g.i("VPOR Y%d, Y%d, Y%d", src, dst, dst)
	}
}

// lookup sets register tmp to the table entries that the low bits of register
// idx name; the table is in the given number of registers. It may change
// the registers behind tmp.
func (g *gen) lookup(v vec, idx, table, tables, tmp int) {
	switch {
	case tables == 1:
		g.i("VPERMPS %s, %s, %s", v.r(table), v.r(idx), v.r(tmp))
	case v.reg == "Z": // two registers
		g.i("VMOVAPS %s, %s", v.r(idx), v.r(tmp))
		g.i("VPERMI2PS %s, %s, %s", v.r(table+1), v.r(table), v.r(tmp))
	default:
		// Each register of 8 entries, then a choice by index bit 3 and, of
		// four, bit 4, moved to where the blend looks.
		for t := range tables {
			g.i("VPERMPS %s, %s, %s", v.r(table+t), v.r(idx), v.r(tmp+t))
		}
		mask := tmp + tables
		g.i("VPSLLD $28, %s, %s", v.r(idx), v.r(mask))
		for t := 0; t < tables; t += 2 {
			g.i("VBLENDVPS %s, %s, %s, %s", v.r(mask), v.r(tmp+t+1), v.r(tmp+t), v.r(tmp+t))
		}
		if tables == 4 {
			g.i("VPSLLD $27, %s, %s", v.r(idx), v.r(mask))
			g.i("VBLENDVPS %s, %s, %s, %s", v.r(mask), v.r(tmp+2), v.r(tmp), v.r(tmp))
		}
	}
}

// widen emits the conversion of n numbers of 16 bits, a positive multiple of
// 16, to float32.
func (g *gen) widen(dtype string) {
	g.text("widen"+dtype+"AVX2", "dst *float32, src *byte, n int", 24)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ src+8(FP), SI")
	g.i("MOVQ n+16(FP), CX")
	g.label("next")
	for p := range 2 {
		if dtype == "F16" {
			g.i("VCVTPH2PS %d(SI), Y%d", 16*p, p)
		} else {
			g.i("VPMOVZXWD %d(SI), Y%d", 16*p, p)
			g.i("VPSLLD $16, Y%d, Y%d", p, p)
		}
		g.i("VMOVUPS Y%d, %d(DI)", p, 32*p)
	}
	g.i("ADDQ $32, SI")
	g.i("ADDQ $64, DI")
	g.i("SUBQ $16, CX")
	g.i("JNE  next")
	g.i("VZEROUPPER")
	g.i("RET")
}
