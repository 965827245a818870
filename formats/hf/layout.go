package hf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/input"
)

// Entry describes a tensor to be written.
type Entry struct {
	Name  string
	DType DType
	Shape []int
}

// Bytes returns the size of the tensor's data. Unknown types and shapes that
// cannot be are errors.
func (e Entry) Bytes() (int64, error) {
	_, size, err := sizeOf(e.DType, e.Shape)
	if err != nil {
		return 0, fmt.Errorf("tensor %q: %w", e.Name, err)
	}
	return size, nil
}

// placed is an entry with its place in a shard.
type placed struct {
	Entry
	offset, size int64 // of the data; offset counts from the end of the header
}

// shardLayout is a file before it is written.
type shardLayout struct {
	name    string
	header  []byte // length and JSON
	entries []placed
	size    int64 // of the file
}

// layOut distributes entries over shards: in the given order, a new shard
// where the data of the last one would exceed maxData. A tensor that is larger
// still has a shard of its own.
//
// Within a shard, tensors of wider elements come first and otherwise the order
// is kept. The format allows no holes, and this is the order in which every
// offset is aligned.
func layOut(entries []Entry, maxData int64, metadata map[string]string) ([]shardLayout, error) {
	if len(entries) == 0 {
		return nil, errors.New("no tensors to write")
	}
	var shards []shardLayout
	names := make(map[string]bool, len(entries))
	filled := int64(0)
	for _, e := range entries {
		if err := checkName(e.Name); err != nil {
			return nil, err
		}
		if names[e.Name] {
			return nil, fmt.Errorf("tensor %q appears twice", e.Name)
		}
		names[e.Name] = true
		size, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		if len(shards) == 0 || filled > 0 && size > maxData-filled {
			shards = append(shards, shardLayout{})
			filled = 0
		}
		s := &shards[len(shards)-1]
		s.entries = append(s.entries, placed{Entry: e, size: size})
		filled += size
	}
	for i := range shards {
		s := &shards[i]
		s.name = singleName
		if len(shards) > 1 {
			s.name = fmt.Sprintf("model-%05d-of-%05d%s", i+1, len(shards), suffix)
		}
		if err := s.place(metadata); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return shards, nil
}

func checkName(name string) error {
	switch {
	case name == metadataKey:
		return fmt.Errorf("tensor cannot be named %s", metadataKey)
	case !utf8.ValidString(name):
		return fmt.Errorf("tensor name %q is not valid UTF-8", name)
	}
	return checkLength(name)
}

// place orders the entries, sets their offsets and writes the header.
func (s *shardLayout) place(metadata map[string]string) error {
	slices.SortStableFunc(s.entries, func(a, b placed) int {
		return -cmp.Compare(a.DType.align(), b.DType.align())
	})
	offset := int64(0)
	for i := range s.entries {
		s.entries[i].offset = offset
		offset += s.entries[i].size
		if offset < 0 {
			return errors.New("data exceeds 2^63 bytes")
		}
	}
	text := appendHeaderJSON(make([]byte, 8, 8+128*len(s.entries)), metadata, s.entries)
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	n := len(text) - 8
	if limit := input.Header.Limit(); int64(n) > limit {
		return fmt.Errorf("header of %d bytes exceeds %d: use smaller shards", n, limit)
	}
	binary.LittleEndian.PutUint64(text, uint64(n))
	s.header = text
	s.size = int64(len(text)) + offset
	return nil
}

// appendHeaderJSON appends the metadata, with sorted keys, and the tensors in
// order of offset.
func appendHeaderJSON(b []byte, metadata map[string]string, entries []placed) []byte {
	b = append(b, '{')
	if len(metadata) > 0 {
		b = appendJSON(b, metadataKey)
		b = append(b, ':')
		b = appendJSON(b, metadata)
		b = append(b, ',')
	}
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSON(b, e.Name)
		b = append(b, `:{"dtype":"`...)
		b = append(b, e.DType...)
		b = append(b, `","shape":[`...)
		for j, n := range e.Shape {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(n), 10)
		}
		b = append(b, `],"data_offsets":[`...)
		b = strconv.AppendInt(b, e.offset, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, e.offset+e.size, 10)
		b = append(b, "]}"...)
	}
	return append(b, '}')
}

// appendJSON appends a string or a map of strings. It leaves <, > and & as
// they are: nobody embeds a header in a web page.
func appendJSON(b []byte, v any) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // strings always encode
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}
