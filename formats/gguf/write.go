package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"github.com/lutq/lutq/formats/input"
)

// Entry is a tensor of a file to be written.
type Entry struct {
	Name  string
	Type  Type
	Shape []int // row-major
}

// Bytes returns the size of the tensor's data. A row that is no whole blocks is an error.
func (e Entry) Bytes() (int64, error) {
	elements, bytes := e.Type.Block()
	if elements == 0 {
		return 0, fmt.Errorf("tensor %q: unknown type %d", e.Name, e.Type)
	}
	if len(e.Shape) == 0 || len(e.Shape) > maxDims {
		return 0, fmt.Errorf("tensor %q: %d dimensions: want 1 to %d", e.Name, len(e.Shape), maxDims)
	}
	k := e.Shape[len(e.Shape)-1]
	if k%elements != 0 {
		return 0, fmt.Errorf("tensor %q: rows of %d elements are no whole blocks of %d of type %s", e.Name, k, elements, e.Type)
	}
	size := int64(k / elements * bytes)
	for _, n := range e.Shape[:len(e.Shape)-1] {
		if n < 0 || n > 0 && size > math.MaxInt64/int64(n) {
			return 0, fmt.Errorf("tensor %q: shape %v is too large", e.Name, e.Shape)
		}
		size *= int64(n)
	}
	return size, nil
}

// Writer writes a GGUF file. Its methods may be called from several goroutines, for different tensors or
// different parts of one.
type Writer struct {
	file   *os.File
	places map[string]*place
}

// place is where a tensor's data goes.
type place struct {
	offset, size int64
	written      atomic.Int64
}

// NewWriter creates a file, which must not exist, in its full size, and writes all but the tensors' data, which lie in the
// order of the entries.
func NewWriter(path string, kvs []KV, entries []Entry) (*Writer, error) {
	header := append([]byte(magic), u32(version)...)
	header = append(header, u64(uint64(len(entries)))...)
	header = append(header, u64(uint64(len(kvs)))...)
	var err error
	for _, kv := range kvs {
		header = appendString(header, kv.Key)
		if header, err = appendValue(header, kv.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	w := &Writer{places: make(map[string]*place, len(entries))}
	offset := int64(0)
	for _, e := range entries {
		size, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		if w.places[e.Name] != nil {
			return nil, fmt.Errorf("tensor %q appears twice", e.Name)
		}
		w.places[e.Name] = &place{offset: offset, size: size}
		header = appendString(header, e.Name)
		header = append(header, u32(uint32(len(e.Shape)))...)
		for i := len(e.Shape) - 1; i >= 0; i-- {
			header = append(header, u64(uint64(e.Shape[i]))...)
		}
		header = append(header, u32(uint32(e.Type))...)
		header = append(header, u64(uint64(offset))...)
		offset = aligned(offset + size)
	}
	base := aligned(int64(len(header)))
	for _, p := range w.places {
		p.offset += base
	}
	if w.file, err = input.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666); err != nil {
		return nil, err
	}
	err = w.file.Truncate(base + offset)
	if err == nil {
		_, err = w.file.WriteAt(header, 0)
	}
	if err != nil {
		w.Abort()
		return nil, err
	}
	return w, nil
}

func aligned(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// WriteAt writes p to a tensor's data from byte off on.
func (w *Writer) WriteAt(name string, p []byte, off int64) error {
	t := w.places[name]
	if t == nil {
		return fmt.Errorf("tensor %q is not in the layout", name)
	}
	if off < 0 || off > t.size-int64(len(p)) {
		return fmt.Errorf("tensor %q: %d bytes at %d are outside its %d", name, len(p), off, t.size)
	}
	if _, err := w.file.WriteAt(p, t.offset+off); err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	t.written.Add(int64(len(p)))
	return nil
}

// Commit makes the file durable and closes it. A tensor that has not been written in full is an error.
func (w *Writer) Commit() error {
	for name, t := range w.places {
		if n := t.written.Load(); n != t.size {
			w.Abort()
			return fmt.Errorf("tensor %q: %d of %d bytes were written", name, n, t.size)
		}
	}
	err := errors.Join(w.file.Sync(), w.file.Close())
	w.file = nil
	return err
}

// Abort closes and removes the file. After [Writer.Commit] it does nothing.
func (w *Writer) Abort() {
	if w.file == nil {
		return
	}
	w.file.Close()
	os.Remove(w.file.Name())
	w.file = nil
}

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// appendValue appends a value's type and the value.
func appendValue(b []byte, value any) ([]byte, error) {
	switch list := value.(type) {
	case []string:
		return appendArray(b, list)
	case []float32:
		return appendArray(b, list)
	case []int32:
		return appendArray(b, list)
	case []uint32:
		return appendArray(b, list)
	case []bool:
		return appendArray(b, list)
	}
	t, ok := typeOf(value)
	if !ok {
		return nil, fmt.Errorf("no value has type %T", value)
	}
	return appendScalar(append(b, u32(uint32(t))...), value), nil
}

// typeOf returns the type of a value that is no array.
func typeOf(value any) (ValueType, bool) {
	switch value.(type) {
	case uint8:
		return U8, true
	case int8:
		return I8, true
	case uint16:
		return U16, true
	case int16:
		return I16, true
	case uint32:
		return U32, true
	case int32:
		return I32, true
	case float32:
		return Float, true
	case bool:
		return Bool, true
	case string:
		return String, true
	case uint64:
		return U64, true
	case int64:
		return I64, true
	case float64:
		return Double, true
	}
	return 0, false
}

func appendScalar(b []byte, value any) []byte {
	if s, ok := value.(string); ok {
		return appendString(b, s)
	}
	b, err := binary.Append(b, binary.LittleEndian, value)
	if err != nil {
		panic(err) // numbers of a size always encode
	}
	return b
}

func appendArray[T any](b []byte, list []T) ([]byte, error) {
	var zero T
	t, ok := typeOf(zero)
	if !ok {
		return nil, fmt.Errorf("no array has elements of type %T", zero)
	}
	b = append(b, u32(uint32(Array))...)
	b = append(b, u32(uint32(t))...)
	b = append(b, u64(uint64(len(list)))...)
	for _, v := range list {
		b = appendScalar(b, v)
	}
	return b, nil
}
