package jinja

import (
	"strconv"
	"strings"
)

// function is a function of Python's: its parameters, and what it does with them.
type function struct {
	name   string
	params []parameter
	only   bool // they cannot be given by name
	fn     func(s *state, a []Value) Value
}

type parameter struct {
	name     string
	value    Value // its default
	optional bool
	star     int // 1: *args, 2: **kwargs
}

// library are the functions that a rendering looks up by name. They are no variables of this package for what is in
// them, since some look up others.
type library struct{ filters, tests, strings, lists, dicts map[string]*function }

// builtin is a function as a value.
type builtin struct {
	name string
	fn   func(s *state, args []Value, kw *Dict) Value
}

// function returns a function as a value.
func (f *function) value() *builtin {
	return &builtin{name: f.name, fn: func(s *state, args []Value, kw *Dict) Value { return f.call(s, args, kw) }}
}

// define makes a function of a signature as Python writes it, but with semicolons: "value; width=80". Behind a / no parameter can be
// given by name.
func define(signature string, fn func(s *state, a []Value) Value) *function {
	f := &function{fn: fn}
	if signature, f.only = strings.CutSuffix(signature, "/"); signature == "" {
		return f
	}
	for part := range strings.SplitSeq(signature, "; ") {
		name, value, optional := strings.Cut(part, "=")
		p := parameter{name: strings.TrimLeft(name, "*"), optional: optional, star: strings.Count(name, "*")}
		switch {
		case !optional || value == "none":
		case value == "true", value == "false":
			p.value = value == "true"
		case value[0] == '\'':
			p.value = strings.Trim(value, "'")
		case value == "0.0":
			p.value = 0.0
		default:
			p.value, _ = strconv.Atoi(value)
		}
		if p.name != "" {
			f.params = append(f.params, p)
		}
	}
	return f
}

// call binds arguments to parameters and calls.
func (f *function) call(s *state, args []Value, kw *Dict) Value {
	bound := make([]Value, len(f.params))
	used := 0
	taken := 0
	for i, p := range f.params {
		switch p.star {
		case 1:
			bound[i] = &tuple{items: args[min(taken, len(args)):]}
			taken = len(args)
			continue
		case 2:
			rest := &Dict{}
			for j, key := range kw.entries() {
				if !f.named(key) {
					rest.set(key, key, kw.values[j])
					used++
				}
			}
			bound[i] = rest
			continue
		}
		given, ok := Value(nil), false
		if !f.only && kw != nil {
			if given, ok = kw.get(p.name); ok {
				used++
			}
		}
		switch {
		case taken < len(args):
			if ok {
				s.fail("%s has two values for %s", f.name, p.name)
			}
			bound[i] = args[taken]
			taken++
		case ok:
			bound[i] = given
		case p.optional:
			bound[i] = p.value
		default:
			s.fail("%s needs an argument %s", f.name, p.name)
		}
	}
	if taken < len(args) {
		s.fail("%s takes no more than %d arguments", f.name, len(f.params))
	}
	if kw != nil && used < len(kw.keys) {
		s.fail("%s does not take one of the arguments that are given by name", f.name)
	}
	return f.fn(s, bound)
}

func (f *function) named(name string) bool {
	for _, p := range f.params {
		if p.name == name && p.star == 0 {
			return true
		}
	}
	return false
}

// entries returns the keys of keyword arguments.
func (d *Dict) entries() []string {
	if d == nil {
		return nil
	}
	names := make([]string, len(d.keys))
	for i, k := range d.keys {
		names[i], _ = isText(k)
	}
	return names
}

// evaluate returns the values of arguments.
func (a *arguments) evaluate(s *state) (args []Value, kw *Dict) {
	for _, x := range a.args {
		args = append(args, x.eval(s))
	}
	for _, k := range a.keywords {
		if kw == nil {
			kw = &Dict{}
		}
		kw.set(k.name, k.name, k.value.eval(s))
	}
	if a.star != nil {
		args = append(args, s.items(a.star.eval(s))...)
	}
	if a.stars != nil {
		more, ok := a.stars.eval(s).(*Dict)
		if !ok {
			s.fail("what stands behind ** is no mapping")
		}
		if kw == nil {
			kw = &Dict{}
		}
		for i, key := range more.keys {
			name, ok := key.(string)
			if !ok {
				s.fail("the name of an argument is a %s", typeName(key))
			}
			if _, twice := kw.index[name]; twice {
				s.fail("the argument %s is given twice", quote(name))
			}
			kw.set(name, name, more.values[i])
		}
	}
	return args, kw
}

// call calls a value.
func (s *state) call(f Value, args []Value, kw *Dict) Value {
	switch f := f.(type) {
	case *builtin:
		return f.fn(s, args, kw)
	case *macro:
		return f.call(s, args, kw)
	case *loop:
		return recurse.call(s, append([]Value{f}, args...), kw)
	case *joiner:
		return join.call(s, append([]Value{f}, args...), kw)
	}
	s.known(f)
	s.fail("a value of type %s cannot be called", typeName(f))
	return nil
}
