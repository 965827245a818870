// Package svg draws the pictures of lutq: its one set of colors, which follows the theme of whoever looks at them, and
// axes, lines, marks, bars and heat maps. A picture is a file of its own, or stands within a page that has [Style].
//
// Colors are classes, so that a page says once what they are. The series are those of Okabe and Ito (2008), which people
// with any kind of color vision tell apart; every series has a mark of its own as well. Heat goes from yellow to
// violet, by lightness alone where there is no color.
package svg

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// Picture is a picture that is being drawn. Lengths are pixels, from the left and from the top.
type Picture struct {
	title         string
	width, height float64
	b             bytes.Buffer
}

// New returns an empty picture. The title says what it shows to those who cannot see it.
func New(width, height float64, title string) *Picture {
	return &Picture{title: title, width: width, height: height}
}

// Where a text has the point that is named.
const (
	Start  = "start"
	Middle = "middle"
	End    = "end"
)

// Classes of what is drawn.
const (
	Label  = "lb" // of axes
	Ink    = "in" // a line
	Strong = "st" // a text
	Grid   = "gr"
)

// Series is the class of series i. There are [SeriesCount] before they repeat.
func Series(i int) string { return "s" + strconv.Itoa(i%SeriesCount) }

// SeriesCount is the number of colors of series.
const SeriesCount = 7

// Heat is the class of a value from 0 to 1.
func Heat(v float64) string {
	return "h" + strconv.Itoa(min(max(int(v*HeatSteps), 0), HeatSteps-1))
}

// HeatSteps is the number of colors of heat.
const HeatSteps = 10

// number prints a length.
func number(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// escape makes a text one of XML: what that may not hold is U+FFFD, and what has no shape shows as such.
func escape(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
	return html.EscapeString(s)
}

// Below has draw draw what is moved down.
func (p *Picture) Below(y float64, draw func()) {
	fmt.Fprintf(&p.b, `<g transform="translate(0 %s)">`+"\n", number(y))
	draw()
	p.b.WriteString("</g>\n")
}

// Text writes a line at a point, which is its Start, Middle or End.
func (p *Picture) Text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&p.b, `<text x="%s" y="%s"`, number(x), number(y))
	if anchor != Start {
		fmt.Fprintf(&p.b, ` text-anchor="%s"`, anchor)
	}
	fmt.Fprintf(&p.b, ` class="%s">%s</text>`+"\n", class, escape(text))
}

// Upwards writes a line from the bottom to the top, with its middle at a point.
func (p *Picture) Upwards(x, y float64, class, text string) {
	fmt.Fprintf(&p.b, `<text transform="translate(%s %s) rotate(-90)" text-anchor="middle" class="%s">%s</text>`+"\n", number(x), number(y), class, escape(text))
}

// Line draws a line.
func (p *Picture) Line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&p.b, `<path class="%s" d="M%s %sL%s %s"/>`+"\n", class, number(x1), number(y1), number(x2), number(y2))
}

// Path draws lines from point to point, which are pairs.
func (p *Picture) Path(class string, points [][2]float64) {
	if len(points) < 2 {
		return
	}
	fmt.Fprintf(&p.b, `<path class="%s" d="`, class)
	for i, at := range points {
		fmt.Fprintf(&p.b, "%s%s %s", []string{"M", "L"}[min(i, 1)], number(at[0]), number(at[1]))
	}
	p.b.WriteString(`"/>` + "\n")
}

// tipped ends an element, which may say more where a pointer rests on it.
func (p *Picture) tipped(element, tip string) {
	if tip == "" {
		p.b.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&p.b, "><title>%s</title></%s>\n", escape(tip), element)
}

// Box draws a filled box.
func (p *Picture) Box(x, y, width, height float64, class, tip string) {
	fmt.Fprintf(&p.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"`, class, number(x), number(y), number(width), number(height))
	p.tipped("rect", tip)
}

// Mark draws a mark of one of some shapes, which are taken in turn, around a point.
func (p *Picture) Mark(shape int, x, y float64, class, tip string) {
	if shape%5 == 0 {
		fmt.Fprintf(&p.b, `<circle class="%s" cx="%s" cy="%s" r="4.5"`, class, number(x), number(y))
		p.tipped("circle", tip)
		return
	}
	outline := [][]float64{
		1: {-4, -4, 4, -4, 4, 4, -4, 4},
		2: {0, -5, 5, 4, -5, 4},
		3: {0, -5.5, 5.5, 0, 0, 5.5, -5.5, 0},
		4: {0, 5, 5, -4, -5, -4},
	}[shape%5]
	fmt.Fprintf(&p.b, `<path class="m %s" d="M`, class)
	for i := 0; i < len(outline); i += 2 {
		fmt.Fprintf(&p.b, "%s %s ", number(x+outline[i]), number(y+outline[i+1]))
	}
	p.b.WriteString(`Z"`)
	p.tipped("path", tip)
}

// draw writes the picture. A file of its own has its style and background with it.
func (p *Picture) draw(w io.Writer, alone bool) error {
	var b bytes.Buffer
	size := fmt.Sprintf(`viewBox="0 0 %s %s"`, number(p.width), number(p.height))
	if alone {
		fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" %s width="%s" height="%s" role="img">`+"\n", size, number(p.width), number(p.height))
	} else {
		fmt.Fprintf(&b, `<svg class="lutq" %s role="img" aria-label="%s">`+"\n", size, escape(p.title))
	}
	if alone {
		fmt.Fprintf(&b, "<title>%s</title>\n<style>\n%s</style>\n", escape(p.title), Style)
		b.WriteString(`<g class="lutq"><rect class="bg" width="100%" height="100%" rx="6"/>` + "\n")
	}
	b.Write(p.b.Bytes())
	if alone {
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

// Write writes the picture as a file of its own.
func (p *Picture) Write(w io.Writer) error { return p.draw(w, true) }

// Inline writes the picture as an element of a page that has [Style].
func (p *Picture) Inline(w io.Writer) error { return p.draw(w, false) }
