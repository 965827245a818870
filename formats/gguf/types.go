package gguf

import (
	"fmt"
	"strings"
)

// Type is the type of a tensor's elements, as files number it.
type Type uint32

// The types that are read or written. A file may have others.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	IQ4_NL Type = 20
	IQ4_XS Type = 23
	BF16   Type = 30
	MXFP4  Type = 39
)

// typeInfo describes a type. Sizes are those of ggml's blocks.
type typeInfo struct {
	Type
	name            string
	elements, bytes int // of a block
	fileType        uint32
}

// types lists every type there is. fileType is what general.file_type says of a file
// that has most of its weights in it, which is only a label.
func types() []typeInfo {
	return []typeInfo{
		{F32, "f32", 1, 4, 0},
		{F16, "f16", 1, 2, 1},
		{BF16, "bf16", 1, 2, 32},
		{Q4_0, "q4_0", 32, 18, 2},
		{Q4_1, "q4_1", 32, 20, 3},
		{Q5_0, "q5_0", 32, 22, 8},
		{Q5_1, "q5_1", 32, 24, 9},
		{Q8_0, "q8_0", 32, 34, 7},
		{IQ4_NL, "iq4_nl", 32, 18, 25},
		{MXFP4, "mxfp4", 32, 17, 38},
		{Q2_K, "q2_k", 256, 84, 10},
		{Q3_K, "q3_k", 256, 110, 12},
		{Q4_K, "q4_k", 256, 144, 15},
		{Q5_K, "q5_k", 256, 176, 17},
		{Q6_K, "q6_k", 256, 210, 18},
		{IQ4_XS, "iq4_xs", 256, 136, 30},
	}
}

func (t Type) info() (typeInfo, bool) {
	for _, i := range types() {
		if i.Type == t {
			return i, true
		}
	}
	return typeInfo{}, false
}

// String returns the type's name as flags spell it.
func (t Type) String() string {
	if i, ok := t.info(); ok {
		return i.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block returns how many elements a block has and how many bytes it takes, 0 for an unknown type.
func (t Type) Block() (elements, bytes int) {
	i, _ := t.info()
	return i.elements, i.bytes
}

// RowBytes returns what k elements take, which must be whole blocks.
func (t Type) RowBytes(k int) int {
	elements, bytes := t.Block()
	return k / elements * bytes
}

// TypeNames lists the names that [ParseType] reads.
func TypeNames() []string {
	var names []string
	for _, i := range types() {
		names = append(names, i.name)
	}
	return names
}

// ParseType is the inverse of [Type.String], in letters of either case.
func ParseType(name string) (Type, error) {
	for _, i := range types() {
		if strings.EqualFold(i.name, name) {
			return i.Type, nil
		}
	}
	return 0, fmt.Errorf("unknown type %q: want %s", name, strings.Join(TypeNames(), ", "))
}

// ValueType is the type of a pair's value, as files number it.
type ValueType uint32

// The types of values, and what they are in Go. An array is a slice of these.
const (
	U8     ValueType = 0  // uint8
	I8     ValueType = 1  // int8
	U16    ValueType = 2  // uint16
	I16    ValueType = 3  // int16
	U32    ValueType = 4  // uint32
	I32    ValueType = 5  // int32
	Float  ValueType = 6  // float32
	Bool   ValueType = 7  // bool, in a byte
	String ValueType = 8  // string
	Array  ValueType = 9  // a slice
	U64    ValueType = 10 // uint64
	I64    ValueType = 11 // int64
	Double ValueType = 12 // float64
)

// KV is a pair of a file's metadata. Value has one of the types of [ValueType].
type KV struct {
	Key   string
	Value any
}
