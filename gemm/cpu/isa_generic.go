//go:build !(amd64 || arm64) || noasm

package cpu

import "github.com/lutq/lutq/formats/weight"

// available reports whether the machine and this build can run s.
func (s isa) available() bool { return s == generic }

func (s isa) gemm(m int, y []float32, ldy int, x []float32, ldx int, b0, _ []float32, k int, alpha float32, add bool) {
	gemmGeneric(m, y, ldy, x, ldx, b0, k, alpha, add)
}

func (s isa) pack(dst []float32, src []byte, stride, n, k int, t dtype) {
	packGeneric(dst, src, stride, n, k, t)
}

func (s isa) widen(dst []float32, src []byte, t dtype) { widenGeneric(dst, src, t) }

func (s isa) packRows(dst, src []float32, stride, n, k int) {
	packRowsGeneric(dst, src, stride, n, k)
}

func (s isa) expSum(dst, src []float32, shift float32, lanes *[16]float32) {
	expSumGeneric(dst, src, shift, lanes)
}

func (s isa) max(src []float32, lanes *[16]float32)       { maxGeneric(src, lanes) }
func (s isa) siluMul(dst, gate, up []float32)             { siluMulGeneric(dst, gate, up) }
func (s isa) dot(x, y []float32, lanes *[16]float32)      { dotGeneric(x, y, lanes) }
func (s isa) axpy(y, x []float32, alpha float32)          { axpyGeneric(y, x, alpha) }
func (s isa) scale(dst, x []float32, alpha float32)       { scaleGeneric(dst, x, alpha) }
func (s isa) scaleMul(dst, x, w []float32, alpha float32) { scaleMulGeneric(dst, x, w, alpha) }
func (s isa) add(dst, x, y []float32)                     { addGeneric(dst, x, y) }

func (s isa) read(p []byte, lanes *[8]uint64) { readGeneric(p, lanes) }

func (s isa) decode(dst []float32, words []byte, bits int, table *[32]float32, scales *[16]float32) {
	decodeGeneric(dst, words, bits, table, scales)
}

func (s isa) decodeBytes(dst []float32, words []byte, bits int, table *[32]float32, scales *[16]float32) {
	decodeBytesGeneric(dst, words, bits, table, scales)
}

func (s isa) scales(dst *[16]float32, src []byte, t weight.ScaleType) { t.Decode(dst[:], src) }

func (s isa) fused(y []float32, c *fusedCall) { fusedGeneric(y, c) }

func (s isa) fixes() bool { return false }

func (s isa) fixed(y []float32, c *fixedCall) { fixedGeneric(y, c) }

func (s isa) order([]int16) {}

func (s isa) unpackFixed(dst []int16, words []byte, bits int, t *fixedLUT) {
	unpackFixedGeneric(dst, words, bits, t)
}

func (s isa) gemmFixed(y []float32, ldy int, c *fixedTileCall) { gemmFixedGeneric(y, ldy, c) }

func (s isa) quantize(dst []int16, step int, scales []float32, stride int, x []float32) {
	quantizeGeneric(dst, step, scales, stride, x)
}

func (s isa) row(y, x []float32, b []byte, stride, np int, t dtype) {
	rowGeneric(y, x, b, stride, np, t)
}

func (s isa) rings(y []float32, c *ringsCall) { ringsGeneric(y, c) }

func (s isa) rotate(dst, x, factors []float32, by float32) { rotateGeneric(dst, x, factors, by) }

func (s isa) ringsFixed(y []float32, c *ringsFixedCall) { ringsFixedGeneric(y, c) }

func (s isa) fixesRings() bool { return false }

func (s isa) unpackRings(dst []float32, stride int, words []byte, blocks int, t *ringTable, _ *[ringsScratchBytes]byte) {
	unpackRingsGeneric(dst, stride, words, blocks, t)
}

func (s isa) roundRings(dst []ringX, x []float32) { roundRingsGeneric(dst, x) }
