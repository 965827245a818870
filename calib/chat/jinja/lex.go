package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is what a token is.
type kind uint8

const (
	tEOF   kind = iota
	tData       // text outside of tags
	tBlock      // {%
	tBlockEnd
	tVariable // {{
	tVariableEnd
	tName
	tString
	tInt
	tFloat
	tOperator
)

type token struct {
	kind  kind
	text  string // of data, names and operators, and what a string stands for
	value Value  // of numbers
	line  int
	at    int // in what unixLines returns
}

// is reports whether the token is this operator or end of a tag.
func (t token) is(operator string) bool { return t.kind == tOperator && t.text == operator }

// word reports whether the token is this name.
func (t token) word(name string) bool { return t.kind == tName && t.text == name }

// String is what an error calls the token.
func (t token) String() string {
	switch t.kind {
	case tEOF:
		return "the end of the template"
	case tData:
		return "text"
	case tBlock:
		return "{%"
	case tBlockEnd:
		return "%}"
	case tVariable:
		return "{{"
	case tVariableEnd:
		return "}}"
	case tString:
		return "a string"
	case tInt, tFloat:
		return "a number"
	}
	return "'" + t.text + "'"
}

// operators, of which the first that fits is taken.
var operators = [...]string{
	"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

// lexer cuts a template into tokens, with trim_blocks and lstrip_blocks.
type lexer struct {
	source   string
	plain    bool // without these
	at       int
	line     int
	newlines bool // what was read last ends with a line's end, so that blanks before a tag are a line's first
	closing  []byte
	tokens   []token
}

// unixLines returns a template as it is read: with lines that end as on Unix, the last without an end unless it is plain.
func unixLines(source string, plain bool) string {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	if plain {
		return source
	}
	return strings.TrimSuffix(source, "\n")
}

// lex returns the tokens of a template, of which the last is tEOF.
func lex(source string, plain bool) []token {
	l := &lexer{source: unixLines(source, plain), plain: plain, line: 1, newlines: true}
	for l.at < len(l.source) {
		l.root()
	}
	l.emit(tEOF, "")
	return l.tokens
}

func (l *lexer) emit(k kind, text string) {
	l.tokens = append(l.tokens, token{kind: k, text: text, line: l.line, at: l.at})
}

// skip goes on by n bytes.
func (l *lexer) skip(n int) {
	text := l.source[l.at : l.at+n]
	l.line += strings.Count(text, "\n")
	l.newlines = strings.HasSuffix(text, "\n")
	l.at += n
}

func (l *lexer) rest() string { return l.source[l.at:] }

// blanks skips white space.
func (l *lexer) blanks() { l.skip(leadingSpace(l.rest())) }

// leadingSpace returns the length of the white space that a text begins with.
func leadingSpace(text string) int {
	return len(text) - len(strings.TrimLeftFunc(text, isSpace))
}

// data emits the text before a tag, without the blanks that the tag takes away.
func (l *lexer) data(text string, sign byte, strips bool) {
	kept := text
	switch {
	case sign == '-':
		kept = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && strips && !l.plain:
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.newlines) && strings.TrimFunc(text[line:], isSpace) == "" {
			kept = text[:line]
		}
	}
	if kept != "" {
		l.emit(tData, kept)
	}
	l.skip(len(text))
}

// root reads text up to a tag, and the tag.
func (l *lexer) root() {
	rest := l.rest()
	at := 0
	for {
		i := strings.IndexByte(rest[at:], '{')
		if i < 0 || at+i+1 >= len(rest) {
			l.emit(tData, rest)
			l.skip(len(rest))
			return
		}
		if at += i; strings.IndexByte("{%#", rest[at+1]) >= 0 {
			break
		}
		at++
	}
	sign, open := byte(0), 2
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign, open = rest[at+2], 3
	}
	tag := rest[at+1]
	if tag == '%' {
		if n, minus := rawBegin(rest[at+open:]); n > 0 {
			l.data(rest[:at], sign, true)
			l.skip(open + n)
			if minus {
				l.blanks()
			}
			l.raw()
			return
		}
	}
	l.data(rest[:at], sign, tag != '{')
	switch tag {
	case '#':
		l.skip(open)
		l.comment()
	case '%':
		l.emit(tBlock, "")
		l.skip(open)
		l.tag(tBlockEnd)
	default:
		l.emit(tVariable, "")
		l.skip(open)
		l.tag(tVariableEnd)
	}
}

