package lut

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/num"
)

// Widths of a code, in bits.
const (
	MinBits = 2
	MaxBits = 5
)

// Matrix is a linear layer of N output features and K input features,
// quantized through a lookup table:
//
//	ŵ[n,k] = Codebook[code(n,k)] · scale(n, k/Group)
//
// It is the one value that the rest of the program speaks about weights with.
// Codes and scales are held exactly as the container stores them.
type Matrix struct {
	N, K int // output and input features
	Bits int // of a code, 2 to 5

	// Group is the number of consecutive input features of a row that share a
	// scale; the last group of a row is short where Group does not divide K.
	// Group == K is one scale a row.
	Group int

	// Codes holds N rows of RowBytes bytes. A row is a little-endian bit
	// stream: code k occupies bits [k·Bits, (k+1)·Bits), and what is left of
	// the last byte is zero.
	Codes []byte

	// Scales holds N rows of Groups little-endian numbers of type ScaleType.
	Scales    []byte
	ScaleType ScaleType

	// Codebook holds 2^Bits values in ascending order.
	Codebook []float32
}

// RowBytes returns the number of bytes that a row of k codes takes.
func RowBytes(k, bits int) int { return (k*bits + 7) / 8 }

// GroupsIn returns the number of groups of size group in k columns.
func GroupsIn(k, group int) int { return (k + group - 1) / group }

// RowBytes returns the number of bytes of a row of codes.
func (m *Matrix) RowBytes() int { return RowBytes(m.K, m.Bits) }

// Groups returns the number of scales of a row.
func (m *Matrix) Groups() int { return GroupsIn(m.K, m.Group) }

// Bytes returns what the matrix takes on disk: codes, scales and codebook.
func (m *Matrix) Bytes() int64 {
	return int64(len(m.Codes)) + int64(len(m.Scales)) + 4*int64(len(m.Codebook))
}

// Validate reports the first disagreement between the matrix's fields.
func (m *Matrix) Validate() error {
	switch {
	case m.N <= 0 || m.K <= 0:
		return fmt.Errorf("shape %d×%d has no elements", m.N, m.K)
	case m.Bits < MinBits || m.Bits > MaxBits:
		return fmt.Errorf("%d bits a code: want %d to %d", m.Bits, MinBits, MaxBits)
	case m.Group <= 0 || m.Group > m.K:
		return fmt.Errorf("group of %d columns in a row of %d", m.Group, m.K)
	case len(m.Codes) != m.N*m.RowBytes():
		return fmt.Errorf("codes take %d bytes: want %d", len(m.Codes), m.N*m.RowBytes())
	case m.ScaleType.Size() == 0:
		return errors.New("unknown scale type")
	case len(m.Scales) != m.N*m.Groups()*m.ScaleType.Size():
		return fmt.Errorf("scales take %d bytes: want %d", len(m.Scales), m.N*m.Groups()*m.ScaleType.Size())
	case len(m.Codebook) != 1<<m.Bits:
		return fmt.Errorf("codebook of %d values: want %d", len(m.Codebook), 1<<m.Bits)
	}
	return nil
}

// RowCodes unpacks the K codes of row n into dst.
func (m *Matrix) RowCodes(dst []uint8, n int) {
	rb := m.RowBytes()
	UnpackCodes(dst[:m.K], m.Codes[n*rb:(n+1)*rb], m.Bits)
}

// RowScales decodes the scales of row n into dst, of length Groups.
func (m *Matrix) RowScales(dst []float32, n int) {
	sb := m.Groups() * m.ScaleType.Size()
	m.ScaleType.Decode(dst[:m.Groups()], m.Scales[n*sb:(n+1)*sb])
}

// Row writes the K dequantized weights of row n to dst: one float32 product
// of table value and scale each. codes and scales are scratch of at least K
// and Groups elements.
func (m *Matrix) Row(dst []float32, n int, codes []uint8, scales []float32) {
	codes, scales = codes[:m.K], scales[:m.Groups()]
	m.RowCodes(codes, n)
	m.RowScales(scales, n)
	for k, c := range codes {
		dst[k] = m.Codebook[c] * scales[k/m.Group]
	}
}

