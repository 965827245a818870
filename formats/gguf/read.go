package gguf

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/lutq/lutq/formats/input"
)

// Bounds of what a header may say. ggml has no tensor of more dimensions, and the
// longest key of a published file is below a tenth of maxName.
const (
	maxName  = 4096
	maxDims  = 4
	maxParts = 10000
	maxDepth = 4 // of arrays of arrays
)

// What a file begins with, and the alignment of one that names none.
const (
	magic        = "GGUF"
	version      = 3
	alignment    = 32
	alignmentKey = "general.alignment"
)

// File is an open GGUF file, or all parts of one that is split. Its methods may be
// called from several goroutines.
type File struct {
	Meta    Metadata // of a split file, that of its first part
	Tensors []*Raw   // by part and offset

	path   string
	parts  []*input.File
	byName map[string]*Raw
}

// Raw is one tensor of an open [File]. Its data stays in the file until a method
// reads it. All methods may be called from several goroutines.
type Raw struct {
	Name  string
	Type  Type
	Shape []int  // row-major, as in a Hugging Face folder: the reverse of the file's; not to be changed
	Part  string // base name of the file

	elements, size int64
	offset         int64 // of the data, in the file
	file           io.ReaderAt
	buffers        *sync.Pool // of *[chunk]byte
}

// chunk is the most bytes of a tensor that are read at a time.
const chunk = 1 << 18

