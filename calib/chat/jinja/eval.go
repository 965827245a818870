package jinja

import (
	"strings"
	"unicode/utf8"
)

func (n *name) eval(s *state) Value {
	v := s.get(n.ref)
	if v == missing {
		return &undefined{quote(n.name) + " is undefined"}
	}
	return v
}

func (n *attribute) eval(*state) Value { return nil } // it is only assigned to

func (n *data) eval(*state) Value { return n.text }

func (n *constant) eval(*state) Value { return n.value }

func (n *listExpr) eval(s *state) Value {
	items := make([]Value, len(n.items))
	for i, x := range n.items {
		items[i] = x.eval(s)
	}
	s.grow(16 * len(items))
	if n.tuple {
		return &tuple{items: items}
	}
	return &List{items}
}

func (n *dictExpr) eval(s *state) Value {
	d := &Dict{}
	for _, p := range n.pairs {
		key := p.key.eval(s)
		value := p.value.eval(s)
		s.at(n.at)
		s.grow(64)
		d.set(s.hash(key), key, value)
	}
	return d
}

func (n *unary) eval(s *state) Value {
	v := n.x.eval(s)
	s.at(n.at)
	if n.op == "not" {
		return !s.isTrue(v)
	}
	return s.sign(n.op, v)
}

func (n *binary) eval(s *state) Value {
	x := n.x.eval(s)
	switch n.op {
	case "and":
		if !s.isTrue(x) {
			return x
		}
		return n.y.eval(s)
	case "or":
		if s.isTrue(x) {
			return x
		}
		return n.y.eval(s)
	}
	y := n.y.eval(s)
	s.at(n.at)
	return s.arithmetic(n.op, x, y)
}

func (n *concat) eval(s *state) Value {
	w := &writer{s: s}
	for _, x := range n.items {
		v := x.eval(s)
		s.at(n.at)
		w.write(s.str(v))
	}
	return w.String()
}

func (n *compare) eval(s *state) Value {
	x := n.x.eval(s)
	for _, o := range n.ops {
		y := o.x.eval(s)
		s.at(n.at)
		holds := false
		switch o.op {
		case "==":
			holds = s.equal(x, y)
		case "!=":
			holds = !s.equal(x, y)
		case "in":
			holds = s.contains(y, x)
		case "not in":
			holds = !s.contains(y, x)
		default:
			holds = s.order(o.op, x, y)
		}
		if !holds {
			return false
		}
		x = y
	}
	return true
}

func (n *condition) eval(s *state) Value {
	v := n.test.eval(s)
	switch {
	case s.isTrue(v):
		return n.then.eval(s)
	case n.otherwise == nil:
		return &undefined{"the condition has no else and is false"}
	}
	return n.otherwise.eval(s)
}

func (n *getattr) eval(s *state) Value {
	x := n.x.eval(s)
	s.at(n.at)
	return s.attribute(x, n.name)
}

func (n *getitem) eval(s *state) Value {
	x := n.x.eval(s)
	if slice, ok := n.index.(*sliceExpr); ok {
		return slice.of(s, x)
	}
	i := n.index.eval(s)
	s.at(n.at)
	return s.item(x, i)
}

func (n *sliceExpr) eval(*state) Value { return nil } // getitem evaluates it

// of returns a slice of a value.
func (n *sliceExpr) of(s *state, x Value) Value {
	bound := func(e expr) Value {
		if e == nil {
			return nil
		}
		return e.eval(s)
	}
	start, stop, step := bound(n.start), bound(n.stop), bound(n.step)
	s.at(n.at)
	s.known(x)
	var runes []rune
	length := 0
	switch x := x.(type) {
	case string, markup:
		text, _ := isText(x)
		s.grow(4 * len(text))
		runes = []rune(text)
		length = len(runes)
	case *List:
		length = len(x.items)
	case *tuple:
		length = len(x.items)
	case *rangeOf:
		length = x.length()
	case *Dict:
		s.fail("a mapping has no slices")
	default:
		if isNumber(x) || x == nil {
			// Nor does Jinja do it, but where it knows the value before rendering there is an undefined one.
			s.unsupported("a slice of a value of type " + typeName(x))
		}
		s.fail("a value of type %s has no slices", typeName(x))
	}
	from, to, by := s.bounds(start, stop, step, length)
	if r, ok := x.(*rangeOf); ok {
		return &rangeOf{r.at(from), r.at(to), r.step * by}
	}
	var indices []int
	for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
		indices = append(indices, i)
		if by > length || -by > length {
			break
		}
	}
	s.grow(16 * len(indices))
	pick := func(items []Value) []Value {
		out := make([]Value, len(indices))
		for k, i := range indices {
			out[k] = items[i]
		}
		return out
	}
	switch x := x.(type) {
	case *List:
		return &List{pick(x.items)}
	case *tuple:
		return &tuple{items: pick(x.items)}
	}
	var b strings.Builder
	for _, i := range indices {
		b.WriteRune(runes[i])
	}
	if _, ok := x.(markup); ok {
		return markup(b.String())
	}
	return b.String()
}

