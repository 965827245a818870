package marlin

import "encoding/binary"

// A tile of codes: 16 columns of 64 rows, which are 128 words of 32 bits.
const (
	tileRows  = 64
	tileCols  = 16
	tileWords = tileRows * tileCols / 8
)

// place returns in which word of a tile a code lies, and in which of its eight nibbles. Lane 4γ+t of a
// warp finds in four words what it multiplies, j being a step of 16 rows:
//
//	row 16j + 8β + γ, column 2t + e + 8h  →  word 16γ + 4t + j, nibble 4e + 2β + h
func place(row, col int) (word, nibble int) {
	j, beta, gamma := row/16, row/8%2, row%8
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

// pack returns all words of a matrix, [k/16, 2n]. row unpacks the codes of one of its rows.
func pack(n, k int, row func(dst []uint8, n int)) []byte {
	words := make([]uint32, n*k/8)
	codes := make([]uint8, k)
	for r := range n {
		row(codes, r)
		chunk := words[r/tileRows*tileWords:]
		for c, code := range codes {
			word, nibble := place(r%tileRows, c%tileCols)
			chunk[c/tileCols*2*n+word] |= uint32(code) << (4 * nibble)
		}
	}
	data := make([]byte, 0, 4*len(words))
	for _, w := range words {
		data = binary.LittleEndian.AppendUint32(data, w)
	}
	return data
}

// scalePlaces returns where in each run of so many scales that of a row lies: as lanes read them with
// a scale for a group, or with one for all columns.
func scalePlaces(groups int) []int {
	if groups == 1 {
		places := make([]int, 32)
		for i := range 4 {
			for e, first := range []int{0, 1, 8, 9, 16, 17, 24, 25} {
				places[2*i+first] = 8*i + e
			}
		}
		return places
	}
	places := make([]int, 64)
	for row := range places {
		places[row] = row%8*8 + row/8
	}
	return places
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
