package tasks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lutq/lutq/calib/chat/jinja"
)

// field is what a form says of the text, the choices or the answer of an item.
type field struct {
	constant any    // a number or a list
	template string // else: the name of a field of the item, or a template
	parsed   *jinja.Template
	verbatim bool // a text that looks like a number or a list is still a text
}

func newField(what string, v any) (*field, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		parsed, err := jinja.ParsePlain(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, ofTemplate(err))
		}
		return &field{template: v, parsed: parsed}, nil
	case int, []any:
		return &field{constant: v}, nil
	}
	return nil, fmt.Errorf("%s: want a text, a number or a list", what)
}

// ofTemplate takes the words about chats out of an error of a template.
func ofTemplate(err error) error {
	e, ok := errors.AsType[*jinja.Error](err)
	switch {
	case !ok:
		return err
	case e.Line > 0:
		return fmt.Errorf("line %d of the template: %s", e.Line, e.Text)
	}
	return fmt.Errorf("the template: %s", e.Text)
}

// render returns the text that a template makes of an item, or the value of the field that it names.
func (f *field) render(ctx context.Context, x record) (any, error) {
	if f.parsed == nil {
		return f.constant, nil
	}
	if v, ok := x[f.template]; ok && !f.verbatim {
		return v, nil
	}
	text, err := f.parsed.Render(ctx, x, jinja.Options{})
	if err != nil {
		return nil, ofTemplate(err)
	}
	return rendered(text), nil
}

// rendered is a text that a template has made, which may stand for a number or a list.
type rendered string

// whole returns the number that a rendered text is.
func (r rendered) whole() (int, bool) {
	for _, c := range r {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.Atoi(string(r))
	return n, err == nil
}

// text is doc_to_text of lm-evaluation-harness: a string, or where there are choices the number of one.
func (f *field) text(ctx context.Context, x record, choices bool) (any, error) {
	v, err := f.render(ctx, x)
	if r, ok := v.(rendered); ok {
		if n, whole := r.whole(); whole && choices {
			return n, nil
		}
		return string(r), err
	}
	return v, err
}

// target is doc_to_target: a string, a number or a list.
func (f *field) target(ctx context.Context, x record, choices bool) (any, error) {
	v, err := f.render(ctx, x)
	switch r := v.(type) {
	case bool: // a number in Python
		if r {
			return 1, err
		}
		return 0, err
	case rendered:
		if f.verbatim {
			return string(r), err
		}
		if n, whole := r.whole(); whole && choices {
			return n, nil
		}
		if list, err := parseList(string(r)); err == nil {
			return list, nil
		}
		return string(r), err
	}
	return v, err
}

// choices is doc_to_choice: texts.
func (f *field) choices(ctx context.Context, x record) ([]string, error) {
	v, err := f.render(ctx, x)
	if err != nil {
		return nil, err
	}
	if r, ok := v.(rendered); ok {
		if v, err = parseList(string(r)); err != nil {
			return nil, err
		}
	}
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return nil, errors.New("want a list of choices")
	}
	texts := make([]string, len(list))
	for i, c := range list {
		if texts[i], ok = c.(string); !ok || texts[i] == "" {
			return nil, fmt.Errorf("choice %d is no text", i+1)
		}
	}
	return texts, nil
}

// parseList reads a list of texts and whole numbers as Python prints it.
func parseList(text string) ([]any, error) {
	p := &literal{rest: strings.TrimSpace(text)}
	list, ok := p.list()
	if !ok || p.rest != "" {
		return nil, fmt.Errorf("%s is no list", quote(text))
	}
	return list, nil
}

// quote returns a piece of a text for an error.
func quote(text string) string {
	const most = 40
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return strconv.Quote(text)
}

// literal reads a literal of Python.
type literal struct{ rest string }

func (p *literal) skip(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *literal) blanks() { p.rest = strings.TrimLeft(p.rest, " \t\n") }

func (p *literal) list() (list []any, ok bool) {
	if !p.skip("[") {
		return nil, false
	}
	list = []any{}
	for {
		if p.blanks(); p.skip("]") {
			return list, true
		}
		if len(list) > 0 {
			if !p.skip(",") {
				return nil, false
			}
			if p.blanks(); p.skip("]") {
				return list, true
			}
		}
		v, ok := p.value()
		if !ok {
			return nil, false
		}
		list = append(list, v)
	}
}

func (p *literal) value() (any, bool) {
	if p.rest == "" {
		return nil, false
	}
	if q := p.rest[0]; q == '\'' || q == '"' {
		return p.text(q)
	}
	n := strings.IndexFunc(p.rest, func(r rune) bool { return r != '-' && (r < '0' || r > '9') })
	if n < 0 {
		return nil, false
	}
	v, err := strconv.Atoi(p.rest[:n])
	p.rest = p.rest[n:]
	return v, err == nil
}

// text reads a text in quotes q.
func (p *literal) text(q byte) (string, bool) {
	var b strings.Builder
	for s := p.rest[1:]; s != ""; {
		switch s[0] {
		case q:
			p.rest = s[1:]
			return b.String(), true
		case '\n':
			return "", false
		case '\\':
			if len(s) > 1 && s[1] == '\n' {
				s = s[2:]
				continue
			}
			r, _, rest, err := strconv.UnquoteChar(s, q)
			if err != nil && len(s) > 1 && (s[1] == '\'' || s[1] == '"') { // the other quote
				r, rest, err = rune(s[1]), s[2:], nil
			}
			if err != nil {
				return "", false
			}
			b.WriteRune(r) // \x80 to \xff are code points in Python, not bytes
			s = rest
		default:
			r, n := utf8.DecodeRuneInString(s)
			b.WriteRune(r)
			s = s[n:]
		}
	}
	return "", false
}
