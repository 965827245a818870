package jinja

import (
	"html"
	"math"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// soft returns a value as a text; one that is escaped stays so.
func (s *state) soft(v Value) Value {
	if m, ok := v.(markup); ok {
		return m
	}
	return s.str(v)
}

// onText makes a filter of a function of a text, after which one that is escaped stays so.
func onText(f func(string) string) *function {
	return define("s", func(s *state, a []Value) Value {
		text := s.str(a[0])
		s.grow(len(text))
		if _, ok := a[0].(markup); ok {
			return markup(f(text))
		}
		return f(text)
	})
}

// escape is a value as escaped text.
func (s *state) escape(v Value) markup {
	if m, ok := v.(markup); ok {
		return m
	}
	text := s.str(v)
	s.grow(len(text))
	return markup(strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;").Replace(text))
}

var filters = named(map[string]*function{
	"abs": define("x/", func(s *state, a []Value) Value {
		switch v := a[0].(type) {
		case float64:
			return math.Abs(v)
		default:
			i, ok := whole(v)
			if !ok {
				s.known(v)
				s.fail("abs needs a number, not a value of type %s", typeName(v))
			}
			return normal(new(big.Int).Abs(i))
		}
	}),
	"attr": define("obj; name", func(s *state, a []Value) Value {
		name, ok := isText(a[1])
		if !ok {
			s.fail("the name of an attribute is no text")
		}
		if _, ok := a[0].(*undefined); ok {
			s.unsupported("attr of an undefined value")
		}
		if v, ok := s.pythonAttribute(a[0], name); ok {
			return v
		}
		return s.nothing(a[0], name)
	}),
	"batch":      define("value; linecount; fill_with=none", doBatch),
	"capitalize": onText(capitalized),
	"center": define("value; width=80", func(s *state, a []Value) Value {
		if _, ok := a[0].(markup); ok {
			s.unsupported("centering an escaped text")
		}
		return s.pad(s.str(a[0]), a[1], " ", true, true)
	}),
	"count":          length,
	"length":         length,
	"d":              byDefault,
	"default":        byDefault,
	"dictsort":       define("value; case_sensitive=false; by='key'; reverse=false", doDictSort),
	"e":              define("s/", func(s *state, a []Value) Value { return s.escape(a[0]) }),
	"escape":         define("s/", func(s *state, a []Value) Value { return s.escape(a[0]) }),
	"filesizeformat": define("value; binary=false", doFileSize),
	"first": define("seq", func(s *state, a []Value) Value {
		if v, ok := s.iterate(a[0])(); ok {
			return v
		}
		return &undefined{"there is no first item"}
	}),
	"float":       define("value; default=0.0", doFloat),
	"forceescape": define("value", func(s *state, a []Value) Value { return s.escape(s.str(a[0])) }),
	"format": define("value; *args; **kwargs", func(s *state, a []Value) Value {
		if _, ok := a[0].(markup); ok {
			s.unsupported("a format that is escaped")
		}
		if kw := a[2].(*Dict); len(kw.keys) > 0 {
			if len(a[1].(*tuple).items) > 0 {
				s.fail("format has arguments with and without names")
			}
			return s.printf(s.str(a[0]), kw)
		}
		return s.printf(s.str(a[0]), a[1])
	}),
	"groupby": define("value; attribute; default=none; case_sensitive=false", doGroupBy),
	"indent":  define("s; width=4; first=false; blank=false", doIndent),
	"int":     define("value; default=0; base=10", doInt),
	"items": define("value", func(s *state, a []Value) Value {
		var begun func() (Value, bool)
		return &iterator{"generator", func() (Value, bool) {
			if begun == nil {
				switch d := a[0].(type) {
				case *Dict:
					begun = s.iterate(&view{d, "items"})
				case *undefined:
					begun = s.iterate(d)
				default:
					s.fail("only a mapping has items, not a value of type %s", typeName(d))
				}
			}
			return begun()
		}}
	}),
	"join": define("value; d=''; attribute=none", func(s *state, a []Value) Value {
		next := s.iterate(a[0])
		separator := s.str(a[1])
		w := &writer{s: s}
		for first := true; ; first = false {
			v, ok := next()
			if !ok {
				return w.String()
			}
			if !first {
				w.write(separator)
			}
			if a[2] != nil {
				v = s.path(v, s.parts(a[2]), nil)
			}
			w.write(s.str(v))
		}
	}),
	"last": define("seq", func(s *state, a []Value) Value {
		if v, ok := s.reversed(a[0]); ok {
			if item, ok := v(); ok {
				return item
			}
			return &undefined{"there is no last item"}
		}
		s.fail("a value of type %s has no last item", typeName(a[0]))
		return nil
	}),
	"list":   define("value", func(s *state, a []Value) Value { return &List{s.items(a[0])} }),
	"lower":  onText(lower),
	"upper":  onText(upper),
	"map":    define("value; *args; **kwargs", doMap),
	"min":    define("value; case_sensitive=false; attribute=none", func(s *state, a []Value) Value { return s.extreme(a, "<") }),
	"max":    define("value; case_sensitive=false; attribute=none", func(s *state, a []Value) Value { return s.extreme(a, ">") }),
	"pprint": define("value", doPrettyPrint),
	"random": define("seq", func(s *state, _ []Value) Value {
		s.unsupported("the filter random")
		return nil
	}),
	"reject":     define("value; *args; **kwargs", func(s *state, a []Value) Value { return s.selecting(a, false, false) }),
	"rejectattr": define("value; *args; **kwargs", func(s *state, a []Value) Value { return s.selecting(a, false, true) }),
	"select":     define("value; *args; **kwargs", func(s *state, a []Value) Value { return s.selecting(a, true, false) }),
	"selectattr": define("value; *args; **kwargs", func(s *state, a []Value) Value { return s.selecting(a, true, true) }),
	"replace": define("s; old; new; count=none", func(s *state, a []Value) Value {
		count := -1
		if a[3] != nil {
			count = s.index(a[3])
		}
		return s.replaced(s.str(a[0]), s.str(a[1]), s.str(a[2]), count)
	}),
	"reverse": define("value", func(s *state, a []Value) Value {
		if text, ok := a[0].(string); ok {
			runes := []rune(text)
			s.grow(4 * len(runes))
			slices.Reverse(runes)
			return string(runes)
		}
		if _, ok := a[0].(markup); ok {
			s.unsupported("reversing an escaped text")
		}
		if next, ok := s.reversed(a[0]); ok {
			return &iterator{"reverse iterator", next}
		}
		items := s.items(a[0])
		slices.Reverse(items)
		return &List{items}
	}),
	"round": define("value; precision=0; method='common'", doRound),
	"safe":  define("value", func(s *state, a []Value) Value { return markup(s.str(a[0])) }),
	"slice": define("value; slices; fill_with=none", doSlice),
	"sort": define("value; reverse=false; case_sensitive=false; attribute=none", func(s *state, a []Value) Value {
		items := s.items(a[0])
		key := s.multiKey(a[3], s.isTrue(a[2]))
		s.sort(items, key, s.index(a[1]) != 0)
		return &List{items}
	}),
	"string":    define("s/", func(s *state, a []Value) Value { return s.soft(a[0]) }),
	"striptags": define("value", doStripTags),
	"sum": define("iterable; attribute=none; start=0", func(s *state, a []Value) Value {
		total := a[2]
		if _, ok := isText(total); ok {
			s.fail("sum does not join texts")
		}
		next := s.iterate(a[0])
		for v, ok := next(); ok; v, ok = next() {
			if a[1] != nil {
				v = s.path(v, s.parts(a[1]), nil)
			}
			total = s.arithmetic("+", total, v)
		}
		return total
	}),
	"title":  onText(titleWords),
	"tojson": define("x; ensure_ascii=false; indent=none; separators=none; sort_keys=false", doJSON),
	"trim": define("value; chars=none", func(s *state, a []Value) Value {
		text := s.strip(s.str(a[0]), a[1], true, true)
		if _, ok := a[0].(markup); ok {
			return markup(text)
		}
		return text
	}),
	"truncate":  define("s; length=255; killwords=false; end='...'; leeway=none", doTruncate),
	"unique":    define("value; case_sensitive=false; attribute=none", doUnique),
	"urlencode": define("value", doURLEncode),
	"urlize": define("value; *args; **kwargs", func(s *state, _ []Value) Value {
		s.unsupported("the filter urlize")
		return nil
	}),
	"wordcount": define("s", func(s *state, a []Value) Value {
		n, in := 0, false
		for _, r := range s.str(a[0]) {
			word := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
			if word && !in {
				n++
			}
			in = word
		}
		return n
	}),
	"wordwrap": define("s; width=79; break_long_words=true; wrapstring=none; break_on_hyphens=true", doWordWrap),
	"xmlattr":  define("d; autospace=true", doXMLAttr),
})

var length = define("obj/", func(s *state, a []Value) Value {
	n, ok := s.length(a[0])
	if !ok {
		s.fail("a value of type %s has no length", typeName(a[0]))
	}
	return n
})

var byDefault = define("value; default_value=''; boolean=false", func(s *state, a []Value) Value {
	if _, ok := a[0].(*undefined); ok || s.isTrue(a[2]) && !s.isTrue(a[0]) {
		return a[1]
	}
	return a[0]
})

// titleWords begins each word with a capital, as the filter title has words.
func titleWords(text string) string {
	var b strings.Builder
	for text != "" {
		end := strings.IndexFunc(text, func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) })
		if end < 0 {
			end = len(text)
		}
		if word := text[:end]; word != "" {
			_, n := utf8.DecodeRuneInString(word)
			b.WriteString(upper(word[:n]) + lower(word[n:]))
		}
		if text = text[end:]; text != "" {
			_, n := utf8.DecodeRuneInString(text)
			b.WriteString(text[:n])
			text = text[n:]
		}
	}
	return b.String()
}