// bounds returns the indices that a slice means of something so long.
func (s *state) bounds(start, stop, step Value, length int) (from, to, by int) {
	by = 1
	if step != nil {
		if by = s.index(step); by == 0 {
			s.fail("the step of a slice is zero")
		}
	}
	low, high := 0, length
	if by < 0 {
		low, high = -1, length-1
	}
	bound := func(v Value, otherwise int) int {
		if v == nil {
			return otherwise
		}
		i := s.index(v)
		if i < 0 && i > -1<<62 {
			i += length
		}
		return min(max(i, low), high)
	}
	if by > 0 {
		return bound(start, low), bound(stop, high), by
	}
	return bound(start, high), bound(stop, low), by
}

func (n *call) eval(s *state) Value {
	f := n.x.eval(s)
	args, kw := n.evaluate(s)
	s.at(n.at)
	return s.call(f, args, kw)
}

func (n *filter) eval(s *state) Value {
	var x Value
	if n.x == nil {
		x = s.block
	} else {
		x = n.x.eval(s)
	}
	args, kw := n.evaluate(s)
	s.at(n.at)
	if n.fn == nil {
		s.fail("there is no filter %s", quote(n.name))
	}
	return n.fn.call(s, append([]Value{x}, args...), kw)
}

func (n *test) eval(s *state) Value {
	x := n.x.eval(s)
	args, kw := n.evaluate(s)
	s.at(n.at)
	if n.fn == nil {
		s.fail("there is no test %s", quote(n.name))
	}
	return n.fn.call(s, append([]Value{x}, args...), kw)
}

// attribute is x.name: an attribute of the value as Python has it, or else an item.
func (s *state) attribute(x Value, name string) Value {
	if v, ok := s.pythonAttribute(x, name); ok {
		return v
	}
	s.known(x)
	if v, ok := s.lookup(x, name); ok {
		return v
	}
	return s.nothing(x, name)
}

// item is x[i]: an item, or else, where i is a text, an attribute.
func (s *state) item(x, i Value) Value {
	s.known(x)
	if v, ok := s.lookup(x, i); ok {
		return v
	}
	if name, ok := isText(i); ok {
		if v, ok := s.pythonAttribute(x, name); ok {
			return v
		}
	}
	return s.nothing(x, i)
}

// nothing is what stands for an item or an attribute that is not there.
func (s *state) nothing(x, i Value) Value {
	what := "a value of type " + typeName(x)
	if name, ok := isText(i); ok {
		return &undefined{what + " has no " + quote(name)}
	}
	return &undefined{what + " has no such item"}
}

// lookup is x[i] of Python: it reports whether there is such an item.
func (s *state) lookup(x, i Value) (Value, bool) {
	if d, ok := x.(*Dict); ok {
		h, ok := hash(i)
		if !ok {
			return nil, false
		}
		j, ok := d.index[h]
		if !ok {
			return nil, false
		}
		return d.values[j], true
	}
	n, ok := s.length(x)
	switch x.(type) {
	case *undefined, *view, *loop:
		return nil, false
	}
	if !ok {
		return nil, false
	}
	switch i.(type) {
	case bool, int:
	default:
		return nil, false
	}
	at := s.index(i)
	if at < 0 {
		at += n
	}
	if at < 0 || at >= n {
		return nil, false
	}
	switch x := x.(type) {
	case *List:
		return x.items[at], true
	case *tuple:
		return x.items[at], true
	case *rangeOf:
		return x.at(at), true
	case string:
		return runeAt(x, at), true
	case markup:
		return markup(runeAt(string(x), at)), true
	}
	return nil, false
}

// runeAt returns the character of that index.
func runeAt(text string, at int) string {
	if ascii(text) {
		return text[at : at+1]
	}
	for i := range text {
		if at == 0 {
			_, n := utf8.DecodeRuneInString(text[i:])
			return text[i : i+n]
		}
		at--
	}
	return ""
}
