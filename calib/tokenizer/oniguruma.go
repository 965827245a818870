package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxPattern    = 1 << 14 // bytes of a regular expression: real ones have a few hundred
	maxTranslated = 1 << 18 // bytes of what becomes of it: forty thousand for o200k, five thousand for a class of letters
	maxNested     = 50      // groups and classes in each other
	maxRepeat     = 100_000 // as in the reference
)

// translate rewrites a regular expression of the reference, which has Oniguruma's Ruby syntax, for
// regexp2, whose syntax is .NET's. Classes of characters are spelled out, so that both see the same Unicode, and
// so is what ignores case. Groups capture no more. What does not mean the same to both, or is not
// known to, is an error.
func translate(pattern string) (string, error) {
	if len(pattern) > maxPattern {
		return "", fmt.Errorf("longer than %d bytes", maxPattern)
	}
	if strings.ContainsRune(pattern, 0) {
		return "", errors.New("the character 0 is not supported")
	}
	t := &translator{in: pattern, sets: make(map[string]runeSet)}
	_, err := t.alternatives(false)
	if err == nil && t.in != "" { // alternatives ends early at a parenthesis only
		err = errors.New("a closing parenthesis without an opening one")
	}
	if err != nil {
		return "", fmt.Errorf("at byte %d: %w", len(pattern)-len(t.in), err)
	}
	return string(t.out), nil
}

// translator is what translate has still to read and has written.
type translator struct {
	in    string
	out   []byte
	depth int
	// atomic tells that the group being read has an atomic group or a possessive quantifier.
	atomic bool
	sets   map[string]runeSet // by name, as making them takes a while
}

// take removes a prefix from the input if it is there.
func (t *translator) take(prefix string) bool {
	rest, found := strings.CutPrefix(t.in, prefix)
	t.in = rest
	return found
}

// next removes the next character of the input.
func (t *translator) next() (rune, error) {
	if t.in == "" {
		return 0, errors.New("ends too early")
	}
	r, n := utf8.DecodeRuneInString(t.in)
	t.in = t.in[n:]
	return r, nil
}

func (t *translator) enter() error {
	if t.depth++; t.depth > maxNested {
		return fmt.Errorf("more than %d groups or classes in each other", maxNested)
	}
	return nil
}

// alternatives reads up to the end or to a closing parenthesis. It tells whether it may match no characters.
func (t *translator) alternatives(fold bool) (mayBeEmpty bool, err error) {
	if err := t.enter(); err != nil {
		return false, err
	}
	defer func() { t.depth-- }()
	if strings.HasPrefix(t.in, "(?i)") { // in Ruby's syntax it reaches to the end of the group
		t.take("(?i)")
		fold = true
	}
	empty := true   // nothing in this alternative must match a character
	last := rune(0) // the letter before, where it stood for itself
	for t.in != "" && t.in[0] != ')' {
		if t.take("|") {
			t.print("|")
			mayBeEmpty = mayBeEmpty || empty
			empty, last = true, 0
			continue
		}
		start := len(t.out)
		r, err := t.atom(fold)
		if err != nil {
			return false, err
		}
		if fold && foldTogether(last, r) {
			return false, errors.New("letters that may stand for a ligature where case is ignored are not supported")
		}
		last = r
		if len(t.out) > maxTranslated {
			return false, errors.New("too many classes of characters")
		}
		mayBeNone, err := t.quantifier(start, r)
		if err != nil {
			return false, err
		}
		if !mayBeNone && r >= atomic {
			empty = false
		}
	}
	return mayBeEmpty || empty, nil
}

// foldTogether tells whether two letters in a row equal one character where case is ignored, as ss equals ß.
func foldTogether(a, b rune) bool {
	switch string([]rune{unicode.ToLower(a), unicode.ToLower(b)}) {
	case "ff", "fi", "fl", "ss", "st":
		return true
	}
	return false
}

// Results of atom for what is not a character that stands for itself.
const (
	notLiteral = 0
	atomic     = -1 // a group that has an atomic group or a possessive quantifier in it
	optional   = -2 // a group that may match no characters
	assertion  = -3 // matches no characters
)

