package jinja

// A node is a statement or an expression. children are in the order of Jinja's fields, by which it finds names.
type node interface{ children() []node }

// expr is an expression.
type expr interface {
	node
	eval(s *state) Value
}

// at is the line where a node stands.
type at int

func (a at) line() int { return int(a) }

type leaf struct{}

func (leaf) children() []node { return nil }

// How a name is used.
const (
	load uint8 = iota
	store
	param
)

// name is a variable.
type name struct {
	at
	leaf
	name string
	use  uint8
	ref  *ref
}

// attribute is an attribute of a namespace that is set.
type attribute struct {
	at
	leaf
	name, attr string
	ref        *ref
}

// data is text of the template.
type data struct {
	at
	leaf
	text string
}

type constant struct {
	at
	leaf
	value Value
}

type listExpr struct {
	at
	items []expr
	tuple bool
}

type pair struct{ key, value expr }

type dictExpr struct {
	at
	pairs []pair
}

type unary struct {
	at
	op string // not, - or +
	x  expr
}

type binary struct {
	at
	op   string
	x, y expr
}

type concat struct {
	at
	items []expr
}

type operand struct {
	op string
	x  expr
}

type compare struct {
	at
	x   expr
	ops []operand
}

type condition struct {
	at
	test, then, otherwise expr // otherwise may be nil
}

type getattr struct {
	at
	x    expr
	name string
}

type getitem struct {
	at
	x, index expr
}

type sliceExpr struct {
	at
	start, stop, step expr // may be nil
}

type keyword struct {
	name  string
	value expr
}

// arguments are those of a call, a filter or a test.
type arguments struct {
	args     []expr
	keywords []keyword
	star     expr // *args, may be nil
	stars    expr // **kwargs, may be nil
}

type call struct {
	at
	x expr
	arguments
}

type filter struct {
	at
	x    expr // nil for what a block contains
	name string
	fn   *function // nil for a name that is not known, which fails when it is used
	arguments
}

type test struct {
	at
	x    expr
	name string
	fn   *function
	arguments
}

func (n *listExpr) children() []node { return exprs(n.items...) }
func (n *dictExpr) children() []node {
	var list []node
	for _, p := range n.pairs {
		list = append(list, p.key, p.value)
	}
	return list
}
func (n *unary) children() []node  { return []node{n.x} }
func (n *binary) children() []node { return []node{n.x, n.y} }
func (n *concat) children() []node { return exprs(n.items...) }
func (n *compare) children() []node {
	list := []node{n.x}
	for _, o := range n.ops {
		list = append(list, o.x)
	}
	return list
}
func (n *condition) children() []node { return exprs(n.test, n.then, n.otherwise) }
func (n *getattr) children() []node   { return []node{n.x} }
func (n *getitem) children() []node   { return []node{n.x, n.index} }
func (n *sliceExpr) children() []node { return exprs(n.start, n.stop, n.step) }
func (a *arguments) nodes() []node {
	list := exprs(a.args...)
	for _, k := range a.keywords {
		list = append(list, k.value)
	}
	return append(list, exprs(a.star, a.stars)...)
}
func (n *call) children() []node   { return append([]node{n.x}, n.nodes()...) }
func (n *filter) children() []node { return append(exprs(n.x), n.nodes()...) }
func (n *test) children() []node   { return append([]node{n.x}, n.nodes()...) }

// exprs are expressions as nodes, without those that are nil.
func exprs(list ...expr) []node {
	var nodes []node
	for _, x := range list {
		if x != nil {
			nodes = append(nodes, x)
		}
	}
	return nodes
}

// stmt is a statement.
type stmt interface {
	node
	exec(s *state) control
}

type output struct{ items []expr }

type ifStmt struct {
	at
	test expr
	body []stmt
	elif []*ifStmt // without elif and orelse of their own
	els  []stmt
}

type forStmt struct {
	at
	target    expr
	iter      expr
	body, els []stmt
	test      expr // nil for none
	recursive bool

	again               expr // the target once more, for the function of the test
	loop                *ref // nil where the body does not name it
	inner, tests, other *frameCode
	fn, testFn          *fn // of a recursive loop, and of the test
}

type setStmt struct {
	at
	target, value expr
	spaces        []*attribute // in target
	vars          []*name      // at the top of a template, which its blocks see
}

type setBlock struct {
	at
	target expr
	filter *filter // may be nil
	body   []stmt

	inner *frameCode
	vars  []*name // at the top of a template, which its blocks see
}

type filterBlock struct {
	at
	body   []stmt
	filter *filter

	inner *frameCode
}

type withStmt struct {
	at
	targets, values []expr
	body            []stmt

	inner *frameCode
}

// macroDef is a macro or what a call block contains.
type macroDef struct {
	at
	name     string // "" for a block's
	args     []*name
	defaults []expr // of the last arguments
	body     []stmt

	fn                      *fn
	inner                   *frameCode
	caller, kwargs, varargs *ref // nil where the body names none
}

type macroStmt struct {
	macroDef
	ref      *ref
	toplevel bool
}

type callBlock struct {
	macroDef
	call *call
}

// generation marks what a model is to learn: it is its contents.
type generation struct{ macroDef }

type blockStmt struct {
	at
	name             string
	scoped, required bool
	body             []stmt

	fn    *fn
	inner *frameCode
	sees  []*name // what a scoped block sees
}

// imports stands for include, import, from and extends, which fail where no templates can be loaded.
type imports struct {
	at
	word     string
	template expr
	names    []string // that it sets
}

type jump struct {
	at
	leaf
	control control // goBreak or goContinue
}

func stmts(lists ...[]stmt) []node {
	var nodes []node
	for _, list := range lists {
		for _, n := range list {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func (n *output) children() []node { return exprs(n.items...) }
func (n *ifStmt) children() []node {
	list := append([]node{n.test}, stmts(n.body)...)
	for _, e := range n.elif {
		list = append(list, e)
	}
	return append(list, stmts(n.els)...)
}

func (n *forStmt) children() []node {
	list := append([]node{n.target, n.iter}, stmts(n.body, n.els)...)
	return append(list, exprs(n.test)...)
}
func (n *setStmt) children() []node { return []node{n.target, n.value} }
func (n *setBlock) children() []node {
	list := []node{n.target}
	if n.filter != nil {
		list = append(list, n.filter)
	}
	return append(list, stmts(n.body)...)
}
func (n *filterBlock) children() []node { return append(stmts(n.body), n.filter) }
func (n *withStmt) children() []node {
	return append(append(exprs(n.targets...), exprs(n.values...)...), stmts(n.body)...)
}

func (n *macroDef) children() []node {
	var list []node
	for _, a := range n.args {
		list = append(list, a)
	}
	return append(append(list, exprs(n.defaults...)...), stmts(n.body)...)
}
func (n *callBlock) children() []node { return append([]node{n.call}, n.macroDef.children()...) }
func (n *blockStmt) children() []node { return stmts(n.body) }
func (n *imports) children() []node   { return exprs(n.template) }