func doIndent(s *state, a []Value) Value {
	with, ok := a[1].(string)
	if !ok {
		blanks, _ := s.repeat(" ", a[1])
		with = blanks.(string)
	}
	text := s.text(a[0])
	list := lines(text+"\n", false)
	size := len(text) + len(with)*len(list)
	if size > s.options.Output {
		s.tooMuch()
	}
	s.grow(2 * size)
	for i, line := range list {
		if i > 0 && (line != "" || s.isTrue(a[3])) {
			list[i] = with + line
		}
	}
	text = strings.Join(list, "\n")
	if s.isTrue(a[2]) {
		text = with + text
	}
	return text
}

func doInt(s *state, a []Value) Value {
	v := a[0]
	if m, ok := v.(markup); ok {
		v = string(m)
	}
	switch v := v.(type) {
	case string:
		base := s.index(a[2])
		if base != 0 && (base < 2 || base > 36) {
			s.unsupported("a base of " + strconv.Itoa(base))
		}
		if i, ok := s.parseInt(v, base); ok {
			return i
		}
		f, ok := s.parseFloat(v)
		if !ok {
			return a[1]
		}
		return normal(toBig(f))
	case float64, int, bool, *big.Int:
		return normal(toBig(v))
	case *undefined:
		s.known(v)
	}
	return a[1]
}

