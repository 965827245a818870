// Package codes decodes weights that other programs stored as codes of a few bits, with a scale for each group of a
// row's columns, and maybe a zero point or an offset.
//
// A [Field] reads numbers from where they lie in a file: along rows or columns, in whatever order of bits. A [Matrix],
// or a [Binary] of sums, says what the numbers mean.
package codes

import (
	"fmt"
	"math"
	"sync"

	"github.com/lutq/lutq/formats/hf"
)

// Block is a part of a matrix.
type Block struct{ Row, Rows, Col, Cols int }

// size returns the elements of the block.
func (b Block) size() int { return b.Rows * b.Cols }

// A Field reads a block of a matrix of numbers to dst, row by row. Several goroutines may
// use one.
type Field[T any] func(dst []T, b Block) error

// Matrix is N rows of K weights, which are
//
//	w[n,k] = (Values[code[n,k]] − zero[n,g]) · scale[n,g] + offset[n,g],  g = k/Group
//
// in float32, one operation after the other. It implements [hf.Codec].
type Matrix struct {
	N, K   int
	Bits   int       // of a code, at most 8
	Group  int       // columns that share a scale, at most K; the last group may be short
	Values []float32 // 2^Bits

	Codes   Field[uint8]
	Scales  Field[float32] // [N, groups]
	Zeros   Field[uint8]   // the same; nil: 0
	Offsets Field[float32] // the same; nil: 0

	// ScaleType is a type that holds all scales: F16, BF16, F32 or F8_E8M0, or U8 for E4M4 of package num.
	ScaleType hf.DType

	// Unit, if not 0, is what all scales are times a number of F8_E4M3.
	Unit float32

	// Groups, if not nil, is the group of each column, in the place of k/Group.
	Groups []int32
}

// run is how many weights are decoded at a time, unless a row's groups are more.
const run = 1 << 18

// scratch is what decoding a piece takes.
type scratch struct {
	codes, zeros    []uint8
	scales, offsets []float32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// SetGroups sets the group of each column. Where that is k/Group nothing is changed.
func (m *Matrix) SetGroups(groups []int32) {
	for k, g := range groups {
		if int(g) != k/m.Group {
			m.Groups = groups
			return
		}
	}
}

// GroupsInRow returns the number of groups of a row.
func (m *Matrix) GroupsInRow() int { return (m.K-1)/m.Group + 1 }

// ReadFloat32 implements [hf.Codec].
func (m *Matrix) ReadFloat32(dst []float32, start int64) error {
	return eachBlock(dst, start, m.K, m.read)
}

// eachBlock reads weights from one on of rows of k, block by block.
func eachBlock(dst []float32, start int64, k int, read func(dst []float32, b Block, s *scratch) error) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for len(dst) > 0 {
		row, col := int(start/int64(k)), int(start%int64(k))
		b := Block{Row: row, Rows: 1, Col: col, Cols: min(len(dst), k-col, run)}
		if col == 0 && b.Cols == k {
			b.Rows = min(len(dst), run) / k
		}
		n := b.size()
		if err := read(dst[:n], b, s); err != nil {
			return err
		}
		dst, start = dst[n:], start+int64(n)
	}
	return nil
}

// read decodes a block.
func (m *Matrix) read(dst []float32, b Block, s *scratch) error {
	if err := m.Codes(grow(&s.codes, b.size()), b); err != nil {
		return err
	}
	groups := Block{b.Row, b.Rows, 0, m.GroupsInRow()}
	if m.Groups == nil {
		groups.Col = b.Col / m.Group
		groups.Cols = (b.Col+b.Cols-1)/m.Group + 1 - groups.Col
	}
	if err := m.Scales(grow(&s.scales, groups.size()), groups); err != nil {
		return err
	}
	zeros, offsets := grow(&s.zeros, groups.size()), grow(&s.offsets, groups.size())
	if m.Zeros == nil {
		clear(zeros)
	} else if err := m.Zeros(zeros, groups); err != nil {
		return err
	}
	if m.Offsets == nil {
		offsets = nil
	} else if err := m.Offsets(offsets, groups); err != nil {
		return err
	}
	for r := range b.Rows {
		w, c := dst[r*b.Cols:][:b.Cols], s.codes[r*b.Cols:][:b.Cols]
		at := r * groups.Cols
		for i := 0; i < len(w); {
			g, n := 0, 1
			if m.Groups != nil {
				g = int(m.Groups[b.Col+i])
			} else {
				k := b.Col + i
				g, n = k/m.Group-groups.Col, min(m.Group-k%m.Group, len(w)-i)
			}
			offset := float32(0)
			if offsets != nil {
				offset = offsets[at+g]
			}
			m.group(w[i:i+n], c[i:i+n], s.scales[at+g], float32(zeros[at+g]), offset)
			i += n
		}
	}
	return nil
}

// group decodes codes that share a scale.
func (m *Matrix) group(dst []float32, codes []uint8, scale, zero, offset float32) {
	values := m.Values
	codes = codes[:len(dst)]
	if m.Offsets == nil {
		for i, c := range codes {
			dst[i] = (values[c] - zero) * scale
		}
		return
	}
	for i, c := range codes {
		dst[i] = float32((values[c]-zero)*scale) + offset // not fused
	}
}

// Check reports what is wrong with the numbers that tell where things lie.
func (m *Matrix) Check() error {
	switch {
	case m.N < 1 || m.K < 1 || m.N > math.MaxInt32 || m.K > math.MaxInt/8:
		return fmt.Errorf("shape %d×%d: want a matrix", m.N, m.K)
	case m.Bits < 1 || m.Bits > 8 || len(m.Values) != 1<<m.Bits:
		return fmt.Errorf("codes of %d bits: want 1 to 8", m.Bits)
	case m.Group < 1 || m.Group > m.K:
		return fmt.Errorf("groups of %d columns in rows of %d", m.Group, m.K)
	case m.Groups != nil && len(m.Groups) != m.K:
		return fmt.Errorf("groups of %d columns in rows of %d", len(m.Groups), m.K)
	}
	for k, g := range m.Groups {
		if g < 0 || int(g) >= m.GroupsInRow() {
			return fmt.Errorf("column %d is in group %d of %d", k, g, m.GroupsInRow())
		}
	}
	return nil
}

// Encoded returns the tensor [N, K] of a name that the matrix decodes. by says who wrote
// the codes, and the parts are as [hf.Encoding] has them.
func (m *Matrix) Encoded(name, by string, parts ...*hf.Tensor) (hf.Encoded, error) {
	if err := m.Check(); err != nil {
		return hf.Encoded{}, parts[0].Errorf("%w", err)
	}
	t := hf.F32
	if m.ScaleType == hf.F8E8M0 {
		t = hf.BF16 // a few bits times a power of two
	}
	return encoded(name, by, t, m.N, m.K, m.Group, m, parts), nil
}

// grow returns a slice of n elements backed by *buf, which it enlarges.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	*buf = (*buf)[:n]
	return *buf
}
