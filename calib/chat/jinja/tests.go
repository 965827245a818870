package jinja

import (
	"math/big"
)

// is makes a test without arguments of a function.
func is(f func(v Value) bool) *function {
	return define("value", func(_ *state, a []Value) Value { return f(a[0]) })
}

// ordered makes a test of an operator.
func ordered(op string) *function {
	return define("a; b/", func(s *state, a []Value) Value {
		switch op {
		case "==":
			return s.equal(a[0], a[1])
		case "!=":
			return !s.equal(a[0], a[1])
		}
		return s.order(op, a[0], a[1])
	})
}

var tests = named(map[string]*function{
	"odd":  define("value", func(s *state, a []Value) Value { return s.equal(s.arithmetic("%", a[0], 2), 1) }),
	"even": define("value", func(s *state, a []Value) Value { return s.equal(s.arithmetic("%", a[0], 2), 0) }),
	"divisibleby": define("value; num", func(s *state, a []Value) Value {
		return s.equal(s.arithmetic("%", a[0], a[1]), 0)
	}),
	"defined": is(func(v Value) bool {
		_, ok := v.(*undefined)
		return !ok
	}),
	"undefined": is(func(v Value) bool {
		_, ok := v.(*undefined)
		return ok
	}),
	"filter": define("value", func(s *state, a []Value) Value {
		s.hash(a[0])
		text, _ := isText(a[0])
		return s.lib.filters[text] != nil
	}),
	"test": define("value", func(s *state, a []Value) Value {
		s.hash(a[0])
		text, _ := isText(a[0])
		return s.lib.tests[text] != nil
	}),
	"none": is(func(v Value) bool { return v == nil }),
	"boolean": is(func(v Value) bool {
		_, ok := v.(bool)
		return ok
	}),
	"false": is(func(v Value) bool { return v == false }),
	"true":  is(func(v Value) bool { return v == true }),
	"integer": is(func(v Value) bool {
		switch v.(type) {
		case int, *big.Int:
			return true
		}
		return false
	}),
	"float": is(func(v Value) bool {
		_, ok := v.(float64)
		return ok
	}),
	"lower": define("value", func(s *state, a []Value) Value {
		return s.lib.strings["islower"].call(s, []Value{s.str(a[0])}, nil)
	}),
	"upper": define("value", func(s *state, a []Value) Value {
		return s.lib.strings["isupper"].call(s, []Value{s.str(a[0])}, nil)
	}),
	"string": is(func(v Value) bool {
		_, ok := isText(v)
		return ok
	}),
	"mapping": is(func(v Value) bool {
		_, ok := v.(*Dict)
		return ok
	}),
	"number": is(isNumber),
	"sequence": define("value", func(s *state, a []Value) Value {
		switch a[0].(type) {
		case string, markup, *List, *tuple, *Dict, *rangeOf, *undefined:
			return true
		}
		return false
	}),
	"sameas": define("value; other", func(s *state, a []Value) Value {
		for _, v := range a {
			switch v.(type) {
			case int, float64, *big.Int, string, markup, *tuple, *builtin:
				if !s.equal(a[0], a[1]) || typeName(a[0]) != typeName(a[1]) {
					return false
				}
				if !interned(v) {
					// Whether two of these are one object is Python's own affair.
					s.unsupported("sameas of values that are equal")
				}
				return true
			}
		}
		return a[0] == a[1]
	}),
	"iterable": define("value", func(s *state, a []Value) Value {
		if _, ok := a[0].(*loop); ok {
			return true
		}
		_, ok := s.iterates(a[0])
		return ok
	}),
	"callable": define("obj/", func(s *state, a []Value) Value {
		switch a[0].(type) {
		case *builtin, *macro, *loop, *joiner, *undefined:
			return true
		}
		return false
	}),
	"escaped": is(func(v Value) bool {
		_, ok := v.(markup)
		return ok
	}),
	"in":          define("value; seq", func(s *state, a []Value) Value { return s.contains(a[1], a[0]) }),
	"==":          ordered("=="),
	"eq":          ordered("=="),
	"equalto":     ordered("=="),
	"!=":          ordered("!="),
	"ne":          ordered("!="),
	">":           ordered(">"),
	"gt":          ordered(">"),
	"greaterthan": ordered(">"),
	"ge":          ordered(">="),
	">=":          ordered(">="),
	"<":           ordered("<"),
	"lt":          ordered("<"),
	"lessthan":    ordered("<"),
	"<=":          ordered("<="),
	"le":          ordered("<="),
})

// interned reports whether Python has only one object of a value: of small numbers, and of texts of no more than one character
// of Latin-1.
func interned(v Value) bool {
	switch v := v.(type) {
	case int:
		return v >= -5 && v <= 256
	case string:
		return len(v) < 2 || len(v) == 2 && v[0] <= 0xc3
	case *tuple:
		return len(v.items) == 0
	}
	return false
}
