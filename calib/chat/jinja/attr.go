package jinja

import "strings"

// pythonAttribute is an attribute of a value, as Python has it: a method, or what objects of Jinja have. It reports
// whether there is one. One that the sandbox forbids is undefined.
func (s *state) pythonAttribute(x Value, name string) (Value, bool) {
	if u, ok := x.(*undefined); ok {
		if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
			s.unsupported("the attribute " + name)
		}
		s.fail("%s", u.why)
	}
	forbidden := &undefined{"the attribute " + quote(name) + " of a " + typeName(x) + " is not safe"}
	switch x := x.(type) {
	case *namespace:
		v, ok := x.values.get(name)
		if ok && strings.HasPrefix(name, "_") {
			return forbidden, true
		}
		return v, ok
	case *loop:
		if strings.HasPrefix(name, "_") {
			return forbidden, true
		}
		return x.attribute(s, name)
	}
	if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") && len(name) > 4 {
		if dunder(x, name) {
			return forbidden, true
		}
		return nil, false
	}
	switch x := x.(type) {
	case string:
		if f := s.lib.strings[name]; f != nil {
			return f.bound(x), true
		}
		s.other(name, "encode maketrans translate")
	case markup:
		if f := s.lib.strings[name]; f != nil || name == "unescape" || name == "striptags" || name == "escape" {
			return s.markupMethod(x, name, f), true
		}
		s.other(name, "encode maketrans translate")
	case *List:
		switch name {
		case "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort":
			return forbidden, true
		}
		if f := s.lib.lists[name]; f != nil {
			return f.bound(x), true
		}
	case *tuple:
		for i, n := range x.names {
			if n == name {
				return x.items[i], true
			}
		}
		if f := s.lib.lists[name]; f != nil && name != "copy" {
			return f.bound(x), true
		}
		if x.names != nil {
			s.other(name, "_asdict _field_defaults _fields _make _replace")
		}
	case *Dict:
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return forbidden, true
		}
		if f := s.lib.dicts[name]; f != nil {
			return f.bound(x), true
		}
	case bool, int:
		s.other(name, "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes")
	case float64:
		if name == "is_integer" {
			return isInteger.bound(x), true
		}
		s.other(name, "as_integer_ratio conjugate fromhex hex imag real")
	case *rangeOf:
		switch name {
		case "start":
			return x.start, true
		case "stop":
			return x.stop, true
		case "step":
			return x.step, true
		}
		s.other(name, "count index")
	case *view:
		s.other(name, "isdisjoint mapping")
	case *macro:
		return x.attribute(s, name)
	case *joiner:
		switch name {
		case "sep":
			return x.separator, true
		case "used":
			return x.used, true
		}
	case *cycler:
		switch name {
		case "items":
			return &tuple{items: x.items}, true
		case "pos":
			return x.at, true
		case "current":
			return x.items[x.at], true
		case "next":
			return next.bound(x), true
		case "reset":
			return reset.bound(x), true
		}
	case *builtin:
		if x.name == "dict" && name == "fromkeys" {
			return fromKeys.bound(x), true
		}
		if !strings.HasPrefix(name, "_") {
			s.unsupported("an attribute of a function")
		}
	case *iterator:
		if !strings.HasPrefix(name, "_") {
			s.unsupported("an attribute of a generator")
		}
	case nil:
	default:
		s.unsupported("an attribute of a large number")
	}
	return nil, false
}

// other refuses attributes that Python has.
func (s *state) other(name, names string) {
	for n := range strings.FieldsSeq(names) {
		if n == name {
			s.unsupported("the method " + name)
		}
	}
}

// dunder reports whether a value has an attribute of Python's own, as all have some. Only in a mapping could there be
// an item of that name.
func dunder(x Value, name string) bool {
	switch strings.Trim(name, "_") {
	case "class", "delattr", "dir", "doc", "eq", "format", "ge", "getattribute", "getstate", "gt", "hash", "init", "init_subclass",
		"le", "lt", "ne", "new", "reduce", "reduce_ex", "repr", "setattr", "sizeof", "str", "subclasshook":
		return true
	case "class_getitem", "contains", "delitem", "getitem", "ior", "iter", "len", "or", "reversed", "ror", "setitem":
		_, ok := x.(*Dict)
		return ok
	}
	return false
}

func (m *macro) attribute(s *state, name string) (Value, bool) {
	switch name {
	case "name":
		if m.def.name == "" {
			return nil, true
		}
		return m.def.name, true
	case "arguments":
		t := &tuple{}
		for _, a := range m.def.args {
			t.items = append(t.items, a.name)
		}
		return t, true
	case "catch_kwargs":
		return m.def.kwargs != nil, true
	case "catch_varargs":
		return m.def.varargs != nil, true
	case "caller", "explicit_caller":
		s.unsupported("the attribute " + name + " of a macro")
	}
	return nil, false
}

// markupMethod is a method of an escaped text: those that do not escape anything.
func (s *state) markupMethod(x markup, name string, f *function) Value {
	switch name {
	case "capitalize", "casefold", "lower", "lstrip", "rstrip", "strip", "swapcase", "title", "upper", "removeprefix", "removesuffix":
		return &builtin{name: name, fn: func(s *state, args []Value, kw *Dict) Value {
			return markup(f.call(s, append([]Value{string(x)}, args...), kw).(string))
		}}
	case "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
		"isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper":
		return f.bound(string(x))
	}
	s.unsupported("the method " + name + " of an escaped text")
	return nil
}
