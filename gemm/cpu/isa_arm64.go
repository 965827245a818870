//go:build !noasm

package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/repack"
)

// available reports whether the machine and this build can run s.
func (s isa) available() bool { return s == generic || s == neon }

// fixes reports whether products in fixed point are faster than those in float32.
func (s isa) fixes() bool { return s == neon }

// dots reports whether there are dot products of bytes, which those in fixed point then use.
func (s isa) dots() bool { return cpu.ARM64.HasASIMDDP }

// The assembly. Strides are in elements but for pack's, which is in bytes; n is a positive multiple of 16 and pack's k one of 8.

//go:noescape
func gemmNEON(m int, y *float32, ldy int, x *float32, ldx int, b *float32, k int, alpha float32, add int)

//go:noescape
func packF32NEON(dst *float32, src *byte, stride, k int)

//go:noescape
func packF16NEON(dst *float32, src *byte, stride, k int)

//go:noescape
func packBF16NEON(dst *float32, src *byte, stride, k int)

//go:noescape
func widenF16NEON(dst *float32, src *byte, n int)

//go:noescape
func rowF16NEON(np int, y, x *float32, b *byte, stride, k int)

//go:noescape
func widenBF16NEON(dst *float32, src *byte, n int)

//go:noescape
func rowBF16NEON(np int, y, x *float32, b *byte, stride, k int)

//go:noescape
func expSumNEON(dst, src *float32, n int, shift float32, lanes *[16]float32)

//go:noescape
func maxNEON(src *float32, n int, lanes *[16]float32)

//go:noescape
func siluMulNEON(dst, gate, up *float32, n int)

//go:noescape
func dotNEON(x, y *float32, n int, lanes *[16]float32)

//go:noescape
func axpyNEON(y, x *float32, n int, alpha float32)

//go:noescape
func scaleNEON(dst, x *float32, n int, alpha float32)

//go:noescape
func scaleMulNEON(dst, x, w *float32, n int, alpha float32)

//go:noescape
func addNEON(dst, x, y *float32, n int)

//go:noescape
func readNEON(src *byte, n int, lanes *[8]uint64)

//go:noescape
func decode2NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decodeBytes2NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fused2NEON(m int, y, x *float32, ldx int, words, scales *byte, stype int, table *float32, halves, group int)

//go:noescape
func fixed2NEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed2NEON(dst *int16, words, table *byte, halves int)

//go:noescape
func fixed2DotNEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed2DotNEON(dst *int16, words, table *byte, halves int)

//go:noescape
func decode3NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decodeBytes3NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fused3NEON(m int, y, x *float32, ldx int, words, scales *byte, stype int, table *float32, halves, group int)

//go:noescape
func fixed3NEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed3NEON(dst *int16, words, table *byte, halves int)

//go:noescape
func fixed3DotNEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed3DotNEON(dst *int16, words, table *byte, halves int)

//go:noescape
func decode4NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decodeBytes4NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fused4NEON(m int, y, x *float32, ldx int, words, scales *byte, stype int, table *float32, halves, group int)

//go:noescape
func fixed4NEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed4NEON(dst *int16, words, table *byte, halves int)

//go:noescape
func fixed4DotNEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed4DotNEON(dst *int16, words, table *byte, halves int)

