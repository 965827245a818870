package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Metadata is the key-value pairs of a GGUF file. A value is of the Go type of the
// file's: int8 to uint64, float32, float64, bool, string, or a slice of such; arrays
// of arrays are a []any.
type Metadata map[string]any

// Int returns an integer of any width, false where there is none under the key.
func (m Metadata) Int(key string) (int64, bool) {
	switch v := m[key].(type) {
	case uint8:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case int64:
		return v, true
	}
	return 0, false
}

// Float returns a number, false where there is none under the key. A float32 comes
// back as the shortest decimal that rounds to it, which is what was meant: 1e-5, not
// 9.99999974e-6.
func (m Metadata) Float(key string) (float64, bool) {
	switch v := m[key].(type) {
	case float32:
		return shortest(v), true
	case float64:
		return v, true
	}
	n, ok := m.Int(key)
	return float64(n), ok
}

// shortest returns the shortest decimal that rounds to v.
func shortest(v float32) float64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	if err != nil { // what FormatFloat writes is a number
		return float64(v)
	}
	return f
}

// Text returns a string, false where there is none under the key.
func (m Metadata) Text(key string) (string, bool) {
	s, ok := m[key].(string)
	return s, ok
}

// Bool returns a truth value, false where there is none under the key.
func (m Metadata) Bool(key string) (value, ok bool) {
	value, ok = m[key].(bool)
	return value, ok
}

// pair reads a key and its value.
func (p *parser) pair(to Metadata) error {
	key, err := p.name()
	if err != nil {
		return err
	}
	if _, ok := to[key]; ok {
		return fmt.Errorf("key %.80q appears twice", key)
	}
	kind, err := p.valueType()
	if err != nil {
		return err
	}
	if to[key], err = p.value(kind, 0); err != nil {
		return fmt.Errorf("key %.80q: %w", key, err)
	}
	return nil
}

func (p *parser) valueType() (ValueType, error) {
	v, err := p.u32()
	return ValueType(v), err
}

// value reads a value of a kind, which depth arrays are around.
func (p *parser) value(kind ValueType, depth int) (any, error) {
	switch kind {
	case String:
		return p.text()
	case Array:
		if depth == maxDepth {
			return nil, fmt.Errorf("arrays nested more than %d deep", maxDepth)
		}
		return p.array(depth + 1)
	}
	b, err := p.bytes(scalarSize(kind))
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch kind {
	case U8:
		return b[0], nil
	case I8:
		return int8(b[0]), nil
	case U16:
		return le.Uint16(b), nil
	case I16:
		return int16(le.Uint16(b)), nil
	case U32:
		return le.Uint32(b), nil
	case I32:
		return int32(le.Uint32(b)), nil
	case Float:
		return math.Float32frombits(le.Uint32(b)), nil
	case Bool:
		if b[0] > 1 {
			return nil, fmt.Errorf("a bool of value %d", b[0])
		}
		return b[0] == 1, nil
	case U64:
		return le.Uint64(b), nil
	case I64:
		return int64(le.Uint64(b)), nil
	case Double:
		return math.Float64frombits(le.Uint64(b)), nil
	}
	return nil, fmt.Errorf("unknown type %d of a value", kind)
}

// scalarSize returns what a number takes in the file, 0 for what is none.
func scalarSize(kind ValueType) int64 {
	switch kind {
	case U8, I8, Bool:
		return 1
	case U16, I16:
		return 2
	case U32, I32, Float:
		return 4
	case U64, I64, Double:
		return 8
	}
	return 0
}

func (p *parser) array(depth int) (any, error) {
	kind, err := p.valueType()
	if err != nil {
		return nil, err
	}
	n, err := p.u64()
	if err != nil {
		return nil, err
	}
	size := scalarSize(kind)
	switch kind {
	case String:
		size = 8
	case Array:
		size = 12
	}
	if size == 0 {
		return nil, fmt.Errorf("unknown type %d of an array's values", kind)
	}
	if err := p.room(n, size); err != nil {
		return nil, err
	}
	switch kind {
	case U8:
		return list[uint8](p, kind, n, depth)
	case I8:
		return list[int8](p, kind, n, depth)
	case U16:
		return list[uint16](p, kind, n, depth)
	case I16:
		return list[int16](p, kind, n, depth)
	case U32:
		return list[uint32](p, kind, n, depth)
	case I32:
		return list[int32](p, kind, n, depth)
	case Float:
		return list[float32](p, kind, n, depth)
	case Bool:
		return list[bool](p, kind, n, depth)
	case String:
		return list[string](p, kind, n, depth)
	case U64:
		return list[uint64](p, kind, n, depth)
	case I64:
		return list[int64](p, kind, n, depth)
	case Double:
		return list[float64](p, kind, n, depth)
	}
	return list[any](p, kind, n, depth)
}

// list reads n values of a kind, for which there is room.
func list[T any](p *parser, kind ValueType, n uint64, depth int) (any, error) {
	values := make([]T, n)
	for i := range values {
		v, err := p.value(kind, depth)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		values[i] = v.(T)
	}
	return values, nil
}

// ints returns an array of integers of any width.
func (m Metadata) ints(key string) ([]int64, error) {
	switch v := m[key].(type) {
	case nil:
		return nil, nil
	case []int32:
		return widen(v), nil
	case []uint32:
		return widen(v), nil
	case []int64:
		return v, nil
	case []int8:
		return widen(v), nil
	case []uint8:
		return widen(v), nil
	case []int16:
		return widen(v), nil
	case []uint16:
		return widen(v), nil
	}
	return nil, errors.New(key + ": want an array of integers")
}

func widen[T int8 | uint8 | int16 | uint16 | int32 | uint32](v []T) []int64 {
	out := make([]int64, len(v))
	for i, x := range v {
		out[i] = int64(x)
	}
	return out
}

// strings returns an array of strings, nil where there is none under the key.
func (m Metadata) strings(key string) ([]string, error) {
	if m[key] == nil {
		return nil, nil
	}
	v, ok := m[key].([]string)
	if !ok {
		return nil, errors.New(key + ": want an array of strings")
	}
	return v, nil
}
