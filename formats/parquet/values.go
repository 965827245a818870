package parquet

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// kind is a physical type.
type kind int64

const (
	boolean kind = iota
	int32s
	int64s
	int96s
	float32s
	float64s
	byteArrays
	fixedArrays
)

func (k kind) String() string {
	names := []string{"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("type %d", int64(k))
	}
	return names[k]
}

// encoding is how values are written.
type encoding int64

const (
	plain           encoding = 0
	plainDictionary encoding = 2
	rle             encoding = 3
	rleDictionary   encoding = 8
)

func (e encoding) String() string {
	names := map[encoding]string{
		plain: "PLAIN", plainDictionary: "PLAIN_DICTIONARY", rle: "RLE", 4: "BIT_PACKED", 5: "DELTA_BINARY_PACKED",
		6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY", rleDictionary: "RLE_DICTIONARY", 9: "BYTE_STREAM_SPLIT",
	}
	if name, ok := names[e]; ok {
		return name
	}
	return fmt.Sprint(int64(e))
}

// codec is how pages are packed.
type codec int64

func (c codec) String() string {
	names := []string{"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprint(int64(c))
	}
	return names[c]
}

// unpack returns what a page is of, of so many bytes.
func (c codec) unpack(data []byte, size int) (out []byte, err error) {
	switch c {
	case 0:
		out = data
	case 1:
		if n, err := snappy.DecodedLen(data); err != nil || n != size {
			return nil, errCut
		}
		out, err = snappy.Decode(nil, data)
	case 2:
		z, zErr := gzip.NewReader(bytes.NewReader(data))
		if zErr != nil {
			return nil, errCut
		}
		out = make([]byte, size)
		_, err = io.ReadFull(z, out)
	case 6:
		z, zErr := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostPage))
		if zErr != nil {
			return nil, zErr
		}
		defer z.Close()
		out = make([]byte, size)
		_, err = io.ReadFull(z, out)
	default:
		return nil, fmt.Errorf("pages packed by %v are not read", c)
	}
	if err != nil || len(out) != size {
		return nil, errCut
	}
	return out, nil
}

// plain reads n values that follow each other.
func (c *column) plain(body []byte, n int) ([]any, error) {
	width := map[kind]int{int32s: 4, int64s: 8, float32s: 4, float64s: 8}[c.kind]
	switch c.kind {
	case boolean:
		if n > 8*len(body) {
			return nil, errCut
		}
	case byteArrays:
		width = 4 // of the length, at least
	case int96s, fixedArrays:
		return nil, fmt.Errorf("values of type %v are not read", c.kind)
	}
	if c.kind != boolean && (width == 0 || n > len(body)/width) {
		return nil, errCut
	}
	values := make([]any, n)
	for i := range values {
		switch c.kind {
		case boolean:
			values[i] = body[i/8]>>(i%8)&1 == 1
			continue
		case int32s:
			v := binary.LittleEndian.Uint32(body)
			if values[i] = int(int32(v)); c.unsigned {
				values[i] = int(v)
			}
		case int64s:
			v := binary.LittleEndian.Uint64(body)
			if c.unsigned && v > math.MaxInt64 {
				return nil, fmt.Errorf("the number %d is too large", v)
			}
			values[i] = int(v)
		case float32s:
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(body)))
		case float64s:
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(body))
		case byteArrays:
			if len(body) < 4 {
				return nil, errCut
			}
			size := int64(binary.LittleEndian.Uint32(body))
			if size > int64(len(body)-4) {
				return nil, errCut
			}
			text := body[4 : 4+size]
			switch {
			case !c.text:
				values[i] = bytes.Clone(text)
			case !utf8.Valid(text):
				return nil, errors.New("a text is not UTF-8")
			default:
				values[i] = string(text)
			}
			body = body[4+size:]
			continue
		}
		body = body[width:]
	}
	return values, nil
}

// readLevels reads n levels up to top.
func readLevels(data []byte, n, top int) ([]uint8, error) {
	runs, err := readRuns(data, n, bits.Len(uint(top)))
	if err != nil {
		return nil, err
	}
	levels := make([]uint8, n)
	for i, v := range runs {
		if v > uint32(top) {
			return nil, errCut
		}
		levels[i] = uint8(v)
	}
	return levels, nil
}

// readRuns reads n numbers of a width in bits: runs of one number, and of eights that are packed, lowest bits first.
func readRuns(data []byte, n, width int) ([]uint32, error) {
	if width > 32 {
		return nil, errCut
	}
	var all []uint32
	for len(all) < n {
		head, size := binary.Uvarint(data)
		if size <= 0 {
			return nil, errCut
		}
		data = data[size:]
		left := n - len(all)
		if head&1 == 0 { // of one number
			whole := (width + 7) / 8
			if len(data) < whole || head == 0 {
				return nil, errCut
			}
			var v uint32
			for i, b := range data[:whole] {
				v |= uint32(b) << (8 * i)
			}
			data = data[whole:]
			if width < 32 && v>>width != 0 {
				return nil, errCut
			}
			for range min(uint64(left), head>>1) {
				all = append(all, v)
			}
			continue
		}
		eights := head >> 1
		if eights == 0 || width > 0 && eights > uint64(len(data)/width) {
			// The last may end early, where the numbers that count have come.
			if width == 0 || eights == 0 || (left*width+7)/8 > len(data) {
				return nil, errCut
			}
			eights = uint64(left+7) / 8
		}
		count := int(min(uint64(left), 8*eights))
		for i := range count {
			all = append(all, bitsAt(data, i*width, width))
		}
		data = data[min(uint64(len(data)), eights*uint64(width)):]
	}
	return all, nil
}

// bitsAt returns a number of a width at a bit.
func bitsAt(data []byte, at, width int) (v uint32) {
	for got := 0; got < width; {
		i := (at + got) / 8
		if i >= len(data) {
			break
		}
		shift := (at + got) % 8
		take := min(8-shift, width-got)
		v |= uint32(data[i]>>shift) & (1<<take - 1) << got
		got += take
	}
	return v
}
