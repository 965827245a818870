package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/racetest"
)

// rawFile is a file put together field by field, so that any may be wrong.
type rawFile struct{ bytes.Buffer }

func (f *rawFile) put(values ...any) *rawFile {
	for _, v := range values {
		switch v := v.(type) {
		case string:
			f.put(uint64(len(v)), []byte(v))
		case []string:
			f.put(uint32(String), uint64(len(v)))
			for _, s := range v {
				f.put(s)
			}
		case Type:
			f.put(uint32(v))
		case ValueType:
			f.put(uint32(v))
		default:
			if err := binary.Write(f, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
	return f
}

func (f *rawFile) pad(n int) *rawFile {
	for f.Len()%n != 0 {
		f.WriteByte(0)
	}
	return f
}

// newFile begins a file.
func newFile(version uint32, tensors, pairs uint64) *rawFile {
	f := new(rawFile)
	f.WriteString(magic)
	return f.put(version, tensors, pairs)
}

// smallFile is a file with pairs of every type and two tensors.
func smallFile(version uint32) []byte {
	f := newFile(version, 2, 15)
	f.put("u8", U8, uint8(200), "i8", I8, int8(-3), "u16", U16, uint16(60000), "i16", I16, int16(-30000))
	f.put("u32", U32, uint32(4e9), "i32", I32, int32(-2e9), "f32", Float, float32(1e-5), "bool", Bool, true)
	f.put("string", String, "träger", "u64", U64, uint64(1<<63), "i64", I64, int64(-1<<60), "f64", Double, 0.1)
	f.put("strings", Array, []string{"a", "", "ccc"}, "ints", Array, I32, uint64(2), []int32{7, -7})
	f.put("nested", Array, Array, uint64(2), U8, uint64(1), uint8(1), U8, uint64(0))
	f.put("one", uint32(2), uint64(32), uint64(2), Q4_0, uint64(32)) // the later of the two
	f.put("two", uint32(1), uint64(3), F32, uint64(0)).pad(alignment)
	f.put([]float32{1, 2, 3}).pad(alignment)
	for i := range 2 {
		f.put(uint16(0x3c00 + 0x400*i)) // 1, 2
		for j := range 16 {
			f.put(uint8(j | (15-j)<<4))
		}
	}
	return f.Bytes()
}

func openBytes(t testing.TB, data []byte) (*File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return Open(path)
}

func TestOpen(t *testing.T) {
	racetest.Skip(t)
	for _, version := range []uint32{2, 3} {
		f, err := openBytes(t, smallFile(version))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want := Metadata{
			"u8": uint8(200), "i8": int8(-3), "u16": uint16(60000), "i16": int16(-30000),
			"u32": uint32(4e9), "i32": int32(-2e9), "f32": float32(1e-5), "bool": true, "string": "träger",
			"u64": uint64(1 << 63), "i64": int64(-1 << 60), "f64": 0.1, "strings": []string{"a", "", "ccc"},
			"ints": []int32{7, -7}, "nested": []any{[]uint8{1}, []uint8{}},
		}
		if !reflect.DeepEqual(f.Meta, want) {
			t.Errorf("version %d: metadata %v\nwant %v", version, f.Meta, want)
		}
		if eps, ok := f.Meta.Float("f32"); !ok || eps != 1e-5 {
			t.Errorf("float32(1e-5) is read as %v", eps)
		}
		if n, ok := f.Meta.Int("u64"); ok {
			t.Errorf("2^63 is the integer %d", n)
		}
		two, ok := f.Tensor("two")
		if !ok || f.Tensors[0] != two || !slices.Equal(two.Shape, []int{3}) {
			t.Fatalf("tensors %+v", f.Tensors)
		}
		one, _ := f.Tensor("one")
		if one.Type != Q4_0 || !slices.Equal(one.Shape, []int{2, 32}) || one.Bytes() != 36 {
			t.Errorf("tensor one: %+v", one)
		}
		all := make([]float32, 64)
		if err := one.ReadFloat32(all, 0); err != nil {
			t.Fatal(err)
		}
		if all[0] != -8 || all[16] != 7 || all[32] != -16 || all[63] != -16 {
			t.Errorf("values %v", all)
		}
		for start := range 64 { // parts that begin and end within blocks
			for n := range 64 - start + 1 {
				part := make([]float32, n)
				if err := one.ReadFloat32(part, int64(start)); err != nil || !slices.Equal(part, all[start:start+n]) {
					t.Fatalf("elements [%d, %d): %v, %v", start, start+n, part, err)
				}
			}
		}
		if err := one.ReadFloat32(make([]float32, 2), 63); err == nil {
			t.Error("read beyond the end")
		}
		raw := make([]byte, 40)
		if n, err := one.ReadAt(raw, 30); n != 6 || err != io.EOF {
			t.Errorf("ReadAt at the end: %d bytes, %v", n, err)
		}
	}
}

func TestOpenBad(t *testing.T) {
	one := func(f *rawFile) *rawFile { return f.put("t", uint32(1), uint64(32), Q8_0, uint64(0)).pad(alignment) }
	good := smallFile(3)
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "header is damaged or the file truncated"},
		{"not gguf", []byte("GGML and more than eight bytes"), "not a GGUF file"},
		{"version 1", newFile(1, 0, 0).Bytes(), "GGUF version 1: want 2 or 3"},
		{"big endian", newFile(3<<24, 0, 0).Bytes(), "GGUF version 3 in big endian"},
		{"half a header", good[:100], "truncated"},
		{"half the data", good[:len(good)-1], `file is truncated: tensor "one"`},
		{"a key of gigabytes", newFile(3, 0, 1).put(uint64(1)<<40, []byte("x")).Bytes(), "a name of 1099511627776 bytes"},
		{"a string of gigabytes", newFile(3, 0, 1).put("k", String, uint64(1)<<62, []byte("x")).Bytes(), "truncated"},
		{"a list of gigabytes", newFile(3, 0, 1).put("k", Array, U64, uint64(1)<<61).Bytes(), "truncated"},
		{"a list of unknown things", newFile(3, 0, 1).put("k", Array, uint32(77), uint64(1)).Bytes(), "unknown type 77"},
		{"an unknown value", newFile(3, 0, 1).put("k", uint32(13), uint64(1)).Bytes(), `key "k": unknown type 13`},
		{"deep", newFile(3, 0, 1).put("k", Array, Array, uint64(1), Array, uint64(1), Array, uint64(1), Array, uint64(1), make([]byte, 40)).Bytes(), "nested"},
		{"no bool", newFile(3, 0, 1).put("k", Bool, uint8(2)).Bytes(), "a bool of value 2"},
		{"a key twice", newFile(3, 0, 2).put("k", U8, uint8(2), "k", U8, uint8(2)).Bytes(), `key "k" appears twice`},
		{"too many tensors", newFile(3, 1<<60, 0).Bytes(), "truncated"},
		{"a tensor twice", one(one(newFile(3, 2, 0))).put(make([]byte, 128)).Bytes(), "a name of"},
		{"no dimensions", newFile(3, 1, 0).put("t", uint32(0), make([]byte, 64)).Bytes(), "0 dimensions"},
		{"five dimensions", newFile(3, 1, 0).put("t", uint32(5), make([]byte, 64)).Bytes(), "5 dimensions"},
		{"a dimension of zero", newFile(3, 1, 0).put("t", uint32(1), uint64(0), make([]byte, 64)).Bytes(), "dimension 0"},
		{"dimensions that overflow", newFile(3, 1, 0).put("t", uint32(2), uint64(1)<<40, uint64(1)<<40, make([]byte, 64)).Bytes(), "makes no sense"},
		{"a type that was removed", newFile(3, 1, 0).put("t", uint32(1), uint64(32), uint32(4), uint64(0)).pad(alignment).Bytes(), "type Q4_2 is not supported"},
		{"a type that is not decoded", newFile(3, 1, 0).put("blk.0.ffn_up.weight", uint32(1), uint64(256), uint32(16), uint64(0)).pad(alignment).Bytes(), `tensor "blk.0.ffn_up.weight": type IQ2_XXS is not supported`},
		{"a type of the future", newFile(3, 1, 0).put("t", uint32(1), uint64(32), uint32(99), uint64(0)).pad(alignment).Bytes(), "type 99 is not supported"},
		{"half a block", newFile(3, 1, 0).put("t", uint32(1), uint64(48), Q4_0, uint64(0)).pad(alignment).put(make([]byte, 64)).Bytes(), "do not fill blocks of 32"},
		{"an odd offset", newFile(3, 1, 0).put("t", uint32(1), uint64(1), F32, uint64(4)).pad(alignment).put(make([]byte, 64)).Bytes(), "no multiple of the alignment"},
		{"overlap", newFile(3, 2, 0).put("t", uint32(1), uint64(16), F32, uint64(0), "u", uint32(1), uint64(1), F32, uint64(32)).pad(alignment).put(make([]byte, 64)).Bytes(), "overlap"},
		{"an odd alignment", newFile(3, 0, 1).put(alignmentKey, U32, uint32(48)).Bytes(), "want a power of two"},
		{"a part of many", newFile(3, 0, 2).put("split.no", U16, uint16(1), "split.count", U16, uint16(2)).Bytes(), "is part 2 of 2"},
		{"a part of none", newFile(3, 0, 2).put("split.no", U16, uint16(2), "split.count", U16, uint16(2)).Bytes(), "makes no sense"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := openBytes(t, tt.data)
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q: want one line with %q", err, tt.want)
			}
		})
	}
}