//go:noescape
func decode5NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decodeBytes5NEON(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fused5NEON(m int, y, x *float32, ldx int, words, scales *byte, stype int, table *float32, halves, group int)

//go:noescape
func fixed5NEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed5NEON(dst *int16, words, table *byte, halves int)

//go:noescape
func fixed5DotNEON(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed5DotNEON(dst *int16, words, table *byte, halves int)

//go:noescape
func gemmFixedNEON(m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int)

//go:noescape
func gemmFixedDotNEON(m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int)

//go:noescape
func unpackRingsNEON(dst *float32, stride int, words *byte, blocks, rate int, pairs *uint32, flips uint32, scratch *byte)

//go:noescape
func quantizeNEON(dst *int16, step int, scales *float32, stride int, src *float32, blocks int)

// gemm computes y[m, 16] = [y +] alpha · x[m,k] · b. The callers in gemm.go keep every access in bounds.
func (s isa) gemm(m int, y []float32, ldy int, x []float32, ldx int, b0, _ []float32, k int, alpha float32, add bool) {
	if s == generic {
		gemmGeneric(m, y, ldy, x, ldx, b0, k, alpha, add)
		return
	}
	flag := 0
	if add {
		flag = 1
	}
	gemmNEON(m, &y[0], ldy, &x[0], ldx, &b0[0], k, alpha, flag)
}

// pack writes n ≤ 16 stored rows of k numbers, stride bytes apart, to the panel dst [k][16].
func (s isa) pack(dst []float32, src []byte, stride, n, k int, t dtype) {
	if s == generic || n < 16 || k < 8 {
		packGeneric(dst, src, stride, n, k, t)
		return
	}
	whole := k &^ 7
	_, _ = dst[16*k-1], src[15*stride+k*t.size()-1]
	switch t {
	case f32:
		packF32NEON(&dst[0], &src[0], stride, whole)
	case f16:
		packF16NEON(&dst[0], &src[0], stride, whole)
	case bf16:
		packBF16NEON(&dst[0], &src[0], stride, whole)
	}
	if whole < k {
		packGeneric(dst[16*whole:], src[whole*t.size():], stride, n, k-whole, t)
	}
}

// widen decodes stored numbers, of which there is a positive multiple of 16.
func (s isa) widen(dst []float32, src []byte, t dtype) {
	_ = src[len(dst)*t.size()-1]
	switch {
	case s == generic || t == f32:
		widenGeneric(dst, src, t)
	case t == f16:
		widenF16NEON(&dst[0], &src[0], len(dst))
	default:
		widenBF16NEON(&dst[0], &src[0], len(dst))
	}
}

// packRows is pack for rows of float32 in memory, stride elements apart.
func (s isa) packRows(dst, src []float32, stride, n, k int) {
	if s == generic || n < 16 || k < 8 {
		packRowsGeneric(dst, src, stride, n, k)
		return
	}
	whole := k &^ 7
	_, _ = dst[16*k-1], src[15*stride+k-1]
	packF32NEON(&dst[0], (*byte)(unsafe.Pointer(&src[0])), 4*stride, whole)
	if whole < k {
		packRowsGeneric(dst[16*whole:], src[whole:], stride, n, k-whole)
	}
}

func (s isa) expSum(dst, src []float32, shift float32, lanes *[16]float32) {
	if s == generic {
		expSumGeneric(dst, src, shift, lanes)
		return
	}
	var d *float32
	if dst != nil {
		d = &dst[0]
	}
	expSumNEON(d, &src[0], len(src), shift, lanes)
}

func (s isa) max(src []float32, lanes *[16]float32) {
	if s == generic {
		maxGeneric(src, lanes)
		return
	}
	maxNEON(&src[0], len(src), lanes)
}

func (s isa) siluMul(dst, gate, up []float32) {
	if s == generic {
		siluMulGeneric(dst, gate, up)
		return
	}
	siluMulNEON(&dst[0], &gate[0], &up[0], len(dst))
}

func (s isa) dot(x, y []float32, lanes *[16]float32) {
	if s == generic {
		dotGeneric(x, y, lanes)
		return
	}
	dotNEON(&x[0], &y[0], len(x), lanes)
}

func (s isa) axpy(y, x []float32, alpha float32) {
	if s == generic {
		axpyGeneric(y, x, alpha)
		return
	}
	axpyNEON(&y[0], &x[0], len(y), alpha)
}

func (s isa) scale(dst, x []float32, alpha float32) {
	if s == generic {
		scaleGeneric(dst, x, alpha)
		return
	}
	scaleNEON(&dst[0], &x[0], len(dst), alpha)
}

func (s isa) scaleMul(dst, x, w []float32, alpha float32) {
	if s == generic {
		scaleMulGeneric(dst, x, w, alpha)
		return
	}
	scaleMulNEON(&dst[0], &x[0], &w[0], len(dst), alpha)
}

func (s isa) add(dst, x, y []float32) {
	if s == generic {
		addGeneric(dst, x, y)
		return
	}
	addNEON(&dst[0], &x[0], &y[0], len(dst))
}

// read returns the exclusive or of p, whose length is a multiple of 256, as 64-byte blocks.
func (s isa) read(p []byte, lanes *[8]uint64) {
	if s == generic {
		readGeneric(p, lanes)
		return
	}
	readNEON(&p[0], len(p), lanes)
}

// decode writes the weights of half-blocks of one group, words, to dst [32·halves][16]. table is the codebook repeated to 32 values.
func (s isa) decode(dst []float32, words []byte, bits int, table *[32]float32, scales *[16]float32) {
	halves := len(dst) / 512
	if s == generic || halves == 0 {
		decodeGeneric(dst, words, bits, table, scales)
		return
	}
	_ = words[64*bits*halves-1]
	d, w, t, c := &dst[0], &words[0], &table[0], &scales[0]
	switch bits {
	case 2:
		decode2NEON(d, w, t, c, halves)
	case 3:
		decode3NEON(d, w, t, c, halves)
	case 4:
		decode4NEON(d, w, t, c, halves)
	case 5:
		decode5NEON(d, w, t, c, halves)
	}
}

// decodeBytes is decode for codes by bytes.
func (s isa) decodeBytes(dst []float32, words []byte, bits int, table *[32]float32, scales *[16]float32) {
	halves := len(dst) / 512
	if s == generic || halves == 0 {
		decodeBytesGeneric(dst, words, bits, table, scales)
		return
	}
	_ = words[64*bits*halves-1]
	d, w, t, c := &dst[0], &words[0], &table[0], &scales[0]
	switch bits {
	case 2:
		decodeBytes2NEON(d, w, t, c, halves)
	case 3:
		decodeBytes3NEON(d, w, t, c, halves)
	case 4:
		decodeBytes4NEON(d, w, t, c, halves)
	case 5:
		decodeBytes5NEON(d, w, t, c, halves)
	}
}

// scales decodes the 16 scales in src.
func (s isa) scales(dst *[16]float32, src []byte, t weight.ScaleType) {
	switch {
	case s == neon && t == weight.F16:
		widenF16NEON(&dst[0], &src[:32][0], 16)
	case s == neon && t == weight.BF16:
		widenBF16NEON(&dst[0], &src[:32][0], 16)
	default:
		t.Decode(dst[:], src)
	}
}

// fused computes the product c, of one panel; see fusedGeneric.
func (s isa) fused(y []float32, c *fusedCall) {
	if s == generic {
		fusedGeneric(y, c)
		return
	}
	_ = y[16*c.m-1]
	_ = c.x[(c.m-1)*c.ldx+32*c.halves-1]
	_ = c.words[64*c.bits*c.halves-1]
	_ = c.scales[scalesBytes(c.stype)*ceilDiv(c.halves, c.group)-1]
	most := fusedTurn
	if c.bits == 5 {
		most = 2 // the table takes registers of sums
	}
	for r := 0; r < c.m; r += most {
		m, o, x := min(most, c.m-r), &y[16*r], &c.x[r*c.ldx]
		ldx, w, f, stype, t, halves, group := 4*c.ldx, &c.words[0], &c.scales[0], c.stype, &c.table[0], c.halves, c.group
		switch c.bits {
		case 2:
			fused2NEON(m, o, x, ldx, w, f, stype, t, halves, group)
		case 3:
			fused3NEON(m, o, x, ldx, w, f, stype, t, halves, group)
		case 4:
			fused4NEON(m, o, x, ldx, w, f, stype, t, halves, group)
		case 5:
			fused5NEON(m, o, x, ldx, w, f, stype, t, halves, group)
		}
	}
}

// scalesBytes is the size of the scales of a group of a panel, in one of the forms.
func scalesBytes(form int) int {
	if form == scalesF32 {
		return 64
	}
	return 32
}

// fixed computes the product c; see fixedGeneric.
func (s isa) fixed(y []float32, c *fixedCall) {
	if s == generic {
		fixedGeneric(y, c)
		return
	}
	_ = y[16*c.m-1]
	_ = c.x[(c.m-1)*c.ldx+32*c.halves-1]
	_ = c.xscales[c.m*c.halves-1]
	_ = c.words[64*c.bits*c.halves-1]
	_ = c.scales[scalesBytes(c.stype)*ceilDiv(c.halves, c.group)-1]
	m, ldx, stype, unit, halves, group := c.m, 2*c.ldx, c.stype, c.table.unit, c.halves, c.group
	o, x, xs, w, f, t := &y[0], &c.x[0], &c.xscales[0], &c.words[0], &c.scales[0], &c.table.bytes[0]
	switch dot := s.dots(); {
	case dot && c.bits == 2:
		fixed2DotNEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dot && c.bits == 3:
		fixed3DotNEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dot && c.bits == 4:
		fixed4DotNEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dot && c.bits == 5:
		fixed5DotNEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 2:
		fixed2NEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 3:
		fixed3NEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 4:
		fixed4NEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 5:
		fixed5NEON(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	}
}

// order puts blocks of x in the order that fixed takes them in, which is theirs.
func (s isa) order([]int16) {}

// unpackFixed writes the values that the codes of half-blocks name to dst, as gemmFixed takes them.
func (s isa) unpackFixed(dst []int16, words []byte, bits int, t *fixedLUT) {
	if s == generic {
		unpackFixedGeneric(dst, words, bits, t)
		return
	}
	halves := len(dst) / 512
	_ = words[64*bits*halves-1]
	d, w, table := &dst[0], &words[0], &t.bytes[0]
	switch dot := s.dots(); {
	case dot && bits == 2:
		unpackFixed2DotNEON(d, w, table, halves)
	case dot && bits == 3:
		unpackFixed3DotNEON(d, w, table, halves)
	case dot && bits == 4:
		unpackFixed4DotNEON(d, w, table, halves)
	case dot && bits == 5:
		unpackFixed5DotNEON(d, w, table, halves)
	case bits == 2:
		unpackFixed2NEON(d, w, table, halves)
	case bits == 3:
		unpackFixed3NEON(d, w, table, halves)
	case bits == 4:
		unpackFixed4NEON(d, w, table, halves)
	case bits == 5:
		unpackFixed5NEON(d, w, table, halves)
	}
}

// gemmFixed computes the product c; see gemmFixedGeneric.
func (s isa) gemmFixed(y []float32, ldy int, c *fixedTileCall) {
	if s == generic {
		gemmFixedGeneric(y, ldy, c)
		return
	}
	halves := len(c.scales) / 16
	_ = y[(c.m-1)*ldy+15]
	_, _ = c.x[32*c.m*halves-1], c.xscales[c.m*halves-1]
	_ = c.values[512*halves-1]
	add := 0
	if c.add {
		add = 1
	}
	if s.dots() {
		gemmFixedDotNEON(c.m, &y[0], 4*ldy, &c.x[0], &c.xscales[0], &c.values[0], &c.scales[0], halves, add)
	} else {
		gemmFixedNEON(c.m, &y[0], 4*ldy, &c.x[0], &c.xscales[0], &c.values[0], &c.scales[0], halves, add)
	}
}

// quantize rounds whole blocks of x; see quantizeGeneric.
func (s isa) quantize(dst []int16, step int, scales []float32, stride int, x []float32) {
	if s == generic || len(x) == 0 {
		quantizeGeneric(dst, step, scales, stride, x)
		return
	}
	blocks := len(x) / 32
	_, _ = dst[step*(blocks-1)+31], scales[stride*(blocks-1)]
	quantizeNEON(&dst[0], 2*step, &scales[0], 4*stride, &x[0], blocks)
}

// row computes y[np][16] = x · b for np panels, 1 or rowPanels, of 16-bit numbers; see rowGeneric.
func (s isa) row(y, x []float32, b []byte, stride, np int, t dtype) {
	if s == generic {
		rowGeneric(y, x, b, stride, np, t)
		return
	}
	k := len(x)
	_, _ = y[16*np-1], b[(np-1)*stride+32*k-1]
	if t == f16 {
		rowF16NEON(np, &y[0], &x[0], &b[0], stride, k)
	} else {
		rowBF16NEON(np, &y[0], &x[0], &b[0], stride, k)
	}
}

// rings computes the product c: what windows name is unpacked block by block, and added column by column; see ringsGeneric.
func (s isa) rings(y []float32, c *ringsCall) {
	if s == generic {
		ringsGeneric(y, c)
		return
	}
	const rows, columns = trellis.RingRows, trellis.RingCols
	var values [rows * columns * repack.Lanes]float32 // [rows][columns][lanes]
	clear(y)
	size := 64 * 2 * c.table.rate
	for b := range c.blocks {
		s.unpackRings(values[:], columns*repack.Lanes, c.words[b*size:], 1, c.table, c.scratch)
		for m := range c.m {
			x := c.x[m*c.ldx+columns*b:][:columns]
			for r := range rows {
				sums := &y[(m*rows+r)*repack.Lanes]
				for _, k := range ringsOrder() {
					axpyNEON(sums, &values[(r*columns+k)*repack.Lanes], repack.Lanes, x[k])
				}
			}
		}
	}
}

func (s isa) rotate(dst, x, factors []float32, by float32) { rotateGeneric(dst, x, factors, by) }

func (s isa) ringsFixed(y []float32, c *ringsFixedCall) { ringsFixedGeneric(y, c) }

func (s isa) fixesRings() bool { return false }

// unpackRings writes the values of blocks of a panel; see unpackRingsGeneric.
func (s isa) unpackRings(dst []float32, stride int, words []byte, blocks int, t *ringTable, scratch *[ringsScratchBytes]byte) {
	if s == generic || blocks == 0 {
		unpackRingsGeneric(dst, stride, words, blocks, t)
		return
	}
	_, _ = dst[7*stride+256*blocks-1], words[blocks*64*2*t.rate-1]
	unpackRingsNEON(&dst[0], stride, &words[0], blocks, t.rate, &t.pairs[0], t.hash.flip, &scratch[0])
}

func (s isa) roundRings(dst []ringX, x []float32) { roundRingsGeneric(dst, x) }