// Dequantize returns all N·K weights, row by row.
func (m *Matrix) Dequantize() []float32 {
	w := make([]float32, m.N*m.K)
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	for n := range m.N {
		m.Row(w[n*m.K:(n+1)*m.K], n, codes, scales)
	}
	return w
}

// PackCodes writes codes as a little-endian bit stream of bits bits a code to
// dst, which takes RowBytes(len(codes), bits) bytes.
func PackCodes(dst []byte, codes []uint8, bits int) {
	var acc uint64
	fill, out := 0, 0
	for _, c := range codes {
		acc |= uint64(c) << fill
		fill += bits
		for fill >= 8 {
			dst[out] = byte(acc)
			acc >>= 8
			fill -= 8
			out++
		}
	}
	if fill > 0 {
		dst[out] = byte(acc)
	}
}

// UnpackCodes is the inverse of [PackCodes] for len(dst) codes.
func UnpackCodes(dst []uint8, src []byte, bits int) {
	var acc uint64
	fill, in := 0, 0
	mask := uint64(1)<<bits - 1
	for i := range dst {
		for fill < bits {
			acc |= uint64(src[in]) << fill
			fill += 8
			in++
		}
		dst[i] = uint8(acc & mask)
		acc >>= bits
		fill -= bits
	}
}

// ScaleType is the number format that group scales are stored in.
type ScaleType uint8

// The scale types. E4M4 is unsigned and S1E4M3 signed, a byte each; package
// num documents both.
const (
	F16 ScaleType = iota + 1
	BF16
	F32
	E4M4
	S1E4M3
)

// scaleTypeNames lists the spellings that recipes, configs and flags use.
func scaleTypeNames() [6]string {
	return [...]string{"", "f16", "bf16", "f32", "e4m4", "s1e4m3"}
}

// ParseScaleType is the inverse of [ScaleType.String]. It also takes "e4m3",
// an older spelling of the unsigned byte.
func ParseScaleType(s string) (ScaleType, error) {
	if s == "e4m3" {
		return E4M4, nil
	}
	for i, name := range scaleTypeNames() {
		if name == s && s != "" {
			return ScaleType(i), nil
		}
	}
	return 0, fmt.Errorf("unknown scale type %q: want f16, bf16, f32, e4m4 or s1e4m3", s)
}

func (t ScaleType) String() string {
	if names := scaleTypeNames(); int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("ScaleType(%d)", uint8(t))
}

// Size returns the bytes of one scale, 0 for an unknown type.
func (t ScaleType) Size() int {
	switch t {
	case F16, BF16:
		return 2
	case F32:
		return 4
	case E4M4, S1E4M3:
		return 1
	}
	return 0
}

// Signed reports whether the type can hold a negative scale.
func (t ScaleType) Signed() bool { return t != E4M4 }

// Decode converts the little-endian numbers in src to float32.
func (t ScaleType) Decode(dst []float32, src []byte) {
	switch t {
	case F16:
		num.DecodeF16(dst, src)
	case BF16:
		num.DecodeBF16(dst, src)
	case F32:
		num.DecodeF32(dst, src)
	case E4M4:
		num.DecodeE4M4(dst, src)
	case S1E4M3:
		num.DecodeS1E4M3(dst, src)
	}
}

// Encode rounds src to the type, to nearest with ties to even, and writes it
// little-endian to dst. What the byte types cannot hold saturates.
func (t ScaleType) Encode(dst []byte, src []float32) {
	switch t {
	case F16:
		num.EncodeF16(dst, src)
	case BF16:
		num.EncodeBF16(dst, src)
	case F32:
		num.EncodeF32(dst, src)
	case E4M4:
		num.EncodeE4M4(dst, src)
	case S1E4M3:
		num.EncodeS1E4M3(dst, src)
	}
}
