package roofline

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/svg"
	"github.com/lutq/lutq/gemm/bench"
)

// The picture of a roofline, in pixels: its size, and the margins around the field, with the legend to the right.
const (
	roofWidth, roofHeight = 960, 560
	roofLeft, roofRight   = 84, 250
	roofTop, roofBottom   = 72, 64
	legendLine            = 19
	mostShapes            = 12 // in the legend
)

// Plot draws the roofs, and the points in a color for each series and a mark for each shape, over the operations a byte, as
// an SVG. Points of a series and shape are joined in the order of M, which is written beside the first of them.
func (l *Roofline) Plot(w io.Writer) error {
	pic := svg.New(roofWidth, roofHeight, "Products under the roofs of "+l.Device)
	unit, name := 1e9, "GFLOP/s"
	if l.mostRate() >= 1e12 {
		unit, name = 1e12, "TFLOP/s"
	}
	x, y := l.axes(unit)
	pic.Text(roofLeft, 24, svg.Start, "", "Products on "+l.Device)
	pic.Text(roofLeft, 42, svg.Start, svg.Label, fmt.Sprintf("Roofs: %s by %s", byteRate(l.BytesPerS), l.Reads))
	if l.FLOPPerS > 0 {
		pic.Text(roofLeft, 58, svg.Start, svg.Label, fmt.Sprintf("and %.3g %s by %s", l.FLOPPerS/unit, name, l.Multiplies))
	}
	grid(x, func(at float64, label string) {
		pic.Line(x.Place(at), y.At, x.Place(at), y.End, svg.Grid)
		pic.Text(x.Place(at), y.At+18, svg.Middle, svg.Label, label)
	})
	grid(y, func(at float64, label string) {
		pic.Line(x.At, y.Place(at), x.End, y.Place(at), svg.Grid)
		pic.Text(x.At-8, y.Place(at)+4, svg.End, svg.Label, label)
	})
	pic.Text((x.At+x.End)/2, y.At+42, svg.Middle, svg.Label, "floating-point operations for each byte of codes, scales, X and Y")
	pic.Upwards(26, (y.At+y.End)/2, svg.Label, name)
	l.drawRoofs(pic, x, y, unit)
	l.drawPoints(pic, x, y, unit)
	return pic.Write(w)
}

func byteRate(v float64) string {
	if v >= 1e12 {
		return fmt.Sprintf("%.3g TB/s", v/1e12)
	}
	return fmt.Sprintf("%.3g GB/s", v/1e9)
}

// mostRate returns the highest of what stands in the picture, in operations a second.
func (l *Roofline) mostRate() float64 {
	most := l.FLOPPerS
	for _, p := range l.Points {
		most = max(most, p.FLOPPerS)
	}
	return most
}

// axes returns those of the decimal logarithms of intensities and of rates in a unit, in halves of decades around the points and
// the end of the slope of the roofs.
func (l *Roofline) axes(unit float64) (x, y svg.Scale) {
	least, most, lowest := math.Inf(1), 0.0, math.Inf(1)
	if l.FLOPPerS > 0 {
		most = l.FLOPPerS / l.BytesPerS
	}
	for _, p := range l.Points {
		least, most = min(least, p.Intensity), max(most, p.Intensity)
		lowest = min(lowest, p.FLOPPerS)
	}
	down := func(v float64) float64 { return math.Floor(2*math.Log10(v)-.2) / 2 }
	up := func(v float64) float64 { return math.Ceil(2*math.Log10(v)+.2) / 2 }
	return svg.Linear(down(least), up(most), roofLeft, roofWidth-roofRight),
		svg.Linear(down(lowest/unit), up(l.mostRate()/unit), roofHeight-roofBottom, roofTop)
}

// grid calls f for each line of the grid of an axis.
func grid(a svg.Scale, f func(at float64, label string)) {
	for decade := math.Floor(a.From); decade <= a.To; decade++ {
		for _, v := range []float64{1, 2, 5} {
			at := decade + math.Log10(v)
			if at >= a.From-1e-9 && at <= a.To+1e-9 {
				f(at, fmt.Sprintf("%g", v*math.Pow(10, decade)))
			}
		}
	}
}

func (l *Roofline) drawRoofs(pic *svg.Picture, x, y svg.Scale, unit float64) {
	slope := func(log float64) float64 { return log + math.Log10(l.BytesPerS/unit) }
	end, top := x.To, math.Inf(1)
	if l.FLOPPerS > 0 {
		end, top = math.Log10(l.FLOPPerS/l.BytesPerS), math.Log10(l.FLOPPerS/unit)
		pic.Line(x.Place(end), y.Place(top), x.End, y.Place(top), svg.Ink)
	}
	begin := max(x.From, y.From-math.Log10(l.BytesPerS/unit))
	pic.Line(x.Place(begin), y.Place(slope(begin)), x.Place(end), y.Place(min(slope(end), top)), svg.Ink)
}

func (l *Roofline) drawPoints(pic *svg.Picture, x, y svg.Scale, unit float64) {
	names := l.allSeries()
	dense := svg.Series(svg.SeriesCount - 1) // gray
	colors := make(map[string]string)
	for i, name := range names {
		colors[name] = svg.Series(i % (svg.SeriesCount - 1))
	}
	var shapes []bench.Shape
	type chain struct {
		series, layer string
		shape         bench.Shape
		group         int
	}
	chains := make(map[chain][]Point)
	var order []chain
	for _, p := range l.Points {
		s := bench.Shape{N: p.Row.N, K: p.Row.K}
		if !slices.Contains(shapes, s) {
			shapes = append(shapes, s)
		}
		if p.Dense {
			colors[p.Series] = dense
		}
		c := chain{p.Series, p.Row.Name, s, p.Row.Group}
		if chains[c] == nil {
			order = append(order, c)
		}
		chains[c] = append(chains[c], p)
	}
	at := func(p Point) (float64, float64) {
		return x.Place(math.Log10(p.Intensity)), y.Place(math.Log10(p.FLOPPerS / unit))
	}
	for _, c := range order {
		points := slices.SortedFunc(slices.Values(chains[c]), func(a, b Point) int { return cmp.Compare(a.Row.M, b.Row.M) })
		free := 0.0 // from where on there is room for another M
		for i, p := range points {
			x1, y1 := at(p)
			if i > 0 {
				x0, y0 := at(points[i-1])
				pic.Line(x0, y0, x1, y1, "th "+colors[c.series])
			}
			pic.Mark(slices.Index(shapes, c.shape), x1, y1, colors[c.series], "")
			if c == order[0] && x1 >= free {
				pic.Text(x1+7, y1+15, svg.Start, svg.Label, fmt.Sprintf("M %d", p.Row.M))
				free = x1 + 50
			}
		}
	}
	left, line := float64(roofWidth-roofRight+24), float64(roofTop+8)
	for _, name := range names {
		pic.Line(left-4, line-4, left+12, line-4, "th "+colors[name])
		pic.Mark(0, left+4, line-4, colors[name], "")
		pic.Text(left+20, line, svg.Start, "", name)
		line += legendLine
	}
	line += legendLine
	for i, s := range shapes {
		if i == mostShapes && len(shapes) > mostShapes {
			pic.Text(left+20, line, svg.Start, "", fmt.Sprintf("and %d more", len(shapes)-mostShapes))
			break
		}
		pic.Mark(i, left+4, line-4, dense, "")
		pic.Text(left+20, line, svg.Start, "", fmt.Sprintf("%d×%d", s.N, s.K))
		line += legendLine
	}
}