// atom translates what a quantifier may follow. It returns the character that stands for itself, or another kind.
func (t *translator) atom(fold bool) (rune, error) {
	r, err := t.next()
	if err != nil {
		return 0, err
	}
	switch r {
	case '(':
		return t.group(fold)
	case '[':
		set, err := t.class(fold)
		if err != nil {
			return 0, err
		}
		t.write(set)
		return notLiteral, nil
	case '.':
		t.write(runeSet{{'\n', '\n'}}.complement())
		return notLiteral, nil
	case '^': // before a line
		t.print(`(?:\A|(?<=\n)(?!\z))`)
		return assertion, nil
	case '$': // behind a line
		t.print(`(?=\n|\z)`)
		return assertion, nil
	case '*', '+', '?':
		return 0, fmt.Errorf("nothing to repeat before %c", r)
	case '\\':
		return t.escape(fold)
	}
	return r, t.writeLiteral(r, fold)
}

// group translates what follows an opening parenthesis.
func (t *translator) group(fold bool) (rune, error) {
	kind := rune(notLiteral)
	switch {
	case !strings.HasPrefix(t.in, "?"), t.take("?:"), t.name():
		t.print("(?:")
	case t.take("?i:"):
		fold = true
		t.print("(?:")
	case t.take("?-i:"):
		fold = false
		t.print("(?:")
	case t.take("?>"):
		kind = atomic
		t.print("(?>")
	default:
		for _, look := range []string{"?=", "?!", "?<=", "?<!"} {
			if t.take(look) {
				t.print("(" + look)
				kind = assertion
				break
			}
		}
		if kind != assertion {
			return 0, errors.New("this kind of group is not supported")
		}
	}
	before := t.atomic
	t.atomic = false
	empty, err := t.alternatives(fold)
	if err != nil {
		return 0, err
	}
	if !t.take(")") {
		return 0, errors.New("a closing parenthesis is missing")
	}
	t.print(")")
	switch {
	case kind != notLiteral:
	case t.atomic:
		kind = atomic
	case empty:
		kind = optional
	}
	t.atomic = before || kind == atomic
	return kind, nil
}

// name removes the name of a group if there is one.
func (t *translator) name() bool {
	if !strings.HasPrefix(t.in, "?<") || strings.HasPrefix(t.in, "?<=") || strings.HasPrefix(t.in, "?<!") {
		return false
	}
	_, rest, found := strings.Cut(t.in, ">")
	if found {
		t.in = rest
	}
	return found
}

// quantifier translates how often the atom matches that was written from start on. It tells whether that may be no time.
func (t *translator) quantifier(start int, atom rune) (mayBeNone bool, err error) {
	q, err := t.count()
	if err != nil || q.text == "" {
		return false, err
	}
	switch {
	case atom == assertion:
		return false, errors.New("a repeated assertion is not supported")
	case atom == atomic: // regexp2 takes (?:a++)? for a*+
		return false, errors.New("a quantifier behind a group with a possessive quantifier is not supported")
	case atom == optional && q.interval: // Oniguruma stops counting when nothing matched
		return false, errors.New("an interval behind what may match nothing is not supported")
	}
	t.print(q.text)
	wrap := func(suffix string) {
		t.out = append(slices.Insert(t.out, start, []byte("(?:")...), suffix...)
	}
	mayBeNone = q.least == 0
	switch {
	case t.take("?"):
		if q.exact { // in Ruby's syntax not a lazy interval
			wrap(")?")
			mayBeNone = true
		} else {
			t.print("?")
		}
	case t.take("+"):
		if q.interval { // in Ruby's syntax not a possessive one
			wrap(")+")
		} else {
			t.print("+")
			t.atomic = true
		}
	}
	if again, err := t.count(); err != nil || again.text != "" {
		return false, errors.New("a quantifier behind a quantifier is not supported")
	}
	return mayBeNone, nil
}

// repetitions is *, +, ? or an interval, which may be exact, as {2}.
type repetitions struct {
	text            string // for regexp2; empty if there is none
	least           int
	interval, exact bool
}

// count reads a quantifier. What only looks like an interval is none, and its brace stands for itself.
func (t *translator) count() (repetitions, error) {
	switch {
	case t.take("*"):
		return repetitions{text: "*"}, nil
	case t.take("+"):
		return repetitions{text: "+", least: 1}, nil
	case t.take("?"):
		return repetitions{text: "?"}, nil
	}
	inside, rest, found := strings.Cut(t.in, "}")
	inside, open := strings.CutPrefix(inside, "{")
	low, high, comma := strings.Cut(inside, ",")
	if !found || !open || low == "" && high == "" || strings.Trim(low+high, "0123456789") != "" {
		return repetitions{}, nil
	}
	bounds := [2]int{0, maxRepeat}
	for i, digits := range []string{low, high} {
		if digits == "" {
			continue
		}
		var err error
		if bounds[i], err = strconv.Atoi(digits); err != nil || bounds[i] > maxRepeat {
			return repetitions{}, fmt.Errorf("more than %d repetitions", maxRepeat)
		}
	}
	if bounds[0] > bounds[1] {
		return repetitions{}, errors.New("an interval that ends before it begins")
	}
	t.in = rest
	q := repetitions{least: bounds[0], interval: true, exact: !comma}
	switch {
	case !comma:
		q.text = fmt.Sprintf("{%d}", bounds[0])
	case high == "":
		q.text = fmt.Sprintf("{%d,}", bounds[0])
	default:
		q.text = fmt.Sprintf("{%d,%d}", bounds[0], bounds[1])
	}
	return q, nil
}