// rawBegin returns the length of what follows {% in the tag raw, or 0 where it is another tag.
func rawBegin(text string) (n int, minus bool) {
	n = leadingSpace(text)
	if !strings.HasPrefix(text[n:], "raw") {
		return 0, false
	}
	n += len("raw")
	n += leadingSpace(text[n:])
	if strings.HasPrefix(text[n:], "-%}") {
		return n + 3, true
	}
	if strings.HasPrefix(text[n:], "%}") {
		return n + 2, false
	}
	return 0, false
}

// raw reads up to the end of a raw block.
func (l *lexer) raw() {
	rest := l.rest()
	for at := 0; ; at++ {
		i := strings.Index(rest[at:], "{%")
		switch {
		case rest == "":
			return // as in Jinja, at the end of a template
		case i < 0:
			fail(l.line, "the end of a raw block is missing")
		}
		at += i
		sign, n := byte(0), at+2
		if n < len(rest) && (rest[n] == '-' || rest[n] == '+') {
			sign = rest[n]
			n++
		}
		n += leadingSpace(rest[n:])
		if !strings.HasPrefix(rest[n:], "endraw") {
			continue
		}
		n += len("endraw")
		n += leadingSpace(rest[n:])
		if end := l.closes(rest[n:], "%}", true); end > 0 {
			l.data(rest[:at], sign, true)
			l.skip(n + end - at)
			return
		}
	}
}

// closes returns the length of a tag's end, with the blanks that it takes away, or 0 where there is none.
func (l *lexer) closes(text, end string, block bool) int {
	switch {
	case strings.HasPrefix(text, "-"+end):
		n := len(end) + 1
		return n + leadingSpace(text[n:])
	case block && strings.HasPrefix(text, "+"+end):
		return len(end) + 1
	case strings.HasPrefix(text, end):
		if n := len(end); block && !l.plain && strings.HasPrefix(text[n:], "\n") {
			return n + 1
		}
		return len(end)
	}
	return 0
}

func (l *lexer) comment() {
	rest := l.rest()
	end := strings.Index(rest, "#}")
	switch {
	case rest == "":
		return // as in Jinja, at the end of a template
	case end < 0:
		fail(l.line, "the end of a comment is missing")
	}
	if end > 0 && (rest[end-1] == '-' || rest[end-1] == '+') {
		end--
	}
	l.skip(end)
	l.skip(l.closes(l.rest(), "#}", true))
}

