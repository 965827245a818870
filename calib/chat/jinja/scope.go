package jinja

import (
	"fmt"
	"maps"
	"slices"
)

// Jinja makes Python functions of a template, with a variable for each name on each level of its blocks; which
// variable a name means is settled before rendering. This file settles it in the same way, since what templates print
// depends on it: what is set in a loop is gone behind it, and a name that is set anywhere at the top is not taken from
// what is given to the template where it is read within a block.

// fn is a function that Python would have: its variables are slots, by the names that Jinja gives them.
type fn struct {
	parent *fn
	slots  map[string]int
	loops  int // around what is compiled now
}

func (f *fn) assign(ident string) {
	if _, ok := f.slots[ident]; !ok {
		f.slots[ident] = len(f.slots)
	}
}

// ref is a variable as a function sees it: slot of the function that is depth functions out.
type ref struct {
	name        string
	ident       string
	depth, slot int
}

// How a variable gets its first value where its block begins.
const (
	asParam   uint8 = iota // it has it
	asResolve              // what is given to the template
	asAlias                // that of a variable further out
	asMissing
)

type loading struct {
	action uint8
	from   string // a name, or a variable
}

// symbols are the names of a block.
type symbols struct {
	level  int
	parent *symbols
	refs   map[string]string
	loads  map[string]loading
	stores map[string]bool
}

func newSymbols(parent *symbols) *symbols {
	s := &symbols{parent: parent, refs: map[string]string{}, loads: map[string]loading{}, stores: map[string]bool{}}
	if parent != nil {
		s.level = parent.level + 1
	}
	return s
}

func (s *symbols) copy() *symbols {
	return &symbols{s.level, s.parent, maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)}
}

func (s *symbols) define(name string, l loading) string {
	ident := fmt.Sprintf("%d_%s", s.level, name)
	s.refs[name] = ident
	s.loads[ident] = l
	return ident
}

func (s *symbols) find(name string) (ident string, ok bool) {
	for ; s != nil; s = s.parent {
		if ident, ok = s.refs[name]; ok {
			return ident, true
		}
	}
	return "", false
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if _, ok := s.refs[name]; ok {
		return
	}
	if outer, ok := s.parent.find(name); ok {
		s.define(name, loading{asAlias, outer})
		return
	}
	s.define(name, loading{action: asMissing})
}

func (s *symbols) param(name string) string {
	s.stores[name] = true
	return s.define(name, loading{action: asParam})
}

func (s *symbols) load(name string) {
	if _, ok := s.find(name); !ok {
		s.define(name, loading{asResolve, name})
	}
}

// branches takes over what the branches of a condition did.
func (s *symbols) branches(list ...*symbols) {
	stores := map[string]bool{}
	for _, b := range list {
		maps.Copy(stores, b.stores)
	}
	for name := range s.stores {
		delete(stores, name)
	}
	for _, b := range list {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.loads, b.loads)
		maps.Copy(s.stores, b.stores)
	}
	for name := range stores {
		target, _ := s.find(name)
		if outer, ok := s.parent.find(name); ok {
			s.loads[target] = loading{asAlias, outer}
		} else {
			s.loads[target] = loading{asResolve, name}
		}
	}
}

// visit finds the names of a node that belong to the block around it.
func (s *symbols) visit(n node) {
	switch n := n.(type) {
	case *name:
		switch n.use {
		case param:
			s.param(n.name)
		case store:
			s.store(n.name)
		default:
			s.load(n.name)
		}
	case *attribute:
		s.load(n.name)
	case *ifStmt:
		s.visit(n.test)
		branch := func(nodes []node) *symbols {
			b := s.copy()
			b.visitAll(nodes)
			return b
		}
		var elif []node
		for _, e := range n.elif {
			elif = append(elif, e)
		}
		s.branches(branch(stmts(n.body)), branch(elif), branch(stmts(n.els)))
	case *macroStmt:
		s.store(n.name)
	case *imports:
		s.visit(n.template)
		for _, name := range n.names {
			s.store(name)
		}
	case *setStmt:
		s.visit(n.value)
		s.visit(n.target)
	case *forStmt:
		s.visit(n.iter)
	case *callBlock:
		s.visit(n.call)
	case *generation, *blockStmt:
	case *filterBlock:
		s.visit(n.filter)
	case *withStmt:
		s.visitAll(exprs(n.values...))
	case *setBlock:
		s.visit(n.target)
	default:
		s.visitAll(n.children())
	}
}

