package jinja

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// state is one rendering.
type state struct {
	ctx      context.Context
	options  Options
	strict   bool // printing what is undefined fails
	deadline time.Time
	steps    int
	memory   int // bytes of all that was made
	line     int // of what is evaluated
	depth    int // of calls

	out   *buffer
	act   *activation
	given map[string]Value // to the template, and the global functions
	vars  map[string]Value // that are set at the top of the template
	block string           // that a filter without a value is of

	lib *library
}

// buffer takes what is printed.
type buffer struct{ strings.Builder }

// activation is a call of a function: the values of its variables.
type activation struct {
	slots  []Value
	parent *activation // of the function around it
}

func newActivation(f *fn, parent *activation) *activation {
	a := &activation{make([]Value, len(f.slots)), parent}
	for i := range a.slots {
		a.slots[i] = unset
	}
	return a
}

// deepestCall is how deep macros may call each other: less deep than Python allows.
const deepestCall = 100

// at says which line is evaluated.
func (s *state) at(line at) {
	s.line = int(line)
	s.tick()
}

func (s *state) fail(format string, args ...any) { fail(s.line, format, args...) }

func (s *state) unsupported(what string) { unsupported(s.line, what) }

func (s *state) tooMuch() { s.fail("it makes texts or lists that are too large") }

// tick counts a step and looks from time to time whether rendering is to end.
func (s *state) tick() {
	if s.steps++; s.steps&0xff == 0 {
		s.check()
	}
}

func (s *state) check() {
	if err := s.ctx.Err(); err != nil {
		panic(stop{err})
	}
	if time.Now().After(s.deadline) {
		s.fail("it takes longer than %v", s.options.Time)
	}
}

// grow counts bytes that are to be made.
func (s *state) grow(n int) {
	if s.memory += n; n > s.options.Memory || s.memory > s.options.Memory {
		s.tooMuch()
	}
	if n > 1<<16 {
		s.check()
	}
}

// print writes output.
func (s *state) print(text string) {
	if s.out.Len()+len(text) > s.options.Output {
		s.fail("it writes more than %d bytes", s.options.Output)
	}
	s.grow(len(text))
	s.out.WriteString(text)
}

// printText writes what a block becomes, which must be a text.
func (s *state) printText(v Value) {
	text, ok := isText(v)
	if !ok {
		s.fail("the block becomes a value of type %s, no text", typeName(v))
	}
	s.print(text)
}

// captured returns what is printed meanwhile.
func (s *state) captured(body func()) string {
	outer := s.out
	s.out = &buffer{}
	defer func() { s.out = outer }()
	body()
	return s.out.String()
}

// within runs something in a function's activation.
func (s *state) within(f *fn, parent *activation, body func()) {
	if s.depth++; s.depth > deepestCall {
		s.unsupported(fmt.Sprintf("calling macros or loops more than %d deep", deepestCall))
	}
	outer := s.act
	s.act = newActivation(f, parent)
	body()
	s.act = outer
	s.depth--
}

func (s *state) get(r *ref) Value {
	v := s.slot(r)
	if *v == unset {
		s.unsupported("the name " + quote(r.name) + " here")
	}
	return *v
}

func (s *state) set(r *ref, v Value) { *s.slot(r) = v }

func (s *state) slot(r *ref) *Value {
	if r.depth < 0 {
		s.unsupported("the name " + quote(r.name) + " here")
	}
	a := s.act
	for range r.depth {
		a = a.parent
	}
	return &a.slots[r.slot]
}

// resolve looks up a name of what is set at the top or given.
func (s *state) resolve(name string) Value {
	if v, ok := s.vars[name]; ok {
		return v
	}
	if v, ok := s.given[name]; ok {
		return v
	}
	return missing
}

// begin gives the variables of a block their first values.
func (s *state) begin(code *frameCode) {
	for _, b := range code.begins {
		switch b.how {
		case asResolve:
			s.set(b.ref, s.resolve(b.name))
		case asAlias:
			s.set(b.ref, s.get(b.from))
		default:
			s.set(b.ref, missing)
		}
	}
}

// end takes the values of a block's variables.
func (s *state) end(code *frameCode) {
	for _, b := range code.begins {
		s.set(b.ref, missing)
	}
	for _, r := range code.params {
		s.set(r, missing)
	}
}

// control is how a statement ends.
type control uint8

const (
	goOn control = iota
	goBreak
	goContinue
)

func (s *state) run(body []stmt) control {
	for _, n := range body {
		if c := n.exec(s); c != goOn {
			return c
		}
	}
	return goOn
}

