package hf

import (
	"fmt"
	"math"
	"math/bits"
)

// DType is the type of a tensor's elements in the spelling of safetensors.
type DType string

// The types that this package decodes or that the container stores. Every
// other type that safetensors names is listed and copied as bytes.
const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	U8   DType = "U8"
)

// Bits returns the size of an element, 0 for a type that safetensors does not
// know.
func (d DType) Bits() int {
	switch d {
	case "F64", "I64", "U64", "C64":
		return 64
	case "F32", "I32", "U32":
		return 32
	case "F16", "BF16", "I16", "U16":
		return 16
	case "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ":
		return 8
	case "F6_E2M3", "F6_E3M2":
		return 6
	case "F4":
		return 4
	}
	return 0
}

// align returns what the offset of a tensor's data is a multiple of where we write it.
func (d DType) align() int64 { return int64(max(d.Bits()/8, 1)) }

// sizeOf returns the number of elements of a tensor and the bytes they take.
func sizeOf(d DType, shape []int) (elements, size int64, err error) {
	width := d.Bits()
	if width == 0 {
		return 0, 0, fmt.Errorf("unknown dtype %q", string(d))
	}
	// The product of the dimensions other than zero must fit as well: a reader
	// that multiplies from the left would overflow before it meets the zero.
	product, empty := uint64(1), false
	for _, n := range shape {
		if n < 0 {
			return 0, 0, fmt.Errorf("negative dimension in shape %v", shape)
		}
		if n == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(product, uint64(n))
		if hi != 0 || lo > math.MaxInt64/64 {
			return 0, 0, fmt.Errorf("shape %v overflows", shape)
		}
		product = lo
	}
	if empty {
		product = 0
	}
	if product*uint64(width)%8 != 0 {
		return 0, 0, fmt.Errorf("%d elements of %s do not fill whole bytes", product, d)
	}
	return int64(product), int64(product * uint64(width) / 8), nil
}
