// Package plot draws simple pictures, as SVG, for the other experiments.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"io"
)

// Picture is an SVG that is being drawn. Lengths are pixels, from the left and from the top.
type Picture struct{ b bytes.Buffer }

// New returns a white picture of a size.
func New(width, height int) *Picture {
	p := new(Picture)
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	p.b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	return p
}

// Below has f draw what is moved down by so many pixels.
func (p *Picture) Below(y int, f func()) {
	fmt.Fprintf(&p.b, `<g transform="translate(0 %d)">`+"\n", y)
	f()
	p.b.WriteString("</g>\n")
}

// Where a text has the point that is named.
const (
	Start  = "start"
	Middle = "middle"
	End    = "end"
)

// Text writes a line at a point, which is its Start, Middle or End.
func (p *Picture) Text(x, y float64, anchor, format string, args ...any) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(fmt.Sprintf(format, args...)))
}

// Upwards writes a line from the bottom to the top, with its middle at a point.
func (p *Picture) Upwards(x, y float64, format string, args ...any) {
	fmt.Fprintf(&p.b, `<text transform="translate(%.0f %.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n", x, y, html.EscapeString(fmt.Sprintf(format, args...)))
}

// Line draws a line of a color.
func (p *Picture) Line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

// Dot draws a disk of a color around a point.
func (p *Picture) Dot(x, y float64, color string) {
	fmt.Fprintf(&p.b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s" fill-opacity=".7"/>`+"\n", x, y, color)
}

// Mark draws a mark of one of some shapes, which are taken in turn, around a point.
func (p *Picture) Mark(shape int, x, y float64, color string) {
	path := func(points ...float64) {
		p.b.WriteString(`<path d="M`)
		for i := 0; i < len(points); i += 2 {
			fmt.Fprintf(&p.b, " %.1f %.1f", x+points[i], y+points[i+1])
		}
		fmt.Fprintf(&p.b, ` Z" fill="%s" fill-opacity=".7"/>`+"\n", color)
	}
	switch shape % 5 {
	case 0:
		p.Dot(x, y, color)
	case 1:
		path(-4, -4, 4, -4, 4, 4, -4, 4)
	case 2:
		path(0, -5, 5, 4, -5, 4)
	case 3:
		path(0, -5.5, 5.5, 0, 0, 5.5, -5.5, 0)
	case 4:
		path(0, 5, 5, -4, -5, -4)
	}
}

// Write ends the picture and writes it.
func (p *Picture) Write(w io.Writer) error {
	p.b.WriteString("</svg>\n")
	_, err := w.Write(p.b.Bytes())
	return err
}

// Axis is one of logarithms: From lies at pixel At, and To at pixel End.
type Axis struct{ From, To, At, End float64 }

// Place returns the pixel of a logarithm.
func (a Axis) Place(log float64) float64 { return a.At + (log-a.From)/(a.To-a.From)*(a.End-a.At) }
