//go:build !noasm

package cpu

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// available reports whether the machine and this build can run s.
func (s isa) available() bool {
	x := &cpu.X86
	hasAVX2 := x.HasAVX2 && x.HasFMA && x.HasF16C
	switch s {
	case generic:
		return true
	case avx2:
		return hasAVX2
	case avx512:
		return hasAVX2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL
	}
	return false
}

// The assembly. Strides are in elements but for pack's, which is in bytes; n
// is a positive multiple of 16 and pack's k one of 8.

//go:noescape
func gemmAVX512(m int, y *float32, ldy int, x *float32, ldx int, b0, b1 *float32, k int, alpha float32, add int)

//go:noescape
func gemmAVX2(m int, y *float32, ldy int, x *float32, ldx int, b0, b1 *float32, k int, alpha float32, add int)

//go:noescape
func packF32AVX2(dst *float32, src *byte, stride, k int)

//go:noescape
func packF16AVX2(dst *float32, src *byte, stride, k int)

//go:noescape
func packBF16AVX2(dst *float32, src *byte, stride, k int)

//go:noescape
func expSumAVX512(dst, src *float32, n int, shift float32, lanes *[16]float32)

//go:noescape
func expSumAVX2(dst, src *float32, n int, shift float32, lanes *[16]float32)

//go:noescape
func maxAVX512(src *float32, n int, lanes *[16]float32)

//go:noescape
func maxAVX2(src *float32, n int, lanes *[16]float32)

//go:noescape
func siluMulAVX512(dst, gate, up *float32, n int)

//go:noescape
func siluMulAVX2(dst, gate, up *float32, n int)

//go:noescape
func dotAVX512(x, y *float32, n int, lanes *[16]float32)

//go:noescape
func dotAVX2(x, y *float32, n int, lanes *[16]float32)

//go:noescape
func axpyAVX512(y, x *float32, n int, alpha float32)

//go:noescape
func axpyAVX2(y, x *float32, n int, alpha float32)

//go:noescape
func scaleAVX512(dst, x *float32, n int, alpha float32)

//go:noescape
func scaleAVX2(dst, x *float32, n int, alpha float32)

//go:noescape
func scaleMulAVX512(dst, x, w *float32, n int, alpha float32)

//go:noescape
func scaleMulAVX2(dst, x, w *float32, n int, alpha float32)

//go:noescape
func addAVX512(dst, x, y *float32, n int)

//go:noescape
func addAVX2(dst, x, y *float32, n int)

//go:noescape
func readAVX512(src *byte, n int, lanes *[8]uint64)

//go:noescape
func readAVX2(src *byte, n int, lanes *[8]uint64)

