package trellis

import (
	_ "embed"
	"encoding/binary"
	"slices"
)

// Entries is the number of pairs of a table.
const Entries = 1 << 8

// hashFactor is what a window is multiplied by, in 32 bits. Odd factors with bits all over did alike.
const hashFactor = 0xCBAC1FED

// Flips returns the bits of the product that turn over bits of a pair, at a rate: both signs, and bits of the mantissas, by which one
// table has several times as many pairs. Steps of more than eight bits need more of them.
func Flips(rate int) uint32 {
	if rate > 8 {
		return 0x83C08060
	}
	return 0x81808000
}

// Hash returns the pair of the table that a window stands for, and the bits in which its two float16 are turned over: bits 7 to 14 of
// the product, and some of its bits where they are. A GPU has the address of a pair, in a table of a copy for each bank, by one
// mask.
func Hash(x uint16, rate int) (index, flip uint32) {
	y := uint32(x) * hashFactor
	return y >> 7 & (Entries - 1), y & Flips(rate)
}

// Rates lists those of [Pairs].
func Rates() []int { return []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} }

// tables are one after the other for each of [Rates], as they are stored. Each was fitted to 2000 rings of numbers of a normal distribution: ten times,
// what a value was chosen for became its mean. NOTES.md has their errors.
//
//go:embed tables.bin
var tables []byte

// builtin returns the table of a rate.
func builtin(rate int) []uint32 {
	data := tables[4*Entries*slices.Index(Rates(), rate):]
	table := make([]uint32, Entries)
	for i := range table {
		table[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return table
}
