package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Value is one of a template: nil for None, bool, int, *big.Int where an int is too small, float64, string, markup,
// *List, *tuple, *Dict, *undefined, and what is defined beside what makes it.
type Value any

// List is a list. Templates cannot change one.
type List struct{ items []Value }

// tuple is a tuple; one of groupby has names for its items.
type tuple struct {
	items []Value
	names []string
}

// markup is a string that is escaped.
type markup string

// Dict is a mapping in the order in which it was made.
type Dict struct {
	keys, values []Value
	index        map[any]int
}

// undefined is what is not there.
type undefined struct{ why string }

// missing is what a variable has that has no value, and unset what it has before its block begins.
type special string

const (
	missing special = "missing"
	unset   special = "unset"
)

// iterator is a generator or another of Python's iterators: it can be read once.
type iterator struct {
	name string
	next func() (Value, bool)
}

// view is what keys, values and items of a mapping return.
type view struct {
	dict *Dict
	kind string // keys, values or items
}

// rangeOf is a range.
type rangeOf struct{ start, stop, step int }

// NewDict returns a mapping of keys and values, one after the other.
func NewDict(pairs ...any) (*Dict, error) {
	d := &Dict{}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, err := fromGo(pairs[i])
		if err != nil {
			return nil, err
		}
		value, err := fromGo(pairs[i+1])
		if err != nil {
			return nil, err
		}
		k, ok := hash(key)
		if !ok {
			return nil, fmt.Errorf("a %s is no key", typeName(key))
		}
		d.set(k, key, value)
	}
	return d, nil
}

func (d *Dict) set(hash any, key, value Value) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = value
		return
	}
	if d.index == nil {
		d.index = map[any]int{}
	}
	d.index[hash] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, value)
}

func (d *Dict) get(key string) (Value, bool) {
	if i, ok := d.index[key]; ok {
		return d.values[i], true
	}
	return nil, false
}

func (d *Dict) copy() *Dict {
	out := &Dict{}
	for i, key := range d.keys {
		k, _ := hash(key)
		out.set(k, key, d.values[i])
	}
	return out
}

func (v *view) at(i int) Value {
	switch v.kind {
	case "keys":
		return v.dict.keys[i]
	case "values":
		return v.dict.values[i]
	}
	return &tuple{items: []Value{v.dict.keys[i], v.dict.values[i]}}
}

func (r *rangeOf) length() int {
	switch {
	case r.step > 0 && r.start < r.stop:
		return (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		return (r.start-r.stop-1)/-r.step + 1
	}
	return 0
}

func (r *rangeOf) at(i int) int { return r.start + i*r.step }

// hashes of what is no string: two of them are equal where the values are.
type (
	numberHash string
	tupleHash  string
	noneHash   struct{}
	undefHash  struct{}
)

// hash returns what is equal for equal keys of a mapping. Lists and mappings have none.
func hash(v Value) (any, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	case nil:
		return noneHash{}, true
	case *undefined:
		return undefHash{}, true
	case bool, int, *big.Int, float64:
		if f, ok := v.(float64); ok && (f != math.Trunc(f) || math.IsInf(f, 0)) {
			return numberHash(strconv.FormatFloat(f, 'g', -1, 64)), true
		}
		return numberHash(toBig(v).String()), true
	case *tuple:
		var b strings.Builder
		for _, item := range v.items {
			h, ok := hash(item)
			if !ok || b.Len() > 1<<20 {
				return nil, false
			}
			fmt.Fprintf(&b, "%T%q,", h, fmt.Sprint(h))
		}
		return tupleHash(b.String()), true
	case *List, *Dict, *view:
		return nil, false
	}
	return v, true // by identity
}

// hash returns the hash of a key, or fails.
func (s *state) hash(v Value) any {
	h, ok := hash(v)
	if !ok {
		s.fail("a %s cannot be a key", typeName(v))
	}
	return h
}

// typeName is Python's name of a value's type.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "escaped str"
	case *List:
		return "list"
	case *tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *undefined:
		return "undefined value"
	case *iterator:
		return v.name
	case *view:
		return "dict_" + v.kind
	case *rangeOf:
		return "range"
	case *namespace:
		return "namespace"
	case *macro:
		return "macro"
	case *loop:
		return "loop"
	}
	return "function or object"
}

// isTrue is bool(v).
func (s *state) isTrue(v Value) bool {
	switch v := v.(type) {
	case nil, *undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case float64:
		return v != 0
	case *iterator, *builtin, *namespace, *macro, *joiner, *cycler:
		return true
	}
	n, _ := s.length(v)
	return n > 0
}

// length is len(v); it reports whether v has one.
func (s *state) length(v Value) (int, bool) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), true
	case markup:
		return utf8.RuneCountInString(string(v)), true
	case *List:
		return len(v.items), true
	case *tuple:
		return len(v.items), true
	case *Dict:
		return len(v.keys), true
	case *view:
		return len(v.dict.keys), true
	case *rangeOf:
		return v.length(), true
	case *undefined:
		return 0, true
	case *loop:
		return v.length(s), true
	}
	return 0, false
}

