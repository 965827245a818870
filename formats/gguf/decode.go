package gguf

import (
	"encoding/binary"
	"math"

	"github.com/lutq/lutq/formats/num"
)

// Decode returns the values of whole blocks of a type: dst has as many elements
// as src has blocks' worth. The arithmetic is float32 in the order of gguf-py's
// dequantize, so that the values are its bit for bit. A type that is not decoded
// gives false.
//
// The products that a sum follows are converted to float32 by name: a compiler may
// otherwise fuse the two, which rounds once less.
func (t Type) Decode(dst []float32, src []byte) bool {
	switch t {
	case F32:
		num.DecodeF32(dst, src)
		return true
	case F16:
		num.DecodeF16(dst, src)
		return true
	case BF16:
		num.DecodeBF16(dst, src)
		return true
	}
	block := t.blockDecoder()
	if block == nil {
		return false
	}
	n, size := t.Block()
	for ; len(dst) >= n; dst, src = dst[n:], src[size:] {
		block(dst[:n], src[:size])
	}
	return true
}

// Decodes reports whether [Type.Decode] knows the type.
func (t Type) Decodes() bool { return t == F32 || t == F16 || t == BF16 || t.blockDecoder() != nil }

// blockDecoder returns what decodes one block, nil for types that are not decoded.
func (t Type) blockDecoder() func(dst []float32, b []byte) {
	switch t {
	case Q4_0:
		return decodeQ4_0
	case Q4_1:
		return decodeQ4_1
	case Q5_0:
		return decodeQ5_0
	case Q5_1:
		return decodeQ5_1
	case Q8_0:
		return decodeQ8_0
	case IQ4_NL:
		return decodeIQ4NL
	case IQ4_XS:
		return decodeIQ4XS
	case MXFP4:
		return decodeMXFP4
	case Q2_K:
		return decodeQ2K
	case Q3_K:
		return decodeQ3K
	case Q4_K:
		return decodeQ4K
	case Q5_K:
		return decodeQ5K
	case Q6_K:
		return decodeQ6K
	}
	return nil
}

// half reads the F16 at the start of b.
func half(b []byte) float32 { return num.F16ToF32(binary.LittleEndian.Uint16(b)) }

// The blocks of 32: value j is in the low half of byte j, value j+16 in the high half.

func decodeQ4_0(dst []float32, b []byte) {
	d, qs := half(b), b[2:18]
	for j, q := range qs {
		dst[j] = d * float32(int(q&15)-8)
		dst[j+16] = d * float32(int(q>>4)-8)
	}
}

func decodeQ4_1(dst []float32, b []byte) {
	d, m, qs := half(b), half(b[2:]), b[4:20]
	for j, q := range qs {
		dst[j] = float32(d*float32(q&15)) + m
		dst[j+16] = float32(d*float32(q>>4)) + m
	}
}

func decodeQ5_0(dst []float32, b []byte) {
	d, h, qs := half(b), binary.LittleEndian.Uint32(b[2:]), b[6:22]
	for j, q := range qs {
		dst[j] = d * float32(int(uint32(q&15)|h>>j&1<<4)-16)
		dst[j+16] = d * float32(int(uint32(q>>4)|h>>(j+16)&1<<4)-16)
	}
}

func decodeQ5_1(dst []float32, b []byte) {
	d, m, h, qs := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24]
	for j, q := range qs {
		dst[j] = float32(d*float32(uint32(q&15)|h>>j&1<<4)) + m
		dst[j+16] = float32(d*float32(uint32(q>>4)|h>>(j+16)&1<<4)) + m
	}
}

func decodeQ8_0(dst []float32, b []byte) {
	d := half(b)
	for j, q := range b[2:34] {
		dst[j] = d * float32(int8(q))
	}
}

func decodeIQ4NL(dst []float32, b []byte) {
	decodeNibbles(dst, b[2:18], half(b), iq4Values())
}

func decodeMXFP4(dst []float32, b []byte) {
	decodeNibbles(dst, b[1:17], mxScale(b[0]), e2m1Values())
}

// decodeNibbles decodes 32 codes of half a byte.
func decodeNibbles(dst []float32, qs []byte, d float32, values *[16]float32) {
	for j, q := range qs {
		dst[j] = d * values[q&15]
		dst[j+16] = d * values[q>>4]
	}
}

