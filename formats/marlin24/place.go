package marlin24

import (
	"encoding/binary"

	"github.com/lutq/lutq/quantize/lut24"
)

// A tile of codes: 16 kept columns of 64 rows, which are 128 words of 32 bits.
const (
	tileRows  = 64
	tileCols  = 16
	tileWords = tileRows * tileCols / 8
)

// place returns in which word of a tile a code lies, and in which of its eight nibbles: as MARLIN has
// it, but with rows 8γ + 4β + j in the place of 16j + 8β + γ.
func place(row, col int) (word, nibble int) {
	gamma, beta, j := row/8, row/4%2, row%4
	h, t, e := col/8, col%8/2, col%2
	return 16*gamma + 4*t + j, 4*e + 2*beta + h
}

// unpack writes the codes of a tile to dst, row by row.
func unpack(dst []uint8, raw []byte) {
	for row := range tileRows {
		for col := range tileCols {
			word, nibble := place(row, col)
			dst[row*tileCols+col] = raw[4*word+nibble/2] >> (nibble % 2 * 4) & 15
		}
	}
}

// pack returns all words of the codes of n rows of k kept columns, [k/16, 2n]. row unpacks those of one row.
func pack(n, k int, row func(dst []uint8, n int)) []byte {
	data := make([]byte, n*k/2)
	codes := make([]uint8, k)
	for r := range n {
		row(codes, r)
		for c, code := range codes {
			word, nibble := place(r%tileRows, c%tileCols)
			at := 4 * (c/tileCols*2*n + r/tileRows*tileWords + word)
			data[at+nibble/2] |= code << (nibble % 2 * 4)
		}
	}
	return data
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

// ordered returns the scales [groups, n] of 16 bits in the layout's order.
func ordered(scales []byte, groups int) []byte {
	places := scalePlaces(groups)
	dst := make([]byte, len(scales))
	for i := range len(scales) / 2 {
		run := i / len(places) * len(places)
		copy(dst[2*(run+places[i-run]):][:2], scales[2*i:])
	}
	return dst
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
