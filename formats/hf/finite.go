package hf

import "encoding/binary"

// FirstNotFinite returns the index of the first number in little-endian data
// of the type that is NaN or infinite, or -1: one whose exponent bits are all
// set. Types other than F64, F32, F16 and BF16 have no such number here.
func (d DType) FirstNotFinite(data []byte) int {
	var exponent, low uint64 // exponent bits, and lowest bit, of every lane
	switch d {
	case F64:
		exponent, low = 0x7ff00000_00000000, 1
	case F32:
		exponent, low = 0x7f800000_7f800000, 0x00000001_00000001
	case F16:
		exponent, low = 0x7c00_7c00_7c00_7c00, 0x0001_0001_0001_0001
	case BF16:
		exponent, low = 0x7f80_7f80_7f80_7f80, 0x0001_0001_0001_0001
	default:
		return -1
	}
	size := d.Bits() / 8
	high := low << (8*size - 1) // sign bit of every lane
	i := 0
	// A word at a time: some lane of ^x&exponent is zero where an exponent is
	// full, and subtracting 1 from a zero lane sets its sign bit.
	for ; i+8 <= len(data); i += 8 {
		v := ^binary.LittleEndian.Uint64(data[i:]) & exponent
		if (v-low)&^v&high != 0 {
			break
		}
	}
	full := exponent >> (64 - 8*size) // the exponent bits of one number
	for ; i+size <= len(data); i += size {
		var one [8]byte
		copy(one[:], data[i:i+size])
		if binary.LittleEndian.Uint64(one[:])&full == full {
			return i / size
		}
	}
	return -1
}
