package hf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/input"
)

const (
	metadataKey = "__metadata__"

	// maxName and maxRank are the longest name in bytes and the largest rank of
	// a tensor. Those of models are below a tenth of it, and PyTorch has no more
	// dimensions.
	maxName = 4096
	maxRank = 64
)

// header is what the JSON of a safetensors file says, checked against the size
// of the file.
type header struct {
	size     int64 // of the length and the JSON: where the data begins
	metadata map[string]string
	tensors  []Tensor // in order of offset
}

// readHeader reads and checks the header of a file of fileSize bytes.
func readHeader(r io.ReaderAt, fileSize int64) (*header, error) {
	if fileSize < 8 {
		return nil, fmt.Errorf("file of %d bytes is too short for a safetensors header", fileSize)
	}
	var length [8]byte
	if err := readFull(r, length[:], 0); err != nil {
		return nil, fmt.Errorf("read header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if limit := uint64(input.Header.Limit()); n > limit {
		return nil, fmt.Errorf("header length %d exceeds %d: not a safetensors file", n, limit)
	}
	if int64(n) > fileSize-8 {
		return nil, fmt.Errorf("header length %d exceeds the file of %d bytes", n, fileSize)
	}
	text := make([]byte, n)
	if err := readFull(r, text, 8); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, err
	}
	if err := h.validate(fileSize - h.size); err != nil {
		return nil, err
	}
	if n <= secondOpinionLimit {
		if err := secondOpinion(text, h); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// readFull is [io.ReaderAt.ReadAt] for readers that know that the bytes are
// there: an end of file is unexpected.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseHeader reads the JSON of a header. What it returns is well-formed, but
// only [header.validate] checks that the tensors fit together.
func parseHeader(text []byte) (*header, error) {
	// The format wants it in front, but its own reader lets white space pass.
	if json := bytes.TrimLeft(text, " \t\r\n"); len(json) == 0 || json[0] != '{' {
		return nil, errors.New(`header does not begin with "{"`)
	}
	s, err := newScanner(text)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	// No tensor takes less than 50 bytes of header.
	n := min(bytes.Count(text, []byte("data_offsets")), len(text)/50)
	p := headerParser{
		scanner: s,
		header:  &header{size: 8 + int64(len(text)), tensors: make([]Tensor, 0, n)},
		seen:    make(map[string]bool, n+1),
	}
	if err := p.object(p.entry); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	return p.header, nil
}

type headerParser struct {
	*scanner
	*header
	seen map[string]bool // keys of the header
	dims []int           // backs the shapes of many tensors
}

// entry reads one value of the header's object.
func (p *headerParser) entry(key []byte) error {
	name := string(key)
	if err := checkLength(name); err != nil {
		return err
	}
	twice := p.seen[name]
	p.seen[name] = true
	if name == metadataKey {
		if twice {
			return fmt.Errorf("%q appears twice", name)
		}
		return p.readMetadata()
	}
	t := Tensor{Name: name}
	if err := p.tensor(&t); err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	if twice { // which says nothing new, or is read as one or the other
		same := func(o Tensor) bool {
			return o.Name == name && o.DType == t.DType && slices.Equal(o.Shape, t.Shape) && o.offset == t.offset
		}
		if !slices.ContainsFunc(p.tensors, same) {
			return fmt.Errorf("%q appears twice", name)
		}
		return nil
	}
	p.tensors = append(p.tensors, t)
	return nil
}

// checkLength refuses names that no message could show.
func checkLength(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("name of %d bytes: want at most %d: %.40q…", len(name), maxName, name)
	}
	return nil
}

func (p *headerParser) readMetadata() error {
	if p.next() == 'n' { // null, which other readers take for none
		p.value()
		return nil
	}
	p.metadata = make(map[string]string)
	err := p.object(func(key []byte) error {
		k := string(key)
		if err := checkLength(k); err != nil {
			return err
		}
		if _, ok := p.metadata[k]; ok {
			return fmt.Errorf("key %q appears twice", k)
		}
		v, err := p.str()
		if err != nil {
			return fmt.Errorf("key %q: %w", k, err)
		}
		p.metadata[k] = string(v)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", metadataKey, err)
	}
	return nil
}

// tensor reads dtype, shape and data_offsets, and checks that they agree.
func (p *headerParser) tensor(t *Tensor) error {
	const dtype, shape, offsets = 1, 2, 4
	seen := 0
	var begin, end int64
	err := p.object(func(key []byte) error {
		var field int
		var err error
		switch string(key) {
		case "dtype":
			field = dtype
			t.DType, err = p.dtype()
		case "shape":
			field = shape
			t.Shape, err = p.shape()
		case "data_offsets":
			field = offsets
			begin, end, err = p.offsets()
		default:
			return fmt.Errorf("unexpected key %.40q", key)
		}
		if seen&field != 0 {
			return fmt.Errorf("key %q appears twice", key)
		}
		seen |= field
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case seen&dtype == 0:
		return errors.New(`no "dtype"`)
	case seen&shape == 0:
		return errors.New(`no "shape"`)
	case seen&offsets == 0:
		return errors.New(`no "data_offsets"`)
	case end < begin:
		return fmt.Errorf("data_offsets [%d,%d] end before they begin", begin, end)
	}
	if t.elements, t.size, err = sizeOf(t.DType, t.Shape); err != nil {
		return err
	}
	if end-begin != t.size {
		return fmt.Errorf("data_offsets [%d,%d] hold %d bytes: %s %v takes %d",
			begin, end, end-begin, t.DType, t.Shape, t.size)
	}
	t.offset = begin
	return nil
}

func (p *headerParser) dtype() (DType, error) {
	raw, err := p.str()
	if err != nil {
		return "", err
	}
	d := DType(raw)
	if d.Bits() == 0 {
		return "", fmt.Errorf("unknown dtype %.40q", raw)
	}
	return d, nil
}

func (p *headerParser) shape() ([]int, error) {
	if cap(p.dims)-len(p.dims) < 8 {
		p.dims = make([]int, 0, 1024)
	}
	start := len(p.dims)
	err := p.array(func() error {
		n, err := p.natural()
		if err != nil {
			return err
		}
		if n > math.MaxInt {
			return fmt.Errorf("dimension %d is too large", n)
		}
		if len(p.dims)-start == maxRank {
			return fmt.Errorf("more than %d dimensions", maxRank)
		}
		p.dims = append(p.dims, int(n))
		return nil
	})
	return p.dims[start:len(p.dims):len(p.dims)], err
}

func (p *headerParser) offsets() (begin, end int64, err error) {
	var v [2]int64
	n := 0
	err = p.array(func() error {
		x, err := p.natural()
		if err != nil {
			return err
		}
		if n < len(v) {
			v[n] = x
		}
		n++
		return nil
	})
	if err == nil && n != len(v) {
		err = fmt.Errorf("want 2 numbers, found %d", n)
	}
	return v[0], v[1], err
}

// validate sorts the tensors by offset, and checks that they cover dataSize
// bytes without overlap or hole.
func (h *header) validate(dataSize int64) error {
	slices.SortFunc(h.tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.size, b.size), cmp.Compare(a.Name, b.Name))
	})
	end, last := int64(0), ""
	for i := range h.tensors {
		t := &h.tensors[i]
		switch {
		case t.offset < end:
			return fmt.Errorf("header: tensors %q and %q overlap", last, t.Name)
		case t.offset > end:
			return fmt.Errorf("header: hole of %d bytes before tensor %q", t.offset-end, t.Name)
		case t.offset > dataSize-t.size:
			return fmt.Errorf("file is truncated: tensor %q ends at byte %d of %d of data: download it again", t.Name, t.offset+t.size, dataSize)
		}
		end, last = t.offset+t.size, t.Name
	}
	if end != dataSize {
		return fmt.Errorf("%d trailing bytes after the last tensor", dataSize-end)
	}
	return nil
}
