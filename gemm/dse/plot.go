package dse

import (
	"bytes"
	"fmt"
	"io"
	"math"
)

// The picture, in pixels: its size, and the margins around the field.
const (
	plotWidth, plotHeight = 720, 480
	plotLeft, plotRight   = 80, 24
	plotTop, plotBottom   = 64, 96
)

// axis is a logarithmic one: a value of 2^from lies at pixel at, and one of 2^to at pixel end.
type axis struct{ from, to, at, end float64 }

func newAxis(at, end float64, points []Point, value func(Point) float64) axis {
	least, most := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		v := math.Log2(value(p))
		least, most = min(least, v), max(most, v)
	}
	return axis{math.Floor(least), math.Floor(most) + 1, at, end}
}

func (a axis) place(log2 float64) float64 {
	return a.at + (log2-a.from)/(a.to-a.from)*(a.end-a.at)
}

// Plot draws spaces, as [Space] returns them, one below the other as an SVG: gates over the bits that a
// tile stores of tables, or rows of A, and weights.
func Plot(w io.Writer, spaces ...[]Point) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight*len(spaces))
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	for i, points := range spaces {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", i*plotHeight)
		plot(&b, points)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

// plot draws one space.
func plot(b *bytes.Buffer, points []Point) {
	stored := func(p Point) float64 { return float64(p.TableBits + p.WeightBits) }
	gates := func(p Point) float64 { return p.Gates / 1000 }
	x := newAxis(plotLeft, plotWidth-plotRight, points, stored)
	y := newAxis(plotHeight-plotBottom, plotTop, points, gates)

	text := func(x, y float64, anchor, format string, args ...any) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, fmt.Sprintf(format, args...))
	}
	line := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", x1, y1, x2, y2)
	}
	mark := func(x, y float64, u Unit) {
		color := "#c33"
		if u == Lookup {
			color = "#06c"
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s" fill-opacity=".7"/>`+"\n", x, y, color)
	}
	p := points[0]
	text(plotLeft, 24, "start", "Tiles of %d products, weights of %s", p.M*p.N*p.K, plural(p.Bits, "bit"))
	text(plotLeft, 42, "start", "%s", Label)
	for v := x.from; v <= x.to; v++ {
		line(x.place(v), y.at, x.place(v), y.end)
		text(x.place(v), y.at+18, "middle", "%g", math.Exp2(v))
	}
	for v := y.from; v <= y.to; v++ {
		line(x.at, y.place(v), x.end, y.place(v))
		text(x.at-8, y.place(v)+4, "end", "%g", math.Exp2(v))
	}
	text((x.at+x.end)/2, y.at+38, "middle", "bits stored: tables or rows of A, and weights")
	fmt.Fprintf(b, `<text transform="translate(24 %.1f) rotate(-90)" text-anchor="middle">thousand gates (NAND2)</text>`+"\n", (y.at+y.end)/2)
	named := make(map[Unit]bool)
	for _, p := range points {
		at, up := x.place(math.Log2(stored(p))), y.place(math.Log2(gates(p)))
		mark(at, up, p.Unit)
		if !named[p.Unit] { // the best
			named[p.Unit] = true
			text(at, up+18, "middle", "%s", p.Tile())
		}
	}
	for i, u := range []Unit{Lookup, MAC} {
		left := float64(plotLeft + 260*i)
		mark(left+4, plotHeight-28, u)
		text(left+16, plotHeight-24, "start", "%s", u.long(points))
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// long says what a unit is, and how many cycles it takes.
func (u Unit) long(points []Point) string {
	name := "multiplications"
	if u == Lookup {
		name = "lookups"
	}
	for _, p := range points {
		if p.Unit == u {
			return name + ", " + plural(p.Cycles, "cycle")
		}
	}
	return name
}
