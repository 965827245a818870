package jinja

import (
	"slices"
	"sort"
	"strconv"
	"strings"
)

// parts returns the steps of an attribute such as a.b.0.
func (s *state) parts(attribute Value) []Value {
	text, ok := isText(attribute)
	if !ok {
		return []Value{attribute}
	}
	var list []Value
	for part := range strings.SplitSeq(text, ".") {
		if i, err := strconv.Atoi(part); err == nil && isDigit(part[0]) {
			list = append(list, i)
		} else {
			list = append(list, part)
		}
	}
	return list
}

// path follows the steps of an attribute. What is not there on the way is otherwise, where that is given.
func (s *state) path(v Value, parts []Value, otherwise Value) Value {
	for _, part := range parts {
		v = s.item(v, part)
		if _, ok := v.(*undefined); ok && otherwise != nil {
			v = otherwise
		}
	}
	return v
}

// folds returns a text in small letters, and other values as they are.
func (s *state) folds(v Value, sensitive bool) Value {
	if text, ok := isText(v); ok && !sensitive {
		s.grow(len(text))
		return lower(text)
	}
	return v
}

// key returns what a value is compared by: an attribute, or itself.
func (s *state) key(attribute Value, sensitive bool, otherwise Value) func(Value) Value {
	if attribute == nil {
		return func(v Value) Value { return s.folds(v, sensitive) }
	}
	parts := s.parts(attribute)
	return func(v Value) Value { return s.folds(s.path(v, parts, otherwise), sensitive) }
}

// multiKey is key for several attributes with commas between them.
func (s *state) multiKey(attribute Value, sensitive bool) func(Value) Value {
	attributes := []Value{attribute}
	if text, ok := isText(attribute); ok {
		attributes = nil
		for a := range strings.SplitSeq(text, ",") {
			attributes = append(attributes, a)
		}
	}
	keys := make([]func(Value) Value, len(attributes))
	for i, a := range attributes {
		keys[i] = s.key(a, sensitive, nil)
	}
	return func(v Value) Value {
		list := make([]Value, len(keys))
		for i, key := range keys {
			list[i] = key(v)
		}
		return &List{list}
	}
}

// sort sorts items by their keys; those with equal keys stay in their order.
func (s *state) sort(items []Value, key func(Value) Value, reverse bool) {
	type keyed struct{ key, item Value }
	list := make([]keyed, len(items))
	for i, item := range items {
		list[i] = keyed{key(item), item}
	}
	sort.SliceStable(list, func(i, j int) bool {
		if reverse {
			i, j = j, i
		}
		return s.order("<", list[i].key, list[j].key)
	})
	for i, k := range list {
		items[i] = k.item
	}
}

func doDictSort(s *state, a []Value) Value {
	d, ok := a[0].(*Dict)
	if !ok {
		s.known(a[0])
		s.fail("dictsort needs a mapping, not a value of type %s", typeName(a[0]))
	}
	at := 0
	switch by, _ := isText(a[2]); by {
	case "key":
	case "value":
		at = 1
	default:
		s.fail("dictsort sorts by key or value")
	}
	items := s.items(&view{d, "items"})
	s.sort(items, func(v Value) Value { return s.folds(v.(*tuple).items[at], s.isTrue(a[1])) }, s.index(a[3]) != 0)
	return &List{items}
}

func doGroupBy(s *state, a []Value) Value {
	items := s.items(a[0])
	sensitive := s.isTrue(a[3])
	key := s.key(a[1], sensitive, a[2])
	s.sort(items, key, false)
	groups := &List{}
	var last Value
	for i, item := range items {
		k := key(item)
		if i > 0 && (same(k, last) || s.equal(last, k)) {
			group := groups.items[len(groups.items)-1].(*tuple).items[1].(*List)
			group.items = append(group.items, item)
			continue
		}
		last = k
		shown := k
		if !sensitive {
			shown = s.key(a[1], true, a[2])(item)
		}
		groups.items = append(groups.items, &tuple{items: []Value{shown, &List{[]Value{item}}}, names: []string{"grouper", "list"}})
	}
	return groups
}

func doUnique(s *state, a []Value) Value {
	var next func() (Value, bool)
	var key func(Value) Value
	seen := map[any]bool{}
	return &iterator{"generator", func() (Value, bool) {
		if next == nil {
			key, next = s.key(a[2], s.isTrue(a[1]), nil), s.iterate(a[0])
		}
		for {
			item, ok := next()
			if !ok {
				return nil, false
			}
			if h := s.hash(key(item)); !seen[h] {
				s.grow(64)
				seen[h] = true
				return item, true
			}
		}
	}}
}

// extreme is min or max.
func (s *state) extreme(a []Value, op string) Value {
	next := s.iterate(a[0])
	best, ok := next()
	if !ok {
		return &undefined{"there is no item, the sequence is empty"}
	}
	key := s.key(a[2], s.isTrue(a[1]), nil)
	least := key(best)
	for item, ok := next(); ok; item, ok = next() {
		if k := key(item); s.order(op, k, least) {
			best, least = item, k
		}
	}
	return best
}

