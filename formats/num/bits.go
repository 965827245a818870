package num

import "encoding/binary"

// Eight codes of b bits fill b whole bytes, so both directions move eight at a
// time through one word: codes lie in the bytes of a uint64, and three steps
// close the gaps between neighbours, then pairs, then quadruples.

// gap is one such step: of every 2·field bits, the upper half moves by shift.
type gap struct {
	low, high uint64 // the bits that stay and the bits that move, before the move
	shift     uint
}

// gaps returns the steps that close the gaps, in order, for codes of b bits.
func gaps(b uint) [3]gap {
	var g [3]gap
	for i := range g {
		width := b << i       // bits of a field that the step joins to its neighbour
		field := uint(8) << i // bits that it lies in
		low := uint64(1)<<width - 1
		var every uint64
		for at := uint(0); at < 64; at += 2 * field {
			every |= 1 << at
		}
		g[i] = gap{every * low, every * low << field, field - width}
	}
	return g
}

// BitsBytes returns the bytes that n codes of some bits each take in a stream.
func BitsBytes(n, bits int) int { return (n*bits + 7) / 8 }

// PackBits writes codes as a little-endian bit stream of 1 to 8 bits a code to
// dst, which takes [BitsBytes] bytes: code i lies in bits [i·bits, (i+1)·bits), the
// lowest bit of a byte first. Codes must be below 2^bits.
func PackBits(dst []byte, codes []uint8, bits int) {
	g := gaps(uint(bits))
	dst = dst[:BitsBytes(len(codes), bits)]
	var last [8]byte
	for len(codes) >= 8 {
		v := binary.LittleEndian.Uint64(codes)
		v = v&g[0].low | v&g[0].high>>g[0].shift
		v = v&g[1].low | v&g[1].high>>g[1].shift
		v = v&g[2].low | v&g[2].high>>g[2].shift
		if len(dst) >= 8 {
			binary.LittleEndian.PutUint64(dst, v) // the bytes beyond b are zero, and written next
		} else {
			binary.LittleEndian.PutUint64(last[:], v)
			copy(dst, last[:bits])
		}
		dst, codes = dst[bits:], codes[8:]
	}
	var v uint64
	for i, c := range codes {
		v |= uint64(c) << (i * bits)
	}
	binary.LittleEndian.PutUint64(last[:], v)
	copy(dst, last[:])
}

// UnpackBits is the inverse of [PackBits] for len(dst) codes.
func UnpackBits(dst []uint8, src []byte, bits int) {
	g := gaps(uint(bits))
	src = src[:BitsBytes(len(dst), bits)]
	for len(dst) >= 8 {
		v := load(src) & (1<<(8*bits) - 1)
		v = v&g[2].low | v<<g[2].shift&g[2].high
		v = v&g[1].low | v<<g[1].shift&g[1].high
		v = v&g[0].low | v<<g[0].shift&g[0].high
		binary.LittleEndian.PutUint64(dst, v)
		dst, src = dst[8:], src[bits:]
	}
	v := load(src)
	for i := range dst {
		dst[i] = uint8(v>>(i*bits)) & (1<<bits - 1)
	}
}

// load reads up to eight bytes as a little-endian word.
func load(src []byte) uint64 {
	if len(src) >= 8 {
		return binary.LittleEndian.Uint64(src)
	}
	var b [8]byte
	copy(b[:], src)
	return binary.LittleEndian.Uint64(b[:])
}