func doFloat(s *state, a []Value) Value {
	v := a[0]
	if m, ok := v.(markup); ok {
		v = string(m)
	}
	switch v := v.(type) {
	case string:
		if f, ok := s.parseFloat(v); ok {
			return f
		}
		return a[1]
	case float64, int, bool, *big.Int:
		return s.float(v)
	case *undefined:
		s.known(v)
	}
	return a[1]
}

func doRound(s *state, a []Value) Value {
	method, _ := isText(a[2])
	if method != "common" && method != "ceil" && method != "floor" {
		s.fail("round has the methods common, ceil and floor")
	}
	if i, ok := whole(a[0]); ok && method == "common" {
		n := 0
		if a[1] != nil {
			n = s.index(a[1])
		}
		if n >= 0 {
			return normal(i)
		}
		if n < -mostDigits {
			return 0
		}
		return normal(roundWhole(i, -n))
	}
	f := s.float(a[0])
	if method == "common" {
		if a[1] == nil {
			return normal(toBig(math.RoundToEven(f)))
		}
		n := s.index(a[1])
		switch {
		case n > 323:
			return f
		case n < -308:
			return math.Copysign(0, f)
		case n < 0:
			return s.finite(roundRat(new(big.Rat).SetFloat64(f), -n, f))
		}
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', n, 64), 64)
		return rounded
	}
	scale := s.arithmetic("**", 10, a[1])
	scaled := s.float(s.arithmetic("*", a[0], scale))
	if method == "ceil" {
		scaled = math.Ceil(scaled)
	} else {
		scaled = math.Floor(scaled)
	}
	return s.arithmetic("/", normal(toBig(scaled)), scale)
}

