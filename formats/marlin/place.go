package marlin

// A tile of codes: 16 columns of 64 rows, which are 128 words of 32 bits.
const (
	TileRows  = 64
	TileCols  = 16
	TileWords = TileRows * TileCols / 8
)

// Place returns in which word of a tile the code of a row and column lies, and in which of its eight nibbles.
type Place func(row, col int) (word, nibble int)

// place returns in which word of a tile a code lies, and in which of its eight nibbles. Lane 4γ+t of a
// warp finds in four words what it multiplies, j being a step of 16 rows:
//
//	row 16j + 8β + γ, column 2t + e + 8h  →  word 16γ + 4t + j, nibble 4e + 2β + h
func place(row, col int) (word, nibble int) {
	j, beta, gamma := row/16, row/8%2, row%8
	h, t, e := col/8, col%8/2, col%2
	return 16*gamma + 4*t + j, 4*e + 2*beta + h
}

// Unpack writes the codes of a tile to dst, row by row.
func Unpack(dst []uint8, raw []byte, place Place) {
	for row := range TileRows {
		for col := range TileCols {
			word, nibble := place(row, col)
			dst[row*TileCols+col] = raw[4*word+nibble/2] >> (nibble % 2 * 4) & 15
		}
	}
}

// Pack returns all words of the codes of n rows of k columns, [k/16, 2n]. row unpacks those of one row.
func Pack(n, k int, place Place, row func(dst []uint8, n int)) []byte {
	data := make([]byte, n*k/2)
	codes := make([]uint8, k)
	for r := range n {
		row(codes, r)
		for c, code := range codes {
			word, nibble := place(r%TileRows, c%TileCols)
			at := 4 * (c/TileCols*2*n + r/TileRows*TileWords + word)
			data[at+nibble/2] |= code << (nibble % 2 * 4)
		}
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

// Ordered returns scales [groups, n] of 16 bits in a layout's order: places says where in each run of so many
// that of a row lies.
func Ordered(scales []byte, places []int) []byte {
	dst := make([]byte, len(scales))
	for i := range len(scales) / 2 {
		run := i / len(places) * len(places)
		copy(dst[2*(run+places[i-run]):][:2], scales[2*i:])
	}
	return dst
}
