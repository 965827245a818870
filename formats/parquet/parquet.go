// Package parquet reads tables of the Parquet format, as data sets on the Hugging Face hub are stored: all rows of a small file.
//
// It follows the specification of the Apache project (parquet-format 2.11: README, Encodings, LogicalTypes, parquet.thrift). It reads
// what pyarrow and pandas write without being told otherwise: columns of bits, whole numbers, floating point numbers and texts, in
// groups and lists of any depth, plain or by dictionary, in pages of versions 1 and 2, packed by snappy, gzip, zstd or not at all.
// Anything else is an error that names it.
package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/lutq/lutq/formats/input"
)

// Group is a row, or a value that has fields, in the order of the file.
type Group []Field

// Field is a column's value in a row: nil, bool, int, float64, string, []byte of what is no text, []any or [Group].
type Field struct {
	Name  string
	Value any
}

// Get returns the value of a field.
func (g Group) Get(name string) (value any, ok bool) {
	for _, f := range g {
		if f.Name == name {
			return f.Value, true
		}
	}
	return nil, false
}

// The most values that all columns of a file may have, and the most bytes that a page and all of them may take unpacked: what a
// few bytes can promise has to end somewhere.
const (
	mostValues = 1 << 22
	mostPage   = 256 << 20
	mostBytes  = 1 << 30
)

