package dse

import (
	"fmt"
	"io"
	"math"

	"github.com/lutq/lutq/gemm/research/plot"
)

// The picture, in pixels: its size, and the margins around the field.
const (
	plotWidth, plotHeight = 720, 480
	plotLeft, plotRight   = 80, 24
	plotTop, plotBottom   = 64, 96
)

// newAxis returns an axis of powers of two around the values of points.
func newAxis(at, end float64, points []Point, value func(Point) float64) plot.Axis {
	least, most := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		v := math.Log2(value(p))
		least, most = min(least, v), max(most, v)
	}
	return plot.Axis{From: math.Floor(least), To: math.Floor(most) + 1, At: at, End: end}
}

// Plot draws spaces, as [Space] returns them, one below the other as an SVG: gates over the bits that a
// tile stores of tables, or rows of A, and weights.
func Plot(w io.Writer, spaces ...[]Point) error {
	p := plot.New(plotWidth, plotHeight*len(spaces))
	for i, points := range spaces {
		p.Below(i*plotHeight, func() { draw(p, points) })
	}
	return p.Write(w)
}

// draw draws one space.
func draw(pic *plot.Picture, points []Point) {
	stored := func(p Point) float64 { return float64(p.TableBits + p.WeightBits) }
	gates := func(p Point) float64 { return p.Gates / 1000 }
	x := newAxis(plotLeft, plotWidth-plotRight, points, stored)
	y := newAxis(plotHeight-plotBottom, plotTop, points, gates)

	const grid = "#ddd"
	mark := func(x, y float64, u Unit) {
		color := "#c33"
		if u == Lookup {
			color = "#06c"
		}
		pic.Dot(x, y, color)
	}
	p := points[0]
	pic.Text(plotLeft, 24, plot.Start, "Tiles of %d products, weights of %s", p.M*p.N*p.K, plural(p.Bits, "bit"))
	pic.Text(plotLeft, 42, plot.Start, "%s", Label)
	for v := x.From; v <= x.To; v++ {
		pic.Line(x.Place(v), y.At, x.Place(v), y.End, grid)
		pic.Text(x.Place(v), y.At+18, plot.Middle, "%g", math.Exp2(v))
	}
	for v := y.From; v <= y.To; v++ {
		pic.Line(x.At, y.Place(v), x.End, y.Place(v), grid)
		pic.Text(x.At-8, y.Place(v)+4, plot.End, "%g", math.Exp2(v))
	}
	pic.Text((x.At+x.End)/2, y.At+38, plot.Middle, "bits stored: tables or rows of A, and weights")
	pic.Upwards(24, (y.At+y.End)/2, "thousand gates (NAND2)")
	named := make(map[Unit]bool)
	for _, p := range points {
		at, up := x.Place(math.Log2(stored(p))), y.Place(math.Log2(gates(p)))
		mark(at, up, p.Unit)
		if !named[p.Unit] { // the best
			named[p.Unit] = true
			pic.Text(at, up+18, plot.Middle, "%s", p.Tile())
		}
	}
	for i, u := range []Unit{Lookup, MAC} {
		left := float64(plotLeft + 260*i)
		mark(left+4, plotHeight-28, u)
		pic.Text(left+16, plotHeight-24, plot.Start, "%s", u.long(points))
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
