package jinja

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// named sets the names of functions to those that they have in a table.
func named(table map[string]*function) map[string]*function {
	for name, f := range table {
		f.name = name
	}
	return table
}

// text returns an argument that must be a text.
func (s *state) text(v Value) string {
	if _, ok := v.(markup); ok {
		s.unsupported("an escaped text here")
	}
	t, ok := v.(string)
	if !ok {
		s.known(v)
		s.fail("a text is needed, not a value of type %s", typeName(v))
	}
	return t
}

// cut returns the part of a text between two optional indices, and where it begins.
func (s *state) cut(text string, start, stop Value) (part string, from int, ok bool) {
	if start == nil && stop == nil {
		return text, 0, true
	}
	runes := []rune(text)
	bound := func(v Value, otherwise int) int {
		if v == nil {
			return otherwise
		}
		i := s.index(v)
		if i < 0 {
			i = max(i+len(runes), 0)
		}
		return i
	}
	from, to := bound(start, 0), min(bound(stop, len(runes)), len(runes))
	if from > to {
		return "", from, false
	}
	return string(runes[from:to]), from, true
}

// find returns the index of a part of a text, or −1.
func (s *state) find(a []Value, last bool) int {
	part, from, ok := s.cut(a[0].(string), a[2], a[3])
	what := s.text(a[1])
	if !ok {
		return -1
	}
	i := strings.Index(part, what)
	if last {
		i = strings.LastIndex(part, what)
	}
	if i < 0 {
		return -1
	}
	return from + utf8.RuneCountInString(part[:i])
}

// affix is startswith or endswith.
func (s *state) affix(a []Value, has func(string, string) bool) Value {
	part, _, ok := s.cut(a[0].(string), a[2], a[3])
	if t, isTuple := a[1].(*tuple); isTuple {
		found := false
		for _, item := range t.items {
			if x := s.text(item); !found && ok && has(part, x) {
				found = true
			}
		}
		return found
	}
	x := s.text(a[1])
	return ok && has(part, x)
}

// strip takes characters, or white space, from the ends of a text.
func (s *state) strip(text string, chars Value, left, right bool) string {
	in := isSpace
	if chars != nil {
		set := s.text(chars)
		in = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		text = strings.TrimLeftFunc(text, in)
	}
	if right {
		text = strings.TrimRightFunc(text, in)
	}
	return text
}

// pad fills a text up to a width.
func (s *state) pad(text string, width, fill Value, left, right bool) string {
	with := s.text(fill)
	if utf8.RuneCountInString(with) != 1 {
		s.fail("what fills a text must be one character")
	}
	w, length := s.index(width), utf8.RuneCountInString(text)
	if w <= length {
		return text
	}
	n := w - length
	if n > s.options.Output {
		s.tooMuch()
	}
	s.grow(n*len(with) + len(text))
	before := 0
	switch {
	case left && right:
		before = n/2 + n&w&1
	case left:
		before = n
	}
	return strings.Repeat(with, before) + text + strings.Repeat(with, n-before)
}

func (s *state) list(parts []string) Value {
	l := &List{make([]Value, len(parts))}
	s.grow(32 * len(parts))
	for i, p := range parts {
		l.items[i] = p
	}
	return l
}

// replaced is str.replace.
func (s *state) replaced(text, from, to string, count int) string {
	n := utf8.RuneCountInString(text) + 1
	if from != "" {
		n = strings.Count(text, from)
	}
	if count >= 0 {
		n = min(n, count)
	}
	if grows := len(to) - len(from); grows > 0 && n > s.options.Output/grows {
		s.tooMuch()
	}
	s.grow(len(text) + max(0, n*(len(to)-len(from))))
	return strings.Replace(text, from, to, n)
}

// every reports whether a text has characters and all are of a kind.
func every(is func(r rune) bool) *function {
	return define("self/", func(_ *state, a []Value) Value {
		for _, r := range a[0].(string) {
			if !is(r) {
				return false
			}
		}
		return a[0] != ""
	})
}

// cased is islower or isupper: no character is of the other case, and there is one of this.
func cased(is func(r rune) bool) *function {
	return define("self/", func(_ *state, a []Value) Value {
		found := false
		for _, r := range a[0].(string) {
			if isCased(r) && !is(r) {
				return false
			}
			found = found || is(r)
		}
		return found
	})
}

func plain(f func(string) string) *function {
	return define("self/", func(s *state, a []Value) Value {
		s.grow(len(a[0].(string)))
		return f(a[0].(string))
	})
}

func partition(index func(s, sep string) int, last bool) *function {
	return define("self; sep/", func(s *state, a []Value) Value {
		text, sep := a[0].(string), s.text(a[1])
		if sep == "" {
			s.fail("a separator is empty")
		}
		i := index(text, sep)
		switch {
		case i >= 0:
			return &tuple{items: []Value{text[:i], sep, text[i+len(sep):]}}
		case last:
			return &tuple{items: []Value{"", "", text}}
		}
		return &tuple{items: []Value{text, "", ""}}
	})
}

