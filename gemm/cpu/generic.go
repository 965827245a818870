package cpu

import (
	"encoding/binary"
	"math"

	"github.com/lutq/lutq/formats/num"
)

// This file holds the portable twins of the assembly. They give the same bits.

// fma32 returns x·y + z rounded once to float32.
func fma32(x, y, z float32) float32 {
	// The product of two float32 is exact in float64, so only the sum rounds
	// before the conversion does.
	s := float64(x)*float64(y) + float64(z)
	if tie(s) {
		return fmaToOdd(x, y, z)
	}
	return float32(s)
}

// tie reports whether s may lie in the middle between two neighbouring
// float32: only then can rounding a sum to float64 first change what it
// rounds to. In the middle the last 28 bits are zero, and also where the
// neighbours are subnormal and further apart.
func tie(s float64) bool { return uint32(math.Float64bits(s))<<4 == 0 }

// fmaToOdd is fma32 for all cases. It rounds the float64 sum to the odd one
// of its two neighbours, unless it is exact; rounding that to float32 is
// rounding the exact sum (S. Boldo and G. Melquiond, "Emulation of FMA and
// correctly rounded sums: proved algorithms using rounding to odd", 2008).
//
//go:noinline
func fmaToOdd(x, y, z float32) float32 {
	a, b := float64(x)*float64(y), float64(z)
	s := a + b
	// The error of the sum, exactly (D. Knuth, TAOCP 2, 4.2.2 theorem B).
	t := s - a
	e := (a - (s - t)) + (b - t)
	bits := math.Float64bits(s)
	switch {
	case e == 0 || e != e || bits&1 == 1: // exact, not a number, or odd
	case (e > 0) == (s > 0):
		bits++
	default:
		bits--
	}
	return float32(math.Float64frombits(bits))
}

// genericRows is the number of rows of the portable tile.
const genericRows = 4

// gemmGeneric computes y[m,16] = [y +] alpha · x[m,k] · b, where b is a panel
// [k][16].
func gemmGeneric(m int, y []float32, ldy int, x []float32, ldx int, b []float32, k int, alpha float32, add bool) {
	for r := range m {
		xr := x[r*ldx:][:k]
		yr := y[r*ldy:][:16]
		for j := 0; j < 16; j += 4 {
			var sum [4]float32
			madd(&sum, xr, b[j:])
			for i, s := range sum {
				s = float32(alpha * s)
				if add {
					s += yr[j+i]
				}
				yr[j+i] = s
			}
		}
	}
}

// madd adds x·b to sum, for four columns of a panel [len(x)][16] that b
// begins with: one fma32 a row of the panel, in order.
func madd(sum *[4]float32, x, b []float32) {
	s0, s1, s2, s3 := sum[0], sum[1], sum[2], sum[3]
	for i, v := range x {
		w := (*[4]float32)(b[16*i:])
		f := float64(v)
		t0 := f*float64(w[0]) + float64(s0)
		t1 := f*float64(w[1]) + float64(s1)
		t2 := f*float64(w[2]) + float64(s2)
		t3 := f*float64(w[3]) + float64(s3)
		if tie(t0) || tie(t1) || tie(t2) || tie(t3) {
			s0 = fma32(v, w[0], s0)
			s1 = fma32(v, w[1], s1)
			s2 = fma32(v, w[2], s2)
			s3 = fma32(v, w[3], s3)
			continue
		}
		s0, s1, s2, s3 = float32(t0), float32(t1), float32(t2), float32(t3)
	}
	*sum = [4]float32{s0, s1, s2, s3}
}

// packGeneric writes n ≤ 16 stored rows of k numbers, stride bytes apart, to
// the panel dst [k][16], with zeros in the lanes of the rows that are missing.
func packGeneric(dst []float32, src []byte, stride, n, k int, dtype dtype) {
	dst = dst[:16*k]
	if n < 16 {
		clear(dst)
	}
	for r := range n {
		row := src[r*stride:][:k*dtype.size()]
		switch dtype {
		case f32:
			for i := range k {
				dst[16*i+r] = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
			}
		case f16:
			for i := range k {
				dst[16*i+r] = num.F16ToF32(binary.LittleEndian.Uint16(row[2*i:]))
			}
		case bf16:
			for i := range k {
				dst[16*i+r] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
			}
		}
	}
}

// packRowsGeneric is packGeneric for rows of float32 in memory, stride
// elements apart.
func packRowsGeneric(dst, src []float32, stride, n, k int) {
	dst = dst[:16*k]
	if n < 16 {
		clear(dst)
	}
	for r := range n {
		for i, v := range src[r*stride:][:k] {
			dst[16*i+r] = v
		}
	}
}

// decodeGeneric writes the weights of half-blocks of one group, words, to dst
// [32·halves][16]. table is the codebook repeated to 32 values.
func decodeGeneric(dst []float32, words []byte, bits int, table *[32]float32, scales *[16]float32) {
	for ; len(dst) >= 512; dst = dst[512:] {
		decodeHalf((*[512]float32)(dst), words, bits, table, scales)
		words = words[64*bits:]
	}
}

