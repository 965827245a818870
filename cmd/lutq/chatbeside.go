package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"github.com/lutq/lutq/formats/input"
)

// difference is where two texts part: behind so many characters, with what follows in each, the end or a word.
type difference struct {
	After  int       `json:"after"` // characters
	Words  [2]string `json:"words"`
	before string
}

// firstDifference returns where two texts part, nil where they do not.
func firstDifference(a, b string) *difference {
	n := commonBytes(a, b)
	if n == len(a) && n == len(b) {
		return nil
	}
	d := &difference{After: utf8.RuneCountInString(a[:n])}
	begin := wordBegin(a, n)
	d.before = a[:begin]
	for i, text := range []string{a, b} {
		d.Words[i] = text[begin:wordGoesOn(text, n)]
	}
	if d.Words[0] != d.Words[1] && begin < n {
		return d
	}
	// They part behind a word, or only one ends with it.
	d.before = a[:n]
	for i, text := range []string{a, b} {
		d.Words[i] = text[n:wordEnd(text, n)]
	}
	if words := [2]string{strings.TrimSpace(d.Words[0]), strings.TrimSpace(d.Words[1])}; words[0] != words[1] {
		d.Words = words // and not only in the space before them
	}
	return d
}

// commonBytes returns the length of what two texts begin with alike, in whole characters.
func commonBytes(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) {
		r, size := utf8.DecodeRuneInString(a[n:])
		if other, _ := utf8.DecodeRuneInString(b[n:]); other != r || !strings.HasPrefix(b[n:], a[n:n+size]) {
			break
		}
		n += size
	}
	return n
}

// wordBegin returns where the word begins that a place lies in.
func wordBegin(text string, at int) int {
	return strings.LastIndexFunc(text[:at], unicode.IsSpace) + 1
}

// wordEnd returns where the word ends that a place lies in, or that follows it behind spaces.
func wordEnd(text string, at int) int {
	if i := strings.IndexFunc(text[at:], func(r rune) bool { return !unicode.IsSpace(r) }); i > 0 {
		at += i
	}
	return wordGoesOn(text, at)
}

// wordGoesOn returns how far the word goes that a place lies in or behind.
func wordGoesOn(text string, at int) int {
	if end := strings.IndexFunc(text[at:], unicode.IsSpace); end >= 0 {
		return at + end
	}
	return len(text)
}

// line says where two answers part.
func (d *difference) line(names [2]string) string {
	if d == nil {
		return "the answers are the same"
	}
	spell := func(word string) string {
		if word == "" {
			return "the end"
		}
		return fmt.Sprintf("%q", word)
	}
	behind := "at the beginning"
	if d.After > 0 {
		behind = fmt.Sprintf("after %d characters", d.After)
	}
	if before := strings.Join(strings.Fields(d.before), " "); before != "" {
		behind += fmt.Sprintf(", %q", cutBegin(before, 30))
	}
	return fmt.Sprintf("first difference %s: %s in %s, %s in %s", behind, spell(d.Words[0]), names[0], spell(d.Words[1]), names[1])
}

// The looks of a terminal.
const (
	bold    = "\x1b[1m"
	reverse = "\x1b[7m"
	plain   = "\x1b[0m"
)

// marking prints a text that comes in pieces, with the first word that is not another text's in reverse.
type marking struct {
	other, text string // text is what came
	shown       int    // bytes of it
	state       int    // before, in, or after the word
	begun       bool   // whether some of the word was shown, and not only space before it
}

const (
	beforeMark = iota
	inMark
	afterMark
)

// add returns what a piece adds to the print. What comes is shown at once: a word that has been begun when the texts part is
// marked from there on.
func (m *marking) add(piece string) string {
	m.text += piece
	var b strings.Builder
	show := func(to int) {
		b.WriteString(visibleText(m.text[m.shown:to]))
		m.shown = to
	}
	if m.state == beforeMark {
		n := commonBytes(m.text, m.other)
		show(max(n, m.shown))
		if n < len(m.text) {
			m.state = inMark
			b.WriteString(reverse)
		}
	}
	if m.state == inMark {
		end := m.shown
		for _, r := range m.text[m.shown:] {
			if unicode.IsSpace(r) && m.begun {
				m.state = afterMark
				break
			}
			m.begun = m.begun || !unicode.IsSpace(r)
			end += utf8.RuneLen(r)
		}
		show(end)
		if m.state == afterMark {
			b.WriteString(plain)
		}
	}
	if m.state == afterMark {
		show(len(m.text))
	}
	return b.String()
}