func splitting(blanks func(string, int) []string, by func(string, string, int) []string) *function {
	return define("self; sep=none; maxsplit=-1", func(s *state, a []Value) Value {
		text, most := a[0].(string), s.index(a[2])
		s.grow(len(text))
		if a[1] == nil {
			return s.list(blanks(text, most))
		}
		sep := s.text(a[1])
		if sep == "" {
			s.fail("a separator is empty")
		}
		if most > len(text) {
			most = -1
		}
		return s.list(by(text, sep, most))
	})
}

var stringMethods = named(map[string]*function{
	"capitalize": plain(capitalized),
	"casefold": define("self/", func(s *state, a []Value) Value {
		s.grow(len(a[0].(string)))
		return s.folded(a[0].(string))
	}),
	"lower":     plain(lower),
	"upper":     plain(upper),
	"title":     plain(titled),
	"swapcase":  plain(swapped),
	"isspace":   every(isSpace),
	"isascii":   define("self/", func(_ *state, a []Value) Value { return ascii(a[0].(string)) }),
	"isalpha":   every(unicode.IsLetter),
	"isdecimal": every(isDecimal),
	"isalnum":   every(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
	"isprintable": define("self/", func(_ *state, a []Value) Value {
		return strings.IndexFunc(a[0].(string), func(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }) < 0
	}),
	"isdigit": define("self/", func(s *state, a []Value) Value {
		return s.numeric(a[0].(string), func(r rune) bool { return unicode.Is(unicode.No, r) })
	}),
	"isnumeric": define("self/", func(s *state, a []Value) Value {
		return s.numeric(a[0].(string), func(r rune) bool {
			return unicode.IsNumber(r) || unicode.Is(unicode.Han, r)
		})
	}),
	"isidentifier": define("self/", func(s *state, a []Value) Value {
		text := a[0].(string)
		if !ascii(text) {
			s.unsupported("isidentifier of other letters than ASCII's")
		}
		for i := range len(text) {
			if !isWord(text[i]) && (i == 0 || !isDigit(text[i])) {
				return false
			}
		}
		return text != ""
	}),
	"islower": cased(isLowerRune),
	"isupper": cased(func(r rune) bool { return isUpperRune(r) }),
	"istitle": define("self/", func(_ *state, a []Value) Value {
		inWord, found := false, false
		for _, r := range a[0].(string) {
			switch {
			case isUpperRune(r) || unicode.IsTitle(r):
				if inWord {
					return false
				}
				inWord, found = true, true
			case isLowerRune(r):
				if !inWord {
					return false
				}
				found = true
			default:
				inWord = false
			}
		}
		return found
	}),
	"strip":  define("self; chars=none/", func(s *state, a []Value) Value { return s.strip(a[0].(string), a[1], true, true) }),
	"lstrip": define("self; chars=none/", func(s *state, a []Value) Value { return s.strip(a[0].(string), a[1], true, false) }),
	"rstrip": define("self; chars=none/", func(s *state, a []Value) Value { return s.strip(a[0].(string), a[1], false, true) }),
	"center": define("self; width; fillchar=' '/", func(s *state, a []Value) Value {
		return s.pad(a[0].(string), a[1], a[2], true, true)
	}),
	"ljust": define("self; width; fillchar=' '/", func(s *state, a []Value) Value {
		return s.pad(a[0].(string), a[1], a[2], false, true)
	}),
	"rjust": define("self; width; fillchar=' '/", func(s *state, a []Value) Value {
		return s.pad(a[0].(string), a[1], a[2], true, false)
	}),
	"zfill": define("self; width/", func(s *state, a []Value) Value {
		text := a[0].(string)
		sign := ""
		if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
			sign, text = text[:1], text[1:]
		}
		width := s.index(a[1])
		if width > math.MinInt {
			width -= len(sign)
		}
		return sign + s.pad(text, width, "0", true, false)
	}),
	"expandtabs": define("self; tabsize=8", func(s *state, a []Value) Value {
		size := s.index(a[1])
		w, column := &writer{s: s}, 0
		for _, r := range a[0].(string) {
			switch {
			case r == '\t':
				if size > 0 {
					n := size - column%size
					blanks, _ := s.repeat(" ", n)
					w.write(blanks.(string))
					column += n
				}
			default:
				w.write(string(r))
				if column++; r == '\n' || r == '\r' {
					column = 0
				}
			}
		}
		return w.String()
	}),
	"startswith": define("self; prefix; start=none; end=none/", func(s *state, a []Value) Value { return s.affix(a, strings.HasPrefix) }),
	"endswith":   define("self; suffix; start=none; end=none/", func(s *state, a []Value) Value { return s.affix(a, strings.HasSuffix) }),
	"find":       define("self; sub; start=none; end=none/", func(s *state, a []Value) Value { return s.find(a, false) }),
	"rfind":      define("self; sub; start=none; end=none/", func(s *state, a []Value) Value { return s.find(a, true) }),
	"index":      define("self; sub; start=none; end=none/", func(s *state, a []Value) Value { return s.found(a, false) }),
	"rindex":     define("self; sub; start=none; end=none/", func(s *state, a []Value) Value { return s.found(a, true) }),
	"count": define("self; sub; start=none; end=none/", func(s *state, a []Value) Value {
		part, _, ok := s.cut(a[0].(string), a[2], a[3])
		sub := s.text(a[1])
		if !ok {
			return 0
		}
		return strings.Count(part, sub)
	}),
	"removeprefix": define("self; prefix/", func(s *state, a []Value) Value { return strings.TrimPrefix(a[0].(string), s.text(a[1])) }),
	"removesuffix": define("self; suffix/", func(s *state, a []Value) Value { return strings.TrimSuffix(a[0].(string), s.text(a[1])) }),
	"replace": define("self; old; new; count=-1/", func(s *state, a []Value) Value {
		return s.replaced(a[0].(string), s.text(a[1]), s.text(a[2]), s.index(a[3]))
	}),
	"partition":  partition(strings.Index, false),
	"rpartition": partition(strings.LastIndex, true),
	"split":      splitting(words, split),
	"rsplit":     splitting(wordsFromEnd, splitFromEnd),
	"splitlines": define("self; keepends=false", func(s *state, a []Value) Value {
		s.grow(len(a[0].(string)))
		return s.list(lines(a[0].(string), s.index(a[1]) != 0))
	}),
	"join": define("self; iterable/", func(s *state, a []Value) Value {
		w := &writer{s: s}
		next, first := s.iterate(a[1]), true
		for item, ok := next(); ok; item, ok = next() {
			if !first {
				w.write(a[0].(string))
			}
			first = false
			text, ok := isText(item)
			if !ok {
				s.fail("join needs texts, not a value of type %s", typeName(item))
			}
			w.write(text)
		}
		return w.String()
	}),
	"format": define("self; *args; **kwargs", func(s *state, a []Value) Value {
		return s.format(a[0].(string), a[1].(*tuple).items, a[2].(*Dict))
	}),
	"format_map": define("self; mapping/", func(s *state, a []Value) Value {
		d, ok := a[1].(*Dict)
		if !ok {
			s.unsupported("format_map of what is no mapping")
		}
		return s.format(a[0].(string), nil, d)
	}),
})