// reversed returns the items of a value from the last to the first; it reports whether that is possible.
func (s *state) reversed(v Value) (func() (Value, bool), bool) {
	switch v.(type) {
	case string, markup, *List, *tuple, *Dict, *view, *rangeOf, *undefined:
		items := s.items(v)
		if _, ok := v.(markup); ok {
			for i, item := range items {
				items[i] = markup(item.(string))
			}
		}
		slices.Reverse(items)
		return s.iterate(&List{items}), true
	}
	return nil, false
}

func doBatch(s *state, a []Value) Value {
	var next func() (Value, bool)
	var batch []Value
	ended := false
	return &iterator{"generator", func() (Value, bool) {
		if ended {
			return nil, false
		}
		if next == nil {
			next = s.iterate(a[0])
		}
		for {
			item, ok := next()
			if !ok {
				break
			}
			if isNumber(a[1]) && compareNumbers(a[1], len(batch)) == 0 {
				full := batch
				batch = []Value{item}
				return &List{full}, true
			}
			s.grow(16)
			batch = append(batch, item)
		}
		ended = true
		if len(batch) == 0 {
			return nil, false
		}
		if a[2] != nil && s.order("<", len(batch), a[1]) {
			n := s.index(s.arithmetic("-", a[1], len(batch)))
			filling, _ := s.repeat(&List{[]Value{a[2]}}, n)
			batch = append(batch, filling.(*List).items...)
		}
		return &List{batch}, true
	}}
}

func doSlice(s *state, a []Value) Value {
	var items []Value
	number, slices, offset := 0, 0, 0
	begun := false
	return &iterator{"generator", func() (Value, bool) {
		if !begun {
			items, begun = s.items(a[0]), true
			if slices = s.index(a[1]); slices == 0 {
				s.fail("slice into no parts")
			}
		}
		if number >= slices {
			return nil, false
		}
		s.tick()
		each, extra := len(items)/slices, len(items)%slices
		start := offset + number*each
		if number < extra {
			offset++
		}
		end := offset + (number+1)*each
		part := append([]Value{}, items[start:end]...)
		if a[2] != nil && number >= extra {
			part = append(part, a[2])
		}
		number++
		return &List{part}, true
	}}
}

// lazily makes a generator of what begin returns when the first item is asked for.
func lazily(begin func() func() (Value, bool)) Value {
	var next func() (Value, bool)
	return &iterator{"generator", func() (Value, bool) {
		if next == nil {
			next = begin()
		}
		return next()
	}}
}

func nothingMore() (Value, bool) { return nil, false }

func doMap(s *state, a []Value) Value {
	args, kw := a[1].(*tuple).items, a[2].(*Dict)
	return lazily(func() func() (Value, bool) {
		if !s.isTrue(a[0]) {
			return nothingMore
		}
		var f func(Value) Value
		if attribute, ok := kw.get("attribute"); ok && len(args) == 0 {
			otherwise, _ := kw.get("default")
			if len(kw.without("attribute").without("default").keys) > 0 {
				s.fail("map has no such argument")
			}
			parts := s.parts(attribute)
			if attribute == nil {
				parts = nil
			}
			f = func(v Value) Value { return s.path(v, parts, otherwise) }
		} else {
			if len(args) == 0 {
				s.fail("map needs the name of a filter")
			}
			fn := s.named(s.lib.filters, "filter", args[0])
			f = func(v Value) Value { return fn().call(s, append([]Value{v}, args[1:]...), kw) }
		}
		next := s.iterate(a[0])
		return func() (Value, bool) {
			v, ok := next()
			if !ok {
				return nil, false
			}
			return f(v), true
		}
	})
}

// named returns a filter or a test by its name, or fails when it is used.
func (s *state) named(table map[string]*function, what string, name Value) func() *function {
	return func() *function {
		text, _ := isText(name)
		f := table[text]
		if f == nil {
			s.fail("there is no %s %s", what, quote(text))
		}
		return f
	}
}

// selecting is select, reject, selectattr or rejectattr.
func (s *state) selecting(a []Value, want, attribute bool) Value {
	args, kw := a[1].(*tuple).items, a[2].(*Dict)
	return lazily(func() func() (Value, bool) {
		if !s.isTrue(a[0]) {
			return nothingMore
		}
		var parts []Value
		if attribute {
			if len(args) == 0 {
				s.fail("the name of an attribute is missing")
			}
			if args[0] != nil {
				parts = s.parts(args[0])
			}
			args = args[1:]
		}
		holds := s.isTrue
		if len(args) > 0 {
			fn := s.named(s.lib.tests, "test", args[0])
			holds = func(v Value) bool { return s.isTrue(fn().call(s, append([]Value{v}, args[1:]...), kw)) }
		}
		next := s.iterate(a[0])
		return func() (Value, bool) {
			for {
				v, ok := next()
				if !ok {
					return nil, false
				}
				if holds(s.path(v, parts, nil)) == want {
					return v, true
				}
			}
		}
	})
}