//go:noescape
func decode2AVX512(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode2AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode3AVX512(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode3AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode4AVX512(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode4AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode5AVX512(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func decode5AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func widenF16AVX2(dst *float32, src *byte, n int)

//go:noescape
func widenBF16AVX2(dst *float32, src *byte, n int)

//go:noescape
func fused2AVX512(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused2AVX2(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused3AVX512(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused3AVX2(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused4AVX512(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused4AVX2(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused5AVX512(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func fused5AVX2(m, np int, y, x *float32, ldx int, words *byte, stride int, scales *byte, sstride, stype int, table *float32, halves, group int)

//go:noescape
func decodeBytes2AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fixed2AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixed2AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func decodeBytes3AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fixed3AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixed3AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func decodeBytes4AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fixed4AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixed4AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func decodeBytes5AVX2(dst *float32, words *byte, table, scales *float32, halves int)

//go:noescape
func fixed5AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixed5AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func unpackFixed2AVX2(dst *int16, words, table *byte, halves int)

//go:noescape
func unpackFixed3AVX2(dst *int16, words, table *byte, halves int)

//go:noescape
func unpackFixed4AVX2(dst *int16, words, table *byte, halves int)

//go:noescape
func unpackFixed5AVX2(dst *int16, words, table *byte, halves int)

//go:noescape
func gemmFixedAVX2(m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int)

//go:noescape
func gemmFixedAVXVNNI(m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int)

//go:noescape
func fixed2AVX512(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *int16, unit float32, halves, group int)

//go:noescape
func fixed3AVX512(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *int16, unit float32, halves, group int)

//go:noescape
func fixed4AVX512(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *int16, unit float32, halves, group int)

//go:noescape
func fixed5AVX512(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *int16, unit float32, halves, group int)

//go:noescape
func fixedSteps2AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps2AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps3AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps3AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps4AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps4AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps5AVX2(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedSteps5AVXVNNI(m int, y *float32, x *int16, xscales *float32, ldx int, words, scales *byte, stype int, table *byte, unit float32, halves, group int)

//go:noescape
func fixedBytesAVX2(dst, x *int16, sums, scales *float32, blocks int)

//go:noescape
func fixedOrderAVX512(x *int16, blocks int)

//go:noescape
func gemmFixedAVX512(m int, y *float32, ldy int, x *int16, xscales *float32, w *int16, scales *float32, halves, add int)

//go:noescape
func rowF16AVX2(np int, y, x *float32, b *byte, stride, k int)

//go:noescape
func rowBF16AVX2(np int, y, x *float32, b *byte, stride, k int)

//go:noescape
func quantizeAVX2(dst *int16, step int, scales *float32, stride int, src *float32, blocks int)

//go:noescape
func planes1AVX2(y *float32, words, factors *byte, stype, bits, offset int, tables *byte, units, sums *float32, halves, group, block int)

//go:noescape
func planes3AVX2(y *float32, words, factors *byte, stype, bits, offset int, tables *byte, units, sums *float32, halves, group, block int)

//go:noescape
func tablesAVX2(dst *byte, units, sums, x *float32, halves int)

//go:noescape
func halfSumsAVX2(entries *float32, most *uint32, sums, x *float32, halves int)

//go:noescape
func shareMostAVX2(most *uint32, halves, block int)

//go:noescape
func tableScalesAVX2(scales *float32, most *uint32, n int)

//go:noescape
func tableCodesAVX2(dst *byte, entries, scales *float32, halves int)

//go:noescape
func roundStepsAVX2(entries, scales *float32, tables int)

//go:noescape
func roundF16AVX2(v *float32, n int, unit, inverse float32)

//go:noescape
func tableEntriesAVX2(dst *byte, units, entries *float32, halves int)

//go:noescape
func planesDecodeAVX2(dst *float32, words *byte, factors *float32, bits, halves int)

//go:noescape
func ringsAVX512(m int, y, x *float32, ldx int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte)

//go:noescape
func ringsFixedAVX512(m int, y *float32, x *ringX, ldx int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte)

func cpuHasFP16() (has bool)

//go:noescape
func rotateRingsAVX2(dst, x, factors *float32, blocks int, by float32)

//go:noescape
func roundRingsAVX2(dst *ringX, x *float32, blocks int)

//go:noescape
func unpackRingsAVX512(dst *float32, stride int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte)

//go:noescape
func unpackRingsAVX2(dst *float32, stride int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte)

//go:noescape
func ringsAVX2(m int, y, x *float32, ldx int, words *byte, blocks, size int, table *byte, steps *ringStep, hash *ringHash, scratch *byte)

// gemm computes y[m, 16·panels] = [y +] alpha · x[m,k] · b for panels b0 and,
// where the kernel takes two, b1. The callers in gemm.go keep every access in
// bounds.
func (s isa) gemm(m int, y []float32, ldy int, x []float32, ldx int, b0, b1 []float32, k int, alpha float32, add bool) {
	flag := 0
	if add {
		flag = 1
	}
	switch s {
	case avx512:
		gemmAVX512(m, &y[0], ldy, &x[0], ldx, &b0[0], &b1[0], k, alpha, flag)
	case avx2:
		gemmAVX2(m, &y[0], ldy, &x[0], ldx, &b0[0], &b0[0], k, alpha, flag)
	default:
		gemmGeneric(m, y, ldy, x, ldx, b0, k, alpha, add)
	}
}

// pack writes n ≤ 16 stored rows of k numbers, stride bytes apart, to the
// panel dst [k][16].
func (s isa) pack(dst []float32, src []byte, stride, n, k int, t dtype) {
	if s == generic || n < 16 || k < 8 {
		packGeneric(dst, src, stride, n, k, t)
		return
	}
	whole := k &^ 7
	_, _ = dst[16*k-1], src[15*stride+k*t.size()-1]
	switch t {
	case f32:
		packF32AVX2(&dst[0], &src[0], stride, whole)
	case f16:
		packF16AVX2(&dst[0], &src[0], stride, whole)
	case bf16:
		packBF16AVX2(&dst[0], &src[0], stride, whole)
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
		widenF16AVX2(&dst[0], &src[0], len(dst))
	default:
		widenBF16AVX2(&dst[0], &src[0], len(dst))
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
	packF32AVX2(&dst[0], (*byte)(unsafe.Pointer(&src[0])), 4*stride, whole)
	if whole < k {
		packRowsGeneric(dst[16*whole:], src[whole:], stride, n, k-whole)
	}
}

func (s isa) expSum(dst, src []float32, shift float32, lanes *[16]float32) {
	var d *float32
	if dst != nil {
		d = &dst[0]
	}
	switch s {
	case avx512:
		expSumAVX512(d, &src[0], len(src), shift, lanes)
	case avx2:
		expSumAVX2(d, &src[0], len(src), shift, lanes)
	default:
		expSumGeneric(dst, src, shift, lanes)
	}
}

func (s isa) max(src []float32, lanes *[16]float32) {
	switch s {
	case avx512:
		maxAVX512(&src[0], len(src), lanes)
	case avx2:
		maxAVX2(&src[0], len(src), lanes)
	default:
		maxGeneric(src, lanes)
	}
}

func (s isa) siluMul(dst, gate, up []float32) {
	switch s {
	case avx512:
		siluMulAVX512(&dst[0], &gate[0], &up[0], len(dst))
	case avx2:
		siluMulAVX2(&dst[0], &gate[0], &up[0], len(dst))
	default:
		siluMulGeneric(dst, gate, up)
	}
}

func (s isa) dot(x, y []float32, lanes *[16]float32) {
	switch s {
	case avx512:
		dotAVX512(&x[0], &y[0], len(x), lanes)
	case avx2:
		dotAVX2(&x[0], &y[0], len(x), lanes)
	default:
		dotGeneric(x, y, lanes)
	}
}

func (s isa) axpy(y, x []float32, alpha float32) {
	switch s {
	case avx512:
		axpyAVX512(&y[0], &x[0], len(y), alpha)
	case avx2:
		axpyAVX2(&y[0], &x[0], len(y), alpha)
	default:
		axpyGeneric(y, x, alpha)
	}
}

func (s isa) scale(dst, x []float32, alpha float32) {
	switch s {
	case avx512:
		scaleAVX512(&dst[0], &x[0], len(dst), alpha)
	case avx2:
		scaleAVX2(&dst[0], &x[0], len(dst), alpha)
	default:
		scaleGeneric(dst, x, alpha)
	}
}

func (s isa) scaleMul(dst, x, w []float32, alpha float32) {
	switch s {
	case avx512:
		scaleMulAVX512(&dst[0], &x[0], &w[0], len(dst), alpha)
	case avx2:
		scaleMulAVX2(&dst[0], &x[0], &w[0], len(dst), alpha)
	default:
		scaleMulGeneric(dst, x, w, alpha)
	}
}

func (s isa) add(dst, x, y []float32) {
	switch s {
	case avx512:
		addAVX512(&dst[0], &x[0], &y[0], len(dst))
	case avx2:
		addAVX2(&dst[0], &x[0], &y[0], len(dst))
	default:
		addGeneric(dst, x, y)
	}
}

// read returns the exclusive or of p, whose length is a multiple of 256, as
// 64-byte blocks.
func (s isa) read(p []byte, lanes *[8]uint64) {
	switch s {
	case avx512:
		readAVX512(&p[0], len(p), lanes)
	case avx2:
		readAVX2(&p[0], len(p), lanes)
	default:
		readGeneric(p, lanes)
	}
}

// decode writes the weights of half-blocks of one group, words, to dst
// [32·halves][16]. table is the codebook repeated to 32 values.
func (s isa) decode(dst []float32, words []byte, bits int, table *[32]float32, scales *[16]float32) {
	halves := len(dst) / 512
	if s == generic || halves == 0 {
		decodeGeneric(dst, words, bits, table, scales)
		return
	}
	_ = words[64*bits*halves-1]
	d, w, t, c := &dst[0], &words[0], &table[0], &scales[0]
	switch {
	case s == avx512 && bits == 2:
		decode2AVX512(d, w, t, c, halves)
	case s == avx512 && bits == 3:
		decode3AVX512(d, w, t, c, halves)
	case s == avx512 && bits == 4:
		decode4AVX512(d, w, t, c, halves)
	case s == avx512 && bits == 5:
		decode5AVX512(d, w, t, c, halves)
	case bits == 2:
		decode2AVX2(d, w, t, c, halves)
	case bits == 3:
		decode3AVX2(d, w, t, c, halves)
	case bits == 4:
		decode4AVX2(d, w, t, c, halves)
	case bits == 5:
		decode5AVX2(d, w, t, c, halves)
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
		decodeBytes2AVX2(d, w, t, c, halves)
	case 3:
		decodeBytes3AVX2(d, w, t, c, halves)
	case 4:
		decodeBytes4AVX2(d, w, t, c, halves)
	case 5:
		decodeBytes5AVX2(d, w, t, c, halves)
	}
}

// scales decodes the 16 scales in src.
func (s isa) scales(dst *[16]float32, src []byte, t weight.ScaleType) {
	switch {
	case s != generic && t == weight.F16:
		widenF16AVX2(&dst[0], &src[:32][0], 16)
	case s != generic && t == weight.BF16:
		widenBF16AVX2(&dst[0], &src[:32][0], 16)
	default:
		t.Decode(dst[:], src)
	}
}

// fused computes the product c; see fusedGeneric.
func (s isa) fused(y []float32, c *fusedCall) {
	if s == generic {
		fusedGeneric(y, c)
		return
	}
	_ = y[16*c.m*c.np-1]
	_ = c.x[(c.m-1)*c.ldx+32*c.halves-1]
	_ = c.words[(c.np-1)*c.stride+64*c.bits*c.halves-1]
	size := 32
	if c.stype == scalesF32 {
		size = 64
	}
	_ = c.scales[(c.np-1)*c.sstride+size*ceilDiv(c.halves, c.group)-1]
	m, np, ldx, stride, sstride, stype, halves, group := c.m, c.np, 4*c.ldx, c.stride, c.sstride, c.stype, c.halves, c.group
	o, x, w, f, t := &y[0], &c.x[0], &c.words[0], &c.scales[0], &c.table[0]
	switch {
	case s == avx512 && c.bits == 2:
		fused2AVX512(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case s == avx512 && c.bits == 3:
		fused3AVX512(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case s == avx512 && c.bits == 4:
		fused4AVX512(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case s == avx512 && c.bits == 5:
		fused5AVX512(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case c.bits == 2:
		fused2AVX2(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case c.bits == 3:
		fused3AVX2(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case c.bits == 4:
		fused4AVX2(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	case c.bits == 5:
		fused5AVX2(m, np, o, x, ldx, w, stride, f, sstride, stype, t, halves, group)
	}
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
	size := 32
	if c.stype == scalesF32 {
		size = 64
	}
	_ = c.scales[size*ceilDiv(c.halves, c.group)-1]
	if c.steps {
		_ = c.xscales[2*c.halves-1]
		fixedSteps(y, c)
		return
	}
	m, ldx, stype, unit, halves, group := c.m, 2*c.ldx, c.stype, c.table.unit, c.halves, c.group
	o, x, xs, w, f, t, v := &y[0], &c.x[0], &c.xscales[0], &c.words[0], &c.scales[0], &c.table.bytes[0], &c.table.values[0]
	switch wide, dots := s.dotsWords(), hasAVXVNNI; {
	case wide && c.bits == 2:
		fixed2AVX512(m, o, x, xs, ldx, w, f, stype, v, unit, halves, group)
	case wide && c.bits == 3:
		fixed3AVX512(m, o, x, xs, ldx, w, f, stype, v, unit, halves, group)
	case wide && c.bits == 4:
		fixed4AVX512(m, o, x, xs, ldx, w, f, stype, v, unit, halves, group)
	case wide && c.bits == 5:
		fixed5AVX512(m, o, x, xs, ldx, w, f, stype, v, unit, halves, group)
	case dots && c.bits == 2:
		fixed2AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dots && c.bits == 3:
		fixed3AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dots && c.bits == 4:
		fixed4AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dots && c.bits == 5:
		fixed5AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 2:
		fixed2AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 3:
		fixed3AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 4:
		fixed4AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 5:
		fixed5AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	}
}

// fixedSteps is fixed for one row of x and tables of equal steps.
func fixedSteps(y []float32, c *fixedCall) {
	m, ldx, stype, unit, halves, group := c.m, 2*c.ldx, c.stype, c.table.unit, c.halves, c.group
	o, x, xs, w, f, t := &y[0], &c.x[0], &c.xscales[0], &c.words[0], &c.scales[0], &c.table.steps[0]
	switch dots := hasAVXVNNI; {
	case dots && c.bits == 2:
		fixedSteps2AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dots && c.bits == 3:
		fixedSteps3AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dots && c.bits == 4:
		fixedSteps4AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case dots && c.bits == 5:
		fixedSteps5AVXVNNI(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 2:
		fixedSteps2AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 3:
		fixedSteps3AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 4:
		fixedSteps4AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	case c.bits == 5:
		fixedSteps5AVX2(m, o, x, xs, ldx, w, f, stype, t, unit, halves, group)
	}
}

// steps reports whether fixed has kernels for tables of equal steps.
func (s isa) steps() bool { return s != generic && !s.dotsWords() }

// fixedBytes parts a row of x for those; see fixedBytesGeneric.
func (s isa) fixedBytes(dst, x []int16, sums, scales []float32) {
	blocks := len(x) / 32
	if blocks == 0 {
		return
	}
	_, _, _ = dst[32*blocks-1], scales[blocks-1], sums[2*blocks-1]
	fixedBytesAVX2(&dst[0], &x[0], &sums[0], &scales[0], blocks)
}

// order puts blocks of x in the order that fixed takes them in.
func (s isa) order(x []int16) {
	if s.dotsWords() && len(x) > 0 {
		fixedOrderAVX512(&x[0], len(x)/32)
	}
}

// unpackFixed writes the values that the codes of half-blocks name to dst; see unpackFixedGeneric.
func (s isa) unpackFixed(dst []int16, words []byte, bits int, t *fixedLUT) {
	if s == generic {
		unpackFixedGeneric(dst, words, bits, t)
		return
	}
	halves := len(dst) / 512
	_ = words[64*bits*halves-1]
	d, w, table := &dst[0], &words[0], &t.bytes[0]
	switch bits {
	case 2:
		unpackFixed2AVX2(d, w, table, halves)
	case 3:
		unpackFixed3AVX2(d, w, table, halves)
	case 4:
		unpackFixed4AVX2(d, w, table, halves)
	case 5:
		unpackFixed5AVX2(d, w, table, halves)
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
	switch {
	case s.dotsWords():
		gemmFixedAVX512(c.m, &y[0], 4*ldy, &c.x[0], &c.xscales[0], &c.values[0], &c.scales[0], halves, add)
	case hasAVXVNNI:
		gemmFixedAVXVNNI(c.m, &y[0], 4*ldy, &c.x[0], &c.xscales[0], &c.values[0], &c.scales[0], halves, add)
	default:
		gemmFixedAVX2(c.m, &y[0], 4*ldy, &c.x[0], &c.xscales[0], &c.values[0], &c.scales[0], halves, add)
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
	quantizeAVX2(&dst[0], 2*step, &scales[0], 4*stride, &x[0], blocks)
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
		rowF16AVX2(np, &y[0], &x[0], &b[0], stride, k)
	} else {
		rowBF16AVX2(np, &y[0], &x[0], &b[0], stride, k)
	}
}

// planes computes the product c; see planesGeneric.
func (s isa) planes(y *[16]float32, c *planesCall) {
	if s == generic {
		planesGeneric(y, c)
		return
	}
	_ = c.words[64*c.bits*c.halves-1]
	size := 32
	if c.stype == scalesF32 {
		size = 64
	}
	_ = c.factors[size*(c.bits+c.offset)*ceilDiv(c.halves, c.group)-1]
	_, _, _ = c.tables[128*c.width*c.halves-1], c.units[ceilDiv(c.halves, c.block)-1], c.sums[c.halves-1]
	o, w, f, t, u, x := &y[0], &c.words[0], &c.factors[0], &c.tables[0], &c.units[0], &c.sums[0]
	if c.width == 1 {
		planes1AVX2(o, w, f, c.stype, c.bits, c.offset, t, u, x, c.halves, c.group, c.block)
	} else {
		planes3AVX2(o, w, f, c.stype, c.bits, c.offset, t, u, x, c.halves, c.group, c.block)
	}
}

// tables makes the tables of a row of x; see tablesGeneric.
func (s isa) tables(tables []byte, units, sums, x []float32) {
	halves := len(x) / 32
	if s == generic || halves == 0 {
		tablesGeneric(tables, units, sums, x)
		return
	}
	_, _, _ = tables[128*entryBytes*halves-1], units[ceilDiv(halves, tableBlock)-1], sums[halves-1]
	tablesAVX2(&tables[0], &units[0], &sums[0], &x[0], halves)
}

// halfSums makes the half tables of half-blocks of x; see halfSumsGeneric.
func (s isa) halfSums(entries []float32, most []uint32, sums, x []float32) {
	halves := len(x) / 32
	if s == generic || halves == 0 {
		halfSumsGeneric(entries, most, sums, x)
		return
	}
	_, _, _ = entries[64*halves-1], most[8*halves-1], sums[halves-1]
	halfSumsAVX2(&entries[0], &most[0], &sums[0], &x[0], halves)
}

// shareMost sets numbers to the largest of so many; see shareMostGeneric.
func (s isa) shareMost(most []uint32, shared int) {
	if s == generic || shared%8 != 0 {
		shareMostGeneric(most, shared)
		return
	}
	shareMostAVX2(&most[0], len(most)/8, shared/8)
}

// tableScales writes the scales of tables, of which there is a positive multiple of 8; see tableScalesGeneric.
func (s isa) tableScales(scales []float32, most []uint32) {
	if s == generic {
		tableScalesGeneric(scales, most)
		return
	}
	_ = scales[len(most)-1]
	tableScalesAVX2(&scales[0], &most[0], len(most))
}

// tableCodes writes the tables of half-blocks with a scale for each of them; see tableCodesGeneric.
func (s isa) tableCodes(tables []byte, entries, scales []float32) {
	if s == generic {
		tableCodesGeneric(tables, entries, scales)
		return
	}
	_, _ = tables[16*len(scales)-1], entries[8*len(scales)-1]
	tableCodesAVX2(&tables[0], &entries[0], &scales[0], len(scales)/8)
}

// roundSteps rounds entries to multiples of the scales of their tables; see roundStepsGeneric.
func (s isa) roundSteps(entries, scales []float32) {
	if s == generic {
		roundStepsGeneric(entries, scales)
		return
	}
	_ = entries[8*len(scales)-1]
	roundStepsAVX2(&entries[0], &scales[0], len(scales))
}

// roundF16 rounds numbers, of which there is a positive multiple of 8, to float16 times a unit; see roundF16Generic.
func (s isa) roundF16(v []float32, unit float32) {
	if s == generic {
		roundF16Generic(v, unit)
		return
	}
	roundF16AVX2(&v[0], len(v), unit, 1/unit)
}

// tableEntries writes the tables of half-blocks; see tableEntriesGeneric.
func (s isa) tableEntries(tables []byte, units, entries []float32) {
	halves := len(entries) / 64
	if s == generic {
		tableEntriesGeneric(tables, units, entries)
		return
	}
	_, _ = tables[128*entryBytes*halves-1], units[ceilDiv(halves, tableBlock)-1]
	tableEntriesAVX2(&tables[0], &units[0], &entries[0], halves)
}

// planesDecode writes the weights of half-blocks of one group; see planesDecodeGeneric.
func (s isa) planesDecode(dst []float32, words []byte, factors *[planeFactors][16]float32, bits int) {
	halves := len(dst) / 512
	if s == generic || halves == 0 {
		planesDecodeGeneric(dst, words, factors, bits)
		return
	}
	_ = words[64*bits*halves-1]
	planesDecodeAVX2(&dst[0], &words[0], &factors[0][0], bits, halves)
}

// rings computes the product c; see ringsGeneric.
func (s isa) rings(y []float32, c *ringsCall) {
	if s == generic {
		ringsGeneric(y, c)
		return
	}
	t := c.table
	size := 64 * 2 * t.rate
	_ = y[128*c.m-1]
	_ = c.x[(c.m-1)*c.ldx+16*c.blocks-1]
	_ = c.words[c.blocks*size-1]
	if s == avx512 && hasVBMI() {
		ringsAVX512(c.m, &y[0], &c.x[0], c.ldx, &c.words[0], c.blocks, size, &t.planes[0][0], &t.steps[0], &t.hash, &c.scratch[0])
		return
	}
	ringsAVX2(c.m, &y[0], &c.x[0], c.ldx, &c.words[0], c.blocks, size, (*byte)(unsafe.Pointer(&t.pairs[0])), &t.steps[0], &t.hash, &c.scratch[0])
}

// unpackRings writes the values of blocks of a panel; see unpackRingsGeneric.
func (s isa) unpackRings(dst []float32, stride int, words []byte, blocks int, t *ringTable, scratch *[ringsScratchBytes]byte) {
	if s == generic {
		unpackRingsGeneric(dst, stride, words, blocks, t)
		return
	}
	size := 64 * 2 * t.rate
	_, _ = dst[7*stride+256*blocks-1], words[blocks*size-1]
	if s == avx512 && hasVBMI() {
		unpackRingsAVX512(&dst[0], stride, &words[0], blocks, size, &t.planes[0][0], &t.steps[0], &t.hash, &scratch[0])
		return
	}
	unpackRingsAVX2(&dst[0], stride, &words[0], blocks, size, (*byte)(unsafe.Pointer(&t.pairs[0])), &t.steps[0], &t.hash, &scratch[0])
}

// ringsFixed computes the product c; see ringsFixedGeneric.
func (s isa) ringsFixed(y []float32, c *ringsFixedCall) {
	if !c.native {
		ringsFixedGeneric(y, c)
		return
	}
	t := c.table
	size := 64 * 2 * t.rate
	_ = y[128*c.m-1]
	_ = c.x[(c.m-1)*c.ldx+c.blocks-1]
	_ = c.words[c.blocks*size-1]
	ringsFixedAVX512(c.m, &y[0], &c.x[0], c.ldx, &c.words[0], c.blocks, size, &t.planes[0][0], &t.steps[0], &t.hash, &c.scratch[0])
}

// hasAVXVNNI is whether there are dot products of words at 256 bits outside AVX-512. Tests take it away.
var hasAVXVNNI = cpu.X86.HasAVXVNNI

// dotsWords reports whether there are dot products of words at 512 bits.
func (s isa) dotsWords() bool { return s == avx512 && cpu.X86.HasAVX512VNNI }

// fixes reports whether products in fixed point are faster than those in float32.
func (s isa) fixes() bool { return s == avx2 || s.dotsWords() }

// fixesRings reports whether there is a kernel for products by rings in fixed point. That takes long to find out.
func (s isa) fixesRings() bool {
	return s == avx512 && hasVBMI() && cpu.X86.HasAVX512VNNI && cpuHasFP16()
}

// hasVBMI reports whether AVX-512 has what rings take of it: permutations of bytes, and shifts of two words as one.
func hasVBMI() bool { return cpu.X86.HasAVX512VBMI && cpu.X86.HasAVX512VBMI2 }

// rotate mixes a row of x; see rotateGeneric.
func (s isa) rotate(dst, x, factors []float32, by float32) {
	blocks := len(dst) / trellis.Block
	if s == generic || blocks == 0 {
		rotateGeneric(dst, x, factors, by)
		return
	}
	whole := trellis.Block * blocks
	_, _ = x[len(dst)-1], factors[len(dst)-1]
	rotateRingsAVX2(&dst[0], &x[0], &factors[0], blocks, by)
	if whole < len(dst) {
		rotateGeneric(dst[whole:], x[whole:], factors[whole:], by)
	}
}

// roundRings rounds blocks of x; see roundRingsGeneric.
func (s isa) roundRings(dst []ringX, x []float32) {
	if s == generic || len(dst) == 0 {
		roundRingsGeneric(dst, x)
		return
	}
	_ = x[16*len(dst)-1]
	roundRingsAVX2(&dst[0], &x[0], len(dst))
}
