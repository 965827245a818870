package hf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lutq/lutq/formats/input"
)

// file returns a safetensors file of the given header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i*7+i>>8))
	}
	return b
}

func readBytes(b []byte) (*header, error) {
	return readHeader(bytes.NewReader(b), int64(len(b)))
}

func TestBadHeaders(t *testing.T) {
	const a = `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	length := func(n uint64, rest string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
	}
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"empty file", nil, "file of 0 bytes is too short"},
		{"seven bytes", make([]byte, 7), "file of 7 bytes is too short"},
		{"no JSON", make([]byte, 8), `does not begin with "{"`},
		{"length beyond the file", length(100, "{}"), "header length 100 exceeds the file of 10 bytes"},
		{"huge length", length(math.MaxUint64, "{}"), "header length 18446744073709551615 exceeds 100000000"},
		{"length over the limit", length(uint64(input.Header.Limit())+1, "{}"), "not a safetensors file"},
		{"only space", file("  ", 0), `does not begin with "{"`},
		{"null", file(`null`, 0), `does not begin with "{"`},
		{"list", file(`[]`, 0), `does not begin with "{"`},
		{"pickle", file("\x80\x02}q\x00.", 0), `does not begin with "{"`},
		{"broken JSON", file(`{"a":`, 0), "invalid JSON at byte"},
		{"two values", file(`{}{}`, 0), "invalid JSON at byte"},
		{"trailing comma", file(`{`+a+`,}`, 8), "invalid JSON at byte"},
		{"leading zero", file(`{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}`, 8), "invalid JSON at byte"},
		{"bytes after the JSON", file("{}\x00\x00", 0), "invalid JSON at byte"},
		{"deep nesting", file(`{"a":`+strings.Repeat("[", 1_000_000), 0), "invalid JSON"},
		{"invalid UTF-8", file("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8), "invalid UTF-8"},
		{"half a surrogate pair", file(`{"\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), "invalid escape"},
		{"tensor twice", file(`{`+a+`,"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}`, 8), `"a" appears twice`},
		{"tensor in two places", file(`{`+a+`,"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), `"a" appears twice`},
		{"tensor twice by escape", file(`{`+a+`,"\u0061":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}`, 8), `"a" appears twice`},
		{"dtype twice", file(`{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), `key "dtype" appears twice`},
		{"shape twice", file(`{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}`, 8), `key "shape" appears twice`},
		{"offsets twice", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8]}}`, 8), `key "data_offsets" appears twice`},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), `"__metadata__" appears twice`},
		{"metadata key twice", file(`{"__metadata__":{"k":"1","k":"2"}}`, 0), `__metadata__: key "k" appears twice`},
		{"metadata of numbers", file(`{"__metadata__":{"k":1}}`, 0), `key "k": want a string`},
		{"metadata null and an object", file(`{"__metadata__":null,"__metadata__":{}}`, 0), `"__metadata__" appears twice`},
		{"metadata a list", file(`{"__metadata__":[]}`, 0), "__metadata__: want a JSON object"},
		{"tensor null", file(`{"a":null}`, 0), `tensor "a": want a JSON object`},
		{"tensor list", file(`{"a":[]}`, 0), `tensor "a": want a JSON object`},
		{"extra key", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`, 8), `unexpected key "x"`},
		{"no dtype", file(`{"a":{"shape":[2],"data_offsets":[0,8]}}`, 8), `no "dtype"`},
		{"no shape", file(`{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8), `no "shape"`},
		{"no offsets", file(`{"a":{"dtype":"F32","shape":[2]}}`, 8), `no "data_offsets"`},
		{"unknown dtype", file(`{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}`, 8), `unknown dtype "F31"`},
		{"dtype in lower case", file(`{"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}}`, 8), `unknown dtype "f32"`},
		{"dtype a number", file(`{"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}}`, 8), "dtype: want a string"},
		{"shape a number", file(`{"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}`, 8), "shape: want a list"},
		{"negative dimension", file(`{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8), `shape: want a natural number, found "-2"`},
		{"fractional dimension", file(`{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8), `shape: want a natural number, found "2.0"`},
		{"dimension a string", file(`{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}`, 8), "shape: want a natural number"},
		{"dimension over 63 bits", file(`{"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}}`, 8), "is too large"},
		{"product overflows", file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,0]}}`, 0), "overflows"},
		{"product overflows to the right size", file(`{"a":{"dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,4294967296]}}`, 0), "overflows"},
		{"product overflows beside a zero", file(`{"a":{"dtype":"F32","shape":[0,9223372036854775807,4],"data_offsets":[0,0]}}`, 0), "overflows"},
		{"bytes overflow", file(`{"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}`, 0), "overflows"},
		{"name of megabytes", file(`{"`+strings.Repeat("a", 5_000_000)+`":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), "name of 5000000 bytes: want at most 4096"},
		{"metadata key of megabytes", file(`{"__metadata__":{"`+strings.Repeat("a", 5_000_000)+`":"1"}}`, 0), "name of 5000000 bytes"},
		{"a million dimensions", file(`{"a":{"dtype":"F32","shape":[1`+strings.Repeat(",1", 1_000_000)+`],"data_offsets":[0,4]}}`, 4), "shape: more than 64 dimensions"},
		{"one offset", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}`, 8), "want 2 numbers, found 1"},
		{"three offsets", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}`, 8), "want 2 numbers, found 3"},
		{"offsets backwards", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8), "end before they begin"},
		{"size and shape differ", file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8), "hold 8 bytes: F32 [3] takes 12"},
		{"half a byte", file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2), "do not fill whole bytes"},
		{"overlap", file(`{`+a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12), `"a" and "b" overlap`},
		{"same place", file(`{`+a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), `"a" and "b" overlap`},
		{"hole", file(`{`+a+`,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}`, 16), `hole of 4 bytes before tensor "b"`},
		{"hole at the start", file(`{"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), `hole of 4 bytes before tensor "b"`},
		{"truncated data", file(`{`+a+`}`, 7), `truncated: tensor "a" ends at byte 8 of 7`},
		{"trailing bytes", file(`{`+a+`}`, 9), "1 trailing bytes"},
		{"data without tensors", file(`{}`, 3), "3 trailing bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readBytes(tt.file)
			if err == nil {
				t.Fatalf("header is accepted: want an error with %q", tt.want)
			}
			if !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 1000 {
				t.Errorf("got error %.1000q: want %q in it", err, tt.want)
			}
			if strings.ContainsRune(err.Error(), '\n') {
				t.Errorf("error %q has several lines", err)
			}
		})
	}
}

func TestGoodHeaders(t *testing.T) {
	tests := []struct {
		name     string
		file     []byte
		tensors  []Tensor
		metadata map[string]string
	}{
		{"no tensors", file(`{}`, 0), nil, nil},
		{"padding", file("{} \t\n\r  ", 0), nil, nil},
		// What follows is out of the format, but the package safetensors of Python, 0.8, opens it.
		{"leading space", file(" \n{}", 0), nil, nil},
		{"metadata null", file(`{"__metadata__":null}`, 0), nil, nil},
		{
			"twice the same",
			file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"\u0061":{"shape":[2],"dtype":"F32","data_offsets":[0,8]}}`, 8),
			[]Tensor{{Name: "a", DType: F32, Shape: []int{2}, elements: 2, size: 8}},
			nil,
		},
		{
			"not aligned",
			file(`{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}`, 9),
			[]Tensor{{Name: "b", DType: U8, Shape: []int{1}, elements: 1, size: 1}, {Name: "a", DType: F32, Shape: []int{2}, elements: 2, size: 8, offset: 1}},
			nil,
		},
		{
			"white space everywhere",
			file("{ \"a\" : { \"shape\" : [ 2 , 1 ] ,\n\"dtype\":\"F32\", \"data_offsets\":[ 0,8 ] } }", 8),
			[]Tensor{{Name: "a", DType: F32, Shape: []int{2, 1}, elements: 2, size: 8}},
			nil,
		},
		{
			"scalar",
			file(`{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}`, 8),
			[]Tensor{{Name: "a", DType: F64, Shape: []int{}, elements: 1, size: 8}},
			nil,
		},
		{
			"out of order, with an empty tensor",
			file(`{"z":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"e":{"dtype":"BF16","shape":[5,0],"data_offsets":[4,4]},"__metadata__":{"format":"pt","x":""},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}`, 7),
			[]Tensor{
				{Name: "a", DType: "I32", Shape: []int{1}, elements: 1, size: 4},
				{Name: "e", DType: BF16, Shape: []int{5, 0}, offset: 4},
				{Name: "z", DType: U8, Shape: []int{3}, elements: 3, size: 3, offset: 4},
			},
			map[string]string{"format": "pt", "x": ""},
		},
		{
			"types that are only copied",
			file(`{"c":{"dtype":"C64","shape":[1],"data_offsets":[0,8]},"f8":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[8,12]},"f6":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[12,15]},"f4":{"dtype":"F4","shape":[6],"data_offsets":[15,18]}}`, 18),
			[]Tensor{
				{Name: "c", DType: "C64", Shape: []int{1}, elements: 1, size: 8},
				{Name: "f8", DType: "F8_E4M3", Shape: []int{2, 2}, elements: 4, size: 4, offset: 8},
				{Name: "f6", DType: "F6_E2M3", Shape: []int{4}, elements: 4, size: 3, offset: 12},
				{Name: "f4", DType: "F4", Shape: []int{6}, elements: 6, size: 3, offset: 15},
			},
			nil,
		},
		{
			"escapes in names",
			file(`{"\"\\\u00e4\ud83d\ude00\ufffd/":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0),
			[]Tensor{{Name: "\"\\ä😀\ufffd/", DType: U8, Shape: []int{0}}},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, err := readBytes(tt.file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.tensors, h.tensors, cmpopts.EquateEmpty(), cmp.AllowUnexported(Tensor{}), cmp.Comparer(sameFile)); diff != "" {
				t.Errorf("tensors (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.metadata, h.metadata); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHeaderReadFails: what a disk reports comes through, and a file that is
// shorter than the system says is an unexpected end.
func TestHeaderReadFails(t *testing.T) {
	good := file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8)
	for _, n := range []int{4, 20} {
		_, err := readHeader(bytes.NewReader(good[:n]), int64(len(good)))
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: got error %v: want %v", n, err, io.ErrUnexpectedEOF)
		}
	}
	broken := errors.New("broken disk")
	if _, err := readHeader(failingReader{broken}, 100); !errors.Is(err, broken) {
		t.Errorf("got error %v: want %v", err, broken)
	}
}

type failingReader struct{ err error }

func (r failingReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }

func TestDTypeBits(t *testing.T) {
	// Sizes of https://github.com/huggingface/safetensors (enum Dtype).
	want := map[DType]int{
		"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
		"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16,
		"BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
		"I64": 64, "U64": 64, "": 0, "f32": 0, "F8": 0,
	}
	for d, bits := range want {
		if got := d.Bits(); got != bits {
			t.Errorf("%q has %d bits: want %d", d, got, bits)
		}
	}
}

func headerSeeds() [][]byte {
	return [][]byte{
		nil,
		file(`{}`, 0),
		file(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   `, 8),
		file(`{"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}`, 12),
		file(`{"\u0061\ud83d\ude00":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]}}`, 1),
		file(`{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}`, 0),
		file(`{"a":{"dtype":"F32","shape":[[{"x":[]}]],"data_offsets":[0,0]}}`, 0),
	}
}

// FuzzHeader: whatever is accepted is consistent, and comes back from the
// writer's header.
func FuzzHeader(f *testing.F) {
	for _, seed := range headerSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readBytes(b)
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("error %q has several lines", err)
			}
			return
		}
		end := h.size
		entries := make([]placed, len(h.tensors))
		for i := range h.tensors {
			x := &h.tensors[i]
			if h.size+x.offset != end {
				t.Fatalf("tensor %q begins at %d: want %d", x.Name, h.size+x.offset, end)
			}
			end += x.size
			entries[i] = placed{Entry{x.Name, x.DType, x.Shape}, x.offset, x.size}
		}
		if end != int64(len(b)) {
			t.Fatalf("tensors end at %d of %d bytes", end, len(b))
		}
		again, err := parseHeader(appendHeaderJSON(nil, h.metadata, entries))
		if err != nil {
			t.Fatalf("written header is refused: %v", err)
		}
		if err := again.validate(int64(len(b)) - h.size); err != nil {
			t.Fatalf("written header is refused: %v", err)
		}
		if diff := cmp.Diff(h.tensors, again.tensors, cmpopts.EquateEmpty(), cmp.AllowUnexported(Tensor{}), cmp.Comparer(sameFile)); diff != "" {
			t.Fatalf("written header (-read +written):\n%s", diff)
		}
	})
}

func BenchmarkHeader(b *testing.B) {
	for _, n := range []int{300, 5000, 100_000, 500_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			entries := make([]Entry, n)
			for i := range entries {
				entries[i] = Entry{fmt.Sprintf("model.layers.%d.mlp.experts.%d.down_proj.weight", i/256, i%256), BF16, []int{4, 8}}
			}
			shards, err := layOut(entries, math.MaxInt64, map[string]string{"format": "pt"})
			if err != nil {
				b.Fatal(err)
			}
			r := sparse{shards[0].header}
			b.SetBytes(int64(len(shards[0].header)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := readHeader(r, shards[0].size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// sparse is a file of which only the header is there.
type sparse struct{ header []byte }

func (s sparse) ReadAt(p []byte, off int64) (int, error) { return copy(p, s.header[off:]), nil }
