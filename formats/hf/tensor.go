package hf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/lutq/lutq/formats/num"
)

// chunk is the size of the buffers that tensor data passes through.
const chunk = 1 << 20

// Tensor is one tensor of an open [Checkpoint]. Its data stays in the file
// until a method reads it. All methods may be called from several goroutines.
//
// A tensor with an [Encoding] is stored in others, of codes and of their scales, and
// is decoded when it is read: its type, shape and data are those of its values.
type Tensor struct {
	Name  string
	DType DType
	Shape []int  // row-major, empty for a scalar; not to be changed
	Shard string // name of the file, see [Checkpoint.Shards]

	elements, size int64
	offset         int64 // of the data, in the file
	file           io.ReaderAt
	buffers        *sync.Pool // of *[chunk]byte
	encoding       *Encoding
	codec          Codec // that decodes the data; nil where it is as it is read
	storedSize     int64 // of a tensor that was made, which has no parts
}

// NewTensor describes a tensor that lies in no file, for who makes its data up: to read it fails.
func NewTensor(name string, d DType, shape ...int) (*Tensor, error) {
	elements, size, err := sizeOf(d, shape)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}
	return &Tensor{Name: name, DType: d, Shape: shape, Shard: "no file", elements: elements, size: size}, nil
}

// Bytes returns the size of the tensor's data, which is what
// [Tensor.ReadAt] reads.
func (t *Tensor) Bytes() int64 { return t.size }

// Extent returns where the data of a tensor that is stored as it is read lies in its file: from which byte on, and how many.
func (t *Tensor) Extent() (offset, size int64) { return t.offset, t.size }

// Parts returns the tensors of files that the tensor is read from: itself, or those that its encoding has.
func (t *Tensor) Parts() []*Tensor {
	if t.encoding != nil && len(t.encoding.Parts) > 0 {
		return t.encoding.Parts
	}
	return []*Tensor{t}
}

// Encoding returns how the tensor's values are stored, nil where that is as
// they are read.
func (t *Tensor) Encoding() *Encoding { return t.encoding }

// StoredAs names the type, or the encoding, that the tensor is stored in.
func (t *Tensor) StoredAs() string {
	if t.encoding != nil {
		return t.encoding.String()
	}
	return string(t.DType)
}

// StoredBytes returns what the tensor takes in the files.
func (t *Tensor) StoredBytes() int64 {
	switch {
	case t.storedSize > 0:
		return t.storedSize
	case t.encoding != nil:
		return t.encoding.bytes()
	}
	return t.size
}

// Elements returns the product of the dimensions.
func (t *Tensor) Elements() int64 { return t.elements }

// ReadAt reads the tensor's data from byte off on, as [io.ReaderAt] says. A
// file that has become shorter than its header says gives an error that wraps
// [io.ErrUnexpectedEOF].
func (t *Tensor) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, t.wrap(errors.New("negative offset"))
	}
	if off >= t.size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	var end error
	if rest := t.size - off; int64(len(p)) > rest {
		p, end = p[:rest], io.EOF
	}
	if t.codec != nil {
		n, err := t.readValues(p, off)
		if err == nil {
			err = end
		}
		return n, err
	}
	if t.file == nil { // see [NewTensor]
		return 0, t.wrap(os.ErrInvalid)
	}
	n, err := t.file.ReadAt(p, t.offset+off)
	switch {
	case n == len(p):
		return n, end
	case err == nil || errors.Is(err, io.EOF):
		err = fmt.Errorf("file is shorter than when it was opened: %w", io.ErrUnexpectedEOF)
	}
	return n, t.wrap(err)
}

// ReadFloat32 reads the elements [start, start+len(dst)) in row-major order.
// It decodes F32, F16, BF16, F8E8M0, what has an [Encoding] and, with rounding,
// F64; other types are an error, as is a range outside the tensor, or a scale that
// is none. NaN and infinities pass.
func (t *Tensor) ReadFloat32(dst []float32, start int64) error {
	var decode func([]float32, []byte)
	switch t.DType {
	case F32:
		decode = num.DecodeF32
	case F16:
		decode = num.DecodeF16
	case BF16:
		decode = num.DecodeBF16
	case F64:
		decode = num.DecodeF64
	case F8E8M0:
		decode = num.DecodeF8E8M0
	default:
		return t.wrap(fmt.Errorf("elements of type %s: want F32, F16, BF16 or F64", t.DType))
	}
	if start < 0 || start > t.elements-int64(len(dst)) {
		return t.wrap(fmt.Errorf("elements %d to %d of %d", start, start+int64(len(dst)), t.elements))
	}
	if t.codec != nil {
		return t.codec.ReadFloat32(dst, start)
	}
	buf := t.buffers.Get().(*[chunk]byte)
	defer t.buffers.Put(buf)
	width := t.DType.Bits() / 8
	for off := start * int64(width); len(dst) > 0; {
		n := min(len(dst), chunk/width)
		raw := buf[:n*width]
		if _, err := t.ReadAt(raw, off); err != nil {
			return err
		}
		decode(dst[:n], raw)
		dst = dst[n:]
		off += int64(len(raw))
	}
	return nil
}

// ReadTransposed reads the elements [start, start+rows·cols), which are rows rows of
// cols columns, and writes them to dst as cols rows.
func (t *Tensor) ReadTransposed(dst []float32, start int64, rows, cols int) error {
	row := make([]float32, cols)
	for r := range rows {
		if err := t.ReadFloat32(row, start+int64(r)*int64(cols)); err != nil {
			return err
		}
		for c, v := range row {
			dst[c*rows+r] = v
		}
	}
	return nil
}

// wrap names tensor and file in an error.
func (t *Tensor) wrap(err error) error {
	return fmt.Errorf("tensor %q in %s: %w", t.Name, t.Shard, err)
}
