package jinja

import (
	"slices"
	"strings"
)

// Python, which Jinja compiles templates to, takes no deeper ones; what lies between is refused.
const (
	deepestExpr  = 60
	deepestBlock = 40
	deepestLoop  = 18
)

type parser struct {
	tokens []token
	at     int
	exprs  int // levels of expressions
	blocks int // levels of statements
}

func (p *parser) cur() token { return p.tokens[p.at] }

func (p *parser) look() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

// next returns the current token and goes on.
func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tEOF {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) { fail(p.cur().line, format, args...) }

func (p *parser) skip(operator string) bool {
	if p.cur().is(operator) {
		p.at++
		return true
	}
	return false
}

func (p *parser) skipWord(name string) bool {
	if p.cur().word(name) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(operator string) {
	if !p.skip(operator) {
		p.fail("expected '%s', not %v", operator, p.cur())
	}
}

func (p *parser) expectWord(name string) {
	if !p.skipWord(name) {
		p.fail("expected '%s', not %v", name, p.cur())
	}
}

func (p *parser) expectKind(k kind) token {
	if p.cur().kind != k {
		p.fail("expected %v, not %v", token{kind: k, text: "a name"}, p.cur())
	}
	return p.next()
}

// parse returns the statements of a template.
func parse(source string, plain bool) []stmt {
	p := &parser{tokens: lex(source, plain)}
	body, _ := p.body(0, "")
	return body
}

// body reads statements up to a tag with one of these names, which it skips; at the top up to the end of the template.
func (p *parser) body(line int, names ...string) (body []stmt, end string) {
	if p.blocks++; p.blocks > deepestBlock {
		unsupported(p.cur().line, "so deep a nesting of blocks")
	}
	defer func() { p.blocks-- }()
	var out *output
	add := func(x expr) {
		if out == nil {
			out = &output{}
			body = append(body, out)
		}
		out.items = append(out.items, x)
	}
	for {
		switch t := p.next(); t.kind {
		case tEOF:
			if names[0] != "" {
				fail(line, "the block that begins here has no %s", names[len(names)-1])
			}
			return body, ""
		case tData:
			add(&data{at: at(t.line), text: t.text})
		case tVariable:
			add(p.tuple(tupleOptions{condition: true}))
			p.expectKind(tVariableEnd)
		case tBlock:
			out = nil
			if w := p.cur(); w.kind == tName && slices.Contains(names, w.text) {
				p.at++
				return body, w.text
			}
			body = append(body, p.statement())
			p.expectKind(tBlockEnd)
		default:
			fail(t.line, "unexpected %v", t)
		}
	}
}

// block reads what follows the head of a statement, up to one of these tags.
func (p *parser) block(line int, names ...string) ([]stmt, string) {
	p.skip(":")
	p.expectKind(tBlockEnd)
	return p.body(line, names...)
}

func (p *parser) statement() stmt {
	t := p.cur()
	if t.kind != tName {
		p.fail("expected the name of a tag, not %v", t)
	}
	p.at++
	line := at(t.line)
	switch t.text {
	case "for":
		return p.forLoop(line)
	case "if":
		return p.ifBlock(line)
	case "set":
		return p.set(line)
	case "with":
		return p.with(line)
	case "macro":
		n := &macroStmt{}
		n.at, n.name = line, p.target1().name
		p.signature(&n.macroDef)
		n.body, _ = p.block(t.line, "endmacro")
		return n
	case "call":
		n := &callBlock{}
		n.at = line
		if p.cur().is("(") {
			p.signature(&n.macroDef)
		}
		c, ok := p.expression(true).(*call)
		if !ok {
			fail(t.line, "a call block needs a call")
		}
		n.call = c
		n.body, _ = p.block(t.line, "endcall")
		return n
	case "generation":
		n := &generation{}
		n.at = line
		n.body, _ = p.block(t.line, "endgeneration")
		return n
	case "filter":
		n := &filterBlock{at: line}
		n.filter = p.filters(nil, true).(*filter)
		n.body, _ = p.block(t.line, "endfilter")
		return n
	case "print":
		n := &output{}
		for p.cur().kind != tBlockEnd {
			if n.items != nil {
				p.expect(",")
			}
			n.items = append(n.items, p.expression(true))
		}
		return n
	case "break":
		return &jump{at: line, control: goBreak}
	case "continue":
		return &jump{at: line, control: goContinue}
	case "block":
		return p.blockTag(line)
	case "include", "import", "from", "extends":
		return p.imports(line, t.text)
	case "autoescape":
		unsupported(t.line, "autoescape")
	}
	fail(t.line, "there is no tag %s here", quote(t.text))
	return nil
}

func (p *parser) forLoop(line at) stmt {
	n := &forStmt{at: line}
	from := p.at
	n.target = p.target("in", false)
	// What is assigned to stands in two places of Jinja's code: in the loop and in the function of its condition.
	here := p.at
	p.at = from
	n.again = p.target("in", false)
	p.at = here
	p.expectWord("in")
	n.iter = p.tuple(tupleOptions{end: "recursive"})
	if p.skipWord("if") {
		n.test = p.expression(true)
	}
	n.recursive = p.skipWord("recursive")
	var end string
	if n.body, end = p.block(int(line), "else", "endfor"); end == "else" {
		n.els, _ = p.block(int(line), "endfor")
	}
	return n
}

func (p *parser) ifBlock(line at) stmt {
	n := &ifStmt{at: line}
	last := n
	for {
		last.test = p.tuple(tupleOptions{})
		var end string
		last.body, end = p.block(int(line), "elif", "else", "endif")
		switch end {
		case "elif":
			last = &ifStmt{at: at(p.cur().line)}
			n.elif = append(n.elif, last)
			continue
		case "else":
			n.els, _ = p.block(int(line), "endif")
		}
		return n
	}
}

func (p *parser) set(line at) stmt {
	target := p.target("", true)
	if p.skip("=") {
		n := &setStmt{at: line, target: target, value: p.tuple(tupleOptions{condition: true})}
		n.spaces = spaces(target)
		return n
	}
	n := &setBlock{at: line, target: target}
	if p.cur().is("|") {
		n.filter = p.filters(nil, false).(*filter)
	}
	n.body, _ = p.block(int(line), "endset")
	return n
}

// spaces returns the attributes of namespaces in what is assigned to.
func spaces(target expr) []*attribute {
	switch n := target.(type) {
	case *attribute:
		return []*attribute{n}
	case *listExpr:
		var list []*attribute
		for _, item := range n.items {
			list = append(list, spaces(item)...)
		}
		return list
	}
	return nil
}

func (p *parser) with(line at) stmt {
	n := &withStmt{at: line}
	for p.cur().kind != tBlockEnd {
		if n.targets != nil {
			p.expect(",")
		}
		target := p.target("", false)
		setUse(target, param)
		n.targets = append(n.targets, target)
		p.expect("=")
		n.values = append(n.values, p.expression(true))
	}
	n.body, _ = p.block(int(line), "endwith")
	return n
}

func (p *parser) blockTag(line at) stmt {
	n := &blockStmt{at: line, name: p.expectKind(tName).text}
	n.scoped = p.skipWord("scoped")
	n.required = p.skipWord("required")
	n.body, _ = p.block(int(line), "endblock")
	p.skipWord(n.name)
	for _, s := range n.body {
		if !n.required {
			break
		}
		o, ok := s.(*output)
		for _, item := range o.itemsOf() {
			d, isText := item.(*data)
			ok = ok && isText && strings.TrimFunc(d.text, isSpace) == ""
		}
		if !ok {
			fail(int(line), "a required block has contents")
		}
	}
	return n
}

func (o *output) itemsOf() []expr {
	if o == nil {
		return nil
	}
	return o.items
}

// imports reads a tag that takes another template.
func (p *parser) imports(line at, word string) stmt {
	n := &imports{at: line, word: word, template: p.expression(true)}
	context := func() bool {
		if t := p.cur(); (t.word("with") || t.word("without")) && p.look().word("context") {
			p.at += 2
			return true
		}
		return false
	}
	switch word {
	case "include":
		if p.cur().word("ignore") && p.look().word("missing") {
			p.at += 2
		}
		context()
	case "import":
		p.expectWord("as")
		n.names = []string{p.target1().name}
		context()
	case "from":
		p.expectWord("import")
		for {
			if n.names != nil {
				p.expect(",")
			}
			if p.cur().kind != tName {
				p.expectKind(tName)
			}
			if context() {
				break
			}
			name := p.target1().name
			if strings.HasPrefix(name, "_") {
				p.fail("names that begin with an underscore cannot be imported")
			}
			if p.skipWord("as") {
				name = p.target1().name
			}
			n.names = append(n.names, name)
			if context() || !p.cur().is(",") {
				break
			}
		}
	}
	return n
}

func (p *parser) signature(n *macroDef) {
	p.expect("(")
	for !p.cur().is(")") {
		if n.args != nil {
			p.expect(",")
		}
		arg := p.target1()
		arg.use = param
		for _, a := range n.args {
			if a.name == arg.name {
				p.fail("two arguments are called %s", quote(arg.name))
			}
		}
		if p.skip("=") {
			n.defaults = append(n.defaults, p.expression(true))
		} else if n.defaults != nil {
			p.fail("an argument without a default follows one that has it")
		}
		n.args = append(n.args, arg)
	}
	p.expect(")")
}

// target1 reads a single name that is assigned to.
func (p *parser) target1() *name {
	t := p.expectKind(tName)
	switch t.text {
	case "true", "false", "none", "True", "False", "None":
		fail(t.line, "%s cannot be assigned to", t.text)
	}
	return &name{at: at(t.line), name: t.text, use: store}
}

// target reads what is assigned to, up to a word.
func (p *parser) target(end string, namespaces bool) expr {
	line := p.cur().line
	target := p.tuple(tupleOptions{target: true, namespaces: namespaces, end: end})
	if !setUse(target, store) {
		fail(line, "this cannot be assigned to")
	}
	return target
}

// setUse says that names are assigned to. It reports whether they can be.
func setUse(target expr, use uint8) bool {
	switch n := target.(type) {
	case *name:
		n.use = use
		return true
	case *attribute:
		return true
	case *listExpr:
		ok := n.tuple
		for _, item := range n.items {
			ok = setUse(item, use) && ok
		}
		return ok
	}
	return false
}

type tupleOptions struct {
	target     bool // only names
	namespaces bool // and attributes of them
	condition  bool // a if c else b
	parens     bool // within brackets, where there may be nothing
	end        string
}

// tuple reads an expression, or several with commas between them.
func (p *parser) tuple(o tupleOptions) expr {
	line := p.cur().line
	var items []expr
	tuple := false
	for {
		if items != nil {
			p.expect(",")
		}
		if t := p.cur(); t.kind == tVariableEnd || t.kind == tBlockEnd || t.is(")") || o.end != "" && t.word(o.end) {
			break
		}
		if o.target {
			items = append(items, p.primary(o.namespaces))
		} else {
			items = append(items, p.expression(o.condition))
		}
		if !p.cur().is(",") {
			break
		}
		tuple = true
		line = p.cur().line
	}
	if !tuple {
		if len(items) > 0 {
			return items[0]
		}
		if !o.parens {
			p.fail("expected an expression, not %v", p.cur())
		}
	}
	return &listExpr{at: at(line), items: items, tuple: true}
}

// deeper counts the levels of an expression.
func (p *parser) deeper() {
	if p.exprs++; p.exprs > deepestExpr*8 {
		unsupported(p.cur().line, "so deep an expression")
	}
}

func (p *parser) expression(conditions bool) expr {
	p.deeper()
	defer func() { p.exprs-- }()
	line := p.cur().line
	x := p.binary(0)
	for conditions && p.skipWord("if") {
		n := &condition{at: at(line), then: x}
		n.test = p.binary(0)
		if p.skipWord("else") {
			n.otherwise = p.expression(true)
		}
		x = n
		line = p.cur().line
	}
	return x
}

// How strongly operators bind.
const (
	bindOr = iota
	bindAnd
	bindNot
	bindCompare
	bindAdd
	bindConcat
	bindMultiply
	bindPower
	bindUnary
)

// operator returns the operator between two operands that stands here, how strongly it binds (or −1) and its tokens.
func (p *parser) operator() (op string, binding, tokens int) {
	t := p.cur()
	switch t.kind {
	case tName:
		switch t.text {
		case "or":
			return "or", bindOr, 1
		case "and":
			return "and", bindAnd, 1
		case "in":
			return "in", bindCompare, 1
		case "not":
			if p.look().word("in") {
				return "not in", bindCompare, 2
			}
		}
	case tOperator:
		switch t.text {
		case "==", "!=", "<", "<=", ">", ">=":
			return t.text, bindCompare, 1
		case "+", "-":
			return t.text, bindAdd, 1
		case "~":
			return t.text, bindConcat, 1
		case "*", "/", "//", "%":
			return t.text, bindMultiply, 1
		case "**":
			return t.text, bindPower, 1
		}
	}
	return "", -1, 0
}

// binary reads operands and the operators between them that bind at least so strongly.
func (p *parser) binary(binding int) expr {
	p.deeper()
	defer func() { p.exprs-- }()
	line := at(p.cur().line)
	var x expr
	if binding <= bindNot && p.skipWord("not") {
		x = &unary{at: line, op: "not", x: p.binary(bindNot)} // which reads all that binds more strongly
	} else {
		x = p.unary(true)
	}
	for {
		op, b, n := p.operator()
		if b < binding {
			return x
		}
		switch b {
		case bindCompare:
			c := &compare{at: line, x: x}
			for b == bindCompare {
				p.at += n
				c.ops = append(c.ops, operand{op, p.binary(bindAdd)})
				op, b, n = p.operator()
			}
			x = c
		case bindConcat:
			c := &concat{at: line, items: []expr{x}}
			for b == bindConcat {
				p.at += n
				c.items = append(c.items, p.binary(bindMultiply))
				_, b, n = p.operator()
			}
			x = c
		default:
			p.at += n
			x = &binary{at: line, op: op, x: x, y: p.binary(b + 1)}
		}
		line = at(p.cur().line)
	}
}

func (p *parser) unary(filters bool) expr {
	p.deeper()
	defer func() { p.exprs-- }()
	t := p.cur()
	var x expr
	switch {
	case t.is("-"), t.is("+"):
		p.at++
		x = &unary{at: at(t.line), op: t.text, x: p.unary(false)}
	default:
		x = p.primary(false)
	}
	x = p.postfix(x)
	if filters {
		x = p.filterExpr(x)
	}
	return x
}

func (p *parser) primary(namespaces bool) expr {
	t := p.next()
	line := at(t.line)
	switch t.kind {
	case tName:
		switch t.text {
		case "true", "True":
			return &constant{at: line, value: true}
		case "false", "False":
			return &constant{at: line, value: false}
		case "none", "None":
			return &constant{at: line}
		}
		if namespaces && p.skip(".") {
			return &attribute{at: line, name: t.text, attr: p.expectKind(tName).text}
		}
		return &name{at: line, name: t.text}
	case tString:
		s := t.text
		for p.cur().kind == tString {
			s += p.next().text
		}
		return &constant{at: line, value: s}
	case tInt, tFloat:
		return &constant{at: line, value: t.value}
	case tOperator:
		switch t.text {
		case "(":
			x := p.tuple(tupleOptions{condition: true, parens: true})
			p.expect(")")
			return x
		case "[":
			n := &listExpr{at: line}
			p.list("]", func() { n.items = append(n.items, p.expression(true)) })
			return n
		case "{":
			n := &dictExpr{at: line}
			p.list("}", func() {
				key := p.expression(true)
				p.expect(":")
				n.pairs = append(n.pairs, pair{key, p.expression(true)})
			})
			return n
		}
	}
	fail(t.line, "unexpected %v", t)
	return nil
}

// list reads items with commas between them up to a bracket.
func (p *parser) list(end string, item func()) {
	for first := true; !p.cur().is(end); first = false {
		if !first {
			p.expect(",")
			if p.cur().is(end) {
				break
			}
		}
		item()
	}
	p.expect(end)
}

func (p *parser) postfix(x expr) expr {
	for {
		switch t := p.cur(); {
		case t.is("."), t.is("["):
			x = p.subscript(x)
		case t.is("("):
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) filterExpr(x expr) expr {
	for {
		switch t := p.cur(); {
		case t.is("|"):
			x = p.filters(x, false)
		case t.word("is"):
			x = p.test(x)
		case t.is("("):
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) call(x expr) expr {
	n := &call{at: at(p.cur().line), x: x}
	p.arguments(&n.arguments)
	return n
}

func (p *parser) subscript(x expr) expr {
	t := p.next()
	line := at(t.line)
	if t.text == "." {
		switch a := p.next(); a.kind {
		case tName:
			return &getattr{at: line, x: x, name: a.text}
		case tInt:
			return &getitem{at: line, x: x, index: &constant{at: at(a.line), value: a.value}}
		default:
			fail(a.line, "expected a name or a number after the dot, not %v", a)
		}
	}
	var items []expr
	for !p.cur().is("]") {
		if items != nil {
			p.expect(",")
		}
		items = append(items, p.subscribed())
	}
	p.expect("]")
	if len(items) == 1 {
		return &getitem{at: line, x: x, index: items[0]}
	}
	for _, item := range items {
		if _, ok := item.(*sliceExpr); ok {
			unsupported(t.line, "a slice among several indices")
		}
	}
	return &getitem{at: line, x: x, index: &listExpr{at: line, items: items, tuple: true}}
}

// subscribed reads what stands between [ and ]: an index or a slice.
func (p *parser) subscribed() expr {
	n := &sliceExpr{at: at(p.cur().line)}
	if !p.cur().is(":") {
		n.start = p.expression(true)
		if !p.cur().is(":") {
			return n.start
		}
	}
	p.at++
	ends := func() bool { return p.cur().is("]") || p.cur().is(",") }
	if !p.cur().is(":") && !ends() {
		n.stop = p.expression(true)
	}
	if p.skip(":") && !ends() {
		n.step = p.expression(true)
	}
	return n
}

func (p *parser) arguments(a *arguments) {
	line := p.cur().line
	ensure := func(ok bool) {
		if !ok {
			fail(line, "the arguments of this call are in the wrong order")
		}
	}
	p.expect("(")
	for first := true; !p.cur().is(")"); first = false {
		if !first {
			p.expect(",")
			if p.cur().is(")") {
				break
			}
		}
		switch t := p.cur(); {
		case p.skip("*"):
			ensure(a.star == nil && a.stars == nil)
			a.star = p.expression(true)
		case p.skip("**"):
			ensure(a.stars == nil)
			a.stars = p.expression(true)
		case t.kind == tName && p.look().is("="):
			ensure(a.stars == nil)
			p.at += 2
			for _, k := range a.keywords {
				if k.name == t.text {
					fail(line, "the argument %s is given twice", quote(t.text))
				}
			}
			a.keywords = append(a.keywords, keyword{t.text, p.expression(true)})
		default:
			ensure(a.star == nil && a.stars == nil && a.keywords == nil)
			a.args = append(a.args, p.expression(true))
		}
	}
	p.expect(")")
}

// dotted reads the name of a filter or a test.
func (p *parser) dotted() token {
	t := p.expectKind(tName)
	for p.skip(".") {
		t.text += "." + p.expectKind(tName).text
	}
	return t
}

// filters reads filters of a value. bare is the first without the sign before it.
func (p *parser) filters(x expr, bare bool) expr {
	for bare || p.skip("|") {
		bare = false
		t := p.dotted()
		n := &filter{at: at(t.line), x: x, name: t.text, fn: filters[t.text]}
		if p.cur().is("(") {
			p.arguments(&n.arguments)
		}
		x = n
	}
	return x
}

func (p *parser) test(x expr) expr {
	line := at(p.next().line)
	negated := p.skipWord("not")
	t := p.dotted()
	n := &test{at: line, x: x, name: t.text, fn: tests[t.text]}
	switch a := p.cur(); {
	case a.is("("):
		p.arguments(&n.arguments)
	case a.word("is"):
		p.fail("tests cannot follow each other")
	case a.word("else"), a.word("or"), a.word("and"):
	case a.kind == tName, a.kind == tString, a.kind == tInt, a.kind == tFloat, a.is("["), a.is("{"):
		n.args = []expr{p.postfix(p.primary(false))}
	}
	if negated {
		return &unary{at: line, op: "not", x: n}
	}
	return n
}