// escape translates what follows a backslash outside of a class.
func (t *translator) escape(fold bool) (rune, error) {
	switch {
	case t.take("A"):
		t.print(`\A`)
		return assertion, nil
	case t.take("z"):
		t.print(`\z`)
		return assertion, nil
	case t.take("Z"):
		t.print(`(?=\n?\z)`)
		return assertion, nil
	case t.take("b"):
		return assertion, t.boundary(`(?:(?<!%[1]s)(?=%[1]s)|(?<=%[1]s)(?!%[1]s))`)
	case t.take("B"):
		return assertion, t.boundary(`(?:(?<!%[1]s)(?!%[1]s)|(?<=%[1]s)(?=%[1]s))`)
	case t.take("R"):
		t.print(`(?>\r\n|[\n-\r\x85\u2028\u2029])`)
		return notLiteral, nil
	}
	property := strings.HasPrefix(t.in, "p") || strings.HasPrefix(t.in, "P")
	set, r, err := t.classEscape()
	if err != nil {
		return 0, err
	}
	if r != notLiteral {
		return r, t.writeLiteral(r, fold)
	}
	if fold && property {
		if set, err = folded(set); err != nil {
			return 0, err
		}
	}
	t.write(set)
	return notLiteral, nil
}

// boundary writes an assertion about words.
func (t *translator) boundary(format string) error {
	word := &translator{}
	word.write(t.named("w", wordSet))
	t.print(fmt.Sprintf(format, word.out))
	return nil
}

// named returns a set that takes a while to make.
func (t *translator) named(name string, set func() runeSet) runeSet {
	if _, ok := t.sets[name]; !ok {
		t.sets[name] = set()
	}
	return t.sets[name]
}

// classEscape reads what follows a backslash and is one character, or notLiteral and a set of them.
func (t *translator) classEscape() (runeSet, rune, error) {
	r, err := t.next()
	if err != nil {
		return nil, 0, err
	}
	if i := strings.IndexRune("tnrfvae", r); i >= 0 {
		return nil, rune("\t\n\r\f\v\a\x1b"[i]), nil
	}
	set := runeSet(nil)
	switch r {
	case 'd', 'D':
		set = t.named("d", func() runeSet { return categorySet("Nd") })
	case 's', 'S':
		set = t.named("s", func() runeSet { return tableSet(unicode.White_Space) })
	case 'w', 'W':
		set = t.named("w", wordSet)
	case 'h', 'H':
		set = tableSet(unicode.ASCII_Hex_Digit)
	case 'p', 'P':
		if set, err = t.property(); err != nil {
			return nil, 0, err
		}
	case 'x', 'u':
		r, err := t.code(r)
		return nil, r, err
	default:
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return nil, 0, fmt.Errorf(`\%c is not supported`, r)
		}
		return nil, r, nil
	}
	if unicode.IsUpper(r) {
		set = set.complement()
	}
	return set, notLiteral, nil
}

// property reads the name of a property, which is inverted by ^.
func (t *translator) property() (runeSet, error) {
	name, rest, found := strings.Cut(t.in, "}")
	name, open := strings.CutPrefix(name, "{")
	if !found || !open {
		return nil, errors.New(`\p without a property in braces`)
	}
	name, inverted := strings.CutPrefix(name, "^")
	if _, ok := t.sets["p"+name]; !ok {
		set, ok := propertySet(name)
		if !ok {
			return nil, fmt.Errorf("property %s is not supported", quote(name))
		}
		t.sets["p"+name] = set
	}
	t.in = rest
	if inverted {
		return t.sets["p"+name].complement(), nil
	}
	return t.sets["p"+name], nil
}

