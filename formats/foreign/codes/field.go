package codes

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// readRows calls use for each row of a block with its bytes: size of them from a first
// one on, in rows of stride bytes.
func readRows(t *hf.Tensor, b Block, stride, first, size int, use func(row int, raw []byte)) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	rows := 1 // at a time
	if size == stride {
		rows = b.Rows
	}
	for r := 0; r < b.Rows; r += rows {
		raw := grow(buf, rows*size)
		if _, err := t.ReadAt(raw, int64(b.Row+r)*int64(stride)+int64(first)); err != nil && len(raw) > 0 {
			return err
		}
		for i := range rows {
			use(r+i, raw[i*size:][:size])
		}
	}
	return nil
}

// Rows reads codes of a tensor of some rows, each of which is a stream of codes from the
// lowest bit of the first byte on.
func Rows(t *hf.Tensor, rows, bits int) Field[uint8] {
	stride := int(t.Bytes() / int64(max(rows, 1)))
	return func(dst []uint8, b Block) error {
		skip := b.Col % 8 // eight codes end with a byte
		first := (b.Col - skip) / 8 * bits
		var all []uint8
		if skip > 0 {
			all = make([]uint8, skip+b.Cols)
		}
		return readRows(t, b, stride, first, num.BitsBytes(skip+b.Cols, bits), func(row int, raw []byte) {
			to := dst[row*b.Cols:][:b.Cols]
			if skip == 0 {
				num.UnpackBits(to, raw, bits)
				return
			}
			num.UnpackBits(all, raw, bits)
			copy(to, all[skip:])
		})
	}
}

// A Packing says where codes lie in words of 32 bits.
type Packing struct {
	Bits int
	// Whole says that no code lies in two words: each has ⌊32/Bits⌋ codes from its lowest
	// bit on. Otherwise codes are a stream without gaps.
	Whole bool
}

// Words returns the words that n codes take.
func (p Packing) Words(n int) int {
	if p.Whole {
		return (n + 32/p.Bits - 1) / (32 / p.Bits)
	}
	return (n*p.Bits + 31) / 32
}

// at returns the first bit of code i.
func (p Packing) at(i int) int {
	if p.Whole {
		per := 32 / p.Bits
		return i/per*32 + i%per*p.Bits
	}
	return i * p.Bits
}

// RowWords reads codes of a tensor [n, words] of words of 32 bits, of which each row is packed.
func RowWords(t *hf.Tensor, p Packing) Field[uint8] {
	if !p.Whole || 32%p.Bits == 0 {
		return Rows(t, t.Shape[0], p.Bits)
	}
	mask := uint32(1)<<p.Bits - 1
	return func(dst []uint8, b Block) error {
		from := p.at(b.Col) / 32
		size := 4 * (p.at(b.Col+b.Cols-1)/32 + 1 - from)
		return readRows(t, b, 4*t.Shape[1], 4*from, size, func(row int, raw []byte) {
			for i := range b.Cols {
				at := p.at(b.Col + i)
				dst[row*b.Cols+i] = uint8(binary.LittleEndian.Uint32(raw[4*(at/32-from):]) >> (at % 32) & mask)
			}
		})
	}
}

// Columns reads codes of a tensor [words, n] of words of 32 bits, of which each column is
// packed: code [row, col] is the row-th of column col.
func Columns(t *hf.Tensor, p Packing) Field[uint8] {
	n := t.Shape[1]
	mask := uint64(1)<<p.Bits - 1
	return func(dst []uint8, b Block) error {
		from := p.at(b.Row) / 32
		words := Block{Row: from, Rows: (p.at(b.Row+b.Rows-1)+p.Bits-1)/32 + 1 - from}
		all := make([]uint32, (words.Rows+1)*b.Cols) // one more, that the last code may look at
		err := readRows(t, words, 4*n, 4*b.Col, 4*b.Cols, func(row int, raw []byte) {
			for i := range b.Cols {
				all[row*b.Cols+i] = binary.LittleEndian.Uint32(raw[4*i:])
			}
		})
		if err != nil {
			return err
		}
		for r := range b.Rows {
			at := p.at(b.Row+r) - 32*from
			low, high := all[at/32*b.Cols:][:b.Cols], all[(at/32+1)*b.Cols:][:b.Cols]
			to := dst[r*b.Cols:][:b.Cols]
			for i := range to {
				to[i] = uint8((uint64(high[i])<<32 | uint64(low[i])) >> (at % 32) & mask)
			}
		}
		return nil
	}
}

