package trellis

import (
	"math"

	"github.com/lutq/lutq/formats/num"
)

// What EXL3's windows are multiplied by, in 32 bits (exllamav3's quant/codebook.cuh, and QTIP's 3INST).
const (
	mul1Factor  = 0x83DCD12D
	mcgFactor   = 0xCBAC1FED
	inst3Factor = 89226354
	inst3Term   = 64248484
)

// mul1 is a sum of four bytes, made to have a deviation of one by a product and a sum that are rounded once: in float64, which holds
// both, but for a rounding of the sum that decides no half.
func mul1(x uint32) uint16 {
	p := x * mul1Factor
	sum := p&255 + p>>8&255 + p>>16&255 + p>>24
	scale, offset := num.F16ToF32(0x1EEE), num.F16ToF32(0xC931)
	return roundF16(float64(1024+sum)*float64(scale) + float64(offset))
}

// twoHalves adds two float16 that are made of some bits of y.
func twoHalves(y uint32) uint16 {
	y = y&0x8FFF8FFF ^ 0x3B603B60
	return num.F32ToF16(num.F16ToF32(uint16(y)) + num.F16ToF32(uint16(y>>16)))
}

// roundF16 rounds once: by way of float32 a number could be rounded twice.
func roundF16(v float64) uint16 {
	f := float32(v)
	if d := v - float64(f); d != 0 && math.Float32bits(f)&1 == 0 { // to odd, which keeps what float16 hangs on
		if d > 0 == (f > 0) {
			f = math.Float32frombits(math.Float32bits(f) + 1)
		} else {
			f = math.Float32frombits(math.Float32bits(f) - 1)
		}
	}
	return num.F32ToF16(f)
}