// tag reads what stands within a tag.
func (l *lexer) tag(end kind) {
	closing, block := "}}", false
	if end == tBlockEnd {
		closing, block = "%}", true
	}
	for l.at < len(l.source) {
		rest := l.rest()
		if len(l.closing) == 0 {
			if n := l.closes(rest, closing, block); n > 0 {
				l.emit(end, "")
				l.skip(n)
				return
			}
		}
		switch c := rest[0]; {
		case leadingSpace(rest) > 0:
			l.blanks()
		case isDigit(c):
			l.number(rest)
		case isWord(c):
			n := 1
			for n < len(rest) && (isWord(rest[n]) || isDigit(rest[n])) {
				n++
			}
			if n < len(rest) && rest[n] >= utf8.RuneSelf {
				unsupported(l.line, "a name of other letters than ASCII's")
			}
			l.emit(tName, rest[:n])
			l.skip(n)
		case c == '\'' || c == '"':
			l.quoted(rest)
		default:
			l.operator(rest)
		}
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isWord(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func (l *lexer) operator(rest string) {
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(":
			l.closing = append(l.closing, ')')
		case "[":
			l.closing = append(l.closing, ']')
		case "{":
			l.closing = append(l.closing, '}')
		case ")", "]", "}":
			if n := len(l.closing) - 1; n < 0 || l.closing[n] != op[0] {
				fail(l.line, "unexpected '%s'", op)
			}
			l.closing = l.closing[:len(l.closing)-1]
		}
		l.emit(tOperator, op)
		l.skip(len(op))
		return
	}
	r, _ := utf8.DecodeRuneInString(rest)
	if r >= utf8.RuneSelf {
		unsupported(l.line, "the character "+quote(string(r))+" outside of strings")
	}
	fail(l.line, "unexpected character %s", quote(string(r)))
}

// digits returns the length of digits of a base, between which there may be single underscores.
func digits(text string, base int) int {
	n := 0
	for n < len(text) {
		i := n
		if i > 0 && text[i] == '_' {
			i++
		}
		if i == len(text) || !inBase(text[i], base) {
			break
		}
		n = i + 1
	}
	return n
}

func inBase(c byte, base int) bool {
	d := 99
	switch {
	case isDigit(c):
		d = int(c - '0')
	case c >= 'a' && c <= 'z':
		d = int(c-'a') + 10
	case c >= 'A' && c <= 'Z':
		d = int(c-'A') + 10
	}
	return d < base
}

func (l *lexer) number(rest string) {
	if n := floatLength(rest); n > 0 && (l.at == 0 || l.source[l.at-1] != '.') {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(rest[:n], "_", ""), 64)
		if math.IsInf(f, 0) {
			unsupported(l.line, "an infinite number")
		}
		l.tokens = append(l.tokens, token{kind: tFloat, value: f, line: l.line, at: l.at})
		l.skip(n)
		return
	}
	n, base := 0, 10
	if len(rest) > 2 && rest[0] == '0' {
		prefix := 2
		switch rest[1] | 0x20 {
		case 'b':
			base = 2
		case 'o':
			base = 8
		case 'x':
			base = 16
		}
		if rest[2] == '_' {
			prefix = 3
		}
		if base != 10 {
			if n = digits(rest[prefix:], base); n > 0 {
				n += prefix
			} else {
				base = 10
			}
		}
	}
	switch {
	case n > 0:
	case rest[0] == '0':
		for n = 1; n < len(rest) && (rest[n] == '0' || rest[n] == '_' && n+1 < len(rest) && rest[n+1] == '0'); {
			n++
		}
	default:
		n = digits(rest, 10)
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	if base != 10 {
		text = text[2:]
	}
	i, _ := new(big.Int).SetString(text, base)
	l.tokens = append(l.tokens, token{kind: tInt, value: normal(i), line: l.line, at: l.at})
	l.skip(n)
}

// floatLength returns the length of the number with a fraction or an exponent that a text begins with, or 0.
func floatLength(text string) int {
	n := digits(text, 10)
	if n == 0 {
		return 0
	}
	end := 0
	if n+1 < len(text) && text[n] == '.' {
		if f := digits(text[n+1:], 10); f > 0 {
			n += 1 + f
			end = n
		}
	}
	if n < len(text) && text[n]|0x20 == 'e' {
		i := n + 1
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		if e := digits(text[i:], 10); e > 0 {
			return i + e
		}
	}
	return end
}

func (l *lexer) quoted(rest string) {
	n := 1
	for n < len(rest) && rest[n] != rest[0] {
		if rest[n] == '\\' {
			n++
		}
		n++
	}
	if n >= len(rest) {
		fail(l.line, "unexpected character %s", quote(rest[:1]))
	}
	l.emit(tString, l.unescape(rest[1:n]))
	l.skip(n + 1)
}

// unescape returns what a string literal stands for. As in Jinja a backslash before a letter that is not ASCII stays,
// and the letter becomes its number.
func (l *lexer) unescape(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		i := strings.IndexByte(text, '\\')
		if i < 0 {
			b.WriteString(text)
			break
		}
		b.WriteString(text[:i])
		c := text[i+1]
		text = text[i+2:]
		switch c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a':
			b.WriteByte('\a')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'v':
			b.WriteByte('\v')
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			code, err := strconv.ParseUint(text[:min(n, len(text))], 16, 32)
			if err != nil || len(text) < n || strings.HasPrefix(text, "+") || code > 0x10ffff {
				fail(l.line, "an escape \\%c in a string needs %d hexadecimal digits of a character", c, n)
			}
			if code >= 0xd800 && code < 0xe000 {
				unsupported(l.line, "half of a surrogate pair in a string")
			}
			b.WriteRune(rune(code))
			text = text[n:]
		case 'N':
			unsupported(l.line, "a character by name")
		case '0', '1', '2', '3', '4', '5', '6', '7':
			code := rune(c - '0')
			for n := 1; n < 3 && len(text) > 0 && text[0] >= '0' && text[0] < '8'; n++ {
				code = code*8 + rune(text[0]-'0')
				text = text[1:]
			}
			b.WriteRune(code)
		default:
			if c >= utf8.RuneSelf {
				unsupported(l.line, "a backslash before a letter that is not ASCII")
			}
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}