// Transposed reads what another field has in the place of rows in columns.
func Transposed[T any](f Field[T]) Field[T] {
	return func(dst []T, b Block) error {
		all := make([]T, b.size())
		if err := f(all, Block{b.Col, b.Cols, b.Row, b.Rows}); err != nil {
			return err
		}
		for r := range b.Rows {
			to := dst[r*b.Cols:][:b.Cols]
			for c := range to {
				to[c] = all[c*b.Rows+r]
			}
		}
		return nil
	}
}

// Ordered reads a field whose columns are stored in another order, in each run of
// len(places) of them: column i of a run lies in the place places[i]. What is stored has
// whole runs.
func Ordered[T any](f Field[T], places ...int) Field[T] {
	n := len(places)
	return func(dst []T, b Block) error {
		first := b.Col / n * n
		whole := Block{b.Row, b.Rows, first, (b.Col+b.Cols+n-1)/n*n - first}
		all := make([]T, whole.size())
		if err := f(all, whole); err != nil {
			return err
		}
		for r := range b.Rows {
			to, from := dst[r*b.Cols:][:b.Cols], all[r*whole.Cols:][:whole.Cols]
			for i := range to {
				c := b.Col - first + i
				to[i] = from[c/n*n+places[c%n]]
			}
		}
		return nil
	}
}

// Uniform returns the one value that all of a field's rows and columns have, and whether there is one.
func Uniform(f Field[uint8], rows, cols int) (value uint8, same bool, err error) {
	step := min(max(run/cols, 1), rows)
	all := make([]uint8, step*cols)
	for row := 0; row < rows; row += step {
		b := Block{Row: row, Rows: min(step, rows-row), Cols: cols}
		if err := f(all[:b.size()], b); err != nil {
			return 0, false, err
		}
		if row == 0 {
			value = all[0]
		}
		for _, v := range all[:b.size()] {
			if v != value {
				return 0, false, nil
			}
		}
	}
	return value, true, nil
}

// Mapped reads a field whose values stand for others.
func Mapped[T any](f Field[T], as func(T) T) Field[T] {
	return func(dst []T, b Block) error {
		err := f(dst, b)
		for i, v := range dst {
			dst[i] = as(v)
		}
		return err
	}
}

// Scales reads a tensor of some columns as numbers, which must be finite: of type F32, F16,
// BF16, F8_E4M3 or F8_E8M0; bytes (U8) are taken for the last.
func Scales(t *hf.Tensor, columns int) (Field[float32], error) { return ScalesAs(t, t.DType, columns) }

// ScalesAs reads scales as [Scales] does, as if the tensor were of another type.
func ScalesAs(t *hf.Tensor, as hf.DType, columns int) (Field[float32], error) {
	decode := num.DecodeF32
	switch as {
	case hf.F32:
	case hf.F16:
		decode = num.DecodeF16
	case hf.BF16:
		decode = num.DecodeBF16
	case hf.F8E4M3:
		decode = decodeBytes(num.F8E4M3ToF32)
	case hf.F8E8M0, hf.U8:
		decode = num.DecodeF8E8M0
	default:
		return nil, t.Errorf("scales of type %s: want F32, F16, BF16 or 8 bits", t.DType)
	}
	return Numbers(t, columns, as.Bits()/8, decode), nil
}