// end returns what ends the print.
func (m *marking) end() string {
	if m.state == inMark {
		m.state = afterMark
		return plain
	}
	return ""
}

// leastColumns is the width of a terminal that has room for two answers side by side.
const leastColumns = 100

// sideBySide prints two texts that come in pieces in two columns, a row as soon as both have it.
type sideBySide struct {
	w      io.Writer
	width  int // of a column
	colour bool
	lines  [2][]string // that are settled, and have not been printed
	open   [2]string   // what follows them
	ended  [2]bool
	parted bool
	err    error
}

const gutter = 3

func newSideBySide(w io.Writer, columns int, colour bool, names [2]string) *sideBySide {
	s := &sideBySide{w: w, width: (columns - gutter) / 2, colour: colour}
	for i, name := range names {
		names[i] = foldMiddle(input.Name(name), s.width)
	}
	s.row(names, " │ ", [2]string{s.look(bold), s.look(bold)})
	s.print(strings.Repeat("─", s.width+1) + "┼" + strings.Repeat("─", s.width+1) + "\n")
	return s
}

func (s *sideBySide) look(code string) string {
	if !s.colour {
		return ""
	}
	return code
}

func (s *sideBySide) print(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.w, text)
	}
}

// row prints a row of which the whole cells have a look.
func (s *sideBySide) row(cells [2]string, between string, looks [2]string) {
	var shown [2]string
	for i, cell := range cells {
		shown[i] = cell
		if looks[i] != "" {
			shown[i] = looks[i] + cell + plain
		}
	}
	pad := strings.Repeat(" ", max(s.width-uniseg.StringWidth(cells[0]), 0))
	s.print(strings.TrimRight(shown[0]+pad+between+shown[1], " ") + "\n")
}

// add adds a piece to a text.
func (s *sideBySide) add(i int, piece string) error {
	s.open[i] += piece
	for {
		line, rest, ended := strings.Cut(s.open[i], "\n")
		parts := wrap(visibleText(strings.ReplaceAll(line, "\t", "    ")), s.width)
		if !ended {
			// The last line may grow, and so is no line yet.
			s.lines[i] = append(s.lines[i], parts[:len(parts)-1]...)
			s.open[i] = parts[len(parts)-1]
			break
		}
		s.lines[i] = append(s.lines[i], parts...)
		s.open[i] = rest
	}
	s.flush()
	return s.err
}

// end ends a text.
func (s *sideBySide) end(i int) {
	if s.open[i] != "" {
		s.lines[i] = append(s.lines[i], s.open[i])
		s.open[i] = ""
	}
	s.ended[i] = true
	s.flush()
}

// flush prints the rows that both texts have. The first in which they differ has another mark between its cells, and the words
// in reverse.
func (s *sideBySide) flush() {
	for {
		var cells [2]string
		none := 0
		for i := range cells {
			if len(s.lines[i]) > 0 {
				cells[i] = s.lines[i][0]
			} else if none++; !s.ended[i] {
				return
			}
		}
		if none == len(cells) {
			return
		}
		for i := range cells {
			if len(s.lines[i]) > 0 {
				s.lines[i] = s.lines[i][1:]
			}
		}
		if s.parted || cells[0] == cells[1] {
			s.row(cells, " │ ", [2]string{})
			continue
		}
		s.parted = true
		n := commonBytes(cells[0], cells[1])
		begin := wordBegin(cells[0], n)
		var marked [2]string
		for i, cell := range cells {
			marked[i] = cell
			if end := wordEnd(cell, n); s.colour && end > begin {
				marked[i] = cell[:begin] + reverse + cell[begin:end] + plain + cell[end:]
			}
		}
		pad := strings.Repeat(" ", max(s.width-uniseg.StringWidth(cells[0]), 0))
		s.print(strings.TrimRight(marked[0]+pad+" ≠ "+marked[1], " ") + "\n")
	}
}
