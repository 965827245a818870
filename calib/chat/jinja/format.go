package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is how a value is to be printed, in either of Python's two languages.
type spec struct {
	fill      string
	align     byte // < > = ^, or 0
	sign      byte // + or a blank, or 0
	alternate bool // #
	zero      bool
	width     int
	group     byte // , or _
	precision int  // −1 for none
	typ       byte
	printf    bool
}

// printf is text % values.
func (s *state) printf(format string, values Value) Value {
	var args []Value
	mapping, isMapping := values.(*Dict)
	switch v := values.(type) {
	case *tuple:
		args = v.items
	default:
		args = []Value{v}
	}
	used := 0
	next := func() Value {
		if used >= len(args) {
			s.fail("there are too few values for the format")
		}
		used++
		return args[used-1]
	}
	named := false
	w := &writer{s: s}
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			w.write(format)
			break
		}
		w.write(format[:i])
		format = format[i+1:]
		peek := func() byte {
			if format == "" {
				s.fail("the format is incomplete")
			}
			return format[0]
		}
		sp := spec{precision: -1, printf: true}
		value := Value(missing)
		if peek() == '(' {
			if !isMapping {
				s.known(values)
				s.fail("the format needs a mapping")
			}
			depth, end := 0, -1
			for j := range len(format) {
				switch format[j] {
				case '(':
					depth++
				case ')':
					depth--
				}
				if depth == 0 {
					end = j
					break
				}
			}
			if end < 0 {
				s.fail("the key of a format has no end")
			}
			v, ok := mapping.get(format[1:end])
			if !ok {
				s.fail("the mapping has no %s", quote(format[1:end]))
			}
			value, named = v, true
			format = format[end+1:]
		}
		for more := true; more; {
			switch peek() {
			case '-':
				sp.align = '<'
			case '+':
				sp.sign = '+'
			case ' ':
				if sp.sign == 0 {
					sp.sign = ' '
				}
			case '#':
				sp.alternate = true
			case '0':
				sp.zero = true
			default:
				more = false
				continue
			}
			format = format[1:]
		}
		if peek() == '*' || strings.HasPrefix(format, ".*") {
			s.unsupported("* in a format")
		}
		sp.width, format = s.count(format)
		if strings.HasPrefix(format, ".") {
			if format = format[1:]; strings.HasPrefix(format, "*") {
				s.unsupported("* in a format")
			}
			sp.precision, format = s.count(format)
		}
		if c := peek(); c == 'l' || c == 'h' || c == 'L' {
			format = format[1:]
		}
		sp.typ = peek()
		_, size := utf8.DecodeRuneInString(format)
		format = format[size:]
		if sp.typ == '%' {
			w.write("%")
			continue
		}
		if value == missing {
			if named && isMapping {
				s.unsupported("a format with and without names")
			}
			value = next()
		}
		w.write(s.conversion(sp, value))
	}
	if _, list := values.(*List); used < len(args) && !isMapping && !list {
		switch values.(type) {
		case *undefined, *rangeOf, *macro, *builtin, *iterator, *view, *namespace, *loop:
			if _, ok := values.(*undefined); !ok {
				s.unsupported("a format without a place for its value")
			}
		default:
			s.fail("there are too many values for the format")
		}
	}
	return w.String()
}

// count reads a number in a format.
func (s *state) count(format string) (int, string) {
	n := 0
	for n < len(format) && isDigit(format[n]) {
		n++
	}
	if n == 0 {
		return 0, format
	}
	i, err := strconv.Atoi(format[:n])
	if err != nil || i > s.options.Output {
		s.tooMuch()
	}
	if i > 1000 {
		s.grow(i)
	}
	return i, format[n:]
}