// numeric is isdigit or isnumeric, where some characters would have to be looked up.
func (s *state) numeric(text string, unsure func(r rune) bool) bool {
	all := text != ""
	for _, r := range text {
		if !isDecimal(r) {
			if unsure(r) {
				s.unsupported("the value of the character " + quote(string(r)) + " as a number")
			}
			all = false
		}
	}
	return all
}

func (s *state) found(a []Value, last bool) Value {
	i := s.find(a, last)
	if i < 0 {
		s.fail("the text has no such part")
	}
	return i
}

// sequence returns the items of a list or a tuple.
func sequence(v Value) []Value {
	if l, ok := v.(*List); ok {
		return l.items
	}
	return v.(*tuple).items
}

var listMethods = named(map[string]*function{
	"copy": define("self/", func(_ *state, a []Value) Value { return &List{a[0].(*List).items} }),
	"count": define("self; value/", func(s *state, a []Value) Value {
		n := 0
		for _, item := range sequence(a[0]) {
			if same(item, a[1]) || s.equal(item, a[1]) {
				n++
			}
		}
		return n
	}),
	"index": define("self; value; start=0; stop=9223372036854775807/", func(s *state, a []Value) Value {
		items := sequence(a[0])
		from, to, _ := s.bounds(a[2], a[3], nil, len(items))
		for i := from; i < to; i++ {
			if same(items[i], a[1]) || s.equal(items[i], a[1]) {
				return i
			}
		}
		s.fail("the list has no such item")
		return nil
	}),
})

var dictMethods = named(map[string]*function{
	"get": define("self; key; default=none/", func(s *state, a []Value) Value {
		d := a[0].(*Dict)
		if i, ok := d.index[s.hash(a[1])]; ok {
			return d.values[i]
		}
		return a[2]
	}),
	"items":  define("self/", func(_ *state, a []Value) Value { return &view{a[0].(*Dict), "items"} }),
	"keys":   define("self/", func(_ *state, a []Value) Value { return &view{a[0].(*Dict), "keys"} }),
	"values": define("self/", func(_ *state, a []Value) Value { return &view{a[0].(*Dict), "values"} }),
	"copy":   define("self/", func(_ *state, a []Value) Value { return a[0].(*Dict).copy() }),
	"fromkeys": define("self; iterable; value=none/", func(s *state, a []Value) Value {
		return fromKeys.call(s, a, nil)
	}),
})

var isInteger = define("self/", func(_ *state, a []Value) Value { return a[0].(float64) == math.Trunc(a[0].(float64)) })