// TestOpenSplit opens a file of two parts by either, and misses parts.
func TestOpenSplit(t *testing.T) {
	dir := t.TempDir()
	path := func(i int) string { return filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", i+1)) }
	for i := range 2 {
		f := newFile(3, 1, 3).put("split.no", U16, uint16(i), "split.count", U16, uint16(2), "split.tensors.count", I32, int32(2))
		f.put(fmt.Sprint("t", i), uint32(1), uint64(1), F32, uint64(0)).pad(alignment).put(float32(i + 5))
		if err := os.WriteFile(path(i), f.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		f, err := Open(path(i))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var v [1]float32
		second, ok := f.Tensor("t1")
		if !ok || second.ReadFloat32(v[:], 0) != nil || v[0] != 6 || second.Part != filepath.Base(path(1)) {
			t.Errorf("by part %d: tensor %+v has %v", i, second, v)
		}
	}
	if err := os.Remove(path(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path(0)); err == nil || !strings.Contains(err.Error(), "m-00002-of-00002.gguf") {
		t.Errorf("error %v: want the missing part named", err)
	}
}

// TestShortened reads a file that has become shorter since it was opened.
func TestShortened(t *testing.T) {
	f, err := openBytes(t, smallFile(3))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(f.Path(), 400); err != nil {
		t.Fatal(err)
	}
	one, _ := f.Tensor("one")
	if err := one.ReadFloat32(make([]float32, 64), 0); err == nil || !strings.Contains(err.Error(), `tensor "one"`) {
		t.Errorf("error %v: want the tensor named", err)
	}
}

// FuzzOpen opens any bytes and reads what tensors they have.
func FuzzOpen(f *testing.F) {
	f.Add(smallFile(3))
	f.Add(smallFile(2))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		total := int64(0)
		for i := range h.tensors {
			x := &h.tensors[i]
			total += x.size
			if x.offset < 0 || x.offset+x.size > int64(len(data)) {
				t.Errorf("tensor %q [%d, %d) is outside the %d bytes", x.Name, x.offset, x.offset+x.size, len(data))
			}
		}
		if total > int64(len(data)) {
			t.Errorf("%d bytes of tensors in %d bytes", total, len(data))
		}
	})
}
