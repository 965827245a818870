package codes

import "github.com/lutq/lutq/formats/hf"

// Tiles says where numbers lie whose matrix is cut into tiles, each of which is a run of bytes. The
// matrix has whole tiles.
type Tiles[T any] struct {
	Rows, Cols int // of a tile
	Bytes      int // that it takes

	// At returns the first byte of a tile by its row and column among tiles.
	At func(row, col int) int64
	// Unpack writes the numbers of a tile to dst, row by row.
	Unpack func(dst []T, raw []byte)
}

// Tiled reads numbers of a tensor of tiles.
func Tiled[T any](t *hf.Tensor, as Tiles[T]) Field[T] {
	return func(dst []T, b Block) error {
		raw, tile := make([]byte, as.Bytes), make([]T, as.Rows*as.Cols)
		for row := b.Row / as.Rows * as.Rows; row < b.Row+b.Rows; row += as.Rows {
			from, to := max(row, b.Row), min(row+as.Rows, b.Row+b.Rows)
			for col := b.Col / as.Cols * as.Cols; col < b.Col+b.Cols; col += as.Cols {
				if _, err := t.ReadAt(raw, as.At(row/as.Rows, col/as.Cols)); err != nil {
					return err
				}
				as.Unpack(tile, raw)
				first, last := max(col, b.Col), min(col+as.Cols, b.Col+b.Cols)
				for r := from; r < to; r++ {
					copy(dst[(r-b.Row)*b.Cols+first-b.Col:], tile[(r-row)*as.Cols+first-col:(r-row)*as.Cols+last-col])
				}
			}
		}
		return nil
	}
}