func (s *symbols) visitAll(nodes []node) {
	for _, n := range nodes {
		s.visit(n)
	}
}

// targets finds the names of what a loop assigns to.
func (s *symbols) targets(target expr) {
	switch n := target.(type) {
	case *name:
		s.param(n.name)
	case *listExpr:
		for _, item := range n.items {
			s.targets(item)
		}
	}
}

// undeclared reports which names nodes read before they set them.
func undeclared(nodes []node, names ...string) map[string]bool {
	open, found := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		open[name] = true
	}
	var visit func(n node)
	visit = func(n node) {
		switch n := n.(type) {
		case *blockStmt:
			return
		case *name:
			if n.use == load && open[n.name] {
				found[n.name] = true
			} else {
				delete(open, n.name)
			}
			return
		}
		for _, c := range n.children() {
			visit(c)
		}
	}
	for _, n := range nodes {
		visit(n)
	}
	return found
}

// frame is a block that is compiled.
type frame struct {
	*symbols
	fn       *fn
	toplevel bool
	soft     bool // in a condition, where filters that there are not fail only when they are used
}

// frameCode is what happens where a block begins and ends.
type frameCode struct {
	params []*ref // that have their value
	begins []begin
}

type begin struct {
	ref  *ref
	how  uint8
	name string
	from *ref
}

// compiler settles the names of a template.
type compiler struct {
	refs   []pending
	blocks map[string]bool
	depth  int // of expressions
}

// pending is a variable that is found when all are known.
type pending struct {
	*ref
	fn *fn
}

func (c *compiler) variable(f *fn, name, ident string) *ref {
	r := &ref{name: name, ident: ident}
	c.refs = append(c.refs, pending{r, f})
	return r
}

// reads returns the variable that a name means.
func (c *compiler) reads(line at, name string, fr frame) *ref {
	ident, ok := fr.find(name)
	if !ok {
		fail(int(line), "the name %s is not known here", quote(name))
	}
	return c.variable(fr.fn, name, ident)
}

func (c *compiler) assigns(line at, name string, fr frame) *ref {
	r := c.reads(line, name, fr)
	fr.fn.assign(r.ident)
	return r
}

// inner returns a block within another.
func (f frame) inner() frame { return frame{symbols: newSymbols(f.symbols), fn: f.fn} }

func (f frame) softly() frame {
	f.soft = true
	return f
}

func newFn(parent *fn) *fn { return &fn{parent: parent, slots: map[string]int{}} }

// code returns what happens where a block begins, in a function.
func (c *compiler) code(fr frame) *frameCode {
	code := &frameCode{}
	for _, ident := range slices.Sorted(maps.Keys(fr.loads)) {
		l := fr.loads[ident]
		r := c.variable(fr.fn, ident, ident)
		fr.fn.assign(ident)
		switch l.action {
		case asParam:
			code.params = append(code.params, r)
		case asAlias:
			code.begins = append(code.begins, begin{ref: r, how: asAlias, from: c.variable(fr.fn, l.from, l.from)})
		default:
			code.begins = append(code.begins, begin{ref: r, how: l.action, name: l.from})
		}
	}
	return code
}

// compile settles all names and returns the function of the whole template.
func compile(body []stmt) (*fn, *frameCode) {
	c := &compiler{blocks: map[string]bool{}}
	fr := frame{symbols: newSymbols(nil), fn: newFn(nil), toplevel: true}
	if undeclared(stmts(body), "self")["self"] {
		unsupported(1, "self")
	}
	fr.visitAll(stmts(body))
	code := c.code(fr)
	c.stmts(body, fr)
	for _, p := range c.refs {
		p.depth = -1
		for f, depth := p.fn, 0; f != nil; f, depth = f.parent, depth+1 {
			if slot, ok := f.slots[p.ident]; ok {
				p.depth, p.slot = depth, slot
				break
			}
		}
	}
	return fr.fn, code
}

func (c *compiler) stmts(list []stmt, fr frame) {
	for _, n := range list {
		c.stmt(n, fr)
	}
}