// conversion is one value of printf.
func (s *state) conversion(sp spec, v Value) string {
	switch sp.typ {
	case 's', 'r', 'a':
		if _, ok := v.(markup); ok {
			s.unsupported("an escaped text in a format")
		}
		text := ""
		switch sp.typ {
		case 's':
			text = s.str(v)
		case 'r':
			text = s.repr(v)
		default:
			text = asciiOnly(s.repr(v))
		}
		if sp.precision >= 0 {
			text = firstRunes(text, sp.precision)
		}
		sp.zero = false
		return s.fit(sp, "", text, '>')
	case 'c':
		if text, ok := isText(v); ok {
			if utf8.RuneCountInString(text) != 1 {
				s.fail("%%c needs one character")
			}
			sp.zero = false
			return s.fit(sp, "", text, '>')
		}
		s.unsupported("%c of a number")
	case 'd', 'i', 'u':
		if f, ok := v.(float64); ok {
			v = normal(toBig(f))
		}
		i, ok := whole(v)
		if !ok {
			s.known(v)
			s.fail("%%%c needs a number", sp.typ)
		}
		sp.typ = 'd'
		return s.formatWhole(sp, i)
	case 'x', 'X', 'o':
		i, ok := whole(v)
		if !ok {
			s.known(v)
			s.fail("%%%c needs a whole number", sp.typ)
		}
		return s.formatWhole(sp, i)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		switch v := v.(type) {
		case string, markup:
			s.fail("%%%c needs a number", sp.typ)
		default:
			return s.formatFloat(sp, s.float(v))
		}
	}
	s.fail("%%%s is no format", quote(string(rune(sp.typ))))
	return ""
}

func firstRunes(text string, n int) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}

// asciiOnly escapes what is not ASCII.
func asciiOnly(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			escape(&b, r)
		}
	}
	return b.String()
}

// fit fills what is printed up to the width. sign stands before what fills it where that is within a number.
func (s *state) fit(sp spec, sign, text string, align byte) string {
	fill := sp.fill
	if fill == "" {
		fill = " "
	}
	if sp.align != 0 {
		align = sp.align
	}
	if sp.zero && sp.align == 0 {
		fill, align = "0", '='
	}
	n := sp.width - utf8.RuneCountInString(sign+text)
	if n <= 0 {
		return sign + text
	}
	s.grow(n * len(fill))
	switch align {
	case '<':
		return sign + text + strings.Repeat(fill, n)
	case '=':
		return sign + strings.Repeat(fill, n) + text
	case '^':
		return strings.Repeat(fill, n/2) + sign + text + strings.Repeat(fill, n-n/2)
	}
	return strings.Repeat(fill, n) + sign + text
}

func (sp spec) signOf(negative bool) string {
	switch {
	case negative:
		return "-"
	case sp.sign != 0:
		return string(sp.sign)
	}
	return ""
}

// formatWhole prints a whole number in some base.
func (s *state) formatWhole(sp spec, i *big.Int) string {
	base, prefix := 10, ""
	switch sp.typ {
	case 'x', 'X':
		base, prefix = 16, "0"+string(sp.typ)
	case 'o':
		base, prefix = 8, "0o"
	case 'b':
		base, prefix = 2, "0b"
	default:
		s.decimal(i)
	}
	text := new(big.Int).Abs(i).Text(base)
	if sp.typ == 'X' {
		text = strings.ToUpper(text)
	}
	if sp.printf && sp.precision > len(text) {
		text = strings.Repeat("0", sp.precision-len(text)) + text
	}
	sign := sp.signOf(i.Sign() < 0)
	if sp.alternate {
		sign += prefix
	}
	if sp.group != 0 {
		every := 3
		if base != 10 {
			every = 4
		}
		if sp.zero {
			s.unsupported("a format with zeros in groups")
		}
		text = grouped(text, sp.group, every)
	}
	return s.fit(sp, sign, text, '>')
}