// roundWhole rounds to a multiple of 10ⁿ, to an even one where two are as near.
func roundWhole(i *big.Int, n int) *big.Int {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
	q, r := floorDivide(i, unit)
	switch twice := new(big.Int).Lsh(r, 1); twice.Cmp(unit) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		if q.Bit(0) == 1 {
			q.Add(q, big.NewInt(1))
		}
	}
	return q.Mul(q, unit)
}

// roundRat rounds a float, which is exactly x, to a multiple of 10ⁿ.
func roundRat(x *big.Rat, n int, f float64) float64 {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
	q := new(big.Rat).Quo(x, new(big.Rat).SetInt(unit))
	num, r := floorDivide(q.Num(), q.Denom())
	switch twice := new(big.Int).Lsh(r, 1); twice.Cmp(q.Denom()) {
	case 1:
		num.Add(num, big.NewInt(1))
	case 0:
		if num.Bit(0) == 1 {
			num.Add(num, big.NewInt(1))
		}
	}
	out, _ := new(big.Float).SetInt(num.Mul(num, unit)).Float64()
	return math.Copysign(out, f)
}

func doTruncate(s *state, a []Value) Value {
	end := s.text(a[3])
	leeway := 5
	if a[4] != nil {
		leeway = s.index(a[4])
	}
	n, ends := s.index(a[1]), utf8.RuneCountInString(end)
	if n < ends || leeway < 0 {
		s.fail("truncate needs a length of at least %d and no negative leeway", ends)
	}
	size, ok := s.length(a[0])
	if !ok {
		s.fail("a value of type %s has no length", typeName(a[0]))
	}
	if n >= math.MaxInt-leeway || size <= n+leeway {
		return a[0]
	}
	text := firstRunes(s.text(a[0]), n-ends)
	if !s.isTrue(a[2]) {
		if i := strings.LastIndexByte(text, ' '); i >= 0 {
			text = text[:i]
		}
	}
	return text + end
}

func doFileSize(s *state, a []Value) Value {
	var size float64
	switch v := a[0].(type) {
	case string:
		f, ok := s.parseFloat(v)
		if !ok {
			s.fail("filesizeformat needs a number")
		}
		size = f
	default:
		size = s.float(v)
	}
	base, prefixes, unit := 1000.0, []string{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}, 1000.0
	if s.isTrue(a[1]) {
		base, prefixes, unit = 1024, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}, 1024
	}
	if size == 1 {
		return "1 Byte"
	}
	if size < base {
		return toBig(size).String() + " Bytes"
	}
	for i, prefix := range prefixes {
		unit *= base
		if size < unit || i == len(prefixes)-1 {
			return strconv.FormatFloat(base*size/unit, 'f', 1, 64) + " " + prefix
		}
	}
	return nil
}

// doPrettyPrint prints what fits a line; pprint breaks longer values.
func doPrettyPrint(s *state, a []Value) Value {
	switch v := a[0].(type) {
	case string:
		if len(v) > 60 || strings.Contains(v, "\n") {
			s.unsupported("pprint of a long text")
		}
	case nil, bool, int, *big.Int, float64, *undefined:
	default:
		s.unsupported("pprint of a value of type " + typeName(v))
	}
	return s.repr(a[0])
}

func doStripTags(s *state, a []Value) Value {
	text := s.str(a[0])
	var b strings.Builder
	for {
		start := strings.IndexByte(text, '<')
		if start < 0 {
			break
		}
		end := -1
		if strings.HasPrefix(text[start:], "<!--") {
			if i := strings.Index(text[start+4:], "-->"); i >= 0 {
				end = start + 4 + i + 3
			}
		} else if i := strings.IndexByte(text[start:], '>'); i >= 0 {
			end = start + i + 1
		}
		if end < 0 {
			break
		}
		b.WriteString(text[:start])
		text = text[end:]
	}
	b.WriteString(text)
	out := strings.Join(words(b.String(), -1), " ")
	for i := range len(out) {
		if out[i] != '&' {
			continue
		}
		known := false
		for _, entity := range []string{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&#34;", "& "} {
			known = known || strings.HasPrefix(out[i:], entity)
		}
		if !known {
			s.unsupported("striptags of such an entity")
		}
	}
	return html.UnescapeString(out)
}

