package trellis

import "github.com/lutq/lutq/formats/num"

// What EXL3's windows are multiplied by, in 32 bits (exllamav3's quant/codebook.cuh, and QTIP's 3INST).
const (
	mul1Factor  = 0x83DCD12D
	mcgFactor   = 0xCBAC1FED
	inst3Factor = 89226354
	inst3Term   = 64248484
)

// mul1 is a sum of four bytes, made to have a deviation of one by a product and a sum that are rounded once: float32 holds both, which
// are whole multiples of 2^-18 below 16.
func mul1(x uint32) uint16 {
	p := x * mul1Factor
	sum := p&255 + p>>8&255 + p>>16&255 + p>>24
	scale, offset := num.F16ToF32(0x1EEE), num.F16ToF32(0xC931)
	return num.F32ToF16(float32(1024+sum)*scale + offset)
}

// twoHalves adds two float16 that are made of some bits of y.
func twoHalves(y uint32) uint16 {
	y = y&0x8FFF8FFF ^ 0x3B603B60
	return num.F32ToF16(num.F16ToF32(uint16(y)) + num.F16ToF32(uint16(y>>16)))
}