// Read reads all rows of a file. Its errors are one line that names the file.
func Read(path string) ([]Group, error) {
	f, err := input.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := input.CheckSize(f, input.Table); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	rows, err := read(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

const magic = "PAR1"

// reader is a file being read.
type reader struct {
	file   io.ReaderAt
	size   int64
	values int   // that are left of mostValues
	bytes  int64 // that are left of mostBytes
}

func read(file io.ReaderAt, size int64) ([]Group, error) {
	r := &reader{file: file, size: size, values: mostValues, bytes: mostBytes}
	meta, err := r.footer()
	if err != nil {
		return nil, err
	}
	root, err := newTree(meta.list(2))
	if err != nil {
		return nil, err
	}
	var rows []Group
	for i, v := range meta.list(4) {
		group, ok := v.(fields)
		if !ok {
			return nil, errCut
		}
		if rows, err = r.rowGroup(root, group, rows); err != nil {
			return nil, fmt.Errorf("row group %d: %w", i+1, err)
		}
	}
	if n := meta.int(3); n != int64(len(rows)) {
		return nil, fmt.Errorf("it promises %d rows and has %d", n, len(rows))
	}
	return rows, nil
}

// footer reads what stands at the end of a file and describes it.
func (r *reader) footer() (fields, error) {
	const ends = 2*len(magic) + 4
	if r.size < int64(ends) {
		return nil, errors.New("it is too short for a Parquet file")
	}
	head, tail := make([]byte, len(magic)), make([]byte, 4+len(magic))
	if _, err := r.file.ReadAt(head, 0); err != nil {
		return nil, err
	}
	if _, err := r.file.ReadAt(tail, r.size-int64(len(tail))); err != nil {
		return nil, err
	}
	switch end := string(tail[4:]); {
	case string(head) != magic:
		return nil, errors.New("it is no Parquet file")
	case end == "PARE":
		return nil, errors.New("it is encrypted")
	case end != magic:
		return nil, errors.New("it is cut short: a Parquet file ends as it begins")
	}
	n := int64(binary.LittleEndian.Uint32(tail))
	if n > r.size-int64(ends) {
		return nil, fmt.Errorf("its description of %d bytes does not fit into it", n)
	}
	text := make([]byte, n)
	if _, err := r.file.ReadAt(text, r.size-int64(len(tail))-n); err != nil {
		return nil, err
	}
	meta, _, err := readFields(text)
	return meta, err
}

// rowGroup appends the rows of a group.
func (r *reader) rowGroup(root *node, group fields, rows []Group) ([]Group, error) {
	chunks := group.list(1)
	leaves := root.leaves(nil)
	if len(chunks) != len(leaves) {
		return nil, fmt.Errorf("%d columns, where there are %d", len(chunks), len(leaves))
	}
	for i, leaf := range leaves {
		chunk, ok := chunks[i].(fields)
		if !ok {
			return nil, errCut
		}
		if err := r.column(leaf, chunk); err != nil {
			return nil, fmt.Errorf("column %s: %w", leaf.path, err)
		}
	}
	n := group.int(3)
	if n < 0 || n > int64(r.values) {
		return nil, fmt.Errorf("%d rows: too many", n)
	}
	for range n {
		v, err := root.value()
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", len(rows)+1, err)
		}
		row, ok := v.(Group)
		if !ok {
			return nil, errCut
		}
		rows = append(rows, row)
	}
	for _, leaf := range leaves {
		if !leaf.column.ended() {
			return nil, fmt.Errorf("column %s has more values than there are rows", leaf.path)
		}
	}
	return rows, nil
}

// errCut means that what is stored makes no sense.
var errCut = errors.New("it is cut short, or damaged")

// column reads the pages of a column in a row group.
func (r *reader) column(leaf *node, chunk fields) error {
	meta := chunk.fields(3)
	if meta == nil || chunk.text(1) != "" {
		return errors.New("it is described in another file")
	}
	if k := kind(meta.int(1)); k != leaf.kind {
		return fmt.Errorf("it is described as %v and as %v", leaf.kind, k)
	}
	from, size, left := meta.int(9), meta.int(7), meta.int(5)
	if dict := meta.int(11); dict > 0 && dict < from {
		from = dict
	}
	if from < 0 || size < 0 || from > r.size || size > r.size-from {
		return errCut
	}
	if left < 0 || left > int64(r.values) {
		return fmt.Errorf("%d values: more than are read of a file", left)
	}
	r.values -= int(left)
	data := make([]byte, size)
	if _, err := r.file.ReadAt(data, from); err != nil {
		return err
	}
	c := &column{node: leaf, codec: codec(meta.int(4)), reader: r}
	leaf.column = c
	for left > 0 {
		n, rest, err := c.page(data, int(left))
		if err != nil {
			return err
		}
		data, left = rest, left-int64(n)
	}
	return nil
}

// logical reports whether a schema element says what its values mean in the old way or in the new one.
func logical(element fields, converted int64, id int16) bool {
	if element.has(6) && element.int(6) == converted {
		return true
	}
	l := element.fields(10)
	return l != nil && l.has(id)
}

func isText(element fields) bool { return logical(element, 0, 1) || logical(element, 19, 11) } // or JSON
func isList(element fields) bool { return logical(element, 3, 3) }

// node is an element of the schema: a leaf, which is a column, or a group.
type node struct {
	name, path string
	optional   bool
	repeated   bool
	list       bool // a group whose one child is repeated, once for each element of a list
	text       bool
	unsigned   bool
	kind       kind
	children   []*node
	def, rep   int // the levels of a value that is there
	column     *column
}

// deepest is how deep groups lie in each other, at most.
const deepest = 32

// newTree makes the tree of a schema, which is stored in depth-first order.
func newTree(elements []any) (*node, error) {
	if len(elements) == 0 {
		return nil, errors.New("it has no schema")
	}
	root, rest, err := newNode(elements, nil, 0)
	if err == nil && len(rest) > 0 {
		err = errors.New("its schema has several roots")
	}
	if err == nil && (len(root.children) == 0 || root.optional || root.repeated) {
		err = errors.New("it has no columns")
	}
	return root, err
}

func newNode(elements []any, parent *node, depth int) (*node, []any, error) {
	if len(elements) == 0 || depth > deepest {
		return nil, nil, errCut
	}
	e, ok := elements[0].(fields)
	if !ok {
		return nil, nil, errCut
	}
	elements = elements[1:]
	n := &node{name: e.text(4)}
	if parent != nil { // the root's repetition says nothing
		n.path, n.def, n.rep = n.name, parent.def, parent.rep
		if parent.path != "" {
			n.path = parent.path + "." + n.name
		}
		switch e.int(3) {
		case 1:
			n.optional = true
			n.def++
		case 2:
			n.repeated = true
			n.def, n.rep = n.def+1, n.rep+1
		}
	}
	children := e.int(5)
	if children == 0 && parent != nil {
		n.kind, n.text = kind(e.int(1)), isText(e)
		n.unsigned = e.has(6) && e.int(6) >= 11 && e.int(6) <= 14 // UINT_8 to UINT_64
		if e.has(6) && e.int(6) == 5 {
			return nil, nil, fmt.Errorf("column %s: decimal numbers are not read", n.path)
		}
		return n, elements, nil
	}
	if children < 0 || children > int64(len(elements)) {
		return nil, nil, errCut
	}
	for range children {
		child, rest, err := newNode(elements, n, depth+1)
		if err != nil {
			return nil, nil, err
		}
		n.children, elements = append(n.children, child), rest
	}
	n.list = isList(e) && len(n.children) == 1 && n.children[0].repeated
	return n, elements, nil
}

// leaves appends the columns below a node.
func (n *node) leaves(all []*node) []*node {
	if len(n.children) == 0 {
		return append(all, n)
	}
	for _, c := range n.children {
		all = c.leaves(all)
	}
	return all
}

// first is a column below a node, whose levels say what all of them say of it.
func (n *node) first() *column {
	for len(n.children) > 0 {
		n = n.children[0]
	}
	return n.column
}

// field reads what a node has at its place in the group above it. Levels are those of the paper on Dremel: of a value that is not there
// each column has an entry whose definition says how far down there is something, and of each element of a list but the first one
// the repetition is the list's.
func (n *node) field() (any, error) {
	def, _, ok := n.first().peek()
	switch {
	case !ok:
		return nil, errors.New("a column ends before the others")
	case n.repeated:
		list := []any{}
		if def < n.def {
			return list, n.skip()
		}
		for {
			v, err := n.value()
			if err != nil {
				return nil, err
			}
			list = append(list, v)
			if _, rep, ok := n.first().peek(); !ok || rep != n.rep {
				return list, nil
			}
		}
	case n.optional && def < n.def:
		return nil, n.skip()
	}
	return n.value()
}

// skip passes by a value that is not there.
func (n *node) skip() error {
	for _, leaf := range n.leaves(nil) {
		if def, _, ok := leaf.column.peek(); !ok || def >= n.def {
			return errors.New("columns of a group contradict each other")
		}
		leaf.column.at++
	}
	return nil
}

// value reads a value that is there.
func (n *node) value() (any, error) {
	if len(n.children) == 0 {
		return n.column.next()
	}
	group := make(Group, len(n.children))
	for i, c := range n.children {
		v, err := c.field()
		if err != nil {
			return nil, err
		}
		group[i] = Field{c.name, v}
	}
	if !n.list {
		return group, nil
	}
	list, ok := group[0].Value.([]any)
	if !ok {
		return nil, errCut
	}
	if len(n.children[0].children) == 1 { // a group for the element alone
		for i, v := range list {
			list[i] = v.(Group)[0].Value
		}
	}
	return list, nil
}

// column is a column's values in a row group.
type column struct {
	*node
	*reader
	codec      codec
	dictionary []any

	defs, reps []uint8 // levels of the entries; nil: all are those of a value that is there, or 0
	values     []any   // of those that are there
	entries    int
	at, taken  int // the next entry, and the next value
}

func (c *column) ended() bool { return c.at == c.entries }

// peek returns the levels of the next entry.
func (c *column) peek() (def, rep int, ok bool) {
	if c.at >= c.entries {
		return 0, 0, false
	}
	def = c.node.def
	if c.node.def > 0 {
		def = int(c.defs[c.at])
	}
	if c.node.rep > 0 {
		rep = int(c.reps[c.at])
	}
	return def, rep, true
}

// next takes the next entry, which has a value.
func (c *column) next() (any, error) {
	def, _, ok := c.peek()
	if !ok || def != c.node.def || c.taken >= len(c.values) {
		return nil, errors.New("levels and values contradict each other")
	}
	c.at++
	c.taken++
	return c.values[c.taken-1], nil
}

// page reads the next page, of at most so many entries, and returns how many it has and what follows it.
func (c *column) page(data []byte, most int) (n int, rest []byte, err error) {
	header, data, err := readFields(data)
	if err != nil {
		return 0, nil, err
	}
	unpacked, packed := header.int(2), header.int(3)
	if packed < 0 || packed > int64(len(data)) || unpacked < 0 {
		return 0, nil, errCut
	}
	if unpacked > mostPage || unpacked > c.reader.bytes {
		return 0, nil, fmt.Errorf("pages of %d bytes and more: too large", unpacked)
	}
	c.reader.bytes -= unpacked
	body, rest := data[:packed], data[packed:]
	switch header.int(1) {
	case 0:
		h := header.fields(5)
		if body, err = c.codec.unpack(body, int(unpacked)); err == nil {
			n, err = c.pageV1(body, h, most)
		}
	case 2:
		h := header.fields(7)
		if body, err = c.codec.unpack(body, int(unpacked)); err == nil {
			err = c.setDictionary(body, h)
		}
	case 3:
		n, err = c.pageV2(body, header.fields(8), int(unpacked), most)
	case 1: // an index
	default:
		err = errCut
	}
	return n, rest, err
}

// setDictionary reads the values that others are told by.
func (c *column) setDictionary(body []byte, h fields) error {
	n := h.int(1)
	if h == nil || c.dictionary != nil || n < 0 || n > mostValues {
		return errCut
	}
	if e := encoding(h.int(2)); e != plain && e != plainDictionary {
		return fmt.Errorf("a dictionary in encoding %v is not read", e)
	}
	var err error
	c.dictionary, err = c.plain(body, int(n))
	if c.dictionary == nil {
		c.dictionary = []any{}
	}
	return err
}

// pageV1 reads a page whose levels are packed with its values.
func (c *column) pageV1(body []byte, h fields, most int) (n int, err error) {
	if n, err = entries(h, most); err != nil {
		return 0, err
	}
	levels := func(top int, how encoding) ([]uint8, error) {
		if top == 0 {
			return nil, nil
		}
		if how != rle {
			return nil, fmt.Errorf("levels in encoding %v are not read", how)
		}
		if len(body) < 4 {
			return nil, errCut
		}
		size := int64(binary.LittleEndian.Uint32(body))
		if size > int64(len(body)-4) {
			return nil, errCut
		}
		part := body[4 : 4+size]
		body = body[4+size:]
		return readLevels(part, n, top)
	}
	reps, err := levels(c.node.rep, encoding(h.int(4)))
	if err != nil {
		return 0, err
	}
	defs, err := levels(c.node.def, encoding(h.int(3)))
	if err != nil {
		return 0, err
	}
	return n, c.add(n, reps, defs, body, encoding(h.int(2)))
}

// pageV2 reads a page whose levels lie in front of its values as they are.
func (c *column) pageV2(body []byte, h fields, unpacked, most int) (n int, err error) {
	if n, err = entries(h, most); err != nil {
		return 0, err
	}
	defBytes, repBytes := h.int(5), h.int(6)
	if defBytes < 0 || repBytes < 0 || defBytes > int64(len(body)) || repBytes > int64(len(body))-defBytes || int64(unpacked) < defBytes+repBytes {
		return 0, errCut
	}
	var reps, defs []uint8
	if c.node.rep > 0 {
		if reps, err = readLevels(body[:repBytes], n, c.node.rep); err != nil {
			return 0, err
		}
	}
	if c.node.def > 0 {
		if defs, err = readLevels(body[repBytes:repBytes+defBytes], n, c.node.def); err != nil {
			return 0, err
		}
	}
	body = body[repBytes+defBytes:]
	if packed, ok := h[7].(bool); packed || !ok {
		if body, err = c.codec.unpack(body, unpacked-int(repBytes+defBytes)); err != nil {
			return 0, err
		}
	}
	return n, c.add(n, reps, defs, body, encoding(h.int(4)))
}

// entries returns how many a page has.
func entries(h fields, most int) (int, error) {
	n := h.int(1)
	if h == nil || n < 0 || n > int64(most) {
		return 0, errCut
	}
	return int(n), nil
}

// add adds a page's entries.
func (c *column) add(n int, reps, defs []uint8, body []byte, how encoding) error {
	there := n
	for _, d := range defs {
		if int(d) < c.node.def {
			there--
		}
	}
	var values []any
	var err error
	switch {
	case there == 0:
	case how == plain:
		values, err = c.plain(body, there)
	case how == plainDictionary || how == rleDictionary:
		values, err = c.byDictionary(body, there)
	case how == rle && c.kind == boolean:
		values, err = runOfBits(body, there)
	default:
		err = fmt.Errorf("values in encoding %v are not read", how)
	}
	if err != nil {
		return err
	}
	c.reps, c.defs, c.values = append(c.reps, reps...), append(c.defs, defs...), append(c.values, values...)
	c.entries += n
	return nil
}

// byDictionary reads values that are told by their places in the dictionary.
func (c *column) byDictionary(body []byte, n int) ([]any, error) {
	if len(body) == 0 {
		return nil, errCut
	}
	places, err := readRuns(body[1:], n, int(body[0]))
	if err != nil {
		return nil, err
	}
	values := make([]any, n)
	for i, p := range places {
		if int64(p) >= int64(len(c.dictionary)) {
			return nil, errors.New("a value is none of the dictionary")
		}
		values[i] = c.dictionary[p]
	}
	return values, nil
}

// runOfBits reads bits of an encoding for levels, behind their length.
func runOfBits(body []byte, n int) ([]any, error) {
	if len(body) < 4 || int64(binary.LittleEndian.Uint32(body)) > int64(len(body)-4) {
		return nil, errCut
	}
	bits, err := readRuns(body[4:], n, 1)
	values := make([]any, len(bits))
	for i, b := range bits {
		values[i] = b == 1
	}
	return values, err
}
