package marlin24

import (
	"encoding/binary"

	"github.com/lutq/lutq/formats/weight/lut24"
)

// place returns in which word of a tile a code lies, and in which of its eight nibbles: as MARLIN has
// it, but with rows 8γ + 4β + j in the place of 16j + 8β + γ.
func place(row, col int) (word, nibble int) {
	gamma, beta, j := row/8, row/4%2, row%4
	h, t, e := col/8, col%8/2, col%2
	return 16*gamma + 4*t + j, 4*e + 2*beta + h
}

// metaCols are the columns that a word of B_meta says of.
const metaCols = 16

// metaPlace returns where the word for a row and the p-th 16 of its columns lies among those of n rows. Lanes
// of the tensor cores read it so.
func metaPlace(n, row, p int) int {
	lane := row/64*64 + row>>1&1*32 + row%64/8*4 + row&1*2 + p%2
	return p/2*2*n + 2*lane + row>>2&1
}

// packMeta returns all words for n rows of k columns. pattern returns that of a row, as package lut24 has it.
func packMeta(n, k int, pattern func(n int) []byte) []byte {
	data := make([]byte, n*k/metaCols*2)
	for r := range n {
		of := pattern(r)
		for p := range k / metaCols {
			copy(data[2*metaPlace(n, r, p):][:2], of[2*p:])
		}
	}
	return data
}

// scalePlaces returns where in each run of eight scales that of a row lies, of which there is one for a
// group of columns. With one for all they lie in order.
func scalePlaces(groups int) []int {
	if groups == 1 {
		return []int{0}
	}
	return []int{0, 2, 4, 6, 1, 3, 5, 7}
}

// spread writes the kept codes of a chunk's word to its columns, and zero to the others. It reports whether all
// chunks keep two.
func spread(dst, kept []uint8, meta []byte, zero uint8) bool {
	word := binary.LittleEndian.Uint16(meta)
	for i := range dst {
		dst[i] = zero
	}
	for c := range len(dst) / lut24.Chunk {
		p := uint8(word >> (4 * c) & 15)
		if !lut24.IsPair(p) {
			return false
		}
		dst[lut24.Chunk*c+int(p&3)] = kept[lut24.Kept*c]
		dst[lut24.Chunk*c+int(p>>2)] = kept[lut24.Kept*c+1]
	}
	return true
}
