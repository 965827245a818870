package lutgemm

import (
	"encoding/binary"

	"github.com/lutq/lutq/formats/foreign"
)

// word is how many columns of a plane lie in one.
const word = 32

// pack returns the words of planes of n rows, [n, bits, k/8], with the rows innermost.
func pack(planes []byte, n, bits, k int) []byte {
	turned, words := foreign.Transpose(planes, n, bits*k/word, 4), k/word // [bits, words, n]
	data := make([]byte, 0, len(planes))
	for w := range words {
		for i := range bits {
			data = append(data, turned[(i*words+w)*4*n:][:4*n]...)
		}
	}
	return data
}

// unpack adds the bits of a plane to columns [first, last) of codes, of which rows are stride apart. raw has a word of
// each row.
func unpack(dst []uint8, raw []byte, stride, first, last, plane int) {
	for ; len(raw) > 0; raw = raw[4:] {
		bits := binary.LittleEndian.Uint32(raw)
		row := dst[:last-first]
		for i := range row {
			row[i] |= uint8(bits>>(first+i)&1) << plane
		}
		dst = dst[min(stride, len(dst)):]
	}
}
