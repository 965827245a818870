package hf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
)

// Types of stored codes and scales.
const (
	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
	F8E8M0 DType = "F8_E8M0"
)

// scaled is the codec of codes in bytes, each of which times a scale is a value.
type scaled struct {
	*Encoding
	codes  *Tensor
	scales *Tensor
	values *[256]float32
}

// run is how many values are decoded at a time.
const run = chunk / 4

// ReadFloat32 implements [Codec].
func (e *scaled) ReadFloat32(dst []float32, start int64) error {
	if len(dst) == 0 {
		return nil
	}
	buf := e.codes.buffers.Get().(*[chunk]byte)
	defer e.codes.buffers.Put(buf)
	var scales []float32
	for len(dst) > 0 {
		// Either whole rows or a part of one, so that there are no more scales
		// than values, whatever the shape.
		row, col := start/int64(e.K), int(start%int64(e.K))
		n := min(len(dst), e.K-col, run)
		if col == 0 && n == e.K {
			n *= min(len(dst), run) / e.K
		}
		first, last := e.scaleOf(row, col), e.scaleOf(row+int64((n-1)/e.K), (col+n-1)%e.K)
		if int(last-first) >= cap(scales) {
			scales = make([]float32, last-first+1)
		}
		scales = scales[:last-first+1]
		if err := e.readScales(scales, first); err != nil {
			return err
		}
		raw := buf[:n]
		if _, err := e.codes.ReadAt(raw, start); err != nil {
			return err
		}
		for at := 0; at < n; {
			// What of a row shares a scale, one block after the other.
			r, c := row+int64((col+at)/e.K), (col+at)%e.K
			index := e.scaleOf(r, c)
			for end := at + min(n-at, e.K-c); at < end; index++ {
				m := min(end-at, e.Cols-c%e.Cols)
				if !e.decodeBytes(dst[at:at+m], raw[at:], scales[index-first]) {
					return e.scales.wrap(fmt.Errorf("element %d is 0, but the weights that it is the scale of are not", index))
				}
				at, c = at+m, c+m
			}
		}
		dst, start = dst[n:], start+int64(n)
	}
	return nil
}

// scaleOf returns the index of the scale of an element in a row of all matrices.
func (e *scaled) scaleOf(row int64, col int) int64 {
	down, across := int64(blocks(e.N, e.Rows)), int64(blocks(e.K, e.Cols))
	matrix, n := row/int64(e.N), row%int64(e.N)
	return (matrix*down+n/int64(e.Rows))*across + int64(col/e.Cols)
}

// blocks returns how many blocks of a size cover n.
func blocks(n, size int) int {
	if n == 0 {
		return 0
	}
	return (n-1)/size + 1
}

// readScales reads scales and sees to it that they are some.
func (e *scaled) readScales(dst []float32, start int64) error {
	if err := e.scales.ReadFloat32(dst, start); err != nil {
		return err
	}
	for i, s := range dst {
		if !(s >= 0) || s > math.MaxFloat32 {
			return e.scales.wrap(fmt.Errorf("element %d is %v: want a scale", start+int64(i), s))
		}
	}
	return nil
}

// decodeBytes decodes codes of a byte that share a scale. It reports whether a
// scale of 0 is one of values that are 0.
func (e *scaled) decodeBytes(dst []float32, codes []byte, scale float32) bool {
	values := e.values
	codes = codes[:len(dst)]
	if scale == 0 {
		for _, c := range codes {
			if values[c] != 0 {
				return false
			}
		}
	}
	for len(dst) >= 8 {
		u, d := binary.LittleEndian.Uint64(codes), dst[:8:8]
		d[0] = values[uint8(u)] * scale
		d[1] = values[uint8(u>>8)] * scale
		d[2] = values[uint8(u>>16)] * scale
		d[3] = values[uint8(u>>24)] * scale
		d[4] = values[uint8(u>>32)] * scale
		d[5] = values[uint8(u>>40)] * scale
		d[6] = values[uint8(u>>48)] * scale
		d[7] = values[uint8(u>>56)] * scale
		dst, codes = dst[8:], codes[8:]
	}
	for i := range dst {
		dst[i] = values[codes[i]] * scale
	}
	return true
}

// readValues reads the values as the bytes of the tensor's type; the range exists.
func (t *Tensor) readValues(p []byte, off int64) (n int, err error) {
	encode, width := num.EncodeF32, 4
	switch t.DType {
	case BF16:
		encode, width = num.EncodeBF16, 2
	case F16:
		encode, width = num.EncodeF16, 2
	}
	values := make([]float32, min(len(p)/width+2, run))
	raw := make([]byte, len(values)*width)
	for n < len(p) {
		skip := int((off + int64(n)) % int64(width)) // of the first element
		v := values[:min((skip+len(p)-n+width-1)/width, len(values))]
		if err := t.codec.ReadFloat32(v, (off+int64(n))/int64(width)); err != nil {
			return n, err
		}
		encode(raw, v)
		n += copy(p[n:], raw[skip:len(v)*width])
	}
	return n, nil
}

// valueTable returns the values of all codes of a type.
func valueTable(t DType) *[256]float32 {
	decode := num.F8E4M3ToF32
	if t == F8E5M2 {
		decode = num.F8E5M2ToF32
	}
	v := new([256]float32)
	for c := range v {
		v[c] = decode(uint8(c))
	}
	return v
}

// newScaled returns the tensor of a shape that a codec stores, with the type that its
// values are read in.
func newScaled(name string, shape []int, e *scaled) *Encoded {
	e.Codec = e
	t := F32
	// Times a power of two, the few bits of a code are a BF16.
	if e.scales.DType == F8E8M0 {
		t = BF16
	}
	return &Encoded{Name: name, DType: t, Shape: shape, Encoding: e.Encoding}
}