func (n *output) exec(s *state) control {
	for _, x := range n.items {
		s.tick()
		if d, ok := x.(*data); ok {
			s.print(d.text)
			continue
		}
		v := x.eval(s)
		if u, ok := v.(*undefined); ok && s.strict {
			s.fail("%s", u.why)
		}
		s.print(s.str(v))
	}
	return goOn
}

func (n *ifStmt) exec(s *state) control {
	s.at(n.at)
	if s.isTrue(n.test.eval(s)) {
		return s.run(n.body)
	}
	for _, e := range n.elif {
		if s.at(e.at); s.isTrue(e.test.eval(s)) {
			return s.run(e.body)
		}
	}
	return s.run(n.els)
}

func (n *jump) exec(*state) control { return n.control }

// assign gives what is assigned to a value.
func (s *state) assign(target expr, v Value) {
	switch n := target.(type) {
	case *name:
		s.set(n.ref, v)
	case *attribute:
		ns, ok := s.get(n.ref).(*namespace)
		if !ok {
			s.fail("only a namespace has attributes that can be set")
		}
		ns.set(s, n.attr, v)
	case *listExpr:
		next := s.iterate(v)
		for _, item := range n.items {
			v, ok := next()
			if !ok {
				s.fail("there are less than %d values for as many names", len(n.items))
			}
			s.assign(item, v)
		}
		if _, ok := next(); ok {
			s.fail("there are more than %d values for as many names", len(n.items))
		}
	}
}

// publish lets blocks see what is set at the top.
func (s *state) publish(names []*name) {
	for _, n := range names {
		s.vars[n.name] = s.get(n.ref)
	}
}

func (n *setStmt) exec(s *state) control {
	s.at(n.at)
	for _, space := range n.spaces {
		if _, ok := s.get(space.ref).(*namespace); !ok {
			s.fail("only a namespace has attributes that can be set")
		}
	}
	v := n.value.eval(s)
	s.at(n.at)
	s.assign(n.target, v)
	s.publish(n.vars)
	return goOn
}

// inner runs the body of a block with its own variables, for their end, and returns what it prints.
func (s *state) inner(code *frameCode, body []stmt) (text string, c control) {
	s.begin(code)
	text = s.captured(func() { c = s.run(body) })
	return text, c
}

func (n *setBlock) exec(s *state) control {
	s.at(n.at)
	text, c := s.inner(n.inner, n.body)
	if c != goOn {
		return c
	}
	v := Value(text)
	if n.filter != nil {
		s.block = text
		v = n.filter.eval(s)
	}
	s.at(n.at)
	s.assign(n.target, v)
	s.publish(n.vars)
	s.end(n.inner)
	return goOn
}

func (n *filterBlock) exec(s *state) control {
	s.at(n.at)
	text, c := s.inner(n.inner, n.body)
	if c != goOn {
		return c
	}
	s.block = text
	s.printText(n.filter.eval(s))
	s.end(n.inner)
	return goOn
}

func (n *withStmt) exec(s *state) control {
	s.at(n.at)
	s.begin(n.inner)
	for i, target := range n.targets {
		v := n.values[i].eval(s)
		s.at(n.at)
		s.assign(target, v)
	}
	if c := s.run(n.body); c != goOn {
		return c
	}
	s.end(n.inner)
	return goOn
}

func (n *blockStmt) exec(s *state) control {
	s.at(n.at)
	if n.required {
		s.fail("the required block %s is not there", quote(n.name))
	}
	vars, given := s.vars, s.given
	if n.scoped {
		all := map[string]Value{}
		for _, m := range []map[string]Value{s.given, s.vars} {
			for k, v := range m {
				all[k] = v
			}
		}
		for _, seen := range n.sees {
			if v := s.get(seen.ref); v != missing {
				all[seen.name] = v
			}
		}
		s.vars, s.given = map[string]Value{}, all
	}
	s.within(n.fn, nil, func() {
		s.begin(n.inner)
		s.run(n.body)
	})
	s.vars, s.given = vars, given
	return goOn
}

func (n *imports) exec(s *state) control {
	s.at(n.at)
	s.fail("%s: there are no other templates", n.word)
	return goOn
}

func (n *forStmt) exec(s *state) control {
	s.at(n.at)
	v := n.iter.eval(s)
	s.at(n.at)
	if n.recursive {
		s.print(n.recurse(s, s.act, v, 0))
		return goOn
	}
	return n.turns(s, v, nil, 0)
}

