package trellis

import (
	"math"
	"math/bits"

	"github.com/lutq/lutq/formats/num"
)

// Entries is the number of pairs of a table.
const Entries = 1 << 8

// What a window is multiplied by, in 32 bits, and the bits of the product that turn over bits of a pair: signs, and
// two of the second mantissa.
const (
	hashFactor = 0xCBAC1FED
	flipMask   = 0x81808000
)

// Hash returns the pair of the table that a window stands for, and the bits in which its two float16 are turned over.
func Hash(x uint16) (index, flip uint32) {
	y := uint32(x) * hashFactor
	return y >> 7 & (Entries - 1), y & flipMask
}

// builtin returns the table of a rate.
func builtin(rate int) []uint32 {
	_ = rate
	table := make([]uint32, Entries)
	for i := range table {
		at := func(i int) uint32 {
			return uint32(num.F32ToF16(float32(math.Sqrt2 * math.Erfinv((float64(i)+.5)/Entries))))
		}
		table[i] = at(i) | at(int(bits.Reverse8(uint8(i))))<<16
	}
	return table
}
