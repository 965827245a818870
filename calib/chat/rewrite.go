package chat

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
)

// What gonja does not know of Jinja is written in other words before it sees a template: a condition within an
// expression, (a if c else b), becomes a call that evaluates one of the two, and an index from the end, x[-2], one of
// what is turned round, x[::-1][1], since gonja's misses the first.

// chooser is the function that conditions become calls of.
const chooser = "choose_"

// choice is a condition within an expression.
type choice struct{ then, condition, otherwise nodes.Expression } // otherwise may be nil

// rewriter collects the conditions of a template.
type rewriter struct {
	parse   func(source string) (*exec.Template, error)
	choices []choice
}

// choose evaluates a condition, and what it chooses, where it stands.
func (w *rewriter) choose(e *exec.Evaluator, params *exec.VarArgs) *exec.Value {
	i := params.First().Integer()
	if len(params.Args) != 1 || i < 0 || i >= len(w.choices) {
		return exec.AsValue(errors.New(chooser + " is not for templates to call"))
	}
	c := w.choices[i]
	condition := e.Eval(c.condition)
	switch {
	case condition.IsError():
		return condition
	case condition.IsTrue():
		return e.Eval(c.then)
	case c.otherwise == nil:
		return exec.AsValue(nil)
	}
	return e.Eval(c.otherwise)
}

// template rewrites the tags of a template.
func (w *rewriter) template(source string) (string, error) {
	var b strings.Builder
	for {
		at := strings.IndexByte(source, '{')
		for at >= 0 && (at+1 == len(source) || !strings.ContainsRune("{%#", rune(source[at+1]))) {
			next := strings.IndexByte(source[at+1:], '{')
			if next < 0 {
				at = -1
				break
			}
			at += 1 + next
		}
		if at < 0 {
			b.WriteString(source)
			return b.String(), nil
		}
		b.WriteString(source[:at])
		source = source[at:]
		if source[1] == '#' {
			end := strings.Index(source, "#}")
			if end < 0 {
				end = len(source) - 2
			}
			b.WriteString(source[:end+2])
			source = source[end+2:]
			continue
		}
		closing := "}}"
		if source[1] == '%' {
			closing = "%}"
		}
		toks, end := scan(source[2:], closing)
		if end < 0 {
			b.WriteString(source) // which the parser will complain about
			return b.String(), nil
		}
		toks, err := w.tag(toks, source[1] == '{')
		if err != nil {
			return "", err
		}
		b.WriteString(source[:2] + strings.Join(toks, "") + closing)
		source = source[2+end+2:]
		if name := first(toks); closing == "%}" && name == "raw" {
			end := strings.Index(source, "endraw")
			if end < 0 {
				end = len(source)
			}
			b.WriteString(source[:end])
			source = source[end:]
			if at := strings.Index(source, "%}"); at >= 0 {
				b.WriteString(source[:at+2])
				source = source[at+2:]
			}
		}
	}
}

