package num

import "math"

// F16ToF32 returns the value of an IEEE 754 binary16 number. It keeps the
// sign of zero and the payload of a NaN.
func F16ToF32(h uint16) float32 {
	sign, mag := uint32(h&0x8000)<<16, uint32(h&0x7fff)<<13
	switch {
	case h&0x7c00 == 0x7c00: // infinity or NaN: the largest exponent there too
		mag |= 0x7f800000
	case h&0x7c00 != 0:
		mag += (127 - 15) << 23
	default: // zero and subnormals: units of 2^-24
		return math.Float32frombits(math.Float32bits(float32(h&0x3ff)*0x1p-24) | sign)
	}
	return math.Float32frombits(mag | sign)
}

// F32ToF16 rounds f to binary16, to nearest with ties to even. What rounds
// above 65504 becomes an infinity. A NaN stays a (quiet) NaN.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign, mag := uint16(b>>16)&0x8000, b&0x7fffffff
	switch {
	case mag > 0x7f800000:
		return sign | 0x7e00 | uint16(mag>>13)&0x3ff
	case mag >= 0x477ff000: // 65520, half way from 65504 to the next step
		return sign | 0x7c00
	case mag < 0x38800000: // below 2^-14
		// A float32 in [1/2, 1) steps by 2^-24, as binary16 subnormals do, so
		// the addition rounds.
		r := math.Float32frombits(mag) + 0.5
		return sign | uint16(math.Float32bits(r)-0x3f000000)
	}
	return sign | uint16((mag+0xfff+mag>>13&1)>>13-(127-15)<<10)
}

// BF16ToF32 returns the value of a bfloat16 number: the upper half of a
// float32.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds f to bfloat16, to nearest with ties to even. What rounds
// above the largest number becomes an infinity. A NaN stays a (quiet) NaN.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// E4M4ToF32 returns the value of an unsigned byte with exponent e in its high
// and mantissa m in its low four bits:
//
//	e > 0:  2^(e-11) · (1 + m/16)
//	e = 0:  2^-10 · m/16
func E4M4ToF32(b uint8) float32 {
	if b < 1<<4 {
		return float32(b) * 0x1p-14
	}
	return math.Float32frombits(uint32(b)<<19 + (127-11)<<23)
}

// F32ToE4M4 rounds f to the byte that [E4M4ToF32] reads, to nearest with ties
// to even. It saturates at 31. Negative numbers and NaN give 0.
func F32ToE4M4(f float32) uint8 {
	switch {
	case !(f > 0):
		return 0
	case f >= 31:
		return 0xff
	case f < 0x1p-10:
		// A float32 in [512, 1024) steps by 2^-14, as the subnormals here do.
		return uint8(math.Float32bits(f+512) - 0x44000000)
	}
	b := math.Float32bits(f)
	// A mantissa that rounds up to 16 carries into the exponent. Below 31
	// nothing carries out of it: the largest code is 31 itself.
	return uint8((b+0x3ffff+b>>19&1)>>19 - (127-11)<<4)
}

// S1E4M3ToF32 returns the value of a byte with the sign in bit 7, exponent e
// in bits 3 to 6 and mantissa m in bits 0 to 2:
//
//	e > 0:  ±2^(e-11) · (1 + m/8)
//	e = 0:  ±2^-10 · m/8
func S1E4M3ToF32(b uint8) float32 {
	sign, mag := uint32(b&0x80)<<24, uint32(b&0x7f)
	if mag < 1<<3 {
		return math.Float32frombits(math.Float32bits(float32(mag)*0x1p-13) | sign)
	}
	return math.Float32frombits(mag<<20 + (127-11)<<23 | sign)
}

// F32ToS1E4M3 rounds f to the byte that [S1E4M3ToF32] reads, to nearest with
// ties to even. It saturates at ±30. NaN and what rounds to zero, of either
// sign, give 0.
func F32ToS1E4M3(f float32) uint8 {
	b := math.Float32bits(f)
	sign, mag := uint8(b>>24)&0x80, b&0x7fffffff
	abs := math.Float32frombits(mag)
	var code uint8
	switch {
	case abs != abs:
		return 0
	case abs >= 30:
		return sign | 0x7f
	case abs < 0x1p-10:
		// A float32 in [1024, 2048) steps by 2^-13, as the subnormals here do.
		code = uint8(math.Float32bits(abs+1024) - 0x44800000)
	default:
		code = uint8((mag+0x7ffff+mag>>20&1)>>20 - (127-11)<<3)
	}
	if code == 0 {
		return 0
	}
	return sign | code
}