// grouped puts a sign between groups of digits.
func grouped(text string, sign byte, every int) string {
	var b strings.Builder
	for i := range len(text) {
		if i > 0 && (len(text)-i)%every == 0 {
			b.WriteByte(sign)
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// formatFloat prints a float.
func (s *state) formatFloat(sp spec, f float64) string {
	s.finite(f)
	if sp.alternate {
		s.unsupported("# in a format of a number with a fraction")
	}
	precision := sp.precision
	if precision < 0 {
		precision = 6
	}
	s.grow(precision)
	a := math.Abs(f)
	text := ""
	switch sp.typ {
	case 'f', 'F':
		text = strconv.FormatFloat(a, 'f', precision, 64)
	case 'e', 'E':
		text = strconv.FormatFloat(a, 'e', precision, 64)
	case '%':
		text = strconv.FormatFloat(a*100, 'f', precision, 64) + "%"
		s.finite(a * 100)
	case 'g', 'G':
		text = general(a, max(precision, 1))
	default: // of a format without a type
		if sp.precision < 0 {
			text = floatText(a)
			break
		}
		p := max(precision, 1)
		text = general(a, p)
		if !strings.ContainsAny(text, ".e") {
			// Python prints a fraction, or an exponent where the number is that long.
			if len(text) >= p && a != 0 {
				text = strconv.FormatFloat(a, 'e', p-1, 64)
				text = trimmedExponent(text)
			} else {
				text += ".0"
			}
		}
	}
	if sp.typ == 'E' || sp.typ == 'G' {
		text = strings.ToUpper(text)
	}
	if sp.group != 0 {
		if sp.zero {
			s.unsupported("a format with zeros in groups")
		}
		n := strings.IndexAny(text, ".e%")
		if n < 0 {
			n = len(text)
		}
		text = grouped(text[:n], sp.group, 3) + text[n:]
	}
	return s.fit(sp, sp.signOf(math.Signbit(f)), text, '>')
}

// general prints a number as %g of C does, with so many digits.
func general(a float64, precision int) string {
	e := strconv.FormatFloat(a, 'e', precision-1, 64)
	exponent, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	if exponent < -4 || exponent >= precision {
		return trimmedExponent(e)
	}
	text := strconv.FormatFloat(a, 'f', precision-1-exponent, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// trimmedExponent takes zeros from the end of the digits before an exponent.
func trimmedExponent(text string) string {
	mantissa, exponent, _ := strings.Cut(text, "e")
	if strings.Contains(mantissa, ".") {
		mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
	}
	return mantissa + "e" + exponent
}

// format is str.format.
func (s *state) format(format string, args []Value, kw *Dict) Value {
	auto := 0
	return s.formats(format, args, kw, &auto, 2)
}

func (s *state) formats(format string, args []Value, kw *Dict, auto *int, depth int) string {
	if depth < 0 {
		s.fail("a format within a format within a format")
	}
	w := &writer{s: s}
	for format != "" {
		s.tick()
		i := strings.IndexAny(format, "{}")
		if i < 0 {
			w.write(format)
			break
		}
		w.write(format[:i])
		c := format[i]
		format = format[i+1:]
		if strings.HasPrefix(format, string(c)) {
			w.write(string(c))
			format = format[1:]
			continue
		}
		if c == '}' {
			s.fail("a } in a format stands alone")
		}
		nested, end := 1, -1
		for j := range len(format) {
			switch format[j] {
			case '{':
				nested++
			case '}':
				nested--
			case '[':
				if nested == 1 && strings.ContainsAny(format[j:min(len(format), j+20)], "{}!:") && strings.IndexByte(format[j:], ']') > strings.IndexAny(format[j:], "{}!:") {
					s.unsupported("such a key in a format")
				}
			}
			if nested == 0 {
				end = j
				break
			}
		}
		if end < 0 {
			s.fail("a { in a format has no end")
		}
		w.write(s.field(format[:end], args, kw, auto, depth))
		format = format[end+1:]
	}
	return w.String()
}

// field is what a {…} of a format is replaced by.
func (s *state) field(field string, args []Value, kw *Dict, auto *int, depth int) string {
	name, rest := field, ""
	if i := strings.IndexAny(field, "!:"); i >= 0 {
		name, rest = field[:i], field[i:]
	}
	conversion := byte(0)
	if strings.HasPrefix(rest, "!") {
		if len(rest) < 2 || len(rest) > 2 && rest[2] != ':' {
			s.fail("a conversion in a format is no letter")
		}
		conversion, rest = rest[1], rest[2:]
	}
	how := strings.TrimPrefix(rest, ":")
	first := name
	if i := strings.IndexAny(name, ".["); i >= 0 {
		first, name = name[:i], name[i:]
	} else {
		name = ""
	}
	var v Value
	if first == "" {
		if *auto < 0 {
			s.fail("a format has fields with and without numbers")
		}
		first = strconv.Itoa(*auto)
		*auto++
	} else if isDigit(first[0]) {
		if *auto > 0 {
			s.fail("a format has fields with and without numbers")
		}
		*auto = -1
	}
	if n, err := strconv.Atoi(first); err == nil && isDigit(first[0]) {
		if n >= len(args) {
			s.fail("there are too few values for the format")
		}
		v = args[n]
	} else {
		var ok bool
		if v, ok = kw.get(first); !ok {
			s.fail("the format has no value %s", quote(first))
		}
	}
	for name != "" {
		if name[0] == '.' {
			end := strings.IndexAny(name[1:], ".[") + 1
			if end == 0 {
				end = len(name)
			}
			if end == 1 {
				s.fail("an attribute in a format has no name")
			}
			v = s.attribute(v, name[1:end])
			name = name[end:]
			continue
		}
		end := strings.IndexByte(name, ']')
		if name[0] != '[' || end < 2 {
			s.fail("a key in a format is wrong")
		}
		key := name[1:end]
		if n, err := strconv.Atoi(key); err == nil && isDigit(key[0]) {
			v = s.item(v, n)
		} else {
			v = s.item(v, key)
		}
		name = name[end+1:]
	}
	switch conversion {
	case 0:
	case 's':
		v = s.str(v)
	case 'r':
		v = s.repr(v)
	case 'a':
		v = asciiOnly(s.repr(v))
	default:
		s.fail("a conversion in a format is none of s, r and a")
	}
	if strings.ContainsAny(how, "{}") {
		how = s.formats(how, args, kw, auto, depth-1)
	}
	return s.formatted(v, how)
}

// formatted is format(v, how).
func (s *state) formatted(v Value, how string) string {
	if how == "" {
		if _, ok := v.(markup); ok {
			s.unsupported("an escaped text in a format")
		}
		return s.str(v)
	}
	switch v.(type) {
	case string, bool, int, *big.Int, float64:
	default:
		s.known(v)
		if _, ok := v.(markup); ok {
			s.unsupported("an escaped text in a format")
		}
		s.fail("a value of type %s takes no format", typeName(v))
	}
	sp := s.parseSpec(how)
	wrong := func() string {
		s.fail("the format %s does not fit a value of type %s", quote(how), typeName(v))
		return ""
	}
	if text, ok := v.(string); ok {
		if sp.typ != 0 && sp.typ != 's' || sp.sign != 0 || sp.alternate || sp.group != 0 || sp.align == '=' {
			return wrong()
		}
		if sp.precision >= 0 {
			text = firstRunes(text, sp.precision)
		}
		if sp.zero {
			if sp.zero = false; sp.align == 0 {
				sp.align = '<'
			}
			if sp.fill == "" {
				sp.fill = "0"
			}
		}
		return s.fit(sp, "", text, '<')
	}
	if sp.align != 0 && sp.zero && sp.fill == "" {
		sp.fill = "0"
	}
	if i, ok := whole(v); ok {
		if _, isBool := v.(bool); isBool && sp.typ == 0 {
			s.unsupported("a format of true or false")
		}
		switch sp.typ {
		case 0, 'd', 'x', 'X', 'o', 'b':
			if sp.precision >= 0 || sp.group == ',' && sp.typ != 0 && sp.typ != 'd' {
				return wrong()
			}
			return s.formatWhole(sp, i)
		case 'e', 'E', 'f', 'F', 'g', 'G', '%':
			return s.formatFloat(sp, s.float(v))
		case 'c', 'n':
			s.unsupported("the format " + string(sp.typ))
		}
		return wrong()
	}
	switch sp.typ {
	case 0, 'e', 'E', 'f', 'F', 'g', 'G', '%':
		return s.formatFloat(sp, v.(float64))
	case 'n':
		s.unsupported("the format n")
	}
	return wrong()
}

// parseSpec reads Python's language of formats: [[fill]align][sign][#][0][width][grouping][.precision][type].
func (s *state) parseSpec(how string) spec {
	sp := spec{precision: -1}
	runes := []rune(how)
	isAlign := func(i int) bool { return i < len(runes) && strings.ContainsRune("<>=^", runes[i]) }
	switch {
	case isAlign(1):
		sp.fill, sp.align = string(runes[0]), byte(runes[1])
		runes = runes[2:]
	case isAlign(0):
		sp.align = byte(runes[0])
		runes = runes[1:]
	}
	rest := string(runes)
	take := func(chars string) byte {
		if rest != "" && strings.IndexByte(chars, rest[0]) >= 0 {
			c := rest[0]
			rest = rest[1:]
			return c
		}
		return 0
	}
	sp.sign = take("+- ")
	if sp.sign == '-' {
		sp.sign = 0
	}
	if take("z") != 0 {
		s.unsupported("z in a format")
	}
	sp.alternate = take("#") != 0
	if sp.fill == "" || sp.align == 0 {
		sp.zero = take("0") != 0
	} else if take("0") != 0 {
		sp.zero = false
	}
	sp.width, rest = s.count(rest)
	sp.group = take(",_")
	if take(".") != 0 {
		before := rest
		if sp.precision, rest = s.count(rest); before == rest {
			s.fail("the precision in a format is missing")
		}
	}
	if len(rest) > 1 {
		s.fail("the format %s is wrong", quote(how))
	}
	if rest != "" {
		sp.typ = rest[0]
	}
	return sp
}
