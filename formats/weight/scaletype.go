package weight

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
)

// ScaleType is the number format that group scales are stored in.
type ScaleType uint8

// The scale types. E4M4 is unsigned and S1E4M3 signed, a byte each, and E8M0 is
// the exponent of a power of two from 2^-127 to 2^127, where a group of zeros has
// the least, for there is no zero; package num documents the three.
const (
	F16 ScaleType = iota + 1
	BF16
	F32
	E4M4
	S1E4M3
	E8M0
)

// scaleTypeNames lists the spellings that recipes, configs and flags use.
func scaleTypeNames() [7]string {
	return [...]string{"", "f16", "bf16", "f32", "e4m4", "s1e4m3", "e8m0"}
}

// ScaleTypes lists the spellings of scale types.
func ScaleTypes() []string {
	names := scaleTypeNames()
	return names[1:]
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
	return 0, fmt.Errorf("unknown scale type %q: want f16, bf16, f32, e4m4, s1e4m3 or e8m0", s)
}

// MarshalText implements [encoding.TextMarshaler].
func (t ScaleType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. The empty text is no type.
func (t *ScaleType) UnmarshalText(text []byte) (err error) {
	*t = 0
	if len(text) > 0 {
		*t, err = ParseScaleType(string(text))
	}
	return err
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
	case E4M4, S1E4M3, E8M0:
		return 1
	}
	return 0
}

// DType returns the safetensors type of the tensors that hold scales.
func (t ScaleType) DType() string {
	switch t {
	case F16:
		return "F16"
	case BF16:
		return "BF16"
	case F32:
		return "F32"
	}
	return "U8"
}

// Signed reports whether the type can hold a negative scale.
func (t ScaleType) Signed() bool { return t != E4M4 && t != E8M0 }

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
	case E8M0:
		num.DecodeF8E8M0(dst, src)
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
	case E8M0:
		num.EncodeF8E8M0(dst, src)
	}
}

// Underflow returns the type that holds a scale which is too small for t: as stored it is 0, or off by
// far more than roundings are. It is t where no type does, and 0 where the scale is not too small.
func (t ScaleType) Underflow(scale, stored float32) ScaleType {
	slack := 1. / 16 // what types of a byte round by at most
	if t == E8M0 {
		slack = 1. / 2 // of powers of two
	}
	if s := float64(scale); s == 0 || math.Abs(s) > 1 || math.Abs(float64(stored)-s) <= slack*math.Abs(s) {
		return 0
	}
	return t.Wider(scale)
}

// Wider returns the narrowest type that holds a scale which is beyond t, or t if there is none.
func (t ScaleType) Wider(scale float32) ScaleType {
	const least, most = 0x1p-126, 0x1.fep127 // of normal numbers
	s := math.Abs(float64(scale))
	switch {
	case t == F32 || s == 0 || math.IsInf(s, 0):
		return t
	case t != BF16 && s >= least && s <= most:
		return BF16
	}
	return F32
}