func (c *compiler) stmt(n stmt, fr frame) {
	switch n := n.(type) {
	case *output:
		c.exprs(n.items, fr)
	case *ifStmt:
		fr = fr.softly()
		c.expr(n.test, fr)
		c.stmts(n.body, fr)
		for _, e := range n.elif {
			c.expr(e.test, fr)
			c.stmts(e.body, fr)
		}
		c.stmts(n.els, fr)
	case *forStmt:
		c.forStmt(n, fr)
	case *setStmt:
		c.expr(n.value, fr)
		n.vars = c.target(n.target, fr)
	case *setBlock:
		inner := fr.inner()
		inner.visitAll(stmts(n.body))
		n.inner = c.code(inner)
		c.stmts(n.body, inner)
		n.vars = c.target(n.target, fr)
		if n.filter != nil {
			c.expr(n.filter, inner)
		}
	case *filterBlock:
		inner := fr.inner()
		inner.visitAll(n.children())
		n.inner = c.code(inner)
		c.stmts(n.body, inner)
		c.expr(n.filter, inner)
	case *withStmt:
		inner := fr.inner()
		inner.visitAll(exprs(n.targets...))
		inner.visitAll(stmts(n.body))
		n.inner = c.code(inner)
		for i, target := range n.targets {
			c.target(target, inner)
			c.expr(n.values[i], fr)
		}
		c.stmts(n.body, inner)
	case *macroStmt:
		c.macro(&n.macroDef, fr)
		n.ref, n.toplevel = c.assigns(n.at, n.name, fr), fr.toplevel
	case *callBlock:
		c.macro(&n.macroDef, fr)
		for _, k := range n.call.keywords {
			if k.name == "caller" {
				fail(int(n.at), "a call block gives caller itself")
			}
		}
		c.expr(n.call, fr)
	case *generation:
		c.macro(&n.macroDef, fr)
	case *blockStmt:
		c.block(n, fr)
	case *imports:
		if n.word == "extends" && !fr.toplevel {
			fail(int(n.at), "extends stands within another block")
		}
		c.expr(n.template, fr)
		for _, name := range n.names {
			c.assigns(n.at, name, fr)
		}
	case *jump:
		if fr.fn.loops == 0 {
			fail(int(n.at), "break or continue outside of a loop")
		}
	}
}

func (c *compiler) forStmt(n *forStmt, fr frame) {
	inner, tests, other := fr.inner(), fr.inner(), fr.inner()
	extended := n.recursive || undeclared(stmts(n.body), "loop")["loop"] || hasScoped(n)
	if extended {
		inner.param("loop")
	}
	inner.targets(n.target)
	inner.visitAll(stmts(n.body))
	if n.els != nil {
		other.visitAll(stmts(n.els))
	}
	if n.test != nil {
		n.testFn = newFn(fr.fn)
		tests.fn = n.testFn
		tests.targets(n.target)
		tests.visit(n.test)
		n.tests = c.code(tests)
		again := inner
		again.fn = n.testFn
		c.target(n.again, again)
		c.expr(n.test, tests)
	}
	c.expr(n.iter, fr)
	if n.recursive {
		n.fn = newFn(fr.fn)
		inner.fn, other.fn = n.fn, n.fn
	}
	var stores func(n node)
	stores = func(m node) {
		if v, ok := m.(*name); ok && v.use == store && v.name == "loop" {
			fail(int(v.at), "loop cannot be assigned to in a loop")
		}
		for _, m := range m.children() {
			stores(m)
		}
	}
	stores(n)
	if extended {
		n.loop = c.assigns(n.at, "loop", inner)
	}
	c.target(n.target, inner)
	n.inner = c.code(inner)
	if inner.fn.loops++; inner.fn.loops > deepestLoop {
		unsupported(int(n.at), "so deep a nesting of loops")
	}
	c.stmts(n.body, inner)
	inner.fn.loops--
	if n.els != nil {
		n.other = c.code(other)
		c.stmts(n.els, other)
	}
}

// hasScoped reports whether there is a block within that sees the variables around it.
func hasScoped(n node) bool {
	if b, ok := n.(*blockStmt); ok && b.scoped {
		return true
	}
	return slices.ContainsFunc(n.children(), hasScoped)
}