// iq4Values returns the levels of IQ4_NL and IQ4_XS.
func iq4Values() *[16]float32 {
	return &[16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
}

// e2m1Values returns twice the values of E2M1, which MXFP4's scale is halved for.
// The second zero is no negative one.
func e2m1Values() *[16]float32 {
	return &[16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
}

// mxScale returns 2^(e-128).
func mxScale(e byte) float32 {
	if e < 2 { // subnormal
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// decodeIQ4XS decodes 256 values: 8 blocks of 32 with a scale of 6 bits each, of which
// the lower 4 lie two a byte and the upper 2 together in 16 bits.
func decodeIQ4XS(dst []float32, b []byte) {
	d, high, low, qs := half(b), binary.LittleEndian.Uint16(b[2:]), b[4:8], b[8:136]
	values := iq4Values()
	for i := range 8 {
		s := low[i/2]>>(4*(i&1))&15 | byte(high>>(2*i)&3)<<4
		decodeNibbles(dst[32*i:], qs[16*i:16*i+16], d*float32(int(s)-32), values)
	}
}

// The K types: 256 values in blocks of 16 or 32, each with a scale of 4 to 8 bits.

func decodeQ2K(dst []float32, b []byte) {
	scales, qs, d, dmin := b[:16], b[16:80], half(b[80:]), half(b[82:])
	for i, s := range scales {
		scale, low := d*float32(s&15), dmin*float32(s>>4)
		// Of each 128 values the first 32 are the lowest two bits of 32 bytes, and so on.
		q, shift, to := qs[i/8*32+i%2*16:], i/2%4*2, dst[16*i:16*i+16]
		for j := range to {
			to[j] = float32(scale*float32(q[j]>>shift&3)) - low
		}
	}
}

func decodeQ3K(dst []float32, b []byte) {
	mask, qs, d := b[:32], b[32:96], half(b[108:])
	for i, s := range unpackQ3Scales(b[96:108]) {
		scale := d * float32(int(s)-32)
		q, m, shift, to := qs[i/8*32+i%2*16:], mask[i%2*16:], i/2%4*2, dst[16*i:16*i+16]
		for j := range to {
			// A third bit that is not set takes 4 away.
			to[j] = scale * float32(int(q[j]>>shift&3)-int(^m[j]>>(i/2)&1)<<2)
		}
	}
}

// unpackQ3Scales returns the 6-bit scales of Q3_K: the lower 4 bits of scale j and
// j+8 share byte j, the upper 2 of scales j, j+4, j+8 and j+12 share byte 8+j.
func unpackQ3Scales(b []byte) (s [16]byte) {
	for j := range s {
		s[j] = b[j%8]>>(j/8*4)&15 | b[8+j%4]>>(j/4*2)&3<<4
	}
	return s
}

func decodeQ4K(dst []float32, b []byte) {
	d, dmin, qs := half(b), half(b[2:]), b[16:144]
	scales, mins := unpackScales(b[4:16])
	for i := range 8 {
		scale, low := d*float32(scales[i]), dmin*float32(mins[i])
		q, shift, to := qs[i/2*32:], i&1*4, dst[32*i:32*i+32]
		for j := range to {
			to[j] = float32(scale*float32(q[j]>>shift&15)) - low
		}
	}
}

func decodeQ5K(dst []float32, b []byte) {
	d, dmin, high, qs := half(b), half(b[2:]), b[16:48], b[48:176]
	scales, mins := unpackScales(b[4:16])
	for i := range 8 {
		scale, low := d*float32(scales[i]), dmin*float32(mins[i])
		q, shift, to := qs[i/2*32:], i&1*4, dst[32*i:32*i+32]
		for j := range to {
			to[j] = float32(scale*float32(q[j]>>shift&15|high[j]>>i&1<<4)) - low
		}
	}
}

// unpackScales returns the 6-bit scales and minima of Q4_K and Q5_K: of the first
// four the bytes' lower 6 bits, of the last four the lower 4 bits in bytes of their
// own and the upper 2 in those bytes' rest.
func unpackScales(b []byte) (scales, mins [8]byte) {
	for j := range 4 {
		scales[j], mins[j] = b[j]&63, b[j+4]&63
		scales[j+4] = b[j+8]&15 | b[j]>>6<<4
		mins[j+4] = b[j+8]>>4 | b[j+4]>>6<<4
	}
	return scales, mins
}

func decodeQ6K(dst []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for i, s := range scales {
		scale := d * float32(int8(s))
		// Halves of 128: value l of a quarter q has its lower 4 bits in byte l + 32·(q%2),
		// and the upper 2 in byte l.
		at, quarter := i%2*16, i/2%4
		l, h := low[i/8*64+quarter%2*32+at:], high[i/8*32+at:]
		to := dst[16*i : 16*i+16]
		for j := range to {
			to[j] = scale * float32(int(l[j]>>(quarter/2*4)&15|h[j]>>(2*quarter)&3<<4)-32)
		}
	}
}
