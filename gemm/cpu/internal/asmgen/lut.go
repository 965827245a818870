package main

import "fmt"

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

// decodeBytes is decode, at 256 bits, for codes by bytes.
func (g *gen) decodeBytes(bits int) {
	g.text(fmt.Sprintf("decodeBytes%dAVX2", bits), "dst *float32, words *byte, table, scales *float32, halves int", 40)
	g.i("MOVQ dst+0(FP), DI")
	g.i("MOVQ words+8(FP), SI")
	g.i("MOVQ table+16(FP), AX")
	g.i("MOVQ scales+24(FP), BX")
	g.i("MOVQ halves+32(FP), CX")
	const (
		scale = 0 // of the part at hand
		table = 1 // registers from here: at most 4
		words = 5
		idx   = 6 // words, with the code at hand lowest
		top   = 7 // the fifth bits, or a mask of the bits 3 and 7 of every byte
		tmp   = 8 // from here: temporaries
	)
	tables := max(1, 1<<bits/8)
	for t := range tables {
		g.i("VMOVUPS %d(AX), Y%d", 32*t, table+t)
	}
	if bits == 3 {
		g.i("VPCMPEQW Y%d, Y%d, Y%d", top, top, top)
		// 0x88 in every byte.
		g.i("VPSLLW $15, Y%d, Y%d", top, top)
		for _, n := range []int{8, 4} {
			g.i("VPSRLW $%d, Y%d, Y%d", n, top, tmp)
			g.i("VPOR Y%d, Y%d, Y%d", tmp, top, top)
		}
	}

	g.label("half")
	for j := range bits {
		g.i("PREFETCHT0 %d(SI)", 4096+64*j)
	}
	for p := range 2 {
		word := func(j int) string { return fmt.Sprintf("%d(SI)", 64*j+32*p) }
		g.i("VMOVUPS %d(BX), Y%d", 32*p, scale)
		if bits == 5 {
			g.i("VMOVDQU %s, Y%d", word(4), top)
		}
		// column writes the weights of a column, whose codes begin at a bit of words.
		column := func(k, bit int) {
			src := words
			if bit > 0 {
				src = idx
				g.i("VPSRLD $%d, Y%d, Y%d", bit, words, idx)
			}
			if bits == 5 {
				g.lookupSplit(src, top, 8*(k%4)+7-k/4, table, tmp)
			} else {
				g.lookup(avx2(), src, table, tables, tmp)
			}
			g.i("VMULPS Y%d, Y%d, Y%d", scale, tmp, tmp)
			g.i("VMOVUPS Y%d, %d(DI)", tmp, 64*k+32*p)
		}
		// columns writes those of which words holds a code or more in each byte, from the l-th four on.
		columns := func(l, n, width int) {
			for i := range 4 {
				for c := range n {
					column(4*(l+c)+i, 8*i+width*c)
				}
			}
		}
		for j := range min(bits, 4) {
			g.i("VMOVDQU %s, Y%d", word(j), words)
			if bits == 2 {
				columns(4*j, 4, 2)
			} else {
				columns(2*j, 2, 4)
			}
		}
		if bits == 3 {
			g.i("VPAND %s, Y%d, Y%d", word(0), top, words)
			g.i("VPSRLD $3, Y%d, Y%d", words, words)
			for j := 1; j < 3; j++ {
				g.i("VPAND %s, Y%d, Y%d", word(j), top, tmp)
				g.i("VPSRLD $%d, Y%d, Y%d", 3-j, tmp, tmp)
				g.i("VPOR Y%d, Y%d, Y%d", tmp, words, words)
			}
			columns(6, 2, 4)
		}
	}
	g.i("ADDQ $%d, SI", 64*bits)
	g.i("ADDQ $2048, DI")
	g.i("DECQ CX")
	g.i("JNE  half")
	g.i("VZEROUPPER")
	g.i("RET")
}

// lookupSplit is lookup of 32 entries whose fifth bits are apart, at a bit of register top.
func (g *gen) lookupSplit(idx, top, bit, table, tmp int) {
	for t := range 4 {
		g.i("VPERMPS Y%d, Y%d, Y%d", table+t, idx, tmp+t)
	}
	mask := tmp + 4
	g.i("VPSLLD $28, Y%d, Y%d", idx, mask)
	for t := 0; t < 4; t += 2 {
		g.i("VBLENDVPS Y%d, Y%d, Y%d, Y%d", mask, tmp+t+1, tmp+t, tmp+t)
	}
	g.i("VPSLLD $%d, Y%d, Y%d", 31-bit, top, mask)
	g.i("VBLENDVPS Y%d, Y%d, Y%d, Y%d", mask, tmp+2, tmp, tmp)
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