func (c *compiler) macro(n *macroDef, fr frame) {
	inner := fr.inner()
	inner.fn = newFn(fr.fn)
	n.fn = inner.fn
	inner.visitAll(n.children())
	special := map[string]bool{}
	explicit := -1
	for i, a := range n.args {
		if a.name == "caller" {
			explicit = i
		}
		special[a.name] = true
	}
	names := undeclared(stmts(n.body), "caller", "kwargs", "varargs")
	declare := func(name string) *ref {
		ident := inner.param(name)
		inner.fn.assign(ident)
		return c.variable(inner.fn, name, ident)
	}
	if names["caller"] {
		if explicit < 0 {
			n.caller = declare("caller")
		} else if explicit < len(n.args)-len(n.defaults) {
			fail(int(n.at), "the argument caller needs a default")
		}
	}
	if names["kwargs"] && !special["kwargs"] {
		n.kwargs = declare("kwargs")
	}
	if names["varargs"] && !special["varargs"] {
		n.varargs = declare("varargs")
	}
	inner.visitAll(n.children())
	for _, a := range n.args {
		a.ref = c.assigns(n.at, a.name, inner)
	}
	n.inner = c.code(inner)
	c.exprs(n.defaults, inner)
	c.stmts(n.body, inner)
}

func (c *compiler) block(n *blockStmt, fr frame) {
	if c.blocks[n.name] {
		fail(int(n.at), "there are two blocks %s", quote(n.name))
	}
	c.blocks[n.name] = true
	if n.scoped {
		seen := map[string]bool{}
		for s := fr.symbols; s != nil; s = s.parent {
			for _, v := range slices.Sorted(maps.Keys(s.stores)) {
				if !seen[v] {
					seen[v] = true
					n.sees = append(n.sees, &name{at: n.at, name: v, ref: c.reads(n.at, v, fr)})
				}
			}
		}
	}
	if found := undeclared(stmts(n.body), "self", "super"); len(found) > 0 {
		unsupported(int(n.at), "self or super in a block")
	}
	inner := frame{symbols: newSymbols(nil), fn: newFn(nil)}
	n.fn = inner.fn
	inner.visitAll(stmts(n.body))
	n.inner = c.code(inner)
	c.stmts(n.body, inner)
}

// target compiles what is assigned to, and returns the names of it where blocks see them.
func (c *compiler) target(x expr, fr frame) (seen []*name) {
	switch n := x.(type) {
	case *name:
		n.ref = c.assigns(n.at, n.name, fr)
		if fr.toplevel {
			return []*name{n}
		}
	case *attribute:
		n.ref = c.reads(n.at, n.name, fr)
	case *listExpr:
		for _, item := range n.items {
			seen = append(seen, c.target(item, fr)...)
		}
	}
	return seen
}

func (c *compiler) exprs(list []expr, fr frame) {
	for _, x := range list {
		c.expr(x, fr)
	}
}

func (c *compiler) expr(x node, fr frame) {
	if c.depth++; c.depth > deepestExpr {
		unsupported(lineOf(x), "so deep an expression")
	}
	defer func() { c.depth-- }()
	switch n := x.(type) {
	case *name:
		n.ref = c.reads(n.at, n.name, fr)
	case *filter:
		if n.fn == nil && !fr.soft {
			unknown(n.at, "filter", n.name)
		}
	case *test:
		if n.fn == nil && !fr.soft {
			unknown(n.at, "test", n.name)
		}
	case *condition:
		fr = fr.softly()
	case *dictExpr:
		for _, p := range n.pairs {
			if noKey(p.key) { // at which Jinja fails before rendering, or while it renders
				unsupported(int(n.at), "a list or a mapping as a key")
			}
		}
	}
	for _, child := range x.children() {
		c.expr(child, fr)
	}
}

// unknown fails for a filter or a test that there is not. Jinja may overlook it where it can do without it.
func unknown(line at, what, name string) {
	panic(&Error{Line: int(line), Text: oneLine("there is no " + what + " " + quote(name)), Unsupported: true})
}

// noKey reports whether what an expression makes can be no key of a mapping.
func noKey(x expr) bool {
	switch x := x.(type) {
	case *dictExpr:
		return true
	case *listExpr:
		return !x.tuple || slices.ContainsFunc(x.items, noKey)
	}
	return false
}

// lineOf returns the line of a node, as far as it is known.
func lineOf(n node) int {
	if n, ok := n.(interface{ line() int }); ok {
		return n.line()
	}
	return 0
}