// Open opens a GGUF file of version 2 or 3, little endian, and where it is one of
// several parts, NAME-00001-of-0000N.gguf, those beside it. It checks every length
// and offset of their headers against the files' sizes, and reads no tensor data.
func Open(path string) (*File, error) {
	f := &File{path: path, byName: make(map[string]*Raw)}
	if err := f.open(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// partName is how the parts of a split file are named.
func partName() *regexp.Regexp { return regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`) }

func (f *File) open() error {
	dir, base := filepath.Split(f.path)
	m := partName().FindStringSubmatch(base)
	count := 1
	part := func(int) string { return f.path }
	if m != nil {
		count, _ = strconv.Atoi(m[3]) // five digits
		part = func(i int) string { return fmt.Sprintf("%s%s-%05d-of-%s.gguf", dir, m[1], i+1, m[3]) }
	}
	buffers, pool := &sync.Pool{New: func() any { return new([chunk]byte) }}, input.NewPool()
	for i := range count {
		h, err := f.addPart(part(i), buffers, pool)
		if err != nil {
			return err
		}
		no, parts, err := h.meta.split()
		if err == nil && (no != i || parts != count) {
			err = fmt.Errorf("is part %d of %d: want part %d of %d, named NAME-%05d-of-%05d.gguf", no+1, parts, i+1, count, no+1, parts)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part(i), err)
		}
		if i == 0 {
			f.Meta = h.meta
		}
	}
	if want, ok := f.Meta.Int("split.tensors.count"); ok && want != int64(len(f.Tensors)) {
		return fmt.Errorf("%s: %d tensors in %d parts: want %d", f.path, len(f.Tensors), count, want)
	}
	return nil
}

// split returns which part of how many a file is.
func (m Metadata) split() (no, count int, err error) {
	n, _ := m.Int("split.no")
	c, ok := m.Int("split.count")
	if !ok || c == 0 {
		return 0, 1, nil
	}
	if n < 0 || c < 1 || c > maxParts || n >= c {
		return 0, 0, fmt.Errorf("split.no %d of split.count %d makes no sense", n, c)
	}
	return int(n), int(c), nil
}

// addPart opens one file and adds its tensors.
func (f *File) addPart(path string, buffers *sync.Pool, pool *input.Pool) (*fileHeader, error) {
	opened, err := input.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open GGUF file: %w", err)
	}
	file, err := pool.Add(opened, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open GGUF file: %w", err)
	}
	f.parts = append(f.parts, file)
	h, err := readHeader(file, file.Info().Size())
	if err != nil {
		head := make([]byte, input.HeadSize)
		n, _ := file.ReadAt(head, 0)
		if other := input.Placeholder(path, head[:n], true); other != nil {
			return nil, other
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i := range h.tensors {
		t := &h.tensors[i]
		if f.byName[t.Name] != nil {
			return nil, fmt.Errorf("%s: tensor %q is in %s as well", path, t.Name, f.byName[t.Name].Part)
		}
		t.Part, t.file, t.buffers = filepath.Base(path), file, buffers
		f.Tensors = append(f.Tensors, t)
		f.byName[t.Name] = t
	}
	return h, nil
}

// Close closes the files. Tensors cannot be read any more.
func (f *File) Close() error {
	var errs []error
	for _, p := range f.parts {
		errs = append(errs, p.Close())
	}
	f.parts = nil
	return errors.Join(errs...)
}

// Path returns the path as it was given to [Open].
func (f *File) Path() string { return f.path }

// Tensor looks a tensor up by its name in the file.
func (f *File) Tensor(name string) (*Raw, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// Elements returns the product of the dimensions.
func (t *Raw) Elements() int64 { return t.elements }

// Bytes returns the size of the tensor's data, which is what [Raw.ReadAt] reads.
func (t *Raw) Bytes() int64 { return t.size }

// wrap names tensor and file in an error.
func (t *Raw) wrap(err error) error { return fmt.Errorf("tensor %q in %s: %w", t.Name, t.Part, err) }

// ReadAt reads the tensor's data, blocks as the file has them, as [io.ReaderAt] says.
// A file that has become shorter than its header says gives an error that wraps
// [io.ErrUnexpectedEOF].
func (t *Raw) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, t.wrap(errors.New("negative offset"))
	}
	rest := max(t.size-off, 0)
	var end error
	if int64(len(p)) > rest {
		p, end = p[:rest], io.EOF
	}
	n, err := t.file.ReadAt(p, t.offset+off)
	switch {
	case n == len(p):
		return n, end
	case err == nil || errors.Is(err, io.EOF):
		err = fmt.Errorf("file is shorter than when it was opened: %w", io.ErrUnexpectedEOF)
	}
	return n, t.wrap(err)
}

// ReadFloat32 decodes the elements [start, start+len(dst)) in row-major order. A
// type that is not decoded is an error, as is a range outside the tensor.
func (t *Raw) ReadFloat32(dst []float32, start int64) error {
	if start < 0 || start > t.elements-int64(len(dst)) {
		return t.wrap(fmt.Errorf("elements %d to %d of %d", start, start+int64(len(dst)), t.elements))
	}
	if !t.Type.Decodes() {
		return t.wrap(fmt.Errorf("blocks of type %s are not supported", t.Type))
	}
	n, size := t.Type.Block()
	buf := t.buffers.Get().(*[chunk]byte)
	defer t.buffers.Put(buf)
	var edge []float32 // of a block that dst has a part of
	for len(dst) > 0 {
		skip := int(start % int64(n)) // values of the first block before start
		at := start / int64(n) * int64(size)
		if skip > 0 || len(dst) < n {
			if edge == nil {
				edge = make([]float32, n)
			}
			if _, err := t.ReadAt(buf[:size], at); err != nil {
				return err
			}
			t.Type.Decode(edge, buf[:size])
			c := copy(dst, edge[skip:])
			dst, start = dst[c:], start+int64(c)
			continue
		}
		blocks := min(len(dst)/n, chunk/size)
		if _, err := t.ReadAt(buf[:blocks*size], at); err != nil {
			return err
		}
		t.Type.Decode(dst[:blocks*n], buf[:blocks*size])
		dst, start = dst[blocks*n:], start+int64(blocks*n)
	}
	return nil
}

// fileHeader is what stands before the tensors' data, checked against the file's size.
type fileHeader struct {
	meta    Metadata
	tensors []Raw
}

// readHeader reads and checks the header of a file of size bytes.
func readHeader(r io.ReaderAt, size int64) (*fileHeader, error) {
	limit := min(size, input.GGUF.Limit())
	p := parser{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, limit), 1<<16), left: limit, cut: limit < size}
	h := &fileHeader{meta: make(Metadata)}
	if err := p.header(h); err != nil {
		return nil, err
	}
	align := int64(alignment)
	if a, ok := h.meta.Int(alignmentKey); ok {
		if a < 1 || a > 1<<20 || a&(a-1) != 0 {
			return nil, fmt.Errorf("%s %d: want a power of two", alignmentKey, a)
		}
		align = a
	}
	return h, h.place((limit-p.left+align-1)/align*align, align, size)
}

// place checks where the tensors lie, whose data begins at base, and sorts them.
func (h *fileHeader) place(base, align, size int64) error {
	slices.SortFunc(h.tensors, func(a, b Raw) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.size, b.size), cmp.Compare(a.Name, b.Name))
	})
	end, last := int64(0), ""
	for i := range h.tensors {
		t := &h.tensors[i]
		switch {
		case t.offset%align != 0:
			return fmt.Errorf("tensor %q: offset %d is no multiple of the alignment %d", t.Name, t.offset, align)
		case t.offset < end:
			return fmt.Errorf("tensors %q and %q overlap", last, t.Name)
		case t.offset > size-base-t.size:
			return fmt.Errorf("file is truncated: tensor %q ends at byte %d of %d of data", t.Name, t.offset+t.size, max(size-base, 0))
		}
		end, last = t.offset+t.size, t.Name
		t.offset += base
	}
	return nil
}

// parser reads a header's fields one after the other.
type parser struct {
	r    *bufio.Reader
	left int64 // bytes of the header that may follow
	cut  bool  // whether the file goes on beyond them
	buf  [8]byte
}

// bytes reads n bytes, of which there must be as many.
func (p *parser) bytes(n int64) ([]byte, error) {
	if err := p.room(uint64(n), 1); err != nil {
		return nil, err
	}
	b := p.buf[:]
	if n > int64(len(b)) {
		b = make([]byte, n)
	}
	b = b[:n]
	p.left -= n
	if _, err := io.ReadFull(p.r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read header: %w", err)
	}
	return b, nil
}

// room fails where n things of at least size bytes each cannot follow.
func (p *parser) room(n uint64, size int64) error {
	if n <= uint64(p.left/size) {
		return nil
	}
	if p.cut {
		return &input.TooLargeError{Kind: input.GGUF}
	}
	return fmt.Errorf("header is damaged or the file truncated: wants %d more of %d bytes or more, but %d bytes follow", n, size, p.left)
}

func (p *parser) u32() (uint32, error) {
	b, err := p.bytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (p *parser) u64() (uint64, error) {
	b, err := p.bytes(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (p *parser) text() (string, error) {
	n, err := p.u64()
	if err != nil {
		return "", err
	}
	if err := p.room(n, 1); err != nil {
		return "", err
	}
	b, err := p.bytes(int64(n))
	return string(b), err
}

// name reads a key, or the name of a tensor.
func (p *parser) name() (string, error) {
	n, err := p.u64()
	if err != nil {
		return "", err
	}
	if n == 0 || n > maxName {
		return "", fmt.Errorf("header is damaged: a name of %d bytes", n)
	}
	b, err := p.bytes(int64(n))
	return string(b), err
}

func (p *parser) header(h *fileHeader) error {
	mark, err := p.bytes(int64(len(magic)))
	if err != nil {
		return err
	}
	if string(mark) != magic {
		return errors.New("not a GGUF file")
	}
	v, err := p.u32()
	switch {
	case err != nil:
		return err
	case v != 0 && v&0xffff == 0:
		return fmt.Errorf("GGUF version %d in big endian: want little endian", bits.ReverseBytes32(v))
	case v != 2 && v != version:
		return fmt.Errorf("GGUF version %d: want 2 or %d", v, version)
	}
	tensors, err := p.u64()
	if err != nil {
		return err
	}
	pairs, err := p.u64()
	if err != nil {
		return err
	}
	for range pairs {
		if err := p.pair(h.meta); err != nil {
			return err
		}
	}
	// Name, number of dimensions, one of them, type and offset.
	if err := p.room(tensors, 8+1+4+8+4+8); err != nil {
		return err
	}
	h.tensors = make([]Raw, tensors)
	seen := make(map[string]bool, tensors)
	for i := range h.tensors {
		t := &h.tensors[i]
		if t.Name, err = p.name(); err != nil {
			return err
		}
		if err := p.tensor(t); err != nil {
			return fmt.Errorf("tensor %.80q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return fmt.Errorf("tensor %.80q appears twice", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}

// foreignName names a type that is not decoded, of ggml's list.
func foreignName(t Type) string {
	names := map[Type]string{
		4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
		22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8",
		33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 40: "NVFP4",
	}
	if name, ok := names[t]; ok {
		return name
	}
	return fmt.Sprintf("%d", uint32(t))
}

// tensor reads what follows a tensor's name.
func (p *parser) tensor(t *Raw) error {
	dims, err := p.u32()
	if err != nil {
		return err
	}
	if dims < 1 || dims > maxDims {
		return fmt.Errorf("%d dimensions: want 1 to %d", dims, maxDims)
	}
	t.Shape, t.elements = make([]int, dims), 1
	for i := range t.Shape {
		n, err := p.u64()
		if err != nil {
			return err
		}
		hi, lo := bits.Mul64(uint64(t.elements), n)
		if n == 0 || hi != 0 || lo > math.MaxInt64/64 {
			return fmt.Errorf("dimension %d makes no sense", n)
		}
		t.elements = int64(lo)
		t.Shape[len(t.Shape)-1-i] = int(n)
	}
	id, err := p.u32()
	if err != nil {
		return err
	}
	t.Type = Type(id)
	n, size := t.Type.Block()
	row := t.Shape[len(t.Shape)-1]
	switch {
	case size == 0:
		return fmt.Errorf("type %s is not supported", foreignName(t.Type))
	case row%n != 0:
		return fmt.Errorf("rows of %d elements do not fill blocks of %d of type %s", row, n, t.Type)
	}
	t.size = t.elements / int64(n) * int64(size)
	offset, err := p.u64()
	if offset > math.MaxInt64/2 || t.size > math.MaxInt64/4 {
		return fmt.Errorf("offset %d makes no sense", offset)
	}
	t.offset = int64(offset)
	return err
}