// scan cuts the text of a tag into tokens, blanks among them, up to its end.
func scan(text, closing string) (toks []string, end int) {
	depth := 0
	for i := 0; i < len(text); {
		if depth == 0 && strings.HasPrefix(text[i:], closing) {
			return toks, i
		}
		n := 1
		switch c := text[i]; {
		case c == '\'' || c == '"':
			for n < len(text)-i && text[i+n] != c {
				if text[i+n] == '\\' {
					n++
				}
				n++
			}
			if n++; n > len(text)-i {
				return nil, -1
			}
		case isWord(c):
			for i+n < len(text) && isWord(text[i+n]) {
				n++
			}
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		}
		toks = append(toks, text[i:i+n])
		i += n
	}
	return nil, -1
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isBlank(tok string) bool { return strings.TrimSpace(tok) == "" }

// first returns the first word of a tag.
func first(toks []string) string {
	for _, tok := range toks {
		if isWord(tok[0]) {
			return tok
		}
	}
	return ""
}

// tag rewrites a tag. What stands in brackets, is printed or is set to may be a condition; elsewhere an if is a
// statement's own.
func (w *rewriter) tag(toks []string, prints bool) ([]string, error) {
	toks, err := w.brackets(toks)
	if err != nil {
		return nil, err
	}
	begin := -1
	switch {
	case prints:
		begin = 0
	case first(toks) == "set":
		for i, tok := range toks {
			if tok == "=" {
				begin = i + 1
				break
			}
		}
	}
	if begin < 0 {
		return toks, nil
	}
	// The signs that take away blanks are no part of the expression.
	end := len(toks)
	for begin < end && prints && strings.Contains("-+", toks[begin]) {
		begin++
	}
	if end > begin && strings.Contains("-+", toks[end-1]) {
		end--
	}
	inner, err := w.expression(toks[begin:end])
	return append(append(append([]string{}, toks[:begin]...), inner...), toks[end:]...), err
}

// brackets rewrites what stands in brackets, innermost first.
func (w *rewriter) brackets(toks []string) ([]string, error) {
	var out []string
	var open []int // where brackets begin in out
	for _, tok := range toks {
		out = append(out, tok)
		switch tok {
		case "(", "[", "{":
			open = append(open, len(out)-1)
		case ")", "]", "}":
			if len(open) == 0 {
				return out, nil // which the parser will complain about
			}
			at := open[len(open)-1]
			open = open[:len(open)-1]
			inner, err := w.list(out[at+1 : len(out)-1])
			if err != nil {
				return nil, err
			}
			if n, ok := fromEnd(out[:at], inner); ok && tok == "]" {
				inner = []string{":", ":", "-", "1", "]", "[", strconv.Itoa(n - 1)}
			}
			out = append(append(out[:at+1:at+1], inner...), tok)
		}
	}
	return out, nil
}

// fromEnd reports whether brackets behind a value hold −n, an index from the end.
func fromEnd(before, inner []string) (n int, ok bool) {
	last := ""
	for _, tok := range before {
		if !isBlank(tok) {
			last = tok
		}
	}
	if last == "" || !isWord(last[0]) && !strings.Contains(`)]}'"`, last[:1]) || last == "in" || last == "else" || last == "and" || last == "or" || last == "not" {
		return 0, false
	}
	sign, number := "", ""
	for _, tok := range inner {
		switch {
		case isBlank(tok):
		case sign == "":
			sign = tok
		case number == "":
			number = tok
		default:
			return 0, false
		}
	}
	n, err := strconv.Atoi(number)
	return n, sign == "-" && err == nil && n > 0
}

// list rewrites the parts of what stands in brackets, in which there are none any more that matter.
func (w *rewriter) list(toks []string) ([]string, error) {
	var out []string
	from, depth := 0, 0
	for i := 0; i <= len(toks); i++ {
		if i < len(toks) {
			switch toks[i] {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
			ends := toks[i] == "," || toks[i] == ":" || toks[i] == "=" && !beside(toks, i, "=!<>")
			if depth > 0 || !ends {
				continue
			}
		}
		inner, err := w.expression(toks[from:i])
		if err != nil {
			return nil, err
		}
		out = append(out, inner...)
		if i < len(toks) {
			out = append(out, toks[i])
		}
		from = i + 1
	}
	return out, nil
}

// beside reports whether one of some signs stands next to toks[i].
func beside(toks []string, i int, signs string) bool {
	return i > 0 && strings.Contains(signs, toks[i-1]) || i+1 < len(toks) && strings.Contains(signs, toks[i+1])
}

// expression rewrites one that is a condition as a whole.
func (w *rewriter) expression(toks []string) ([]string, error) {
	at, then := find(toks, "if"), -1
	if at <= 0 {
		return toks, nil
	}
	if i := find(toks[at:], "else"); i >= 0 {
		then = at + i
	}
	end := len(toks)
	if then >= 0 {
		end = then
	}
	var c choice
	var err error
	if c.then, err = w.node(toks[:at]); err != nil {
		return nil, err
	}
	if c.condition, err = w.node(toks[at+1 : end]); err != nil {
		return nil, err
	}
	if then >= 0 {
		rest, err := w.expression(toks[then+1:])
		if err != nil {
			return nil, err
		}
		if c.otherwise, err = w.node(rest); err != nil {
			return nil, err
		}
	}
	w.choices = append(w.choices, c)
	return []string{" ", chooser, "(", strconv.Itoa(len(w.choices) - 1), ")", " "}, nil
}

// find returns where a word stands outside of brackets, or −1.
func find(toks []string, word string) int {
	depth := 0
	for i, tok := range toks {
		switch tok {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		case word:
			if depth == 0 {
				return i
			}
		}
	}
	return -1
}

// node parses an expression.
func (w *rewriter) node(toks []string) (nodes.Expression, error) {
	text := strings.Join(toks, "")
	t, err := w.parse("{{ " + text + " }}")
	if err != nil {
		return nil, err
	}
	if list := t.Root().Nodes; len(list) == 1 {
		if out, ok := list[0].(*nodes.Output); ok && out.Expression != nil {
			return out.Expression, nil
		}
	}
	return nil, fmt.Errorf("%q is no expression", strings.TrimSpace(text))
}