func decodeHalf(dst *[512]float32, words []byte, bits int, t *[32]float32, scales *[16]float32) {
	switch bits {
	case 2:
		for j := range 2 {
			o := (*[256]float32)(dst[256*j:])
			for lane, s := range scales {
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&3] * s
				o[lane+16] = t[d>>2&3] * s
				o[lane+32] = t[d>>4&3] * s
				o[lane+48] = t[d>>6&3] * s
				o[lane+64] = t[d>>8&3] * s
				o[lane+80] = t[d>>10&3] * s
				o[lane+96] = t[d>>12&3] * s
				o[lane+112] = t[d>>14&3] * s
				o[lane+128] = t[d>>16&3] * s
				o[lane+144] = t[d>>18&3] * s
				o[lane+160] = t[d>>20&3] * s
				o[lane+176] = t[d>>22&3] * s
				o[lane+192] = t[d>>24&3] * s
				o[lane+208] = t[d>>26&3] * s
				o[lane+224] = t[d>>28&3] * s
				o[lane+240] = t[d>>30] * s
			}
		}
	case 3:
		for lane, s := range scales {
			var spare uint32
			for j := range 3 {
				o := (*[160]float32)(dst[160*j:])
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&7] * s
				o[lane+16] = t[d>>3&7] * s
				o[lane+32] = t[d>>6&7] * s
				o[lane+48] = t[d>>9&7] * s
				o[lane+64] = t[d>>12&7] * s
				o[lane+80] = t[d>>15&7] * s
				o[lane+96] = t[d>>18&7] * s
				o[lane+112] = t[d>>21&7] * s
				o[lane+128] = t[d>>24&7] * s
				o[lane+144] = t[d>>27&7] * s
				spare |= d >> 30 << (2 * j)
			}
			dst[lane+480] = t[spare&7] * s
			dst[lane+496] = t[spare>>3&7] * s
		}
	case 4:
		for j := range 4 {
			o := (*[128]float32)(dst[128*j:])
			for lane, s := range scales {
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&15] * s
				o[lane+16] = t[d>>4&15] * s
				o[lane+32] = t[d>>8&15] * s
				o[lane+48] = t[d>>12&15] * s
				o[lane+64] = t[d>>16&15] * s
				o[lane+80] = t[d>>20&15] * s
				o[lane+96] = t[d>>24&15] * s
				o[lane+112] = t[d>>28] * s
			}
		}
	case 5:
		for lane, s := range scales {
			var spare uint32
			for j := range 5 {
				o := (*[96]float32)(dst[96*j:])
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&31] * s
				o[lane+16] = t[d>>5&31] * s
				o[lane+32] = t[d>>10&31] * s
				o[lane+48] = t[d>>15&31] * s
				o[lane+64] = t[d>>20&31] * s
				o[lane+80] = t[d>>25&31] * s
				spare |= d >> 30 << (2 * j)
			}
			dst[lane+480] = t[spare&31] * s
			dst[lane+496] = t[spare>>5&31] * s
		}
	}
}

// exp32 returns e^x for the vector functions: x = n·ln2 + r with n the
// nearest integer, so that |r| ≤ ln2/2; e^r by a polynomial of degree 6 with
// constant and linear term 1, minimax in relative error (3.6e-9, fitted with
// Lawson's iteration for this purpose); then a scaling by 2^n in two exact
// steps. The result is within 2e-7 of e^x, relative; below -87.33654, where
// e^x is no longer a normal number, it is 0.
func exp32(x float32) float32 {
	if x != x {
		return x
	}
	if x < expLo {
		return 0
	}
	x = min(x, expHi)
	n := float32(math.RoundToEven(float64(float32(x * expLog2e))))
	x = fma32(-expLn2Hi, n, x)
	x = fma32(-expLn2Lo, n, x)
	p := float32(expC6)
	p = fma32(p, x, expC5)
	p = fma32(p, x, expC4)
	p = fma32(p, x, expC3)
	p = fma32(p, x, expC2)
	p = fma32(p, x, 1)
	p = fma32(p, x, 1)
	e := int32(n)
	h := e >> 1
	p *= math.Float32frombits(uint32(h+127) << 23)
	return float32(p * math.Float32frombits(uint32(e-h+127)<<23))
}

// The constants of exp32. internal/asmgen has them too.
const (
	expLo    = -87.33654 // just above ln 2^-126
	expHi    = 89        // overflows
	expLog2e = 1.44269502
	expLn2Hi = 0.693147182
	expLn2Lo = -1.90465421e-09
	expC6    = 0.00138145394
	expC5    = 0.00836874545
	expC4    = 0.041668389
	expC3    = 0.166665211
	expC2    = 0.49999994
)

// The functions below take slices whose length is a multiple of 16.

func expSumGeneric(dst, src []float32, shift float32, lanes *[16]float32) {
	*lanes = [16]float32{}
	for i, v := range src {
		e := exp32(v - shift)
		if dst != nil {
			dst[i] = e
		}
		lanes[i%16] += e
	}
}

func maxGeneric(src []float32, lanes *[16]float32) {
	copy(lanes[:], src)
	for i, v := range src {
		if !(lanes[i%16] > v) {
			lanes[i%16] = v
		}
	}
}

func siluMulGeneric(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = float32(g/(1+exp32(0-g))) * up[i]
	}
}

func dotGeneric(x, y []float32, lanes *[16]float32) {
	*lanes = [16]float32{}
	for i, v := range x {
		lanes[i%16] = fma32(v, y[i], lanes[i%16])
	}
}

func axpyGeneric(y, x []float32, alpha float32) {
	for i, v := range x {
		y[i] = fma32(alpha, v, y[i])
	}
}

func scaleGeneric(dst, x []float32, alpha float32) {
	for i, v := range x {
		dst[i] = alpha * v
	}
}

func scaleMulGeneric(dst, x, w []float32, alpha float32) {
	for i, v := range x {
		dst[i] = float32(alpha*v) * w[i]
	}
}

func addGeneric(dst, x, y []float32) {
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

func readGeneric(p []byte, lanes *[8]uint64) {
	*lanes = [8]uint64{}
	for ; len(p) >= 64; p = p[64:] {
		for i := range lanes {
			lanes[i] ^= binary.LittleEndian.Uint64(p[8*i:])
		}
	}
}