// isText reports whether v is a string, and returns it.
func isText(v Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

// iterate returns the items of a value one by one.
func (s *state) iterate(v Value) func() (Value, bool) {
	it, ok := s.iterates(v)
	if !ok {
		s.fail("a value of type %s is no sequence of items", typeName(v))
	}
	return it
}

// iterates is iterate that reports whether v can be iterated over.
func (s *state) iterates(v Value) (func() (Value, bool), bool) {
	indexed := func(n int, at func(i int) Value) (func() (Value, bool), bool) {
		i := 0
		return func() (Value, bool) {
			if i >= n {
				return nil, false
			}
			s.tick()
			i++
			return at(i - 1), true
		}, true
	}
	switch v := v.(type) {
	case string, markup:
		text, _ := isText(v) // whose characters are no escaped text any more
		return func() (Value, bool) {
			if text == "" {
				return nil, false
			}
			s.tick()
			_, n := utf8.DecodeRuneInString(text)
			c := text[:n]
			text = text[n:]
			return c, true
		}, true
	case *List:
		return indexed(len(v.items), func(i int) Value { return v.items[i] })
	case *tuple:
		return indexed(len(v.items), func(i int) Value { return v.items[i] })
	case *Dict:
		return indexed(len(v.keys), func(i int) Value { return v.keys[i] })
	case *view:
		return indexed(len(v.dict.keys), v.at)
	case *rangeOf:
		return indexed(v.length(), func(i int) Value { return v.at(i) })
	case *undefined:
		return indexed(0, nil)
	case *iterator:
		return v.next, true
	case *loop:
		s.unsupported("going through loop itself")
	}
	return nil, false
}

// items returns all items of a value.
func (s *state) items(v Value) []Value {
	switch v := v.(type) {
	case *List:
		s.grow(16 * len(v.items))
		return slices.Clone(v.items)
	case *tuple:
		s.grow(16 * len(v.items))
		return slices.Clone(v.items)
	}
	var list []Value
	next := s.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		s.grow(16)
		list = append(list, item)
	}
	return list
}

// str is str(v).
func (s *state) str(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case *undefined:
		return ""
	}
	w := &writer{s: s}
	w.repr(v)
	return w.String()
}

// repr is repr(v).
func (s *state) repr(v Value) string {
	w := &writer{s: s}
	w.repr(v)
	return w.String()
}

// writer builds a string within the bounds of rendering.
type writer struct {
	strings.Builder
	s     *state
	depth int
}

func (w *writer) write(text string) {
	w.s.grow(len(text))
	if w.Len()+len(text) > w.s.options.Output {
		w.s.tooMuch()
	}
	w.WriteString(text)
}

// deepestValue is how deep lists within lists may be that are printed or compared.
const deepestValue = 100

func (w *writer) repr(v Value) {
	w.s.tick()
	if w.depth++; w.depth > deepestValue {
		w.s.unsupported("printing so deep a value")
	}
	defer func() { w.depth-- }()
	switch v := v.(type) {
	case nil:
		w.write("None")
	case bool:
		if v {
			w.write("True")
		} else {
			w.write("False")
		}
	case int:
		w.write(strconv.Itoa(v))
	case *big.Int:
		w.write(w.s.decimal(v))
	case float64:
		w.write(floatText(v))
	case string:
		w.reprString(v)
	case markup:
		w.write("Markup(")
		w.reprString(string(v))
		w.write(")")
	case *List:
		w.list("[", v.items, "]")
	case *tuple:
		if len(v.items) == 1 {
			w.list("(", v.items, ",)")
		} else {
			w.list("(", v.items, ")")
		}
	case *Dict:
		w.dict(v)
	case *undefined:
		w.write("Undefined")
	case *view:
		w.write("dict_" + v.kind + "([")
		for i := range v.dict.keys {
			if i > 0 {
				w.write(", ")
			}
			w.repr(v.at(i))
		}
		w.write("])")
	case *rangeOf:
		if v.step == 1 {
			w.write(fmt.Sprintf("range(%d, %d)", v.start, v.stop))
		} else {
			w.write(fmt.Sprintf("range(%d, %d, %d)", v.start, v.stop, v.step))
		}
	case *namespace:
		w.write("<Namespace ")
		w.dict(v.values)
		w.write(">")
	case *macro:
		if v.def.name == "" {
			w.write("<Macro anonymous>")
		} else {
			w.write("<Macro ")
			w.reprString(v.def.name)
			w.write(">")
		}
	case *loop:
		w.write(fmt.Sprintf("<LoopContext %d/%d>", v.index0+1, v.length(w.s)))
	default:
		w.s.unsupported("printing a " + typeName(v))
	}
}

func (w *writer) list(open string, items []Value, end string) {
	w.write(open)
	for i, item := range items {
		if i > 0 {
			w.write(", ")
		}
		w.repr(item)
	}
	w.write(end)
}

func (w *writer) dict(d *Dict) {
	w.write("{")
	for i, key := range d.keys {
		if i > 0 {
			w.write(", ")
		}
		w.repr(key)
		w.write(": ")
		w.repr(d.values[i])
	}
	w.write("}")
}