// code reads the number of a character: two digits in hexadecimal or any in braces behind x, four behind u.
func (t *translator) code(kind rune) (rune, error) {
	digits, rest, top := "", "", rune(unicode.MaxRune)
	switch inside, after, found := strings.Cut(t.in, "}"); {
	case kind == 'x' && strings.HasPrefix(inside, "{") && found:
		digits, rest = inside[1:], after
	case kind == 'x' && len(t.in) >= 2:
		digits, rest, top = t.in[:2], t.in[2:], unicode.MaxASCII // above that it is a byte
	case kind == 'u' && len(t.in) >= 4:
		digits, rest = t.in[:4], t.in[4:]
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || rune(n) > top || !utf8.ValidRune(rune(n)) || n == 0 {
		return 0, fmt.Errorf(`\%c without the number of a character`, kind)
	}
	t.in = rest
	return rune(n), nil
}

// class reads a class of characters behind its opening bracket: members, ranges, classes in it and && between.
func (t *translator) class(fold bool) (runeSet, error) {
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer func() { t.depth-- }()
	inverted := t.take("^")
	if strings.HasPrefix(t.in, "]") {
		return nil, errors.New("an empty class")
	}
	var set, left runeSet // left is what stands on the left of &&
	both := false
	for !t.take("]") {
		if t.take("&&") {
			if both {
				set = set.intersection(left)
			}
			set, left, both = nil, set, true
			continue
		}
		members, err := t.members()
		if err != nil {
			return nil, err
		}
		set = append(set, members...)
	}
	set = set.canonical()
	if both {
		set = set.intersection(left)
	}
	if fold {
		var err error
		if set, err = folded(set); err != nil {
			return nil, err
		}
	}
	if inverted {
		set = set.complement()
	}
	return set, nil
}

// members reads a member of a class: a character, a range of them, an escape or a class.
func (t *translator) members() (runeSet, error) {
	if strings.HasPrefix(t.in, "[:") {
		return nil, errors.New("a POSIX bracket is not supported")
	}
	if t.take("[") {
		return t.class(false)
	}
	set, low, err := t.member()
	if err != nil || low == notLiteral {
		return set, err
	}
	if !strings.HasPrefix(t.in, "-") || strings.HasPrefix(t.in, "-]") {
		return runeSet{{low, low}}, nil
	}
	t.take("-")
	class := strings.HasPrefix(t.in, "[")
	_, high, err := t.member()
	if err != nil {
		return nil, err
	}
	if high < low || low == '-' || class {
		return nil, errors.New("a range of characters that is none")
	}
	return runeSet{{low, high}}, nil
}

// member reads one character of a class, or an escape that stands for several.
func (t *translator) member() (runeSet, rune, error) {
	if t.take(`\`) {
		if t.take("b") {
			return nil, '\b', nil
		}
		return t.classEscape()
	}
	r, err := t.next()
	return nil, r, err
}

// folded adds what equals a member where case is ignored. Beyond ASCII that is more than single characters.
func folded(set runeSet) (runeSet, error) {
	out := slices.Clone(set)
	for _, rg := range set {
		for r := rg.lo; r <= rg.hi; r++ {
			if other := unicode.SimpleFold(r); other == r {
				continue
			}
			if r > unicode.MaxASCII {
				return nil, errors.New("letters beyond ASCII where case is ignored are not supported")
			}
			for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
				out = append(out, runeRange{other, other})
			}
		}
	}
	return out.canonical(), nil
}

func (t *translator) print(s string) { t.out = append(t.out, s...) }

func (t *translator) writeLiteral(r rune, fold bool) error {
	set := runeSet{{r, r}}
	if fold {
		var err error
		if set, err = folded(set); err != nil {
			return err
		}
	}
	t.write(set)
	return nil
}

// write writes one character out of a set.
func (t *translator) write(set runeSet) {
	switch {
	case len(set) == 0:
		t.print("(?!)")
		return
	case len(set) == 1 && set[0].lo == set[0].hi:
		t.writeRune(set[0].lo)
		return
	}
	t.print("[")
	for _, r := range set {
		t.writeRune(r.lo)
		if r.lo < r.hi {
			t.print("-")
			t.writeRune(r.hi)
		}
	}
	t.print("]")
}

// writeRune writes a character so that it stands for itself.
func (t *translator) writeRune(r rune) {
	if r > unicode.MaxASCII || unicode.IsLetter(r) || unicode.IsDigit(r) {
		t.out = utf8.AppendRune(t.out, r)
		return
	}
	t.print(fmt.Sprintf(`\x%02x`, r))
}