// recurse runs a recursive loop in a function of its own, within the activation where it stands.
func (n *forStmt) recurse(s *state, parent *activation, v Value, depth int) (text string) {
	s.within(n.fn, parent, func() {
		text = s.captured(func() { n.turns(s, v, parent, depth) })
	})
	return text
}

// turns runs a loop over a value. outer is where a recursive loop stands.
func (n *forStmt) turns(s *state, v Value, outer *activation, depth int) control {
	if n.loop != nil {
		s.set(n.loop, missing)
	}
	if n.test != nil {
		around := s.act
		if n.recursive {
			around = outer
		}
		v = n.selected(s, v, around)
	}
	l := &loop{index0: -1, over: v, next: s.iterate(v), node: n, outer: outer, depth0: depth}
	nothing := true
	for {
		item, ok := l.advance()
		if !ok {
			break
		}
		s.at(n.at)
		s.assign(n.target, item)
		if n.loop != nil {
			s.set(n.loop, l)
		}
		s.begin(n.inner)
		c := s.run(n.body)
		if c == goBreak {
			break
		}
		if c == goOn {
			nothing = false // which a continue skips, as in Jinja
		}
	}
	s.end(n.inner)
	if n.els == nil || !nothing {
		return goOn
	}
	s.begin(n.other)
	if c := s.run(n.els); c != goOn {
		return c
	}
	s.end(n.other)
	return goOn
}

// selected returns the items for which a loop's condition holds, one by one.
func (n *forStmt) selected(s *state, v Value, parent *activation) Value {
	var own *activation
	next, line := func() (Value, bool) { return nil, false }, s.line
	return &iterator{"generator", func() (item Value, ok bool) {
		outer := s.act
		defer func() { s.act = outer }()
		if own == nil {
			own = newActivation(n.testFn, parent)
			s.act = own
			s.begin(n.tests)
			s.line = line
			next = s.iterate(v)
		}
		for {
			s.act = outer
			item, ok := next()
			if !ok {
				return nil, false
			}
			s.act = own
			s.at(n.at)
			s.assign(n.again, item)
			if s.isTrue(n.test.eval(s)) {
				return s.packed(n.again), true
			}
		}
	}}
}

// packed returns what was assigned.
func (s *state) packed(target expr) Value {
	switch n := target.(type) {
	case *name:
		return s.get(n.ref)
	case *listExpr:
		t := &tuple{}
		for _, item := range n.items {
			t.items = append(t.items, s.packed(item))
		}
		return t
	}
	return nil
}

// loop is the variable of that name.
type loop struct {
	index0 int
	over   Value
	next   func() (Value, bool)
	node   *forStmt
	outer  *activation
	depth0 int

	size            int // 0 where it is not known
	after           Value
	peeked          bool // after is the next item
	current, before Value
	changes         *tuple
}

func (l *loop) advance() (Value, bool) {
	item, ok := l.after, true
	if l.peeked {
		l.after, l.peeked = nil, false
	} else if item, ok = l.next(); !ok {
		return nil, false
	}
	l.index0++
	l.before, l.current = l.current, item
	return item, true
}

func (l *loop) peek() (Value, bool) {
	if !l.peeked {
		l.after, l.peeked = l.next()
	}
	return l.after, l.peeked
}

func (l *loop) length(s *state) int {
	if l.size > 0 {
		return l.size
	}
	if n, ok := s.length(l.over); ok {
		l.size = n
		return n
	}
	rest := s.items(&iterator{next: l.next})
	l.size = len(rest) + l.index0 + 1
	if l.peeked {
		l.size++
	}
	i := 0
	l.next = func() (Value, bool) {
		if i >= len(rest) {
			return nil, false
		}
		i++
		return rest[i-1], true
	}
	return l.size
}

