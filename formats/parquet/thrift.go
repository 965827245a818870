package parquet

import (
	"encoding/binary"
	"errors"
	"math"
)

// fields are a struct of Thrift's compact protocol, by number: bool, int64, float64, []byte, []any and fields. Methods of what is
// not there, or of another type, return nothing.
type fields map[int16]any

func (f fields) has(id int16) bool { return f[id] != nil }

func (f fields) int(id int16) int64 {
	n, _ := f[id].(int64)
	return n
}

func (f fields) text(id int16) string {
	b, _ := f[id].([]byte)
	return string(b)
}

func (f fields) list(id int16) []any {
	l, _ := f[id].([]any)
	return l
}

func (f fields) fields(id int16) fields {
	g, _ := f[id].(fields)
	return g
}

// Types of Thrift's compact protocol.
const (
	typeStop = iota
	typeTrue
	typeFalse
	typeByte
	typeI16
	typeI32
	typeI64
	typeDouble
	typeBinary
	typeList
	typeSet
	typeMap
	typeStruct
)

// thrift reads the protocol.
type thrift struct {
	data []byte
	left int // values that there may be
}

// readFields reads a struct and returns what follows it.
func readFields(data []byte) (fields, []byte, error) {
	t := &thrift{data: data, left: len(data) + 1} // of which each takes a byte or more
	f, err := t.fields(0)
	return f, t.data, err
}

func (t *thrift) byte() (byte, error) {
	if len(t.data) == 0 {
		return 0, errCut
	}
	b := t.data[0]
	t.data = t.data[1:]
	return b, nil
}

func (t *thrift) varint() (uint64, error) {
	v, n := binary.Uvarint(t.data)
	if n <= 0 {
		return 0, errCut
	}
	t.data = t.data[n:]
	return v, nil
}

// whole reads a number in zigzag order.
func (t *thrift) whole() (int64, error) {
	v, err := t.varint()
	return int64(v>>1) ^ -int64(v&1), err
}

func (t *thrift) fields(depth int) (fields, error) {
	f := make(fields)
	id := int16(0)
	for {
		head, err := t.byte()
		if err != nil {
			return nil, err
		}
		if head == typeStop {
			return f, nil
		}
		if step := int16(head >> 4); step != 0 {
			id += step
		} else {
			n, err := t.whole()
			if err != nil {
				return nil, err
			}
			id = int16(n)
		}
		switch head & 15 {
		case typeTrue, typeFalse:
			f[id] = head&15 == typeTrue
			continue
		}
		if f[id], err = t.value(head&15, depth); err != nil {
			return nil, err
		}
	}
}

func (t *thrift) value(kind byte, depth int) (any, error) {
	if t.left--; t.left < 0 || depth > deepest {
		return nil, errCut
	}
	switch kind {
	case typeTrue, typeFalse: // in a list, where each has a byte
		b, err := t.byte()
		return b == typeTrue, err
	case typeByte:
		b, err := t.byte()
		return int64(int8(b)), err
	case typeI16, typeI32, typeI64:
		return t.whole()
	case typeDouble:
		if len(t.data) < 8 {
			return nil, errCut
		}
		v := math.Float64frombits(binary.LittleEndian.Uint64(t.data))
		t.data = t.data[8:]
		return v, nil
	case typeBinary:
		n, err := t.varint()
		if err != nil || n > uint64(len(t.data)) {
			return nil, errCut
		}
		b := t.data[:n]
		t.data = t.data[n:]
		return b, nil
	case typeList, typeSet:
		return t.elements(depth)
	case typeMap:
		return nil, t.skipMap(depth)
	case typeStruct:
		return t.fields(depth + 1)
	}
	return nil, errors.New("its description has a type that is not known")
}

func (t *thrift) elements(depth int) (any, error) {
	head, err := t.byte()
	if err != nil {
		return nil, err
	}
	n := uint64(head >> 4)
	if n == 15 {
		if n, err = t.varint(); err != nil {
			return nil, err
		}
	}
	if n > uint64(len(t.data)) {
		return nil, errCut
	}
	list := make([]any, 0, n)
	for range n {
		v, err := t.value(head&15, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// skipMap passes by a map, of which Parquet has none so far.
func (t *thrift) skipMap(depth int) error {
	n, err := t.varint()
	if err != nil || n == 0 {
		return err
	}
	kinds, err := t.byte()
	if err != nil || n > uint64(len(t.data)) {
		return errCut
	}
	for range n {
		if _, err := t.value(kinds>>4, depth+1); err != nil {
			return err
		}
		if _, err := t.value(kinds&15, depth+1); err != nil {
			return err
		}
	}
	return nil
}
