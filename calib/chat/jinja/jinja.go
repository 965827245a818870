// Package jinja renders Jinja templates as transformers renders those of chats.
//
// That is Jinja2's ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, the extension loopcontrols, blocks of
// generation, raise_exception, strftime_now, and a tojson that escapes nothing but what JSON must.
//
// Values are Python's: integers of any size, strings of code points, lists, tuples, mappings in the order in which they
// were made, and generators that can be read once. A template prints what Jinja prints, or there is an error. Where
// this package cannot do as Jinja does, the error is one of [Error.Unsupported]: including other templates, autoescape,
// self and super in blocks, what is random, escaped text in operations that would escape, infinite numbers, sets,
// bytes, and printing what Python would print with an address.
//
// Templates may be anybody's. They read nothing but what they are given, and rendering is bounded: see [Options].
package jinja

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Error is what is wrong with a template or what it does. Its text is one line.
type Error struct {
	Line        int    // of the template, from 1; 0 where it is not known
	Text        string // what is wrong
	Raised      bool   // by raise_exception: Text is the template's, with control characters escaped
	Unsupported bool   // Jinja may do it, this package does not
}

func (e *Error) Error() string {
	switch {
	case e.Raised:
		return "the chat template says: " + e.Text
	case e.Line > 0:
		return fmt.Sprintf("chat template: line %d: %s", e.Line, e.Text)
	}
	return "chat template: " + e.Text
}

// stop is an error that ends rendering and is none of the template's.
type stop struct{ error }

func fail(line int, format string, args ...any) {
	panic(&Error{Line: line, Text: oneLine(fmt.Sprintf(format, args...))})
}

func unsupported(line int, what string) {
	panic(&Error{Line: line, Text: oneLine(what) + " is not supported", Unsupported: true})
}

// oneLine returns a text without control characters and without what is not UTF-8.
func oneLine(text string) string {
	plain := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) || r == ' ' }
	var b strings.Builder
	for _, r := range text {
		switch {
		case plain(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// quote returns a piece of a text for an error, in quotes and not too long.
func quote(text string) string {
	const most = 40
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// Options bound what a template may take. The zero value of each but Now is a limit that no honest template reaches.
type Options struct {
	Now    time.Time     // what strftime_now prints
	Time   time.Duration // the longest that rendering takes; 0: 10 s
	Output int           // the most bytes of output, and of any string; 0: 64 MiB
	Memory int           // the most bytes of all strings and lists that are made; 0: 1 GiB
}

func (o Options) withDefaults() Options {
	if o.Time == 0 {
		o.Time = 10 * time.Second
	}
	if o.Output == 0 {
		o.Output = 64 << 20
	}
	if o.Memory == 0 {
		o.Memory = 1 << 30
	}
	return o
}

// Template is a parsed template. Its methods may be called from several goroutines at once.
type Template struct {
	body   []stmt
	fn     *fn
	code   *frameCode
	strict bool
}

// mostSource is the most bytes of a template.
const mostSource = 4 << 20

// Parse reads a template. Its errors are of type [*Error].
func Parse(source string) (t *Template, err error) { return read(source, false) }

// ParsePlain reads a template as Jinja2's Environment does with keep_trailing_newline and StrictUndefined: white space
// around tags stays, and printing what is undefined is an error.
func ParsePlain(source string) (t *Template, err error) { return read(source, true) }

func read(source string, plain bool) (t *Template, err error) {
	defer recovered(&err)
	if len(source) > mostSource {
		return nil, &Error{Text: fmt.Sprintf("a template of more than %d bytes is not supported", mostSource), Unsupported: true}
	}
	if !utf8.ValidString(source) {
		return nil, &Error{Text: "it is no valid UTF-8"}
	}
	t = &Template{body: parse(source, plain), strict: plain}
	t.fn, t.code = compile(t.body)
	return t, nil
}

// Render returns what a template prints. vars are its variables: nil, bool, int, float64, string, [*Dict], []any of
// these, and map[string]any, whose order is that of its keys. The error of a context that is done is the context's; others
// are of type [*Error].
func (t *Template) Render(ctx context.Context, vars map[string]any, o Options) (text string, err error) {
	defer recovered(&err)
	o = o.withDefaults()
	if err := ctx.Err(); err != nil {
		return "", err
	}
	s := &state{ctx: ctx, options: o, strict: t.strict, deadline: time.Now().Add(o.Time), given: globals(), vars: map[string]Value{}, lib: &library{filters, tests, stringMethods, listMethods, dictMethods}}
	for name, v := range vars {
		if s.given[name], err = fromGo(v); err != nil {
			return "", &Error{Text: "the variable " + quote(name) + ": " + err.Error()}
		}
	}
	s.out = &buffer{}
	s.act = newActivation(t.fn, nil)
	s.begin(t.code)
	s.run(t.body)
	return s.out.String(), nil
}

// recovered makes a panic of this package its error.
func recovered(err *error) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		*err = r
	case stop:
		*err = r.error
	default:
		panic(r)
	}
}

// fromGo returns a value of Go as a template has it.
func fromGo(v any) (Value, error) {
	switch v := v.(type) {
	case nil, bool, int, *Dict, *List:
		return v, nil
	case float64:
		return v, nil
	case string:
		if !utf8.ValidString(v) {
			return nil, errors.New("it is no valid UTF-8")
		}
		return v, nil
	case []any:
		list := &List{}
		for _, item := range v {
			x, err := fromGo(item)
			if err != nil {
				return nil, err
			}
			list.items = append(list.items, x)
		}
		return list, nil
	}
	return nil, fmt.Errorf("a value of type %T cannot be given", v)
}
