package kbit

import "encoding/binary"

// block is how many weights share a scale.
const block = 32

// A tile of the layout kbit-tiled.
const (
	tileRows = 128
	tileCols = 64
)

// Layout is one of the two. It implements [hf.Scheme] and [foreign.Target].
type Layout struct{ tiled bool }

// Flat returns the layout kbit.
func Flat() Layout { return Layout{} }

// Tiled returns the layout kbit-tiled.
func Tiled() Layout { return Layout{tiled: true} }

// Name implements [foreign.Target].
func (y Layout) Name() string {
	if y.tiled {
		return "kbit-tiled"
	}
	return "kbit"
}

// place returns which block of all a block of a row of [n, k] is.
func (y Layout) place(n, k, row, b int) int {
	if !y.tiled {
		return row*(k/block) + b
	}
	const perRow = tileCols / block
	tile := b/perRow*(n/tileRows) + row/tileRows
	return (tile*tileRows+row%tileRows)*perRow + b%perRow
}

// words returns the words that a matrix's codes take.
func (y Layout) words(n, k, bits int) int {
	words := n * (k / block) * bits
	if !y.tiled {
		words += bits // which the kernel reads past the last block
	}
	return words
}

// unpack writes the codes of blocks that lie side by side to dst.
func unpack(dst []uint8, raw []byte, bits int) {
	clear(dst)
	for from := 0; from < len(dst); from += block {
		for i := range bits {
			plane := binary.LittleEndian.Uint32(raw[4*i:])
			for l := range block {
				dst[from+l] |= uint8(plane>>l&1) << i
			}
		}
		raw = raw[4*bits:]
	}
}

// pack returns the words of a matrix of codes. row unpacks those of one of its rows.
func (y Layout) pack(n, k, bits int, row func(dst []uint8, n int)) []byte {
	data := make([]byte, 4*y.words(n, k, bits))
	codes := make([]uint8, k)
	for r := range n {
		row(codes, r)
		for b := range k / block {
			to := data[4*bits*y.place(n, k, r, b):]
			for i := range bits {
				plane := uint32(0)
				for l, c := range codes[b*block : (b+1)*block] {
					plane |= uint32(c>>i&1) << l
				}
				binary.LittleEndian.PutUint32(to[4*i:], plane)
			}
		}
	}
	return data
}

// scales returns the scales of all blocks, of so many bytes each, from those row by row.
func (y Layout) scales(n, k, size int, rows []byte) []byte {
	if !y.tiled {
		return rows
	}
	data := make([]byte, len(rows))
	for r := range n {
		for b := range k / block {
			copy(data[y.place(n, k, r, b)*size:][:size], rows[(r*(k/block)+b)*size:])
		}
	}
	return data
}
