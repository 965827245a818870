// Package num converts numbers of 4 to 64 bits, as weights and scales are stored, to float32 and back. It also packs
// codes of a few bits.
//
// Decoding is exact, except for float64, which is rounded. Encoding rounds to
// nearest, ties to even. The slice functions read and write little-endian
// bytes of any alignment: the length of the float32 slice says how many
// numbers are converted, and the byte slice must hold at least as many; a
// shorter one is a programming error and panics.
//
// # Formats
//
//	name    sign exponent mantissa  exponent bias  largest   smallest positive
//	F16        1        5       10             15  65504     2^-24
//	BF16       1        8        7            127  ~3.39e38  2^-133
//	E4M4       0        4        4             11  31        2^-14
//	S1E4M3     1        4        3             11  30        2^-13
//	F8E4M3     1        4        3              7  448       2^-9
//	F8E5M2     1        5        2             15  57344     2^-16
//	F8E8M0     0        8        0            127  2^127     2^-127
//	F4E2M1     1        2        1              1  6         1/2
//
// F16, BF16 and F8E5M2 have infinities and NaNs. E4M4 and S1E4M3 are bytes for
// group scales without either: every code is a finite number, the exponent sits
// in the bits above the mantissa, and exponent 0 is the subnormal range. E4M4 is
// the scale format of bitsandbytes' k-bit kernels.
//
// The last four are those of the Open Compute Project. Checkpoints are published in them. Group scales may have F8E8M0.
// F8E4M3 has no infinities and a NaN of either sign, F8E8M0 is a power of two or NaN, without a zero, and F4E2M1 has
// neither infinities nor NaN.
package num

import (
	"encoding/binary"
	"math"
)

// DecodeF16 converts len(dst) little-endian F16 numbers.
func DecodeF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for len(dst) >= 4 {
		u := binary.LittleEndian.Uint64(src)
		d := dst[:4:4]
		d[0] = F16ToF32(uint16(u))
		d[1] = F16ToF32(uint16(u >> 16))
		d[2] = F16ToF32(uint16(u >> 32))
		d[3] = F16ToF32(uint16(u >> 48))
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// EncodeF16 rounds src to little-endian F16; see [F32ToF16].
func EncodeF16(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(v))
	}
}

// DecodeBF16 converts len(dst) little-endian BF16 numbers.
func DecodeBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for len(dst) >= 8 {
		u, v := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		d := dst[:8:8]
		d[0] = math.Float32frombits(uint32(u) << 16)
		d[1] = math.Float32frombits(uint32(u) & 0xffff0000)
		d[2] = math.Float32frombits(uint32(u>>32) << 16)
		d[3] = math.Float32frombits(uint32(u>>32) & 0xffff0000)
		d[4] = math.Float32frombits(uint32(v) << 16)
		d[5] = math.Float32frombits(uint32(v) & 0xffff0000)
		d[6] = math.Float32frombits(uint32(v>>32) << 16)
		d[7] = math.Float32frombits(uint32(v>>32) & 0xffff0000)
		dst, src = dst[8:], src[16:]
	}
	for i := range dst {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// EncodeBF16 rounds src to little-endian BF16; see [F32ToBF16].
func EncodeBF16(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(v))
	}
}

// DecodeF32 converts len(dst) little-endian float32 numbers.
func DecodeF32(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for len(dst) >= 4 {
		u, v := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		d := dst[:4:4]
		d[0] = math.Float32frombits(uint32(u))
		d[1] = math.Float32frombits(uint32(u >> 32))
		d[2] = math.Float32frombits(uint32(v))
		d[3] = math.Float32frombits(uint32(v >> 32))
		dst, src = dst[4:], src[16:]
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// EncodeF32 writes src as little-endian float32, bit for bit.
func EncodeF32(dst []byte, src []float32) {
	dst = dst[:4*len(src)]
	for i, v := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

// DecodeF64 rounds len(dst) little-endian float64 numbers to float32. What
// float32 cannot hold becomes an infinity.
func DecodeF64(dst []float32, src []byte) {
	src = src[:8*len(dst)]
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

// EncodeF64 writes src as little-endian float64, exactly.
func EncodeF64(dst []byte, src []float32) {
	dst = dst[:8*len(src)]
	for i, v := range src {
		binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(float64(v)))
	}
}

// DecodeE4M4 converts len(dst) E4M4 bytes.
func DecodeE4M4(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = E4M4ToF32(b)
	}
}

// EncodeE4M4 rounds src to E4M4 bytes; see [F32ToE4M4].
func EncodeE4M4(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = F32ToE4M4(v)
	}
}

// DecodeS1E4M3 converts len(dst) S1E4M3 bytes.
func DecodeS1E4M3(dst []float32, src []byte) {
	src = src[:len(dst)]
	for i, b := range src {
		dst[i] = S1E4M3ToF32(b)
	}
}

// EncodeS1E4M3 rounds src to S1E4M3 bytes; see [F32ToS1E4M3].
func EncodeS1E4M3(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = F32ToS1E4M3(v)
	}
}
