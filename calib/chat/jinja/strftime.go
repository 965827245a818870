package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// strftime prints a time as datetime.strftime of Python does on Linux for one without a zone, in C's locale.
func (s *state) strftime(t time.Time, format string) string {
	w := &writer{s: s}
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 || i+1 == len(format) {
			w.write(format)
			break
		}
		w.write(format[:i])
		n, text := s.directive(t, format[i:])
		w.write(text)
		format = format[i+n:]
	}
	return w.String()
}

// directive returns what a directive at the beginning of a format prints, and its length. One that glibc does not know
// prints itself.
func (s *state) directive(t time.Time, format string) (n int, text string) {
	n = 1
	pad, upper, swap := byte(0), false, false
	for ; n < len(format) && strings.IndexByte("_-0^#+", format[n]) >= 0; n++ {
		switch c := format[n]; c {
		case '^':
			upper = true
		case '#':
			swap = true
		case '+':
			s.unsupported("the flag + of strftime")
		default:
			pad = c
		}
	}
	digits := n
	for n < len(format) && isDigit(format[n]) {
		n++
	}
	width := 0
	if n > digits {
		var err error
		if width, err = strconv.Atoi(format[digits:n]); err != nil || width > 1000 {
			s.unsupported("so wide a field of strftime")
		}
	}
	modifier := byte(0)
	if n < len(format) && (format[n] == 'E' || format[n] == 'O') {
		modifier = format[n]
		n++
	}
	words := func(text string) string {
		if upper {
			text = strings.ToUpper(text)
		}
		blank := " "
		if pad == '0' {
			blank = "0"
		}
		for len(text) < width {
			text = blank + text
		}
		return text
	}
	if n >= len(format) {
		return n, words(format)
	}
	c := format[n]
	n++
	flags, wrong := n > 2, false
	if modifier == 'E' && strings.IndexByte("cCxXyYntpPsrRu%TzZ", c) < 0 || modifier == 'O' && strings.IndexByte("bhBdeHIkljmMSUVgGWwuyntpPsrRTCzZ%", c) < 0 {
		wrong = true
	}
	number := func(value, digits int, fill byte) string {
		if pad != 0 {
			fill = pad
		}
		text := strconv.Itoa(value)
		if value < 0 {
			s.unsupported("such a time in strftime")
		}
		if fill == '-' {
			fill, digits = ' ', 0
		}
		blank := string(fill)
		if fill == '_' || fill == ' ' {
			blank = " "
		}
		for len(text) < max(digits, width) {
			text = blank + text
		}
		return text
	}
	named := func(text string) string {
		if swap {
			upper = true
		}
		return words(text)
	}
	hour12 := (t.Hour()+11)%12 + 1
	isoYear, isoWeek := t.ISOWeek()
	weekday := int(t.Weekday())
	if wrong {
		return n, words(format[:n])
	}
	switch c {
	case '%':
		return n, words("%")
	case 'n':
		return n, words("\n")
	case 't':
		return n, words("\t")
	case 'a':
		return n, named(t.Format("Mon"))
	case 'A':
		return n, named(t.Format("Monday"))
	case 'b', 'h':
		return n, named(t.Format("Jan"))
	case 'B':
		return n, named(t.Format("January"))
	case 'c':
		return n, words(t.Format("Mon Jan _2 15:04:05 2006"))
	case 'C':
		return n, number(t.Year()/100, 2, '0')
	case 'd':
		return n, number(t.Day(), 2, '0')
	case 'D', 'x':
		return n, words(t.Format("01/02/06"))
	case 'e':
		return n, number(t.Day(), 2, '_')
	case 'f':
		if flags {
			return n, words(format[:n])
		}
		return n, fmt.Sprintf("%06d", t.Nanosecond()/1000)
	case 'F':
		if pad != 0 || width != 0 {
			s.unsupported("a flag of %F in strftime")
		}
		return n, strconv.Itoa(t.Year()) + t.Format("-01-02")
	case 'g':
		return n, number(isoYear%100, 2, '0')
	case 'G':
		return n, number(isoYear, 1, '0')
	case 'H':
		return n, number(t.Hour(), 2, '0')
	case 'I':
		return n, number(hour12, 2, '0')
	case 'j':
		return n, number(t.YearDay(), 3, '0')
	case 'k':
		return n, number(t.Hour(), 2, '_')
	case 'l':
		return n, number(hour12, 2, '_')
	case 'm':
		return n, number(int(t.Month()), 2, '0')
	case 'M':
		return n, number(t.Minute(), 2, '0')
	case 'p', 'P':
		text := t.Format("PM")
		if c == 'P' || swap {
			text, upper = strings.ToLower(text), false
		}
		return n, words(text)
	case 'r':
		return n, words(t.Format("03:04:05 PM"))
	case 'R':
		return n, words(t.Format("15:04"))
	case 's':
		return n, number(int(t.Unix()), 1, '_')
	case 'S':
		return n, number(t.Second(), 2, '0')
	case 'T', 'X':
		return n, words(t.Format("15:04:05"))
	case 'u':
		return n, number((weekday+6)%7+1, 1, '0')
	case 'U':
		return n, number((t.YearDay()+6-weekday)/7, 2, '0')
	case 'V':
		return n, number(isoWeek, 2, '0')
	case 'w':
		return n, number(weekday, 1, '0')
	case 'W':
		return n, number((t.YearDay()+6-(weekday+6)%7)/7, 2, '0')
	case 'y':
		return n, number(t.Year()%100, 2, '0')
	case 'Y':
		return n, number(t.Year(), 1, '0')
	case 'z', 'Z':
		if flags || modifier != 0 {
			s.unsupported("a flag of %z in strftime")
		}
		return n, ""
	}
	return n, words(format[:n])
}
