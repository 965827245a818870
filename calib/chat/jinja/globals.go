package jinja

import "strings"

// mostRange is the most items of a range that Jinja's sandbox allows.
const mostRange = 100000

// namespace is an object whose attributes templates can set.
type namespace struct{ values *Dict }

func (n *namespace) set(s *state, name string, v Value) {
	if strings.HasPrefix(name, "_") {
		s.fail("an attribute of a namespace cannot begin with an underscore")
	}
	s.grow(64)
	n.values.set(name, name, v)
}

type joiner struct {
	separator Value
	used      bool
}

type cycler struct {
	items []Value
	at    int
}

// globals are the functions that every template has.
func globals() map[string]Value {
	all := map[string]Value{}
	for name, f := range globalFunctions {
		f := *f
		f.name = name
		all[name] = f.value()
	}
	return all
}

var globalFunctions = map[string]*function{
	"range": define("*args/", func(s *state, a []Value) Value {
		args := a[0].(*tuple).items
		r := &rangeOf{step: 1}
		switch len(args) {
		case 1:
			r.stop = s.index(args[0])
		case 3:
			if r.step = s.index(args[2]); r.step == 0 {
				s.fail("the step of a range is zero")
			}
			fallthrough
		case 2:
			r.start, r.stop = s.index(args[0]), s.index(args[1])
		default:
			s.fail("range needs one to three arguments")
		}
		for _, i := range []int{r.start, r.stop, r.step} {
			if i > 1<<40 || i < -1<<40 {
				s.unsupported("so large a number in a range")
			}
		}
		if r.length() > mostRange {
			s.fail("a range of more than %d items", mostRange)
		}
		return r
	}),
	"dict": define("*args; **kwargs", func(s *state, a []Value) Value { return s.newDict("dict", a) }),
	"namespace": define("*args; **kwargs", func(s *state, a []Value) Value {
		d := s.newDict("namespace", a)
		for _, key := range d.keys {
			if name, ok := isText(key); ok && strings.HasPrefix(name, "_") {
				s.fail("an attribute of a namespace cannot begin with an underscore")
			}
		}
		return &namespace{d}
	}),
	"joiner": define("sep=', '", func(_ *state, a []Value) Value { return &joiner{separator: a[0]} }),
	"cycler": define("*items", func(s *state, a []Value) Value {
		items := a[0].(*tuple).items
		if len(items) == 0 {
			s.fail("a cycler needs items")
		}
		return &cycler{items: items}
	}),
	"lipsum": define("*args; **kwargs", func(s *state, _ []Value) Value {
		s.unsupported("lipsum, which is random,")
		return nil
	}),
	"raise_exception": define("message", func(s *state, a []Value) Value {
		panic(&Error{Line: s.line, Text: oneLine(s.str(a[0])), Raised: true})
	}),
	"strftime_now": define("format", func(s *state, a []Value) Value {
		format, ok := isText(a[0])
		if !ok {
			s.fail("strftime_now needs a text")
		}
		return s.strftime(s.options.Now, format)
	}),
}

// newDict is dict(mapping or pairs, **kwargs).
func (s *state) newDict(name string, a []Value) *Dict {
	args, kw := a[0].(*tuple).items, a[1].(*Dict)
	d := &Dict{}
	if len(args) > 1 {
		s.fail("%s takes no more than one argument without a name", name)
	}
	if len(args) == 1 {
		s.known(args[0])
		if from, ok := args[0].(*Dict); ok {
			d = from.copy()
		} else {
			if _, ok := args[0].(*namespace); ok {
				s.unsupported("a namespace as a mapping")
			}
			for _, item := range s.items(args[0]) {
				pair := s.items(item)
				if len(pair) != 2 {
					s.fail("%s needs pairs of a key and a value", name)
				}
				d.set(s.hash(pair[0]), pair[0], pair[1])
			}
		}
	}
	s.grow(64 * (len(d.keys) + len(kw.keys)))
	for i, key := range kw.keys {
		d.set(key, key, kw.values[i])
	}
	return d
}

var (
	next = define("self", func(_ *state, a []Value) Value {
		c := a[0].(*cycler)
		v := c.items[c.at]
		c.at = (c.at + 1) % len(c.items)
		return v
	})
	reset = define("self", func(_ *state, a []Value) Value {
		a[0].(*cycler).at = 0
		return nil
	})
	join = define("self", func(_ *state, a []Value) Value {
		j := a[0].(*joiner)
		if !j.used {
			j.used = true
			return ""
		}
		return j.separator
	})
	fromKeys = define("self; iterable; value=none/", func(s *state, a []Value) Value {
		d := &Dict{}
		for _, key := range s.items(a[1]) {
			d.set(s.hash(key), key, a[2])
		}
		return d
	})
)
