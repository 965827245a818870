package trellis

// Entries is the number of pairs of a table.
const Entries = 1 << 9

// Hash returns the pair of the table that a window stands for, and the bits in which its two float16 are turned over.
func Hash(x uint16) (index, flip uint32) {
	y := uint32(x) * (uint32(x) + 1)
	return y >> 7 & (Entries - 1), 0
}

// builtin returns the table of a rate.
func builtin(rate int) []uint32 {
	_ = rate
	return make([]uint32, Entries)
}
