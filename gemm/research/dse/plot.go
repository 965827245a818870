package dse

import (
	"fmt"
	"io"
	"math"

	"github.com/lutq/lutq/formats/svg"
)

// The picture, in pixels: its size, and the margins around the field.
const (
	plotWidth, plotHeight = 720, 480
	plotLeft, plotRight   = 80, 36
	plotTop, plotBottom   = 64, 96
)

// newAxis returns an axis of powers of two around the values of points.
func newAxis(at, end float64, points []Point, value func(Point) float64) svg.Scale {
	least, most := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		v := math.Log2(value(p))
		least, most = min(least, v), max(most, v)
	}
	return svg.Linear(math.Floor(least), math.Floor(most)+1, at, end)
}

// Plot draws spaces, as [Space] returns them, one below the other as an SVG: gates over the bits that a
// tile stores of tables, or rows of A, and weights.
func Plot(w io.Writer, spaces ...[]Point) error {
	p := svg.New(plotWidth, float64(plotHeight*len(spaces)), "Gates and stored bits of tiles")
	for i, points := range spaces {
		p.Below(float64(i*plotHeight), func() { draw(p, points) })
	}
	return p.Write(w)
}

// draw draws one space.
func draw(pic *svg.Picture, points []Point) {
	stored := func(p Point) float64 { return float64(p.TableBits + p.WeightBits) }
	gates := func(p Point) float64 { return p.Gates / 1000 }
	x := newAxis(plotLeft, plotWidth-plotRight, points, stored)
	y := newAxis(plotHeight-plotBottom, plotTop, points, gates)

	mark := func(x, y float64, u Unit) {
		class := svg.Series(1)
		if u == Lookup {
			class = svg.Series(0)
		}
		pic.Mark(0, x, y, class, "")
	}
	p := points[0]
	pic.Text(plotLeft, 24, svg.Start, "", fmt.Sprintf("Tiles of %d products, weights of %s", p.M*p.N*p.K, plural(p.Bits, "bit")))
	pic.Text(plotLeft, 42, svg.Start, svg.Label, Label)
	for v := x.From; v <= x.To; v++ {
		pic.Line(x.Place(v), y.At, x.Place(v), y.End, svg.Grid)
		pic.Text(x.Place(v), y.At+18, svg.Middle, svg.Label, fmt.Sprintf("%g", math.Exp2(v)))
	}
	for v := y.From; v <= y.To; v++ {
		pic.Line(x.At, y.Place(v), x.End, y.Place(v), svg.Grid)
		pic.Text(x.At-8, y.Place(v)+4, svg.End, svg.Label, fmt.Sprintf("%g", math.Exp2(v)))
	}
	pic.Text((x.At+x.End)/2, y.At+38, svg.Middle, svg.Label, "bits stored: tables or rows of A, and weights")
	pic.Upwards(24, (y.At+y.End)/2, svg.Label, "thousand gates (NAND2)")
	named := make(map[Unit]bool)
	for _, p := range points {
		at, up := x.Place(math.Log2(stored(p))), y.Place(math.Log2(gates(p)))
		mark(at, up, p.Unit)
		if !named[p.Unit] { // the best
			named[p.Unit] = true
			pic.Text(at, up+18, svg.Middle, "", p.Tile())
		}
	}
	for i, u := range []Unit{Lookup, MAC} {
		left := float64(plotLeft + 260*i)
		mark(left+4, plotHeight-28, u)
		pic.Text(left+16, plotHeight-24, svg.Start, "", u.long(points))
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
