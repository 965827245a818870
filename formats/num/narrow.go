package num

import "math"

// F8E4M3ToF32 returns the value of a byte with the sign in bit 7, exponent e in
// bits 3 to 6 and mantissa m in bits 0 to 2:
//
//	e > 0:  ±2^(e-7) · (1 + m/8)
//	e = 0:  ±2^-6 · m/8
//
// The code of all ones, with either sign, is NaN.
func F8E4M3ToF32(b uint8) float32 {
	sign, mag := uint32(b&0x80)<<24, uint32(b&0x7f)
	switch {
	case mag == 0x7f:
		return math.Float32frombits(0x7fc00000 | sign)
	case mag < 1<<3:
		return math.Float32frombits(math.Float32bits(float32(mag)*0x1p-9) | sign)
	}
	return math.Float32frombits(mag<<20 + (127-7)<<23 | sign)
}

// F32ToF8E4M3 rounds f to the byte that [F8E4M3ToF32] reads, to nearest with ties to even. What is beyond the
// largest, 448, becomes that, and NaN stays NaN.
func F32ToF8E4M3(f float32) uint8 {
	b := math.Float32bits(f)
	sign, mag := uint8(b>>24)&0x80, b&0x7fffffff
	switch abs := math.Float32frombits(mag); {
	case abs != abs:
		return sign | 0x7f
	case abs >= 448:
		return sign | 0x7e
	case abs < 0x1p-6:
		// A float32 in [2^14, 2^15) steps by 2^-9, as the subnormals here do.
		return sign | uint8(math.Float32bits(abs+0x1p14)-math.Float32bits(0x1p14))
	}
	return sign | uint8(min((mag+0x7ffff+mag>>20&1)>>20-(127-7)<<3, 0x7e))
}

// F8E5M2ToF32 returns the value of the upper half of an F16 number.
func F8E5M2ToF32(b uint8) float32 { return F16ToF32(uint16(b) << 8) }

// F8E8M0ToF32 returns 2^(b-127), and NaN for 255.
func F8E8M0ToF32(b uint8) float32 {
	switch b {
	case 0: // a subnormal float32
		return 0x1p-127
	case 0xff:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(b) << 23)
}

// F32ToF8E8M0 rounds f to the byte that [F8E8M0ToF32] reads, to nearest with ties
// to even. It saturates at both ends: zero, negative numbers and NaN give 0, which is
// 2^-127, and no number gives 255.
func F32ToF8E8M0(f float32) uint8 {
	b := math.Float32bits(f)
	switch {
	case !(f > 0x1.8p-127): // half way to 2^-126
		return 0
	case b < 1<<23:
		return 1
	}
	return uint8(min(b+0x3fffff+b>>23&1, 254<<23) >> 23)
}

// F4E2M1ToF32 returns the value of the low four bits: the sign in bit 3,
// exponent e in bits 1 and 2 and mantissa m in bit 0:
//
//	e > 0:  ±2^(e-1) · (1 + m/2)
//	e = 0:  ±m/2
func F4E2M1ToF32(b uint8) float32 {
	sign, mag := uint32(b&8)<<28, uint32(b&7)
	if mag < 2 {
		return math.Float32frombits(math.Float32bits(float32(mag)*0.5) | sign)
	}
	return math.Float32frombits(mag<<22 + (127-1)<<23 | sign)
}

// DecodeF8E8M0 converts len(dst) F8E8M0 bytes.
func DecodeF8E8M0(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = F8E8M0ToF32(b)
	}
}

// EncodeF8E8M0 rounds src to F8E8M0 bytes; see [F32ToF8E8M0].
func EncodeF8E8M0(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = F32ToF8E8M0(v)
	}
}
