package lut24

import "fmt"

// Chunk is the number of columns of which [Kept] are kept.
const (
	Chunk = 4
	Kept  = 2
)

// IsPair reports whether a nibble names two columns in their order: 4, 8, 9, 12, 13 or 14.
func IsPair(nibble uint8) bool { return nibble&3 < nibble>>2 }

// PatternBytes returns the bytes that the pattern of a row of k columns takes.
func PatternBytes(k int) int { return (k/Chunk + 1) / 2 }

// Nibble returns that of chunk c in the pattern of a row.
func Nibble(pattern []byte, c int) uint8 { return pattern[c/2] >> (c % 2 * 4) & 0xf }

// SetNibble writes that of chunk c, where there are zeros.
func SetNibble(pattern []byte, c int, nibble uint8) { pattern[c/2] |= nibble << (c % 2 * 4) }

// spread writes the kept weights of a row to their columns, and zeros to the others.
func spread(dst, kept []float32, pattern []byte) {
	clear(dst)
	for c := range len(dst) / Chunk {
		p := Nibble(pattern, c)
		dst[Chunk*c+int(p&3)] = kept[Kept*c]
		dst[Chunk*c+int(p>>2)] = kept[Kept*c+1]
	}
}

// Gather is the inverse of spread: it writes what a row has in the columns that are kept.
func Gather[T any](dst, row []T, pattern []byte) {
	for c := range len(row) / Chunk {
		p := Nibble(pattern, c)
		dst[Kept*c] = row[Chunk*c+int(p&3)]
		dst[Kept*c+1] = row[Chunk*c+int(p>>2)]
	}
}

// Choose returns the nibble of the two largest of a chunk's scores, of equals the first.
func Choose(score [Chunk]float64) uint8 {
	first := 0
	for i, s := range score {
		if s > score[first] {
			first = i
		}
	}
	second := -1
	for i, s := range score {
		if i != first && (second < 0 || s > score[second]) {
			second = i
		}
	}
	return uint8(min(first, second) | max(first, second)<<2)
}

// checkPattern reports the first nibble that keeps no two columns.
func checkPattern(pattern []byte, n, k int) error {
	size := PatternBytes(k)
	for row := range n {
		for c := range k / Chunk {
			if p := Nibble(pattern[row*size:], c); !IsPair(p) {
				return fmt.Errorf("pattern of row %d, chunk %d, is %#x: want i0 | i1<<2 with i0 < i1", row, c, p)
			}
		}
	}
	return nil
}
