package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
)

// dumper writes values as json.dumps of Python does.
type dumper struct {
	writer
	ascii      bool
	indent     string
	lines      bool // with an indent
	item, pair string
	sorted     bool
}

func doJSON(s *state, a []Value) Value {
	d := &dumper{writer: writer{s: s}, ascii: s.isTrue(a[1]), item: ", ", pair: ": ", sorted: s.isTrue(a[4])}
	switch v := a[2].(type) {
	case nil:
	case string:
		d.indent, d.lines = v, true
	default:
		blanks, _ := s.repeat(" ", s.index(v))
		d.indent, d.lines = blanks.(string), true
	}
	if d.lines {
		d.item = ","
	}
	if a[3] != nil {
		pair := s.items(a[3])
		if len(pair) != 2 {
			s.fail("tojson needs two separators")
		}
		d.item, d.pair = s.text(pair[0]), s.text(pair[1])
	}
	d.dump(a[0], 1)
	return d.String()
}

func (d *dumper) dump(v Value, level int) {
	d.s.tick()
	if level > deepestValue {
		d.s.unsupported("tojson of so deep a value")
	}
	switch v := v.(type) {
	case nil:
		d.write("null")
	case bool:
		d.write(strconv.FormatBool(v))
	case int:
		d.write(strconv.Itoa(v))
	case *big.Int:
		d.write(d.s.decimal(v))
	case float64:
		d.write(floatText(v))
	case string:
		d.quoted(v)
	case markup:
		d.quoted(string(v))
	case *List:
		d.sequence("[", len(v.items), "]", level, func(i int) { d.dump(v.items[i], level+1) })
	case *tuple:
		d.sequence("[", len(v.items), "]", level, func(i int) { d.dump(v.items[i], level+1) })
	case *Dict:
		items := d.s.items(&view{v, "items"})
		if d.sorted {
			d.s.sort(items, func(v Value) Value { return v }, false)
		}
		d.sequence("{", len(items), "}", level, func(i int) {
			item := items[i].(*tuple).items
			switch key := item[0].(type) {
			case string:
				d.quoted(key)
			case markup:
				d.quoted(string(key))
			case nil, bool, int, *big.Int, float64:
				d.write(`"`)
				d.dump(key, level+1)
				d.write(`"`)
			default:
				d.s.fail("tojson: a %s cannot be a key", typeName(key))
			}
			d.write(d.pair)
			d.dump(item[1], level+1)
		})
	default:
		d.s.fail("tojson: a value of type %s has no JSON", typeName(v))
	}
}

func (d *dumper) sequence(open string, n int, end string, level int, item func(i int)) {
	line := func(level int) {
		if d.lines && n > 0 {
			d.write("\n")
			for range level {
				d.write(d.indent)
			}
		}
	}
	d.write(open)
	for i := range n {
		if i > 0 {
			d.write(d.item)
		}
		line(level)
		item(i)
	}
	line(level - 1)
	d.write(end)
}

func (d *dumper) quoted(text string) {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch r {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		case '\f':
			b.WriteString(`\f`)
		default:
			switch {
			case r < ' ' || d.ascii && r >= 0x7f && r < 0x10000:
				fmt.Fprintf(&b, `\u%04x`, r)
			case d.ascii && r >= 0x10000:
				high, low := utf16.EncodeRune(r)
				fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
			default:
				b.WriteRune(r)
			}
		}
	}
	b.WriteByte('"')
	d.write(b.String())
}