// attribute is an attribute of loop.
func (l *loop) attribute(s *state, name string) (Value, bool) {
	switch name {
	case "index0":
		return l.index0, true
	case "index":
		return l.index0 + 1, true
	case "depth0":
		return l.depth0, true
	case "depth":
		return l.depth0 + 1, true
	case "length":
		return l.length(s), true
	case "revindex0":
		return l.length(s) - l.index0 - 1, true
	case "revindex":
		return l.length(s) - l.index0, true
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "previtem":
		if l.index0 == 0 {
			return &undefined{"there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if item, ok := l.peek(); ok {
			return item, true
		}
		return &undefined{"there is no next item"}, true
	case "cycle":
		return cycle.bound(l), true
	case "changed":
		return changed.bound(l), true
	}
	return nil, false
}

var (
	cycle = define("loop; *items", func(s *state, a []Value) Value {
		items := a[1].(*tuple).items
		if len(items) == 0 {
			s.fail("cycle needs items")
		}
		return items[a[0].(*loop).index0%len(items)]
	})
	changed = define("loop; *values", func(s *state, a []Value) Value {
		l, values := a[0].(*loop), a[1].(*tuple)
		if l.changes != nil && s.equal(l.changes, values) {
			return false
		}
		l.changes = values
		return true
	})
	recurse = define("loop; iterable", func(s *state, a []Value) Value {
		l := a[0].(*loop)
		if !l.node.recursive {
			s.fail("only a loop that is called recursive can be called")
		}
		return l.node.recurse(s, l.outer, a[1], l.depth0+1)
	})
)

// bound returns a function as a method of a value.
func (f *function) bound(v Value) *builtin {
	return &builtin{name: f.name, fn: func(s *state, args []Value, kw *Dict) Value {
		return f.call(s, append([]Value{v}, args...), kw)
	}}
}

// macro is a macro as a value, within the activation where it is defined.
type macro struct {
	def    *macroDef
	parent *activation
}

func (n *macroStmt) exec(s *state) control {
	m := &macro{&n.macroDef, s.act}
	s.set(n.ref, m)
	if n.toplevel {
		s.vars[n.name] = m
	}
	return goOn
}

func (n *callBlock) exec(s *state) control {
	s.at(n.at)
	f := n.call.x.eval(s)
	args, kw := n.call.evaluate(s)
	if kw == nil {
		kw = &Dict{}
	}
	if _, twice := kw.index["caller"]; twice {
		s.fail("a call block gives caller itself")
	}
	kw.set("caller", "caller", &macro{&n.macroDef, s.act})
	s.at(n.call.at)
	s.printText(s.call(f, args, kw))
	return goOn
}

func (n *generation) exec(s *state) control {
	s.at(n.at)
	s.print(s.str((&macro{&n.macroDef, s.act}).call(s, nil, nil)))
	return goOn
}

// call renders a macro.
func (m *macro) call(s *state, args []Value, kw *Dict) Value {
	d := m.def
	rest := &Dict{}
	if kw != nil {
		rest = kw.copy()
	}
	take := func(name string) (Value, bool) {
		v, ok := rest.get(name)
		if ok {
			rest = rest.without(name)
		}
		return v, ok
	}
	called := "the macro " + quote(d.name)
	values := make([]Value, len(d.args))
	found := len(args) >= len(d.args) && slices.ContainsFunc(d.args, func(a *name) bool { return a.name == "caller" })
	for i, a := range d.args {
		values[i] = missing
		if i < len(args) {
			values[i] = args[i]
			continue
		}
		if v, ok := take(a.name); ok {
			values[i] = v
		}
		found = found || a.name == "caller"
	}
	caller := Value(nil)
	if d.caller != nil && !found {
		caller, _ = take("caller")
		if caller == nil {
			caller = &undefined{"there is no caller"}
		}
	}
	if d.kwargs == nil && len(rest.keys) > 0 {
		s.fail("%s takes no argument %s", called, quote(rest.keys[0].(string)))
	}
	if d.varargs == nil && len(args) > len(d.args) {
		s.fail("%s takes no more than %d arguments", called, len(d.args))
	}
	text := ""
	line := s.line
	s.within(d.fn, m.parent, func() {
		for i, a := range d.args {
			s.set(a.ref, values[i])
		}
		if d.caller != nil {
			s.set(d.caller, caller)
		}
		if d.kwargs != nil {
			s.set(d.kwargs, rest)
		}
		if d.varargs != nil {
			s.set(d.varargs, &tuple{items: args[min(len(args), len(d.args)):]})
		}
		s.begin(d.inner)
		for i, a := range d.args {
			if s.get(a.ref) != missing {
				continue
			}
			if j := i - len(d.args) + len(d.defaults); j >= 0 {
				s.set(a.ref, d.defaults[j].eval(s))
			} else {
				s.set(a.ref, &undefined{"the argument " + quote(a.name) + " of " + called + " is not given"})
			}
		}
		text = s.captured(func() { s.run(d.body) })
	})
	s.line = line
	return text
}

// without returns a mapping without a key.
func (d *Dict) without(key string) *Dict {
	out := &Dict{}
	for i, k := range d.keys {
		if k != Value(key) {
			out.set(k, k, d.values[i])
		}
	}
	return out
}