func (w *writer) reprString(text string) {
	q := byte('\'')
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, r := range text {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			escape(&b, r)
		}
	}
	b.WriteByte(q)
	w.write(b.String())
}

// escape writes a character by its number, as repr and ascii do.
func escape(b *strings.Builder, r rune) {
	switch {
	case r < 0x100:
		fmt.Fprintf(b, `\x%02x`, r)
	case r < 0x10000:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

// floatText is repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64)[:1], "+") + "inf"
	}
	if a := math.Abs(f); f != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// same reports whether a value is equal to another: a == b.
func (s *state) equal(a, b Value) bool { return s.equals(a, b, 0) }

func (s *state) equals(a, b Value, depth int) bool {
	s.tick()
	if depth > deepestValue {
		s.unsupported("comparing so deep values")
	}
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b) == 0
	}
	all := func(a, b []Value) bool {
		if len(a) != len(b) {
			return false
		}
		for i := range a {
			if !s.equals(a[i], b[i], depth+1) {
				return false
			}
		}
		return true
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case string, markup:
		x, _ := isText(a)
		y, ok := isText(b)
		return ok && x == y
	case *List:
		b, ok := b.(*List)
		return ok && (a == b || all(a.items, b.items))
	case *tuple:
		b, ok := b.(*tuple)
		return ok && (a == b || all(a.items, b.items))
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for i, key := range a.keys {
			h, _ := hash(key)
			j, ok := b.index[h]
			if !ok || !s.equals(a.values[i], b.values[j], depth+1) {
				return false
			}
		}
		return true
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *rangeOf:
		b, ok := b.(*rangeOf)
		n := a.length()
		return ok && n == b.length() && (n == 0 || a.start == b.start && (n == 1 || a.step == b.step))
	case *view:
		if b, ok := b.(*view); ok && a != b && a.kind != "values" {
			s.unsupported("comparing views of mappings")
		}
	case *builtin:
		if b, ok := b.(*builtin); ok && a != b && a.name == b.name {
			s.unsupported("comparing functions")
		}
	}
	return same(a, b)
}

// same compares pointers; numbers and strings are not the same as anything here.
func same(a, b Value) bool {
	switch a.(type) {
	case bool, int, float64, string, markup:
		return false
	}
	switch b.(type) {
	case bool, int, float64, string, markup:
		return false
	}
	return a == b
}

// order compares two values: < or another of Python's operators.
func (s *state) order(op string, a, b Value) bool { return s.orders(op, a, b, 0) }

func (s *state) orders(op string, a, b Value, depth int) bool {
	s.tick()
	if depth > deepestValue {
		s.unsupported("comparing so deep values")
	}
	holds := func(c int) bool {
		switch op {
		case "<":
			return c < 0
		case "<=":
			return c <= 0
		case ">":
			return c > 0
		}
		return c >= 0
	}
	if isNumber(a) && isNumber(b) {
		return holds(compareNumbers(a, b))
	}
	if x, ok := isText(a); ok {
		if y, ok := isText(b); ok {
			return holds(strings.Compare(x, y)) // which UTF-8 orders as code points
		}
	}
	var x, y []Value
	switch a := a.(type) {
	case *List:
		if b, ok := b.(*List); ok {
			x, y = a.items, b.items
			return s.orderLists(op, x, y, depth, holds)
		}
	case *tuple:
		if b, ok := b.(*tuple); ok {
			x, y = a.items, b.items
			return s.orderLists(op, x, y, depth, holds)
		}
	case *view:
		if _, ok := b.(*view); ok && a.kind != "values" {
			s.unsupported("comparing views of mappings")
		}
	}
	s.known(a)
	s.known(b)
	s.fail("%s cannot compare %s and %s", op, typeName(a), typeName(b))
	return false
}

func (s *state) orderLists(op string, x, y []Value, depth int, holds func(int) bool) bool {
	for i := range min(len(x), len(y)) {
		if !same(x[i], y[i]) && !s.equals(x[i], y[i], depth+1) {
			return s.orders(op, x[i], y[i], depth+1)
		}
	}
	return holds(len(x) - len(y))
}

// known fails where a value is undefined.
func (s *state) known(v Value) {
	if u, ok := v.(*undefined); ok {
		s.fail("%s", u.why)
	}
}

// contains is: v in container.
func (s *state) contains(container, v Value) bool {
	switch c := container.(type) {
	case string, markup:
		text, _ := isText(c)
		part, ok := isText(v)
		if !ok {
			s.fail("only a text can be in a text, not a value of type %s", typeName(v))
		}
		return strings.Contains(text, part)
	case *Dict:
		_, ok := c.index[s.hash(v)]
		return ok
	case *view:
		if c.kind == "keys" {
			_, ok := c.dict.index[s.hash(v)]
			return ok
		}
	case *rangeOf:
		if !isNumber(v) {
			return false
		}
	}
	next := s.iterate(container)
	for item, ok := next(); ok; item, ok = next() {
		if same(item, v) || s.equal(item, v) {
			return true
		}
	}
	return false
}