func doURLEncode(s *state, a []Value) Value {
	quoted := func(v Value, query bool) string {
		text := strings.ReplaceAll(url.QueryEscape(s.str(v)), "%7E", "~")
		if !query {
			text = strings.ReplaceAll(strings.ReplaceAll(text, "+", "%20"), "%2F", "/")
		}
		return text
	}
	if _, ok := isText(a[0]); ok {
		return quoted(a[0], false)
	}
	v := a[0]
	if d, ok := v.(*Dict); ok {
		v = &view{d, "items"}
	}
	next, ok := s.iterates(v)
	if !ok {
		return quoted(v, false)
	}
	w := &writer{s: s}
	for first := true; ; first = false {
		item, ok := next()
		if !ok {
			return w.String()
		}
		pair := s.items(item)
		if len(pair) != 2 {
			s.fail("urlencode needs pairs of a key and a value")
		}
		if !first {
			w.write("&")
		}
		w.write(quoted(pair[0], true) + "=" + quoted(pair[1], true))
	}
}

func doXMLAttr(s *state, a []Value) Value {
	d, ok := a[0].(*Dict)
	if !ok {
		s.known(a[0])
		s.fail("xmlattr needs a mapping")
	}
	w := &writer{s: s}
	for i, key := range d.keys {
		v := d.values[i]
		if _, ok := v.(*undefined); ok || v == nil {
			continue
		}
		name := s.text(key)
		if strings.ContainsAny(name, " \t\n\r\f\v/>=") {
			s.fail("%s is no name of an attribute", quote(name))
		}
		if w.Len() > 0 || s.isTrue(a[1]) {
			w.write(" ")
		}
		w.write(string(s.escape(name)) + `="` + string(s.escape(v)) + `"`)
	}
	return w.String()
}

func doWordWrap(s *state, a []Value) Value {
	text, width, long := s.text(a[0]), s.index(a[1]), s.isTrue(a[2])
	between := "\n"
	if a[3] != nil {
		between = s.text(a[3])
	}
	if width <= 0 {
		s.unsupported("wordwrap to no width")
	}
	var out []string
	for _, line := range lines(text, false) {
		if s.isTrue(a[4]) && strings.ContainsAny(line, "-–—") {
			s.unsupported("wordwrap of words with hyphens")
		}
		out = append(out, strings.Join(s.wrapped(line, width, long), between))
	}
	w := &writer{s: s}
	for i, line := range out {
		if i > 0 {
			w.write(between)
		}
		w.write(line)
	}
	return w.String()
}

// wrapped is textwrap.wrap of a line without hyphens.
func (s *state) wrapped(line string, width int, breakLong bool) []string {
	blank := func(r rune) bool { return strings.ContainsRune("\t\n\v\f\r ", r) }
	var chunks []string
	for line != "" {
		r, _ := utf8.DecodeRuneInString(line)
		is := blank(r)
		end := strings.IndexFunc(line, func(r rune) bool { return blank(r) != is })
		if end < 0 {
			end = len(line)
		}
		chunks = append(chunks, line[:end])
		line = line[end:]
	}
	isBlank := func(text string) bool { return strings.TrimFunc(text, isSpace) == "" }
	var out []string
	for len(chunks) > 0 {
		s.check() // which is quick beside counting a long word
		if isBlank(chunks[0]) && len(out) > 0 {
			chunks = chunks[1:]
			if len(chunks) == 0 {
				break
			}
		}
		var now []string
		size := 0
		for len(chunks) > 0 {
			n := utf8.RuneCountInString(chunks[0])
			if size+n > width {
				break
			}
			now, size, chunks = append(now, chunks[0]), size+n, chunks[1:]
		}
		if len(chunks) > 0 && utf8.RuneCountInString(chunks[0]) > width {
			switch {
			case breakLong:
				head := firstRunes(chunks[0], max(width-size, 0))
				if head == "" && size == 0 {
					head = firstRunes(chunks[0], 1)
				}
				now = append(now, head)
				chunks = append([]string{chunks[0][len(head):]}, chunks[1:]...)
			case len(now) == 0:
				now, chunks = append(now, chunks[0]), chunks[1:]
			}
		}
		if len(now) > 0 && isBlank(now[len(now)-1]) {
			now = now[:len(now)-1]
		}
		if len(now) > 0 {
			s.grow(size)
			out = append(out, strings.Join(now, ""))
		}
	}
	return out
}