// Numbers reads scales as [Scales] does, of so many bytes each and decoded by a function.
func Numbers(t *hf.Tensor, columns, width int, decode func(dst []float32, src []byte)) Field[float32] {
	return Finite(t, func(dst []float32, b Block) error {
		return readRows(t, b, width*columns, width*b.Col, width*b.Cols, func(row int, raw []byte) {
			decode(dst[row*b.Cols:][:b.Cols], raw)
		})
	}, columns)
}

// Finite refuses numbers of a field of some columns, read from a tensor, that are not finite.
func Finite(t *hf.Tensor, f Field[float32], columns int) Field[float32] {
	return func(dst []float32, b Block) error {
		err := f(dst, b)
		if err != nil {
			return err
		}
		for i, s := range dst {
			if s-s != 0 {
				at := (int64(b.Row)+int64(i/b.Cols))*int64(columns) + int64(b.Col+i%b.Cols)
				return t.Errorf("element %d is %v: want a scale", at, s)
			}
		}
		return nil
	}
}

func decodeBytes(value func(uint8) float32) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = value(src[i])
		}
	}
}

// Unsigned returns the values of codes that are natural numbers.
func Unsigned(bits int) []float32 {
	v := make([]float32, 1<<bits)
	for i := range v {
		v[i] = float32(i)
	}
	return v
}

// Signed returns the values of codes that are integers above the least one of their bits,
// −2^(bits−1).
func Signed(bits int) []float32 {
	v := Unsigned(bits)
	for i := range v {
		v[i] -= float32(int(1) << (bits - 1))
	}
	return v
}

// E2M1 returns the values of codes in the four bits of FP4.
func E2M1() []float32 {
	v := make([]float32, 16)
	for i := range v {
		v[i] = num.F4E2M1ToF32(uint8(i))
	}
	return v
}

// Ints reads a whole tensor of integers, of type I32 or I64, that is no longer than a row
// or column.
func Ints(t *hf.Tensor) ([]int32, error) {
	width := t.DType.Bits() / 8
	if t.DType != "I32" && t.DType != "I64" {
		return nil, t.Errorf("is of type %s: want I32 or I64", t.DType)
	}
	raw := make([]byte, t.Bytes())
	if len(raw) > 0 {
		if _, err := t.ReadAt(raw, 0); err != nil {
			return nil, err
		}
	}
	v := make([]int32, t.Elements())
	for i := range v {
		n := int64(int32(binary.LittleEndian.Uint32(raw[i*width:])))
		if width == 8 {
			n = int64(binary.LittleEndian.Uint64(raw[i*width:]))
		}
		if n < math.MinInt32 || n > math.MaxInt32 {
			return nil, t.Errorf("element %d is %d", i, n)
		}
		v[i] = int32(n)
	}
	return v, nil
}

// Number reads a tensor of one finite number in F32.
func Number(t *hf.Tensor) (float32, error) {
	if t.Elements() != 1 || t.DType != hf.F32 {
		return 0, t.Errorf("is %s %v: want one number in F32", t.DType, t.Shape)
	}
	var v [1]float32
	if err := t.ReadFloat32(v[:], 0); err != nil {
		return 0, err
	}
	if v[0]-v[0] != 0 {
		return 0, t.Errorf("is %v: want a number", v[0])
	}
	return v[0], nil
}

// Shape returns an error unless a tensor is of a shape and of one of some types.
func Shape(t *hf.Tensor, shape []int, types ...hf.DType) error {
	ok := len(t.Shape) == len(shape)
	for i := range shape {
		ok = ok && t.Shape[i] == shape[i]
	}
	fits := false
	for _, d := range types {
		fits = fits || d == t.DType
	}
	if !ok || !fits {
		return t.Errorf("is %s %v: want %s %v", t.DType, t.Shape, fmt.Sprint(types), shape)
	}
	return nil
}
